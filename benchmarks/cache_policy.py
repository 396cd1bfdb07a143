"""
N16: the policy of the cache: which answers stay, how old they get, and how many bytes they take.

The keys follow Zipf's law with exponent 1.1. The optimal policy is Belady's: it knows all rows to come, and keeps the
answers that are asked for soonest, or does not even take a new one in. It counts the bytes of key and value alone.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections import OrderedDict
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import accumulate
from sys import getsizeof
from time import perf_counter
from typing import Any

from benchmarks.harness import Table
from enrichkit import Cache, Retry
from enrichkit.engine.admission import admit
from enrichkit.engine.cache import ABSENT, AnswerCache
from enrichkit.engine.engine import Engine
from enrichkit.engine.refresh import BackgroundRun, Refresher, background_options
from enrichkit.engine.run import Run
from enrichkit.errors import UnavailableError
from enrichkit.interface import Call, Connector, ConnectorConfig
from enrichkit.options import Options
from enrichkit.outcome import OK, Outcomes
from enrichkit.testing.clock import VirtualTimeLoop

ROWS, DISTINCT, EXPONENT = 1_000_000, 100_000, 1.1
ROOM = 32 * 2**20
CHARACTERS = 800
SLICE, CALL = 2_048, 500
HITS_MIN, BELOW_OPTIMUM = 90.0, 2.0
AT_ONCE = 1_000
TTL, STALE, LATENCY, PAUSE = 0.5, 1.0, 0.01, 0.02
AWAY_EVERY, AWAY_FOR = 3.0, 2.0
WRONG_MAX = 0.05
SOURCES = (
    *(f"enrichkit/engine/{name}.py" for name in ("cache", "eviction", "sizes", "refresh", "admission", "settlement")),
    "benchmarks/cache_policy.py",
)


class Clock(Connector[ConnectorConfig]):
    """A source whose values say when they were made; it is away from time to time."""

    name = "clock"
    config_class = ConnectorConfig
    max_batch_size = CALL

    async def open(self) -> None:
        """Start the clock."""
        self.calls = 0
        self.began = asyncio.get_running_loop().time()

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> dict[Any, float]:
        """Return the time for each of *keys*."""
        self.calls += 1
        loop = asyncio.get_running_loop()
        await asyncio.sleep(LATENCY)
        if (loop.time() - self.began) % AWAY_EVERY > AWAY_EVERY - AWAY_FOR and self.calls > 1:
            raise UnavailableError("the clock has stopped")
        return dict.fromkeys(keys, loop.time())


def rows_of_zipf(count: int, distinct: int) -> list[int]:
    """Return *count* numbers below *distinct*, of which the n-th has the weight 1 / n ** `EXPONENT`."""
    weights = list(accumulate(1 / rank**EXPONENT for rank in range(1, distinct + 1)))
    return random.Random(1).choices(range(distinct), cum_weights=weights, k=count)


def optimum(rows: Sequence[int], room: int) -> float:
    """Return the share of hits, in percent, of Belady's policy for a number of *room* answers."""
    following, last = [0] * len(rows), {}
    for place in range(len(rows) - 1, -1, -1):
        following[place] = last.get(rows[place], len(rows))
        last[rows[place]] = place
    held: dict[int, int] = {}  # when each is asked for next
    latest: list[tuple[int, int]] = []
    hits = 0
    for row, after in zip(rows, following, strict=True):
        if row in held:
            hits += 1
        elif len(held) >= room:
            while held.get(latest[0][1]) != -latest[0][0]:
                heappop(latest)
            if -latest[0][0] <= after:
                continue
            del held[heappop(latest)[1]]
        held[row] = after
        heappush(latest, (-after, row))
    return 100 * hits / len(rows)


def oldest_first(rows: Sequence[int], room: int, *, renew: bool) -> float:
    """Return the share of hits, in percent, where the oldest answer leaves; with *renew* the least recently used one."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for row in rows:
        if row in held:
            hits += 1
            if renew:
                held.move_to_end(row)
        else:
            held[row] = None
            if len(held) > room:
                held.popitem(last=False)
    return 100 * hits / len(rows)


def value_of(key: str) -> str:
    """Return the value of *key*."""
    return f"value of {key} ".ljust(CHARACTERS, "x")


def played(rows: Sequence[int]) -> tuple[float, AnswerCache, float]:
    """Return the share of hits in percent, the cache after all *rows*, and the microseconds per row."""
    cache = AnswerCache(3_600.0, ROOM, jitter=0.1, seed=1)
    missed, seconds = 0, 0.0
    for start in range(0, len(rows), SLICE):
        # New objects, as a worker makes them of each batch.
        keys = [f"key {row}" for row in dict.fromkeys(rows[start : start + SLICE])]
        began = perf_counter()
        found = cache.get_many(keys, 0.0)
        seconds += perf_counter() - began
        assert all(value is ABSENT or value == value_of(key) for key, value in zip(keys, found, strict=True))
        absent = [key for key, value in zip(keys, found, strict=True) if value is ABSENT]
        missed += len(absent)
        for first in range(0, len(absent), CALL):
            answered = absent[first : first + CALL]
            values = list(map(value_of, answered))
            began = perf_counter()
            cache.put_many(answered, values, 0.0)
            seconds += perf_counter() - began
    return 100 * (1 - missed / len(rows)), cache, seconds / len(rows) * 1e6


def bytes_held(rows: Sequence[int]) -> tuple[int, int]:
    """Return the bytes that a full cache says it holds, and those that the allocator has given out for it."""
    gc.collect()
    tracemalloc.start()
    cache = played(rows)[1]
    gc.collect()
    measured = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return cache.bytes, measured


async def _engine_with(options: Options) -> tuple[Clock, Engine, AnswerCache, Refresher]:
    clock = Clock(ConnectorConfig())
    engine = Engine(clock, 8)
    assert options.cache is not None
    cache = AnswerCache(
        options.cache.ttl, ROOM, jitter=0.1, stale_if_error=options.cache.stale_if_error, refresh_ahead=1.0
    )
    behind = background_options(options)
    refresher = Refresher(
        cache,
        lambda emit: BackgroundRun(engine, "clock", behind, plain, emit, batch_size=CALL, ordered=False),
        8,
    )
    return clock, engine, cache, refresher


def plain(raws: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
    """Decode nothing."""
    return list(raws), {}


async def misses_at_once() -> tuple[int, int]:
    """Return the calls that `AT_ONCE` rows of one key make, each a slice of its own, and the rows that were right."""
    options = Options(cache=Cache(ttl=60))
    clock, engine, cache, refresher = await _engine_with(options)
    left: list[Any] = []
    run = Run(engine, "clock", options, plain, left.extend, batch_size=CALL, cache=cache, refresher=refresher)
    for _ in range(AT_ONCE):
        admit(run, Outcomes(["key"], 1))
    while len(left) < AT_ONCE:  # noqa: ASYNC110  # a benchmark may look from time to time
        await asyncio.sleep(LATENCY)
    run.close()
    right = sum(list(part.outcomes.statuses) == [OK] for part in left)
    await engine.close()
    return clock.calls, right


async def ages(count: int) -> tuple[float, int, int, int]:
    """Return the largest age in *count* reads, and how many were read, were stale, and had no value."""
    options = Options(
        cache=Cache(ttl=TTL, stale_if_error=STALE), retry=Retry(attempts=1), details=True, max_fallback_ratio=1.0
    )
    _, engine, cache, refresher = await _engine_with(options)
    oldest, read, without = 0.0, 0, 0

    def emit(parts: Any) -> None:
        nonlocal oldest, read, without
        if isinstance(parts, BaseException):
            raise parts
        now = asyncio.get_running_loop().time()
        for part in parts:
            values = [part.outcomes.values[index] for index in part.indices]
            found = [value for value in values if value is not None]
            oldest = max(oldest, now - min(found, default=now))
            read += len(values)
            without += len(values) - len(found)
            run.taken_bytes += part.bytes

    # Not ordered, so that each row leaves in the turn of the loop in which it gets its value.
    run = Run(engine, "clock", options, plain, emit, batch_size=CALL, cache=cache, refresher=refresher, ordered=False)
    rows = rows_of_zipf(count, 20_000)
    for start in range(0, count, SLICE):
        keys = list(dict.fromkeys(rows[start : start + SLICE]))
        admit(run, Outcomes(keys, len(keys), details=True, counts=[1] * len(keys)))
        await asyncio.sleep(PAUSE)
    while len(run.queue):  # noqa: ASYNC110  # a benchmark may look from time to time
        await asyncio.sleep(LATENCY)
    stale = run.stats.stale
    run.close()
    await engine.close()
    return oldest, read, stale, without


def main(quick: bool) -> list[Table]:
    """Measure N16."""
    count = ROWS // 20 if quick else ROWS
    rows = rows_of_zipf(count, DISTINCT)
    table = Table(
        "N16",
        f"{count:,} rows, Zipf {EXPONENT}, {DISTINCT:,} keys, values of {CHARACTERS} characters, a cache of 32 MB",
        ("policy", "hits"),
    )
    each = getsizeof("key 12345") + getsizeof(value_of("key 12345"))
    room = ROOM // each
    best = optimum(rows, room)
    hits, cache, cost = played(rows)
    table.rows += [
        (f"the optimum, which knows the future ({room:,} answers)", f"{best:.2f} %"),
        (f"the cache of enrichkit ({len(cache):,} answers)", f"{hits:.2f} %"),
        ("the least recently used leaves", f"{oldest_first(rows, len(cache), renew=True):.2f} %"),
        ("the oldest leaves", f"{oldest_first(rows, len(cache), renew=False):.2f} %"),
    ]
    table.goals.append((f"at least {HITS_MIN:g} % hits: {hits:.2f} %", hits >= HITS_MIN))
    text = f"at most {BELOW_OPTIMUM:g} points below the optimum: {best - hits:.2f}"
    table.goals.append((text, best - hits <= BELOW_OPTIMUM))
    said, measured = bytes_held(rows)
    wrong = abs(measured / said - 1)
    text = f"bytes within {WRONG_MAX:.0%} of what is said: {said:,} said, {measured:,} measured, {wrong:.1%}"
    table.goals.append((text, wrong <= WRONG_MAX))
    table.goals.append((f"at most {ROOM:,} bytes and {WRONG_MAX:.0%}", measured <= ROOM * (1 + WRONG_MAX)))
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:  # a turn of the loop takes no time
        calls, right = runner.run(misses_at_once())
        oldest, read, stale, without = runner.run(ages(3 * count))
    text = f"{AT_ONCE:,} concurrent misses of one key are one call: {calls}"
    table.goals.append((text, calls == 1 and right == AT_ONCE))
    text = f"no value older than {TTL:g} s and the {STALE:g} s of the stale window in {read:,} reads: {oldest:.3f} s"
    table.goals.append((text, oldest <= TTL + STALE and stale > 0))
    table.notes.append(f"the cache takes {cost:.2f} us per row, {SLICE:,} rows a slice and {CALL} keys a call")
    table.notes.append(
        f"of the reads {stale:,} got a value beyond its time, and {without:,} none: the source was away for "
        f"{AWAY_FOR:g} s of each {AWAY_EVERY:g} s"
    )
    return [table]
