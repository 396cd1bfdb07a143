"""
The window (the limit on rows held at a time), and the two queues that decide which finished entry is returned to Spark
next, as in Flink.

`OrderedQueue` follows Flink's `OrderedStreamElementQueue`: an entry is returned when it is done and all earlier entries
have been returned. `UnorderedQueue` follows `UnorderedStreamElementQueue`: entries are returned as they become ready,
but never cross a barrier. A barrier is an entry that is done from the start; it separates the entries before it from
those after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["OrderedQueue", "Ticket", "UnorderedQueue", "Window"]

T = TypeVar("T")


class Ticket(Generic[T]):
    """One entry's place in a queue."""

    __slots__ = ("done", "entry", "parts", "segment")

    def __init__(self, entry: T) -> None:
        self.entry = entry
        self.parts: list[T] = []
        self.done = False
        self.segment: _Segment[T] | None = None


class OrderedQueue(Generic[T]):
    """A queue that returns entries in the order in which they came; a slow first entry holds all later ones back."""

    def __init__(self) -> None:
        self._tickets: deque[Ticket[T]] = deque()

    def __len__(self) -> int:
        return len(self._tickets)

    def put(self, entry: T) -> Ticket[T]:
        """Append *entry* and return its ticket."""
        ticket = Ticket(entry)
        self._tickets.append(ticket)
        return ticket

    def put_barrier(self, barrier: T) -> None:
        """Append *barrier*, which is done from the start."""
        self.ready(self.put(barrier), barrier)

    def ready(self, ticket: Ticket[T], part: T, *, last: bool = True) -> None:
        """Hand in a *part* of an entry; the *last* part makes the entry done, and later parts are ignored."""
        if not ticket.done:
            ticket.parts.append(part)
            ticket.done = last

    def pop(self) -> list[T]:
        """Remove the done entries at the head and return their parts in order."""
        leaving: list[T] = []
        while self._tickets and self._tickets[0].done:
            ticket = self._tickets.popleft()
            leaving += ticket.parts
            del ticket.parts, ticket.entry  # both refer to the ticket; breaking this cycle frees all three immediately
        return leaving

    def head(self) -> T | None:
        """Return the oldest entry that is not done, or None."""
        return next((ticket.entry for ticket in self._tickets if not ticket.done), None)

    def entries(self) -> Iterator[T]:
        """Iterate over the entries that have not been returned, in order, done entries included."""
        return (ticket.entry for ticket in self._tickets)


class _Segment(Generic[T]):
    """The entries between two barriers."""

    __slots__ = ("parts", "pending")

    def __init__(self) -> None:
        # the entries that are not done, by `id` of the ticket, in order of arrival
        self.pending: dict[int, Ticket[T]] = {}
        self.parts: deque[tuple[Ticket[T], T, bool]] = deque()

    def drained(self) -> bool:
        return not self.pending and not self.parts


class UnorderedQueue(Generic[T]):
    """A queue that returns parts as they become ready, except that no part crosses a barrier."""

    def __init__(self) -> None:
        self._segments: deque[_Segment[T]] = deque([_Segment()])
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, entry: T) -> Ticket[T]:
        """Add *entry* to the last segment (the entries after the last barrier), and return its ticket."""
        ticket = Ticket(entry)
        ticket.segment = self._segments[-1]
        ticket.segment.pending[id(ticket)] = ticket
        self._size += 1
        return ticket

    def put_barrier(self, barrier: T) -> None:
        """
        Add *barrier*: entries that were put earlier are returned before it, and entries that are put later after it.
        """
        # As in Flink, a last segment that is empty is used again, so that 10,000 barriers leave no empty segments
        # behind.
        if not self._segments[-1].drained():
            self._segments.append(_Segment())
        self.ready(self.put(barrier), barrier)
        self._segments.append(_Segment())

    def ready(self, ticket: Ticket[T], part: T, *, last: bool = True) -> None:
        """
        Hand in a *part* of an entry; the *last* part ends the entry.

        The part is returned as soon as all entries before its segment (the entries between two barriers) have been
        returned.
        """
        if ticket.done:
            return
        segment = ticket.segment
        assert segment is not None
        segment.parts.append((ticket, part, last))
        if last:
            ticket.done = True
            del segment.pending[id(ticket)]

    def pop(self) -> list[T]:
        """Remove and return the ready parts up to the first barrier that still waits for an earlier entry."""
        leaving: list[T] = []
        while True:
            segment = self._segments[0]
            while segment.parts:
                ticket, part, last = segment.parts.popleft()
                leaving.append(part)
                if last:
                    self._size -= 1
                    del ticket.entry  # it refers to the ticket; breaking this cycle frees both immediately
            if segment.pending or len(self._segments) == 1:
                return leaving
            self._segments.popleft()

    def head(self) -> T | None:
        """Return the oldest entry that is not done, or None."""
        return next((ticket.entry for segment in self._segments for ticket in segment.pending.values()), None)

    def entries(self) -> Iterator[T]:
        """
        Iterate over what is queued: per segment (the entries between two barriers), the ready parts in order, then the
        pending entries in order.
        """
        for segment in self._segments:
            yield from (part for _, part, _ in segment.parts)
            yield from (ticket.entry for ticket in segment.pending.values())


class Window:
    """
    The limit on the rows that are admitted (taken from Spark) and not yet emitted (returned to Spark).

    The window starts small, if *start* is given, and doubles with each emission, so that a job that wants a few rows
    (`show`, `limit`) does not look up a whole window.

    Attributes:
        held: Rows admitted and not yet emitted.
        size: Most rows that may be held now; it grows up to `limit`.
        limit: Most rows that may ever be held: the upper bound of `size`.
    """

    __slots__ = ("held", "limit", "size")

    def __init__(self, limit: int, start: int | None = None) -> None:
        if limit < 1:
            raise ValueError(f"window is {limit}; it must be at least 1 row.")
        self.limit = limit
        self.size = limit if start is None else max(1, min(start, limit))
        self.held = 0

    def admits(self, rows: int) -> bool:
        """
        Whether another *rows* rows fit. An empty window admits any slice; otherwise a large one would wait forever.
        """
        return self.held == 0 or self.held + rows <= self.size

    def enter(self, rows: int) -> None:
        """Count *rows* as admitted."""
        self.held += rows

    def leave(self, rows: int) -> None:
        """Count *rows* as emitted, and let the window grow."""
        self.held -= rows
        self.size = min(self.limit, 2 * self.size)
