"""
The check whether a slice, i.e. rows that enter a run together, has keys in common with another slice under way.

If a slice has no key in common with another, no other slice waits for its keys, so they need not be entered in
the run's table of lookups by key. Arrow does the check by looking each key up in two hash tables, which takes 30 ns per
key and does not hold the GIL. Entering a key in the run's table takes 90 ns and holds the GIL.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["OverlapCheck"]

COMPARED_MAX = 4  # a slice of n keys is compared with at most 4 n other keys; for more keys, the run's table is cheaper


class OverlapCheck:
    """
    The key columns of the slices that were admitted and not yet returned to Spark, in order.

    Args:
        intersects: Function that returns whether a column has a key in common with any of several other columns. None:
            slices are not compared.
    """

    def __init__(self, intersects: Callable[[Any, Sequence[Any]], bool] | None) -> None:
        self._intersects = intersects
        self._columns: deque[Any] = deque()

    def enter(self, column: Any) -> bool:
        """
        Add a slice.

        Args:
            column: The keys of the slice as one Arrow column; None: the keys are not in a column, so they cannot be
                compared.

        Returns:
            True when this slice has no key in common with another slice; False when it has one, or when the slices were
            not compared.
        """
        if self._intersects is None:
            return False
        if column is None:
            self._stop()
            return False
        is_compared = sum(map(len, self._columns)) <= COMPARED_MAX * len(column)
        if is_compared and self._columns and self._intersects(column, self._columns):
            self._stop()  # when two slices share a key, later slices usually do, too
            return False
        self._columns.append(column)
        return is_compared

    def leave(self) -> None:
        """Remove the oldest slice, because its rows have been returned to Spark."""
        if self._columns:
            self._columns.popleft()

    def _stop(self) -> None:
        """Compare no slices for the rest of the run."""
        self._intersects = None
        self._columns.clear()
