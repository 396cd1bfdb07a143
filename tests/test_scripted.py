"""The scripted source, which the tests of the engine use."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from enrichkit.errors import PermanentError, TransientError
from enrichkit.interface import Call, Failure
from enrichkit.testing.clock import run, settle
from enrichkit.testing.scripted import Script, ScriptedConnector, Step

CALL = Call(timeout=60.0)


def ask(script: Script | None, *keys: Any) -> Any:
    """Return the result of a call of *keys* and the loop time at which the call ended."""

    async def main() -> Any:
        return await ScriptedConnector(script).fetch_many(keys, CALL), asyncio.get_running_loop().time()

    return run(main())


def test_without_a_script_every_key_has_a_value_of_its_own() -> None:
    assert ask(None, "a", 1) == ({"a": "va", 1: "v1"}, 0.0)


def test_a_call_takes_as_long_as_its_slowest_key() -> None:
    assert ask({"a": Step(after=1.5), "b": Step(after=0.5)}, "a", "b", "c")[1] == 1.5


def test_a_key_may_have_a_value_be_missing_or_fail_alone() -> None:
    error = PermanentError("poison")
    script = {"a": Step(value=None), "b": Step(missing=True), "c": Step(failure=error, rejected=True)}
    assert ask(script, "a", "b", "c", "d")[0] == {"a": None, "c": Failure(error, rejected=True), "d": "vd"}


def test_a_call_may_raise_or_return_anything() -> None:
    with pytest.raises(TransientError, match="busy"):
        ask({"a": Step(error=TransientError("busy"))}, "a", "b")
    assert ask({"a": Step(returns=[1, 2])}, "a", "b")[0] == [1, 2]


def test_a_key_may_have_a_step_for_each_time_it_is_asked() -> None:
    async def main() -> list[Any]:
        server = ScriptedConnector({"a": [Step(value=1), Step(value=2)]})
        return [(await server.fetch_many(["a"], CALL))["a"] for _ in range(3)]

    assert run(main()) == [1, 2, 2]


def test_a_script_may_be_a_function_of_the_key_and_the_number_of_times() -> None:
    async def main() -> list[Any]:
        server = ScriptedConnector(lambda key, times: Step(value=(key, times)))
        return [(await server.fetch_many([key], CALL))[key] for key in "aba"]

    assert run(main()) == [("a", 1), ("b", 1), ("a", 2)]


def test_held_calls_go_on_when_one_of_their_keys_is_released() -> None:
    async def main() -> None:
        server = ScriptedConnector(otherwise=Step(held=True))
        calls = [asyncio.create_task(server.fetch_many(keys, CALL)) for keys in ("ab", "c", "d")]
        await settle()
        server.release("b")
        await settle()
        assert [call.done() for call in calls] == [True, False, False]
        server.release()
        await settle()
        assert [call.done() for call in calls] == [True, True, True]
        assert (server.peak, server.in_flight) == (3, 0)

    run(main())


def test_the_source_records_its_calls() -> None:
    async def main() -> None:
        server = ScriptedConnector(otherwise=Step(after=1.0))
        await server.open()
        await server.fetch_many(["a", "b"], CALL)
        await server.fetch_many(["a"], CALL)
        await server.close()
        assert server.keys == [("a", "b"), ("a",)]
        assert dict(server.asked) == {"a": 2, "b": 1}
        assert [(seen.started, seen.ended, seen.cancelled, seen.call) for seen in server.calls] == [
            (0.0, 1.0, 0, CALL),
            (1.0, 2.0, 0, CALL),
        ]
        assert (server.opened, server.closed, server.peak) == (1, 1, 1)

    run(main())


@pytest.mark.parametrize("step", [Step(never=True), Step(after=9.0), Step(held=True)])
def test_a_call_may_be_cancelled(step: Step) -> None:
    async def main() -> None:
        server = ScriptedConnector({"a": step})
        call = asyncio.create_task(server.fetch_many(["a"], CALL))
        await settle()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (server.calls[0].cancelled, server.in_flight) == (1, 0)

    run(main())


def test_a_stubborn_call_ignores_a_given_number_of_cancellations() -> None:
    async def main() -> None:
        server = ScriptedConnector({"a": Step(after=9.0, stubborn=2)})
        call = asyncio.create_task(server.fetch_many(["a"], CALL))
        for _ in range(2):
            await settle()
            call.cancel()
        assert await call == {"a": "va"}
        assert asyncio.get_running_loop().time() == pytest.approx(9.0)
        assert server.calls[0].cancelled == 2

    run(main())


def test_a_blocking_call_advances_virtual_time() -> None:
    assert ask({"a": Step(block=0.5)}, "a") == ({"a": "va"}, 0.5)


def test_a_blocking_call_blocks_in_real_time_on_a_real_loop() -> None:
    async def main() -> float:
        started = asyncio.get_running_loop().time()
        await ScriptedConnector({"a": Step(block=0.01)}).fetch_many(["a"], CALL)
        return asyncio.get_running_loop().time() - started

    assert asyncio.run(main()) >= 0.01


def test_opening_may_be_scripted() -> None:
    async def main() -> None:
        server = ScriptedConnector(opening=[Step(after=1.0, error=TransientError("refused")), Step()])
        with pytest.raises(TransientError, match="refused"):
            await server.open()
        await server.open()
        assert (server.opened, asyncio.get_running_loop().time()) == (2, 1.0)

    run(main())
