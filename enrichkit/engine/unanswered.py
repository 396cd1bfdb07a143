"""
Lookups that end without a call: their deadline has passed, a stale value is at hand, or the budget of the job is spent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..outcome import ERROR, OVER_BUDGET, TIMEOUT
from . import settlement

if TYPE_CHECKING:
    from ..errors import OverBudgetError
    from .records import Group, Lookup
    from .run import Run

__all__ = ["answer_stale", "expire", "refuse"]


def expire(run: Run, now: float) -> bool:
    """Settle the lookups of *run* whose deadline has passed, normally as timeouts; return whether there were any."""
    found = False
    outage = run.engine.gate.outage
    for lookup in run.deadlines.expired(now):
        if run.deadlines.of(lookup) > now:
            continue  # the clock of the lookup was restarted, so its deadline is later now
        if run.patient and outage.since is not None and lookup not in outage.alone and not _has_old(run, lookup):
            run.restart_clock(lookup, now)
            continue
        found = True
        call = lookup.call
        if call is not None and call.running:
            run.draining[lookup.key] = call
        elif call is None:
            run.pending.clocked -= 1
        if lookup in outage.alone:  # no call for other keys has failed, so this key may be the reason for the outage
            lookup.attempts = max(1, lookup.attempts)
            settlement.settle(run, lookup, ERROR, error=lookup.error)
        else:
            # A key that is in no call, or in the call that probes the source during an outage, may have no error of its
            # own. It gets the last error of the outage instead.
            away = outage.last if call is None or outage.asks_with(call) else None
            settlement.settle(run, lookup, TIMEOUT, error=lookup.error or away)
        if run.closed:
            break
    if found:
        run.pending.drop_settled()
        run.flush()
    return found


def _has_old(run: Run, lookup: Lookup) -> bool:
    """Whether a stale value would replace the outcome of *lookup* if it failed."""
    return run.serves_stale and bool(run.old_values((lookup.key,)))


def answer_stale(run: Run) -> None:
    """Settle the keys of *run* that wait for a source that is away, if the cache has stale values for them."""
    if not run.serves_stale:
        return
    outage = run.engine.gate.outage
    if run.stale_since != outage.since:
        run.stale_since = outage.since
        run.pending.separate()  # once per outage: keys that come later get their stale values on admission
    waiting = run.pending.lookups()
    known = run.old_values([lookup.key for lookup in waiting])
    for lookup in waiting:
        if lookup.key in known and not run.closed:
            run.pending.clocked -= lookup.call is None and lookup.started is not None
            settlement.settle(run, lookup, ERROR, error=outage.last)
    if known:
        run.ask_in_background(known)
        run.pending.drop_settled()
        run.flush()


def refuse(run: Run, group: Group, error: OverBudgetError) -> None:
    """Settle the keys of *group* with `OVER_BUDGET`, because the budget is spent, as *error* says."""
    for held in group:
        for lookup in held.singly():
            if run.closed:
                return
            if not lookup.settled and lookup.unasked():
                settlement.settle(run, lookup, OVER_BUDGET, error=error)
    run.flush()
    run.engine.wake()
