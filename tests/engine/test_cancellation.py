"""Calls that are cancelled, cancel themselves, end at the same moment, or raise what no connector should raise."""

from __future__ import annotations

import asyncio
import random
import re
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.engine import TURNS_WITHOUT_YIELD
from enrichkit.errors import FatalError, LookupFailedError, TransientError, UnavailableError
from enrichkit.interface import Call, Connector
from enrichkit.options import Retry
from enrichkit.testing.scripted import ScriptedConfig, Step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from .bench import Lab


async def test_a_connector_that_cancels_itself_fails_its_key_and_nothing_else(lab: Lab) -> None:
    """F26."""
    server, task = lab.start({"a": Step(error=asyncio.CancelledError())}, capacity=1, on_error="null")
    task.admit_each("a", "b")
    await task.end()
    assert [row[:4] for row in task.left] == [
        ("a", None, "error", "PermanentError: the connector raised CancelledError"),
        ("b", "vb", "ok", None),
    ]
    await lab.close()
    assert server.closed == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError()])
async def test_what_ends_a_process_ends_the_task_and_names_the_connector(lab: Lab, error: BaseException) -> None:
    """F27."""
    _, task = lab.start({"a": Step(error=error)}, on_error="null")
    task.admit_each("a", "b")
    text = f"scripted: its connector raised {type(error).__name__}, which ends the task."
    with pytest.raises(FatalError, match=f"^{re.escape(text)}$"):
        await task.end()
    again = lab.task(lab.engines[0])
    again.admit("b")
    await again.end()
    assert again.values == ["vb"]


class Peculiar(Connector[ScriptedConfig]):
    """Does for each key what *does* says."""

    name = "peculiar"
    config_class = ScriptedConfig
    max_batch_size = 100

    def __init__(self, does: Callable[[Any], Awaitable[Any]]) -> None:
        super().__init__(ScriptedConfig())
        self.does = does

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        return {key: await self.does(key) for key in keys}


@pytest.mark.parametrize("error", [GeneratorExit(), StopIteration(), StopAsyncIteration(), BaseException("bare")])
async def test_an_odd_exception_is_its_keys_error(lab: Lab, error: BaseException) -> None:
    """F27. A StopIteration leaves a coroutine as a RuntimeError."""

    async def does(key: str) -> str:
        if key == "a":
            raise error
        return f"v{key}"

    task = lab.task(lab.engine(Peculiar(does), capacity=1), on_error="null")
    task.admit_each("a", "b")
    await task.end()
    assert task.statuses == ["error", "ok"]


async def test_a_connector_that_cancels_its_own_task_is_told_from_the_engine(lab: Lab) -> None:
    async def does(key: str) -> str:
        current = asyncio.current_task()
        if key == "a" and current is not None:
            current.cancel()
            await asyncio.sleep(1.0)
        return f"v{key}"

    task = lab.task(lab.engine(Peculiar(does), capacity=1), on_error="null", timeout=5.0)
    task.admit_each("a", "b", "c")
    await task.end()
    assert task.statuses == ["error", "ok", "ok"]
    assert lab.now < 1.0


async def test_a_cancellation_left_pending_by_a_connector_costs_one_more_call_at_most(lab: Lab) -> None:
    """It cancels its task and returns before that is noticed, so that the next await is hit."""

    async def does(key: str) -> str:
        current = asyncio.current_task()
        if key == "a" and current is not None:
            current.cancel()
        else:
            await asyncio.sleep(0.1)
        return f"v{key}"

    task = lab.task(lab.engine(Peculiar(does), capacity=1), on_error="null", retry=None)
    task.admit_each("a", "b", "c", "d")
    await task.end()
    assert task.values == ["va", None, "vc", "vd"]
    assert (task.left[1].error or "").startswith("PermanentError: the connector raised CancelledError at test_can")


async def test_a_slot_that_a_cancellation_ends_between_two_calls_is_replaced(lab: Lab) -> None:
    """Left pending by the call after which the slot lets the loop go round."""

    async def does(key: int) -> str:
        current = asyncio.current_task()
        if key + 1 == TURNS_WITHOUT_YIELD and current is not None:
            current.cancel()
        return f"v{key}"

    task = lab.task(lab.engine(Peculiar(does), capacity=1), on_error="null", retry=None)
    task.admit_each(*range(2 * TURNS_WITHOUT_YIELD))
    await asyncio.wait_for(task.end(), 60.0)
    assert task.values == [f"v{key}" for key in range(2 * TURNS_WITHOUT_YIELD)]


async def test_the_keys_given_to_a_connector_cannot_be_changed_by_it(lab: Lab) -> None:
    """F32."""
    seen: list[Any] = []

    class Greedy(Peculiar):
        async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
            seen.append(keys)
            return dict.fromkeys(keys, "value")

    task = lab.task(lab.engine(Greedy(asyncio.sleep), batch_size=3))
    task.admit("a", "b", "c")
    await task.end()
    assert seen == [("a", "b", "c")]
    assert isinstance(seen[0], tuple)


async def test_a_mapping_that_is_used_again_by_the_connector_does_not_change_rows(lab: Lab) -> None:
    shared: dict[str, str] = {}

    class Reusing(Peculiar):
        async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
            shared.clear()
            shared.update({key: f"v{key}" for key in keys})
            return shared

    task = lab.task(lab.engine(Reusing(asyncio.sleep), batch_size=2, capacity=1))
    task.admit("a", "b", "c", "d")
    await task.end()
    assert task.values == ["va", "vb", "vc", "vd"]


async def test_nothing_is_called_after_a_task_is_closed(lab: Lab, clock: str) -> None:
    server, task = lab.start(otherwise=Step(after=0.01), capacity=2)
    task.admit_each(*range(100))
    await task.until(lambda: len(task.left) >= 4)
    task.close()
    calls = len(server.calls)
    await lab.close()
    assert len(server.calls) == calls
    assert server.in_flight == 0


async def test_a_pending_retry_dies_with_its_task(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(error=TransientError("busy")), retry=Retry(wait=5.0, jitter="none"))
    task.admit("a")
    await lab.settle()
    task.close()
    await lab.at(60.0)
    assert server.asked["a"] == 1


async def test_closing_one_task_leaves_the_calls_of_another_alone(lab: Lab, clock: str) -> None:
    server = lab.server(otherwise=Step(after=0.05))
    engine = lab.engine(server, capacity=4)
    going, staying = lab.task(engine), lab.task(engine)
    going.admit_each("a", "b")
    staying.admit_each("c", "d")
    await asyncio.sleep(0)
    going.close()
    await staying.end()
    assert staying.values == ["vc", "vd"]
    assert going.left == []
    assert server.in_flight == 0


async def test_a_failing_task_cancels_its_calls(lab: Lab) -> None:
    server, task = lab.start(
        {"a": Step(after=0.5, error=TransientError("busy"))}, otherwise=Step(after=9.0), retry=None
    )
    task.admit_each("a", "b", "c", "d")
    with pytest.raises(LookupFailedError):
        await task.end()
    await lab.settle()
    assert [seen.cancelled for seen in server.calls] == [0, 1, 1, 1]
    assert server.in_flight == 0
    assert lab.now == pytest.approx(0.5)


async def test_an_error_in_which_a_driver_hides_its_cancellation_fails_no_key(lab: Lab) -> None:
    """The source is away, and the call that asks whether it is back hangs until the engine cancels it."""
    calls: list[str] = []

    async def does(key: str) -> str:
        calls.append(key)
        if len(calls) <= 2:
            raise UnavailableError("not reachable")
        if len(calls) == 3:
            try:
                await asyncio.sleep(60.0)
            except asyncio.CancelledError:
                raise ValueError("the statement was interrupted") from None
        return f"v{key}"

    task = lab.task(lab.engine(Peculiar(does), capacity=1), timeout=1.0)
    task.admit_each("a", "b")
    await task.end()
    assert task.values == ["va", "vb"]
    assert len(calls) == 5


async def test_an_answer_that_comes_in_the_moment_of_the_cancellation_does_no_harm(lab: Lab) -> None:
    """The hard limit is 6 s; the answers come around it, some in the same turn of the loop."""
    script = {key: Step(after=6.0 + key / 1000) for key in range(-60, 61)}
    server, task = lab.start(script, capacity=121, timeout=1.0, on_timeout="null", max_fallback_ratio=1.0)
    task.admit(*script)
    await lab.at(7.0)
    assert server.in_flight == 0
    assert {0, 1} == {seen.cancelled for seen in server.calls}
    server.script = {}
    task.admit(*range(1000, 1500))
    await task.end()
    assert task.values == [None] * 121 + [f"v{key}" for key in range(1000, 1500)]


@pytest.mark.parametrize("seed", range(20))
async def test_an_engine_is_fit_for_the_next_task_whenever_one_is_stopped(lab: Lab, seed: int) -> None:
    rng = random.Random(seed)

    def script(key: int, times: int) -> Step:
        answer = random.Random(f"{seed} {key} {times}")
        after = answer.choice([0.0, 0.01, 0.1])
        kind = answer.random()
        if kind < 0.1:
            return Step(after=after, error=TransientError("busy", retry_after=answer.choice([None, 0.05])))
        return Step(after=after, stubborn=int(kind < 0.2))

    server = lab.server(script, opening=[Step(after=0.05)])
    engine = lab.engine(server, capacity=rng.randrange(1, 6), batch_size=rng.randrange(1, 4))
    for number in range(8):
        task = lab.task(engine, ordered=rng.random() < 0.5, on_error="null", stall_timeout=600.0)
        task.admit_each(*range(number * 100, number * 100 + 30))
        await asyncio.sleep(rng.choice([0.0, 0.05, rng.random()]))
        task.close()
        left = len(task.left)
        calls = len(server.calls)
        await asyncio.sleep(rng.choice([0.0, 0.2]))
        assert len(task.left) == left
        assert len(server.calls) == calls
    last = lab.task(engine, retry=Retry(attempts=20, wait=0.0), stall_timeout=600.0)
    last.admit_each(*range(5000, 5030))
    await last.end()
    assert last.values == [f"v{key}" for key in range(5000, 5030)]


async def test_an_engine_that_is_closed_ends_its_calls(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(never=True), capacity=3)
    task.admit_each("a", "b")
    await lab.settle()
    await lab.engines[0].close()
    assert server.in_flight == 0
    assert server.closed == 1
    assert lab.now < 0.1


async def test_a_call_that_does_not_end_holds_a_closing_engine_back_for_a_second_at_most(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(after=5.0, stubborn=9))
    task.admit("a")
    await lab.settle()
    await lab.engines[0].close()
    assert lab.now == pytest.approx(1.0)
    assert server.closed == 1
    await lab.at(6.0)


async def test_a_connector_that_fails_to_close_is_logged(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    class Sticky(Peculiar):
        async def close(self) -> None:
            raise OSError("a secret path")

    engine = lab.engine(Sticky(asyncio.sleep))
    await engine.close()
    assert [record.getMessage() for record in caplog.records] == ["peculiar: close() raised OSError"]


@pytest.mark.parametrize("step", [Step(never=True), Step(after=7.0, stubborn=1)], ids=["obeys", "swallows it"])
async def test_a_call_does_not_inherit_the_cancellation_of_the_one_before(lab: Lab, step: Step) -> None:
    """What runs after it in the same slot, a TaskGroup for example, would take it for its own."""
    pending: list[int] = []

    def script(key: str, times: int) -> Step:
        task = asyncio.current_task()
        assert task is not None
        pending.append(task.cancelling())
        return step if key == "a" else Step()

    _, task = lab.start(script, capacity=1, timeout=1.0, on_timeout="null")
    for moment, key in enumerate("abc"):
        await lab.at(moment * 10.0)
        task.admit(key)
    await task.end()
    assert task.values == [None, "vb", "vc"]
    assert pending == [0, 0, 0]
