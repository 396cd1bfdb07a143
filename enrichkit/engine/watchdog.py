"""
The work of the sweeper, a periodic timer: expire lookups, retry keys of slow calls, cancel calls, fail stuck runs.

Each step is a function of its own; `sweep` calls the steps in order, once per tick.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from ..errors import FatalError, SourceStalledError
from .hedging import EngineCalls, answered_twice, hedge
from .retries import retry_late
from .returned import give_up
from .unanswered import answer_stale, expire

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .job import JobLimits
    from .opening import Opening
    from .records import InFlight
    from .run import Run

__all__ = ["stood_still", "sweep"]

GRACE = 0.1
"""A call may be late for this share of its timeout before it is cancelled to free its slot for a key that waits."""
ANSWER_MAX = 10.0
"""Most seconds that a task waits for an answer after a pause that the source asked for, even after `stall_timeout`."""
ROOM_EVERY = 0.05
"""Fewest seconds between two cancellations of late calls to free their slots; each cancellation loses a connection."""


class WatchedEngine(EngineCalls, Protocol):
    """
    The part of an engine that the sweeper reads and changes.

    Attributes:
        name: Name of the source in messages.
        capacity: Number of slots.
        allowed: How many calls may be in flight now.
        runs: The runs that are served.
        job: The engine's shares of the limits of the job.
        opening: The opening of the connector.
        silent: True from the time when a call becomes late until a call ends in time.
        cancelled: True from the time when a call is cancelled until a call ends in time.
        room_at: Loop time from which on a late call may be cancelled to give its slot to a key that waits.
        cancel: Function that cancels a call, unless it was cancelled before.
        became_late: Function that counts a call that was not answered in time.
        release_retries: Function that queues the retries for which the budget has tokens again; it returns whether
            other retries still wait.
    """

    name: str
    capacity: int
    job: JobLimits
    opening: Opening
    silent: bool
    cancelled: bool
    room_at: float

    @property
    def allowed(self) -> int: ...
    @property
    def runs(self) -> Iterable[Run]: ...
    def cancel(self, call: InFlight, now: float) -> None: ...
    def became_late(self, call: InFlight, now: float) -> None: ...
    def release_retries(self) -> bool: ...


def sweep(engine: WatchedEngine, now: float) -> bool:
    """Do one tick of the sweeper for *engine*; return whether there is anything left to watch."""
    engine.gate.breaker.tick(now)
    _expire_lookups(engine, now)
    _end_overlong_calls(engine, now)
    hedge(engine, now)
    _fail_on_zombies(engine, now)
    _start_clocks(engine, now)
    _make_room(engine, now)
    if engine.gate.outage.since is not None:
        for run in list(engine.runs):
            answer_stale(run)
    _fail_on_stall(engine, now)
    _fail_on_outage(engine, now)
    _fail_on_limits(engine, now)
    short_of_tokens = engine.release_retries()
    pending = any(run.pending for run in engine.runs)
    if not pending:
        # No key waits, so no call is held back any more. The next task then has its whole `stall_timeout`.
        engine.gate.breaker.held_since = None
    return bool(engine.calls or pending or short_of_tokens or any(run.timers for run in engine.runs))


def stood_still(engine: WatchedEngine, since: float, until: float) -> None:
    """Do not count the time from *since* to *until* (now) for runs, calls and outages: the process stood still."""
    gap = until - since
    for run in list(engine.runs):
        run.stood_still(since, until)
    for call in engine.calls:
        call.started = min(until, call.started + gap)
        if call.cancelled_at is not None:
            call.cancelled_at += gap
    engine.gate.stood_still(gap)


def _expire_lookups(engine: WatchedEngine, now: float) -> None:
    """Settle the lookups whose deadline has passed, and mark as late the calls for which no lookup waits any more."""
    outage = engine.gate.outage
    stands_still = outage.since is not None and not outage.alone
    for run in list(engine.runs):
        if (stands_still and run.patient and not run.serves_stale) or not expire(run, now):
            continue
        for call, owner in engine.calls.items():
            if not call.late and not call.wanted() and not answered_twice(call, owner, now):
                call.late = True
                engine.became_late(call, now)


def _end_overlong_calls(engine: WatchedEngine, now: float) -> None:
    """Ask again for the keys of calls beyond `attempt_timeout`, and cancel calls beyond the hard limit."""
    for call, run in list(engine.calls.items()):
        age = now - call.started
        attempt_timeout = run.attempt_timeout
        if attempt_timeout is not None and not call.overdue and age >= attempt_timeout and not run.closed:
            if not call.late:
                engine.became_late(call, now)
            retry_late(run, call)
        if age >= run.hard_limit:
            engine.cancel(call, now)


def _make_room(engine: WatchedEngine, now: float) -> None:
    """
    Cancel the oldest call that is late by a tenth of its timeout, if keys wait and no slot is free.

    While no call ends in time, only one slot at a time is freed, so that not all slots send new calls to a source that
    hangs.
    """
    full = len(engine.calls) >= engine.allowed and any(run.pending and not run.held_back for run in engine.runs)
    if not full or now < engine.room_at or engine.gate.outage.since is not None or engine.gate.pause_left(now) > 0:
        return
    if engine.silent and not all(call.late for call in engine.calls):
        return
    for call, run in engine.calls.items():
        patience = (call.overdue and run.attempt_timeout) or run.options.timeout or math.inf
        if call.late and _may_give_room(engine, call) and now - call.late_since >= GRACE * patience:
            engine.cancel(call, now)
            engine.room_at = now + max(ROOM_EVERY, GRACE * patience if engine.silent else 0.0)
            return


def _may_give_room(engine: WatchedEngine, call: InFlight) -> bool:
    """
    Whether *call* may be cancelled for another call: it was not cancelled yet, and no key depends on its answer.

    The slot that opens the connector is left alone, however late its keys are. Otherwise each slot would begin to open
    the connector anew, and a connector that opens slowly would never be open.
    """
    return call.cancelled_at is None and call.task is not engine.opening.slot and call.dispensable()


def _fail_on_zombies(engine: WatchedEngine, now: float) -> None:
    """Fail all runs when half of the slots or more are held by calls that ignore their cancellation."""
    zombies = sum(_is_zombie(call, run, now) for call, run in engine.calls.items())
    if not zombies or zombies * 2 < engine.capacity:
        return
    for run in list(engine.runs):
        run.stats.zombies = zombies
        run.fail(
            FatalError(
                f"{engine.name}: {zombies} of {engine.capacity} calls did not end although they were cancelled; a "
                "connector must not swallow asyncio.CancelledError. Look for 'except BaseException' or blocking code "
                "in its fetch_many."
            )
        )


def _is_zombie(call: InFlight, run: Run, now: float) -> bool:
    """
    Whether *call* has ignored its cancellation for a long time.

    The time is measured from the cancellation. If the run of the call goes on, and the call reaches its hard limit
    later, the time is measured from there.
    """
    if call.cancelled_at is None:
        return False
    patience = run.options.longest_wait or now - call.started
    over = call.cancelled_at if run.closed else max(call.cancelled_at, call.started + run.hard_limit)
    return now - over > 2 * patience


def _start_clocks(engine: WatchedEngine, now: float) -> None:
    """
    Start the timeout clocks of the next keys in the queue if no call can end in time to give these keys a slot.

    As long as a source at least refuses calls in time, slots become free, so the clocks of waiting keys do not run. But
    if the source answers nothing, even after a late call was cancelled for another key, the clocks of waiting keys have
    to run. Otherwise the task would hang for ever.
    """
    full = len(engine.calls) >= engine.allowed and all(call.late for call in engine.calls)
    full = full and (engine.cancelled or not any(_may_give_room(engine, call) for call in engine.calls))
    if engine.gate.outage.since is not None:
        for run in engine.runs:
            if not run.patient:
                run.start_clocks(engine.capacity * run.batch_size, now)
    elif full or (engine.silent and engine.gate.breaker.held_since is not None):
        for run in engine.runs:
            run.start_clocks(engine.capacity * run.batch_size, now)


def _patience(engine: WatchedEngine, run: Run, since: float) -> float:
    """
    Return the loop time until which *run* waits for a source that has been away since the loop time *since*.

    A source that has asked for a pause of up to `stall_timeout` is asked once more when the pause is over. Otherwise a
    pause of a minute would fail each run with the default `stall_timeout`, which is a minute, too.
    """
    until, (asked, resumes) = since + run.options.stall_timeout, engine.gate.asked
    if since <= asked <= until and resumes - asked <= run.options.stall_timeout:
        return max(until, resumes + min(ANSWER_MAX, run.options.longest_wait or ANSWER_MAX))
    return until


def _fail_on_outage(engine: WatchedEngine, now: float) -> None:
    """
    Fail the runs that have waited longer than their `stall_timeout` for a source that is away, with two exceptions.

    A run whose rows get another value after a timeout goes on; `max_fallback_ratio` bounds the share of its keys that
    fail. A run whose rows get another value for an error waits once more in each outage. Before that, its failed keys
    are settled with an error, because they may be the reason for the outage.
    """
    outage = engine.gate.outage
    if outage.since is None:
        return
    for run in list(engine.runs):
        waiting = run.stats.rows - run.emitted_rows
        if run.patient and waiting and now > _patience(engine, run, max(outage.since, run.patient_since)):
            if give_up(run, outage.since, now):
                continue
            run.fail(
                SourceStalledError(
                    f"{engine.name}: {outage.describe(now)} {waiting:,} rows wait. Mend the source, or raise "
                    f"stall_timeout ({run.options.stall_timeout:g} s)."
                )
            )


def _fail_on_stall(engine: WatchedEngine, now: float) -> None:
    """Fail the runs that wait, if the circuit breaker has held calls back for longer than their `stall_timeout`."""
    held_since = engine.gate.breaker.held_since
    if held_since is None:
        return
    for run in list(engine.runs):
        if run.pending and now - held_since > run.options.stall_timeout:
            run.fail(
                SourceStalledError(
                    f"{engine.name}: the source has failed for {now - held_since:.0f} s and calls were held back all "
                    "that time. Mend the source, or raise stall_timeout."
                )
            )


def _fail_on_limits(engine: WatchedEngine, now: float) -> None:
    """Fail the runs that wait for a share of a limit of the job, if the store cannot give them one."""
    fatal = engine.job.fatal()
    for run in list(engine.runs):
        if run.pending:
            error = fatal or engine.job.stalled(now, run.patient_since, run.options.stall_timeout)
            if error is not None:
                run.fail(error)
