"""
The keys of a run that wait for a slot (a task that makes calls): which are sent next, and which share a call.

Retries go first, and so do the parts of a failed group, in which a bad key is searched for. Each retry or part has a
call of its own. Keys that have had no slot yet go in the order of their arrival. If the source stores its keys in
sorted order, they go in elevator order (SCAN) instead: each call takes the lowest keys that wait. A new key that is
lower than the last key taken waits for the next round, which starts again from the lowest key. A B-tree of a million
keys finds 2,000 neighboring keys, chosen from 80,000 that wait, in a quarter of the time that it needs for 2,000
scattered keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..interface import Keys
from .records import NO_SLICE, SETTLED, Bundle, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..outcome import Outcomes
    from .records import Group, Lookup, Part
    from .search import Search

__all__ = ["Pending"]

PASSES = 4  # passes of `_lowest`; each pass finds about three quarters of the keys that are still to be chosen
# Most bundles in a round of elevator order: choosing 2,000 keys from 256 bundles takes under 1 ms, but 9 ms from 8,000.
SLICES = 256


class Pending:
    """
    The keys of one run that wait for a slot.

    Args:
        neighbours: Whether keys that are close in sort order go together, in elevator order; the keys of each bundle
            are then sorted.
        mixed: Whether keys of a slice can arrive after keys of later slices, as they do when a tier (another source) is
            asked first.
        alone: Whether each key has a call of its own, so that all entries are lookups and none is a bundle.

    Attributes:
        neighbours: The argument *neighbours*.
        keys: Number of keys that have had no slot yet.
        fresh_first: Whether keys that have had no slot go before those that have had one. This is set while the source
            is away, so that probes are made with keys that have not failed: a failed key may itself be the reason for
            the failure.
        clocked: Number of keys that have had neither a slot nor an outcome, but whose clock (for the timeout) already
            runs.
    """

    __slots__ = (
        "_alone",
        "_fresh",
        "_later",
        "_mixed",
        "_reached",
        "_urgent",
        "clocked",
        "fresh_first",
        "keys",
        "neighbours",
    )

    def __init__(self, *, neighbours: bool = False, mixed: bool = False, alone: bool = False) -> None:
        # Keys that have had no slot. Lookups come before bundles, because bundles are split into lookups from the head
        # on.
        self._fresh: deque[Lookup | Bundle] = deque()
        self._later: deque[Lookup | Bundle] = deque()  # keys of the next round; empty whenever `_fresh` is empty
        self._urgent: deque[tuple[list[Lookup], Search | None]] = deque()
        self.neighbours = neighbours
        self._mixed = mixed or neighbours
        self._alone = alone
        self._reached: Any = None  # the highest key that a call has taken in this round; None: none was taken
        self.keys = 0
        self.clocked = 0
        self.fresh_first = False

    def __bool__(self) -> bool:
        return bool(self._urgent or self._fresh)

    def groups(self, limit: int) -> int:
        """
        Return how many groups of at most *limit* keys wait; each retry or part of a failed group is a group of its own.
        """
        return len(self._urgent) - (-self.keys // limit)

    def add(self, lookups: Sequence[Lookup]) -> None:
        """Append *lookups*, keys that have had no slot."""
        self._fresh.extend(lookups)
        self.keys += len(lookups)

    def add_bundle(self, bundle: Bundle) -> None:
        """Append *bundle*, whose keys have had no slot; keys that elevator order has passed wait for the next round."""
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

    def add_urgent(self, group: list[Lookup], search: Search | None) -> None:
        """Append *group*, a retry or a part of a failed group, to the urgent groups, which normally go first."""
        self._urgent.append((group, search))

    def take(self, limit: int, only: Part | Outcomes | None) -> tuple[Group, Search | None]:
        """
        Remove and return the next group of at most *limit* keys, and the search that it is a part of, or None.

        If *only* is given, keys that have had no slot are taken from this slice only. If no key may be taken, the group
        is empty.
        """
        fresh = self._fresh
        if self._alone and only is None and fresh and not (self._urgent or self.clocked or fresh[0].state is SETTLED):
            self.keys -= 1  # the fast path, inline: one more function call takes 2 % of the time of a lookup
            return [fresh.popleft()], None
        if self._urgent:
            if self.fresh_first and (taken := self._take_fresh(limit, only)):
                return taken, None
            while self._urgent:
                group, search = self._urgent.popleft()
                waiting = [lookup for lookup in group if not lookup.settled]
                if waiting:
                    return waiting, search
        return self._take_fresh(limit, only), None

    def _take_fresh(self, limit: int, only: Part | Outcomes | None) -> Group:
        """Take at most *limit* keys that have had no slot."""
        fresh = self._fresh
        if not fresh or only is NO_SLICE:
            return []
        if only is not None and self._mixed:
            return self._take_only(limit, only)
        if self.neighbours and all(isinstance(held, Bundle) for held in fresh):
            return self._take_neighbours(limit)
        taken = self._take_in_order(fresh, limit, only)
        if not fresh:
            self._start_round(SLICES)
        return taken

    def _take_only(self, limit: int, only: Part | Outcomes) -> Group:
        """Take at most *limit* keys that the slice *only* waits for, wherever they are in the queue."""
        self._start_round(len(self._later))
        others: list[Lookup | Bundle] = []
        fresh: deque[Lookup | Bundle] = deque()
        for held in self._fresh:
            (fresh if held.concerns(only) else others).append(held)
        group = self._take_in_order(fresh, limit, None)
        # Lookups stay before bundles, because their clocks may run already, and `clock` starts clocks from the head on.
        self._fresh = deque(sorted((*others, *fresh), key=lambda held: isinstance(held, Bundle)))
        return group

    def _take_in_order(self, fresh: deque[Lookup | Bundle], limit: int, only: Part | Outcomes | None) -> Group:
        """Take at most *limit* keys from the head of *fresh*; with *only*, stop at a key of another slice."""
        bundles: list[Bundle] = []
        lookups: list[Lookup] = []
        room = limit
        while fresh and room and (only is None or fresh[0].outcomes is only):
            first = fresh[0]
            if isinstance(first, Bundle):
                bundle = first
                if room < len(first.keys):
                    bundle = first.cut(room)
                else:
                    fresh.popleft()
                bundles.append(bundle)
                room -= len(bundle.keys)
                continue
            fresh.popleft()
            self.keys -= 1
            self.clocked -= first.started is not None and not first.settled
            if not first.settled:
                lookups.append(first)
                room -= 1
        self.keys -= sum(len(bundle.keys) for bundle in bundles)
        if not lookups:
            return bundles
        for bundle in bundles:
            lookups += bundle.singly()
        return lookups

    def put_back(self, group: Group, search: Search | None) -> None:
        """Put *group* back at the head of its queue, as if it had not been taken."""
        lookups = [held for held in group if not isinstance(held, Bundle)]
        if lookups and (search is not None or lookups[0].state is not State.PENDING):
            self._urgent.appendleft((lookups, search))
            return
        self._fresh.extendleft(reversed(group))
        self.keys += sum(len(held.keys) if isinstance(held, Bundle) else 1 for held in group)
        self.clocked += sum(lookup.started is not None and not lookup.settled for lookup in lookups)

    def take_urgent(self) -> list[tuple[list[Lookup], Search | None]]:
        """Remove and return all urgent groups: the retries and the parts of failed groups."""
        taken = list(self._urgent)
        self._urgent.clear()
        return taken

    def bundles(self) -> Iterator[Bundle]:
        """Iterate over the bundles that wait for a slot."""
        return (held for held in chain(self._fresh, self._later) if isinstance(held, Bundle))

    def separate(self) -> None:
        """Replace the bundles that wait by lookups, one for each key."""
        self._start_round(len(self._later))
        self._fresh = deque(lookup for held in self._fresh for lookup in held.singly())

    def lookups(self) -> list[Lookup]:
        """Return the lookups that wait for a slot and have no outcome yet; keys in bundles are left out."""
        fresh = (held for held in self._fresh if not isinstance(held, Bundle))
        urgent = (lookup for group, _ in self._urgent for lookup in group)
        return [lookup for lookup in chain(urgent, fresh) if not lookup.settled]

    def clock(self, count: int) -> list[Lookup]:
        """
        Return the next lookups whose clocks the caller has to start, so that the clocks of *count* waiting lookups run.
        """
        self._start_round(len(self._later))
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
        """Remove the lookups at the head of the queue that already have their outcome."""
        while self._fresh and self._fresh[0].settled:
            self._fresh.popleft()
            self.keys -= 1
        if not self._fresh:
            self._start_round(SLICES)

    def clear(self) -> None:
        """Remove all keys."""
        self._fresh.clear()
        self._later.clear()
        self._urgent.clear()
        self.keys = 0

    def _take_neighbours(self, limit: int) -> list[Bundle]:
        """
        Take the *limit* lowest keys of this round of elevator order; if there are fewer, take keys of the next rounds.
        """
        fresh = self._fresh
        group: list[Bundle] = []
        room = limit
        while fresh and room:
            if len(fresh) > SLICES:
                self._later.extend([fresh.pop() for _ in range(len(fresh) - SLICES)][::-1])
            bundles: list[Bundle] = list(fresh)  # type: ignore[arg-type]  # `_take_fresh` has checked it
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
                self._start_round(SLICES)
        self.keys -= limit - room
        return group

    def _start_round(self, slices: int) -> None:
        """Begin the next round of elevator order, with at most *slices* of the entries in `_later`."""
        for _ in range(min(slices, len(self._later))):
            self._fresh.append(self._later.popleft())
        self._reached = None


def _place(keys: Sequence[Any]) -> tuple[Sequence[Any], int, int]:
    """Return *keys* as a range of a list (list, start, end), because bisection is quicker in a list than in `Keys`."""
    return keys.place() if isinstance(keys, Keys) else (keys, 0, len(keys))


def _lowest(columns: list[tuple[Sequence[Any], int, int]], count: int) -> list[int]:
    """
    Choose about the *count* lowest keys of several sorted columns, and return how many each column contributes.

    A column is a range of a list: the list, the start and the end. All columns together have more than *count* keys.
    Each pass splits the number of keys that are still to be chosen equally among the columns, and finds the last key of
    each column's share. The lowest of these keys is the bound: every column contributes its keys up to the bound. The
    next pass splits the number that then remains.
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
            # With broken UTF-8, keys may not be in Python's order, and the bisection may find more than the share.
            found = min(bisect_right(keys, bound, taken[n], end), taken[n] + share)
            room -= found - taken[n]
            taken[n] = found
    while room:  # take the last few keys without a bound, because a call is to be full while keys wait
        givers = giving()
        share = -(-room // len(givers))
        for n in sorted(givers, key=lambda n: columns[n][0][taken[n]]):
            more = min(share, room, columns[n][2] - taken[n])
            room -= more
            taken[n] += more
    return [end - start for end, (_, start, _) in zip(taken, columns, strict=True)]
