"""
The choice of the answers that leave a full cache: those asked for least often, by the estimate of a sketch.

This is TinyLFU for whole batches of keys (Einziger, Friedman and Manes, "A Highly Efficient Cache Admission Policy",
ACM Transactions on Storage 13, 2017). The keys whose answers came together are one batch. New batches wait in a queue
that is called the line and may hold a twentieth of the cache; the other batches are the main part. When there is no
room, the oldest batch in the line competes with the next batches of the main part. Of all keys in the competing
batches, those that were asked for least often are removed: as many as the batch from the line has. The other keys go to
the end of the main part. So keys that come only once, as in a scan, do not push out keys that are asked for again and
again.

A sketch estimates how often a key was asked for. The sketch is an array of small counters, and the hash of a key says
which counter counts the key. Two keys may have the same counter, and then both seem to be asked for more often than
they are. When the number of counted keys exceeds `AGE` times the number of answers in the cache, this number and all
counters are halved, so that old popularity is forgotten. Nothing is counted until the cache is half full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

__all__ = ["Batch", "Eviction"]

NEW = 0.05
"""Share of the answers that may wait in line."""
RIVALS = 2
"""How many keys of the main part compete with each key from the line."""
AGE = 16
"""The counters are halved after this many keys have been counted for each answer in the cache."""
MOST = 255
_HALF = bytes(count >> 1 for count in range(MOST + 1))


class Batch:
    """
    Keys whose answers came together.

    Attributes:
        keys: The keys whose answers are still in the cache.
        expires: Loop time at which the answers to the keys expire.
        came: How many keys were put into the batch, including those whose answers are gone.
    """

    __slots__ = ("came", "expires", "keys")

    def __init__(self, keys: list[Any], expires: float) -> None:
        self.keys = keys
        self.expires = expires
        self.came = len(keys)

    def join(self, keys: list[Any]) -> None:
        """Append *keys*; the time to live of their answers must not end before the batch expires."""
        self.keys += keys
        self.came += len(keys)


class Eviction:
    """
    The line of new batches, the queue of all other batches (the main part), and the sketch.

    Args:
        counters: Number of counters of the sketch, a byte each; more than the answers that the cache can hold.
    """

    def __init__(self, counters: int) -> None:
        self._size = counters | 1  # odd, so that keys which are multiples of a power of two get different counters
        self._counters = bytearray()
        self._looks = 0
        self._new: deque[Batch] = deque()
        self._main: deque[Batch] = deque()
        self._waiting = 0  # number of keys that were put into the batches in line

    def __len__(self) -> int:
        """Return how many batches there are."""
        return len(self._new) + len(self._main)

    @property
    def bytes(self) -> int:
        """Bytes of the sketch."""
        return len(self._counters)

    def start(self) -> None:
        """Make the sketch, if there is none."""
        if not self._counters:
            self._counters = bytearray(self._size)

    def add(self, batch: Batch) -> None:
        """Let *batch* wait in line."""
        self._new.append(batch)
        self._waiting += batch.came

    def join(self, batch: Batch, keys: list[Any]) -> bool:
        """Append *keys* to *batch* if it still has keys and is the last in line; return whether they were appended."""
        if not batch.keys or not self._new or self._new[-1] is not batch:
            return False
        batch.join(keys)
        self._waiting += len(keys)
        return True

    def count(self, keys: Iterable[Any], answers: int) -> None:
        """Count one request for each of *keys*; *answers* is the number of answers in the cache."""
        counters, size = self._counters, self._size
        for code in map(hash, keys):
            place = code % size
            if counters[place] < MOST:
                counters[place] += 1
            self._looks += 1
        if self._looks > AGE * answers:
            self._looks >>= 1
            self._counters = counters.translate(_HALF)

    def choose(self, answers: int) -> list[Any] | None:
        """
        Return the keys whose answers leave a cache of *answers* answers; None: there is no batch.

        The answers to some of these keys may be gone already.
        """
        batches: list[Batch] = []
        while self._new and self._waiting - self._new[0].came > NEW * answers:
            # The batch came while the cache had room, so it moves to the main part without competition.
            self._main.append(self._first_in_line())
        if self._waiting > NEW * answers or (self._new and not self._main):
            batches.append(self._first_in_line())
        candidates = max(1, sum(len(batch.keys) for batch in batches))
        drawn = 0
        while self._main and drawn < RIVALS * candidates:
            batches.append(self._main.popleft())
            drawn += len(batches[-1].keys)
        if not batches:
            return None
        ranked = [(key, batch) for batch in batches for key in batch.keys]
        counters, size = self._counters, self._size
        if counters:
            ranked.sort(key=lambda entry: counters[hash(entry[0]) % size])
        leaving = ranked[: min(candidates, (len(ranked) + 1) // 2)]
        for batch in batches:
            batch.keys = []
        for key, batch in ranked[len(leaving) :]:
            batch.keys.append(key)
        self._main.extend(batch for batch in batches if batch.keys)
        return list(map(itemgetter(0), leaving))

    def tidy(self) -> None:
        """Remove batches that have no keys left, because their answers have expired, from the heads of both queues."""
        while self._new and not self._new[0].keys:
            self._first_in_line()
        while self._main and not self._main[0].keys:
            self._main.popleft()

    def _first_in_line(self) -> Batch:
        batch = self._new.popleft()
        self._waiting -= batch.came
        return batch
