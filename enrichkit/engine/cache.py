"""The cache of a worker process: it keeps answers for later runs, each for a time to live, within a limit of bytes."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import repeat
from operator import itemgetter
from sys import getsizeof
from typing import Any, Final

from .eviction import Batch, Eviction
from .sizes import Sizes

__all__ = [
    "ABSENT",
    "MISS",
    "AnswerCache",
    "Stage",
]


class _Mark:
    """A mark in a list, in place of a value. Marks are false: if `all` is true for a list, the list has no mark."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return self._name


ABSENT: Final = _Mark("ABSENT")
"""The mark for a key to which the stage has no answer, so that the source has to be asked."""
MISS: Final = _Mark("MISS")
"""The mark for a key for which the source was asked, but which the source does not hold."""

REFERENCE = 8
"""Bytes that the reference from a batch to one of its keys takes."""
BATCH_BYTES = 320
"""Bytes of a batch with its list, and of its entries in the eviction queue and in the heap of expiry times."""
LEAST_COUNTERS, MOST_COUNTERS = 255, 2**24
BYTES_PER_COUNTER = 128
"""
The sketch (see `eviction.py`) has a counter for this many bytes of `max_bytes`. A small answer takes about 200 bytes,
so there are more counters than answers.
"""
FEW = 64
"""If fewer keys than this are stored together, they join the open batch, see `JOINED`, instead of making a batch."""
JOINED = 500
"""A small batch stays open for the time to live divided by this number; until then, a few more keys can join it."""
JITTER_PARTS = 8
"""Number of parts into which many answers are divided; each part expires at a time of its own."""


class Stage:
    """
    A store of answers in which a run looks up keys before it asks the source. The run also writes the answers of the
    source to the store.

    A subclass inherits the methods that it does not need: except for `get_many`, they do nothing.

    Attributes:
        origin: The name that `details=True` shows as the origin of answers from this stage.
        active: Whether the run looks keys up in the stage; if False, the run only shows it the keys, see `watch`.
        get_many: Method that returns for each key its value; `MISS`: the source has none; `ABSENT`: the source has to
            be asked.
        put_many: Method that stores a value or `MISS` for each key; with *late*, it keeps answers that are already
            stored, because they may be newer.
        watch: Method to which the run passes the keys of each slice while the stage is not active.
        flush: Method that makes the stored answers durable; the run calls it before it returns rows with these answers
            to Spark.
        close: Method that the run calls when it ends.
    """

    origin: str
    active: bool

    def get_many(self, keys: Sequence[Any], now: float) -> list[Any]:
        """Return for each of *keys* its value; `MISS`: the source has none; `ABSENT`: the source has to be asked."""
        raise NotImplementedError

    def put_many(self, keys: Iterable[Any], values: Iterable[Any], now: float, *, late: bool = False) -> None:
        """Store answers of the source; by default do nothing, for a stage that has no use for them."""

    def watch(self, keys: Sequence[Any]) -> None:
        """Take note of *keys* while the stage is not active; by default do nothing: most stages are always active."""

    def flush(self) -> None:
        """Make the stored answers durable; by default do nothing, for a stage that only keeps answers in memory."""

    def close(self) -> None:
        """Note that the run has ended; by default do nothing, for a stage that other runs go on using."""


class AnswerCache(Stage):
    """
    Decoded answers by key, kept for a time to live; errors are never stored. Lives on the loop thread.

    Expired answers are removed before each lookup, so a lookup is one `dict.get` in C per key. Answers that came
    together expire together. `jitter` shortens their time to live by a random share. If 512 or more answers came
    together, each eighth of them gets a random share of its own.

    Early refresh is XFetch (Vattani, Chierichetti and Lowenstein: Optimal Probabilistic Cache Stampede Prevention, VLDB
    2015): a random time is drawn, and an answer that expires within this time is asked for again. The time is
    exponentially distributed with a mean of `refresh_ahead` times the duration of a call. XFetch draws a time for each
    lookup; here, one draw serves all keys of a slice.

    Args:
        ttl: Seconds for which a value may be used.
        max_bytes: Most bytes of everything that the cache holds.
        missing_ttl: Seconds for which a miss may be used; None: as long as a value; 0: misses are not stored.
        jitter: Largest share of its time to live by which an answer expires earlier.
        stale_if_error: Seconds after its expiry for which `stale` still returns a value.
        refresh_ahead: How long before its expiry an answer is refreshed on average, as a multiple of the time that a
            call takes; 0: no early refresh.
        seed: Seed of the random draws; only tests give one.

    Attributes:
        refreshing: Keys that are asked for in the background now.
        call_time: Seconds that a call takes, as a moving average; the runs that share the cache update it.
    """

    origin = "cache"
    active = True

    def __init__(
        self,
        ttl: float,
        max_bytes: int,
        missing_ttl: float | None = None,
        *,
        jitter: float = 0.0,
        stale_if_error: float = 0.0,
        refresh_ahead: float = 0.0,
        seed: int | None = None,
    ) -> None:
        self._ttl = ttl
        self._missing_ttl = ttl if missing_ttl is None else missing_ttl
        self._max_bytes = max_bytes
        self._jitter = jitter
        self._stale_if_error = stale_if_error
        self._refresh_ahead = refresh_ahead
        self._rng = random.Random(seed)  # noqa: S311  # no cryptography
        self._sizes = Sizes()
        self.refreshing: set[Any] = set()
        self.call_time = 0.0
        self.clear()

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def bytes(self) -> int:
        """The bytes of all that the cache holds."""
        tables = sum(getsizeof(table) for table in (self._answers, self._stale) if table)
        references = REFERENCE * (len(self._answers) + len(self._stale)) + BATCH_BYTES * len(self._eviction)
        return self._content + tables + references + self._eviction.bytes

    def clear(self) -> None:
        """Remove all answers."""
        self._answers: dict[Any, Any] = {}
        self._stale: dict[Any, Any] = {}
        self._content = 0  # bytes of keys and values, the stale ones included
        self._eviction = Eviction(max(LEAST_COUNTERS, min(MOST_COUNTERS, self._max_bytes // BYTES_PER_COUNTER)))
        self._expiries: list[tuple[float, int, Batch]] = []
        self._soon: list[tuple[float, int, Batch]] = []  # entries of `_expiries` that `due` has not handled yet
        self._old: deque[Batch] = deque()  # batches of stale values
        self._renewed: dict[Any, Batch] = {}  # each key that is in several batches, with its last batch
        # By time to live: the loop time until which a batch is open, and that batch.
        self._open: dict[float, tuple[float, Batch]] = {}
        self._due: set[Any] = set()  # keys to refresh when they are looked up
        self._number = 0
        self._knew_all = self._pressed = False

    def get_many(self, keys: Sequence[Any], now: float) -> list[Any]:
        """Return for each of *keys* its value; `MISS`: the source has none; `ABSENT`: the source has to be asked."""
        self.expire(now)
        found: list[Any] | None = None
        if self._knew_all and len(keys) > 1:
            try:
                found = list(itemgetter(*keys)(self._answers))  # a sixth quicker than `get` if all keys have answers
            except KeyError:
                self._knew_all = False
        if found is None:
            found = list(map(self._answers.get, keys, repeat(ABSENT)))
            self._knew_all = all(found)
        if self._pressed:
            self._eviction.count(keys, len(self._answers))
        return found

    def due(self, keys: Sequence[Any], now: float) -> set[Any]:
        """Return the keys among *keys* that should be refreshed now; a key is returned only once."""
        if self._soon:
            ahead = -math.log(1.0 - self._rng.random()) * self._refresh_ahead * self.call_time
            while self._soon and self._soon[0][0] <= now + ahead:
                self._due.update(heappop(self._soon)[2].keys)
        if not self._due:
            return self._due
        due = self._due.intersection(keys)
        self._due -= due
        return due & self._answers.keys()

    @property
    def keeps_stale(self) -> bool:
        """Whether values may be used after their time to live when the source fails."""
        return self._stale_if_error > 0.0

    def stale(self, keys: Iterable[Any], now: float) -> dict[Any, Any]:
        """Return the expired values of *keys* that may still be used when the source fails."""
        if not self._stale_if_error:
            return {}
        self.expire(now)
        return {key: self._stale[key] for key in keys if key in self._stale} if self._stale else {}

    def expire(self, now: float) -> None:
        """Remove the answers whose time to live is over."""
        while self._expiries and self._expiries[0][0] <= now:
            self._expire_batch(heappop(self._expiries)[2])
        while self._old and self._old[0].expires <= now:
            self._drop_stale(self._old.popleft().keys)
        self._clear_if_empty()

    def put_many(self, keys: Iterable[Any], values: Iterable[Any], now: float, *, late: bool = False) -> None:
        """Store *values*, or `MISS`, under *keys*; with *late*, keep what is already stored, as it may be newer."""
        given = dict(zip(keys, values, strict=True))
        answers = self._answers
        if late:
            given = {key: value for key, value in given.items() if key not in answers}
        missed = [] if all(given.values()) else [key for key, value in given.items() if value is MISS]
        if missed and not self._missing_ttl:
            for key in missed:
                del given[key]
            missed = []
        if not given:
            return
        if self._stale:
            self._drop_stale(self._stale.keys() & given)
        known: list[Any] = [] if answers.keys().isdisjoint(given) else [key for key in given if key in answers]
        self._content -= self._bytes_of(known, [answers[key] for key in known])
        self._content += self._bytes_of(given, given.values())
        answers.update(given)
        if missed:
            gone = set(missed)
            self._schedule(missed, self._missing_ttl, known, now)
            self._schedule([key for key in given if key not in gone], self._ttl, known, now)
        else:
            self._schedule(list(given), self._ttl, known, now)
        self._make_room()

    def _schedule(self, keys: list[Any], ttl: float, known: list[Any], now: float) -> None:
        """Let the answers to *keys* expire after *ttl* seconds or a little less; keys in *known* had answers before."""
        parts = JITTER_PARTS if self._jitter and len(keys) >= JITTER_PARTS * FEW else 1
        for start in range(parts if keys else 0):
            part = keys[start::parts]
            batch = (self._joined(part, ttl, now) if len(part) < FEW else None) or self._begin(part, ttl, now)
            if known:
                self._renewed.update(dict.fromkeys(set(known).intersection(part), batch))

    def _joined(self, keys: list[Any], ttl: float, now: float) -> Batch | None:
        """Add the few *keys* to the open batch (see `JOINED`) and return it; return None if no such batch has room."""
        # If a key had a batch of its own, the batch would take as many bytes as the key. The price of joining: the key
        # expires with the batch, a little before its time to live is over.
        until, batch = self._open.get(ttl, (now, None))
        fits = batch is not None and until > now and batch.came < FEW and self._eviction.join(batch, keys)
        return batch if fits else None

    def _begin(self, keys: list[Any], ttl: float, now: float) -> Batch:
        """Make a batch of *keys*, schedule its expiry, and return the batch."""
        expires = now + ttl * (1.0 - self._jitter * self._rng.random())
        batch = Batch(keys, expires)
        self._number += 1
        heappush(self._expiries, (expires, self._number, batch))
        if self._refresh_ahead:
            heappush(self._soon, (expires, self._number, batch))
        self._eviction.add(batch)
        if len(keys) < FEW:
            self._open[ttl] = now + ttl / JOINED, batch
        return batch

    def _expire_batch(self, batch: Batch) -> None:
        """Remove the answers to the keys of *batch*, or keep their values as stale ones."""
        keys, batch.keys = batch.keys, []
        if self._renewed:
            # A key that was stored again in the meantime expires with its later batch.
            keys = [key for key in keys if self._renewed.get(key, batch) is batch]
            for key in keys:
                self._renewed.pop(key, None)
        gone = self._remove(keys)
        self._eviction.tidy()
        if self._stale_if_error:
            kept = {key: value for key, value in gone.items() if value is not MISS}
            self._content += self._bytes_of(kept, kept.values())
            self._stale.update(kept)
            self._old.append(Batch(list(kept), batch.expires + self._stale_if_error))
            self._make_room()

    def _remove(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Remove the answers to *keys*, and return them."""
        answers = self._answers
        gone = {key: answers.pop(key) for key in keys if key in answers}
        self._content -= self._bytes_of(gone, gone.values())
        self._due.difference_update(gone)
        return gone

    def _drop_stale(self, keys: Iterable[Any]) -> None:
        gone = {key: self._stale.pop(key) for key in keys if key in self._stale}
        self._content -= self._bytes_of(gone, gone.values())
        if not self._stale:
            self._stale = {}

    def _make_room(self) -> None:
        """Remove stale values, then the answers that are asked for least, until the cache is within `max_bytes`."""
        size = self.bytes
        self._pressed = 2 * size > self._max_bytes
        if self._pressed:
            self._eviction.start()
            size = self.bytes
        while size > self._max_bytes:
            if self._old:
                self._drop_stale(self._old.popleft().keys)
            else:
                leaving = self._eviction.choose(len(self._answers))
                if leaving is None:
                    self.clear()
                    break
                self._remove(leaving)
                if self._renewed:
                    for key in leaving:
                        self._renewed.pop(key, None)
            size = self.bytes
        if len(self._expiries) > 2 * len(self._eviction) + FEW:
            # Remove batches without keys, which would otherwise stay in the heaps until they expire.
            for queue in (self._expiries, self._soon):
                queue[:] = [entry for entry in queue if entry[2].keys]
                heapify(queue)
        self._clear_if_empty()

    def _clear_if_empty(self) -> None:
        if self._number and not self._answers and not self._stale:
            self.clear()  # to make new dicts: a dict keeps its size when its keys are removed

    def _bytes_of(self, keys: Iterable[Any], values: Iterable[Any]) -> int:
        return self._sizes.of(keys) + self._sizes.of(values)
