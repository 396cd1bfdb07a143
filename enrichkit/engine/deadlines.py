"""
One sweeper for all deadlines of an engine.

A timer per lookup costs more than the lookup. All lookups of a run have the same timeout, so their deadlines come in
the order of their start: a deque of (deadline, lookups) and one periodic timer do. The price is a resolution of at
most 50 ms or a twentieth of the shortest timeout.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lookup import Bundle, Lookup

__all__ = ["Deadlines", "Sweeper", "prune"]

TICK_MAX = 0.05
TICKS_PER_TIMEOUT = 20
FEW_RECORDS = 1000  # that is 150 KB: no reason to look for empty ones


class Deadlines:
    """The deadlines of one run, earliest first."""

    __slots__ = ("_many", "_records", "timeout")

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self._records: deque[tuple[float, Sequence[Lookup | Bundle]]] = deque()
        self._many = FEW_RECORDS

    def start(self, lookups: Sequence[Lookup | Bundle], now: float) -> None:
        """
        Start the clock of *lookups*, which is kept as the record of it.

        Whoever settles most of them empties the record with `prune`, or they would be kept for a whole timeout.
        """
        for lookup in lookups:
            lookup.started = now
        if self.timeout is not None and lookups:
            self._records.append((now + self.timeout, lookups))
            if len(self._records) > self._many:
                self._compact()

    def of(self, lookup: Lookup) -> float:
        """Return when *lookup* times out."""
        return math.inf if self.timeout is None or lookup.started is None else lookup.started + self.timeout

    def expired(self, now: float) -> Iterator[Lookup]:
        """Remove the deadlines that have passed; yield their lookups that have no outcome yet."""
        records = self._records
        while records and (records[0][0] <= now or not records[0][1]):
            for held in tuple(records.popleft()[1]):  # a bundle that ends changes the record
                for lookup in held.singly():
                    if not lookup.settled:
                        yield lookup

    def _compact(self) -> None:
        """Drop the empty records, which one lookup that takes long keeps behind it in a run without order."""
        live = [record for record in self._records if record[1]]
        self._records.clear()
        self._records.extend(live)
        self._many = max(FEW_RECORDS, 2 * len(live))


def prune(record: list[Any]) -> None:
    """Drop the lookups of *record* that have their outcome."""
    if len(record) == 1 and record[0].settled:
        record.clear()
        return
    record[:] = [lookup for lookup in record if not lookup.settled]


class Sweeper:
    """Calls *sweep* every *tick* seconds from `wake` until it returns False: nothing left to watch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sweep: Callable[[float], bool]) -> None:
        self._loop = loop
        self._sweep = sweep
        self._timer: asyncio.TimerHandle | None = None
        self.tick = TICK_MAX
        self.idle = True

    def watch(self, timeout: float) -> None:
        """Make the tick fine enough for deadlines of *timeout* seconds."""
        self.tick = min(self.tick, timeout / TICKS_PER_TIMEOUT)

    def wake(self) -> None:
        """Make sure that the timer runs."""
        if self.idle:
            self.idle = False
            self._timer = self._loop.call_later(self.tick, self._fire)

    def stop(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self.idle = True

    def _fire(self) -> None:
        self.idle = True
        if self._sweep(self._loop.time()):
            self.wake()
