"""
Keys of a call that are asked for again: after a failure, or after `attempt_timeout` while the call goes on.

The policy (`Retry`) says how often a key may be asked for, and the `RetryBudget` how many retries the source may get.
"""

from __future__ import annotations

import logging
import math
import os
import random
import traceback
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError, reworded
from ..functions import place, raised
from ..options import Retry
from ..outcome import ERROR
from . import settlement
from .limits import RETRY_AFTER_MAX, RetryBudget, asked_pause
from .search import Search

if TYPE_CHECKING:
    from .records import InFlight, Lookup
    from .run import Run

__all__ = [
    "ask_afresh",
    "ask_again",
    "ask_again_or_fail",
    "asked_elsewhere",
    "backoff",
    "failed",
    "failed_for_now",
    "put_off",
    "refused",
    "retry_late",
]

_log = logging.getLogger("enrichkit")

HERE = os.path.dirname(__file__)
PLACES_MAX = 20
"""
Most places of exceptions that a run logs. A connector that compiles code anew for each call could otherwise fill the
log, because each exception then comes from a new place.
"""
REFUSALS_MAX = 8
"""Calls of a key that a source may refuse, while it answers other keys, before a refusal counts as a failure."""
BUSY_MAX = 60
"""This limit replaces `REFUSALS_MAX` if the source says that it is busy, because that tells nothing about the key."""
REFUSED = Retry(wait=0.05, factor=2.0, wait_max=1.0)
"""How long the keys of a refused call wait before they are asked for again."""
SEARCHES_AT_ONCE, SEARCH_WAIT, SEARCH_WAIT_MAX = 20, 0.05, 1.0
"""
The search for bad keys waits once more than `SEARCHES_AT_ONCE` calls of several keys have failed in a row. The wait is
random. Each further failure adds `SEARCH_WAIT` seconds to its upper bound, which is at most `SEARCH_WAIT_MAX` seconds.
"""


def retry_late(run: Run, call: InFlight) -> None:
    """Queue the keys of *call* again, except keys that joined it later; *call* goes on beyond its `attempt_timeout`."""
    call.separate()
    call.late = call.overdue = True
    waiting = [lookup for lookup in call.held() if not (lookup.settled or lookup.attached)]
    for lookup in waiting:
        lookup.failed(lookup.error, counted=True)
    ask_again(run, waiting, None, RetryBudget.RETRY_AFTER_TIMEOUT)


def failed(run: Run, call: InFlight, error: BaseException) -> None:
    """
    Queue the keys of *call*, which ended with *error*, again if another call may be made; else settle them. A fatal
    error fails the task.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
        error = FatalError(f"{run.source}: its connector raised {type(error).__name__}, which ends the task.")
    if isinstance(error, FatalError):
        run.fail(error)
        return
    waiting = [lookup for lookup in call.held() if not lookup.settled]
    attached = [lookup for lookup in waiting if lookup.attached]
    waiting = [lookup for lookup in waiting if not lookup.attached]
    if attached:
        ask_afresh(run, attached)
    if isinstance(error, TransientError):
        own: Sequence[tuple[Lookup, TransientError]] = [(lookup, error) for lookup in waiting]
        if isinstance(error, UnavailableError) and not call.overdue:
            own = refused(run, [(lookup, error) for lookup in waiting])
        failed_for_now(run, call, own)
    elif waiting:
        _failed_for_good(run, call, waiting, error)


def failed_for_now(run: Run, call: InFlight, failures: Sequence[tuple[Lookup, TransientError]]) -> None:
    """Queue the keys of the transient *failures* again; settle the keys that may not be asked for again."""
    waiting: dict[float | None, list[Lookup]] = {}
    for lookup, error in failures:
        lookup.failed(error, counted=not (lookup.settled or call.overdue))
        if not asked_elsewhere(call, lookup):
            waiting.setdefault(error.retry_after, []).append(lookup)
    for retry_after, lookups in waiting.items():
        ask_again_or_fail(run, lookups, retry_after)


def refused(run: Run, refusals: Sequence[tuple[Lookup, UnavailableError]]) -> list[tuple[Lookup, UnavailableError]]:
    """
    Queue again the keys of *refusals*, which the source refused although it answers other keys; return the refusals
    that count as failures.

    A refusal concerns the load or a server of the source and not the key, so it counts as no attempt and costs no token
    of the retry budget. But a key that is refused again and again may itself be the reason, so after `REFUSALS_MAX` or
    `BUSY_MAX` refusals the key has failed. A key has also failed if its deadline comes before the end of the wait.

    Args:
        run: The run of the keys.
        refusals: Keys of one call, each with its error; all the errors ask for the same wait.
    """
    failed = put_off(run, refusals, refusals[0][1].retry_after if refusals else None)
    for lookup, error in refusals:
        if lookup not in failed:
            lookup.returned(error)
            run.stats.retried(type(error).__name__, 1)
    return [(lookup, error) for lookup, error in refusals if lookup in failed]


def put_off(
    run: Run, refusals: Iterable[tuple[Lookup, UnavailableError]], retry_after: float | None
) -> dict[Lookup, None]:
    """
    Queue the keys of *refusals* again after a wait; return the lookups that have to fail, in order.

    If the source asks for a wait that ends after the deadline, and a timeout would fail the task, the clocks of the
    keys stop during the wait. A wait longer than `stall_timeout` stops no clock.
    """
    if run.closed or run.options.retry is None:
        return dict.fromkeys(lookup for lookup, _ in refusals)
    failed: dict[Lookup, None] = {}
    by_count: dict[int, list[Lookup]] = {}
    for lookup, error in refusals:
        count = getattr(lookup, "refusals", 0) + 1
        if lookup.settled or count > (BUSY_MAX if error.busy else REFUSALS_MAX):
            failed[lookup] = None
        else:
            by_count.setdefault(count, []).append(lookup)
    now = run.engine.now()
    for count, group in by_count.items():
        wait = backoff(REFUSED, count, retry_after, run.rng, run.options.stall_timeout)
        late = any(now + wait >= run.deadlines.of(lookup) for lookup in group)
        if late and retry_after is not None and wait <= run.options.stall_timeout:
            run.stop_clocks(group)
        in_time = [lookup for lookup in group if now + wait < run.deadlines.of(lookup)]
        failed |= dict.fromkeys(lookup for lookup in group if now + wait >= run.deadlines.of(lookup))
        for lookup in in_time:
            lookup.refusals = count
        if in_time:
            run.engine.later(run, wait, in_time)
    return failed


def _failed_for_good(run: Run, call: InFlight, waiting: list[Lookup], error: BaseException) -> None:
    """
    If *call* had one key, settle the key with *error*; otherwise split *waiting* into smaller calls to find bad keys.
    """
    if not isinstance(error, ConnectorError):
        _log_place(run, error)
        # The text of an unknown exception may hold a key or a secret.
        error = PermanentError(f"the connector raised {raised(error, show_text=run.options.show_keys)}")
    if len(call.lookups) > 1:
        _search(run, call, [lookup for lookup in waiting if not asked_elsewhere(call, lookup)])
        return
    # The error of a key that was alone in its call is final, because another call would fail as well.
    for lookup in waiting:
        if not run.closed:
            settlement.settle(run, lookup, ERROR, error=error)


def _log_place(run: Run, error: BaseException) -> None:
    """Log the place (file, line, function; no values) at which the connector raised *error*; log each place once."""
    frames = traceback.extract_tb(error.__traceback__)
    places = ", ".join(place(frame) for frame in frames if not frame.filename.startswith(HERE))
    if places not in run.raised_at and len(run.raised_at) < PLACES_MAX:
        run.raised_at.add(places)
        _log.warning("%s: the connector raised %s at: %s.", run.source, type(error).__qualname__, places or "(unknown)")


def asked_elsewhere(call: InFlight, lookup: Lookup) -> bool:
    """
    Whether *lookup* was queued again when *call* became overdue, so that the end of *call* must not queue it, too.
    """
    return call.overdue and lookup.routes > 0


def ask_afresh(run: Run, attached: list[Lookup]) -> None:
    """
    Queue *attached* lookups, which had joined a late call that failed.

    The failure does not count against these lookups, and their clocks run on.
    """
    for lookup in attached:
        lookup.queued()
    run.put_first(attached)


def ask_again(
    run: Run, lookups: list[Lookup], retry_after: float | None, cost: int, *, only_delayed: bool = False
) -> list[Lookup]:
    """
    Queue again, after their back-off, those of *lookups* that may be asked for once more; return the other lookups.

    When the retry budget has fewer tokens than the *cost* of the retry, the keys wait until it has enough. But if
    `on_error` replaces the value of failed rows and does not fail the task, no key waits or is queued, and all lookups
    without an outcome are returned. With *only_delayed*, which is for misses, the keys wait in this case, too.
    """
    retry = run.options.retry
    if run.closed or retry is None:
        return lookups
    waiting = [lookup for lookup in lookups if not lookup.settled]
    lost = [lookup for lookup in waiting if lookup.failures >= retry.attempts]
    due, too_late = _due(run, retry, [lookup for lookup in waiting if lookup.failures < retry.attempts], retry_after)
    lost += too_late
    spent = bool(due) and run.engine.retry_budget.spend(cost, run.stats)
    if due and not spent and not only_delayed and run.options.on_error not in (None, "fail"):
        for lookup in (lookup for _, group in due for lookup in group):
            text = f"{lookup.error or 'no answer'} (the budget of retries is used up)"
            lookup.failed(TransientError(text), counted=False)
        return waiting
    for wait, group in due:
        run.stats.retried(_reason(group[0], only_delayed=only_delayed), len(group))
        for lookup in group:
            lookup.queued()
        run.engine.later(run, wait, group, 0 if spent else cost)
    return lost


def _reason(lookup: Lookup, *, only_delayed: bool) -> str:
    """Return why *lookup* is asked for again: the class of its error, `missing` or `attempt_timeout`."""
    if only_delayed:
        return "missing"
    return "attempt_timeout" if lookup.error is None else type(lookup.error).__name__


def ask_again_or_fail(run: Run, lookups: list[Lookup], retry_after: float | None) -> None:
    """
    Queue again the *lookups* that may be asked for once more; fail the others unless a call in flight has their key.
    """
    for lookup in ask_again(run, lookups, retry_after, RetryBudget.RETRY):
        if not run.closed and not lookup.settled and lookup.routes == 0:
            settlement.settle(run, lookup, ERROR, error=lookup.error)


def _due(
    run: Run, retry: Retry, lookups: Iterable[Lookup], retry_after: float | None
) -> tuple[list[tuple[float, list[Lookup]]], list[Lookup]]:
    """
    Draw the random back-off of *lookups*: one back-off for all lookups that have failed equally often.

    If each key of a call had a back-off of its own, the keys would be sent again one by one.

    Returns:
        Groups of lookups with the seconds that each group waits, and the lookups whose deadline comes before the end
        of the wait.
    """
    now = run.engine.now()
    by_failures: dict[int, list[Lookup]] = {}
    for lookup in lookups:
        by_failures.setdefault(lookup.failures, []).append(lookup)
    due: list[tuple[float, list[Lookup]]] = []
    too_late: list[Lookup] = []
    for failures, group in by_failures.items():
        wait = backoff(retry, failures, retry_after, run.rng, run.options.stall_timeout)
        in_time = [lookup for lookup in group if now + wait < run.deadlines.of(lookup)]
        for lookup in group:
            if now + wait >= run.deadlines.of(lookup):
                too_late.append(lookup)
                lookup.error = _not_repeated(lookup.error, wait, retry_after, run.options.timeout)
        if in_time:
            due.append((wait, in_time))
    return due, too_late


def _not_repeated(
    error: BaseException | None, wait: float, retry_after: float | None, timeout: float | None
) -> BaseException | None:
    """Return *error* with the reason why its key is not asked for again: the *wait* ends after the deadline."""
    if not isinstance(error, TransientError):
        return error  # it is None if the key is a miss, or if its call is overdue
    asked = wait >= (asked_pause(retry_after) or math.inf)
    who = "the source asks for" if asked else "the back-off is"
    why = f"{who} {wait:.3g} s, which ends after the timeout of {timeout:g} s"
    return reworded(error, f"{str(error).rstrip('.')} (not asked again: {why})")


def _search(run: Run, call: InFlight, waiting: list[Lookup]) -> None:
    """
    Ask for parts of the *waiting* keys of *call*, because at least one key of the call made it fail.

    The search takes nothing from the retry budget, because a bad key is no sign of overload. But if many calls in a row
    fail, the calls of the search are sent only after a short wait, so that a broken database view is not queried in a
    tight loop.
    """
    if not waiting or run.closed:
        return
    parts, search = (call.search or Search(len(call.lookups))).divide(waiting)
    run.stats.bisections += len(parts)
    breaker = run.engine.gate.breaker
    healthy = breaker.accepts - breaker.faults
    run.failed_in_a_row = 1 if healthy != run.healthy else run.failed_in_a_row + 1
    run.healthy = healthy
    wait = min(SEARCH_WAIT_MAX, SEARCH_WAIT * (run.failed_in_a_row - SEARCHES_AT_ONCE))
    for part in parts:
        for lookup in part:
            lookup.queued()
        if wait > 0:
            run.engine.later(run, run.rng.uniform(0.0, wait), part, search=search)
        else:
            run.put_first(part, search)


def backoff(
    retry: Retry,
    failures: int,
    retry_after: float | None,
    rng: random.Random,
    stall_timeout: float = RETRY_AFTER_MAX,
) -> float:
    """
    Return the seconds to wait after the *failures*-th failure of a key; *failures* is 1 or more.

    The jitter `"full"` is that of "Exponential Backoff And Jitter" (AWS Architecture Blog): a random wait between 0 and
    the bound. A Retry-After of the source is a lower bound of the wait. A Retry-After that is longer than
    *stall_timeout* counts as at most a minute, and a Retry-After that is not a number is ignored. `explain` uses this
    function, too.
    """
    wait = min(retry.wait_max, retry.wait * retry.factor ** (failures - 1))
    if retry.jitter == "full":
        wait = rng.uniform(0.0, wait)
    return max(wait, asked_pause(retry_after, stall_timeout) or 0.0)
