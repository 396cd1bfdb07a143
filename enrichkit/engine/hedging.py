"""
Hedged reads: a second call for the keys of a call that takes longer than usual; the answer that comes first is used.

`attempt_timeout="p95"` asks for hedged reads. A call is slow once it takes longer than 95 % of the last thousand calls
that were answered. Second calls are at most 2 % of the first calls. About 5 % of the calls are slow, more than may get
a second call, so the calls that have taken longest get theirs first. The idea and both numbers come from "The Tail at
Scale" (Dean and Barroso, 2013) and from Finagle's back-up requests.

A second call also costs as many tokens as a retry, see `RetryBudget`. No second call is sent while the source is away
or refuses calls, because second calls help with a few slow calls, but harm a source that is overloaded.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from .limits import RetryBudget

if TYPE_CHECKING:
    from .limits import Gate
    from .records import InFlight
    from .run import Run
    from .stats import RunStats

__all__ = ["EngineCalls", "Hedges", "answered_twice", "hedge"]

TICK_MIN = 0.001
LOOKS = 4
"""How often the sweeper looks for slow calls within one `Hedges.delay`."""


class Hedges:
    """
    Decides from what duration on a call of one source is slow, and how many second calls the source may get.

    Attributes:
        delay: Seconds after which a call is slow; None: too few calls have been answered to tell.
    """

    QUANTILE = 0.95
    DELAY_MIN = 0.001
    SHARE = 0.02
    """Second calls that may be sent for each first call."""
    SAVED_MAX = 10.0
    """Most second calls that may be saved up while no call is slow, and then be sent at once."""
    LAST = 1000
    EVERY = 100
    """Number of answers after which the delay is computed again; each time takes 50 us, for sorting 1,000 numbers."""

    __slots__ = ("_saved", "_took", "_until_look", "delay")

    def __init__(self) -> None:
        self.delay: float | None = None
        self._took: deque[float] = deque(maxlen=self.LAST)
        self._until_look = self.EVERY
        self._saved = 0.0  # number of second calls that may be sent now; it grows when first calls are answered

    @property
    def tick(self) -> float:
        """Seconds after which the sweeper looks for slow calls again."""
        return max(TICK_MIN, (self.delay or 0.0) / LOOKS)

    def answered(self, call: InFlight, now: float, *, earns: bool) -> bool:
        """
        Record that *call* was answered; if *earns* is True, a first attempt adds `SHARE` to the allowed second calls.

        Returns:
            Whether the delay has been computed again.
        """
        self._took.append(now - call.started)
        if earns and call.attempt == 1:
            self._saved = min(self.SAVED_MAX, self._saved + self.SHARE)
        self._until_look -= 1
        if self._until_look:
            return False
        self._until_look = self.EVERY
        self.delay = max(self.DELAY_MIN, sorted(self._took)[int(self.QUANTILE * len(self._took))])
        return True

    def spend(self, budget: RetryBudget, stats: RunStats) -> bool:
        """
        Pay for one second call: use up one of the allowed second calls, and take tokens, which *stats* counts,
        from *budget*.

        Returns:
            Whether the second call is paid for; if not, nothing was taken.
        """
        if self._saved < 1.0 or not budget.spend(RetryBudget.RETRY, stats):
            return False
        self._saved -= 1.0
        return True


class EngineCalls(Protocol):
    """
    The calls of an engine, and what limits them.

    Attributes:
        calls: The calls in flight, late ones included, each with its run.
        gate: The gate, which may hold calls back although a slot is free.
        retry_budget: How many retries the source may get.
        hedges: The object that decides when a call is slow, and how many second calls may be sent; None: no run wants
            second calls.
    """

    calls: dict[InFlight, Run]
    gate: Gate
    retry_budget: RetryBudget
    hedges: Hedges | None


def hedge(engine: EngineCalls, now: float) -> None:
    """Ask again for the keys of slow calls, the oldest call first, as far as `Hedges` and the retry budget allow it."""
    hedges, gate = engine.hedges, engine.gate
    if hedges is None or hedges.delay is None:
        return
    if gate.outage.holds or gate.breaker.troubled() or gate.pause_left(now) > 0:
        return
    for call, run in list(engine.calls.items()):  # in the order in which the calls were sent
        if now - call.started < hedges.delay:
            return
        if not run.hedged or run.closed or call.overdue or call.late or call.attempt > 1:
            continue
        if not hedges.spend(engine.retry_budget, run.stats):
            return
        _ask_twice(run, call)


def answered_twice(call: InFlight, run: Run, now: float) -> bool:
    """Whether nobody waits for *call* of *run* any more, and the only reason is that a second call was faster."""
    return call.overdue and run.hedged and now - call.started < (run.options.timeout or 0.0)


def _ask_twice(run: Run, call: InFlight) -> None:
    """Queue the keys of *call* once more, ahead of all others; *call* itself goes on."""
    call.separate()
    # With this mark, a failure of *call* is no failed attempt of its keys, because the second call asks for them, too.
    call.overdue = True
    waiting = [lookup for lookup in call.held() if lookup.waits_for(call) and lookup.routes == 1]
    for lookup in waiting:
        lookup.queued()
    run.stats.retried("p95", len(waiting))
    run.put_first(waiting)
