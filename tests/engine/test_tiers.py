"""Tiers: what each server sees, and what each row gets, also when a tier fails, hangs, or is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.cache import MISS, AnswerCache
from enrichkit.engine.reuse import Reuse
from enrichkit.engine.write_back import WRITERS, WriteBack
from enrichkit.errors import FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.testing.scripted import ScriptedConnector, Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .bench import Lab, Row, Task

BATCH = pytest.mark.parametrize("batch_size", [1, 3])
ORDERED = pytest.mark.parametrize("ordered", [True, False])


class Store(ScriptedConnector):
    """A source that can be written to."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.stored: dict[Any, Any] = {}
        self.writes: list[tuple[dict[Any, Any], float | None]] = []
        self.breaks: BaseException | None = None

    async def store_many(self, values: Mapping[Any, Any], ttl: float | None) -> None:
        self.writes.append((dict(values), ttl))
        if self.breaks is not None:
            raise self.breaks
        self.stored |= values


def by_key(task: Task) -> dict[Any, Row]:
    return {row.key: row for row in task.left}


async def test_a_write_opens_the_store_once(lab: Lab) -> None:
    store = Store({})
    engine = lab.engine(store)
    await engine.store({}, None)
    assert store.opened == 0
    for value in (1, 2):
        await engine.store({"a": value}, 60.0)
    assert (store.opened, store.writes) == (1, [({"a": 1}, 60.0), ({"a": 2}, 60.0)])


@ORDERED
@BATCH
async def test_a_key_goes_to_the_source_when_no_tier_holds_it(lab: Lab, ordered: bool, batch_size: int) -> None:
    first = lab.server({"a": Step(value=1, after=0.01)}, otherwise=Step(missing=True, after=0.01))
    second = lab.server({"b": Step(value=2), "a": Step(value=0)}, otherwise=Step(missing=True))
    source = lab.server({"n": Step(missing=True)}, otherwise=Step(after=0.01))
    tiers = [
        lab.tier(lab.engine(server, batch_size=batch_size), name) for server, name in ((first, "near"), (second, "far"))
    ]
    task = lab.task(lab.engine(source, batch_size=batch_size), tiers=tiers, ordered=ordered, details=True)
    task.admit("a", "b", "c", "n", nulls=1)
    await task.end()
    rows = by_key(task)
    assert {key: (row.value, row.status, row.origin) for key, row in rows.items() if key} == {
        "a": (1, "ok", "tier:near"),
        "b": (2, "ok", "tier:far"),
        "c": ("vc", "ok", "call"),
        "n": (None, "missing", "call"),
    }
    assert [dict(server.asked) for server in (first, second, source)] == [
        {"a": 1, "b": 1, "c": 1, "n": 1},
        {"b": 1, "c": 1, "n": 1},
        {"c": 1, "n": 1},
    ]
    stats = task.run.stats
    assert (stats.tiered, stats.skipped, stats.ok, stats.missing, stats.keys) == (2, 0, 3, 1, 4)
    assert not task.ordered or [row.key for row in task.left[:4]] == ["a", "b", "c", "n"]


@BATCH
async def test_the_seconds_of_a_tier_count_whatever_path_settles_a_key(lab: Lab, batch_size: int) -> None:
    """All keys of a call that are alike are settled at once; a failure among them separates them."""
    for failure in (None, PermanentError("no")):
        near = lab.tier(lab.engine(lab.server(otherwise=Step(missing=True, after=0.5)), batch_size=3), "near")
        source = lab.server({"c": Step(failure=failure, after=0.2)}, otherwise=Step(after=0.2))
        engine = lab.engine(source, batch_size=batch_size)
        task = lab.task(engine, tiers=[near], details=True, on_error="null")
        outcomes = task.admit("a", "b", "c")
        await task.end()
        assert outcomes.details is not None
        assert outcomes.details.latencies == [pytest.approx(0.7)] * 3


async def test_the_time_for_which_the_process_stood_still_is_not_the_tiers(lab: Lab) -> None:
    """A tier that does not answer is left out 0.1 s after that: the source has almost all the time for its keys."""
    store = lab.server({"c": Step(block=300.0)}, otherwise=Step(never=True))
    near = lab.tier(lab.engine(store, capacity=5))
    task = lab.task(lab.engine(lab.server(otherwise=Step(after=1.7))), tiers=[near], timeout=2.0, on_timeout="null")
    task.admit("a")
    await lab.at(0.4)
    task.admit("b")
    task.admit("c")
    await task.end()
    assert [(row.key, row.status) for row in task.left] == [("a", "timeout"), ("b", "ok"), ("c", "ok")]


@pytest.mark.parametrize("further", [False, True])
async def test_keys_that_a_tier_settles_in_another_order_keep_their_values(lab: Lab, further: bool) -> None:
    """The tier refuses the third key at once, and lacks the others of the call: their order there is another one."""
    refused = Step(failure=PermanentError("no"), after=0.01)
    near = lab.server({"c": refused}, otherwise=Step(missing=True, after=0.01))
    far = lab.server({"d": refused}, otherwise=Step(missing=True, after=0.01))
    tiers = [lab.tier(lab.engine(near, batch_size=10), "near")]
    if further:
        tiers.append(lab.tier(lab.engine(far, batch_size=10), "far"))
    source = lab.server(otherwise=Step(after=0.01))
    task = lab.task(lab.engine(source, batch_size=10), tiers=tiers)
    task.admit("a", "b", "c", "d", "e")
    await task.end()
    assert [(row.key, row.value) for row in task.left] == [(key, f"v{key}") for key in "abcde"]


async def test_the_oldest_slice_gets_its_keys_also_when_they_come_late_from_a_tier(lab: Lab) -> None:
    """Spark takes no bytes, so only the oldest slice may go on, and its keys stand behind those of the second one."""
    near = lab.server({"a": Step(missing=True, after=0.2)}, otherwise=Step(missing=True, after=0.01))
    source = lab.server(otherwise=Step(value="x" * 2000, after=0.05))
    task = lab.task(lab.engine(source, capacity=1), tiers=[lab.tier(lab.engine(near, capacity=10))], window_bytes=1024)
    task.admit("a")
    task.admit_each(*(f"k{n}" for n in range(10)))
    await task.end()
    assert len(task.values) == 11


async def test_each_key_has_the_time_that_the_tiers_have_left_it(lab: Lab) -> None:
    """One slice: the tier has missed `a` at once and hung with `b`, and the source takes 0.8 of a second for both."""
    near = lab.server({"b": Step(never=True)}, otherwise=Step(missing=True, after=0.01))
    source = lab.server(otherwise=Step(after=0.8))
    tier = lab.tier(lab.engine(near), timeout=0.5)
    task = lab.task(lab.engine(source, capacity=1), tiers=[tier], timeout=1.2, on_timeout="null", details=True)
    task.admit("c")  # takes the slot
    task.admit("a", "b")
    await task.end()
    rows = by_key(task)
    assert (rows["c"].status, rows["a"].status, rows["b"].status) == ("ok", "ok", "timeout")
    assert rows["b"].latency == pytest.approx(1.2, abs=0.11)


@BATCH
async def test_a_tier_that_refuses_keys_has_answered(lab: Lab, batch_size: int) -> None:
    near = lab.server({"b": Step(value=0)}, otherwise=Step(failure=PermanentError("no"), after=0.01))
    tier = lab.tier(lab.engine(near, batch_size=batch_size))
    task = lab.task(lab.engine(lab.server(), batch_size=batch_size), tiers=[tier])
    task.admit("a", "c", "d")
    await task.end()
    again = lab.task(lab.engines[-1], tiers=[lab.tier(lab.engines[0])])
    again.admit("b")
    await again.end()
    assert by_key(again)["b"].value == 0, "the tier was taken for one that is down"


async def test_a_tier_that_is_down_at_once_takes_no_time_off_the_deadline(lab: Lab) -> None:
    """It has 0.5 s, and fails after 0.01 s; the source needs 0.9 of the second that a lookup has."""
    near = lab.server(otherwise=Step(error=TransientError("busy"), after=0.01))
    source = lab.server(otherwise=Step(after=0.9))
    task = lab.task(
        lab.engine(source, batch_size=1), tiers=[lab.tier(lab.engine(near, capacity=1))], timeout=1.0, details=True
    )
    task.admit("a", "b", "c")
    await task.end()
    assert [(row.status, row.value) for row in task.left] == [("ok", "va"), ("ok", "vb"), ("ok", "vc")]


@BATCH
async def test_rows_of_one_key_in_many_slices_ask_each_server_once(lab: Lab, batch_size: int) -> None:
    near = lab.server(otherwise=Step(missing=True, after=0.1))
    source = lab.server(otherwise=Step(after=0.1))
    tier = lab.tier(lab.engine(near, batch_size=batch_size))
    task = lab.task(lab.engine(source, batch_size=batch_size), tiers=[tier])
    for number in range(50):
        task.admit("a", f"k{number}", apart=number == 0)
    await task.end()
    assert Counter(task.values)["va"] == 50
    assert (near.asked["a"], source.asked["a"]) == (1, 1)
    assert set(source.asked.values()) == {1}


@ORDERED
@BATCH
async def test_what_is_found_is_told_to_the_stages_and_written_to_earlier_tiers(
    lab: Lab, ordered: bool, batch_size: int
) -> None:
    near, far = Store(otherwise=Step(missing=True)), Store({"b": Step(value=2)}, otherwise=Step(missing=True))
    source = lab.server({"n": Step(missing=True), "null": Step(value=None)})
    tiers = [
        lab.tier(lab.engine(server, batch_size=batch_size), name, writes=True, ttl=60.0)
        for server, name in ((near, "near"), (far, "far"))
    ]
    cache = AnswerCache(60.0, 2**20)
    task = lab.task(lab.engine(source, batch_size=batch_size), tiers=tiers, cache=cache, ordered=ordered)
    task.admit("b", "c", "n", "null")
    await lab.at(1.0)
    await task.run.drain()
    assert near.stored == {"b": 2, "c": "vc"}
    assert far.stored == {"c": "vc"}
    assert {ttl for _, ttl in near.writes + far.writes} == {60.0}
    assert cache.get_many(["b", "c", "n", "null"], lab.now) == [2, "vc", MISS, None]
    task.admit("b", "c", "n", "null")
    await task.end()
    assert set(near.asked.values()) == {1}


@BATCH
@pytest.mark.parametrize(
    "step",
    [
        Step(error=PermanentError("poison")),
        Step(failure=PermanentError("poison")),
        Step(failure=PermanentError("poison"), rejected=True),
        Step(error=TransientError("busy")),
        Step(error=UnavailableError("refused")),
        Step(error=FatalError("no such table")),
        Step(never=True),
        Step(returns="not a mapping"),
        Step(error=ValueError("a bug")),
    ],
)
async def test_a_tier_that_fails_fails_no_row(lab: Lab, batch_size: int, step: Step) -> None:
    near = lab.server(otherwise=step)
    source = lab.server(otherwise=Step(after=0.01))
    tier = lab.tier(lab.engine(near, batch_size=batch_size, capacity=2))
    task = lab.task(lab.engine(source, batch_size=batch_size), tiers=[tier], timeout=5.0, details=True)
    keys = [f"k{number}" for number in range(20)]
    for start in range(0, 20, 4):
        task.admit(*keys[start : start + 4])
    await task.end()
    assert {row.key: (row.value, row.status, row.origin) for row in task.left} == {
        key: (f"v{key}", "ok", "call") for key in keys
    }
    assert dict(source.asked) == dict.fromkeys(keys, 1)
    assert task.run.stats.skipped == 20
    assert lab.now < 3.0


@BATCH
async def test_a_tier_that_hangs_is_waited_for_once_and_asked_again_when_it_is_back(lab: Lab, batch_size: int) -> None:
    def near_at(key: Any, nth: int) -> Step:
        return Step(never=True) if 1.0 <= lab.now < 11.0 else Step(value=f"near {key}", after=0.001)

    near, source = lab.server(near_at), lab.server(otherwise=Step(after=0.001))
    tier = lab.tier(lab.engine(near, batch_size=batch_size))
    task = lab.task(lab.engine(source, batch_size=batch_size, capacity=8), tiers=[tier], details=True)
    number, waits = 0, {}
    while lab.now < 15.0:
        task.admit(*range(number, number + 6))
        asked = lab.now
        await task.until(lambda: len(task.left) == task.admitted)
        waits[asked] = lab.now - asked
        number += 6
        await lab.at(lab.now + 0.1)
    await task.end()
    assert all(row.value in (f"near {row.key}", f"v{row.key}") for row in task.left)
    slow = [moment for moment, wait in waits.items() if wait > 0.1]
    assert len(slow) == 1, "the tier is waited for once"
    assert waits[slow[0]] < 0.7
    origins = {moment: {row.origin for row in task.left if row.at >= moment} for moment in (12.5,)}
    assert origins[12.5] == {"tier:near"}
    while_down = [call for call in near.calls if 2.0 <= call.started < 10.5]
    assert 5 <= len(while_down) <= 10 * max(1, 6 // batch_size // 2 + 6), "it is asked once a second"
    assert task.run.stats.skipped > 0


async def test_a_tier_that_is_down_is_down_for_the_next_task_too(lab: Lab) -> None:
    near, source = lab.server(otherwise=Step(never=True)), lab.server()
    near_engine, engine = lab.engine(near), lab.engine(source)
    for _ in range(3):
        task = lab.task(engine, tiers=[lab.tier(near_engine)])
        task.admit("a", "b")
        await task.end()
        assert task.values == ["va", "vb"]
    assert lab.now < 1.0


async def test_the_time_of_the_tiers_counts_for_the_timeout(lab: Lab) -> None:
    near = lab.server({"slow": Step(missing=True, after=0.4)}, otherwise=Step(missing=True))
    source = lab.server(otherwise=Step(after=0.8))
    tier = lab.tier(lab.engine(near))
    task = lab.task(lab.engine(source, capacity=8), tiers=[tier], timeout=1.0, on_timeout="null", details=True)
    task.admit("slow", "quick")
    await task.end()
    rows = by_key(task)
    assert rows["quick"].value == "vquick"
    assert (rows["slow"].value, rows["slow"].status) == (None, "timeout")
    assert rows["slow"].at == pytest.approx(1.0, abs=0.06)


async def test_a_write_that_fails_is_counted_and_logged_once(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    near, source = Store(otherwise=Step(missing=True)), lab.server()
    near.breaks = TransientError("read only")
    tier = lab.tier(lab.engine(near), writes=True)
    task = lab.task(lab.engine(source), tiers=[tier])
    for key in "abc":
        task.admit(key)
        await lab.settle()
    await task.run.drain()
    await task.end()
    assert task.values == ["va", "vb", "vc"]
    assert tier.writer is not None
    assert (tier.writer.written, tier.writer.unwritten) == (0, 3)
    assert [record.getMessage() for record in caplog.records if "written" in record.getMessage()] == [
        "near: a tier was not written to, which concerns no row: TransientError: read only"
    ]


async def test_nothing_is_written_after_the_end_of_a_task(lab: Lab) -> None:
    near = Store(otherwise=Step(missing=True))
    tier = lab.tier(lab.engine(near), writes=True)
    task = lab.task(lab.engine(lab.server()), tiers=[tier])
    task.admit("a")
    await task.end()
    assert tier.writer is not None
    stored, written = dict(near.stored), tier.writer.written
    tier.writer.put(["late"], ["v"])
    await lab.settle()
    await tier.writer.drain()
    assert (near.stored, tier.writer.written) == (stored, written)


async def test_a_slow_write_delays_no_row(lab: Lab) -> None:
    class Slow(Store):
        async def store_many(self, values: Mapping[Any, Any], ttl: float | None) -> None:
            await asyncio.sleep(2.0)
            await super().store_many(values, ttl)

    near, source = Slow(otherwise=Step(missing=True)), lab.server()
    task = lab.task(lab.engine(source), tiers=[lab.tier(lab.engine(near), writes=True)])
    task.admit(*range(6))
    await task.until(lambda: len(task.left) == 6)
    assert lab.now < 0.1
    await task.run.drain()
    assert set(near.stored) == set(range(6))
    await task.end()


async def test_a_value_that_comes_just_as_the_writers_end_is_written() -> None:
    """The writers have ended, and the event loop has not called their callbacks yet."""

    class Gated:
        batch_size = 10

        def __init__(self) -> None:
            self.gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.stored: dict[Any, Any] = {}

        async def store(self, values: Mapping[Any, Any], ttl: float | None) -> None:
            await self.gate
            self.stored.update(values)

    near = Gated()
    writer = WriteBack("near", near, lambda values: dict(enumerate(values)), None)
    for key in range(WRITERS):
        writer.put([key], [key])
        await asyncio.sleep(0)  # the writer waits at the gate
    near.gate.set_result(None)
    await asyncio.sleep(0)  # the writers go on in this turn of the loop and end; their callbacks come in the next
    writer.put(["late"], ["late"])
    await asyncio.sleep(0)
    await writer.drain()
    assert near.stored == {**{key: key for key in range(WRITERS)}, "late": "late"}
    assert writer.written == WRITERS + 1


async def test_reuse_answers_before_the_tiers(lab: Lab) -> None:
    near, source = lab.server({"a": Step(value=1)}, otherwise=Step(missing=True)), lab.server()
    task = lab.task(lab.engine(source), tiers=[lab.tier(lab.engine(near))], reuse=Reuse(2**20), details=True)
    for _ in range(3):
        task.admit("a", "b")
        await lab.settle()
    await task.end()
    assert [row.origin for row in task.left] == ["tier:near", "call", "reuse", "reuse", "reuse", "reuse"]
    assert (dict(near.asked), dict(source.asked)) == ({"a": 1, "b": 1}, {"b": 1})


async def test_closing_a_task_ends_the_calls_of_its_tiers(lab: Lab) -> None:
    near, source = lab.server(otherwise=Step(never=True)), lab.server()
    task = lab.task(lab.engine(source), tiers=[lab.tier(lab.engine(near), timeout=50.0)])
    task.admit("a")
    await lab.at(0.1)
    assert near.in_flight == 1
    task.close()
    await lab.at(0.2)
    assert near.in_flight == 0
