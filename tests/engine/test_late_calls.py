"""Two calls for one key, one of them late: which failure counts, and for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from enrichkit.engine.limits import RetryBudget
from enrichkit.errors import PermanentError, TransientError
from enrichkit.options import Retry
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from .bench import Lab

HOW = ("error", "failure")
raised_or_returned = pytest.mark.parametrize("how", HOW)


def busy(how: str, after: float, text: str = "busy") -> Step:
    """A step that fails transiently, as a whole call or as a key of it."""
    error = TransientError(text)
    return Step(after=after, error=error) if how == "error" else Step(after=after, failure=error)


def fixed(attempts: int) -> Retry:
    return Retry(attempts=attempts, wait=0.0, jitter="none")


@raised_or_returned
async def test_a_row_that_was_asked_afresh_fails_when_its_own_call_does(lab: Lab, how: str) -> None:
    steps = [busy(how, 0.3), busy(how, 0.1, "still busy"), Step()]
    server, task = lab.start(
        {"a": steps}, timeout=0.2, on_timeout="null", on_error="null", retry=None, details=True, max_fallback_ratio=1.0
    )
    task.admit("a")
    await lab.at(0.25)
    task.admit("a")
    await task.end()
    assert [(row.status, row.error) for row in task.left] == [
        ("timeout", "TimeoutError: no answer within 0.2 s"),
        ("error", "TransientError: still busy"),
    ]
    assert server.asked["a"] == 2


@raised_or_returned
async def test_all_rows_that_wait_for_a_late_group_are_asked_afresh(lab: Lab, how: str) -> None:
    script = {key: [busy(how, 0.3), Step()] for key in "abc"}
    server, task = lab.start(script, batch_size=3, timeout=0.2, on_timeout="null", retry=None, max_fallback_ratio=1.0)
    for moment in (0.0, 0.25):
        await lab.at(moment)
        task.admit(*"abc")
    await task.end()
    assert task.values == [None] * 3 + ["va", "vb", "vc"]
    assert server.keys == [("a", "b", "c")] * 2


@raised_or_returned
async def test_the_failure_of_a_late_group_is_that_of_the_keys_that_were_in_time(lab: Lab, how: str) -> None:
    """The clock of a began while it waited behind a late call, so it times out in the call that b is asked in."""
    script = {"x": Step(never=True), "y": Step(after=10.7), "a": [busy(how, 9.8), Step()], "b": busy(how, 9.8)}
    server, task = lab.start(
        script, capacity=1, batch_size=2, timeout=10.0, on_timeout="null", on_error="null", retry=None
    )
    task.admit("x")
    await lab.settle()
    task.admit("y")
    await lab.at(13.0)
    task.admit("a")
    await lab.at(21.68)
    task.admit("b")
    await lab.at(31.4)
    assert task.keys == ["x", "y", "a"]
    task.admit("a")
    await task.end()
    assert [(row.key, row.status) for row in task.left] == [
        ("x", "timeout"),
        ("y", "timeout"),
        ("a", "timeout"),
        ("b", "error"),
        ("a", "ok"),
    ]
    assert server.keys == [("x",), ("y",), ("a", "b"), ("a",)]


@raised_or_returned
async def test_the_last_failure_waits_for_a_late_call_that_may_still_answer(lab: Lab, how: str) -> None:
    script = {"a": [Step(after=0.9, value="late"), busy(how, 0.1)]}
    server, task = lab.start(script, timeout=5.0, attempt_timeout=0.5, retry=fixed(2), on_error="null")
    task.admit("a")
    await task.end()
    assert task.values == ["late"]
    assert server.asked["a"] == 2


@raised_or_returned
async def test_a_late_call_and_its_failure_are_one_failed_attempt(lab: Lab, how: str) -> None:
    """It counted when it became late; would it count again, the third attempt would never be made."""
    script = {"a": [busy(how, 0.7), busy(how, 0.4), Step(value="third")]}
    _, task = lab.start(script, timeout=5.0, attempt_timeout=0.5, retry=fixed(3), on_error="null")
    task.admit("a")
    await task.end()
    assert task.values == ["third"]


@raised_or_returned
async def test_attempts_are_counted_however_they_fail(lab: Lab, how: str) -> None:
    server, task = lab.start(otherwise=busy(how, 0.1), retry=fixed(3), on_error="null", details=True)
    task.admit("a")
    await task.end()
    assert [(row.status, row.error, row.attempts) for row in task.left] == [("error", "TransientError: busy", 3)]
    assert (server.asked["a"], task.run.stats.retries) == (3, 2)


@pytest.mark.parametrize("wait", [10.0, 30.0], ids=["at the deadline", "after it"])
@raised_or_returned
async def test_a_retry_that_is_due_too_late_is_an_error_at_once(lab: Lab, how: str, wait: float) -> None:
    error = TransientError("busy", retry_after=wait)
    step = Step(error=error) if how == "error" else Step(failure=error)
    server, task = lab.start({"a": step}, timeout=10.0, on_error="null", on_timeout="null")
    task.admit("a")
    await task.end()
    why = f"(not asked again: the source asks for {wait:g} s, which ends after the timeout of 10 s)"
    assert [(row.status, row.error, row.at) for row in task.left] == [("error", f"TransientError: busy {why}", 0.0)]
    assert task.run.engine is not None
    assert task.run.engine.retry_budget.tokens == RetryBudget.SIZE, "nothing is spent on what is not asked again"
    assert dict(server.asked) == {"a": 1}


@raised_or_returned
async def test_a_timeout_tells_of_the_last_failure(lab: Lab, how: str) -> None:
    script = {"a": [busy(how, 0.1), Step(never=True)]}
    _, task = lab.start(script, timeout=1.0, on_timeout="null", retry=fixed(3), details=True)
    task.admit("a")
    await task.end()
    assert task.left[0].error == "TimeoutError: no answer within 1 s; last: TransientError: busy"


async def test_the_miss_of_a_late_call_waits_for_the_call_that_was_made_instead(lab: Lab) -> None:
    script = {"a": [Step(after=0.7, missing=True), Step(after=0.4, value="found")]}
    retry = Retry(attempts=3, wait=0.0, jitter="none", on_missing=True)
    server, task = lab.start(script, timeout=5.0, attempt_timeout=0.5, retry=retry)
    task.admit("a")
    await task.end()
    assert task.values == ["found"]
    assert server.asked["a"] == 2


async def test_a_key_that_is_answered_does_not_keep_its_neighbour_from_being_asked_again(lab: Lab) -> None:
    script = {
        "a": [Step(after=0.7, value="first"), busy("failure", 0.4)],
        "b": [busy("failure", 0.7), busy("failure", 0.4), Step(value="third")],
    }
    server, task = lab.start(script, batch_size=2, timeout=5.0, attempt_timeout=0.5, retry=fixed(4), on_error="null")
    task.admit("a", "b")
    await task.end()
    assert task.values == ["first", "third"]
    assert server.keys == [("a", "b"), ("a", "b"), ("b",)]


@pytest.mark.parametrize("step", [Step(after=0.3), Step(after=0.3, missing=True), busy("error", 0.3)])
async def test_nobody_waits_for_a_late_call_that_has_ended(lab: Lab, step: Step) -> None:
    server, task = lab.start({"a": [step, Step(value="again")]}, timeout=0.2, on_timeout="null", retry=None)
    task.admit("a")
    await lab.at(0.4)
    task.admit("a")
    await task.end()
    assert task.values == [None, "again"]
    assert server.calls[1].started == pytest.approx(0.4)


@raised_or_returned
async def test_nobody_waits_for_the_call_of_a_key_that_timed_out_while_no_slot_was_free(lab: Lab, how: str) -> None:
    """Its call had ended, and the retry stood behind a call that took the only slot."""
    script = {"a": [busy(how, 0.1), Step(value="again")], "slow": Step(after=0.99)}
    retry = Retry(attempts=3, wait=0.1, jitter="none")
    server, task = lab.start(script, capacity=1, timeout=1.0, on_timeout="null", retry=retry)
    task.admit("a")
    await lab.at(0.05)
    task.admit("slow")
    await lab.at(1.08)
    assert task.statuses == ["timeout"]
    task.admit("a")
    await task.end()
    assert task.values == [None, "vslow", "again"]
    assert server.keys == [("a",), ("slow",), ("a",)]


@pytest.mark.usefixtures("no_breaker")
@raised_or_returned
async def test_a_key_that_the_budget_leaves_no_retry_says_so(lab: Lab, how: str) -> None:
    _, task = lab.start(
        otherwise=busy(how, 0.0), capacity=1, retry=fixed(2), on_error="null", max_fallback_ratio=1.0,
        stall_timeout=600.0, details=True,
    )  # fmt: skip
    task.admit_each(*range(30))
    await task.end()
    texts = [row.error for row in task.left]
    assert texts == ["TransientError: busy"] * 20 + ["TransientError: busy (the budget of retries is used up)"] * 10


@pytest.mark.usefixtures("no_breaker")
async def test_a_late_call_that_the_budget_leaves_no_retry_says_that_there_was_no_answer(lab: Lab) -> None:
    """The bucket pays for ten retries of late calls; the others time out with the text that they were left."""
    _, task = lab.start(
        otherwise=Step(never=True), capacity=60, timeout=3.0, attempt_timeout=1.0, retry=fixed(2), on_timeout="null",
        on_error="null", max_fallback_ratio=1.0, details=True,
    )  # fmt: skip
    task.admit_each(*range(12))
    await task.end()
    none = "TimeoutError: no answer within 3 s"
    without = f"{none}; last: TransientError: no answer (the budget of retries is used up)"
    assert [row.error for row in task.left] == [none] * 10 + [without] * 2


async def test_a_poisoned_late_group_does_not_fail_the_key_that_is_asked_elsewhere(lab: Lab) -> None:
    script = {"a": [Step(after=0.7, error=PermanentError("poison")), Step(after=0.4)], "b": Step()}
    server, task = lab.start(script, batch_size=2, timeout=5.0, attempt_timeout=0.5, retry=fixed(3), on_error="null")
    task.admit("a", "b")
    await task.end()
    assert task.values == ["va", "vb"]
    assert server.keys == [("a", "b")] * 2
