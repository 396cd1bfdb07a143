"""A deadline is the lookup's, not the connection's."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.cache import AnswerCache
from enrichkit.engine.deadlines import Sweeper
from enrichkit.errors import FatalError, PermanentError, SourceStalledError, TransientError, UnavailableError
from enrichkit.options import Retry, default
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from .bench import Lab

BUSY = Step(error=TransientError("busy"))
NEVER = Step(never=True)
SOON = {"abs": 0.11}
"""How late the sweeper may be, with time-outs of up to 2 s."""
NO_CONNECTION = Step(after=2.0, error=TransientError("no connection within 2 s", retry_after=1.0))
"""An attempt to connect in vain, so long that its rows have timed out before."""
SILENT: dict[str, Any] = {
    "capacity": 20,
    "timeout": 0.5,
    "on_timeout": "null",
    "on_error": "null",
    "max_fallback_ratio": 1.0,
    "retry": None,
}


async def test_the_clock_starts_with_the_first_slot_and_not_while_a_key_waits_for_one(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(after=8.0), capacity=1, timeout=10.0)
    task.admit_each("a", "b", "c")
    await task.end()
    assert task.values == ["va", "vb", "vc"]
    assert lab.now == pytest.approx(24.0)


async def test_a_lookup_that_takes_long_keeps_no_clocks_of_those_that_have_left(lab: Lab) -> None:
    _, task = lab.start({"slow": NEVER}, timeout=600.0, on_timeout="null", ordered=False)
    task.admit("slow")
    for number in range(3_000):
        task.admit(number)
        await task.until(lambda: len(task.left) == task.admitted - 1)
    assert len(task.run.deadlines._records) <= 1001
    assert task.left[-1].at < 600.0
    await task.end()
    assert task.left[-1].status == "timeout"
    assert task.left[-1].at == pytest.approx(600.0, **SOON)


async def test_the_clock_goes_on_during_retries_and_back_off(lab: Lab) -> None:
    server, task = lab.start(
        otherwise=Step(after=0.46, error=TransientError("busy")),
        timeout=1.0,
        on_timeout="null",
        retry=Retry(attempts=9, wait=0.1, factor=1.0, jitter="none"),
    )
    task.admit("a")
    await task.end()
    assert task.statuses == ["timeout"]
    assert task.left[0].at == pytest.approx(1.0, **SOON)
    assert server.asked["a"] == 2


@pytest.mark.parametrize(("asked", "waits"), [(30.0, 30), (3600.0, 60)])
async def test_a_retry_that_could_only_start_after_the_deadline_is_an_error_at_once(
    lab: Lab, asked: float, waits: int
) -> None:
    _, task = lab.start(
        {"a": Step(error=TransientError("busy", retry_after=asked))}, timeout=10.0, on_error="null", on_timeout="null"
    )
    task.admit("a")
    await task.end()
    why = f"(not asked again: the source asks for {waits} s, which ends after the timeout of 10 s)"
    assert [(row.status, row.error, row.at) for row in task.left] == [("error", f"TransientError: busy {why}", 0.0)]


async def test_a_back_off_that_ends_after_the_deadline_is_named_in_the_error(lab: Lab) -> None:
    retry = Retry(wait=5.0, wait_max=5.0, jitter="none")
    busy = Step(after=6.0, error=TransientError("busy."))
    _, task = lab.start({"a": busy}, timeout=10.0, retry=retry, details=True)
    task.admit("a")
    await task.end()
    assert task.left[0].error == (
        "TransientError: busy (not asked again: the back-off is 5 s, which ends after the timeout of 10 s)"
    )


async def test_a_key_of_a_group_keeps_its_deadline_when_the_others_have_their_answers(lab: Lab) -> None:
    steps = [Step(failure=TransientError("busy")), NEVER]
    for keys in ("ab", "ba", "acb"):
        _, task = lab.start({"b": steps}, batch_size=3, timeout=1.0, on_timeout="null", retry=Retry(wait=0.1))
        task.admit(*keys)
        began = lab.now
        await task.end()
        assert task.values == [None if key == "b" else f"v{key}" for key in keys]
        assert lab.now - began == pytest.approx(1.0, **SOON)


async def test_a_late_call_keeps_its_slot_and_the_next_key_waits_for_it(lab: Lab, clock: str) -> None:
    server, task = lab.start({"a": Step(held=True)}, capacity=1, timeout=0.2, on_timeout="null")
    task.admit_each("a", "b")
    await task.until(lambda: len(task.left) == 1)
    server.release()
    await task.end()
    assert task.statuses == ["timeout", "ok"]
    assert (server.peak, server.calls[0].cancelled) == (1, 0)


async def test_a_later_row_waits_for_the_late_call_of_its_key(lab: Lab, clock: str) -> None:
    server, task = lab.start({"a": Step(held=True)}, timeout=0.2, on_timeout="null")
    task.admit("a")
    await task.until(lambda: len(task.left) == 1)
    task.admit("a")
    server.release()
    await task.end()
    assert task.values == [None, "va"]
    assert server.asked["a"] == 1


async def test_a_row_that_waits_for_a_late_call_has_a_deadline_of_its_own(lab: Lab) -> None:
    server, task = lab.start({"a": NEVER}, timeout=1.0, on_timeout="null")
    for moment in (0.0, 1.5, 3.0):
        await lab.at(moment)
        task.admit("a")
    await task.end()
    assert [row.at for row in task.left] == pytest.approx([1.0, 2.5, 4.0], **SOON)
    assert server.asked["a"] == 1


@pytest.mark.parametrize(
    "step",
    [
        Step(after=1.8, error=TransientError("busy")),
        Step(after=1.8, failure=TransientError("busy")),
        Step(after=1.8, error=PermanentError("bug")),
        Step(after=1.8, error=RuntimeError("bug")),
    ],
)
async def test_a_row_whose_late_call_brings_no_answer_is_asked_afresh(lab: Lab, step: Step) -> None:
    """Its attempts are its own: the call that failed was made for another row."""
    server, task = lab.start(
        {"a": [step, BUSY, Step()]}, timeout=1.0, on_timeout="null", retry=Retry(attempts=2, wait=0)
    )
    task.admit("a")
    await lab.at(1.5)
    task.admit("a")
    await task.end()
    assert task.values == [None, "va"]
    assert server.asked["a"] == 3


async def test_a_late_miss_is_an_answer_to_the_row_that_waits_for_it(lab: Lab) -> None:
    server, task = lab.start({"a": Step(after=1.8, missing=True)}, timeout=1.0, on_timeout="null")
    task.admit("a")
    await lab.at(1.5)
    task.admit("a")
    await task.end()
    assert task.statuses == ["timeout", "missing"]
    assert server.asked["a"] == 1


async def test_the_keys_of_a_late_group_are_shared_as_well(lab: Lab) -> None:
    server, task = lab.start({"a": Step(after=1.8)}, batch_size=3, timeout=1.0, on_timeout="null")
    task.admit("a", "b", "c")
    await lab.at(1.5)
    task.admit("c", "d")
    await task.end()
    assert task.values == [None, None, None, "vc", "vd"]
    assert server.keys == [("a", "b", "c"), ("d",)]


@pytest.mark.parametrize(("timeout", "limit"), [(1.0, 6.0), (5.0, 10.0), (8.0, 16.0)])
async def test_a_call_is_cancelled_only_at_the_hard_limit(lab: Lab, timeout: float, limit: float) -> None:
    server, task = lab.start(otherwise=NEVER, timeout=timeout, on_timeout="null")
    task.admit("a")
    await lab.at(limit - 0.1)
    assert server.calls[0].cancelled == 0
    await lab.at(limit + 0.1)
    assert server.calls[0].cancelled == 1
    assert server.calls[0].ended == pytest.approx(limit, **SOON)
    assert server.calls[0].call.timeout == limit
    await task.end()


async def test_a_slot_is_free_again_after_the_hard_limit(lab: Lab) -> None:
    _, task = lab.start({"a": NEVER}, capacity=1, timeout=1.0, on_timeout="null")
    task.admit("a")
    await lab.at(6.5)
    task.admit("b")
    await task.end()
    assert task.values == [None, "vb"]


async def test_a_row_that_waits_for_a_call_at_its_hard_limit_is_asked_afresh(lab: Lab) -> None:
    server, task = lab.start({"a": [NEVER, Step(value="second call")]}, timeout=1.0, on_timeout="null")
    task.admit("a")
    await lab.at(5.5)
    task.admit("a")
    await task.end()
    assert task.values == [None, "second call"]
    assert server.asked["a"] == 2


async def test_a_key_without_a_timeout_lives_by_its_attempts(lab: Lab) -> None:
    server, task = lab.start(
        {"a": [NEVER, NEVER, Step(after=0.5)]}, timeout=None, attempt_timeout=2.0, retry=Retry(wait=0.0)
    )
    task.admit("a")
    await task.end()
    assert task.values == ["va"]
    assert [seen.started for seen in server.calls] == pytest.approx([0.0, 2.0, 4.0], abs=0.2)


async def test_a_key_without_a_timeout_fails_when_its_last_attempt_is_cancelled(lab: Lab) -> None:
    server, task = lab.start(
        otherwise=NEVER, timeout=None, attempt_timeout=2.0, on_error="null", retry=Retry(attempts=2, wait=0.0)
    )
    task.admit("a")
    await task.end()
    assert task.statuses == ["error"]
    assert task.left[0].error == "TransientError: no answer within 7 s; the call was cancelled"
    assert server.asked["a"] == 2
    assert lab.now == pytest.approx(9.0, abs=0.3)


async def test_a_frozen_source_does_not_freeze_the_task(lab: Lab) -> None:
    """200 rows, 20 at a time: as long as 10 time-outs and a bit, and few slots ask anew."""
    server, task = lab.start(
        otherwise=NEVER, capacity=20, timeout=0.5, on_timeout=default("fallback"), max_fallback_ratio=1.0
    )
    task.admit_each(*range(200))
    await task.end()
    assert task.values == ["fallback"] * 200
    assert 4.5 <= lab.now <= 10 * (0.5 + 0.1)
    assert len(server.calls) <= 20 + 10
    assert server.peak <= 20


async def test_a_frozen_source_with_groups_does_not_freeze_the_task(lab: Lab) -> None:
    server, task = lab.start(
        otherwise=NEVER, capacity=2, batch_size=10, timeout=0.5, on_timeout="null", max_fallback_ratio=1.0
    )
    task.admit(*range(100))
    await task.end()
    assert lab.now <= (5 + 1) * (0.5 + 0.1), "one round more, in which one slot asks anew"
    assert len(server.calls) <= 2 + 5


async def test_one_call_in_time_stops_the_clock_of_keys_without_a_slot(lab: Lab) -> None:
    """Nine of ten slots are frozen; the keys behind them still have their time."""
    server, task = lab.start(
        dict.fromkeys(range(9), NEVER), otherwise=Step(after=0.4), capacity=10, timeout=0.5, on_timeout="null"
    )
    task.admit_each(*range(15))
    await task.end()
    assert task.statuses == ["timeout"] * 9 + ["ok"] * 6
    assert server.calls[-1].started > 0.5


@pytest.mark.parametrize(
    ("capacity", "hung", "healthy", "latency"), [(4, 4, 100, 0.01), (4, 4, 40, 0.5), (16, 16, 400, 0.2), (1, 1, 5, 0.1)]
)
async def test_keys_that_are_never_answered_cost_no_other_key_its_time(
    lab: Lab, capacity: int, hung: int, healthy: int, latency: float
) -> None:
    """All slots are held by late calls; the oldest ones give theirs to the keys that wait."""
    server, task = lab.start(
        dict.fromkeys(range(hung), NEVER),
        otherwise=Step(after=latency),
        capacity=capacity,
        timeout=1.0,
        on_timeout="null",
        max_fallback_ratio=1.0,
    )
    task.admit_each(*range(hung + healthy))
    await task.end()
    assert task.statuses == ["timeout"] * hung + ["ok"] * healthy
    assert server.peak <= capacity
    assert len(server.calls) == hung + healthy


async def test_late_calls_give_up_their_slots_one_after_another(lab: Lab) -> None:
    """A connection is lost with each, so at most twenty do so in a second; while nothing is answered, one at a time."""
    server, task = lab.start(
        lambda key, times: Step(after=0.01) if key >= 100 or times > 1 else NEVER,
        capacity=50,
        timeout=1.0,
        on_timeout="null",
        max_fallback_ratio=1.0,
    )
    task.admit_each(*range(50), *range(100, 4100))
    await task.end()
    ended = sorted(seen.ended for seen in server.calls if seen.cancelled and seen.ended is not None)
    assert ended[0] == pytest.approx(1.1, **SOON)
    assert all(later - earlier >= 0.049 for earlier, later in pairwise(ended) if later < 6.0)


async def test_a_source_that_thaws_answers_the_keys_whose_clock_was_running(lab: Lab) -> None:
    server, task = lab.start(
        otherwise=Step(held=True), capacity=2, timeout=1.0, on_timeout="null", max_fallback_ratio=1.0
    )
    task.admit_each(*range(8))
    await lab.at(1.3)
    server.otherwise = Step(after=0.1)
    server.release()
    await task.end()
    assert task.statuses == ["timeout"] * 2 + ["ok"] * 6


async def test_a_source_that_hangs_at_the_login_does_not_freeze_the_task(lab: Lab) -> None:
    _, task = lab.start(otherwise=NO_CONNECTION, **SILENT)
    task.admit_each(*range(200))
    await task.end()
    assert task.statuses == ["timeout"] * 200
    assert lab.now <= 2 * 10 * (0.5 + 0.1)


async def test_a_frozen_source_does_not_freeze_a_task_that_is_longer_than_the_hard_limit(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(never=True), **SILENT)
    task.admit_each(*range(1000))
    await task.end()
    assert task.statuses == ["timeout"] * 1000
    assert lab.now <= 2 * 50 * (0.5 + 0.1)


async def test_a_source_that_stays_silent_fails_the_task_after_the_stall_timeout(lab: Lab) -> None:
    _, task = lab.start(otherwise=NO_CONNECTION, stall_timeout=5.0, **SILENT)
    task.admit_each(*range(5000))
    with pytest.raises(SourceStalledError):
        await task.end()
    assert lab.now <= 9.0
    assert task.statuses.count("timeout") >= 100


async def test_a_requeued_key_that_times_out_does_not_confuse_the_clocks(lab: Lab) -> None:
    """A key that attached to a late call, was queued afresh and timed out there, is none of those without a slot."""
    server, task = lab.start(
        {"a": Step(after=1.07, error=TransientError("busy", retry_after=30.0))},
        otherwise=NEVER,
        capacity=1,
        timeout=1.0,
        on_timeout="null",
        max_fallback_ratio=1.0,
    )
    task.admit("a")
    await lab.at(1.06)
    task.admit("a")
    task.admit_each(*range(5))
    await task.end()
    assert task.statuses == ["timeout"] * 7
    assert server.calls[1].started >= 31.05, "a Retry-After counts although nobody waits for that call any more"
    starts = [row.at for row in task.left if row.key in range(5)]
    assert all(later - earlier >= 0.9 for earlier, later in pairwise(starts)), (
        "capacity x batch_size is 1, so one waiting key times out at a time"
    )


async def test_late_calls_are_closed_when_all_rows_have_their_outcome(lab: Lab, clock: str) -> None:
    server, task = lab.start({"a": NEVER}, timeout=0.2, on_timeout="null")
    task.admit_each("a", "b")
    await task.end()
    await lab.close()
    assert server.calls[0].cancelled == 1
    assert server.in_flight == 0


async def test_late_calls_count_against_the_capacity(lab: Lab) -> None:
    server, task = lab.start(
        otherwise=Step(after=3.0), capacity=3, timeout=1.0, on_timeout="null", max_fallback_ratio=1.0
    )
    task.admit_each(*range(12))
    await lab.at(2.0)
    assert server.in_flight == 3
    await task.end()
    assert server.peak == 3


async def test_a_late_call_of_an_ended_task_counts_against_the_capacity(lab: Lab) -> None:
    stubborn = Step(never=True, stubborn=1)
    server, first = lab.start({"a": stubborn}, capacity=1, timeout=1.0, on_timeout="null")
    first.admit("a")
    await first.end()
    second = lab.task(lab.engines[0], timeout=1.0, on_timeout="null")
    second.admit("b")
    await lab.at(1.5)
    assert server.keys == [("a",)]
    await second.end()
    assert second.statuses == ["timeout"]


@pytest.mark.parametrize("capacity", [1, 2, 3])
async def test_calls_that_survive_their_cancellation_fail_the_task_in_the_end(lab: Lab, capacity: int) -> None:
    _, task = lab.start(
        otherwise=Step(after=40.0, stubborn=99),
        capacity=capacity,
        timeout=1.0,
        on_timeout="null",
        max_fallback_ratio=1.0,
    )
    task.admit_each(*range(60))
    text = (
        rf"^scripted: \d of {capacity} calls did not end although they were cancelled; a connector must not "
        r"swallow asyncio\.CancelledError\. Look for 'except BaseException' or blocking code in its fetch_many\.$"
    )
    with pytest.raises(FatalError, match=text):
        await task.end()
    assert 8.0 <= lab.now <= 8.5, "the hard limit is 6 s, and twice the timeout 2 s"
    await lab.at(41.0)


@pytest.mark.parametrize(("capacity", "stuck"), [(4, 2), (3, 2)])
async def test_a_task_fails_when_half_of_its_slots_are_lost_and_not_before(lab: Lab, capacity: int, stuck: int) -> None:
    _, task = lab.start(
        {key: Step(after=40.0, stubborn=99) for key in range(stuck)},
        capacity=capacity,
        timeout=1.0,
        on_timeout="null",
        max_fallback_ratio=1.0,
    )
    task.admit_each(*range(stuck - 1), "a", "b")
    await lab.at(20.0)
    assert task.statuses == ["timeout"] * (stuck - 1) + ["ok", "ok"]
    task.admit(stuck - 1)
    with pytest.raises(FatalError, match=f"^scripted: {stuck} of {capacity} calls did not end"):
        await task.until(lambda: False)
    assert task.run.stats.zombies == stuck
    await lab.at(70.0)


async def test_calls_that_survive_their_cancellation_fail_a_task_without_a_timeout(lab: Lab) -> None:
    _, task = lab.start(
        otherwise=Step(after=40.0, stubborn=99), capacity=1, timeout=None, attempt_timeout=1.0, retry=None
    )
    task.admit("a")
    with pytest.raises(FatalError, match="1 of 1 calls did not end"):
        await task.end()
    assert 8.0 <= lab.now <= 8.5
    await lab.at(41.0)


async def test_a_call_that_swallows_its_cancellation_and_answers_is_a_late_answer(lab: Lab) -> None:
    cache = AnswerCache(60.0, 2**20, None)
    server, task = lab.start({"a": Step(after=7.0, stubborn=1)}, timeout=1.0, on_timeout="null", cache=cache)
    task.admit("a")
    await lab.at(7.5)
    assert (server.calls[0].cancelled, server.in_flight) == (1, 0)
    task.admit("a")
    await task.end()
    assert task.values == [None, "va"]
    task = lab.task(lab.engines[0])
    task.admit("b")
    await task.end()
    assert task.values == ["vb"]


@pytest.mark.parametrize("timeout", [0.001, 0.2, 3.0])
@pytest.mark.parametrize("seed", range(4))
async def test_no_lookup_is_older_than_its_timeout_allows(lab: Lab, timeout: float, seed: int) -> None:
    """The promise: timeout + max(100 ms, 10 %) after the first slot, whatever the source does."""
    rng = random.Random(seed)

    def script(key: int, times: int) -> Step:
        answer = random.Random(f"{seed} {key} {times}")
        kind = answer.choice(["value", "value", "never", "busy", "stubborn", "block", "poison"])
        after = timeout * answer.choice([0.0, 0.5, 0.99, 1.0, 1.01, 1.7])
        return {
            "value": Step(after=after),
            "never": NEVER,
            "busy": Step(after=after, error=TransientError("busy")),
            "stubborn": Step(after=max(2 * timeout, timeout + 5.0) + timeout, stubborn=1),
            "block": Step(block=min(0.01, timeout / 10)),
            "poison": Step(after=after, error=PermanentError("poison")),
        }[kind]

    _, task = lab.start(
        script,
        capacity=16,
        batch_size=rng.choice([1, 4]),
        timeout=timeout,
        attempt_timeout=rng.choice([None, timeout / 3]) if timeout > 0.01 else None,
        details=True,
        max_fallback_ratio=1.0,
        stall_timeout=3000.0,
    )
    for start in range(0, 60, 6):
        task.admit(*range(start, start + 6))
        await lab.at(lab.now + timeout * rng.random())
    await task.end()
    assert len(task.left) == 60
    assert max(row.latency for row in task.left) <= timeout + max(0.1, timeout / 10)
    for row in task.left:
        assert (row.status, row.value) in {("ok", f"v{row.key}"), ("timeout", None), ("error", None)}


async def test_the_time_for_which_the_process_stood_still_counts_for_nobody(lab: Lab) -> None:
    """An answer that came meanwhile is in time, and a key that still waits has the rest of its timeout."""
    script = {"a": NEVER, "b": Step(after=0.9), "c": Step(block=300.0)}
    server, task = lab.start(script, capacity=3, timeout=1.0, attempt_timeout=0.95, on_timeout="null", details=True)
    task.admit_each("a", "b", "c")
    await task.end()
    assert [(row.status, row.attempts) for row in task.left] == [("timeout", 2), ("ok", 1), ("ok", 1)]
    assert task.left[0].at == pytest.approx(301.0, **SOON)
    assert server.asked["b"] == 1


async def test_an_outage_is_no_longer_for_the_time_in_which_the_process_stood_still(lab: Lab) -> None:
    def step(key: Any, times: int) -> Step:
        now = asyncio.get_running_loop().time()
        if now >= 75.0:
            return Step()
        return Step(block=70.0) if 2.0 <= now < 3.0 else Step(error=UnavailableError("refused"))

    _, task = lab.start(step, stall_timeout=10.0)
    task.admit_each("a", "b")
    await task.end()
    assert task.values == ["va", "vb"]


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_clock_of_the_machine_that_jumps_changes_no_deadline(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """An administrator or NTP sets it; the engine goes by the monotonic clock of the loop."""
    script = {0: Step(after=1.5), 1: NEVER, 2: BUSY}
    cache = AnswerCache(ttl=10.0, max_bytes=1000, missing_ttl=10.0)
    server, task = lab.start(
        script, timeout=2.0, on_timeout="null", on_error="null", max_fallback_ratio=1.0, cache=cache
    )
    task.admit_each(0, 1, 2)
    await lab.at(0.01)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + jump)
    await lab.at(2.5)
    assert [(row.key, row.status) for row in task.left] == [(0, "ok"), (1, "timeout"), (2, "error")]
    assert task.left[1].at == pytest.approx(2.0, **SOON)
    task.admit(0)  # the cache does not forget either
    await task.end()
    assert (task.left[-1].value, server.asked[0]) == ("v0", 1)


async def test_late_answers_are_counted(lab: Lab) -> None:
    script = {n: Step(after=2.0 + n / 10) for n in range(3)}
    _, task = lab.start(script, capacity=6, timeout=1.0, on_timeout="null")
    task.admit_each(*range(6))
    await lab.at(5.0)
    assert task.statuses == ["timeout"] * 3 + ["ok"] * 3
    assert task.run.stats.late == 3
    await task.end()


class ByHand:
    """An event loop whose time and turns the test moves by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], Any]] = []
        self.timer: Callable[[], Any] | None = None

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        self.soon.append(partial(callback, *args))

    def call_later(self, delay: float, callback: Callable[[], Any]) -> None:
        self.timer = callback

    def turn(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()


def test_a_stop_between_the_timer_and_the_sweep_counts_for_nobody() -> None:
    loop = ByHand()
    swept: list[float] = []
    gaps: list[tuple[float, float]] = []
    sweeper = Sweeper(loop, lambda now: not swept.append(now), lambda since, until: gaps.append((since, until)))  # type: ignore[arg-type, func-returns-value]
    sweeper.wake()
    loop.now = 0.05
    assert loop.timer is not None
    loop.timer()
    loop.turn()
    loop.now = 20.0  # the process was stopped
    loop.turn()
    assert (swept, gaps) == ([], [(0.05, 20.0)])
    loop.now = 20.05
    loop.timer()
    loop.turn()
    loop.turn()
    assert (swept, gaps) == ([20.05], [(0.05, 20.0)])
