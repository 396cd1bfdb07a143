"""In which order rows leave, and when calls start: Flink's tests of its operator."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from enrichkit.errors import PermanentError, TransientError
from enrichkit.options import Retry, default
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from .bench import Lab

either_order = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
SEEDS = range(20)


async def test_ordered_rows_and_a_barrier_leave_in_the_order_in_which_they_came(lab: Lab, clock: str) -> None:
    """O1: testEventTimeOrdered."""
    _, task = lab.start({1: Step(after=0.02, value=2), 2: Step(value=4), 3: Step(value=6)}, capacity=2)
    task.admit_each(1, 2)
    task.barrier("W")
    task.admit(3)
    await task.end()
    assert task.values == [2, 4, None, 6]
    assert task.keys == [1, 2, "W", 3]


async def test_unordered_rows_do_not_cross_a_barrier(lab: Lab, clock: str) -> None:
    """O2: testWaterMarkUnordered."""
    _, task = lab.start({1: Step(after=0.02, value=2), 2: Step(value=4), 3: Step(value=6)}, capacity=2, ordered=False)
    task.admit_each(1, 2)
    task.barrier("W")
    task.admit(3)
    await task.end()
    assert task.keys == [2, 1, "W", 3]
    assert task.values == [4, 2, None, 6]


@pytest.mark.parametrize("seed", SEEDS)
async def test_calls_that_end_in_any_order_give_rows_in_input_order(lab: Lab, seed: int) -> None:
    """O3: testProcessingTimeOrdered."""
    rng = random.Random(seed)
    server, task = lab.start({key: Step(after=rng.random()) for key in range(8)}, capacity=6)
    task.admit_each(*range(8))
    await task.end()
    assert task.values == [f"v{key}" for key in range(8)]
    assert server.peak == 6


@pytest.mark.parametrize("seed", SEEDS)
async def test_unordered_rows_leave_in_the_order_in_which_calls_end(lab: Lab, seed: int) -> None:
    """O4: testProcessingUnordered."""
    rng = random.Random(seed)
    server, task = lab.start({key: Step(after=rng.random()) for key in range(8)}, capacity=6, ordered=False)
    task.admit_each(*range(8))
    await task.end()
    ended = sorted(server.calls, key=lambda seen: seen.ended or 0.0)
    assert task.values == [f"v{seen.keys[0]}" for seen in ended]


@either_order
async def test_the_rows_of_one_stage_may_feed_another(lab: Lab, ordered: bool) -> None:
    """O5: testOperatorChainWithProcessingTime."""
    names = lab.server({key: Step(after=0.1 * (key % 3), value=key * 10) for key in range(12)})
    _, first = names, lab.task(lab.engine(names), ordered=ordered)
    tiers = lab.server({key * 10: Step(after=0.05 * (key % 4)) for key in range(12)})
    second = lab.task(lab.engine(tiers, capacity=2), ordered=ordered)
    first.admit_each(*range(12))
    for row in range(12):
        await first.until(lambda row=row: len(first.left) > row)  # type: ignore[misc]  # a default binds the number
        second.admit(first.left[row].value)
    await first.end()
    await second.end()
    assert sorted(second.values) == sorted(f"v{key * 10}" for key in range(12))
    if ordered:
        assert second.keys == [key * 10 for key in range(12)]
    assert (names.opened, tiers.opened) == (1, 1)


async def test_a_caller_may_reuse_its_list_of_keys(lab: Lab) -> None:
    """O6: testObjectReused. Keys that wait for a slot are not read from it a second time."""
    server, task = lab.start({key: Step(after=1.0) for key in range(1, 5)}, capacity=1)
    for key in range(1, 5):
        outcomes = task.admit(key)
        outcomes.keys[0] = "overwritten"  # type: ignore[index]  # the harness admits a list
    await task.end()
    assert server.keys == [(1,), (2,), (3,), (4,)]
    assert task.values == ["v1", "v2", "v3", "v4"]


async def test_no_more_calls_start_than_there_are_slots(lab: Lab) -> None:
    """O7: addToWorkQueue."""
    server, task = lab.start(otherwise=Step(held=True), capacity=5)
    task.admit_each(*range(12))
    await lab.settle()
    assert server.keys == [(0,), (1,), (2,), (3,), (4,)]
    server.release(3)
    await lab.settle()
    assert server.keys[5:] == [(5,)]
    server.otherwise = Step()
    server.release()
    await task.end()
    assert task.values == [f"v{key}" for key in range(12)]


async def test_answers_in_another_order_leave_in_input_order_at_full_concurrency(lab: Lab) -> None:
    """O8: testConcurrentOperations."""
    server, task = lab.start(otherwise=Step(held=True), capacity=3)
    task.admit_each(1, 2, 3, 4, 5)
    await lab.settle()
    for key, left in ((2, []), (1, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4]), (5, [1, 2, 3, 4, 5])):
        server.release(key)
        await lab.settle()
        assert task.keys == left
    await task.end()
    assert server.peak == 3


@either_order
@pytest.mark.parametrize("capacity", range(1, 10))
async def test_repeated_keys_keep_to_their_side_of_every_barrier(lab: Lab, ordered: bool, capacity: int) -> None:
    """K2, K3, K4, K9, K10: the tests of keys with watermarks. Rows of one key share a call, also across a barrier."""
    segments = [[1, 2, 3, 1, 2], [4, 4, 4, 1], [], [2, 3, 5, 6, 6], [7]]
    script = {key: Step(after=0.1 * (8 - key)) for key in range(1, 8)}
    server, task = lab.start(script, ordered=ordered, capacity=capacity)
    for number, keys in enumerate(segments):
        task.admit_each(*keys)
        task.barrier(f"W{number}")
    await task.end()
    left: list[list[int]] = [[]]
    for row in task.left:
        if row.status == "barrier":
            assert row.key == f"W{len(left) - 1}"
            left.append([])
        else:
            assert row.value == f"v{row.key}"
            left[-1].append(row.key)
    assert [sorted(keys) for keys in left] == [sorted(keys) for keys in [*segments, []]]
    if ordered:
        assert left == [*segments, []]
    assert set(server.asked.values()) == {1}


@either_order
async def test_a_barrier_passes_an_idle_run_at_once(lab: Lab, ordered: bool) -> None:
    """O9: processWatermark."""
    _, task = lab.start(ordered=ordered)
    task.barrier("W")
    assert task.keys == ["W"]


async def test_a_slow_row_holds_back_neither_other_calls_nor_unordered_rows(lab: Lab) -> None:
    server, task = lab.start({0: Step(after=5.0)}, otherwise=Step(after=0.1), capacity=2, ordered=False)
    task.admit_each(*range(20))
    await lab.at(2.0)
    assert len(server.calls) == 20
    assert task.keys == list(range(1, 20))
    await task.end()


async def test_in_order_a_slow_head_holds_back_rows_but_no_calls(lab: Lab) -> None:
    server, task = lab.start({0: Step(after=5.0)}, otherwise=Step(after=0.1), capacity=2)
    task.admit_each(*range(20))
    await lab.at(2.0)
    assert server.in_flight == 1
    assert len(server.calls) == 20
    assert task.keys == []
    await task.end()
    assert task.keys == list(range(20))
    assert {row.at for row in task.left} == {task.left[0].at}


async def test_unordered_rows_of_one_slice_leave_with_the_call_that_answers_them(lab: Lab) -> None:
    _, task = lab.start({"a": Step(after=0.3), "b": Step(after=0.1), "c": Step(after=0.2)}, ordered=False)
    task.admit("a", "b", "c", counts=[1, 2, 3])
    await task.end()
    assert task.keys == ["b", "b", "c", "c", "c", "a"]


@either_order
async def test_rows_without_a_key_leave_without_a_call(lab: Lab, ordered: bool) -> None:
    server, task = lab.start(ordered=ordered)
    task.admit(nulls=3)
    assert task.statuses == ["null_key"] * 3
    task.admit("a", nulls=2)
    await task.end()
    assert sorted(task.statuses) == ["null_key"] * 5 + ["ok"]
    assert server.keys == [("a",)]


@either_order
async def test_a_slice_without_rows_is_no_trouble(lab: Lab, ordered: bool) -> None:
    server, task = lab.start(ordered=ordered)
    task.admit()
    await task.end()
    assert task.left == []
    assert server.opened == 0


@either_order
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_row_leaves_once_with_its_own_value_whatever_fails(lab: Lab, ordered: bool, seed: int) -> None:
    """The oracle of the whole engine: random delays, misses, failures, groups, repeated keys and barriers."""
    rng = random.Random(seed)

    def script(key: int, times: int) -> Step:
        answer = random.Random(f"{seed} {key} {times}")
        after = answer.choice([0.0, 0.01, 0.1, 0.5, 2.0])
        kind = answer.random()
        if kind < 0.05:
            return Step(after=after, error=TransientError("busy"))
        if kind < 0.07:
            return Step(after=after, error=PermanentError("poison"))
        if kind < 0.1:
            return Step(after=after, failure=TransientError("shaky"))
        if kind < 0.12:
            return Step(never=True, stubborn=answer.choice([0, 0, 1]))
        return Step(after=after, missing=key % 7 == 0)

    server, task = lab.start(
        script,
        capacity=rng.choice([1, 3, 8]),
        batch_size=rng.choice([1, 2, 5]),
        ordered=ordered,
        timeout=1.0,
        attempt_timeout=rng.choice([None, 0.3]),
        on_timeout="null",
        on_error=default("fallback"),
        max_fallback_ratio=1.0,
        stall_timeout=3600.0,
        retry=rng.choice([None, Retry(wait=0.02)]),
    )
    sent: list[tuple[int, int]] = []  # (segment, key) of every row
    for segment in range(3):
        for _ in range(rng.randrange(6)):
            keys = rng.sample(range(40), rng.randrange(1, 8))
            task.admit(*keys)
            sent += [(segment, key) for key in keys]
            await lab.at(lab.now + rng.choice([0.0, 0.05, 0.7]))
        task.barrier(segment)
    await task.end()
    left: list[tuple[int, int]] = []
    segment = 0
    for row in task.left:
        if row.status == "barrier":
            segment += 1
            continue
        left.append((segment, row.key))
        missing = row.key % 7 == 0
        allowed = {
            "timeout": None,
            "error": "fallback",
            "missing" if missing else "ok": None if missing else f"v{row.key}",
        }
        assert row.value == allowed[row.status]
    if ordered:
        assert left == sent
    else:
        assert sorted(left) == sorted(sent)
    assert not any(len(set(seen.keys)) < len(seen.keys) or not seen.keys for seen in server.calls)
