"""Bugs of the engine that the simulation found, each in the smallest story that showed it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from enrichkit.engine.records import NO_SLICE, Bundle, InFlight, Lookup, State
from enrichkit.errors import PermanentError, TransientError
from enrichkit.options import Retry
from enrichkit.outcome import Outcomes
from enrichkit.testing.clock import VirtualTimeLoop
from enrichkit.testing.scripted import Step

from .bench import Lab


async def test_keys_that_come_back_one_by_one_get_a_slot_each_after_a_pause(lab: Lab) -> None:
    """They were counted in groups of `batch_size`, so one slot was woken, and one slow call held up all the others."""
    busy = TransientError("throttled", retry_after=5.0)
    script = {key: [Step(after=0.01 * key, error=busy), Step(never=True)] for key in range(1, 5)}
    server, task = lab.start(
        script, capacity=4, batch_size=4, timeout=8.0, on_timeout="null", retry=Retry(wait=0.0, jitter="none")
    )
    for key in range(1, 5):
        task.admit(key)
        await lab.settle()
    await lab.at(6.0)
    assert server.in_flight == 4
    assert [len(keys) for keys in server.keys[4:]] == [1, 1, 1, 1]


async def test_all_slots_go_on_when_the_bytes_that_held_them_back_have_left(lab: Lab) -> None:
    """The slot that noticed went on alone, because it left no sign of it to the Spark thread that wakes the others."""
    large = "x" * 3000
    server, task = lab.start(
        {0: Step(value=large), 1: Step(after=1.0), 2: Step(after=2.0)},
        otherwise=Step(held=True),
        capacity=3,
        window_bytes=1024,
    )
    task.takes = False
    task.admit(0, 1, 2)
    task.admit(3, 4, 5)
    await lab.at(1.5)
    assert server.keys == [(0,), (1,), (2,)]  # the second slice waits: there are bytes that have not left
    assert task.run.held_back
    task.run.taken_bytes += 4000  # the Spark thread takes a part, and is still busy with it
    await lab.at(2.5)
    assert sorted(server.keys[3:]) == [(3,), (4,), (5,)]
    server.release()
    await task.end()


@pytest.mark.parametrize("late", ["timed out", "of a task that ended"])
async def test_a_retry_after_counts_also_when_nobody_waits_for_the_answer(lab: Lab, late: str) -> None:
    server = lab.server({"a": Step(after=2.0, error=TransientError("throttled", retry_after=10.0), stubborn=1)})
    engine = lab.engine(server)
    task = lab.task(engine, timeout=1.0, on_timeout="null", retry=None)
    task.admit("a")
    if late == "timed out":
        next_task = task
    else:
        await lab.at(0.5)
        task.close()
        next_task = lab.task(engine)
    await lab.at(3.0)
    next_task.admit("b")
    await next_task.end()
    assert server.calls[1].started == pytest.approx(12.0)


def test_a_slot_whose_coroutine_is_thrown_away_makes_no_call() -> None:
    """
    A forked child throws the tasks of its parent away, and each slot took that for the failure of its call: it went on
    to the next one, on the sockets of the parent.
    """
    lab, loop = Lab(), VirtualTimeLoop()

    async def begin() -> None:
        server, task = lab.start(otherwise=Step(held=True), capacity=1, on_error="null")
        task.admit_each("a", "b")
        await lab.settle()
        assert server.keys == [("a",)]

    loop.run_until_complete(begin())
    [slot] = asyncio.all_tasks(loop)
    coroutine: Any = slot.get_coro()
    coroutine.close()  # what the garbage collector does
    assert [*lab.engines[0].calls.values()] == [lab.tasks[0].run]
    assert lab.tasks[0].run.stats.calls == 1
    assert lab.tasks[0].left == []
    loop.close()


async def test_a_key_that_joined_a_late_call_is_not_asked_twice_when_that_call_fails(lab: Lab) -> None:
    """The call became late by `attempt_timeout` after the key had joined it, and then failed: two reasons to ask."""
    busy = TransientError("busy")
    script = {"a": [Step(after=0.9, error=busy), Step(after=1.2, error=busy), Step(after=0.3)]}
    server, task = lab.start(
        script, timeout=1.0, attempt_timeout=0.95, on_timeout="null", retry=Retry(3, wait=0.05, jitter="none")
    )
    task.admit("a")
    await lab.at(1.5)  # the second attempt drains; it began at 0.95 and becomes late at 1.9
    task.admit("a")
    await task.end()
    assert task.statuses == ["timeout", "ok"]
    assert [seen.started for seen in server.calls] == pytest.approx([0.0, 0.95, 2.15])


async def test_a_poisoned_key_is_not_asked_again_because_an_earlier_call_for_it_goes_on(lab: Lab) -> None:
    """That call was cancelled in the end, which counted as no attempt, so the key was asked once more than allowed."""
    script = {"a": [Step(never=True), Step(error=PermanentError("poison"))]}
    server, task = lab.start(
        script, timeout=None, attempt_timeout=1.0, on_error="null", retry=Retry(2, wait=0.0), details=True
    )
    task.admit("a")
    await task.end()
    assert [row[:4] for row in task.left] == [("a", None, "error", "PermanentError: poison")]
    assert lab.now == pytest.approx(1.0, abs=0.1)
    assert server.asked["a"] == 2


async def test_calls_that_a_closed_task_left_behind_do_not_keep_the_rows_of_the_next_one(lab: Lab) -> None:
    """All slots were held by calls that nobody waited for, but they did not count as late, so no clock ran."""
    server = lab.server(otherwise=Step(never=True, stubborn=1))
    engine = lab.engine(server, capacity=3)
    first = lab.task(engine)
    first.admit_each(1, 2, 3)
    await lab.at(0.5)
    first.close()
    second = lab.task(engine, timeout=1.0, on_timeout="null")
    second.admit_each(4, 5)
    await second.end()
    assert second.statuses == ["timeout", "timeout"]
    assert 1.5 <= lab.now <= 1.7


async def test_a_task_that_is_closed_early_says_nothing_of_the_source(lab: Lab) -> None:
    """Its cancelled calls counted as failures, so the next task in the worker was held back."""
    server = lab.server({key: Step(after=5.0) for key in range(50)}, otherwise=Step(after=0.1))
    engine = lab.engine(server, capacity=50)
    first = lab.task(engine)
    first.admit_each(*range(50))
    await lab.at(0.5)
    first.close()
    await lab.at(1.0)
    second = lab.task(engine)
    second.admit_each(*range(100, 150))
    await second.end()
    assert lab.now == pytest.approx(1.1)


def test_a_key_that_is_blamed_and_may_not_be_asked_again_waits_for_its_late_call() -> None:
    """It was noted as waiting for a retry, which nobody had queued: seed 5720 with tasks that reuse their answers."""
    first, second = (InFlight([Bundle({}, NO_SLICE, [], [])], None, 0.0, None) for _ in range(2))
    for late, state in ((False, State.WAITING), (True, State.IN_FLIGHT)):
        lookup = Lookup("a", Outcomes(["a"], 1), 0)
        if late:
            lookup.sent(first)
            lookup.queued()
        lookup.sent(second)
        lookup.call_ended()
        lookup.returned(TransientError("away"))
        lookup.blamed()
        assert (lookup.state, lookup.routes) == (state, int(late))
