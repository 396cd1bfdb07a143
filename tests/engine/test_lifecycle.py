"""Opening, ending, stopping and starting again: Flink's tests of the operator's life."""

from __future__ import annotations

import asyncio
import re
import traceback
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Never

import pytest

from enrichkit.engine.engine import TURNS_WITHOUT_YIELD
from enrichkit.errors import (
    ConfigError,
    FatalError,
    LookupFailedError,
    TaskFailedError,
    TransientError,
    UnavailableError,
)
from enrichkit.interface import TaskInfo
from enrichkit.options import Options, Retry
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from .bench import Lab

retry_or_not = pytest.mark.parametrize("retry", [None, Retry(wait=0.0)], ids=["one attempt", "retry"])


async def test_a_replayed_task_asks_again_for_what_had_no_answer(lab: Lab) -> None:
    """L1: testStateSnapshotAndRestore. Here Spark replays the task; its rows come first, and capacity may differ."""
    before = lab.server(otherwise=Step(never=True))
    killed = lab.task(lab.engine(before, capacity=2))
    killed.admit_each(1, 2, 3, 4)
    await lab.settle()
    killed.close()
    after = lab.server()
    replayed = lab.task(lab.engine(after, capacity=6))
    replayed.admit_each(*range(1, 9))
    await replayed.end()
    assert before.keys == [(1,), (2,)]
    assert replayed.values == [f"v{key}" for key in range(1, 9)]
    assert killed.left == []


async def test_a_replay_of_more_rows_than_there_are_slots_does_not_block(lab: Lab) -> None:
    """L2: testRestartWithFullQueue, FLINK-7949."""
    server, task = lab.start(otherwise=Step(after=0.1), capacity=10)
    task.admit_each(*range(10))
    await lab.settle()
    task.close()
    again = lab.task(lab.engines[0])
    again.admit_each(*range(10))
    await again.end()
    assert again.values == [f"v{key}" for key in range(10)]
    assert set(server.asked.values()) == {2}


async def test_a_task_whose_keys_cannot_be_taken_fails_and_no_other(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are in no queue and in no call then, and have no clock: without memory, for one, it would hang."""
    server, task = lab.start(otherwise=Step(after=0.1))

    def take(*_: object) -> Never:
        raise MemoryError

    monkeypatch.setattr(task.run, "take", take)
    other = lab.task(lab.engines[0])
    task.admit("a")
    other.admit("b")
    await other.end()
    assert other.values == ["vb"]
    said = r"^scripted: a step of the engine raised MemoryError \(test_lifecycle\.py, line \d+\)\. This is a defect"
    with pytest.raises(TaskFailedError, match=said):
        await task.end()
    assert server.keys == [("b",)]


@retry_or_not
async def test_a_task_that_is_stopped_emits_nothing_more(lab: Lab, retry: Retry | None) -> None:
    """L3: testIgnoreAsyncOperatorRecordsOnDrain, FLINK-24846."""
    server, task = lab.start(otherwise=Step(held=True, stubborn=1), retry=retry)
    task.admit_each(1, 2)
    await lab.settle()
    task.close()
    await lab.settle()
    assert server.in_flight == 2, "the calls do not end when they are cancelled"
    server.release(2)
    await lab.settle()
    server.release(1)
    await lab.settle()
    assert server.in_flight == 0
    assert task.left == []
    assert task.error is None


async def test_at_the_end_of_the_input_all_rows_are_waited_for(lab: Lab, clock: str) -> None:
    """L4: endInput."""
    server, task = lab.start(otherwise=Step(after=0.01), capacity=2)
    task.admit_each(*range(9))
    await task.end()
    assert task.values == [f"v{key}" for key in range(9)]
    assert server.in_flight == 0


async def test_a_call_knows_its_task_and_nothing_else_of_spark(lab: Lab) -> None:
    """L5: RichAsyncFunctionTest. There is no state, accumulator or broadcast to ask for."""
    about = TaskInfo(partition=3, attempt=1, stage=7, query_id="q", batch_id=9)
    server, task = lab.start({"a": [Step(error=TransientError("busy")), Step()]}, task=about, retry=Retry(wait=0.0))
    task.admit("a")
    await task.end()
    assert [(seen.call.task, seen.call.attempt, seen.call.many) for seen in server.calls] == [
        (about, 1, False),
        (about, 2, False),
    ]


async def test_what_a_failed_open_left_behind_is_closed(lab: Lab) -> None:
    """L6: the rule of the operator's life."""
    server = lab.server(opening=[Step(error=FatalError("login refused"))])
    task = lab.task(lab.engine(server), on_error="null")
    task.admit("a")
    with pytest.raises(FatalError, match=r"^login refused$"):
        await task.end()
    assert (server.opened, server.closed, server.calls) == (1, 1, [])


async def test_an_open_that_fails_for_an_unknown_reason_says_so(lab: Lab) -> None:
    server = lab.server(opening=[Step(error=OSError("secret path"))])
    task = lab.task(lab.engine(server), on_error="null")
    task.admit("a")
    text = "scripted: its connector could not be opened: it raised OSError."
    with pytest.raises(FatalError, match=f"^{re.escape(text)}$") as caught:
        await task.end()
    assert "secret path" not in "".join(traceback.format_exception(caught.value))


async def test_an_open_that_fails_for_a_moment_is_tried_again(lab: Lab) -> None:
    server = lab.server(opening=[Step(error=TransientError("refused")), Step()])
    task = lab.task(lab.engine(server, capacity=1), retry=Retry(wait=0.1, jitter="none"))
    task.admit("a")
    await task.end()
    assert task.values == ["va"]
    assert (server.opened, server.closed) == (2, 1)


async def test_a_source_that_never_opens_times_out_like_one_that_never_answers(lab: Lab) -> None:
    server = lab.server(opening=[Step(never=True)])
    task = lab.task(lab.engine(server), timeout=1.0)
    task.admit("a")
    with pytest.raises(LookupFailedError, match="TimeoutError: no answer within 1 s"):
        await task.end()
    assert 1.0 <= lab.now <= 1.1


def test_a_carrier_that_does_not_exist_is_refused() -> None:
    """L7: test_run_async_function_in_thread_mode; the ways to run are checked on the driver."""
    text = "carrier is 'thread'; it must be one of 'auto', 'arrow', 'pandas'. Set carrier='auto'."
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}$"):
        Options(carrier="thread")


async def test_nothing_is_opened_before_the_first_key(lab: Lab) -> None:
    server, task = lab.start()
    task.admit(nulls=5)
    await task.end()
    assert server.opened == 0


async def test_many_calls_open_the_source_once(lab: Lab) -> None:
    server = lab.server(opening=[Step(after=0.5)], otherwise=Step(after=0.1))
    engine = lab.engine(server, capacity=4)
    tasks = [lab.task(engine) for _ in range(2)]
    for task in tasks:
        task.admit_each(*range(10))
    await asyncio.gather(*(task.end() for task in tasks))
    assert (server.opened, server.closed) == (1, 0)
    await engine.close()
    assert (server.opened, server.closed) == (1, 1)


async def test_an_open_that_fails_is_the_failure_of_all_calls_that_waited_for_it(lab: Lab) -> None:
    """Else each of them would try to open the source, one after the other, while it refuses."""
    server = lab.server(opening=[Step(after=0.2, error=UnavailableError("refused"))] * 2 + [Step()])
    task = lab.task(lab.engine(server, capacity=20))
    task.admit_each(*range(20))
    await lab.at(0.21)
    assert server.opened == 1
    await task.end()
    assert task.values == [f"v{key}" for key in range(20)]
    assert server.opened == 3


@pytest.mark.parametrize("capacity", [1, 4])
@pytest.mark.parametrize("limit", ["timeout", "attempt_timeout"])
async def test_a_source_that_opens_more_slowly_than_a_call_may_take_is_opened_once(
    lab: Lab, limit: str, capacity: int
) -> None:
    """Late calls give their slots to keys that wait, but not the one that opens the source."""
    server = lab.server(opening=[Step(after=4.0)], otherwise=Step(after=0.1))
    options: dict[str, Any] = {limit: 1.0, "on_timeout": "null", "max_fallback_ratio": 1.0}
    task = lab.task(lab.engine(server, capacity=capacity), **options)
    task.admit_each(*range(10 * capacity))
    await lab.at(4.5)
    task.admit_each("a", "b")
    await task.end()
    assert server.opened == 1
    assert task.values[-2:] == ["va", "vb"]
    if limit == "attempt_timeout":
        assert set(task.statuses) == {"ok"}


async def test_a_task_that_stops_while_the_source_opens_does_not_spoil_it_for_another(lab: Lab) -> None:
    server = lab.server(opening=[Step(after=0.5)])
    engine = lab.engine(server)
    stopped, going_on = lab.task(engine), lab.task(engine)
    stopped.admit("a")
    going_on.admit("b")
    await lab.at(0.2)
    stopped.close()
    await going_on.end()
    assert going_on.values == ["vb"]
    assert stopped.left == []


async def test_an_engine_serves_one_task_after_another_without_opening_again(lab: Lab) -> None:
    server = lab.server()
    engine = lab.engine(server)
    for number in range(3):
        task = lab.task(engine)
        task.admit(number)
        await task.end()
        assert task.values == [f"v{number}"]
    assert (server.opened, server.closed) == (1, 0)


async def test_a_failed_task_leaves_the_engine_fit_for_the_next(lab: Lab) -> None:
    server, failed = lab.start({"a": Step(error=FatalError("no such table"))}, otherwise=Step(after=1.0), capacity=2)
    failed.admit_each("b", "a", "c", "d")
    with pytest.raises(FatalError):
        await failed.end()
    task = lab.task(lab.engines[0])
    task.admit_each(*range(6))
    await task.end()
    assert task.values == [f"v{key}" for key in range(6)]
    assert server.in_flight == 0


async def test_a_task_that_is_closed_twice_or_fed_after_its_end_does_nothing(lab: Lab) -> None:
    server, task = lab.start()
    task.admit("a")
    await task.end()
    task.close()
    task.admit("b")
    task.barrier("W")
    await lab.settle()
    assert server.keys == [("a",)]
    assert task.keys == ["a"]


async def test_tasks_take_turns(lab: Lab) -> None:
    """A task with many keys does not starve one with few."""
    server = lab.server(otherwise=Step(after=1.0))
    engine = lab.engine(server, capacity=2)
    large, small = lab.task(engine), lab.task(engine)
    large.admit_each(*range(100, 150))
    await lab.at(0.5)
    small.admit_each(*range(4))
    await small.end()
    assert lab.now < 6.0
    assert large.run.pending


async def test_an_engine_that_never_had_a_task_is_idle_since_it_was_made(lab: Lab) -> None:
    await lab.at(7.0)
    assert lab.engine(lab.server()).idle_since == lab.now


async def test_an_engine_is_idle_from_the_end_of_its_last_task_to_the_next(lab: Lab) -> None:
    _, first = lab.start(otherwise=Step(after=1.0))
    engine = lab.engines[0]
    second = lab.task(engine)
    assert engine.idle_since is None
    first.admit("a")
    await first.end()
    assert (list(engine.runs), engine.idle_since) == ([second.run], None)
    await lab.at(2.0)
    second.close()
    assert (list(engine.runs), engine.idle_since) == ([], lab.now)
    await lab.at(3.0)
    third = lab.task(engine)
    assert (list(engine.runs), engine.idle_since) == ([third.run], None)


async def test_a_stubborn_call_of_an_ended_task_is_counted_from_that_end(lab: Lab) -> None:
    """The only slot is lost to it: the next task fails after twice its timeout and does not wait for a hard limit."""
    _, first = lab.start({"a": Step(after=30.0, stubborn=99)}, capacity=1, timeout=1.0)
    first.admit("a")
    await lab.at(0.5)
    first.close()
    second = lab.task(lab.engines[0], timeout=1.0, on_timeout="null")
    second.admit("b")
    with pytest.raises(FatalError, match="1 of 1 calls did not end although they were cancelled"):
        await second.until(lambda: False)
    assert lab.now == pytest.approx(2.5, abs=0.11)
    await lab.at(31.0)


async def test_a_source_that_answers_without_waiting_lets_the_loop_go_round(lab: Lab) -> None:
    """Else deadlines and other tasks would stand still while a slot works off its keys."""
    server, task = lab.start(capacity=1)
    seen: list[int] = []

    def look() -> None:
        seen.append(len(server.calls))
        if len(server.calls) < 500:
            loop.call_soon(look)

    loop = asyncio.get_running_loop()
    loop.call_soon(look)
    task.admit_each(*range(500))
    await task.end()
    assert max(after - before for before, after in pairwise(seen)) == TURNS_WITHOUT_YIELD


async def test_slots_are_made_when_no_other_is_free(lab: Lab) -> None:
    def slots() -> int:
        return sum(each.get_name() == "enrichkit-slot-scripted" for each in asyncio.all_tasks())

    _, task = lab.start(otherwise=Step(after=1.0), capacity=8)
    made = []
    for moment, keys in enumerate(["a", "b", "cde", "fg", "hijk", "lmnopqrstuv"]):
        await lab.at(moment * 10.0)
        task.admit(*keys)
        await lab.settle()
        made.append(slots())
    await task.end()
    assert made == [1, 1, 3, 3, 4, 8]
