"""
Keys of a call that are asked for once more: after a failure, or while the call goes on and nobody waits any longer.

How often a key may be asked for is for its policy (`Retry`), how much of that the source bears for the `Budget`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConnectorError, FatalError, PermanentError, TransientError
from ..outcome import ERROR
from .calls import Bisection
from .retry import Budget, backoff

if TYPE_CHECKING:
    from .calls import InFlight
    from .lookup import Lookup
    from .run import Run

__all__ = ["ask_afresh", "ask_again", "asked_elsewhere", "failed", "retry_late"]


def retry_late(call: InFlight) -> None:
    """Queue the keys of *call* again, whose `attempt_timeout` has passed while it goes on; not those that joined it."""
    call.separate()
    call.late = call.overdue = True
    waiting = [lookup for lookup in call.lookups.values() if not (lookup.settled or lookup.attached)]
    for lookup in waiting:
        lookup.failures += 1
    ask_again(call.run, waiting, None, Budget.RETRY_AFTER_TIMEOUT)


def failed(call: InFlight, error: BaseException) -> None:
    """Queue the keys of *call*, which ended with *error*, again where that is allowed; settle or fail the others."""
    run = call.run
    if isinstance(error, FatalError):
        run.fail(error)
        return
    if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
        run.fail(FatalError(f"{run.source}: its connector raised {type(error).__name__}, which ends the task."))
        return
    waiting = [lookup for lookup in call.lookups.values() if not lookup.settled]
    attached = [lookup for lookup in waiting if lookup.attached]
    if attached:
        ask_afresh(run, attached)
        waiting = [lookup for lookup in waiting if lookup not in attached]
    if not waiting:
        return
    if isinstance(error, TransientError):
        for lookup in waiting:
            lookup.error = error
            lookup.failures += not call.overdue
    # What is wrong with a key that was asked alone is an answer, as a `Failure` is: no other call will do better.
    final = len(call.lookups) == 1 and not isinstance(error, TransientError)
    if not final:
        waiting = [lookup for lookup in waiting if not asked_elsewhere(call, lookup)]
    if isinstance(error, TransientError):
        lost = ask_again(run, waiting, error.retry_after, Budget.RETRY)
    elif waiting and len(call.lookups) > 1 and _bisect(call, waiting):
        lost = []
    else:
        error = error if isinstance(error, ConnectorError) else PermanentError(_describe(error))
        lost = waiting
    for lookup in lost:
        if run.closed:
            return
        if not lookup.settled and (final or lookup.routes == 0):
            run.settle(lookup, ERROR, error=lookup.error if isinstance(error, TransientError) else error)


def _describe(error: BaseException) -> str:
    """Say which unknown exception a connector raised. Its text may hold keys or secrets, so only the class is named."""
    return f"the connector raised {type(error).__qualname__}"


def asked_elsewhere(call: InFlight, lookup: Lookup) -> bool:
    """Whether *lookup* was queued again when *call* became overdue, so that its failure is no reason to do so again."""
    return call.overdue and lookup.routes > 0


def ask_afresh(run: Run, attached: list[Lookup]) -> None:
    """Queue lookups that had joined a late call: it was not theirs, so its failure is not. Their own clock goes on."""
    for lookup in attached:
        lookup.attached = False
        lookup.routes += 1
    run.put_first(attached)


def ask_again(run: Run, lookups: list[Lookup], retry_after: float | None, cost: int) -> list[Lookup]:
    """Queue those of *lookups* again that may be asked once more, after their back-off; return the others."""
    engine, retry = run.engine, run.options.retry
    if engine is None or run.closed:
        return lookups
    now = engine.now()
    if retry is None:
        return lookups
    lost: list[Lookup] = []
    by_failures: dict[int, list[Lookup]] = {}
    for lookup in lookups:
        if lookup.settled:
            continue
        if lookup.failures >= retry.attempts:
            lost.append(lookup)
        else:
            by_failures.setdefault(lookup.failures, []).append(lookup)
    due: list[tuple[float, list[Lookup]]] = []
    for failures, waiting in by_failures.items():
        # One draw for the keys of one call: keys that each wait a time of their own would come back one by one.
        wait = backoff(retry, failures, retry_after, run.rng)
        in_time = [lookup for lookup in waiting if now + wait < run.deadlines.of(lookup)]
        lost += [lookup for lookup in waiting if now + wait >= run.deadlines.of(lookup)]
        if in_time:
            due.append((wait, in_time))
    if due and not engine.budget.spend(cost):
        for lookup in (lookup for _, in_time in due for lookup in in_time):
            lookup.error = TransientError(f"{lookup.error or 'no answer'} (the budget of retries is used up)")
        return [lookup for lookup in lookups if not lookup.settled]
    for wait, in_time in due:
        run.stats.retries += len(in_time)
        for lookup in in_time:
            lookup.routes += 1
        engine.later(run, wait, in_time)
    return lost


def _bisect(call: InFlight, waiting: list[Lookup]) -> bool:
    """Queue the halves of a poisoned group; False when its calls or the budget are used up."""
    run = call.run
    bisection = call.bisection or Bisection(len(call.lookups))
    if run.engine is None or bisection.calls < 2 or not run.engine.budget.spend(2 * Budget.BISECTION):
        return False
    bisection.calls -= 2
    run.stats.bisections += 2
    middle = (len(waiting) + 1) // 2
    for half in (waiting[:middle], waiting[middle:]):
        if half:
            for lookup in half:
                lookup.routes += 1
            run.put_first(half, bisection)
    return True
