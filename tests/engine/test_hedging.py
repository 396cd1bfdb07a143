"""Hedged reads: which calls are made twice, and what the source and the rows see of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.hedging import Hedges
from enrichkit.engine.limits import RetryBudget
from enrichkit.errors import TransientError, UnavailableError
from enrichkit.testing.scripted import ScriptedConnector, Step

if TYPE_CHECKING:
    from .bench import Lab, Task

FAST, SLOW = 0.01, 1.0


def slow_once(every: int) -> Any:
    """Return a script: each *every*-th key hangs in its first call, and the others are fast."""
    return lambda key, times: Step(after=SLOW if key % every == 0 and times == 1 else FAST)


def hedged(lab: Lab, script: Any, keys: int, **arguments: Any) -> tuple[ScriptedConnector, Task]:
    arguments = {"capacity": 8, "timeout": 10.0, "attempt_timeout": "p95", "details": True} | arguments
    server, task = lab.start(script, **arguments)
    task.admit_each(*range(keys))
    return server, task


async def test_the_keys_of_slow_calls_are_asked_for_once_more_and_the_first_answer_counts(lab: Lab) -> None:
    server, task = hedged(lab, slow_once(100), 2000)
    await task.end()
    assert task.values == [f"v{n}" for n in range(2000)]
    slow = [row for row in task.left if row.latency > 0.5]
    assert len(slow) <= 3  # until a hundred calls have been answered nobody knows what is slow
    repeated = [row for row in task.left if row.attempts == 2]
    assert 15 <= len(repeated) <= 40
    assert all(row.latency < 0.2 for row in repeated)
    assert 2000 < len(server.calls) <= 2000 * 1.02 + Hedges.SAVED_MAX
    assert task.run.stats.retried_for == {"p95": len(server.calls) - 2000}
    assert task.run.stats.retry_tokens == RetryBudget.RETRY * (len(server.calls) - 2000)
    assert max(server.asked.values()) == 2


@pytest.mark.slow
async def test_where_every_call_is_slow_at_most_two_in_a_hundred_are_made_twice(lab: Lab) -> None:
    """After a thousand fast calls the whole source becomes slow."""
    server, task = hedged(lab, lambda key, times: Step(after=FAST if key < 1000 else 30 * FAST), 6000)
    await task.end()
    assert task.values == [f"v{n}" for n in range(6000)]
    assert 6000 < len(server.calls) <= 6000 * 1.02 + Hedges.SAVED_MAX
    assert server.peak <= 8


async def test_calls_of_several_keys_are_made_twice_as_a_whole(lab: Lab) -> None:
    server, task = hedged(lab, slow_once(500), 5000, batch_size=10)
    await task.end()
    assert task.values == [f"v{n}" for n in range(5000)]
    assert 500 < len(server.calls) <= 500 * 1.02 + Hedges.SAVED_MAX
    assert max(server.asked.values()) == 2


async def test_without_the_option_no_call_is_made_twice(lab: Lab) -> None:
    server, task = hedged(lab, slow_once(100), 2000, attempt_timeout=None)
    await task.end()
    assert len(server.calls) == 2000


async def test_a_retry_is_not_made_twice(lab: Lab) -> None:
    """The first call of some keys fails, and the second one is slow."""

    def step(key: Any, times: int) -> Step:
        if key % 100 or times > 2:
            return Step(after=FAST)
        return Step(error=TransientError("busy")) if times == 1 else Step(after=SLOW)

    server, task = hedged(lab, step, 2000)
    await task.end()
    assert task.values == [f"v{n}" for n in range(2000)]
    assert {server.asked[key] for key in range(0, 2000, 100)} == {2}


async def test_a_failure_of_the_first_call_is_none_of_the_key_while_the_second_goes_on(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        if key % 100 or times > 1:
            return Step(after=20 * FAST if key % 100 == 0 else FAST)
        return Step(after=10 * FAST, error=TransientError("busy"))

    server, task = hedged(lab, step, 2000, retry=None)
    await task.end()
    errors = {row.key for row in task.left if row.status == "error"}
    assert errors <= {0, 100}  # they had no second call
    assert {server.asked[key] for key in range(200, 2000, 100)} <= {1, 2}
    assert [row.value for row in task.left if row.key not in errors] == [
        f"v{n}" for n in range(2000) if n not in errors
    ]


async def test_no_call_is_made_twice_while_the_source_is_away(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        return Step(after=SLOW, error=UnavailableError("refused")) if 1.0 <= now < 9.0 else Step(after=FAST)

    server, task = hedged(lab, step, 3000, timeout=30.0)
    await task.end()
    assert task.values == [f"v{n}" for n in range(3000)]
    away = [seen for seen in server.calls if 2.5 <= seen.started < 9.0]  # the last call of before fails at 2.0
    assert len(away) <= 7.5  # one probe a second


async def test_a_slow_call_whose_keys_have_their_answer_is_no_sign_of_trouble(lab: Lab) -> None:
    """Some keys time out meanwhile, for which the engine looks for calls that nobody waits for."""

    def step(key: Any, times: int) -> Step:
        if key == 1500:
            return Step(never=True)
        return slow_once(100)(key, times)

    _, task = hedged(lab, step, 2500, timeout=2.0)
    await task.end()
    assert [row.key for row in task.left if row.status == "timeout"] == [1500]
    breaker = lab.engines[0].gate.breaker
    assert not breaker.troubled()


@pytest.mark.parametrize("delay", [0.0001, 0.01])
def test_a_call_is_never_slow_within_a_millisecond(delay: float) -> None:
    hedges = Hedges()

    class Call:
        started, attempt = 0.0, 1

    found = [hedges.answered(Call(), delay, earns=True) for _ in range(Hedges.EVERY)]  # type: ignore[arg-type]  # all that is read
    assert found == [False] * (Hedges.EVERY - 1) + [True]
    assert hedges.delay == max(0.001, delay)
