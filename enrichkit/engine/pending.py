"""
The keys of a run that wait for a slot: which of them go next, and which go together.

Retries and halves of a poisoned group go first, as they are. Keys that have had no slot yet go in the order of their
arrival, or, to a source that keeps its keys in order, as a lift goes: each call takes the lowest keys that wait, and
those that come later and are lower wait for the next round. A B-tree of a million keys finds 2,000 that lie side by
side among the 80,000 that wait in a quarter of the time that it needs for 2,000 from all over.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..connector import Keys
from .lookup import Bundle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..outcome import Outcomes
    from .calls import Bisection
    from .lookup import Group, Lookup, Part

__all__ = ["Pending"]

PASSES = 4  # in search of a bound; each finds keys for about three quarters of the room that is left
SLICES = 256  # of which a round has the keys: to choose 2,000 takes under 1 ms, and 9 ms among 8,000 small slices


class Pending:
    """
    Keys without a slot.

    Args:
        neighbours: Keys that lie side by side go together; those of each bundle are in order.

    Attributes:
        neighbours: As given.
        keys: How many have had no slot yet.
        clocked: How many of them have a clock that runs all the same, and no outcome.
    """

    __slots__ = ("_fresh", "_later", "_reached", "_urgent", "clocked", "keys", "neighbours")

    def __init__(self, *, neighbours: bool = False) -> None:
        # Lookups come first, because bundles end from the head on.
        self._fresh: deque[Lookup | Bundle] = deque()
        self._later: deque[Lookup | Bundle] = deque()  # of the lift's next round; nothing unless `_fresh` has something
        self._urgent: deque[tuple[list[Lookup], Bisection | None]] = deque()
        self.neighbours = neighbours
        self._reached: Any = None  # the highest key of this round so far
        self.keys = 0
        self.clocked = 0

    def __bool__(self) -> bool:
        return bool(self._urgent or self._fresh)

    def groups(self, limit: int) -> int:
        """Return how many groups of at most *limit* lookups wait. Retries and halves are never merged."""
        return len(self._urgent) - (-self.keys // limit)

    def add(self, lookups: Sequence[Lookup]) -> None:
        """Append keys that are asked for the first time, each for itself."""
        self._fresh.extend(lookups)
        self.keys += len(lookups)

    def add_bundle(self, bundle: Bundle) -> None:
        """Append keys that are asked for the first time."""
        self.keys += len(bundle.keys)
        if self._fresh and self._reached is not None:
            keys, start, end = _place(bundle.keys)
            passed = bisect_right(keys, self._reached, start, end) - start
            if passed == len(bundle.keys):
                self._later.append(bundle)
                return
            if passed:
                self._later.append(bundle.cut(passed))
        self._fresh.append(bundle)

    def add_urgent(self, group: list[Lookup], bisection: Bisection | None) -> None:
        """Put *group*, a retry or half of a poisoned group, before all others that have had no slot."""
        self._urgent.append((group, bisection))

    def take(self, limit: int, only: Part | Outcomes | None) -> tuple[Group, Bisection | None]:
        """Remove and return the next group of at most *limit* keys, of the slice *only* or of any; empty if none."""
        while self._urgent:
            group, bisection = self._urgent.popleft()
            waiting = [lookup for lookup in group if not lookup.settled]
            if waiting:
                return waiting, bisection
        fresh = self._fresh
        others: list[Lookup | Bundle] = []
        if not fresh:
            return [], None
        if only is None:
            if limit == 1 and not (self.clocked or fresh[0].settled):  # the fast path
                self.keys -= 1
                return [fresh.popleft()], None
            if self.neighbours and all(isinstance(held, Bundle) for held in fresh):
                return self._side_by_side(limit), None
        elif self.neighbours:
            self._start_anew(len(self._later))
            others = [held for held in fresh if held.outcomes is not only]
            fresh = deque(held for held in fresh if held.outcomes is only)
        bundles: list[Bundle] = []
        lookups: list[Lookup] = []
        room = limit
        while fresh and room and (only is None or fresh[0].outcomes is only):
            first = fresh[0]
            if isinstance(first, Bundle):
                part = first
                if room < len(first.keys):
                    part = first.cut(room)
                else:
                    fresh.popleft()
                bundles.append(part)
                room -= len(part.keys)
                self.keys -= len(part.keys)
            else:
                fresh.popleft()
                self.keys -= 1
                self.clocked -= first.started is not None and not first.settled
                if not first.settled:
                    lookups.append(first)
                    room -= 1
        if fresh is not self._fresh:  # lookups first, as before: they may have clocks, and `clock` counts from the head
            self._fresh = deque(sorted((*others, *fresh), key=lambda held: isinstance(held, Bundle)))
        if not self._fresh:
            self._start_anew(SLICES)
        if lookups:
            for bundle in bundles:
                lookups += bundle.singly()
            return lookups, None
        return bundles, None

    def bundles(self) -> Iterator[Bundle]:
        """Iterate over the bundles that wait."""
        return (held for held in chain(self._fresh, self._later) if isinstance(held, Bundle))

    def clock(self, count: int) -> list[Lookup]:
        """Return the next lookups that have no clock, so many that *count* of those that wait will have one."""
        self._start_anew(len(self._later))
        starting: list[Lookup] = []
        passed: list[Lookup] = []
        while self._fresh and self.clocked < count:
            for lookup in self._fresh.popleft().singly():
                if self.clocked < count and lookup.started is None and not lookup.settled:
                    starting.append(lookup)
                    self.clocked += 1
                passed.append(lookup)
        self._fresh.extendleft(reversed(passed))
        return starting

    def drop_settled(self) -> None:
        """Forget the lookups at the head that have their outcome."""
        while self._fresh and self._fresh[0].settled:
            self._fresh.popleft()
            self.keys -= 1
        if not self._fresh:
            self._start_anew(SLICES)

    def clear(self) -> None:
        """Forget everything."""
        self._fresh.clear()
        self._later.clear()
        self._urgent.clear()
        self.keys = 0

    def _side_by_side(self, limit: int) -> list[Bundle]:
        """Take *limit* of the lowest keys of this round, or of the next ones what it has not."""
        fresh = self._fresh
        group: list[Bundle] = []
        room = limit
        while fresh and room:
            if len(fresh) > SLICES:
                self._later.extend([fresh.pop() for _ in range(len(fresh) - SLICES)][::-1])
            bundles: list[Bundle] = list(fresh)  # type: ignore[arg-type]  # the caller has looked
            fresh.clear()
            waiting = sum(len(bundle.keys) for bundle in bundles)
            if waiting > room:
                columns = [_place(bundle.keys) for bundle in bundles]
                counts = _lowest(columns, room)
                highest = [keys[start + n - 1] for (keys, start, _), n in zip(columns, counts, strict=True) if n]
                self._reached = max(highest)
                for bundle, count in zip(bundles, counts, strict=True):
                    whole = count == len(bundle.keys)
                    if count:
                        group.append(bundle if whole else bundle.cut(count))
                    if not whole:
                        fresh.append(bundle)
                room = 0
            else:
                group += bundles
                room -= waiting
                self._start_anew(SLICES)
        self.keys -= limit - room
        return group

    def _start_anew(self, slices: int) -> None:
        """Let the lift's next round begin, with *slices* of those that wait for it."""
        for _ in range(min(slices, len(self._later))):
            self._fresh.append(self._later.popleft())
        self._reached = None


def _place(keys: Sequence[Any]) -> tuple[Sequence[Any], int, int]:
    """*keys* as a part of a list, in which it is quicker to find one: the list, their start and their end."""
    return keys.place() if isinstance(keys, Keys) else (keys, 0, len(keys))


def _lowest(columns: list[tuple[Sequence[Any], int, int]], count: int) -> list[int]:
    """
    Return how many keys of each column are about the *count* lowest of all, which are more.

    A column is a part of a list: the list, the start and the end of the part. A bound is sought below which so many
    keys lie: the lowest of the keys up to which each column would give its equal share. What the others do not give for
    it is shared out again.
    """
    taken = [start for _, start, _ in columns]
    room = count

    def giving() -> list[int]:
        return [n for n, (_, _, end) in enumerate(columns) if taken[n] < end]

    for _ in range(PASSES):
        givers = giving()
        share = room // len(givers)
        if not share:
            break
        bound = min(columns[n][0][min(taken[n] + share, columns[n][2]) - 1] for n in givers)
        for n in givers:
            keys, _, end = columns[n]
            # Not more than its share even if its keys are in no order that Python knows, as broken UTF-8 may be.
            found = min(bisect_right(keys, bound, taken[n], end), taken[n] + share)
            room -= found - taken[n]
            taken[n] = found
    while room:  # for the last few keys no bound is sought: a call is full while keys wait
        givers = giving()
        share = -(-room // len(givers))
        for n in sorted(givers, key=lambda n: columns[n][0][taken[n]]):
            more = min(share, room, columns[n][2] - taken[n])
            room -= more
            taken[n] += more
    return [end - start for end, (_, start, _) in zip(taken, columns, strict=True)]
