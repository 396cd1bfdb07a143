"""The share of this process in the calls that the whole job may have in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..leases import Ask, Grant
from .leases import HOLD, IDLE, PERIOD

if TYPE_CHECKING:
    from collections.abc import Callable

    from .leases import Lessee

__all__ = ["LimitShare"]


class LimitShare:
    """
    The share of this process in the calls in flight of the job.

    Args:
        calls: The most calls that the whole job may have in flight.
        capacity: The most calls that this process can have in flight.
        in_flight: Function that returns how many calls this process has in flight.
        lessee: The client that requests the share from the store of the limit.

    Attributes:
        lessee: The client that requests the share from the store of the limit.
        away: Whether the store cannot be reached.
        held: How many calls this process may have in flight, as the store has granted.
        waiting: Whether a call has had to wait since the last answer of the store.
    """

    __slots__ = (
        "_calls",
        "_capacity",
        "_ends",
        "_in_flight",
        "_most",
        "_wanted_at",
        "away",
        "held",
        "lessee",
        "waiting",
    )

    def __init__(self, calls: int, capacity: int, in_flight: Callable[[], int], lessee: Lessee) -> None:
        self._calls = calls
        self._capacity = capacity
        self._in_flight = in_flight
        self.lessee = lessee
        self.held = 0.0
        self.away = False
        self.waiting = False
        self._most = 0  # most calls in flight since the last answer of the store
        self._ends = 0.0  # loop time at which the lease ends; ignored while the store is away
        self._wanted_at = float("-inf")

    def delay(self, now: float, in_flight: int) -> float:
        """
        Return 0 if a call can be sent now beside *in_flight* others, else the seconds after which the gate asks again.
        """
        self._wanted_at = now
        self.lessee.wake(self)
        self._most = max(self._most, in_flight + 1)
        if in_flight < self.held and (self.away or now < self._ends):
            return 0.0
        self.waiting = True
        return HOLD

    def idle(self, now: float) -> bool:
        """Whether no call is in flight, and no call has asked to be sent for `IDLE` seconds."""
        return now - self._wanted_at >= IDLE and not self._in_flight()

    def ask(self, now: float, name: str, worker: str, *, away: bool = False, last: bool = False) -> Ask:
        """
        Return the question for the store. *away*: the last question got no answer; *last*: the share is given back.
        """
        in_flight = self._in_flight()
        wanted = 0.0 if last or self.idle(now) else float(max(self._most, in_flight, 1) + 1)
        if self.waiting and not last:
            wanted = float(self._capacity)
        return Ask(
            limit=name,
            worker=worker,
            total=float(self._calls),
            wanted=min(wanted, float(self._capacity), float(self._calls)),
            held=self.held,
            least=0.0 if last else float(in_flight),
            away=away,
            period=PERIOD,
        )

    def unanswered(self, ask: Ask) -> None:
        """Do nothing when the store gives no answer, because `ask` has changed no number that must be restored."""

    def granted(self, grant: Grant, asked: float, now: float, *, back: bool) -> None:
        """Take over the share in *grant*, the answer to a question that was sent at *asked*."""
        self.held = grant.share
        self._ends = asked + 2 * PERIOD
        self._most = self._in_flight()
        self.waiting = False

    def next_ask(self, now: float) -> float:
        """Return the loop time at which the lessee asks the store for the share again."""
        return self._ends - PERIOD

    def told(self) -> str:
        """Return the share as a text for users."""
        return f"{self.held:.0f} calls in flight"
