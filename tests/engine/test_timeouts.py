"""What a row gets when its lookup takes too long: Flink's tests of time-outs."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from enrichkit.errors import ConfigError, LookupFailedError, PermanentError, TransientError
from enrichkit.options import Options, Retry, default
from enrichkit.testing.clock import VirtualTimeLoop
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from .bench import Lab

either_order = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
NEVER = Step(never=True)


async def test_a_late_row_times_out_and_a_younger_one_does_not(lab: Lab) -> None:
    """T1: testAsyncTimeoutFailure."""
    server, task = lab.start(otherwise=Step(held=True), timeout=10.0, on_timeout="null")
    task.admit("a")
    await lab.at(5.0)
    task.admit("b")
    await lab.at(11.0)
    server.release()
    await task.end()
    assert task.statuses == ["timeout", "ok"]
    assert task.values == [None, "vb"]
    assert task.left[0].error == "TimeoutError: no answer within 10 s"


async def test_a_late_row_takes_the_fallback_in_its_place(lab: Lab, clock: str) -> None:
    """T2: testAsyncTimeoutIgnore."""
    _, task = lab.start({"a": NEVER}, otherwise=Step(after=0.01), timeout=0.2, on_timeout=default("fallback"))
    task.admit_each("a", "b")
    await task.end()
    assert task.values == ["fallback", "vb"]
    assert task.statuses == ["timeout", "ok"]


async def test_a_task_that_has_ended_leaves_no_timer(lab: Lab) -> None:
    """T3: testTimeoutCleanup."""
    _, task = lab.start(otherwise=Step(after=0.1), timeout=10.0)
    task.admit("a")
    await task.end()
    await lab.close()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    assert loop.timers == 0


@pytest.mark.parametrize("after", [0.999, 1.0, 1.0001, 1.05])
async def test_an_answer_that_comes_around_the_deadline_is_one_outcome(lab: Lab, after: float) -> None:
    """T4: testTimeoutAfterComplete. The sweeper looks every 50 ms, and what has been answered until then is in time."""
    server, task = lab.start(otherwise=Step(after=after), timeout=1.0, on_timeout="null", capacity=50)
    task.admit_each(*range(50))
    await task.end()
    assert len(server.calls) == 50
    for row in task.left:
        assert (row.status, row.value) in {("ok", f"v{row.key}"), ("timeout", None)}
    if after < 1.0:
        assert set(task.statuses) == {"ok"}


@either_order
@pytest.mark.parametrize("retry", [None, Retry()])
async def test_a_source_that_never_answers_fails_the_task_and_does_not_hang_it(
    lab: Lab, ordered: bool, retry: Retry | None
) -> None:
    """T5: testOrderedWaitTimeoutHandling, testUnorderedWaitTimeoutHandling, both also WithRetry."""
    server, task = lab.start(otherwise=NEVER, timeout=10.0, retry=retry, ordered=ordered, show_keys=True)
    task.admit("a")
    tries = "1 attempt" if retry is None else "1 of 3 attempts"
    text = re.escape(
        f"scripted: the lookup of key 'a' failed after {tries} and 10 s: TimeoutError: no answer within 10 s. "
        "The task fails because on_timeout is 'fail'; on_timeout='null' or on_timeout=default(value) keeps the row. "
        "Where the source answers other keys, a lower capacity or a longer timeout may keep the answer."
    )
    with pytest.raises(LookupFailedError, match=text.replace(r"10\ s:", r"10(\.\d)?\ s:") + "$"):
        await task.end()
    assert 10.0 <= lab.now <= 11.0
    await lab.settle()
    assert server.in_flight == 0


async def test_an_answer_in_the_turn_of_the_loop_in_which_the_deadline_is_seen_is_in_time(lab: Lab) -> None:
    server, task = lab.start({"a": Step(held=True)}, timeout=1.0, on_timeout="null")
    loop, sweeper = asyncio.get_running_loop(), lab.engines[0]._sweeper
    task.admit("a")
    await asyncio.sleep(0.99)
    while sweeper._timer is None or sweeper._timer.when() < 1.0:
        await asyncio.sleep(0.001)
    loop.call_at(sweeper._timer.when(), server.release)  # behind the sweeper, in the same turn
    await task.end()
    assert [row.status for row in task.left] == ["ok"]


async def test_an_answer_after_the_timeout_changes_nothing(lab: Lab) -> None:
    """T6: testLateCompleteIgnoredAfterTimeout, testTimeoutLateResultIgnored."""
    _, task = lab.start({"a": Step(after=1.5)}, timeout=1.0, on_timeout=default("fallback"))
    task.admit("a")
    await lab.at(3.0)
    await task.end()
    assert task.values == ["fallback"]


@pytest.mark.parametrize("error", [TransientError("busy"), PermanentError("poison"), RuntimeError("bug")])
async def test_an_error_after_the_timeout_changes_nothing(lab: Lab, error: Exception) -> None:
    """T7: testLateCompleteExceptionallyIgnoredAfterTimeout."""
    server, task = lab.start({"a": Step(after=1.5, error=error)}, timeout=1.0, on_timeout=default("fallback"))
    task.admit("a")
    await lab.at(5.0)
    await task.end()
    assert task.values == ["fallback"]
    assert len(server.calls) == 1


async def test_a_deadline_that_passes_after_the_answer_changes_nothing(lab: Lab) -> None:
    """T8: testTimeoutWhenFutureAlreadyCompleted."""
    _, task = lab.start({"a": Step(after=0.5)}, timeout=1.0)
    task.admit("a")
    await lab.at(3.0)
    await task.end()
    assert task.values == ["va"]


async def test_timeouts_leak_no_slot(lab: Lab) -> None:
    """T10: testTimeoutExceptionDoesNotExhaustBuffer."""
    server, task = lab.start(otherwise=NEVER, capacity=2, timeout=1.0, on_timeout="null", max_fallback_ratio=1.0)
    task.admit_each(1, 2, 3, 4)
    server_heals_at = 8.0
    await lab.at(server_heals_at)
    assert task.statuses == ["timeout"] * 4
    server.otherwise = Step(after=0.1)
    task.admit_each(5, 6, 7, 8)
    await task.end()
    assert task.values[4:] == ["v5", "v6", "v7", "v8"]


async def test_a_timeout_without_a_policy_fails_the_task(lab: Lab, clock: str) -> None:
    """T12: testDefaultTimeout, testTimeoutPropagatesException."""
    _, task = lab.start(otherwise=NEVER, timeout=0.2)
    task.admit("a")
    with pytest.raises(LookupFailedError, match=r"TimeoutError: no answer within 0\.2 s"):
        await task.end()


async def test_with_details_a_timeout_is_a_status(lab: Lab) -> None:
    _, task = lab.start(otherwise=NEVER, timeout=1.0, details=True)
    task.admit("a")
    await task.end()
    assert task.left[0][:4] == ("a", None, "timeout", "TimeoutError: no answer within 1 s")
    assert task.left[0].attempts == 1
    assert task.left[0].origin == "call"


@pytest.mark.parametrize(
    ("policy", "value"), [("null", None), (default("one"), "one"), (default(["one", "two"]), ["one", "two"])]
)
async def test_a_fallback_may_be_nothing_one_value_or_a_list(lab: Lab, policy: object, value: object) -> None:
    """T14: testTimeoutWithFallbackResults, and ReturnsMultipleRows; T13 for a left join: WithEmptyFallback."""
    _, task = lab.start(otherwise=NEVER, timeout=1.0, on_timeout=policy)
    task.admit("a")
    await task.end()
    assert task.values == [value]
    assert task.statuses == ["timeout"]


async def test_fast_slow_and_missing_keys_keep_to_their_rows(lab: Lab) -> None:
    """T15: testMixedNormalAndTimeout, for a left join."""
    _, task = lab.start({3: NEVER, 5: Step(missing=True)}, timeout=1.0, on_timeout=default("fallback"))
    task.admit(1, 3, 4, 5)
    await task.end()
    assert task.values == ["v1", "fallback", "v4", None]
    assert task.statuses == ["ok", "timeout", "ok", "missing"]


async def test_a_lookup_in_time_never_times_out(lab: Lab) -> None:
    """T16: testNoTimeoutCompletesSuccessfully."""
    _, task = lab.start(otherwise=Step(after=0.05), timeout=10.0)
    task.admit("a")
    await task.end()
    assert task.values == ["va"]
    assert lab.now == pytest.approx(0.05)


async def test_each_task_has_its_own_timeout_on_a_shared_engine(lab: Lab) -> None:
    """T17: testCustomTimeoutViaLookupHint, testRuntimeConfig."""
    engine = lab.engine(lab.server(otherwise=NEVER))
    quick = lab.task(engine, timeout=1.0, on_timeout="null")
    slow = lab.task(engine, timeout=5.0, on_timeout="null")
    quick.admit("a")
    slow.admit("a")
    await quick.end()
    await slow.end()
    assert 1.0 <= quick.left[0].at <= 1.1
    assert 5.0 <= slow.left[0].at <= 5.5


def test_a_wrong_policy_is_refused_before_any_row_is_read() -> None:
    """T18: testIncompatibleTimeoutSignatureFailsFast."""
    text = (
        "on_timeout is the function <lambda>(), which cannot be called with a key alone: too many positional "
        "arguments. It gets one argument, a tuple if there are several key columns. For example "
        "on_timeout=lambda key: None."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}$"):
        Options(on_timeout=lambda: None)  # type: ignore[arg-type]  # on purpose


async def test_a_late_call_keeps_its_slot_and_its_connection_until_it_ends(lab: Lab) -> None:
    """
    T20, which is not in Flink; here the call is not cancelled at once, because its connection would be lost with it.

    It is when it goes on for longer and its slot is needed.
    """
    server, task = lab.start({"a": Step(after=1.08)}, capacity=1, timeout=1.0, on_timeout="null")
    task.admit_each("a", "b")
    await task.end()
    assert task.statuses == ["timeout", "ok"]
    assert server.calls[0].cancelled == 0
    assert server.calls[0].ended == pytest.approx(1.08)
    assert server.calls[1].started == pytest.approx(1.08)
