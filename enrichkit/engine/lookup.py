"""What a run is made of: lookups, bundles of them, and the part of a slice that leaves."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..outcome import Outcomes
    from .calls import InFlight

__all__ = ["Bundle", "Group", "Lookup", "Part"]


class Lookup:
    """
    One distinct key from admission to its outcome.

    Attributes:
        started: Loop time of its first slot; None before.
        attempts: Calls made with it.
        failures: Transient failures so far.
        routes: Ways in which an answer may still come: calls in flight, waits, a place in the pending queue.
        call: The last call that holds it.
        attached: It joined a call that was already draining, so that call's failure is not its own.
        more: Further slices that wait for it, with their index of the key.
    """

    __slots__ = (
        "attached",
        "attempts",
        "call",
        "error",
        "failures",
        "index",
        "key",
        "more",
        "outcomes",
        "routes",
        "settled",
        "started",
    )

    def __init__(self, key: Any, outcomes: Outcomes, index: int) -> None:
        self.key = key
        self.outcomes = outcomes
        self.index = index
        self.more: list[tuple[Outcomes, int]] | None = None
        self.started: float | None = None
        self.attempts = 0
        self.failures = 0
        self.routes = 1
        self.settled = False
        self.attached = False
        self.error: BaseException | None = None
        self.call: InFlight | None = None

    def wait(self, key: Any, outcomes: Outcomes, index: int) -> None:
        """Let a further slice wait for *key*, which has there the place *index*."""
        if self.more is None:
            self.more = []
        self.more.append((outcomes, index))

    def singly(self) -> Sequence[Lookup]:
        """Return this lookup; for `Bundle.singly`."""
        return (self,)


class Bundle:
    """
    Lookups that nothing has told apart yet, at the price of one: of some keys of one slice.

    They wait for a slot together, and in a call of several keys they travel and end together. Whatever concerns one of
    them alone, be it a deadline or a failure, makes a `Lookup` of each first, so that all rules are about lookups.

    Attributes:
        keys: Keys of the slice *outcomes*; `indices` are their places there.
        entered: The table finds it, or what it was cut from, under its keys.
        started: Loop time of its slot; None before.
        call: The call that holds it.
        more: By key, further slices that wait for it, with their index of the key; shared with what was cut from it.
    """

    __slots__ = ("_lookups", "_table", "call", "entered", "indices", "keys", "more", "outcomes", "started")

    settled = False  # when its keys have their outcomes, it is gone

    def __init__(self, table: dict[Any, Any], outcomes: Outcomes, keys: Sequence[Any], indices: Sequence[int]) -> None:
        self._table = table
        self.outcomes = outcomes
        self.keys = keys
        self.indices = indices
        self.started: float | None = None
        self.call: InFlight | None = None
        self.more: dict[Any, list[tuple[Outcomes, int]]] = {}
        self.entered = False
        self._lookups: list[Lookup] | None = None

    def enter(self) -> int:
        """
        Let the table find the bundle under its keys, and leave those to their holder that it finds somebody else under.

        Returns:
            How many keys were left so.
        """
        self.entered = True
        holders: list[Lookup | Bundle] = list(map(self._table.setdefault, self.keys, repeat(self)))
        held = len(holders) - holders.count(self)
        if held:
            mine: list[tuple[Any, int]] = []
            for holder, key, index in zip(holders, self.keys, self.indices, strict=True):
                if holder is self:
                    mine.append((key, index))
                else:
                    holder.wait(key, self.outcomes, index)
            self.keys, self.indices = [key for key, _ in mine], [index for _, index in mine]
        return held

    def wait(self, key: Any, outcomes: Outcomes, index: int) -> None:
        """Let a further slice wait for *key*, which has there the place *index*."""
        self.more.setdefault(key, []).append((outcomes, index))

    def cut(self, size: int) -> Bundle:
        """Remove the first *size* keys, and return them as a bundle."""
        first = Bundle(self._table, self.outcomes, self.keys[:size], self.indices[:size])
        self.keys, self.indices = self.keys[size:], self.indices[size:]
        first.entered, first.more = self.entered, self.more  # so that the table may go on to find either
        return first

    def singly(self) -> list[Lookup]:
        """Return a lookup for each key, in order; they take the place of the bundle, and of the others of its call."""
        if self._lookups is None:
            self._lookups = [
                Lookup(key, self.outcomes, index) for key, index in zip(self.keys, self.indices, strict=True)
            ]
            self._table.update(zip(self.keys, self._lookups, strict=True))
            if self.more:
                for lookup in self._lookups:
                    lookup.more = self.more.pop(lookup.key, None)
            if self.call is not None:
                self.call.separate()
        return self._lookups


Group: TypeAlias = "Sequence[Lookup | Bundle]"
"""What a call is made with, all of one kind."""


class Part:
    """
    What leaves a run: a whole slice, or in unordered mode the rows of some of its keys.

    Attributes:
        outcomes: The slice.
        indices: The keys whose rows leave; None: all rows; empty: the rows with a null key.
        rows: How many rows leave.
        bytes: About how many bytes of values leave.
    """

    __slots__ = ("bytes", "indices", "outcomes", "rows")

    def __init__(self, outcomes: Outcomes, indices: list[int] | None, rows: int, size: int) -> None:
        self.outcomes = outcomes
        self.indices = indices
        self.rows = rows
        self.bytes = size
