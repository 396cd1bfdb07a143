"""When a key is asked again: Flink's tests of retries, and the budget that Flink does not have."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.cache import AnswerCache
from enrichkit.engine.limits import RetryBudget
from enrichkit.engine.retries import backoff
from enrichkit.engine.stats import RunStats
from enrichkit.errors import ConfigError, LookupFailedError, PermanentError, TransientError, UnavailableError
from enrichkit.options import Options, Retry, default
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from .bench import Lab

either_order = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
BUSY = Step(error=TransientError("busy"))
MISSING = Step(missing=True)


def fixed(attempts: int, wait: float, **more: Any) -> Retry:
    """Retry after *wait* seconds each time."""
    return Retry(attempts=attempts, wait=wait, factor=1.0, wait_max=max(wait, 5.0), jitter="none", **more)


@either_order
async def test_misses_are_asked_again_and_stay_misses(lab: Lab, ordered: bool, clock: str) -> None:
    """R1: testProcessingTimeOrderedWithRetry, testProcessingTimeUnorderedWithRetry. A miss is a row here."""
    script = dict.fromkeys((1, 3, 5), MISSING)
    server, task = lab.start(script, ordered=ordered, capacity=6, retry=fixed(3, 0.01, on_missing=True))
    task.admit_each(1, 2, 3, 4, 5, 6)
    await task.end()
    assert {row.key: row.value for row in task.left} == {1: None, 2: "v2", 3: None, 4: "v4", 5: None, 6: "v6"}
    assert dict(server.asked) == {1: 3, 2: 1, 3: 3, 4: 1, 5: 3, 6: 1}
    if ordered:
        assert task.keys == [1, 2, 3, 4, 5, 6]


@either_order
async def test_a_deadline_ends_the_attempts(lab: Lab, ordered: bool) -> None:
    """R2: testProcessingTimeWithTimeoutFunction, both orders, WithRetry."""
    slow_failure = Step(after=0.501, error=TransientError("busy"))
    server, task = lab.start(
        otherwise=slow_failure, ordered=ordered, timeout=1.0, on_timeout=default(-1), retry=fixed(5, 0.0)
    )
    task.admit_each("a", "b")
    await task.end()
    assert task.values == [-1, -1]
    assert task.statuses == ["timeout", "timeout"]
    assert task.left[0].error == "TimeoutError: no answer within 1 s; last: TransientError: busy"
    assert max(server.asked.values()) <= 2


@either_order
async def test_a_timeout_is_not_tried_again(lab: Lab, ordered: bool) -> None:
    """R3: testProcessingTimeWithAlwaysTimeoutFunction, both orders."""
    server, task = lab.start(otherwise=Step(never=True), ordered=ordered, timeout=1.0, retry=fixed(5, 0.0))
    task.admit("a")
    with pytest.raises(LookupFailedError, match="after 1 of 5 attempts and 1 s"):
        await task.end()
    assert server.asked["a"] == 1


def test_back_off_grows_by_its_factor_up_to_a_cap() -> None:
    """R4: testExponentialBackoffDelayRetryStrategy. It has no state, so it starts anew for each key."""
    retry = Retry(attempts=10, wait=0.1, factor=2.0, wait_max=2.0, jitter="none")
    for _ in range(5):
        waits = [backoff(retry, failures, None, random.Random(0)) for failures in range(1, 11)]
        assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6] + [2.0] * 5)


async def test_the_last_attempt_is_the_last(lab: Lab) -> None:
    """R4: canRetry."""
    server, task = lab.start(otherwise=BUSY, retry=fixed(10, 0.1), on_error="null")
    task.admit("a")
    await task.end()
    assert task.statuses == ["error"]
    assert server.asked["a"] == 10


async def test_keys_that_retry_at_the_same_time_have_a_back_off_each(lab: Lab) -> None:
    """R5, which Flink fails: its strategy is shared by all rows."""
    retry = Retry(attempts=3, wait=0.1, factor=2.0, jitter="none")
    server, task = lab.start({"a": [BUSY, BUSY, Step()], "b": [BUSY, BUSY, Step()]}, retry=retry)
    task.admit("a")
    await lab.at(0.05)
    task.admit("b")
    await task.end()
    starts = {key: [seen.started for seen in server.calls if seen.keys == (key,)] for key in "ab"}
    assert starts["a"] == pytest.approx([0.0, 0.1, 0.3])
    assert starts["b"] == pytest.approx([0.05, 0.15, 0.35])


async def test_two_failures_and_then_a_value(lab: Lab, clock: str) -> None:
    """R6: testFailures, testRecoverableFailures."""
    server, task = lab.start({"a": [BUSY, BUSY, Step(value="third")]}, capacity=1, retry=Retry(wait=0.01))
    task.admit("a")
    await task.end()
    assert task.values == ["third"]
    assert [seen.call.attempt for seen in server.calls] == [1, 2, 3]


@pytest.mark.parametrize("failures", [8, 9])
async def test_as_many_attempts_as_given_and_then_the_last_error(lab: Lab, failures: int) -> None:
    """R7: testRetries."""
    script = {"a": [Step(error=TransientError(f"failure {n}")) for n in range(1, failures + 1)] + [Step()]}
    server, task = lab.start(script, retry=fixed(9, 0.01), details=True)
    task.admit("a")
    await task.end()
    assert server.asked["a"] == 9
    row = task.left[0]
    if failures == 8:
        assert (row.value, row.attempts) == ("va", 9)
    else:
        assert (row.status, row.error, row.attempts) == ("error", "TransientError: failure 9", 9)


async def test_an_error_and_then_a_miss_are_both_asked_again(lab: Lab) -> None:
    """R8: test_async_with_retry."""
    server, task = lab.start({"a": [BUSY, MISSING, Step(value=2)]}, retry=fixed(3, 0.01, on_missing=True))
    task.admit("a")
    await task.end()
    assert task.values == [2]
    assert server.asked["a"] == 3


@pytest.mark.parametrize(
    ("step", "status"),
    [(Step(error=PermanentError("poison")), "error"), (Step(error=ValueError()), "error"), (MISSING, "missing")],
)
async def test_what_is_not_transient_is_not_asked_again(lab: Lab, step: Step, status: str) -> None:
    """R9: processRetry."""
    server, task = lab.start({"a": step}, on_error="null", retry=fixed(5, 0.01))
    task.admit("a")
    await task.end()
    assert task.statuses == [status]
    assert server.asked["a"] == 1


@pytest.mark.parametrize("retry", [None, Retry(attempts=1)])
async def test_without_retries_there_is_one_call_for_each_key(lab: Lab, retry: Retry | None) -> None:
    """R10: the rule of retryEnabled; R16: testLookupWithRetryDisabled."""
    server, task = lab.start({"bad": BUSY, "none": MISSING}, retry=retry, on_error="null")
    task.admit_each("bad", "none", "good")
    await task.end()
    assert task.statuses == ["error", "missing", "ok"]
    assert dict(server.asked) == {"bad": 1, "none": 1, "good": 1}


@pytest.mark.parametrize("timeout", [0, -1.0])
def test_a_retry_without_time_for_it_is_refused(timeout: float) -> None:
    """R11: the check of addOperator and _validate."""
    text = f"timeout is {timeout!r}; it must be a number of seconds from 0.001 to 86,400, for example timeout=1.0."
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}$"):
        Options(timeout=timeout, retry=Retry())


def test_a_back_off_that_is_longer_than_the_timeout_is_refused() -> None:
    text = (
        "Retry.wait is 2.0; it must be shorter than timeout (1.0), or no second attempt ever happens. Lower wait or "
        "raise timeout."
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(text)}$"):
        Options(timeout=1.0, retry=Retry(wait=2.0, jitter="none"))


@pytest.mark.usefixtures("no_breaker")
@pytest.mark.parametrize("seed", range(6))
async def test_a_retry_that_is_due_at_the_deadline_is_one_outcome_and_never_a_hang(lab: Lab, seed: int) -> None:
    """R12: FLINK-40456, where the row never completes. 2,000 keys, whose calls end around the deadline."""
    rng = random.Random(seed)
    moments = [0.9, 0.95, 0.949999, 0.99, 0.999999, 1.0, 1.000001, 1.01, 1.05]
    script = {
        key: [
            Step(after=rng.choice([0.0, 0.5, *moments]), error=TransientError("busy")),
            Step(after=rng.choice([0.0, 0.01, 0.05, 0.5])),
        ]
        for key in range(2000)
    }
    retry = Retry(wait=rng.choice([0.0, 0.01, 0.05, 0.1]), jitter=rng.choice(["none", "full"]))
    server, task = lab.start(
        script, capacity=2000, timeout=1.0, retry=retry, details=True, max_fallback_ratio=1.0, stall_timeout=600.0
    )
    lab.engines[0].retry_budget.tokens = 10**9
    task.admit(*range(2000))
    await task.end()
    assert task.keys == list(range(2000))
    for row in task.left:
        assert (row.status, row.value) in {("ok", f"v{row.key}"), ("timeout", None), ("error", None)}
        assert row.latency <= 1.1
        assert server.asked[row.key] == row.attempts <= 2
    assert {"ok", "timeout"} <= set(task.statuses)


async def test_the_end_of_the_input_does_not_cut_retries_short(lab: Lab) -> None:
    """R13: unlike Flink's finishInFlightDelayedRetry, the full policy is honoured."""
    server, task = lab.start({"a": [BUSY, BUSY, Step()]}, retry=fixed(3, 1.0))
    task.admit("a")
    await task.end()
    assert task.values == ["va"]
    assert [seen.started for seen in server.calls] == pytest.approx([0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("attempts", "appears", "status", "asked"), [(2, 3, "missing", 2), (3, 2, "ok", 2), (11, 3, "ok", 3)]
)
async def test_a_key_that_appears_later_is_found_by_asking_again(
    lab: Lab, attempts: int, appears: int, status: str, asked: int
) -> None:
    """R14: the LookupThreshold tests; *appears* is the first lookup that finds the key."""
    script = {"a": [MISSING] * (appears - 1) + [Step()]}
    server, task = lab.start(script, retry=fixed(attempts, 0.01, on_missing=True))
    task.admit("a")
    await task.end()
    assert task.statuses == [status]
    assert server.asked["a"] == asked


async def test_an_error_is_neither_a_miss_nor_remembered(lab: Lab) -> None:
    """R15, which Flink fails: its delegator takes an error for an empty result."""
    server = lab.server({"a": [BUSY, BUSY, BUSY, Step()]})
    engine, cache = lab.engine(server), AnswerCache(60.0, 2**20, None)
    retry = fixed(2, 0.01, on_missing=True)
    first = lab.task(engine, cache=cache, retry=retry, on_error="null")
    first.admit("a")
    await first.end()
    assert first.statuses == ["error"]
    second = lab.task(engine, cache=cache, retry=retry)
    second.admit("a")
    await second.end()
    assert second.values == ["va"]
    assert server.asked["a"] == 4


async def test_a_miss_is_remembered_when_it_is_final(lab: Lab) -> None:
    """A key that is still asked for again must not look like a miss to the next row."""
    server, task = lab.start(
        {"a": [MISSING, Step()]}, cache=AnswerCache(60.0, 2**20, None), retry=fixed(2, 1.0, on_missing=True)
    )
    task.admit("a")
    await lab.at(0.5)
    task.admit("a")
    await task.end()
    assert task.values == ["va", "va"]
    assert server.asked["a"] == 2


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("attempts", 0, "a whole number from 1 to 100. Set attempts=1 or more."),
        ("wait", -1.0, "a number of seconds from 0 to 3,600, for example wait=1.0."),
        ("factor", 0.0, "a number from 1 to 100, for example factor=1.0."),
        ("wait_max", -0.5, "a number of seconds from 0 to 3,600, for example wait_max=1.0."),
    ],
)
def test_a_retry_that_makes_no_sense_is_refused(field: str, value: float, allowed: str) -> None:
    """R17: the checks of the builders."""
    with pytest.raises(ConfigError, match=f"^{re.escape(f'Retry.{field} is {value}; it must be {allowed}')}$"):
        Retry(**{field: value})  # type: ignore[arg-type]  # one field of several types


def test_jitter_draws_from_the_whole_wait() -> None:
    retry = Retry(wait=1.0, factor=2.0)
    rng = random.Random(7)
    waits = [backoff(retry, 2, None, rng) for _ in range(1000)]
    assert 0.0 <= min(waits) < 0.05
    assert 1.95 < max(waits) <= 2.0


@pytest.mark.parametrize(
    ("retry_after", "wait"),
    [(-1.0, 0.1), (0.0, 0.1), (5.0, 5.0), (1e9, 60.0), (float("inf"), 60.0), (float("nan"), 0.1)],
)
def test_a_retry_after_is_a_lower_bound_within_reason(retry_after: float, wait: float) -> None:
    retry = Retry(wait=0.1, jitter="none")
    assert backoff(retry, 1, retry_after, random.Random(0)) == wait


def test_a_retry_after_may_be_as_long_as_the_stall_timeout() -> None:
    assert backoff(Retry(wait=0.1), 1, 200.0, random.Random(0), stall_timeout=300.0) == 200.0
    assert backoff(Retry(wait=0.1), 1, 400.0, random.Random(0), stall_timeout=300.0) == 60.0


class OfAPlugin(TransientError):
    """An error whose `__init__` nobody else can call."""

    def __init__(self, shard: int, *, code: str) -> None:
        super().__init__(f"shard {shard} says {code}", retry_after=2.0)
        self.code = code


async def test_an_error_class_of_a_plugin_is_told_with_the_reason_why_it_was_the_last(lab: Lab) -> None:
    error = OfAPlugin(3, code="BUSY")
    retry = Retry(wait=0.1)
    _, task = lab.start({"a": Step(failure=error)}, otherwise=Step(), timeout=1.0, retry=retry, on_error="null")
    task.admit("a", "b")
    await task.end()
    told = (
        "OfAPlugin: shard 3 says BUSY (not asked again: the source asks for 2 s, which ends after the timeout of 1 s)"
    )
    assert [row.error for row in task.left] == [told, None]
    assert str(error) == "shard 3 says BUSY"


async def test_a_waiting_key_holds_no_slot(lab: Lab) -> None:
    server, task = lab.start({"a": [BUSY, Step()]}, capacity=1, retry=fixed(2, 1.0))
    task.admit_each("a", "b", "c")
    await lab.at(0.5)
    assert server.keys == [("a",), ("b",), ("c",)]
    await task.end()


async def test_a_retry_goes_before_keys_that_were_never_asked(lab: Lab) -> None:
    server, task = lab.start({1: [BUSY, Step()]}, otherwise=Step(after=1.0), capacity=1, retry=fixed(2, 0.5))
    task.admit_each(1, 2, 3, 4)
    await task.end()
    assert server.keys == [(1,), (2,), (1,), (3,), (4,)]


async def test_the_keys_of_one_call_are_asked_again_together(lab: Lab) -> None:
    server, task = lab.start({"b": [BUSY, Step()]}, batch_size=3)
    task.admit("a", "b", "c")
    await task.end()
    assert server.keys == [("a", "b", "c")] * 2


@pytest.mark.usefixtures("no_breaker")
async def test_the_budget_bounds_retries_while_everything_fails(lab: Lab) -> None:
    """A bucket of 100 tokens pays for 20 retries; without it this source would see 200 calls instead of 120."""
    server, task = lab.start(
        otherwise=BUSY, retry=fixed(2, 0.0), on_error="null", max_fallback_ratio=1.0, stall_timeout=600.0
    )
    task.admit_each(*range(100))
    await task.end()
    assert task.statuses == ["error"] * 100
    assert len(server.calls) == 120
    assert task.run.stats.retry_tokens == 20 * RetryBudget.RETRY


@pytest.mark.usefixtures("no_breaker")
async def test_clean_calls_pay_for_retries(lab: Lab) -> None:
    server, task = lab.start(
        {key: [BUSY, Step()] for key in range(0, 600, 6)}, capacity=1, retry=fixed(2, 0.0), on_error="null"
    )
    task.admit_each(*range(600))
    await task.end()
    assert task.statuses == ["ok"] * 600
    assert len(server.calls) == 700


def test_a_budget_gives_nothing_beyond_what_it_holds() -> None:
    budget, stats = RetryBudget(), RunStats()
    assert [budget.spend(40, stats) for _ in range(3)] == [True, True, False]
    for _ in range(20):
        budget.earn(1)
    assert budget.spend(40, stats)
    for _ in range(1000):
        budget.earn(1)
    assert budget.spend(RetryBudget.SIZE, stats)
    assert not budget.spend(1, stats)


async def test_a_call_that_is_late_by_its_attempt_timeout_goes_on_while_the_key_is_asked_again(lab: Lab) -> None:
    script = {"a": [Step(after=2.0, value="first"), Step(after=5.0, value="second")]}
    server, task = lab.start(script, timeout=10.0, attempt_timeout=1.0, retry=fixed(3, 0.0))
    task.admit("a")
    await task.end()
    assert task.values == ["first"]
    assert server.asked["a"] == 2


async def test_the_failure_of_a_late_call_does_not_ask_a_third_time(lab: Lab) -> None:
    """Its key was queued again when it became late, so two more calls would be under way for one failure."""
    script = {"a": [Step(after=1.2, error=TransientError("busy")), Step(after=0.9)]}
    server, task = lab.start(script, timeout=10.0, attempt_timeout=1.0, retry=fixed(5, 0.1))
    task.admit("a")
    await task.end()
    assert task.values == ["va"]
    assert server.asked["a"] == 2


async def test_a_failure_that_comes_with_a_late_answer_does_not_ask_a_third_time(lab: Lab) -> None:
    script = {"a": [Step(after=1.2, failure=TransientError("busy")), Step(after=0.9)]}
    server, task = lab.start(script, timeout=10.0, attempt_timeout=1.0, retry=fixed(5, 0.1))
    task.admit("a")
    await task.end()
    assert server.asked["a"] == 2


async def test_a_miss_of_either_call_is_an_answer(lab: Lab) -> None:
    script = {"a": [Step(after=1.5, missing=True), Step(after=4.0, error=PermanentError("broken"))]}
    _, task = lab.start(script, timeout=10.0, attempt_timeout=1.0, retry=fixed(3, 0.0), details=True)
    task.admit("a")
    await task.end()
    assert task.statuses == ["missing"]
    assert lab.now == pytest.approx(1.5)


@pytest.mark.usefixtures("no_breaker")
async def test_attempts_that_are_late_are_counted(lab: Lab) -> None:
    server, task = lab.start(
        otherwise=Step(never=True), timeout=10.0, attempt_timeout=1.0, retry=fixed(3, 0.0), details=True
    )
    task.admit("a")
    await task.end()
    assert (task.statuses, task.left[0].attempts) == (["timeout"], 3)
    assert [seen.started for seen in server.calls] == pytest.approx([0.0, 1.0, 2.0], abs=0.15)


@pytest.mark.usefixtures("no_breaker")
async def test_retries_after_late_attempts_cost_twice_as_much(lab: Lab) -> None:
    """A bucket of 100 tokens pays for 10 of them."""
    server, task = lab.start(
        otherwise=Step(after=3.0), capacity=60, timeout=10.0, attempt_timeout=1.0, retry=fixed(2, 0.0), on_error="null"
    )
    task.admit_each(*range(30))
    await task.end()
    assert len(server.calls) == 40
    assert task.run.stats.retry_tokens == 10 * RetryBudget.RETRY_AFTER_TIMEOUT


async def test_a_key_that_is_answered_while_its_retry_waits_for_tokens_takes_none(lab: Lab) -> None:
    """The late answer comes at 1.5 s, before ten tokens have come back; they are the next key's."""
    script = {"a": Step(after=1.5), "b": [Step(after=9.0), Step()]}
    server, task = lab.start(script, capacity=4, timeout=20.0, attempt_timeout=0.5)
    lab.engines[0].retry_budget.tokens = 0
    task.admit_each("a", "b")
    await task.end()
    assert (task.values, dict(server.asked)) == (["va", "vb"], {"a": 1, "b": 2})
    assert server.calls[-1].started < 3.0, "b waits for 10 tokens, of which 5 come back in a second"
    assert task.run.stats.retry_tokens == RetryBudget.RETRY_AFTER_TIMEOUT


@pytest.mark.parametrize("on_error", [None, "fail"])
async def test_an_empty_budget_delays_a_retry_where_nothing_else_is_given_for_an_error(
    lab: Lab, on_error: str | None
) -> None:
    server, task = lab.start({"a": [BUSY, Step()]}, capacity=1, timeout=20.0, on_error=on_error)
    lab.engines[0].retry_budget.tokens = 0
    task.admit("a")
    await task.end()
    assert (task.values, dict(server.asked)) == (["va"], {"a": 2})


async def test_a_refused_key_of_an_answered_call_is_waited_for_beyond_its_timeout(lab: Lab) -> None:
    """The source names the wait, and a timeout would fail the task."""
    busy = Step(failure=UnavailableError("The service answered 429.", retry_after=3.0))
    server, task = lab.start({"a": [busy, Step()]}, otherwise=Step(after=0.1), batch_size=2, timeout=1.0)
    task.admit("a", "b")
    await task.end()
    assert task.values == ["va", "vb"]
    assert server.calls[-1].started >= 3.0
    assert dict(server.asked) == {"a": 2, "b": 1}
