"""Many keys in one call, one call for many rows, and what one bad key does to its group."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.cache import AnswerCache
from enrichkit.errors import PermanentError, TransientError
from enrichkit.options import Retry, default
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from enrichkit.testing.scripted import Script

    from .bench import Lab

POISON = Step(error=PermanentError("poison"))


async def test_keys_go_out_in_groups_of_the_batch_size(lab: Lab, clock: str) -> None:
    """B1: a batch is full when it has the maximum size."""
    server, task = lab.start(batch_size=3, otherwise=Step(after=0.01))
    task.admit(*range(7))
    await task.end()
    assert server.keys == [(0, 1, 2), (3, 4, 5), (6,)]
    assert task.values == [f"v{key}" for key in range(7)]


async def test_tasks_with_batch_sizes_of_their_own_share_an_engine_and_take_turns(lab: Lab) -> None:
    server, first = lab.start(batch_size=3, capacity=1, otherwise=Step(after=1.0))
    second = lab.task(lab.engines[0], batch_size=1)
    first.admit(*range(5))
    second.admit("a", "b", "c")
    await first.end()
    await second.end()
    assert server.keys == [(0, 1, 2), ("a",), (3, 4), ("b",), ("c",)]
    assert (first.values, second.values) == ([f"v{key}" for key in range(5)], ["va", "vb", "vc"])


async def test_a_lone_key_does_not_wait_for_a_group_to_fill(lab: Lab) -> None:
    """B2: Flink's draft waits for a timer; here a free slot takes what is there."""
    server, task = lab.start(batch_size=3, otherwise=Step(after=1.0))
    task.admit("a", "b")
    await task.end()
    assert [(seen.keys, seen.started) for seen in server.calls] == [(("a", "b"), 0.0)]


async def test_keys_that_come_while_all_slots_are_busy_go_out_together(lab: Lab) -> None:
    server, task = lab.start(batch_size=3, capacity=1, otherwise=Step(after=1.0))
    for moment, key in enumerate("abcd"):
        await lab.at(moment / 10)
        task.admit(key)
    await task.end()
    assert server.keys == [("a",), ("b", "c", "d")]


async def test_no_call_is_ever_empty(lab: Lab) -> None:
    """B3: a timer that fires on an empty buffer."""
    server, task = lab.start({"a": Step(missing=True)}, batch_size=3, timeout=1.0)
    task.admit(nulls=2)
    task.admit("a", "b", "c")
    await lab.at(5.0)
    task.admit("a")
    await task.end()
    assert server.keys == [("a", "b", "c"), ("a",)]


async def test_a_group_that_is_not_full_at_the_end_of_the_input_is_asked(lab: Lab) -> None:
    """B4: rows that are buffered when the input ends."""
    server, task = lab.start(batch_size=100, capacity=1, otherwise=Step(after=1.0))
    task.admit_each("a", "b", "c")
    await task.end()
    assert task.values == ["va", "vb", "vc"]
    assert sum(len(seen.keys) for seen in server.calls) == 3


async def test_when_a_call_fails_for_good_each_of_its_rows_gets_the_error_once(lab: Lab) -> None:
    """B5: a batch call fails."""
    error = Step(error=TransientError("down"))
    server, task = lab.start(otherwise=error, batch_size=3, retry=Retry(attempts=2, wait=0.0), on_error="null")
    task.admit("a", "b", "c")
    await task.end()
    assert [row[:4] for row in task.left] == [(key, None, "error", "TransientError: down") for key in "abc"]
    assert server.keys == [("a", "b", "c")] * 2


async def test_answers_are_matched_by_key_and_an_absent_one_is_a_miss(lab: Lab) -> None:
    """B6: output that is shorter than the input; Flink's draft does not match it."""
    _, task = lab.start({"a": Step(returns={"c": "third", "b": "second"})}, batch_size=3)
    task.admit("a", "b", "c")
    await task.end()
    assert task.values == [None, "second", "third"]
    assert task.statuses == ["missing", "ok", "ok"]


async def test_groups_that_end_out_of_order_leave_in_order(lab: Lab) -> None:
    """B7: batches finish out of order in ordered mode."""
    _, task = lab.start({0: Step(after=3.0), 3: Step(after=1.0), 6: Step(after=2.0)}, batch_size=3)
    for start in (0, 3, 6):
        task.admit(*range(start, start + 3))
    await task.end()
    assert task.keys == list(range(9))


async def test_a_part_of_a_group_may_fail(lab: Lab) -> None:
    """B8: the policy "partial"; the answered rows are kept."""
    script = {"b": Step(failure=PermanentError("poison")), "c": Step(missing=True)}
    server, task = lab.start(script, batch_size=4, on_error=default("fallback"))
    task.admit("a", "b", "c", "d")
    await task.end()
    assert task.values == ["va", "fallback", None, "vd"]
    assert task.statuses == ["ok", "error", "missing", "ok"]
    assert len(server.calls) == 1


async def test_a_group_that_is_late_times_out_as_one(lab: Lab) -> None:
    """B8: the policy "fail"."""
    _, task = lab.start({"a": Step(after=3.0)}, batch_size=2, timeout=1.0, on_timeout="null")
    task.admit("a", "b", "c")
    await task.end()
    assert task.statuses == ["timeout", "timeout", "ok"]


@pytest.mark.parametrize("seed", range(5))
async def test_the_statistics_agree_with_what_the_source_saw(lab: Lab, seed: int) -> None:
    """B9: the metrics of the batch operator."""
    rng = random.Random(seed)
    script = {
        key: [Step(after=rng.random(), failure=TransientError("shaky")), Step(missing=rng.random() < 0.3)]
        if rng.random() < 0.2
        else Step(after=rng.choice([0.1, 1.5]))
        for key in range(60)
    }
    server, task = lab.start(script, batch_size=5, timeout=1.0, on_timeout="null", on_error="null")
    for _ in range(10):
        task.admit(*rng.sample(range(60), 10))
        await lab.at(lab.now + 0.3)
    await task.end()
    stats = task.run.stats
    assert stats.calls == len(server.calls)
    assert stats.attempts == sum(server.asked.values())
    assert (stats.rows, stats.keys) == (100, 100)
    assert stats.ok + stats.missing + stats.timeouts + stats.errors + stats.rejected + stats.shared == 100
    assert stats.shared == 100 - stats.lookups_took().total


async def test_a_key_of_several_slices_is_asked_once(lab: Lab, clock: str) -> None:
    server, task = lab.start(otherwise=Step(after=0.02), capacity=2)
    for _ in range(5):
        task.admit("a", "b")
    await task.end()
    assert task.values == ["va", "vb"] * 5
    assert dict(server.asked) == {"a": 1, "b": 1}


async def test_rows_of_a_key_that_is_in_flight_wait_for_its_call(lab: Lab) -> None:
    """K1: testKeysProcessingWithTheSameKeysPending; K8: testPendingRecords. They are answered by it, too."""
    server, task = lab.start(otherwise=Step(held=True), capacity=10)
    task.admit_each(1, 2, 3, 1, 2)
    await lab.settle()
    assert server.keys == [(1,), (2,), (3,)]
    server.release()
    await task.end()
    assert task.keys == [1, 2, 3, 1, 2]
    assert len(server.calls) == 3


async def test_distinct_keys_are_asked_at_the_same_time(lab: Lab) -> None:
    """K5: testMultiKeysWithoutWatermark."""
    server, task = lab.start(otherwise=Step(after=1.0), capacity=8)
    task.admit_each(*range(8))
    await task.end()
    assert server.peak == 8
    assert lab.now == pytest.approx(1.0)


async def test_a_hot_key_does_not_starve_the_others(lab: Lab) -> None:
    """K11, where in Flink blocked rows count against the capacity."""
    server, task = lab.start({"hot": Step(after=5.0)}, otherwise=Step(after=0.1), capacity=10, ordered=False)
    for key in range(1000):
        task.admit("hot")
        task.admit(key)
    await lab.at(4.9)
    assert len(server.calls) > 400
    await task.end()
    assert server.asked["hot"] == 1


async def test_a_key_that_waits_for_a_slot_is_shared_as_well(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(after=1.0), capacity=1, details=True)
    task.admit_each("x", "a", "a", "a")
    await task.end()
    assert server.keys == [("x",), ("a",)]
    assert [row.origin for row in task.left] == ["call", "call", "shared", "shared"]


async def test_a_failure_of_a_shared_key_hits_all_its_rows(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(after=1.0, error=PermanentError("poison")), on_error=default("fallback"))
    task.admit_each("a", "a", "a")
    await task.end()
    assert [row[1:4] for row in task.left] == [("fallback", "error", "PermanentError: poison")] * 3
    assert server.asked["a"] == 1


async def test_keys_of_any_kind_come_back_under_themselves(lab: Lab) -> None:
    keys = [("a", 1), ("a", "1"), "a", b"a", 1, 2.5, "", "nül\x00", -(2**63)]
    _, task = lab.start(batch_size=20)
    task.admit(*keys)
    await task.end()
    assert task.values == [f"v{key}" for key in keys]


@pytest.mark.parametrize("place", [0, 37, 99])
async def test_one_poisoned_key_of_a_hundred_fails_alone(lab: Lab, place: int) -> None:
    server, task = lab.start({place: POISON}, batch_size=100, on_error="null")
    task.admit(*range(100))
    await task.end()
    assert [row.key for row in task.left if row.status != "ok"] == [place]
    assert [row.value for row in task.left] == [None if key == place else f"v{key}" for key in range(100)]
    assert len(server.calls) <= 1 + 2 * math.ceil(math.log2(100))


@pytest.mark.parametrize("error", [ValueError("bug"), PermanentError("poison"), KeyError("k"), RecursionError()])
async def test_a_group_is_bisected_whatever_its_error(lab: Lab, error: Exception) -> None:
    _, task = lab.start({3: Step(error=error)}, batch_size=8, on_error="null")
    task.admit(*range(8))
    await task.end()
    assert task.statuses == ["ok"] * 3 + ["error"] + ["ok"] * 4


def most_calls(keys: int, bad: int) -> int:
    """Most calls that it may take to find so many *bad* keys among those of one call."""
    return min(2 * bad * math.ceil(math.log2(keys)), 3 * keys // 2) if keys > 1 else 0


async def test_a_bad_key_costs_its_own_row_however_many_there_are(lab: Lab) -> None:
    rng = random.Random(7)
    for keys in (1, 2, 3, 4, 5, 8, 9, 17, 32, 100, 1000):
        for bad in sorted({1, 2, 3, keys // 20, keys // 10 + 1, keys // 2, keys} & {*range(1, keys + 1)}):
            for places in (rng.sample(range(keys), bad), range(bad), range(0, keys, keys // bad)):
                server, task = lab.start(
                    dict.fromkeys(places, POISON), batch_size=keys, on_error="null", max_fallback_ratio=1.0, retry=None
                )
                task.admit(*range(keys))
                await task.end()
                wrong = {*places}
                assert task.keys == [*range(keys)]
                assert task.values == [None if key in wrong else f"v{key}" for key in range(keys)]
                assert task.statuses == ["error" if key in wrong else "ok" for key in range(keys)]
                calls = 1 + 4 * (keys == 1000)  # the first call of each slot has few keys
                assert len(server.calls) - calls <= most_calls(keys, len(wrong)), (keys, wrong)


@pytest.mark.parametrize("way", ["unordered", "cached", "details", "many", "retried", "fallback"])
async def test_a_bad_key_costs_its_own_row_in_each_way_to_look_up(lab: Lab, way: str) -> None:
    """3 bad keys among 4,000 in calls of 1,000 cost 13 healthy ones before; 20 in 10,000 cost 2,346."""
    options: dict[str, Any] = {"on_error": "null", "max_fallback_ratio": 1.0, "retry": None, "timeout": 60.0}
    options |= {
        "unordered": {"ordered": False},
        "cached": {},
        "details": {"details": True},
        "many": {"many": True},
        "retried": {"retry": Retry(attempts=3, wait=0.1)},
        "fallback": {"on_error": default("spare")},
    }[way]
    rng = random.Random(way)
    for keys, batch_size, bad in ((4000, 1000, 3), (4000, 1000, 10), (4000, 1000, 300), (100, 100, 3), (4000, 1, 300)):
        places = set(rng.sample(range(keys), bad))
        steps: Script = dict.fromkeys(places, POISON)
        if way == "many":
            steps |= {key: Step(value=[f"v{key}"]) for key in range(keys) if key not in places}
        if way == "retried":
            steps |= {key: [Step(error=TransientError("busy")), Step()] for key in range(5, keys, 997)}
            steps |= dict.fromkeys(places, POISON)
        if way == "cached":
            options["cache"] = AnswerCache(60.0, 2**30, None)
        server, task = lab.start(steps, batch_size=batch_size, capacity=10, **options)
        for start in range(0, keys, 500):
            task.admit(*range(start, start + min(500, keys)))
        await task.end()
        spare = "spare" if way == "fallback" else None
        value = (lambda key: [f"v{key}"]) if way == "many" else (lambda key: f"v{key}")
        assert {row.key: (row.value, row.status) for row in task.left} == {
            key: (spare, "error") if key in places else (value(key), "ok") for key in range(keys)
        }
        assert len(task.left) == keys
        if way != "retried":
            calls = keys // batch_size + 10 * (batch_size == 1000)  # the first call of each slot has few keys
            assert len(server.calls) - calls <= min(2 * bad * 10, 3 * keys // 2)


@pytest.mark.slow
async def test_a_source_that_fails_each_call_is_asked_more_slowly_and_not_given_up(lab: Lab) -> None:
    server, task = lab.start(
        otherwise=Step(after=0.001, error=PermanentError("the view is broken")),
        batch_size=100,
        capacity=10,
        on_error="null",
        max_fallback_ratio=1.0,
    )
    for start in range(0, 10_000, 500):
        task.admit(*range(start, start + 500))
    await task.end()
    assert task.statuses == ["error"] * 10_000
    assert len(server.calls) <= 100 + 15_000
    assert lab.now >= 2.0, "at full speed 12,000 calls of 1 ms would take 1.2 s"


async def test_the_parts_of_a_group_go_before_other_keys(lab: Lab) -> None:
    server, task = lab.start({1: POISON}, batch_size=2, capacity=1, on_error="null")
    task.admit_each(0, 1, 2, 3)
    await task.end()
    assert server.keys == [(0, 1), (0,), (1,), (2, 3)]


async def test_a_part_that_fails_transiently_is_retried_as_ever(lab: Lab) -> None:
    script = {0: [Step(), Step(error=TransientError("busy")), Step()], 1: POISON}
    server, task = lab.start(script, batch_size=2, capacity=1, on_error="null", retry=Retry(wait=0.0))
    task.admit(0, 1)
    await task.end()
    assert task.statuses == ["ok", "error"]
    assert server.asked[0] == 3


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_is_poisoned_the_other_keys_get_their_values(lab: Lab, seed: int) -> None:
    rng = random.Random(seed)
    poisoned = set(rng.sample(range(200), rng.randrange(1, 4)))
    _, task = lab.start(dict.fromkeys(poisoned, POISON), batch_size=50, capacity=rng.randrange(1, 5), on_error="null")
    task.admit(*range(200))
    await task.end()
    assert {row.key for row in task.left if row.status == "error"} == poisoned
    assert all(row.value == f"v{row.key}" for row in task.left if row.key not in poisoned)
