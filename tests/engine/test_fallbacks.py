"""What a row gets when a fallback has to be asked: a function of the key, or another source."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.engine import admission
from enrichkit.engine.bridge import Bridge
from enrichkit.engine.cache import AnswerCache
from enrichkit.engine.engine import Engine
from enrichkit.engine.fallback import Fallback
from enrichkit.engine.loop import LoopThread
from enrichkit.engine.run import Run
from enrichkit.errors import FatalError, LookupFailedError, PermanentError, TooManyFallbacksError, TransientError
from enrichkit.options import Options, Retry, default
from enrichkit.outcome import Outcomes
from enrichkit.sources.function_fallback import KeyFunction, KeyFunctionConfig
from enrichkit.testing import clock as virtual
from enrichkit.testing.scripted import Step
from enrichkit.values.decode import decoder

from .bench import POLICIES, Lab, Row, end_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from enrichkit.testing.scripted import ScriptedConnector

either_order = pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
NEVER = Step(never=True)
BAD = Step(error=PermanentError("poison"))
MISSING = Step(missing=True)


def function(lab: Lab, called: Callable[[Any], Any], *when: str, show_keys: bool = False, **options: Any) -> Fallback:
    """A fallback that calls a function of the key, as enrichkit makes it."""
    connector = KeyFunction(KeyFunctionConfig(function=called, show_keys=show_keys))
    options = {"retry": None, **options}
    return lab.fallback(
        connector, *when, name=f"the function {called.__name__}", capacity=connector.capacity, **options
    )


async def shout(key: Any) -> str:
    return f"{key}!"


async def test_a_retry_that_is_due_while_the_fallback_is_asked_leaves_the_clock_alone(lab: Lab) -> None:
    """The late call says that the source lacks the key; its second attempt was already due, and has no tokens."""
    fallback = lab.fallback(lab.server(otherwise=Step(value="instead", after=0.6)), "on_missing")
    retry = Retry(attempts=3, wait=0.3, jitter="none")
    source, task = lab.start(
        otherwise=Step(missing=True, after=0.25),
        fallbacks=[fallback],
        on_missing="backup",
        timeout=5.0,
        attempt_timeout=0.1,
        retry=retry,
        details=True,
    )
    task.run.engine.retry_budget.tokens = 0
    outcomes = task.admit("a")
    await task.end()
    assert task.values == ["instead"]
    assert outcomes.details is not None
    assert outcomes.details.latencies == [pytest.approx(0.85)]
    assert dict(source.asked) == {"a": 1}


# --- a function of the key


async def test_the_function_of_the_option_is_called_with_the_key(lab: Lab) -> None:
    """T19: testTimeoutMethodOverloadResolvesToMatchingSignature."""

    def of(option: str) -> Callable[[Any], Awaitable[Any]]:
        async def answer(key: Any, more: str = option) -> tuple[str, Any]:
            return more, key

        return answer

    options = ("on_timeout", "on_error", "on_missing")
    rejected = Step(failure=PermanentError("no"), rejected=True)
    _, task = lab.start(
        {1: NEVER, 2: BAD, (3, "b"): MISSING, 4: rejected},
        timeout=1.0,
        fallbacks=[function(lab, of(option), option) for option in options],
        details=True,
        **dict.fromkeys(options, shout),
    )
    task.admit(0, 1, 2, (3, "b"), 4)
    await task.end()
    expected = {
        0: ("ok", "v0", "call"),
        1: ("timeout", ("on_timeout", 1), "fallback"),
        2: ("error", ("on_error", 2), "fallback"),
        (3, "b"): ("missing", ("on_missing", (3, "b")), "fallback"),
        4: ("rejected", ("on_error", 4), "fallback"),
    }
    assert expected == {row.key: (row.status, row.value, row.origin) for row in task.left}
    assert [1, 1, 1, 1, 1] == [row.attempts for row in task.left]
    assert "TimeoutError: no answer within 1 s" == task.left[1].error
    assert task.left[3].error is None


async def test_the_error_of_a_function_is_the_rows_error(lab: Lab) -> None:
    """T9: testTimeoutFetcherThrowsException."""

    async def stumble(key: Any) -> None:
        raise KeyError(key)

    _, task = lab.start(
        otherwise=NEVER, timeout=1.0, fallbacks=[function(lab, stumble, "on_timeout")], on_timeout=stumble, details=True
    )
    task.admit("a")
    await task.end()
    assert (None, "timeout", "call") == (task.left[0].value, task.left[0].status, task.left[0].origin)
    line = stumble.__code__.co_firstlineno + 1
    assert task.left[0].error == (
        f"PermanentError: the function raised KeyError at test_fallbacks.py, line {line}, in stumble: raise "
        "KeyError(key) (in the function stumble, after: TimeoutError: no answer within 1 s)"
    )


@pytest.mark.parametrize(
    ("show_keys", "words"), [(False, "raised ValueError"), (True, "raised ValueError: no a in redis://***@host")]
)
async def test_a_function_that_fails_fails_the_task(lab: Lab, show_keys: bool, words: str) -> None:
    async def stumble(key: Any) -> None:
        raise ValueError(f"no {key} in redis://me:hunter2@host")

    fallback = function(lab, stumble, "on_missing", show_keys=show_keys)
    _, task = lab.start({"a": MISSING}, fallbacks=[fallback], on_missing=stumble, show_keys=True)
    task.admit("a")
    line = stumble.__code__.co_firstlineno + 1
    text = (
        "scripted: the lookup of key 'a' failed after 1 of 3 attempts and TIME s: PermanentError: the function WORDS "
        f'at test_fallbacks.py, line {line}, in stumble: raise ValueError(f"no {{key}} in redis://***@host") (in the '
        "function stumble, after: the source does not hold the key). "
        "The task fails because on_error is 'fail'; on_error='null' or on_error=default(value) keeps the row."
    )
    pattern = re.escape(text.replace("WORDS", words)).replace("TIME", r"[\d.e-]+")
    with pytest.raises(LookupFailedError, match=f"^{pattern}$"):
        await task.end()


async def test_a_function_that_never_returns_ends_with_its_own_timeout(lab: Lab) -> None:
    """T11: testTimeoutNotCompletingFutureFailsFast. One that returns None gives a null, as default(None) does."""

    async def hang(key: Any) -> None:
        if key == "a":
            await asyncio.Event().wait()

    fallback = function(lab, hang, "on_timeout", timeout=2.0)
    _, task = lab.start(otherwise=NEVER, timeout=1.0, fallbacks=[fallback], on_timeout=hang, details=True)
    task.admit("a", "b")
    await task.end()
    assert task.left[0].error == (
        "TimeoutError: no answer within 2 s (in the function hang, after: TimeoutError: no answer within 1 s)"
    )
    assert [(None, "call"), (None, "fallback")] == [(row.value, row.origin) for row in task.left]
    assert 3.0 <= lab.now <= 3.3


async def test_an_answer_of_the_wrong_type_is_that_rows_error(lab: Lab) -> None:
    async def odd(key: int) -> Any:
        return "seven" if key == 7 else key

    fallback = function(lab, odd, "on_missing", decode=decoder(pa.int64(), "python"))
    _, task = lab.start(otherwise=MISSING, fallbacks=[fallback], on_missing=odd, details=True)
    task.admit(6, 7, 8)
    await task.end()
    assert [6, None, 8] == task.values
    assert ["missing", "error", "missing"] == task.statuses
    assert re.fullmatch(
        r"PermanentError: The value does not fit the declared type bigint: it is of type str; .* "
        r"\(in the function odd, after: the source does not hold the key\)",
        str(task.left[1].error),
    )


@pytest.mark.parametrize("error", [FatalError("it is over"), SystemExit("it is over")])
async def test_a_function_may_end_the_task(lab: Lab, error: BaseException) -> None:
    async def end(key: Any) -> None:
        raise error

    fallback = function(lab, end, "on_missing")
    _, task = lab.start(otherwise=MISSING, fallbacks=[fallback], on_missing=end, on_error="null", details=True)
    task.admit("a")
    with pytest.raises(FatalError):
        await task.end()


def real(lab: Lab, scene: Callable[[], Awaitable[None]]) -> None:
    """Run *scene* in real time: threads have no virtual one."""

    async def whole() -> None:
        try:
            await scene()
        finally:
            await lab.close()

    asyncio.run(whole())


def test_a_function_that_blocks_holds_up_nobody_else(lab: Lab) -> None:
    released = threading.Event()

    def block(key: Any) -> str:
        assert released.wait(20.0)
        return threading.current_thread().name.partition("_")[0]

    async def scene() -> None:
        fallback = function(lab, block, "on_missing", timeout=30.0)
        _, task = lab.start({"a": MISSING}, fallbacks=[fallback], on_missing=block, ordered=False)
        task.admit("a", "b")
        await task.until(lambda: task.keys == ["b"])
        task.admit("c")
        await task.until(lambda: task.keys == ["b", "c"])
        released.set()
        await task.end()
        assert ["vb", "vc", "enrichkit-function"] == task.values

    real(lab, scene)


def test_a_function_that_blocks_for_ever_costs_its_row_and_its_thread(lab: Lab) -> None:
    released = threading.Event()

    def block(key: int) -> int:
        if key == 0:
            released.wait(20.0)
        return key

    async def scene() -> None:
        fallback = function(lab, block, "on_missing", timeout=0.2)
        _, task = lab.start(otherwise=MISSING, fallbacks=[fallback], on_missing=block, details=True)
        task.admit(*range(50))
        await task.end()
        assert [None, *range(1, 50)] == task.values
        assert ["error", *["missing"] * 49] == task.statuses
        assert "TimeoutError: no answer within 0.2 s" in str(task.left[0].error)

    try:
        real(lab, scene)
    finally:
        released.set()


def test_a_plain_function_may_return_what_is_awaited_and_raise_anything(lab: Lab) -> None:
    def odd(key: int) -> Any:
        if key == 1:
            raise StopIteration
        return shout(key) if key == 2 else key

    async def scene() -> None:
        fallback = function(lab, odd, "on_missing", timeout=20.0)
        _, task = lab.start(otherwise=MISSING, fallbacks=[fallback], on_missing=odd, details=True)
        task.admit(0, 1, 2)
        await task.end()
        assert [0, None, "2!"] == task.values
        assert str(task.left[1].error).startswith(
            "PermanentError: the function raised StopIteration at test_fallbacks.py, line "
        )

    real(lab, scene)


# --- another source


async def test_another_source_answers_for_the_first_in_its_own_groups(lab: Lab) -> None:
    backup = lab.server(otherwise=Step(after=0.1))
    fallback = lab.fallback(backup, "on_timeout", "on_missing", capacity=2, batch_size=3)
    server, task = lab.start(
        dict.fromkeys(range(8), MISSING) | {8: NEVER, 9: NEVER},
        capacity=20,
        timeout=1.0,
        fallbacks=[fallback],
        on_timeout="backup",
        on_missing="backup",
        details=True,
    )
    task.admit(*range(11))
    await task.end()
    assert [f"v{n}" for n in range(11)] == task.values
    assert [*["missing"] * 8, "timeout", "timeout", "ok"] == task.statuses
    assert [*["fallback"] * 10, "call"] == [row.origin for row in task.left]
    assert dict.fromkeys(range(10), 1) == backup.asked
    assert max(map(len, backup.keys)) == 3
    assert backup.peak == 2
    assert dict.fromkeys(range(11), 1) == server.asked


async def test_the_clock_of_a_fallback_is_its_own(lab: Lab) -> None:
    fallback = lab.fallback(lab.server(otherwise=Step(after=1.9)), "on_timeout", timeout=2.0)
    _, task = lab.start(otherwise=NEVER, timeout=1.0, fallbacks=[fallback], on_timeout="backup", details=True)
    task.admit("a")
    await task.end()
    assert ["va"] == task.values
    assert lab.now == pytest.approx(2.9, abs=0.2)
    assert task.left[0].latency == pytest.approx(lab.now)


@pytest.mark.parametrize(
    ("on_missing", "value"), [("null", None), (default("d"), "d"), ("backup", None)], ids=["null", "default", "backup"]
)
async def test_what_a_fallback_does_not_hold_is_missing(lab: Lab, on_missing: Any, value: Any) -> None:
    when = ("on_timeout", "on_missing") if on_missing == "backup" else ("on_timeout",)
    fallback = lab.fallback(lab.server(otherwise=MISSING), *when)
    _, task = lab.start(
        otherwise=NEVER, timeout=1.0, fallbacks=[fallback], on_timeout="backup", on_missing=on_missing, details=True
    )
    task.admit("a")
    await task.end()
    row = task.left[0]
    assert (value, "timeout", "fallback") == (row.value, row.status, row.origin)
    assert "TimeoutError: no answer within 1 s; backup has nothing for the key" == row.error


async def test_what_no_source_holds_is_missing_and_no_error(lab: Lab) -> None:
    fallback = lab.fallback(lab.server(otherwise=MISSING), "on_missing")
    _, task = lab.start(otherwise=MISSING, fallbacks=[fallback], on_missing="backup", details=True)
    task.admit("a")
    await task.end()
    assert (None, "missing", None, "fallback") == (*task.left[0][1:4], task.left[0].origin)


async def test_a_miss_of_the_fallback_fails_the_task_when_a_miss_does(lab: Lab) -> None:
    fallback = lab.fallback(lab.server(otherwise=MISSING), "on_error")
    _, task = lab.start(otherwise=BAD, fallbacks=[fallback], on_error="backup", on_missing="fail", show_keys=True)
    task.admit("a")
    text = re.escape(
        "scripted: the lookup of key 'a' found nothing after 1 attempt and 0 s: PermanentError: poison; backup has "
        "nothing for the key. The task fails because on_missing is 'fail'; on_missing='null' or "
        "on_missing=default(value) keeps the row."
    ).replace(r"and\ 0\ s", r"and [\d.e-]+ s")
    with pytest.raises(LookupFailedError, match=f"^{text}$"):
        await task.end()


DOWN = Step(error=TransientError("refused"))
SAID = "TransientError: refused (in backup, after: "


@pytest.mark.parametrize(("on_error", "value"), [("null", None), (default("d"), "d")], ids=["null", "default"])
async def test_what_on_error_says_holds_for_a_fallback_that_fails(lab: Lab, on_error: Any, value: Any) -> None:
    fallback = lab.fallback(lab.server(otherwise=DOWN), "on_timeout", "on_missing", retry=None)
    _, task = lab.start(
        {"slow": NEVER, "none": MISSING},
        timeout=1.0,
        fallbacks=[fallback],
        on_timeout="backup",
        on_missing="backup",
        on_error=on_error,
        details=True,
    )
    task.admit("slow", "none", "good")
    await task.end()
    assert [value, value, "vgood"] == task.values
    origin = "call" if value is None else "fallback"
    expected = [
        ("timeout", f"{SAID}TimeoutError: no answer within 1 s)", origin),
        # That nobody holds the key is not known, so the row is no miss.
        ("error", f"{SAID}the source does not hold the key)", origin),
        ("ok", None, "call"),
    ]
    assert expected == [(row.status, row.error, row.origin) for row in task.left]
    stats = task.run.stats
    assert (1, 0, 1, 1) == (stats.ok, stats.missing, stats.timeouts, stats.errors)


async def test_a_fallback_that_fails_goes_on_to_that_of_on_error(lab: Lab) -> None:
    backup, last = lab.server(otherwise=DOWN), lab.server(otherwise=Step(value="last"))
    fallbacks = [
        lab.fallback(backup, "on_missing", retry=Retry(attempts=2, wait=0.1)),
        lab.fallback(last, "on_error", name="last"),
    ]
    _, task = lab.start(otherwise=MISSING, fallbacks=fallbacks, on_missing="backup", on_error="last", details=True)
    task.admit("a", "b")
    await task.end()
    assert [("last", "error", "fallback")] * 2 == [(row.value, row.status, row.origin) for row in task.left]
    assert ({"a": 2, "b": 2}, {"a": 1, "b": 1}) == (backup.asked, last.asked)


@pytest.mark.parametrize("details", [True, False], ids=["details", "no-details"])
async def test_no_fallback_is_asked_twice(lab: Lab, details: bool) -> None:
    backup = lab.server(otherwise=DOWN)
    fallback = lab.fallback(backup, "on_timeout", "on_error", retry=None)
    _, task = lab.start(
        otherwise=NEVER,
        timeout=1.0,
        fallbacks=[fallback],
        on_timeout="backup",
        on_error="backup",
        details=details,
        show_keys=True,
    )
    task.admit("a")
    if details:
        await task.end()
        assert (None, "timeout", f"{SAID}TimeoutError: no answer within 1 s)") == task.left[0][1:4]
    else:
        text = re.escape(
            f"scripted: the lookup of key 'a' failed after 1 of 3 attempts and TIME s: {SAID}TimeoutError: no answer "
            "within 1 s). The task fails because on_error names no fallback but the one that failed; mend that, or set "
            "details=True, which keeps the row."
        ).replace("TIME", r"1(\.\d+)?")
        with pytest.raises(LookupFailedError, match=f"^{text}$"):
            await task.end()
    assert {"a": 1} == backup.asked


async def test_a_fatal_error_of_a_fallback_fails_the_task(lab: Lab) -> None:
    fallback = lab.fallback(lab.server(otherwise=Step(error=FatalError("wrong password"))), "on_missing")
    _, task = lab.start(otherwise=MISSING, fallbacks=[fallback], on_missing="backup", on_error="null")
    task.admit("a")
    with pytest.raises(FatalError, match=r"^wrong password$"):
        await task.end()


# --- max_fallback_ratio


async def test_a_fallback_does_not_hide_an_outage(lab: Lab) -> None:
    """With the default of `max_fallback_ratio`."""
    fallback = function(lab, shout, "on_timeout", "on_error")
    _, task = lab.start(
        otherwise=BAD, capacity=200, batch_size=1, fallbacks=[fallback], on_timeout=shout, on_error=shout, name="users"
    )
    task.admit(*range(300))
    text = (
        "users: 100 of 100 keys timed out, failed or were refused, more than max_fallback_ratio=0.5 allows. "
        "Last: PermanentError: poison. Mend the source, or set max_fallback_ratio=1.0 to accept any number of "
        "fallbacks."
    )
    with pytest.raises(TooManyFallbacksError, match=f"^{re.escape(text)}$"):
        await task.end()


async def test_a_miss_counts_as_failed_when_its_fallback_fails(lab: Lab) -> None:
    fallback = lab.fallback(lab.server(otherwise=BAD), "on_missing")
    _, task = lab.start(
        otherwise=MISSING, batch_size=50, fallbacks=[fallback], on_missing="backup", on_error="null", name="users"
    )
    task.admit(*range(300))
    with pytest.raises(TooManyFallbacksError, match=r"^users: 151 of 300 keys timed out, failed or were refused, "):
        await task.end()


async def test_a_miss_with_a_fallback_does_not_count(lab: Lab) -> None:
    fallback = function(lab, shout, "on_missing")
    _, task = lab.start(otherwise=MISSING, fallbacks=[fallback], on_missing=shout, max_fallback_ratio=0.0)
    task.admit(*range(300))
    await task.end()
    assert [f"{n}!" for n in range(300)] == task.values


# --- rows, keys, cache, window


async def test_ordered_rows_wait_for_a_fallback_and_unordered_ones_do_not(lab: Lab) -> None:
    backup = lab.server(otherwise=Step(after=0.5))
    engine = lab.engine(lab.server({1: MISSING}))
    ordered = lab.task(engine, fallbacks=[lab.fallback(backup, "on_missing")], on_missing="backup")
    unordered = lab.task(engine, fallbacks=[lab.fallback(backup, "on_missing")], on_missing="backup", ordered=False)
    for task in (ordered, unordered):
        task.admit_each(1, 2, 3)
    await lab.at(0.1)
    assert ([], [2, 3]) == (ordered.keys, unordered.keys)
    await ordered.end()
    await unordered.end()
    assert (["v1", "v2", "v3"], ["v2", "v3", "v1"]) == (ordered.values, unordered.values)


async def test_rows_of_one_key_share_its_fallback(lab: Lab) -> None:
    backup = lab.server(otherwise=Step(after=0.1))
    _, task = lab.start(
        {"a": Step(after=0.5, missing=True)},
        fallbacks=[lab.fallback(backup, "on_missing")],
        on_missing="backup",
        details=True,
    )
    task.admit("a", counts=[3])
    task.admit("a")
    await task.end()
    assert ["va"] * 4 == task.values
    assert ["fallback"] * 4 == [row.origin for row in task.left]
    assert {"a": 1} == backup.asked


async def test_a_row_that_comes_during_the_fallback_is_a_new_lookup(lab: Lab) -> None:
    """It joins the late call, and has its answer, while the first row waits for the fallback that it was handed to."""
    backup = lab.server(otherwise=Step(after=5.0, value="from the backup"))
    server, task = lab.start(
        {"a": Step(after=1.5)},
        timeout=1.0,
        fallbacks=[lab.fallback(backup, "on_timeout", timeout=9.0)],
        on_timeout="backup",
        ordered=False,
    )
    task.admit("a")
    await lab.at(1.2)
    task.admit("a")
    await task.end()
    assert [("va", "ok"), ("from the backup", "timeout")] == [(row.value, row.status) for row in task.left]
    assert ({"a": 1}, {"a": 1}) == (server.asked, backup.asked)


async def test_two_lookups_of_a_key_share_one_call_of_the_fallback(lab: Lab) -> None:
    backup = lab.server(otherwise=Step(after=5.0))
    _, task = lab.start(
        otherwise=MISSING, fallbacks=[lab.fallback(backup, "on_missing", timeout=9.0)], on_missing="backup"
    )
    task.admit("a")
    await lab.at(1.0)
    task.admit("a")
    await task.end()
    assert ["va", "va"] == task.values
    assert {"a": 1} == backup.asked


async def test_lookups_of_a_key_that_wait_for_the_fallback_share_its_call(lab: Lab) -> None:
    """They reach its run in one slice, whose keys have to be distinct."""
    backup = lab.server(otherwise=Step(after=0.5))
    fallback = lab.fallback(backup, "on_missing", capacity=1, batch_size=3)
    _, task = lab.start(otherwise=MISSING, capacity=9, fallbacks=[fallback], on_missing="backup")
    task.admit(*range(6))
    await lab.at(0.1)
    for _ in range(3):
        task.admit("a")
        await lab.settle()
    assert "<Fallback backup: 6 asked, 3 waiting>" == repr(fallback)
    await task.end()
    assert [*(f"v{n}" for n in range(6)), "va", "va", "va"] == task.values
    assert 1 == backup.asked["a"]


async def test_what_a_fallback_says_is_not_cached_as_the_sources_answer(lab: Lab) -> None:
    cache = AnswerCache(1000.0, 2**20, None)
    backup = lab.server(otherwise=Step(after=0.25))
    server, task = lab.start(
        {"none": MISSING, "bad": BAD},
        fallbacks=[lab.fallback(backup, "on_missing", "on_error")],
        on_missing="backup",
        on_error="backup",
        cache=cache,
        details=True,
    )
    task.admit("none", "bad")
    await lab.at(1.0)
    task.admit("none", "bad")
    await task.end()
    assert ["vnone", "vbad"] * 2 == task.values
    assert {"none": 1, "bad": 2} == server.asked  # a miss is remembered, an error is not
    assert {"none": 2, "bad": 2} == backup.asked
    assert ["fallback"] * 4 == [row.origin for row in task.left]
    assert task.left[2].latency == pytest.approx(0.25)  # of a miss from the cache, it is the fallback's time
    assert len(cache) == 1


async def test_a_large_backlog_reaches_the_fallback_piece_by_piece(lab: Lab) -> None:
    """Above `window_bytes` no key is asked for while parts wait for Spark, of whichever source."""
    big = "x" * 10_000
    backup = lab.server(otherwise=Step(after=0.1, value=big))
    fallback = lab.fallback(backup, "on_missing", capacity=2)
    _, task = lab.start(
        otherwise=MISSING, capacity=50, fallbacks=[fallback], on_missing="backup", window_bytes=50_000, ordered=True
    )
    task.takes = False
    for n in range(0, 40, 4):
        task.admit(*range(n, n + 4))
    await lab.settle()
    assert len(backup.calls) == 2  # the others wait where their bytes count
    await lab.at(10.0)
    assert len(task.values) == 8, "two slices: five values fit, and two calls were in flight when the sixth was more"
    assert len(backup.calls) <= 5 + 2 + 4, "and what the fallback's run had been given before"
    task.takes = True
    await task.end()
    assert task.values == [big] * 40
    assert backup.keys == [(n,) for n in range(40)]


async def test_above_window_bytes_the_oldest_slice_comes_first(lab: Lab) -> None:
    backup = lab.server({0: Step(after=3.0, value="x" * 100)}, otherwise=Step(after=0.1, value="x" * 10_000))
    fallback = lab.fallback(backup, "on_missing", capacity=2, timeout=9.0)
    script = {0: Step(missing=True, after=0.5)}
    _, task = lab.start(
        script, otherwise=MISSING, capacity=50, fallbacks=[fallback], on_missing="backup", window_bytes=25_000
    )
    task.admit_each(*range(20))
    await lab.at(0.45)
    early = len(backup.calls)
    assert early <= 8  # the head is not yet at the fallback, and what came after it is held back
    await lab.at(3.4)
    assert (0,) in backup.keys
    assert len(backup.calls) == early + 1
    await task.end()
    assert [len(value) for value in task.values] == [100, *[10_000] * 19]
    assert dict.fromkeys(range(20), 1) == backup.asked


async def test_a_slice_that_waits_for_a_fallback_is_not_looked_at_for_every_other_key(lab: Lab) -> None:
    """A task may hold thousands of small slices, and each answer of the fallback makes room for one key of one."""

    class Watched(Outcomes):
        looks = 0

        def __hash__(self) -> int:
            Watched.looks += 1
            return id(self)

    fallback = lab.fallback(lab.server(otherwise=Step(after=0.01)), "on_missing", capacity=2)
    _, task = lab.start(otherwise=MISSING, capacity=500, fallbacks=[fallback], on_missing="backup")
    for n in range(500):
        admission.admit(task.run, Watched([n], 1, counts=[1]))
    task.admitted = 500
    await task.end()
    assert [f"v{n}" for n in range(500)] == task.values
    assert Watched.looks < 20 * 500


# --- ends


async def test_a_task_that_is_closed_ends_the_calls_of_its_fallbacks(lab: Lab) -> None:
    backup = lab.server(otherwise=NEVER)
    fallback = lab.fallback(backup, "on_missing", timeout=100.0)
    _, task = lab.start(otherwise=MISSING, fallbacks=[fallback], on_missing="backup")
    task.admit(*range(20))
    await lab.at(1.0)
    assert backup.in_flight == 4
    assert "<Fallback backup: 8 asked, 12 waiting>" == repr(fallback)
    task.close()
    await lab.at(1.1)
    assert (0, []) == (backup.in_flight, task.left)
    assert fallback.run.closed
    assert lab.engines[0].idle_since == pytest.approx(1.0)


async def test_a_failing_row_ends_the_calls_of_the_fallbacks_of_others(lab: Lab) -> None:
    backup = lab.server(otherwise=NEVER)
    fallback = lab.fallback(backup, "on_missing", timeout=100.0)
    _, task = lab.start(
        {"a": MISSING, "b": Step(after=1.0, error=PermanentError("no"))}, fallbacks=[fallback], on_missing="backup"
    )
    task.admit("a", "b")
    with pytest.raises(LookupFailedError, match="PermanentError: no"):
        await task.end()
    await lab.settle()
    assert backup.in_flight == 0
    assert 1 == backup.calls[0].cancelled


def test_a_fallback_has_an_engine_of_its_own_on_the_loop_thread(lab: Lab) -> None:
    thread = LoopThread()
    options = Options(on_missing=shout)

    def plain(raws: Any) -> Any:
        return list(raws), {}

    try:
        for broken in (False, True):

            def make_run(emit: Any, broken: bool = broken) -> Run:
                def backup() -> Engine:
                    return Engine(KeyFunction(KeyFunctionConfig(function=shout)), 1 // (not broken), seed=1)

                main = thread.engine("main", lambda: Engine(lab.server(otherwise=MISSING), 1, seed=1))
                engine = thread.engine(f"fallback {broken}", backup)
                nulls = Options(on_missing="null", on_error="null", on_timeout="null", retry=None)
                fallback = Fallback(
                    "shout",
                    ("on_missing",),
                    1,
                    lambda emit: Run(engine, "shout", nulls, plain, emit, ordered=False, seed=1),
                )
                return Run(main, "scripted", options, plain, emit, fallbacks=[fallback], seed=1)

            parts = Bridge(thread, 10, 10, "scripted", options, make_run).process([Outcomes(["a"], 1)])
            if broken:
                with pytest.raises(ZeroDivisionError):
                    next(parts)
            else:
                assert [["a!"]] == [part.outcomes.values for part in parts]
                assert {"main", "fallback False"} == set(thread.engines)
    finally:
        end_thread(thread)


# --- whatever happens


KINDS = {
    "ok": Step(after=0.1),
    "now": Step(),
    "missing": MISSING,
    "slow": Step(after=1.3),
    "never": NEVER,
    "bad": BAD,
    "rejected": Step(failure=PermanentError("no"), rejected=True),
    "down": DOWN,
    "null": Step(value=None),
}
STATUS = {"missing": "missing", "slow": "timeout", "never": "timeout", "rejected": "rejected"}


@settings(max_examples=150, deadline=None)
@given(
    kinds=st.lists(st.tuples(*[st.sampled_from(sorted(KINDS))] * 3), min_size=1, max_size=24),
    cuts=st.lists(st.integers(0, 24), max_size=4),
    policies=st.tuples(*[st.sampled_from(["null", "default", "backup", "last"])] * 3),
    ordered=st.booleans(),
    window_bytes=st.sampled_from([1024, 2**20]),
)
def test_every_row_leaves_once_with_what_its_sources_and_policies_say(
    kinds: list[tuple[str, str, str]],
    cuts: list[int],
    policies: tuple[str, str, str],
    ordered: bool,
    window_bytes: int,
) -> None:
    given_policies = dict(zip(("on_timeout", "on_error", "on_missing"), policies, strict=True))
    left = virtual.run(_story(kinds, cuts, given_policies, ordered, window_bytes))
    if ordered:
        assert list(range(len(kinds))) == [row.key for row in left]
    assert sorted(range(len(kinds))) == sorted(row.key for row in left)
    for row in left:
        assert expected_of(kinds[row.key], given_policies, row.key) == (row.status, row.value, row.origin)
        assert (row.error is None) == (row.status in ("ok", "missing"))


async def _story(
    kinds: list[tuple[str, str, str]],
    cuts: list[int],
    policies: dict[str, str],
    ordered: bool,
    window_bytes: int,
) -> list[Row]:
    lab = Lab()

    def source(which: int) -> Any:
        # Late calls in all the slots of a fallback would let the time of the others run out, too.
        steps = {
            n: KINDS["slow" if which and names[which] == "never" else names[which]] for n, names in enumerate(kinds)
        }
        values = {n: step if step.value is None else Step(**_with_value(step, which, n)) for n, step in steps.items()}
        return lab.server(values)

    fallbacks = [
        lab.fallback(
            source(which + 1),
            *[option for option, policy in policies.items() if policy == name],
            name=name,
            capacity=2,
            batch_size=1,
            retry=None,
        )
        for which, name in enumerate(("backup", "last"))
        if name in policies.values()
    ]
    try:
        _, task = lab.start(
            source(0).script,
            capacity=30,
            batch_size=1,
            timeout=1.0,
            retry=None,
            max_fallback_ratio=1.0,
            details=True,
            ordered=ordered,
            window_bytes=window_bytes,
            fallbacks=fallbacks,
            **{option: default("default") if policy == "default" else policy for option, policy in policies.items()},
        )
        marks = sorted({0, len(kinds), *(cut for cut in cuts if cut < len(kinds))})
        for start, end in pairwise(marks):
            task.admit(*range(start, end), nulls=0)
        await task.end()
        await lab.settle()
        for engine in lab.engines:
            assert engine.connector.in_flight == 0  # type: ignore[attr-defined]  # all are scripted
        return task.left
    finally:
        await lab.close()


def _with_value(step: Step, which: int, key: int) -> dict[str, Any]:
    names = ("after", "missing", "failure", "rejected", "error", "never")
    return {**{name: getattr(step, name) for name in names}, "value": f"{key} of {which}"}


def expected_of(kinds: tuple[str, str, str], policies: dict[str, str], key: int) -> tuple[str, Any, str]:
    """The outcome of a key by the rules that the documentation states: status, value, origin."""
    first = STATUS.get(kinds[0], "error")
    if kinds[0] in ("ok", "now", "null"):
        return "ok", None if kinds[0] == "null" else f"{key} of 0", "call"
    option = {"missing": "on_missing", "timeout": "on_timeout"}.get(first, "on_error")
    status, origin = first, "call"
    asked: list[str] = []
    while True:
        policy = policies[option]
        if policy == "default":
            return status, "default", "fallback"
        if policy == "null" or policy in asked:
            return status, None, origin
        asked.append(policy)
        which = ("backup", "last").index(policy) + 1
        kind = kinds[which]
        if kind in ("ok", "now", "null"):
            return status, None if kind == "null" else f"{key} of {which}", "fallback"
        if kind == "missing":
            option, origin = "on_missing", "fallback"
        else:
            option = "on_error"
            status = "error" if status == "missing" else status


@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, 100, 25)], ids=str)
def test_no_row_is_lost_whatever_the_sources_do_and_whenever_the_task_ends(seeds: range) -> None:
    """Keys come again while their fallbacks are asked, answers come late, calls fail, and some tasks are given up."""
    for seed in seeds:
        virtual.run(_weather(random.Random(seed)), seed=seed)


async def _weather(rng: random.Random) -> None:
    lab = Lab()
    values = ("of 0", "of 1", "of 2")

    def source(which: int) -> ScriptedConnector:
        def step(key: Any, times: int) -> Step:
            value, after = f"{key} {values[which]}", rng.choice([0.0, 0.1, 0.5, 1.5])
            trouble = rng.choice([DOWN, BAD, Step(failure=PermanentError("no"), rejected=rng.random() < 0.5)])
            return rng.choice([Step(after=after, value=value)] * 3 + [MISSING, MISSING, NEVER, trouble])

        return lab.server(step)

    names = ("backup", "last")
    policies = {option: rng.choice([*names, *names, "null", default("default")]) for option in POLICIES}
    fallbacks = [
        lab.fallback(source(n), *[option for option in POLICIES if policies[option] == name], name=name, capacity=3)
        for n, name in enumerate(names, 1)
    ]
    main = source(0)
    task = lab.task(
        lab.engine(main, capacity=5),
        ordered=rng.random() < 0.5,
        cache=AnswerCache(1.0, 2**20, None) if rng.random() < 0.5 else None,
        fallbacks=fallbacks,
        timeout=1.0,
        max_fallback_ratio=1.0,
        details=True,
        window_bytes=rng.choice([1024, 2**20]),
        **policies,
    )
    try:
        rows = []
        for _ in range(rng.randrange(1, 12)):
            keys = rng.sample(range(30), rng.randrange(1, 12))
            counts = [rng.randrange(1, 4) for _ in keys]
            task.admit(*keys, counts=counts, nulls=rng.randrange(2))
            rows += [key for key, count in zip(keys, counts, strict=True) for _ in range(count)]
            if rng.random() < 0.2:
                task.barrier("barrier")
            await asyncio.sleep(rng.choice([0.0, 0.3, 1.2]))
        if rng.random() < 0.3:
            task.close()
        else:
            await task.end()
            left = [row.key for row in task.left if row.status not in ("barrier", "null_key")]
            assert sorted(rows) == sorted(left)
            assert rows == left or not task.ordered
            assert ["<Fallback backup: 0 asked, 0 waiting>", "<Fallback last: 0 asked, 0 waiting>"] == list(
                map(repr, fallbacks)
            )
        for row in task.left:
            if row.status == "ok":
                assert (f"{row.key} of 0", None) == (row.value, row.error)
            elif row.status not in ("barrier", "null_key"):
                assert row.value in (None, "default", f"{row.key} of 1", f"{row.key} of 2")
                assert (row.error is None) == (row.status == "missing")
                assert row.value is None or row.origin == "fallback"
        await asyncio.sleep(0.1)
        assert [0, 0, 0] == [engine.connector.in_flight for engine in lab.engines]  # type: ignore[attr-defined]  # scripted
    finally:
        await lab.close()
