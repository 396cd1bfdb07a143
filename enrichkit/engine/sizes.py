"""
How many bytes keys and values take: a quick estimate, or the exact number, as `tracemalloc` counts.

The sizes determine how many keys a call and how many rows a slice may have so that their values fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import getsizeof
from typing import Any

__all__ = ["SMALL", "TEXT_BYTES", "BytesEach", "Sizes", "first_keys", "size_of", "sizes_of"]

SMALL = frozenset((int, float, bool, type(None)))
"""Types whose values take a few bytes."""

TEXT_BYTES = 50
"""Bytes that a text takes besides its characters."""

_PLAIN_TEXT = frozenset((bytes, str))

FLAT = frozenset((bytes, str, float))
"""Types whose values are single objects, each of which belongs to one value only."""
SHARED_INTS = range(-5, 257)
"""The whole numbers of which CPython keeps one object each, so that they take no bytes of their own."""
NAMES = 1_000
"""Most names of fields that `Sizes` remembers; a struct has fewer fields."""
DECAY = 0.9
"""An estimate falls by this factor at most with each call or part; one large value still has no lasting effect."""
FIRST_KEYS = 10
"""Most keys of a call while no answer has come, if the batch size is more than `FEW_KEYS`."""
FEW_KEYS = 100
"""Batch size up to which the first calls are full, because a source with small batches may charge for each call."""


def sizes_of(values: Iterable[Any]) -> int:
    """Return about how many bytes *values* take: the sum of `size_of`, more quickly where all are text or small."""
    each = list(values)
    kinds = set(map(type, each))
    if kinds <= _PLAIN_TEXT:
        return sum(map(len, each)) + TEXT_BYTES * len(each)
    return 32 * len(each) if kinds <= SMALL else sum(map(size_of, each))


def size_of(value: Any) -> int:
    """Return about how many bytes *value* takes, containers included."""
    if type(value) is str or type(value) is bytes:
        return len(value) + TEXT_BYTES
    total = getsizeof(value)
    if isinstance(value, dict):
        total += sum(size_of(k) + size_of(v) for k, v in value.items())
    elif isinstance(value, list | tuple):
        total += sum(map(size_of, value))
    return total


class BytesEach:
    """
    An estimate of the bytes of an answer, or of the values of a row, and of how many of them fit into memory.

    Args:
        first: How many answers or rows there may be while no size is known; None: any number.

    Attributes:
        each: The bytes of one answer or row, estimated from the last calls or parts; None: no size is known.
    """

    __slots__ = ("_first", "each")

    def __init__(self, first: int | None = None) -> None:
        self._first = first
        self.each: float | None = None

    def most(self, limit: int, room: float) -> int:
        """Return how many answers or rows fit into *room* bytes, *limit* at most and 1 at least."""
        if self.each is None:
            return limit if self._first is None else min(limit, self._first)
        return max(1, min(limit, int(room / self.each)))

    def saw(self, size: int, count: int) -> bool:
        """
        Learn that *count* (1 or more) answers or rows took *size* bytes; return whether the estimate is new or higher.
        """
        was = self.each
        self.each = max(1.0, DECAY * (was or 0.0), size / count)
        return was is None or self.each > was


def first_keys(batch_size: int) -> int | None:
    """Return how many keys a call may have while no answer has come; None: the call may have *batch_size* keys."""
    return FIRST_KEYS if batch_size > FEW_KEYS else None


class Sizes:
    """
    A counter of the bytes of values of one type.

    The decoder uses the same text objects as field names in all structs. Such a name is counted once, with the first
    value.
    """

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def of(self, values: Iterable[Any]) -> int:
        """Return the bytes of all *values*, containers and their parts included."""
        each = list(values)
        if set(map(type, each)) <= FLAT:
            return sum(map(getsizeof, each))
        return sum(map(self._one, each))

    def _one(self, value: Any) -> int:
        kind = type(value)
        if kind in FLAT:
            return getsizeof(value)
        if value is None or kind is bool or (kind is int and value in SHARED_INTS):
            return 0
        if kind is dict:
            return getsizeof(value) + sum(map(self._name, value)) + sum(map(self._one, value.values()))
        if kind is list or kind is tuple:
            return getsizeof(value) + sum(map(self._one, value))
        return getsizeof(value)

    def _name(self, name: Any) -> int:
        names = self._names
        if names.get(name) is name:
            return 0
        if len(names) < NAMES and type(name) is str and name not in names:
            names[name] = name
        return self._one(name)
