"""Failures, broken connectors, and values that cannot be decoded: Flink's tests of errors and completion."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.errors import (
    ConfigError,
    ContractError,
    FatalError,
    LookupFailedError,
    PermanentError,
    TaskFailedError,
    TooManyFallbacksError,
    TransientError,
)
from enrichkit.options import Retry, default
from enrichkit.testing.scripted import ScriptedConnector, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enrichkit.interface import Call

    from .bench import Lab

either_order = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
retry_or_not = pytest.mark.parametrize("retry", [None, Retry(wait=0.0)], ids=["one attempt", "retry"])


@either_order
@retry_or_not
async def test_a_failed_lookup_fails_the_task_at_once(lab: Lab, ordered: bool, retry: Retry | None) -> None:
    """E1: testOrderedWaitUserExceptionHandling, testUnorderedWaitUserExceptionHandling, both also WithRetry."""
    script = {"slow": Step(never=True), "bad": Step(failure=PermanentError("no such shard"))}
    server, task = lab.start(script, ordered=ordered, retry=retry, show_keys=True)
    task.admit_each("slow", "bad")
    tries = "1 attempt" if retry is None else "1 of 3 attempts"
    text = (
        f"scripted: the lookup of key 'bad' failed after {tries} and 0 s: PermanentError: no such shard. "
        "The task fails because on_error is 'fail'; on_error='null' or on_error=default(value) keeps the row."
    )
    with pytest.raises(LookupFailedError, match=f"^{re.escape(text)}$"):
        await task.end()
    assert lab.now == 0.0
    await lab.settle()
    assert server.in_flight == 0


async def test_the_calls_that_search_for_a_bad_key_are_not_among_the_attempts_that_are_allowed(lab: Lab) -> None:
    """They are three here: for both keys, and for each alone."""
    server, task = lab.start({"bad": Step(error=PermanentError("poison"))}, batch_size=2, show_keys=True)
    task.admit("good", "bad")
    text = (
        "scripted: the lookup of key 'bad' failed after 2 attempts and 0 s: PermanentError: poison. "
        "The task fails because on_error is 'fail'; on_error='null' or on_error=default(value) keeps the row."
    )
    with pytest.raises(LookupFailedError, match=f"^{re.escape(text)}$"):
        await task.end()
    assert server.keys == [("good", "bad"), ("good",), ("bad",)]


@pytest.mark.parametrize(
    "step", [Step(error=PermanentError("poison")), Step(failure=PermanentError("poison"))], ids=["raised", "returned"]
)
async def test_a_raised_error_and_a_returned_failure_are_the_same_to_a_row(lab: Lab, step: Step) -> None:
    """E2: AsyncCorrelateRunnerTest.testException."""
    _, task = lab.start({"bad": step}, details=True)
    task.admit("good", "bad")
    await task.end()
    assert [row[:4] for row in task.left] == [
        ("good", "vgood", "ok", None),
        ("bad", None, "error", "PermanentError: poison"),
    ]


@either_order
async def test_a_key_that_two_calls_answer_is_one_row(lab: Lab, ordered: bool) -> None:
    """E3: testProcessingTimeRepeatedComplete, both orders, WithRetry. The second answer is dropped."""
    script = {"a": [Step(after=1.0, value="first call"), Step(after=0.2, value="second call")]}
    server, task = lab.start(
        script, ordered=ordered, timeout=5.0, attempt_timeout=0.5, details=True, retry=Retry(wait=0.0)
    )
    task.admit("a")
    await lab.at(3.0)
    await task.end()
    assert task.values == ["second call"]
    assert task.left[0].attempts == 2
    assert server.asked["a"] == 2
    assert server.calls[0].cancelled == 0


@pytest.mark.parametrize(
    ("returned", "kind"), [(None, "NoneType"), (["va"], "list"), ("va", "str"), (iter(["va"]), "list_iterator")]
)
async def test_an_answer_that_is_no_mapping_is_never_a_guess(lab: Lab, returned: Any, kind: str) -> None:
    """E4: test_none_result, test_non_iterable_result."""
    server, task = lab.start(otherwise=Step(returns=returned), on_error="null")
    task.admit("a")
    text = (
        f"scripted: fetch_many returned a {kind}; it must return a mapping of the keys it was asked for to their "
        "values. Return {key: value}, and leave a key out that the source does not hold."
    )
    with pytest.raises(ContractError, match=f"^{re.escape(text)}$"):
        await task.end()
    assert len(server.calls) == 1


@pytest.mark.parametrize("returned", [{"a": 1, "b": 2, "c": 3}, {"x": 1, "y": 2}, {"A": 1, "b": 2}])
async def test_an_answer_under_other_keys_fails_the_task(lab: Lab, returned: dict[str, int]) -> None:
    extra = len(set(returned) - {"a", "b"})
    _, task = lab.start(otherwise=Step(returns=returned), batch_size=2, on_error="null")
    task.admit("a", "b")
    text = (
        f"scripted: fetch_many returned {extra} key(s) that it was not asked for; it must answer under the very keys "
        "it was given (2 in this call). Map the source's answers back to those keys."
    )
    with pytest.raises(ContractError, match=f"^{re.escape(text)}$"):
        await task.end()


@retry_or_not
async def test_values_are_decoded_on_the_loop_thread_once_per_call(lab: Lab, retry: Retry | None, clock: str) -> None:
    """E5: testProcessingTimeWithMailboxThread."""
    seen: list[tuple[int, list[Any]]] = []

    def decode(raws: Sequence[Any]) -> tuple[list[Any], dict[int, PermanentError]]:
        seen.append((threading.get_ident(), list(raws)))
        return [f"decoded {raw}" for raw in raws], {}

    _, task = lab.start(batch_size=3, retry=retry, decode=decode)
    task.admit("a", "b", "c")
    await task.end()
    assert task.values == ["decoded va", "decoded vb", "decoded vc"]
    assert seen == [(threading.get_ident(), ["va", "vb", "vc"])]


DEFECT = (
    r"^scripted: a step of the engine raised {} \(test_errors\.py, line \d+\)\. This is a defect; please report it\.$"
)


def refuse_odd(raws: Sequence[Any]) -> tuple[list[Any], dict[int, PermanentError]]:
    """Decode whole numbers, of which the odd ones do not fit."""
    bad = {i: PermanentError(f"{raw} is odd") for i, raw in enumerate(raws) if raw % 2}
    return [None if i in bad else raw * 10 for i, raw in enumerate(raws)], bad


@retry_or_not
async def test_a_value_that_does_not_fit_is_its_own_rows_error_and_not_asked_again(
    lab: Lab, retry: Retry | None
) -> None:
    """E6: testProcessingTimeWithErrorFromMailboxThread; here such an error is permanent."""
    script = {key: Step(value=key) for key in range(5)}
    server, task = lab.start(script, batch_size=5, on_error=default(-1), decode=refuse_odd, retry=retry)
    task.admit(*range(5))
    await task.end()
    assert task.values == [0, -1, 20, -1, 40]
    assert task.left[1].error == "PermanentError: 1 is odd"
    assert len(server.calls) == 1


async def test_a_decoder_with_a_bug_fails_the_task_and_does_not_hang_it(lab: Lab) -> None:
    """E7: testJoinConditionThrowsException, testJoinConditionDelegateCompletesExceptionally."""

    def decode(raws: Sequence[Any]) -> Any:
        raise ZeroDivisionError("a bug of ours")

    _, task = lab.start(decode=decode, on_error="null")
    task.admit("a")
    with pytest.raises(TaskFailedError, match=DEFECT.format("ZeroDivisionError")):
        await task.end()
    assert lab.now < 1.0


@pytest.mark.parametrize("details", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
async def test_the_only_value_of_a_call_is_decoded_once(lab: Lab, details: bool, rows: int) -> None:
    decoded: list[Any] = []

    def decode(raws: Sequence[Any]) -> tuple[list[Any], dict[int, PermanentError]]:
        decoded.extend(raws)
        return list(raws), {}

    _, task = lab.start(otherwise=Step(after=0.1), decode=decode, details=details)
    task.admit_each(*["a"] * rows)
    await task.end()
    assert decoded == ["va"]


async def test_a_failure_is_not_decoded(lab: Lab) -> None:
    """E8: exceptionalCompletionShortCircuitsWrap."""
    decoded: list[Any] = []

    def decode(raws: Sequence[Any]) -> tuple[list[Any], dict[int, PermanentError]]:
        decoded.extend(raws)
        return list(raws), {}

    script = {"bad": Step(failure=PermanentError("poison")), "none": Step(missing=True)}
    _, task = lab.start(script, batch_size=3, on_error="null", decode=decode)
    task.admit("bad", "none", "good")
    await task.end()
    assert decoded == ["vgood"]
    assert task.statuses == ["error", "missing", "ok"]


async def test_what_needs_no_decoding_reaches_the_row_as_the_very_object(lab: Lab) -> None:
    """E9: identityWrappingForwards; testNonIdentityResultConverter is E5 here."""
    value = {"name": "Ada"}
    _, task = lab.start({"a": Step(value=value)})
    task.admit("a")
    await task.end()
    assert task.values[0] is value


async def test_no_match_one_match_and_a_null_are_told_apart(lab: Lab) -> None:
    """E10: AsyncCorrelateRunnerTest.testRows. Several matches are one value, a list."""
    script = {0: Step(missing=True), 1: Step(value="one"), 2: Step(value=["one", "two"]), 3: Step(value=None)}
    _, task = lab.start(script, batch_size=4)
    task.admit(0, 1, 2, 3)
    await task.end()
    assert task.values == [None, "one", ["one", "two"], None]
    assert task.statuses == ["missing", "ok", "ok", "ok"]


@pytest.mark.parametrize("rows", [0, 1], ids=["never opened", "one row in flight"])
async def test_an_engine_closes_whatever_its_state(lab: Lab, rows: int) -> None:
    """E11: testCloseAsyncLookupJoinRunner."""
    server, task = lab.start(otherwise=Step(never=True))
    task.admit_each(*range(rows))
    await lab.settle()
    await lab.engines[0].close()
    assert (server.opened, server.closed) == (rows, 1)
    assert server.in_flight == 0


async def test_an_engine_closes_when_it_was_open_and_idle(lab: Lab) -> None:
    """E11: testCloseAsyncLookupJoinRunner."""
    server, task = lab.start()
    task.admit("a")
    await task.end()
    await lab.engines[0].close()
    assert (server.opened, server.closed) == (1, 1)


async def test_the_error_says_what_the_connector_said(lab: Lab) -> None:
    """E12: test_raise_exception_in_async_invoke, test_raise_exception_in_async_eval."""
    _, task = lab.start(otherwise=Step(error=PermanentError("column tier does not exist")))
    task.admit("a")
    with pytest.raises(LookupFailedError, match="PermanentError: column tier does not exist"):
        await task.end()


async def test_the_text_of_an_unknown_exception_may_hold_a_secret_so_only_its_class_is_told(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(error=ValueError("password=hunter2")), details=True)
    task.admit("a")
    await task.end()
    assert task.left[0].error == "PermanentError: the connector raised ValueError"


async def test_the_log_says_where_a_connector_raised_once_and_without_values(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    class Buggy(ScriptedConnector):
        async def fetch_many(self, keys: Sequence[Any], call: Call) -> dict[Any, Any]:
            return {key: {"alice": 1}[f"secret {key}"] for key in keys}

    task = lab.task(lab.engine(Buggy()), on_error="null", max_fallback_ratio=1.0)
    with caplog.at_level("WARNING", "enrichkit"):
        task.admit_each(*range(10))
        await task.end()
    [text] = [record.getMessage() for record in caplog.records]
    line = Buggy.fetch_many.__code__.co_firstlineno + 1
    frames = ", ".join([f"test_errors.py, line {line}, in fetch_many", f"test_errors.py, line {line}, in <dictcomp>"])
    inlined = f"test_errors.py, line {line}, in fetch_many"  # from Python 3.12 on
    assert text in [f"scripted: the connector raised KeyError at: {place}." for place in (frames, inlined)]


async def test_a_message_hides_the_key_unless_asked_to_show_it(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(error=PermanentError("no")))
    task.admit("alice@example.test")
    with pytest.raises(LookupFailedError, match=r"the lookup of key #[0-9a-f]{10} failed"):
        await task.end()
    assert "alice" not in str(task.error)
    assert str(task.error).endswith("keeps the row. Set show_keys=True to see the key.")


async def test_a_fatal_error_ends_the_task_whatever_the_policy(lab: Lab) -> None:
    server, task = lab.start(
        {"a": Step(error=FatalError("login refused"))}, otherwise=Step(after=9.0), on_error="null", on_timeout="null"
    )
    task.admit_each(*"abc")
    with pytest.raises(FatalError, match=r"^login refused$"):
        await task.end()
    assert lab.now == 0.0
    assert server.asked["a"] == 1


async def test_a_fatal_failure_of_one_key_ends_the_task(lab: Lab) -> None:
    _, task = lab.start({"a": Step(failure=FatalError("no such table"))}, batch_size=3, on_error="null")
    task.admit(*"abc")
    with pytest.raises(FatalError, match=r"^no such table$"):
        await task.end()


async def test_a_refused_key_has_a_status_of_its_own(lab: Lab) -> None:
    step = Step(failure=PermanentError("not a whole number"), rejected=True)
    _, task = lab.start({"x": step}, batch_size=2, on_error=default("fallback"))
    task.admit("x", "y")
    await task.end()
    assert [row[:4] for row in task.left] == [
        ("x", "fallback", "rejected", "PermanentError: not a whole number"),
        ("y", "vy", "ok", None),
    ]


async def test_a_refused_key_fails_the_task_when_errors_do(lab: Lab) -> None:
    _, task = lab.start({"x": Step(failure=PermanentError("bad key"), rejected=True)}, show_keys=True)
    task.admit("x")
    with pytest.raises(
        LookupFailedError, match=r"^scripted: the lookup of key 'x' was refused after 1 attempt and 0 s: "
    ):
        await task.end()


async def test_a_miss_fails_the_task_when_it_must_not_be(lab: Lab) -> None:
    _, task = lab.start({"x": Step(missing=True)}, on_missing="fail", show_keys=True)
    task.admit("x")
    text = (
        "scripted: the lookup of key 'x' found nothing after 1 attempt and 0 s: the source does not hold the key. "
        "The task fails because on_missing is 'fail'; on_missing='null' or on_missing=default(value) keeps the row."
    )
    with pytest.raises(LookupFailedError, match=f"^{re.escape(text)}$"):
        await task.end()


async def test_a_miss_may_have_a_default(lab: Lab) -> None:
    _, task = lab.start({"x": Step(missing=True)}, on_missing=default("unknown"), details=True)
    task.admit("x", "y")
    await task.end()
    assert [(row.value, row.status, row.origin) for row in task.left] == [
        ("unknown", "missing", "fallback"),
        ("vy", "ok", "call"),
    ]


@pytest.mark.parametrize("good_first", [True, False])
async def test_more_fallbacks_than_allowed_fail_the_task(lab: Lab, good_first: bool) -> None:
    """Whatever the order: 60 failures among 100 keys are more than half of them."""
    bad, good = list(range(60)), list(range(60, 100))
    _, task = lab.start({key: Step(error=PermanentError("down")) for key in bad}, capacity=1, on_error="null")
    task.admit_each(*(good + bad if good_first else bad + good))
    text = (
        "scripted: 60 of 100 keys timed out, failed or were refused, more than max_fallback_ratio=0.5 allows. "
        "Last: PermanentError: down. Mend the source, or set max_fallback_ratio=1.0 to accept any number of fallbacks."
    )
    with pytest.raises(TooManyFallbacksError, match=f"^{re.escape(text)}$"):
        await task.end()


async def test_few_keys_say_nothing_about_the_source(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(error=PermanentError("down")), on_error="null")
    task.admit_each(*range(99))
    await task.end()
    assert task.statuses == ["error"] * 99


async def test_misses_are_no_fallbacks(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(missing=True), batch_size=50, max_fallback_ratio=0.0)
    task.admit(*range(200))
    await task.end()
    assert task.statuses == ["missing"] * 200


async def test_an_answer_that_cannot_be_read_fails_the_task_and_does_not_hang_it(lab: Lab) -> None:
    class Broken(dict[str, str]):
        def keys(self) -> Any:
            raise RuntimeError("a mapping with a bug")

    _, task = lab.start(otherwise=Step(returns=Broken()), on_error="null")
    task.admit("a")
    with pytest.raises(TaskFailedError, match=DEFECT.format("RuntimeError")):
        await task.end()
    assert lab.now < 1.0


async def test_rows_get_their_answers_although_another_row_of_the_call_failed_transiently(lab: Lab) -> None:
    server, task = lab.start(
        {"b": [Step(failure=TransientError("moved")), Step()]}, batch_size=3, retry=Retry(wait=0.0)
    )
    task.admit("a", "b", "c")
    await task.end()
    assert task.values == ["va", "vb", "vc"]
    assert server.keys == [("a", "b", "c"), ("b",)]


class Verdict:
    """Says what is wrong with the second answer, or with all of them at the end."""

    def __init__(self, *, at_end: bool = False) -> None:
        self.done = False
        self.seen: list[Any] = []
        self.at_end = at_end

    def see(self, answers: Mapping[Any, Any]) -> ConfigError | None:
        self.seen += answers.values()
        self.done = len(self.seen) >= 2
        return ConfigError("a field is absent") if self.done and not self.at_end else None

    def verdict(self) -> ConfigError | None:
        return ConfigError("all lack a field") if self.at_end else None


async def test_first_answers_that_lack_a_field_fail_the_task_whatever_the_policies(lab: Lab) -> None:
    first = Verdict()
    server, task = lab.start(
        otherwise=Step(after=1.0), capacity=1, first_answers=first, on_error="null", max_fallback_ratio=1.0
    )
    task.admit_each(*range(5))
    with pytest.raises(ConfigError, match=r"^a field is absent$"):
        await task.end()
    assert first.seen == ["v0", "v1"]
    assert len(server.calls) == 2


async def test_first_answers_are_looked_at_until_nothing_is_left_to_be_found_out(lab: Lab) -> None:
    first = Verdict(at_end=True)
    _, task = lab.start(capacity=1, first_answers=first)
    task.admit_each(*range(5))
    await task.end()
    assert first.seen == ["v0", "v1"]
    assert task.run.first_answers is None


@pytest.mark.parametrize(("found", "warns"), [(None, True), (0, False), (999, False), (1000, True)])
async def test_a_task_whose_first_keys_all_are_missing_warns_once(
    lab: Lab, caplog: pytest.LogCaptureFixture, found: int | None, warns: bool
) -> None:
    server = lab.server({n: Step(missing=n != found) for n in range(3000)})
    task = lab.task(lab.engine(server, batch_size=10), looks_up="RedisConfig(key='usr:{}')")
    task.admit_each(*range(3000))
    await task.end()
    text = (
        "scripted: the source holds none of the first 1,000 keys of this task. Compare a key with "
        "RedisConfig(key='usr:{}')."
    )
    assert [record.getMessage() for record in caplog.records] == [text] * warns


@pytest.mark.parametrize("show_keys", [True, False])
async def test_what_the_source_said_of_one_key_is_told_with_the_keys(lab: Lab, show_keys: bool) -> None:
    said = PermanentError("The answer says that it is an error.")
    said.said = "no permission for b"
    _, task = lab.start({"b": Step(failure=said)}, batch_size=2, on_error="null", details=True, show_keys=show_keys)
    task.admit("a", "b")
    await task.end()
    assert task.values == ["va", None]
    more = " (the source said: no permission for b)" if show_keys else "."
    assert task.left[1].error == f"PermanentError: The answer says that it is an error{more}"


@pytest.mark.parametrize("fails", ["the call", "each key"])
async def test_what_the_source_said_is_told_once_and_only_to_who_may_see_keys(lab: Lab, fails: str) -> None:
    """A connector may keep one error for all keys, and raise it for runs of different users."""
    error = PermanentError("refused.")
    error.said = "no such user: ann"
    step = Step(error=error) if fails == "the call" else Step(failure=error)
    for show_keys, told in [(True, "refused (the source said: no such user: ann)"), (False, "refused."), (True, None)]:
        _, task = lab.start(otherwise=step, batch_size=3, on_error="null", show_keys=show_keys)
        task.admit("a", "b", "c")
        await task.end()
        told = told or "refused (the source said: no such user: ann)"
        assert [row.error for row in task.left] == [f"PermanentError: {told}"] * 3
    assert str(error) == "refused."


@pytest.mark.parametrize(
    ("show_keys", "text"), [(False, "ValueError"), (True, "ValueError: no account redis://***@host")]
)
async def test_the_text_of_an_exception_that_is_not_ours_stays_in_the_worker(
    lab: Lab, show_keys: bool, text: str
) -> None:
    wrong: Any = ValueError("no account redis://app:S3cret@host")
    script = {"a": Step(failure=wrong), "b": Step(error=wrong)}
    _, task = lab.start(script, on_error="null", max_fallback_ratio=1.0, show_keys=show_keys)
    task.admit("a", "b", "c")
    await task.end()
    assert [row.error for row in task.left] == [
        f"PermanentError: the connector returned {text}",
        f"PermanentError: the connector raised {text}",
        None,
    ]
