"""This process's share of the rate of the whole job."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..leases import Ask, Grant
from .leases import AGAIN, HOLD, IDLE, PERIOD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .leases import Lessee
    from .pacing import AverageCost

__all__ = ["RateShare"]

GRACE = 0.1
"""Seconds after the end of a lease during which a delayed call may still be sent."""


class _Lease:
    """
    The permission to send a number of calls, evenly spaced.

    Attributes:
        start: Loop time at which the first call may be sent.
        left: Number of calls that may still be sent; it need not be a whole number.
        interval: Seconds between two calls.
        ends: Loop time at which the lease ends.
    """

    __slots__ = ("ends", "interval", "left", "start")

    def __init__(self, start: float, calls: float, seconds: float) -> None:
        self.start = start
        self.left = calls
        self.interval = seconds / max(calls, 1.0)
        self.ends = start + seconds


class RateShare:
    """
    This process's share of the job's rate; it has the same interface, `pacing.Pace`, as a rate of this process alone.

    The calls of a lease, i.e. a permission that the store grants, are sent evenly spaced over a quarter of a second.
    They may be 3 % closer together, to catch up when a busy process has sent calls late. Calls that were not sent
    expire with their lease, except for the few that the next lease takes over (`CARRIED`).

    Args:
        per_second: The rates of the job: amounts per second, by unit.
        average: What a call costs on average, by unit.
        lessee: The client that requests the share from the store of the limit.

    Attributes:
        lessee: The client that requests the share from the store of the limit.
        away: Whether the store cannot be reached.
        held: The share, as a fraction of the job's rate; 0: it has no share.
    """

    LEAD = 0.12
    """Seconds before the end of a lease at which the next one is asked for."""
    BURST = 0.03
    """Calls that are due within this many seconds may be sent together, as timers are coarse; see `pacing.Rate`."""
    KEPT = 0.985
    """Fraction of the rate that is used; the rest allows for calls that bunch up on their way to the source."""
    CLOSER = 0.97
    CARRIED = 0.05
    """A lease passes at most this many seconds' worth of unsent calls on to the next, or one call if that is more."""

    __slots__ = (
        "_ask_at",
        "_asked",
        "_average",
        "_leases",
        "_next",
        "_per_second",
        "_rest",
        "_sent",
        "_settle",
        "_unused",
        "_used",
        "_waited",
        "_wanted_at",
        "_wanted_before",
        "away",
        "held",
        "lessee",
    )

    def __init__(self, per_second: Mapping[str, float], average: AverageCost, lessee: Lessee) -> None:
        self._per_second = per_second
        self._average = average
        self.lessee = lessee
        self.held = 0.0
        self.away = False
        self._leases: deque[_Lease] = deque()
        self._next = 0.0  # the earliest time at which the next call may be sent
        self._rest = 0.0  # calls that the last lease passes on to the next one
        # By unit, the sum of the corrections since the last `ask`, in seconds of the rate; the next `ask` reports it.
        self._settle = dict.fromkeys(per_second, 0.0)
        self._wanted_at = self._wanted_before = float("-inf")
        self._waited = False  # whether a call has had to wait since the last answer of the store
        self._asked = self._ask_at = 0.0
        self._sent = 0.0  # calls sent since the last answer of the store
        self._used = 0.0  # moving average of the share that the calls of this process have used
        self._unused = False  # whether a lease has ended with calls left since the last answer of the store

    def _cost(self) -> dict[str, float]:
        """Return, by unit, the seconds for which an average call uses up the whole rate: 0.01 at 100 calls a second."""
        amounts = self._per_second.items()
        return {unit: max(self._average.units[unit], 1e-9) / (self.KEPT * amount) for unit, amount in amounts}

    # the gate

    def delay(self, now: float) -> float:
        """Return 0 when a call may be sent now, else the seconds after which the gate asks again."""
        self._wanted_before, self._wanted_at = self._wanted_at, now
        self.lessee.wake(self)
        lease = self._current(now)
        if lease is None:
            self._waited = True
            return HOLD
        wait = max(self._next - max(0.0, self.BURST - lease.interval), lease.start) - now
        self._waited = self._waited or wait > 0.0
        return max(0.0, wait)

    def spend(self, now: float) -> None:
        """Count one call of average cost as sent."""
        self._sent += 1.0
        lease = self._current(now)
        if lease is not None:
            lease.left -= 1.0
            self._next = max(now, self._next) + self.CLOSER * lease.interval

    def correct(self, now: float, units: Mapping[str, float]) -> None:
        """
        Add *units* to the correction that the next `ask` reports to the store; a negative amount takes units back.
        """
        for unit, amount in units.items():
            if unit in self._settle and amount:
                self._settle[unit] += amount / (self.KEPT * self._per_second[unit])
                self.lessee.wake(self)

    def _current(self, now: float) -> _Lease | None:
        """Return the lease under which the next call is sent, now or later; None: there is no lease."""
        while self._leases:
            lease = self._leases[0]
            self._expire(lease, now)
            if lease.left + self._rest >= 1.0 - 1e-9 and now <= lease.ends + GRACE:
                lease.left, self._rest = lease.left + self._rest, 0.0
                return lease
            self._leases.popleft()
            rest = lease.left + self._rest
            self._rest = min(rest, max(1.0, self.CARRIED / lease.interval))
            self._unused = self._unused or rest > self._rest
            if self.away and not self._leases:
                self._give_own(now, lease.ends)
        if self.away and self.held > 0.0:
            self._give_own(now, now)
            return self._leases[0]
        return None

    def _expire(self, lease: _Lease, now: float) -> None:
        """
        Remove from *lease* the calls that do not fit into its remaining time, if no call before the present one has
        asked to be sent since the lease began.

        While a source is away, thousands of processes have leases that they do not use. If the unused calls were kept,
        each process would send the calls of the last third of a second when the source is back, in addition to the
        calls due then.
        """
        if self._wanted_before < lease.start:
            in_time = (lease.ends + GRACE - now) / lease.interval
            if in_time < lease.left:
                lease.left, self._unused = max(in_time, 0.0), True

    def _give_own(self, now: float, after: float) -> None:
        """Add a lease for the current share; this process gives itself such leases while the store is away."""
        if self.held <= 0.0:
            return
        one = max(self._cost().values())
        calls = max(1.0, self.held * PERIOD / one)
        seconds = calls * one / self.held
        owed = max(0.0, *self._settle.values()) / self.held  # seconds of delay for calls that cost more than reserved
        self._settle = {unit: min(0.0, amount) for unit, amount in self._settle.items()}
        start = max(after, now - GRACE) + owed
        if calls == 1.0:
            start += seconds  # the share is at most one call per period, so the wait comes before the call
            seconds = PERIOD
        self._leases.append(_Lease(start, calls, seconds))

    # the store

    def idle(self, now: float) -> bool:
        """
        Whether no call has asked to be sent for `IDLE` seconds, and no correction has to be reported to the store.
        """
        return now - self._wanted_at >= IDLE and not any(self._settle.values())

    def ask(self, now: float, name: str, worker: str, *, away: bool = False, last: bool = False) -> Ask:
        """
        Return the question that asks the store for a share. *away*: the store has not answered the last question;
        *last*: the question gives the share back.
        """
        cost = self._cost()
        one = max(cost.values())
        wanted = 0.0
        if not last and now - self._wanted_at < IDLE:
            wanted = self._wanted(now, one)
        settle, self._settle = self._settle, dict.fromkeys(self._settle, 0.0)
        return Ask(
            limit=name,
            worker=worker,
            total=1.0,
            wanted=min(1.0, wanted),
            held=self.held,
            away=away,
            cost=cost,
            settle={unit: seconds for unit, seconds in settle.items() if seconds},
            period=PERIOD,
        )

    def _wanted(self, now: float, one: float) -> float:
        """Return the share that this process needs now; *one* is the share that one call a second takes."""
        used = self._sent * one / max(now - self._asked, AGAIN)
        self._used += 0.5 * (used - self._used)
        if self.held == 0.0:
            return 1.0
        if self._waited and not self._unused:  # the process uses its whole share, and could use more
            return max(2.0 * self.held, 2.0 * one / PERIOD)
        return 1.15 * self._used + 0.5 * one / PERIOD

    def unanswered(self, ask: Ask) -> None:
        """Keep the amounts that *ask* reports for the next question, because the store has not answered *ask*."""
        for unit, seconds in ask.settle.items():
            self._settle[unit] += seconds

    def granted(self, grant: Grant, asked: float, now: float, *, back: bool) -> None:
        """Take over *grant*, the answer to a question that was sent at *asked*; *back*: the store was away before."""
        if back:
            self._leases.clear()  # drops the leases that this process has given itself
            self._rest = 0.0
        self.held = grant.share
        self._asked, self._sent, self._waited, self._unused = now, 0.0, False, False
        self._ask_at = now + min(max(grant.wait, AGAIN), 1.0)
        if grant.calls > 0.0:
            self._leases.append(_Lease(now + grant.start, grant.calls, PERIOD))
            self._ask_at = self._leases[-1].ends - self.LEAD

    def next_ask(self, now: float) -> float:
        """Return the loop time at which the lessee asks the store for the share again."""
        return self._ask_at

    def told(self) -> str:
        """Return the share as a text for users."""
        names = {"requests": "calls"}
        return " and ".join(
            f"{self.held * amount:.3g} {names.get(unit, unit)}/s" for unit, amount in self._per_second.items()
        )
