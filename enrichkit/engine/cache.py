"""Answers remembered in a worker process across runs, within a time and a number of bytes."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from typing import Any, Final

__all__ = ["ABSENT", "MISS", "SMALL", "TEXT_BYTES", "AnswerCache", "size_of"]


class _Mark:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


ABSENT: Final = _Mark("ABSENT")
"""The cache does not know the key."""
MISS: Final = _Mark("MISS")
"""The source was asked and does not hold the key."""

SMALL: Final = frozenset((int, float, bool, type(None)))
"""Types of values that take next to nothing."""

TEXT_BYTES: Final = 50
"""Of a text apart from its characters."""

_ENTRY_BYTES = 120  # a slot of the table, a reference to key and value, and its share of the expiry records


def size_of(value: Any) -> int:
    """Return about how many bytes *value* takes, containers included."""
    if type(value) is str or type(value) is bytes:
        return len(value) + TEXT_BYTES
    total = sys.getsizeof(value)
    if isinstance(value, dict):
        total += sum(size_of(k) + size_of(v) for k, v in value.items())
    elif isinstance(value, list | tuple):
        total += sum(map(size_of, value))
    return total


class AnswerCache:
    """
    Keys to decoded answers; errors are never stored.

    Everything in the table is valid: expired answers are removed before a lookup, so that a lookup is one C-level
    `dict.get` per key. That works because values live equally long, and misses too: the order of insertion is the
    order of expiry, and an expiry record covers a whole group. Beyond `max_bytes` the oldest answers leave first.
    """

    def __init__(self, ttl: float, max_bytes: int, missing_ttl: float | None) -> None:
        self._max_bytes = max_bytes
        self._tables = (_Table(ttl), _Table(ttl if missing_ttl is None else missing_ttl))

    def __len__(self) -> int:
        return sum(len(table.answers) for table in self._tables)

    @property
    def bytes(self) -> int:
        """About how many bytes keys and answers take."""
        return sum(table.bytes for table in self._tables)

    def get_many(self, keys: Sequence[Any], now: float) -> list[Any]:
        """Return for each of *keys* its value, `MISS`, or `ABSENT`."""
        self.expire(now)
        values, misses = self._tables
        found = list(map(values.answers.get, keys, repeat(ABSENT)))
        if misses.answers:
            found = [
                MISS if value is ABSENT and key in misses.answers else value
                for key, value in zip(keys, found, strict=True)
            ]
        return found

    def expire(self, now: float) -> None:
        """Remove the answers whose time is over."""
        for table in self._tables:
            table.expire(now)

    def put_many(self, keys: Iterable[Any], values: Iterable[Any], now: float) -> None:
        """Remember *values*, `MISS` among them, under *keys*."""
        found: dict[Any, Any] = {}
        missed: dict[Any, Any] = {}
        for key, value in zip(keys, values, strict=True):
            (missed if value is MISS else found)[key] = value
        for table, other, answers in (
            (self._tables[0], self._tables[1], found),
            (self._tables[1], self._tables[0], missed),
        ):
            if answers and table.ttl > 0:
                table.put(answers, now)
                other.drop(answers)
        while self.bytes > self._max_bytes:
            oldest = min((t for t in self._tables if t.answers), key=lambda t: t.oldest())
            oldest.evict(max(1, len(oldest.answers) // 100))

    def clear(self) -> None:
        """Forget everything."""
        self._tables = (_Table(self._tables[0].ttl), _Table(self._tables[1].ttl))


class _Table:
    """Answers that all live equally long."""

    __slots__ = ("answers", "bytes", "records", "ttl")

    def __init__(self, ttl: float) -> None:
        self.ttl = ttl
        self.answers: dict[Any, Any] = {}
        self.bytes = 0
        self.records: deque[tuple[float, list[Any]]] = deque()  # (when they expire, keys)

    def put(self, answers: dict[Any, Any], now: float) -> None:
        # An answer given anew keeps its old expiry: it leaves a little early, and each key needs one record only.
        fresh = [key for key in answers if key not in self.answers]
        if len(fresh) < len(answers):
            self.bytes -= sum(_cost(key, self.answers[key]) for key in answers if key in self.answers)
        self.answers.update(answers)
        self.bytes += sum(map(_cost, answers, answers.values()))
        if fresh:
            self.records.append((now + self.ttl, fresh))

    def expire(self, now: float) -> None:
        while self.records and self.records[0][0] <= now:
            self.drop(self.records.popleft()[1])

    def oldest(self) -> float:
        return self.records[0][0] - self.ttl if self.records else 0.0

    def evict(self, count: int) -> None:
        self.drop(list(islice(self.answers, count)))
        while self.records and not any(key in self.answers for key in self.records[0][1]):
            self.records.popleft()

    def drop(self, keys: Iterable[Any]) -> None:
        for key in keys:
            value = self.answers.pop(key, ABSENT)
            if value is not ABSENT:
                self.bytes -= _cost(key, value)


def _cost(key: Any, value: Any) -> int:
    return _ENTRY_BYTES + size_of(key) + size_of(value)
