"""
Whether the keys of a slice are in no other one that is under way.

Then nobody else waits for them, and they need no place in the table in which a key that is asked for already is found:
two looks at a hash table by Arrow, 30 ns per key without the interpreter's lock, for 90 ns of the table with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Apart"]

HELD = 4  # times as many keys may be compared with those of a slice; more of them cost more than the table


class Apart:
    """
    The slices that were admitted and have not left, in order, by the columns of their keys.

    Args:
        meet: Whether a key of one column is in one of several others. None: slices are not compared.
    """

    def __init__(self, meet: Callable[[Any, Sequence[Any]], bool] | None) -> None:
        self._meet = meet
        self._held: deque[Any] = deque()

    def enter(self, column: Any) -> bool:
        """Add a slice, and return whether it is known that its keys are in no other one; None: nothing is known."""
        if self._meet is None:
            return False
        if column is None:
            self._stop()
            return False
        few = sum(map(len, self._held)) <= HELD * len(column)
        if few and self._held and self._meet(column, self._held):
            self._stop()  # and so do others, as a rule
            return False
        self._held.append(column)
        return few

    def leave(self) -> None:
        """Remove the slice that came first."""
        if self._held:
            self._held.popleft()

    def _stop(self) -> None:
        self._meet = None
        self._held.clear()
