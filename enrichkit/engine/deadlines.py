"""
The deadlines of a run, and the periodic timer that checks all deadlines of an engine.

A timer per lookup would cost more than the lookup. All lookups of a run have the same timeout, so their deadlines come
in the order in which their clocks started: a deque of (deadline, lookups) and one periodic timer are enough. The price:
a timeout is noticed late, by up to 50 ms or a twentieth of the shortest timeout, whichever is less.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .records import Bundle, Lookup

__all__ = ["TICKS_PER_TIMEOUT", "TICK_MAX", "Deadlines", "Sweeper", "prune"]

TICK_MAX = 0.05
TICKS_PER_TIMEOUT = 20
GAP = 1.0
"""If a sweep (a check of all deadlines) is late by more seconds than this, the process or the loop stood still."""
FEW_RECORDS = 1000  # this many records take 150 KB: too little to be worth a search for empty ones


class Deadlines:
    """The deadlines of one run, earliest first."""

    __slots__ = ("_many", "_records", "timeout")

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._records: deque[tuple[float, Sequence[Lookup | Bundle]]] = deque()
        self._many = FEW_RECORDS

    def start(self, lookups: Sequence[Lookup | Bundle], now: float, spent: float = 0.0) -> None:
        """
        Start the clocks of *lookups* as if *spent* seconds had passed already, and keep the list *lookups* itself.

        The caller removes settled lookups from the list with `prune`; otherwise they would stay in memory until their
        deadline.
        """
        started = now - spent
        for lookup in lookups:
            lookup.started = started
        if self.timeout is not None and lookups:
            deadline = started + self.timeout
            if spent:
                self._insert(deadline, lookups)
            else:
                self._records.append((deadline, lookups))
            if len(self._records) > self._many:
                self._compact()

    def _insert(self, deadline: float, lookups: Sequence[Lookup | Bundle]) -> None:
        """
        Insert *lookups* in the order of deadlines.

        Their *deadline* may be earlier than others in the deque, because tiers (sources asked first) have used up a
        part of their timeout.
        """
        place = len(self._records)
        while place and self._records[place - 1][0] > deadline:
            place -= 1
        self._records.insert(place, (deadline, lookups))

    def of(self, lookup: Lookup) -> float:
        """Return the loop time at which *lookup* times out."""
        return math.inf if self.timeout is None or lookup.started is None else lookup.started + self.timeout

    def expired(self, now: float) -> Iterator[Lookup]:
        """Remove the deadlines that have passed, and yield those of their lookups that have no outcome yet."""
        records = self._records
        while records and (records[0][0] <= now or not records[0][1]):
            for held in tuple(records.popleft()[1]):  # a copy, because `singly` changes the record
                for lookup in held.singly():
                    if not lookup.settled:
                        yield lookup

    def stand_still(self, since: float, until: float) -> None:
        """Postpone all deadlines as if no clock had run between *since* and *until*; *until* is the present time."""
        timeout = self.timeout
        if timeout is None:
            return
        moved: deque[tuple[float, Sequence[Lookup | Bundle]]] = deque()
        seen: set[Lookup | Bundle] = set()
        for deadline, lookups in reversed(self._records):
            stood = until - max(since, deadline - timeout)
            for lookup in lookups:
                # A lookup whose clock was restarted is in an earlier record, too. `seen` makes sure that its `started`
                # is moved only once.
                if lookup.started is not None and lookup not in seen:
                    lookup.started = min(until, lookup.started + stood)  # rounding may make the sum later than now
                    seen.add(lookup)
            moved.appendleft((deadline + stood, lookups))
        self._records = moved

    def _compact(self) -> None:
        """Drop the empty records; in an unordered run they pile up behind a record with one slow lookup."""
        live = [record for record in self._records if record[1]]
        self._records.clear()
        self._records.extend(live)
        self._many = max(FEW_RECORDS, 2 * len(live))


def prune(record: list[Any]) -> None:
    """Remove from *record* the lookups that have their outcome."""
    if len(record) == 1 and record[0].settled:
        record.clear()
        return
    record[:] = [lookup for lookup in record if not lookup.settled]


class Sweeper:
    """
    A timer that, once woken, calls *sweep* every `tick` seconds, until *sweep* returns False because nothing is left to
    watch.

    If a sweep is late by more than `GAP`, nothing has been read from the sockets in that time, for example after
    SIGSTOP or in a virtual machine that was paused. Then *stood_still* is called with the time at which the sweep was
    due and the present time. The sweep waits for another tick, in which the loop reads the answers that came meanwhile.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sweep: Callable[[float], bool],
        stood_still: Callable[[float, float], None],
    ) -> None:
        self._loop = loop
        self._sweep = sweep
        self._stood_still = stood_still
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._fired = 0.0
        self.tick = TICK_MAX
        self.idle = True
        self._stopped = False

    def watch(self, tick: float) -> None:
        """Shorten the time between two sweeps to *tick* seconds, if it is longer now."""
        self.tick = min(self.tick, tick)

    def wake(self) -> None:
        """Start the timer, if it does not run."""
        if self.idle:
            self.idle = False
            self._due = self._loop.time() + self.tick
            self._timer = self._loop.call_later(self.tick, self._fire)

    def stop(self) -> None:
        """Cancel the timer."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self.idle = True

    def _fire(self) -> None:
        self._fired = self._loop.time()
        if self._was_late(self._due, self._fired):
            return
        # An answer that came in this turn of the event loop is in time, but reaches its slot two turns later. So the
        # deadlines are checked only then.
        self._loop.call_soon(self._loop.call_soon, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        if self._stopped or self._was_late(self._fired, now):  # the process may have stood still in the two turns
            return
        self.idle = True
        if self._sweep(now):
            self.wake()

    def _was_late(self, due: float, now: float) -> bool:
        """Return whether *now* is more than `GAP` after *due*; if so, call *stood_still* and wait for another tick."""
        if now - due <= GAP:
            return False
        self._stood_still(due, now)
        self.idle = True
        self.wake()
        return True
