"""A source that is away: keys wait, attempts and clocks stand still, probes ask one at a time, and calls ramp up."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.deadlines import Deadlines
from enrichkit.engine.limits import RetryBudget
from enrichkit.engine.records import Lookup
from enrichkit.engine.retries import REFUSALS_MAX
from enrichkit.errors import LookupFailedError, PermanentError, SourceStalledError, TransientError, UnavailableError
from enrichkit.options import Retry, default
from enrichkit.outcome import Outcomes
from enrichkit.testing.scripted import Script, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .bench import Lab, Task

REFUSED = UnavailableError("refused")
UNSENT = UnavailableError("refused", sent=False)
LATENCY = 0.1


def away(start: float, end: float, *, latency: float = LATENCY, error: BaseException = REFUSED) -> Script:
    """A source that takes *latency* for an answer, and refuses each call at once from loop time *start* to *end*."""

    def step(key: Any, times: int) -> Step:
        if start <= asyncio.get_running_loop().time() < end:
            return Step(error=error)
        return Step(after=latency)

    return step


async def test_a_source_that_is_away_costs_no_row_no_attempt_and_no_token(lab: Lab) -> None:
    server, task = lab.start(away(1.0, 21.0), capacity=10, timeout=2.0, retry=Retry(attempts=2), details=True)
    task.admit_each(*range(300))
    await task.end()
    assert [row.value for row in task.left] == [f"v{n}" for n in range(300)]
    assert {row.attempts for row in task.left} == {1}
    assert lab.engines[0].retry_budget.tokens == RetryBudget.SIZE
    assert (task.run.stats.outages, task.run.stats.retries) == (1, 0)
    assert task.run.stats.away == pytest.approx(20.5, abs=0.7)
    assert len(server.calls) == 300 + task.run.stats.returned


async def test_one_call_at_a_time_asks_whether_a_source_is_back(lab: Lab) -> None:
    """The waits double from 50 ms to a second, with jitter in their second half."""
    server, task = lab.start(away(1.0, 21.0), capacity=10, timeout=2.0)
    task.admit_each(*range(300))
    await task.end()
    probes = [seen.started for seen in server.calls if 1.0 <= seen.started < 21.0]
    # Of the first wait no more is known than that the first failures lie before it.
    waits = [later - earlier for earlier, later in pairwise(probes) if later > earlier]
    for n, wait in enumerate(waits[-20:]):
        assert 0.5 <= wait <= 1.01, f"wait {n} is {wait:g} s"
    assert len(probes) - 10 <= 2 * 20
    assert 0.02 <= waits[0] <= 0.06


async def test_a_probe_that_hangs_does_not_keep_the_next_ones_from_asking(lab: Lab) -> None:
    """Two servers behind one address: one is back, and the other one takes each call and never answers."""

    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        if 1.0 <= now < 2.0:
            return Step(error=REFUSED)
        hangs = 2.0 <= now < 5.0 and sum(seen.started >= 2.0 for seen in server.calls) <= 2
        return Step(never=True) if hangs else Step(after=LATENCY)

    server, task = lab.start(step, capacity=10, timeout=20.0, attempt_timeout=3.0)
    task.admit_each(*range(300))
    await task.end()
    assert task.values == [f"v{n}" for n in range(300)]
    first, second, third = [seen.started for seen in server.calls if seen.started >= 2.0][:3]
    assert (second - first, third - second) == pytest.approx((1.0, 1.0), abs=0.051)  # as often as a slot looks
    assert task.run.stats.away == pytest.approx(third + LATENCY - 1.0, abs=0.1)


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_source_that_is_away_is_asked_no_earlier_than_it_asks_for(lab: Lab, how: str) -> None:
    busy = UnavailableError("unavailable", retry_after=3.0)

    def step(key: Any, times: int) -> Step:
        if asyncio.get_running_loop().time() < 20.0:
            return Step(error=busy) if how == "raised" else Step(failure=busy)
        return Step(after=LATENCY)

    server, task = lab.start(step, capacity=1, timeout=2.0)
    task.admit_each(*range(10))
    await task.end()
    assert task.values == [f"v{n}" for n in range(10)]
    probes = [seen.started for seen in server.calls if seen.started < 20.0]
    assert len(probes) > 5
    assert min(later - earlier for earlier, later in pairwise(probes)) > 2.999, probes


@pytest.mark.parametrize("waits", [(None, 30.0), (30.0, None)])
async def test_the_longest_wait_that_a_call_names_counts_for_all_its_keys(lab: Lab, waits: Sequence[float]) -> None:
    def step(key: Any, times: int) -> Step:
        if asyncio.get_running_loop().time() < 20.0:
            return Step(failure=UnavailableError("unavailable", retry_after=waits[key]))
        return Step(after=LATENCY)

    server, task = lab.start(step, capacity=2, batch_size=2, timeout=10.0)
    task.admit(0, 1)
    await task.end()
    assert task.values == ["v0", "v1"]
    assert [seen.started for seen in server.calls] == pytest.approx([0.0, 30.0], abs=0.1)


@pytest.mark.parametrize("given", ["30", "soon", 10**400, float("nan"), -1.0])
@pytest.mark.parametrize("kind", [TransientError, UnavailableError])
async def test_a_wait_that_is_no_number_of_seconds_harms_no_task(lab: Lab, kind: Any, given: Any) -> None:
    def step(key: Any, times: int) -> Step:
        return Step(error=kind("busy", retry_after=given)) if asyncio.get_running_loop().time() < 0.2 else Step()

    _, task = lab.start(step, capacity=2, timeout=None, attempt_timeout=100.0, retry=Retry(attempts=9), rate=5.0)
    task.admit_each(*range(6))
    await task.end()
    assert task.values == [f"v{n}" for n in range(6)]


async def test_after_an_outage_the_calls_double_with_each_round(lab: Lab) -> None:
    server, task = lab.start(away(1.0, 3.0), capacity=64, timeout=60.0)
    task.admit_each(*range(4000))
    await task.end()
    back = next(seen.ended for seen in server.calls if seen.started >= 3.0)
    assert back is not None
    most = [
        max(_in_flight(server, back + (n + 0.5) * LATENCY), _in_flight(server, back + (n + 0.9) * LATENCY))
        for n in range(7)
    ]
    assert most == [2, 4, 8, 16, 32, 64, 64]


async def _admit_staggered(task: Task, keys: int, slots: int) -> None:
    """Admit a slice for each of *keys* keys, so that the calls of *slots* slots start one after the other."""
    for n in range(keys):
        task.admit(n)
        if n < slots:
            await asyncio.sleep(LATENCY / slots)


def _in_flight(server: Any, moment: float) -> int:
    return sum(seen.started <= moment < seen.ended for seen in server.calls)


async def test_calls_that_a_break_ends_are_repeated_once(lab: Lab) -> None:
    """The first to fail are those after whose start others ended well: they are retried, the others put back."""
    server = lab.server()
    broken = asyncio.Event()

    def step(key: Any, times: int) -> Step:
        return Step(after=LATENCY) if broken.is_set() or times > 1 else Step(after=LATENCY, error=None)

    server.script = step
    engine = lab.engine(server, capacity=20)
    task = lab.task(engine)
    await _admit_staggered(task, 400, 20)
    await task.end()
    assert len(server.calls) == 400


async def test_a_break_of_all_connections_costs_each_call_in_flight_once(lab: Lab) -> None:
    moment = 1.05

    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        if now < moment <= now + LATENCY:
            return Step(after=moment - now, error=REFUSED)  # breaks while the call is under way
        return Step(after=LATENCY)

    server, task = lab.start(step, capacity=20)
    await _admit_staggered(task, 400, 20)
    await task.end()
    assert task.values == [f"v{n}" for n in range(400)]
    assert len(server.calls) == 420
    assert max(server.asked.values()) == 2


async def test_breaks_that_follow_each_other_cost_few_tokens(lab: Lab) -> None:
    """A call that leaves between the first failure of a break and the last one is answered, and blames nobody."""
    breaks = [1.0 + 1.5 * n for n in range(6)]

    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        for moment in breaks:
            if now < moment <= now + LATENCY:
                return Step(after=moment - now + (key % 100) / 1000, error=REFUSED)  # one by one, on a busy machine
        return Step(after=LATENCY)

    server, task = lab.start(step, capacity=100)
    await _admit_staggered(task, 8000, 100)
    await task.end()
    assert task.values == [f"v{n}" for n in range(8000)]
    assert len(server.calls) <= 8000 + 6 * 100
    assert lab.now <= 1.0 + 8000 / 100 * LATENCY + 6 * 1.0


async def test_few_calls_leave_while_answers_to_older_calls_still_come(lab: Lab) -> None:
    """The source refuses at once, and goes on to answer what it had taken before."""

    def step(key: Any, times: int) -> Step:
        refuses = 1.0 <= asyncio.get_running_loop().time() < 4.0
        return Step(after=0.002, error=REFUSED) if refuses else Step(after=LATENCY)

    server, task = lab.start(step, capacity=20)
    await _admit_staggered(task, 800, 20)
    await task.end()
    assert task.values == [f"v{n}" for n in range(800)]
    assert 1 <= sum(1.0 <= seen.started < 1.0 + 2 * LATENCY for seen in server.calls) <= 6
    assert task.run.stats.outages == 1


async def test_a_source_that_refuses_every_tenth_call_is_not_slowed_down(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        return Step(after=0.002, error=REFUSED) if key % 10 == 0 and times == 1 else Step(after=LATENCY)

    server, task = lab.start(step, capacity=20)
    task.admit_each(*range(1000))
    await task.end()
    assert task.values == [f"v{n}" for n in range(1000)]
    assert len(server.calls) <= 1100
    assert lab.now <= 1.3 * 1000 / 20 * LATENCY


async def test_a_share_of_refusals_fails_no_key_and_counts_no_attempt(lab: Lab) -> None:
    """One of five servers behind a balancer is broken: with three attempts, one of 125 keys would fail."""

    def step(key: Any, times: int) -> Step:
        return Step(after=0.01, error=REFUSED) if (key * 7 + times * 3) % 5 == 0 else Step(after=0.05)

    server, task = lab.start(step, capacity=20, details=True)
    task.admit_each(*range(1000))
    await task.end()
    assert [(row.value, row.status, row.attempts) for row in task.left] == [(f"v{n}", "ok", 1) for n in range(1000)]
    assert len(server.calls) == 1000 + task.run.stats.returned + task.run.stats.retries
    assert task.run.engine.retry_budget.tokens == RetryBudget.SIZE


async def test_a_key_that_is_refused_while_others_are_answered_fails_in_the_end(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        return Step(after=0.5, error=REFUSED) if key == "bad" else Step(after=0.1)

    server, task = lab.start(
        step, capacity=2, retry=Retry(attempts=3, wait=0.0), on_error=default("instead"), details=True
    )
    task.admit("bad")
    task.admit_each(*range(200))
    await task.end()
    assert (task.left[0].value, task.left[0].status, task.left[0].attempts) == ("instead", "error", 3)
    assert task.left[0].error == "UnavailableError: refused"
    assert server.asked["bad"] == REFUSALS_MAX + 3
    assert task.run.stats.outages == 0


async def test_a_failed_answer_for_each_key_of_a_call_is_an_outage_too(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        return Step(after=0.01, failure=REFUSED) if 0.5 <= now < 5.0 else Step(after=0.1)

    _, task = lab.start(step, capacity=4, batch_size=5, timeout=2.0, details=True)
    for n in range(0, 200, 10):
        task.admit(*range(n, n + 10))
    await task.end()
    assert [row.value for row in task.left] == [f"v{n}" for n in range(200)]
    assert {row.attempts for row in task.left} <= {1, 2}, "a call that failed while others were answered counts"
    assert task.run.stats.outages == 1


async def test_other_trouble_continues_an_outage_but_begins_none(lab: Lab) -> None:
    busy = TransientError("busy")

    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        return Step(error=REFUSED if now < 1.5 else busy) if 1.0 <= now < 9.0 else Step(after=0.1)

    _, task = lab.start(step, capacity=4, timeout=2.0, details=True)
    task.admit_each(*range(100))
    await task.end()
    assert {(row.status, row.attempts) for row in task.left} == {("ok", 1)}

    _, other = lab.start(otherwise=Step(error=busy), retry=Retry(attempts=3, wait=0.0), on_error="null")
    other.admit("a")
    await other.end()
    assert (other.left[0].status, other.run.stats.outages) == ("error", 0)


@pytest.mark.parametrize("other", [1, 0])
async def test_a_call_whose_keys_fail_for_several_reasons_begins_no_outage(lab: Lab, other: int) -> None:
    def step(key: Any, times: int) -> Step:
        if times > 1:
            return Step()
        return Step(failure=TransientError("busy") if key == other else REFUSED)

    _, task = lab.start(step, batch_size=2, retry=Retry(attempts=2, wait=0.0), details=True)
    task.admit(0, 1)
    await task.end()
    assert [(row.value, row.attempts) for row in task.left] == [("v0", 1 + (other == 0)), ("v1", 1 + (other == 1))]
    assert task.run.stats.outages == 0


async def test_an_error_of_a_key_ends_an_outage(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        return Step(error=REFUSED) if now < 3.0 else Step(failure=PermanentError("no"))

    _, task = lab.start(step, on_error="null")
    task.admit_each(*range(8))
    await task.end()
    assert [row.status for row in task.left] == ["error"] * 8
    assert task.run.stats.outages == 1


# the clocks


@pytest.mark.parametrize("policy", [{}, {"on_timeout": "fail"}, {"details": True}, {"on_error": "null"}])
async def test_clocks_stand_still_where_a_timeout_would_fail_the_task(lab: Lab, policy: dict[str, Any]) -> None:
    """A key that had 0.4 s of its second before the outage has 0.6 s after it."""
    slow = [Step(after=0.4, error=UNSENT), Step(error=UNSENT)]

    def step(key: Any, times: int) -> Step:
        if asyncio.get_running_loop().time() < 30.0:
            return slow[min(times, 2) - 1]
        return Step(after=0.5 if key == "in time" else 0.7)

    _, task = lab.start(step, capacity=2, timeout=1.0, retry=None, max_fallback_ratio=1.0, **policy)
    task.admit("in time")
    await task.end()
    assert task.values == ["vin time"]
    assert task.left[0].at == pytest.approx(30.9, abs=0.6)

    _, late = lab.start(step, capacity=2, timeout=1.0, retry=None, on_timeout=default("late"), max_fallback_ratio=1.0)
    late.admit("too late")
    await late.end()
    assert late.values == ["vtoo late"], "the second outage is over: nothing stands still any more"


@pytest.mark.parametrize(("latency", "value"), [(0.3, "va"), (0.5, "too late")])
async def test_a_clock_goes_on_from_where_it_stood(lab: Lab, latency: float, value: str) -> None:
    """A key that had 0.6 s of its second when the outage began has 0.4 s after it."""

    back = False

    def step(key: Any, times: int) -> Step:
        nonlocal back
        if times == 1:
            return Step(after=0.6, error=REFUSED)
        back = back or (key == "probe" and asyncio.get_running_loop().time() >= 10.0)
        return Step(after=0.0 if key == "probe" else latency) if back else Step(error=REFUSED)

    server = lab.server(step)
    engine = lab.engine(server, capacity=2)
    task, other = lab.task(engine, timeout=1.0), lab.task(engine, timeout=100.0)
    task.admit("a")
    other.admit("probe")
    if value == "too late":
        with pytest.raises(LookupFailedError, match="no answer within 1 s"):
            await task.end()
    else:
        await task.end()
        assert task.values == [value]
    assert asyncio.get_running_loop().time() > 10.0


async def test_deadlines_stay_strict_where_the_user_has_named_what_a_row_gets(lab: Lab) -> None:
    """20 slots and 200 rows: ten rounds of half a second each."""
    _, task = lab.start(
        otherwise=Step(error=REFUSED), capacity=20, timeout=0.5, on_timeout="null", on_error="null",
        max_fallback_ratio=1.0, details=True,
    )  # fmt: skip
    task.admit_each(*range(200))
    await task.end()
    assert {row.status for row in task.left} == {"timeout"}
    assert {row.error for row in task.left} == {"TimeoutError: no answer within 0.5 s; last: UnavailableError: refused"}
    assert max(row.at for row in task.left) <= 6.5


async def test_a_key_whose_first_call_hangs_as_a_probe_tells_what_the_last_call_got(lab: Lab) -> None:
    """One slot: the key of the second task waits for its turn, is sent as a probe, and meets its deadline there."""

    def step(key: Any, times: int) -> Step:
        return Step(never=True) if key == "late" else Step(error=REFUSED)

    _, first = lab.start(step, capacity=1, timeout=5.0, on_timeout="null", max_fallback_ratio=1.0)
    second = lab.task(lab.engines[0], timeout=0.5, on_timeout="null", max_fallback_ratio=1.0, details=True)
    first.admit_each("early")
    await asyncio.sleep(0.01)
    second.admit_each("late")
    await second.end()
    (row,) = second.left
    assert (row.status, row.attempts) == ("timeout", 1)
    assert row.error == "TimeoutError: no answer within 0.5 s; last: UnavailableError: refused"


async def test_a_pause_beyond_stall_timeout_is_in_the_message(lab: Lab) -> None:
    busy = Step(error=UnavailableError("The service answered 429.", retry_after=45.0))
    _, task = lab.start(otherwise=busy, timeout=3.0, stall_timeout=12.0)
    task.admit("a", "b")
    with pytest.raises(SourceStalledError) as caught:
        await task.end()
    assert lab.now < 14.0
    assert re.search(
        r"The last call got: The service answered 429\. It asked to be left alone for 45 s\. 2 rows wait\.",
        str(caught.value),
    )


@pytest.mark.parametrize("took", [0.1, 5.0])
async def test_a_pause_of_a_whole_stall_timeout_is_waited_for(lab: Lab, took: float) -> None:
    """GitHub asks for a minute where calls come too fast."""
    busy = Step(error=UnavailableError("The service answered 429.", retry_after=60.0))
    server, task = lab.start({"a": [busy, Step(after=took)]}, otherwise=Step(after=took), capacity=1)
    await lab.at(100.0)
    task.admit("a", "b")
    await task.end()
    assert task.values == ["va", "vb"]
    assert 160.0 <= server.calls[1].started <= 161.0
    assert len(server.calls) == 3


async def test_a_source_that_asks_for_one_pause_after_another_fails_the_task(lab: Lab) -> None:
    busy = Step(error=UnavailableError("The service answered 429.", retry_after=60.0))
    server, task = lab.start(otherwise=busy, capacity=1)
    task.admit("a", "b")
    with pytest.raises(SourceStalledError, match="has been away for 60 s"):
        await task.end()
    assert len(server.calls) == 2


async def test_a_named_fallback_serves_rows_for_longer_than_stall_timeout(lab: Lab) -> None:
    _, task = lab.start(
        otherwise=Step(error=REFUSED), capacity=1, timeout=1.0, on_timeout=default("instead"), max_fallback_ratio=1.0,
        stall_timeout=5.0,
    )  # fmt: skip
    task.admit_each(*range(20))
    await task.end()
    assert task.values == ["instead"] * 20
    assert task.left[-1].at > 10.0


# the end of patience, and what is seen


async def test_a_source_that_stays_away_fails_the_task_with_all_that_is_known(lab: Lab) -> None:
    _, task = lab.start(away(1.0, 1e9), capacity=10, timeout=2.0, stall_timeout=20.0)
    task.admit_each(*range(300))
    with pytest.raises(SourceStalledError) as caught:
        await task.end()
    number = len(task.left)
    assert re.fullmatch(
        r"scripted: the source has been away for 20 s, since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\. The last of \d\d "
        rf"calls that asked whether it is back got: refused\. {300 - number} rows wait\. Mend the source, or raise "
        r"stall_timeout \(20 s\)\.",
        str(caught.value),
    )


async def test_the_next_task_waits_anew(lab: Lab) -> None:
    server = lab.server(away(0.0, 15.0, error=UNSENT))
    engine = lab.engine(server, capacity=2)
    first = lab.task(engine, stall_timeout=10.0)
    first.admit("a")
    with pytest.raises(SourceStalledError):
        await first.end()
    second = lab.task(engine, stall_timeout=10.0)
    second.admit("a")
    await second.end()
    assert second.values == ["va"]


async def test_the_log_says_when_an_outage_began_and_ended(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "enrichkit"):
        _, task = lab.start(away(1.0, 3.0), capacity=10)
        task.admit_each(*range(200))
        await task.end()
    began, ended = [record.getMessage() for record in caplog.records]
    assert began == (
        "scripted: the source is away. The last call got: refused. Keys wait for at most stall_timeout, and one call "
        "at a time asks whether the source is back."
    )
    assert re.fullmatch(
        r"scripted: the source is back after \d\.\d s\. Calls to repeat: \d+, of which \d asked whether it was back\.",
        ended,
    )


async def test_a_source_that_breaks_every_second_does_not_fill_the_log(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        breaks = 1.0 <= now < 150.0 and now % 1.0 < 0.2
        return Step(error=REFUSED) if breaks or 200.0 <= now < 210.0 else Step(after=LATENCY)

    with caplog.at_level(logging.WARNING, "enrichkit"):
        _, task = lab.start(step, capacity=3)
        task.admit_each(*range(4_500))
        await task.end()
    assert task.values == [f"v{n}" for n in range(4_500)]
    outages = task.run.stats.outages
    assert outages > 120
    lines = [record.getMessage() for record in caplog.records]
    began = [line for line in lines if "is away" in line]
    assert len(began) == len(lines) - len(began) == 4  # at the start, twice a minute later, and the long outage
    told = [int(line.rpartition("logged: ")[2].rstrip(".")) if "Shorter" in line else 0 for line in began]
    assert told[0] == 0
    assert sum(told) + len(began) == outages


async def test_the_log_counts_the_calls_and_the_seconds_of_an_outage(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "enrichkit"):
        server, task = lab.start(away(1.0, 4.0, error=UnavailableError("refused by X..")), capacity=1)
        task.admit_each(*range(20))
        await task.end()
    [(since, until)] = outages = _outages(server)
    failed = sum(since <= seen.started < until - LATENCY for seen in server.calls)
    began, ended = [record.getMessage() for record in caplog.records]
    assert began == (
        "scripted: the source is away. The last call got: refused by X. Keys wait for at most stall_timeout, and one "
        "call at a time asks whether the source is back."
    )
    assert ended == (
        f"scripted: the source is back after {until - since:.1f} s. Calls to repeat: {failed}, of which {failed - 1} "
        "asked whether it was back."
    )
    assert task.run.stats.away == pytest.approx(_seconds(outages))


def _outages(server: Any) -> list[tuple[float, float]]:
    """When each outage began and ended, of a source with one slot that refuses each call at once."""
    found: list[tuple[float, float]] = []
    since = None
    for seen in server.calls:
        if seen.ended == seen.started:
            since = seen.started if since is None else since
        elif since is not None:
            found.append((since, seen.ended))
            since = None
    return found


def _seconds(outages: Sequence[tuple[float, float]]) -> float:
    return sum(until - since for since, until in outages)


async def test_for_a_minute_after_a_line_short_outages_are_counted_and_not_logged(
    lab: Lab, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """Each outage counts, also one that ends with its first probe."""
    times = [(0.0, 0.6), (10.0, 11.0), (30.0, 31.0), (70.0, 71.0), (80.0, 81.0), (90.0, 97.0)]
    brief = [UNSENT]

    def step(key: Any, times_asked: int) -> Step:
        now = asyncio.get_running_loop().time()
        if now >= 20.0 and brief:
            return Step(error=brief.pop())
        return Step(error=REFUSED) if any(start <= now < end for start, end in times) else Step(after=0.5)

    lines: list[tuple[float, str]] = []

    def note(record: logging.LogRecord) -> bool:
        lines.append((lab.now, record.getMessage()))
        return True

    caplog.handler.addFilter(note)
    request.addfinalizer(lambda: caplog.handler.removeFilter(note))
    with caplog.at_level(logging.WARNING, "enrichkit"):
        server, task = lab.start(step, capacity=1, timeout=10.0)
        task.admit_each(*range(200))
        await task.end()
    began = [(moment, line.partition("source is back.")[2]) for moment, line in lines if "is away" in line]
    counted = " Shorter outages since the last one that was logged: "
    assert [text for _, text in began] == ["", f"{counted}3.", f"{counted}1."]
    assert [moment for moment, _ in began] == pytest.approx([0.1, 70.5, 96.0], abs=1.0)
    assert len(lines) == 2 * len(began)
    outages = _outages(server)
    assert len(outages) == len(times) + 1 == task.run.stats.outages
    assert task.run.stats.away == pytest.approx(_seconds(outages))
    assert lab.engines[0].gate.outage.seconds == pytest.approx(_seconds(outages))
    assert began[-1][0] >= outages[-1][0] + 5.0, "it was a short one until then"


@pytest.mark.parametrize(("capacity", "before"), [(1, 2), (2, 2)], ids=["one key", "two keys"])
async def test_an_outage_is_logged_once_two_calls_have_failed(
    lab: Lab, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest, capacity: int, before: int
) -> None:
    """One alone may be the reason itself. A key that is alone says so with its second failure."""
    asked: list[int] = []

    def note(record: logging.LogRecord) -> bool:
        asked.append(len(server.calls))
        return True

    caplog.handler.addFilter(note)
    request.addfinalizer(lambda: caplog.handler.removeFilter(note))
    with caplog.at_level(logging.WARNING, "enrichkit"):
        server, task = lab.start(away(0.0, 3.0), capacity=capacity, timeout=100.0)
        task.admit_each(*range(capacity))
        await task.end()
    assert asked[0] == before


async def test_the_waits_between_probes_double_from_the_first(lab: Lab) -> None:
    server, task = lab.start(away(0.0, 20.0), capacity=1, timeout=2.0)
    task.admit_each(*range(10))
    await task.end()
    probes = [seen.started for seen in server.calls if seen.started < 20.0]
    for n, wait in enumerate(later - earlier for earlier, later in pairwise(probes)):
        longest = min(1.0, 0.05 * 2**n)
        assert longest / 2 <= wait + 1e-9, f"wait {n} is {wait:g} s"
        assert wait <= longest + 1e-9, f"wait {n} is {wait:g} s"


async def test_the_time_of_day_of_an_outage_is_utc(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        began = datetime.now(UTC)
        _, task = lab.start(otherwise=Step(error=UNSENT), stall_timeout=5.0)
        task.admit_each(*range(8))
        with pytest.raises(SourceStalledError) as caught:
            await task.end()
    finally:
        monkeypatch.undo()
        time.tzset()
    said = re.search(r"since (\S+ \S+) UTC\.", str(caught.value))
    assert said is not None
    assert abs(datetime.fromisoformat(f"{said[1]}+00:00") - began) < timedelta(minutes=1)


async def test_when_calls_that_left_together_are_answered_those_that_failed_are_put_off_and_nothing_ramps_up(
    lab: Lab,
) -> None:
    """The source refuses two of twenty calls: that is no outage, and no attempt."""

    def step(key: Any, times: int) -> Step:
        fails = key < 2 and times == 1
        return Step(after=0.1 + key / 100, error=REFUSED) if fails else Step(after=0.12)

    server, task = lab.start(step, capacity=20, details=True, retry=Retry(attempts=2, wait=1.0, jitter="none"))
    task.admit_each(*range(60))
    await lab.at(0.121)
    assert sum(seen.started >= 0.12 for seen in server.calls) >= 18
    await task.end()
    assert [row.attempts for row in task.left] == [1] * 60
    assert (task.run.stats.outages, task.run.stats.returned) == (0, 2)


async def test_calls_that_hang_count_among_those_that_ramp_up(lab: Lab) -> None:
    """Two probes hang, and the third is answered: one more call leaves beside the two, then two, then four."""

    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        if 1.0 <= now < 2.0:
            return Step(error=REFUSED)
        hangs = now >= 2.0 and sum(seen.started >= 2.0 for seen in server.calls) <= 2
        return Step(never=True) if hangs else Step(after=LATENCY)

    server, task = lab.start(step, capacity=10, timeout=20.0, attempt_timeout=9.0, ordered=False)
    task.admit_each(*range(300))
    await lab.at(3.0)
    await task.until(lambda: lab.engines[0].gate.outage.since is None)
    back = next(seen.ended for seen in server.calls if seen.started >= 2.0 and seen.ended)
    await lab.at(back + 0.05)
    in_flight = [server.in_flight]
    await lab.at(back + 0.15)
    in_flight.append(server.in_flight)
    await lab.at(back + 0.25)
    assert [*in_flight, server.in_flight] == [2 + 1, 2 + 2, 2 + 4]


async def test_in_doubt_one_call_leaves_each_50_ms_until_one_of_them_is_answered(lab: Lab) -> None:
    """A call fails while older ones are answered: what leaves next may meet the same."""
    latency, slots = 0.4, 20

    def step(key: Any, times: int) -> Step:
        return Step(after=0.03, error=REFUSED) if (key, times) == (25, 1) else Step(after=latency)

    server, task = lab.start(step, capacity=slots)
    for n in range(200):
        task.admit(n)
        if n < slots:
            await asyncio.sleep(latency / slots)
    await task.end()
    [failed] = [seen for seen in server.calls if seen.ended - seen.started < latency / 2]
    after = [seen.started for seen in server.calls if failed.ended < seen.started]
    waiting = [start for start in after if start < failed.started + latency]
    assert len(waiting) >= 6
    assert min(later - earlier for earlier, later in pairwise([failed.ended, *waiting])) > 0.049
    assert sum(start < failed.ended + latency + 0.1 for start in after) >= len(waiting) + slots / 2, "and then all"


async def test_a_lone_key_that_meets_other_trouble_meanwhile_may_still_be_the_reason(lab: Lab) -> None:
    _, task = lab.start(
        {"bad": [Step(error=REFUSED), Step(error=TransientError("busy"))]}, timeout=2.0, details=True, on_error="null",
        max_fallback_ratio=1.0,
    )  # fmt: skip
    task.admit("bad")
    await task.end()
    assert [(row.status, row.error) for row in task.left] == [("error", "TransientError: busy")]
    assert task.left[0].at == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize(("answer", "outages"), [(0.12, 0), (0.3, 1)], ids=["before a probe", "after a probe"])
async def test_the_failed_call_of_a_task_that_has_ended_is_blamed_for_nothing_by_an_older_answer(
    lab: Lab, caplog: pytest.LogCaptureFixture, answer: float, outages: int
) -> None:
    """Then it was the source; it is an outage when a call has asked whether the source is back."""

    def step(key: Any, times: int) -> Step:
        if key == "failed":
            return Step(after=0.1, error=REFUSED)
        now = asyncio.get_running_loop().time()
        return Step(error=REFUSED) if 70.0 <= now < 71.0 else Step(after=answer if key == 0 else 0.5)

    engine = lab.engine(lab.server(step), capacity=2)
    killed, other = lab.task(engine), lab.task(engine)
    killed.admit("failed")
    other.admit_each(0, 1, 2)
    await lab.at(0.11)
    killed.run.close()
    await lab.at(0.4)
    assert (other.run.stats.outages, other.run.stats.retries) == (outages, 0)
    await lab.at(70.0)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "enrichkit"):
        other.admit_each(*range(10, 20))
        await other.end()
    assert caplog.records[0].getMessage().endswith("the source is back."), "it counts no outage that was none"


async def test_a_failed_open_is_repeated_by_one_slot(lab: Lab) -> None:
    server = lab.server(opening=[Step(after=0.2, error=REFUSED)] * 4 + [Step()])
    engine = lab.engine(server, capacity=50)
    task = lab.task(engine, timeout=1.0)
    task.admit_each(*range(200))
    await task.end()
    assert task.values == [f"v{n}" for n in range(200)]
    assert server.opened == 5


# nodes


async def test_the_keys_of_a_node_that_is_away_wait_alone(lab: Lab) -> None:
    gone = UnavailableError("refused", retry_after=0.5, node="node b")

    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        return Step(failure=gone) if key % 3 == 0 and 1.0 <= now < 16.0 else Step(after=0.1)

    server, task = lab.start(step, capacity=4, batch_size=10, timeout=2.0, ordered=False, details=True)
    task.admit(*range(900))
    await task.end()
    assert {row.value for row in task.left} == {f"v{n}" for n in range(900)}
    assert {row.attempts for row in task.left} == {1}
    assert max(row.at for row in task.left if row.key % 3) < 5.0, "the keys of other nodes do not wait"
    assert lab.engines[0].retry_budget.tokens == RetryBudget.SIZE
    assert task.run.stats.outages == 0
    assert max(server.asked.values()) <= 2 * 15 + 1


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_call_that_finds_a_node_away_is_asked_again_when_the_node_is_back(lab: Lab, how: str) -> None:
    """No earlier than the node asks for, and its keys wait alone, although the call had raised."""
    gone = UnavailableError("refused", retry_after=3.0, node="node b")

    def step(key: Any, times: int) -> Step:
        if key == 0 and 100.0 <= asyncio.get_running_loop().time() < 105.0:
            return Step(after=0.1, error=gone) if how == "raised" else Step(after=0.1, failure=gone)
        return Step(after=0.1)

    server, task = lab.start(step, capacity=2, timeout=2.0, stall_timeout=30.0, ordered=False, details=True)
    await lab.at(100.0)
    task.admit_each(*range(40))
    await task.end()
    assert {row.key: (row.value, row.attempts) for row in task.left} == {n: (f"v{n}", 1) for n in range(40)}
    assert max(row.at for row in task.left if row.key) < 103.0, "the keys of other nodes do not wait"
    asked = [seen.started for seen in server.calls if seen.keys == (0,)]
    assert asked == pytest.approx([100.0, 103.1, 106.2], abs=0.05)
    assert (task.run.stats.outages, task.run.stats.returned, task.run.stats.retries) == (0, 2, 0)


@pytest.mark.usefixtures("no_breaker")
async def test_the_keys_of_a_node_that_is_away_are_asked_for_within_half_a_second(lab: Lab) -> None:
    gone = UnavailableError("refused", node="node b")

    def step(key: Any, times: int) -> Step:
        return Step(failure=gone) if key and asyncio.get_running_loop().time() < 20.0 else Step()

    server, task = lab.start(step, capacity=2, batch_size=3, timeout=2.0, stall_timeout=30.0)
    task.admit(0, 1, 2)
    await task.end()
    waits = [later.started - earlier.started for earlier, later in pairwise(server.calls)]
    assert max(waits) <= 0.5 + 1e-9
    assert max(waits) > 0.4
    assert task.run.stats.returned == sum(server.asked.values()) - 3


async def test_a_node_that_goes_away_late_fails_the_task_no_earlier(lab: Lab) -> None:
    gone = UnavailableError("refused by X..", node="node b")

    def step(key: Any, times: int) -> Step:
        return Step(after=0.1, failure=gone) if key == 0 else Step(after=0.1)

    _, task = lab.start(step, capacity=2, batch_size=2, timeout=2.0, stall_timeout=10.0)
    await lab.at(100.0)
    for n in range(0, 400, 2):
        task.admit(n, n + 1)
    with pytest.raises(SourceStalledError) as caught:
        await task.end()
    assert 110.0 < lab.now < 111.0
    assert str(caught.value) == (
        f"scripted: node b has been away for {lab.now - 100.1:.0f} s while others answered. The last call got: refused "
        "by X. Mend it, or raise stall_timeout (10 s)."
    )


async def test_a_row_says_that_its_node_was_away_when_the_node_then_says_nothing(lab: Lab) -> None:
    gone = UnavailableError("refused", node="node b")
    script = {"held": [Step(failure=gone), Step(never=True)]}
    _, task = lab.start(script, timeout=2.0, on_timeout="null", max_fallback_ratio=1.0, details=True)
    task.admit("held")
    await task.end()
    assert task.left[0].error == "TimeoutError: no answer within 2 s; last: UnavailableError: refused"


async def test_a_node_that_stays_away_fails_the_task(lab: Lab) -> None:
    gone = UnavailableError("refused", node="node b")

    def step(key: Any, times: int) -> Step:
        return Step(after=0.1, failure=gone) if key == 0 else Step(after=0.1)

    _, task = lab.start(step, capacity=2, batch_size=2, timeout=2.0, stall_timeout=10.0)
    task.admit(0, 1)
    for n in range(2, 400, 2):
        task.admit(n, n + 1)
    with pytest.raises(SourceStalledError) as caught:
        await task.end()
    assert re.fullmatch(
        r"scripted: node b has been away for 1\d s while others answered\. The last call got: refused\. Mend it, or "
        r"raise stall_timeout \(10 s\)\.",
        str(caught.value),
    )


async def test_a_node_is_away_no_longer_for_the_time_in_which_the_process_stood_still(lab: Lab) -> None:
    gone = UnavailableError("refused", node="node b")

    def step(key: Any, times: int) -> Step:
        if key == "still":
            return Step(block=300.0)
        return Step(failure=gone) if asyncio.get_running_loop().time() < 305.0 else Step()

    _, task = lab.start(step, capacity=2, timeout=2.0, stall_timeout=10.0)
    task.admit_each("held")
    await lab.at(3.0)
    task.admit_each("still")
    await task.end()
    assert task.values == ["vheld", "vstill"]


async def test_a_node_that_is_back_and_says_nothing_is_a_slow_source(lab: Lab) -> None:
    gone = UnavailableError("refused", node="node b")

    def step(key: Any, times: int) -> Step:
        if key != "held":
            return Step(after=0.1)
        return Step(after=0.1, failure=gone) if asyncio.get_running_loop().time() < 3.0 else Step(never=True)

    server, task = lab.start(step, capacity=2, batch_size=2, timeout=2.0)
    task.admit("held", 1)
    for n in range(2, 400, 2):
        task.admit(n, n + 1)
    with pytest.raises(LookupFailedError):
        await task.end()
    [hung] = [seen for seen in server.calls if "held" in seen.keys and seen.started >= 3.0]
    assert lab.now == pytest.approx(hung.started + 2.0, abs=0.2)


def test_a_clock_that_was_started_anew_stands_still_once() -> None:
    deadlines = Deadlines(30.0)
    [lookup] = _pending_lookups(1)
    deadlines.start([lookup], 0.0)
    deadlines.start([lookup], 5.0)
    deadlines.stand_still(10.0, 20.0)
    assert deadlines.of(lookup) == 5.0 + 30.0 + 10.0
    assert list(deadlines.expired(44.0)) == [lookup], "of the first record, whose deadline is no longer the lookup's"
    assert list(deadlines.expired(44.9)) == []
    assert list(deadlines.expired(45.0)) == [lookup]


def _pending_lookups(count: int) -> list[Lookup]:
    outcomes = Outcomes(list(range(count)), count)
    return [Lookup(key, outcomes, key) for key in range(count)]


# the budget


@pytest.mark.usefixtures("no_breaker")
async def test_retries_that_succeed_make_room_for_the_next(lab: Lab) -> None:
    """At the end of a task there is no other call that would give tokens back."""

    def step(key: Any, times: int) -> Step:
        return Step(after=LATENCY, error=TransientError("broke")) if times == 1 else Step(after=LATENCY)

    server, task = lab.start(step, capacity=100)
    task.admit_each(*range(100))
    await task.end()
    assert task.values == [f"v{n}" for n in range(100)]
    assert len(server.calls) == 200
    assert lab.now < 8.0


@pytest.mark.usefixtures("no_breaker")
async def test_an_empty_budget_delays_retries_and_fails_none(lab: Lab) -> None:
    """Every second key fails twice, far more retries than the bucket pays for; answers bring tokens back."""

    def step(key: Any, times: int) -> Step:
        return Step(after=0.1, error=TransientError("busy")) if key % 2 and times <= 2 else Step(after=0.1)

    server, task = lab.start(step, capacity=50, timeout=5.0)
    task.admit_each(*range(400))
    await task.end()
    assert task.values == [f"v{n}" for n in range(400)]
    assert sum(times == 3 for times in server.asked.values()) == 200
    assert max(row.at for row in task.left) > 5.0, "the retries waited for their tokens"


async def test_a_source_that_fails_half_of_the_keys_once_costs_no_row(lab: Lab) -> None:
    """A retry that succeeds gives back what it has cost, so that a thousand of them wait for few tokens."""

    def step(key: Any, times: int) -> Step:
        return Step(after=0.02, error=TransientError("500")) if key % 2 and times == 1 else Step(after=0.02)

    server, task = lab.start(step, capacity=100)
    task.admit_each(*range(2_000))
    await task.end()
    assert task.values == [f"v{n}" for n in range(2_000)]
    assert len(server.calls) == 3_000
    assert lab.now < 2.5, "3,000 calls of 20 ms take 0.6 s"


@pytest.mark.usefixtures("no_breaker")
async def test_a_named_value_for_errors_is_given_at_once_when_the_budget_is_empty(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        return Step(after=0.1, error=TransientError("busy")) if times == 1 else Step(after=0.1)

    _, task = lab.start(step, capacity=50, on_error=default("instead"), max_fallback_ratio=1.0)
    task.admit_each(*range(50))
    await task.end()
    assert task.values.count("instead") == 30
    assert max(row.at for row in task.left) < 1.0


@pytest.mark.usefixtures("no_breaker")
async def test_a_retry_for_which_tokens_have_come_back_meanwhile_leaves_when_its_back_off_is_over(lab: Lab) -> None:
    """The bucket pays for 20 of 21 retries at once, and 20 clean calls give four times what the last one needs."""

    def step(key: Any, times: int) -> Step:
        if key >= 21:
            return Step(after=0.1)
        return Step(error=TransientError("busy")) if times == 1 else Step(held=True)

    server, task = lab.start(step, capacity=50, retry=Retry(attempts=2, wait=1.003, jitter="none"), timeout=60.0)
    task.admit_each(*range(41))
    await lab.at(1.02)
    assert [seen.started for seen in server.calls[41:]] == pytest.approx([1.003] * 21)
    assert lab.engines[0].retry_budget.tokens == 20 - RetryBudget.RETRY
    server.release()
    await task.end()
    assert task.values == [f"v{n}" for n in range(41)]


@pytest.mark.usefixtures("no_breaker")
async def test_the_retries_of_a_task_get_their_tokens_also_when_another_task_ends_meanwhile(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        if times == 1:
            return Step(error=TransientError("busy"))
        return Step(after=30.0 if key < 100 else 0.0)  # nothing gives tokens back to the one that ends

    server = lab.server(step)
    engine = lab.engine(server, capacity=60)
    killed, other = (lab.task(engine, retry=Retry(attempts=2, wait=0.1, jitter="none")) for _ in range(2))
    killed.admit_each(*range(30))
    await lab.at(0.01)
    other.admit_each(*range(100, 110))
    await lab.at(0.12)
    killed.close()
    asked = len(server.calls)
    await other.end()
    assert other.values == [f"v{n}" for n in range(100, 110)]
    assert len(server.calls) - asked <= 10, "for the task that has ended nobody asks"
    assert lab.now < 3.0, "nor do its retries take tokens"


async def test_a_miss_is_asked_again_also_when_the_budget_is_empty(lab: Lab) -> None:
    script: Script = lambda key, times: Step(after=0.1, missing=times == 1)  # noqa: E731
    server, task = lab.start(script, capacity=50, retry=Retry(attempts=2, wait=0.0, on_missing=True), timeout=60.0)
    task.admit_each(*range(50))
    await task.end()
    assert task.values == [f"v{n}" for n in range(50)]
    assert set(server.asked.values()) == {2}


# a key that is the reason itself


async def test_a_lone_key_that_may_be_the_reason_is_in_error_after_its_timeout(lab: Lab) -> None:
    _, task = lab.start({"bad": Step(error=REFUSED)}, timeout=2.0, details=True)
    task.admit("good")
    task.admit("bad")
    await task.end()
    assert [(row.status, row.error) for row in task.left] == [("ok", None), ("error", "UnavailableError: refused")]
    assert task.left[1].at == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("wait", [None, 0.05, 1.0, 3.0])
async def test_a_lone_key_has_its_error_also_where_the_source_names_short_waits(lab: Lab, wait: float | None) -> None:
    def step(key: Any, times: int) -> Step:
        return Step(after=0.05, error=UnavailableError("busy", retry_after=wait))

    _, task = lab.start(step, timeout=10.0, stall_timeout=120.0, details=True)
    task.admit("bad")
    await task.end()
    assert [(row.status, row.error) for row in task.left] == [("error", "UnavailableError: busy")]
    assert task.left[0].at == pytest.approx(10.0, abs=0.6)


async def test_a_key_of_a_task_that_has_ended_is_blamed_for_nothing(lab: Lab) -> None:
    engine = lab.engine(lab.server({"a": Step(error=REFUSED)}, otherwise=Step(after=LATENCY)), capacity=4)
    killed, other = lab.task(engine), lab.task(engine)
    killed.admit("a")
    await asyncio.sleep(1.0)
    killed.run.close()
    other.admit_each(*range(20))
    await other.end()
    assert other.values == [f"v{n}" for n in range(20)]
    assert other.run.stats.outages == 1


async def test_a_lone_key_that_was_never_sent_is_waited_for(lab: Lab) -> None:
    _, task = lab.start(away(0.0, 20.0, error=UNSENT), timeout=2.0)
    task.admit("a")
    await task.end()
    assert task.values == ["va"]


async def test_keys_that_fail_to_the_end_of_patience_are_in_error_where_that_does_not_fail_the_task(lab: Lab) -> None:
    script = {n: Step(error=REFUSED) for n in (7, 8, 9)}
    _, task = lab.start(script, capacity=4, timeout=2.0, stall_timeout=10.0, on_error=default("instead"), details=True)
    task.admit_each(*range(10))
    await task.end()
    assert {row.error for row in task.left[7:]} == {"UnavailableError: refused"}
    assert task.values == [f"v{n}" for n in range(7)] + ["instead"] * 3
    assert task.left[-1].at == pytest.approx(10.0, abs=0.5)


async def test_a_miss_that_is_asked_for_once_more_outlives_the_end_of_patience(lab: Lab) -> None:
    """It has not failed, so it is not in error; its second answer counts."""

    def step(key: Any, times: int) -> Step:
        if key == "missed" and times == 1:
            return Step(after=0.1, missing=True)
        return Step(after=0.1) if asyncio.get_running_loop().time() > 14.0 else Step(after=0.15, error=REFUSED)

    _, task = lab.start(
        step, capacity=4, timeout=2.0, stall_timeout=10.0, on_error="null", details=True, max_fallback_ratio=1.0,
        retry=Retry(attempts=2, wait=0.2, jitter="none", on_missing=True), ordered=False,
    )  # fmt: skip
    task.admit_each("missed", *range(60))
    await task.end()
    outcomes = {row.key: (row.status, row.attempts) for row in task.left}
    assert outcomes["missed"] == ("ok", 2)
    assert [outcomes[n][0] for n in range(3)] == ["error"] * 3
    assert task.run.stats.away == pytest.approx(14.0, abs=1.5), "from its begin, although the patience began anew"


async def test_a_source_that_is_still_away_after_twice_the_patience_fails_the_task(lab: Lab) -> None:
    _, task = lab.start(
        otherwise=Step(error=REFUSED), capacity=4, timeout=2.0, stall_timeout=10.0, on_error="null",
        max_fallback_ratio=1.0,
    )  # fmt: skip
    task.admit_each(*range(100))
    with pytest.raises(SourceStalledError, match="has been away for 20 s"):
        await task.end()


@pytest.mark.parametrize("capacity", [1, 4])
async def test_one_poisoned_key_holds_no_other_key_up(lab: Lab, capacity: int) -> None:
    """While the source seems to be away, a key that has not failed asks; its answer makes the failure the key's own."""
    server, task = lab.start(
        {"bad": Step(error=REFUSED)}, otherwise=Step(after=0.1), capacity=capacity, on_error="null", details=True
    )
    task.admit("bad")
    task.admit_each(*range(40))
    await task.end()
    assert [(row.status, row.attempts) for row in task.left] == [("error", 3)] + [("ok", 1)] * 40
    assert max(row.at for row in task.left) < 40 * 0.1 / capacity + 8.0
    assert server.asked["bad"] == REFUSALS_MAX + 3
    assert task.run.stats.outages == 0


async def test_nothing_ramps_up_where_one_key_was_the_reason(lab: Lab) -> None:
    """The source was never away, so all slots go on as soon as a probe with another key is answered."""
    server, task = lab.start(
        {"bad": [Step(error=REFUSED), Step()]}, otherwise=Step(after=LATENCY), capacity=10,
        retry=Retry(attempts=2, wait=4.0, jitter="none"),
    )  # fmt: skip
    task.admit_each("bad", *range(40))
    await lab.at(0.02)
    assert (len(server.calls), server.in_flight) == (1, 0)
    await lab.at(0.16)
    assert server.in_flight == 10
    await task.end()
    assert task.run.stats.outages == 0


async def test_a_retry_that_waits_meanwhile_is_not_blamed(lab: Lab) -> None:
    """Its own failure has counted already, before an outage that was none began."""

    def step(key: Any, times: int) -> Step:
        if key == "bad":
            return Step(after=0.2, error=REFUSED)
        if key == "once":
            return Step(after=0.2, error=REFUSED) if times == 1 else Step(after=0.1)
        return Step(after=0.1)

    retry = Retry(attempts=2, wait=0.3, jitter="none")
    server, task = lab.start(step, capacity=2, retry=retry, on_error="null", details=True)
    task.admit("once")
    task.admit("early")
    await lab.at(0.25)
    task.admit("bad")
    await lab.at(0.46)
    task.admit("late")
    await task.end()
    assert {row.key: row.status for row in task.left} == {"once": "ok", "early": "ok", "bad": "error", "late": "ok"}
    assert (server.asked["once"], server.asked["late"]) == (2, 1)


async def test_a_deadline_that_passes_while_another_key_fails_is_a_timeout(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        if key == "slow":
            return Step(after=0.1, failure=TransientError("busy")) if times == 1 else Step(never=True)
        return Step(after=0.1, error=REFUSED)

    retry = Retry(attempts=3, wait=0.1, jitter="none")
    _, task = lab.start(
        step, timeout=1.0, retry=retry, on_timeout="null", on_error="null", max_fallback_ratio=1.0, details=True
    )
    task.admit("slow")
    await lab.at(0.85)
    task.admit("bad")
    await task.end()
    assert [(row.status, row.error) for row in task.left] == [
        ("timeout", "TimeoutError: no answer within 1 s; last: TransientError: busy"),
        ("error", "UnavailableError: refused"),
    ]  # fmt: skip
    assert task.left[0].at == pytest.approx(1.0, abs=0.1)


async def test_a_key_that_was_asked_again_meanwhile_is_not_blamed_for_its_late_call(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        return Step(after=0.8, error=REFUSED) if (key, times) == ("slow", 1) else Step(after=0.2)

    retry = Retry(attempts=2, wait=0.6, jitter="none")
    server, task = lab.start(
        step, capacity=2, attempt_timeout=0.3, retry=retry, on_error="null", max_fallback_ratio=1.0, details=True
    )
    task.admit("slow")
    await lab.at(0.81)
    task.admit("good")
    await task.end()
    assert [(row.key, row.status, row.attempts) for row in task.left] == [("slow", "ok", 2), ("good", "ok", 1)]
    assert server.asked == {"slow": 2, "good": 1}


# --- a source that refuses some calls while it answers others


def at_once(calls: int, latency: float) -> Callable[[float | None], Callable[[Any, int], Step]]:
    """Return a source that answers so many *calls* at once after *latency*, and refuses others at once."""

    def source(retry_after: float | None) -> Callable[[Any, int], Step]:
        ends: list[float] = []

        def step(key: Any, times: int) -> Step:
            now = asyncio.get_running_loop().time()
            ends[:] = [end for end in ends if end > now + 1e-6]  # an answer makes room for the next call
            if len(ends) >= calls:
                return Step(after=0.001, error=UnavailableError("refused", retry_after=retry_after, busy=True))
            ends.append(now + latency)
            return Step(after=latency)

        return step

    return source


def a_second(calls: float, latency: float) -> Callable[[float | None], Callable[[Any, int], Step]]:
    """Return a source that answers so many *calls* a second, a tenth of them in a burst, and refuses others at once."""

    def source(retry_after: float | None) -> Callable[[Any, int], Step]:
        tokens, then = calls / 10, 0.0

        def step(key: Any, times: int) -> Step:
            nonlocal tokens, then
            now = asyncio.get_running_loop().time()
            tokens, then = min(calls / 10, tokens + (now - then) * calls), now
            if tokens < 1.0:
                return Step(after=0.001, error=UnavailableError("refused", retry_after=retry_after, busy=True))
            tokens -= 1.0
            return Step(after=latency)

        return step

    return source


@pytest.mark.slow
@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize(
    ("source", "capacity", "per_second"),
    [
        (at_once(30, 0.05), 100, 30 / 0.05),
        (at_once(30, 0.01), 100, 30 / 0.01),
        (at_once(5, 0.05), 100, 5 / 0.05),
        (at_once(3, 0.02), 4, 3 / 0.02),
        (at_once(20, 0.2), 100, 20 / 0.2),
        (a_second(300, 0.01), 100, 300),
        (a_second(300, 0.1), 100, 300),
    ],
    ids=["30 at once", "30 at once, fast", "5 at once", "3 of 4", "20 at once, slow", "300/s", "300/s, slow"],
)
async def test_a_source_that_takes_so_many_calls_is_used_to_four_fifths(
    lab: Lab, source: Any, capacity: int, per_second: float, retry_after: float | None
) -> None:
    keys = min(30_000, int(30 * per_second))
    server, task = lab.start(source(retry_after), capacity=capacity, details=True)
    task.admit_each(*range(keys))
    await task.end()
    assert [(row.value, row.attempts) for row in task.left] == [(f"v{n}", 1) for n in range(keys)]
    assert keys / lab.now >= 0.8 * per_second
    assert task.run.stats.outages <= 1
    assert len(server.calls) <= 1.2 * keys + 2 * capacity


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.02, 0.2, 0.4])
async def test_a_source_that_refuses_a_share_of_all_calls_keeps_its_throughput(lab: Lab, share: float) -> None:
    """One of the servers behind a balancer is full; fewer calls would not help."""
    rng = random.Random(1)

    def step(key: Any, times: int) -> Step:
        if rng.random() < share:
            return Step(after=0.001, error=UnavailableError("refused", busy=True))
        return Step(after=rng.uniform(0.04, 0.06))

    _, task = lab.start(step, capacity=100, details=True)
    task.admit_each(*range(10_000))
    await task.end()
    assert [(row.value, row.attempts) for row in task.left] == [(f"v{n}", 1) for n in range(10_000)]
    assert lab.now <= 10_000 * 0.05 / 100 / (1.0 - share) / 0.6, (
        "the slot of a refused call rests as long as a call takes"
    )


@pytest.mark.parametrize("retry_after", [None, 1.0])
async def test_a_source_that_has_too_many_calls_for_anybody_is_away(lab: Lab, retry_after: float | None) -> None:
    """Each slot is refused once, and then one call at a time asks."""
    busy = UnavailableError("refused", retry_after=retry_after, busy=True)

    def step(key: Any, times: int) -> Step:
        refuses = 0.55 <= asyncio.get_running_loop().time() < 5.0
        return Step(after=0.01, error=busy) if refuses else Step(after=LATENCY)

    server, task = lab.start(step, capacity=50, details=True)
    await _admit_staggered(task, 2000, 50)
    await task.end()
    assert [(row.value, row.attempts) for row in task.left] == [(f"v{n}", 1) for n in range(2000)]
    refused = sum(0.55 <= seen.started < 5.0 for seen in server.calls)
    assert 50 <= refused <= 50 + 2 * 4.5 + 5
    assert task.run.stats.outages == 1


@pytest.mark.parametrize("took", [0.01, 0.1])
@pytest.mark.parametrize("retry_after", [None, 1.0])
async def test_a_source_that_refused_all_calls_for_a_while_has_its_throughput_back_soon(
    lab: Lab, retry_after: float | None, took: float
) -> None:
    """All calls of a round were refused because the source was away: that says nothing of how many it takes."""
    busy = UnavailableError("refused", retry_after=retry_after, busy=True)

    def step(key: Any, times: int) -> Step:
        refuses = 1.0 <= asyncio.get_running_loop().time() < 4.0
        return Step(after=took, error=busy) if refuses else Step(after=0.1)

    _, task = lab.start(step, capacity=100)
    task.admit_each(*range(10_000))
    await task.end()
    assert lab.now <= 10_000 * 0.1 / 100 + 3.0 + 2.0
