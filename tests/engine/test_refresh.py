"""Values beyond their time, and refreshes in the background: what the server sees, and what each row gets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.cache import ABSENT, AnswerCache
from enrichkit.errors import PermanentError, UnavailableError
from enrichkit.options import Retry, default
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from enrichkit.engine.engine import Engine

    from .bench import Lab, Task

ROOM = 2**20
BATCH = pytest.mark.parametrize("batch_size", [1, 3])
ORDERED = pytest.mark.parametrize("ordered", [True, False])


def task_of(lab: Lab, engine: Engine, cache: AnswerCache, **options: Any) -> Task:
    arguments = {name: options.pop(name) for name in ("ordered",) if name in options}
    refresher = lab.refresher(engine, cache, **options)
    return lab.task(engine, cache=cache, refresher=refresher, details=True, **arguments, **options)


def seen(task: Task) -> list[tuple[Any, str, str | None]]:
    return [(row.value, row.status, row.origin) for row in task.left]


@ORDERED
@BATCH
@pytest.mark.parametrize(
    "step",
    [
        Step(error=PermanentError("poison")),
        Step(failure=PermanentError("poison")),
        Step(error=UnavailableError("refused")),
        Step(never=True),
    ],
)
async def test_an_old_value_stands_for_a_lookup_that_fails(
    lab: Lab, batch_size: int, ordered: bool, step: Step
) -> None:
    server = lab.server({"a": [Step(value="old"), step], "b": [Step(missing=True), step]})
    engine = lab.engine(server, batch_size=batch_size)
    cache = AnswerCache(10.0, ROOM, None, stale_if_error=100.0)
    task = task_of(
        lab, engine, cache, ordered=ordered, timeout=1.0, retry=Retry(attempts=2, wait=0.1), on_error=default("none")
    )
    task.admit("a", "b")
    await lab.at(11.0)
    task.admit("a", "b")
    await task.end()
    rows = {(row.key, row.at < 11.0): row for row in task.left}
    assert (rows["a", False].value, rows["a", False].status, rows["a", False].origin) == ("old", "ok", "stale")
    assert rows["a", False].error is None
    assert rows["b", False].origin != "stale", "a miss is no value"
    assert task.run.stats.stale == 1
    assert server.asked["a"] >= 2


async def test_a_value_is_served_for_its_time_and_the_stale_window_and_no_longer(lab: Lab) -> None:
    server = lab.server({"a": [Step(value="old"), Step(error=PermanentError("poison"))]})
    engine = lab.engine(server)
    task = task_of(lab, engine, AnswerCache(10.0, ROOM, None, stale_if_error=5.0))
    for moment in (0.0, 9.9, 10.1, 14.9, 15.1):
        await lab.at(moment)
        task.admit("a")
    await task.end()
    assert [row.origin for row in task.left] == ["call", "cache", "stale", "stale", "call"]
    assert [row.status for row in task.left] == ["ok"] * 4 + ["error"]


@BATCH
async def test_while_the_source_is_away_old_values_are_given_at_once_and_it_is_asked_in_the_background(
    lab: Lab, batch_size: int
) -> None:
    def script(key: Any, nth: int) -> Step:
        if 20.0 <= lab.now < 40.0:
            return Step(after=0.01, error=UnavailableError("refused"))
        return Step(after=0.01, value=f"{key} at {lab.now:.0f}")

    server = lab.server(script)
    engine = lab.engine(server, batch_size=batch_size)
    cache = AnswerCache(10.0, ROOM, None, stale_if_error=100.0)
    task = task_of(lab, engine, cache)
    task.admit(*"abcdef")
    await lab.at(21.0)
    task.admit(*"abcdef")
    await lab.at(22.0)
    assert len(task.left) == 12, "no row waits for the source"
    before = len(server.calls)
    for second in range(22, 40):
        await lab.at(float(second))
        task.admit(*"abc")
    assert 10 <= len(server.calls) - before <= 50, "probes only"
    await lab.at(45.0)
    task.admit(*"abcdef")
    await task.end()
    origins = Counter((row.at < 20.0, row.origin) for row in task.left)
    assert origins[True, "call"] == 6
    assert origins[False, "stale"] == 6 + 18 * 3
    assert {row.value for row in task.left if row.origin == "stale"} == {f"{key} at 0" for key in "abcdef"}
    fresh = task.left[-6:]
    assert {row.origin for row in fresh} <= {"call", "cache"}
    assert all(int(row.value.split()[-1]) >= 40 for row in fresh)


async def test_an_answer_that_is_asked_for_is_refreshed_before_its_time_is_over(lab: Lab) -> None:
    server = lab.server(lambda key, nth: Step(after=0.1, value=f"{key}{nth}"))
    engine = lab.engine(server)
    cache = AnswerCache(10.0, ROOM, None, refresh_ahead=10.0, seed=3)
    task = task_of(lab, engine, cache)
    task.admit("hot", "cold")
    for tick in range(1, 400):
        await lab.at(tick / 10)
        task.admit("hot")
    await task.end()
    assert server.asked["cold"] == 1
    assert [row.origin for row in task.left[:2]] == ["call", "call"]
    late = [row for row in task.left[2:] if row.origin != "cache"]
    assert late == [], "no row waits for a refresh"
    assert 4 <= server.asked["hot"] <= 12
    assert all(row.latency == 0.0 for row in task.left[2:])
    ages = {}
    for row in task.left[2:]:
        ages.setdefault(row.value, row.at)
    assert all(row.at - ages[row.value] <= 10.2 for row in task.left[2:])


async def test_a_task_whose_keys_are_all_in_the_cache_refreshes_them_too(lab: Lab) -> None:
    """It makes no call of its own by which it would learn how long one takes."""
    server = lab.server(lambda key, nth: Step(after=0.1, value=f"{key}{nth}"))
    engine = lab.engine(server)
    cache = AnswerCache(10.0, ROOM, None, refresh_ahead=10.0, seed=3)
    first = task_of(lab, engine, cache)
    first.admit("hot")
    await first.end()
    second = task_of(lab, engine, cache)
    for tick in range(2, 200):
        await lab.at(tick / 10)
        second.admit("hot")
    await second.end()
    assert {row.origin for row in second.left} == {"cache"}
    assert 2 <= server.asked["hot"] <= 6


async def test_a_refresh_waits_for_rows_and_takes_a_quarter_of_the_slots(lab: Lab) -> None:
    server = lab.server(otherwise=Step(after=1.0))
    engine = lab.engine(server, capacity=8)
    cache = AnswerCache(1000.0, ROOM, None)
    refresher = lab.refresher(engine, cache)
    task = lab.task(engine, cache=cache, refresher=refresher)
    task.admit(*range(16))
    refresher.ask([f"b{number}" for number in range(10)])
    await lab.at(0.5)
    assert {key for call in server.calls for key in call.keys} == set(range(8)), "rows go first"
    await lab.at(1.5)
    assert {key for call in server.calls for key in call.keys} == set(range(16))
    await lab.at(2.5)
    assert len(server.calls) == 18
    await task.end()


async def test_a_key_is_asked_for_in_the_background_once_whoever_wants_it(lab: Lab) -> None:
    server = lab.server(otherwise=Step(after=1.0))
    engine = lab.engine(server, capacity=8)
    cache = AnswerCache(1000.0, ROOM, None)
    first, second = (lab.refresher(engine, cache) for _ in range(2))
    first.ask(["a", "b"])
    second.ask(["a", "c"])
    first.ask(["a"])
    await lab.at(0.5)
    assert server.in_flight == 2, "both together have two slots"
    await lab.at(4.0)
    assert server.asked == {"a": 1, "b": 1, "c": 1}
    assert cache.get_many(["a", "b", "c"], lab.now) == ["va", "vb", "vc"]
    assert cache.refreshing == set()
    for refresher in (first, second):
        refresher.close()


async def test_what_the_background_cannot_hold_is_left_alone(lab: Lab) -> None:
    server = lab.server(otherwise=Step(after=1.0))
    engine = lab.engine(server, capacity=4)
    cache = AnswerCache(1000.0, ROOM, None)
    refresher = lab.refresher(engine, cache)
    refresher.ask(range(1000))
    assert len(cache.refreshing) == 2
    await lab.at(5.0)
    assert len(server.calls) == 2
    refresher.ask([5, 6])
    refresher.close()
    assert cache.refreshing == set()
    await lab.at(8.0)
    assert len(server.calls) == 2


async def test_with_one_slot_nothing_is_asked_for_in_the_background(lab: Lab) -> None:
    server = lab.server()
    engine = lab.engine(server, capacity=1)
    refresher = lab.refresher(engine, AnswerCache(1000.0, ROOM, None))
    refresher.ask(["a"])
    await lab.at(1.0)
    assert server.calls == []
    refresher.close()


async def test_a_refresh_that_fails_costs_no_row(lab: Lab) -> None:
    server = lab.server({"a": [Step(value="old"), Step(error=PermanentError("poison")), Step(value="new")]})
    engine = lab.engine(server)
    cache = AnswerCache(10.0, ROOM, None)
    refresher = lab.refresher(engine, cache)
    task = lab.task(engine, cache=cache, refresher=refresher, details=True)
    task.admit("a")
    await lab.at(1.0)
    refresher.ask(["a"])
    await lab.at(2.0)
    task.admit("a")
    await lab.at(11.0)
    task.admit("a")
    await task.end()
    assert seen(task) == [("old", "ok", "call"), ("old", "ok", "cache"), ("new", "ok", "call")]


async def test_calls_of_the_background_end_with_the_task(lab: Lab) -> None:
    server = lab.server(otherwise=Step(never=True))
    engine = lab.engine(server)
    cache = AnswerCache(10.0, ROOM, None)
    refresher = lab.refresher(engine, cache)
    task = lab.task(engine, cache=cache, refresher=refresher)
    refresher.ask(["a"])
    await lab.at(1.0)
    assert server.in_flight == 1
    task.close()
    await lab.at(2.0)
    assert server.in_flight == 0
    assert cache.refreshing == set()


def test_parts_of_many_answers_expire_at_times_of_their_own() -> None:
    cache = AnswerCache(100.0, ROOM, None, jitter=0.2, seed=1)
    keys = list(range(1000))
    cache.put_many(keys, ["v"] * 1000, 0.0)
    assert ABSENT not in cache.get_many(keys, 79.9)
    held = [1000 - cache.get_many(keys, moment).count(ABSENT) for moment in range(80, 101)]
    assert held == sorted(held, reverse=True)
    assert len(set(held)) >= 6
    assert held[-1] == 0


@BATCH
async def test_a_key_without_an_old_value_waits_for_a_source_that_is_away(lab: Lab, batch_size: int) -> None:
    def script(key: Any, nth: int) -> Step:
        return Step(after=0.01, error=UnavailableError("refused") if 11.0 <= lab.now < 16.0 else None)

    server = lab.server(script)
    engine = lab.engine(server, capacity=2, batch_size=batch_size)
    task = task_of(lab, engine, AnswerCache(10.0, ROOM, None, stale_if_error=100.0), timeout=1.0)
    task.admit(*"abcdef")
    await lab.at(11.0)
    task.admit(*"abcdef", *"ghijkl")
    while len(task.left) < 18:
        await lab.at(lab.now + 0.1)
        assert 0 <= task.run.pending.clocked <= len(task.run.pending.lookups())
    await task.end()
    assert seen(task)[:6] == [(f"v{key}", "ok", "call") for key in "abcdef"]
    assert seen(task)[6:] == [
        *[(f"v{key}", "ok", "stale") for key in "abcdef"],
        *[(f"v{key}", "ok", "call") for key in "ghijkl"],
    ]
    assert (task.run.pending.clocked, task.run.pending.keys) == (0, 0)
