"""
N6 and N9: what the engine itself costs, without Spark and without a source.

N6: a connector that answers at once, one key per call; beside it what people write by hand (`gather`, a semaphore and
`asyncio.timeout`), and a bare loop of slots without deadline, retry, queue or statistics. N9: batches of 10,000 keys
that the cache knows, from Arrow to Arrow over the real loop thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import uvloop

from benchmarks.harness import PAIRS, Sample, Table, alternate, median, rates, spread, timed, times
from enrichkit.assemble import assemble
from enrichkit.connector import Call, Connector, ConnectorConfig
from enrichkit.engine.cache import AnswerCache
from enrichkit.engine.dispatch import Engine
from enrichkit.engine.handover import Handover
from enrichkit.engine.loop import loop_thread
from enrichkit.engine.run import Run
from enrichkit.keys import encode
from enrichkit.options import Cache, Options
from enrichkit.outcome import Outcomes

if TYPE_CHECKING:
    from enrichkit.engine.lookup import Part

KEYS = 200_000
CAPACITY = 100
BATCH = 2_500
CACHED_ROWS = 2_000_000
CACHED_BATCH = 10_000
SOURCES = (
    "enrichkit/engine",
    *(f"enrichkit/{name}.py" for name in ("keys", "assemble", "connector", "options", "outcome")),
    "benchmarks/harness.py",
    "benchmarks/passes.py",
    "benchmarks/engine.py",
)


class Noop(Connector[ConnectorConfig]):
    """Answers each key with itself, at once."""

    name = "noop"
    config_class = ConnectorConfig

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        return {key: key for key in keys}


def identity(raws: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
    return list(raws), {}


def with_engine() -> Sample:
    """KEYS lookups through the engine: deadline, retry, statistics, ordered queue."""

    async def main() -> None:
        done = asyncio.Event()
        left = KEYS

        def emit(parts: list[Part] | BaseException) -> None:
            nonlocal left
            if isinstance(parts, BaseException):
                raise parts
            for part in parts:
                assert part.outcomes.values == list(part.outcomes.keys)
                left -= part.rows
            if not left:
                done.set()

        engine = Engine(Noop(ConnectorConfig()), CAPACITY, 1)
        run = Run("noop", Options(on_error="null"), identity, emit)
        engine.attach(run)
        for start in range(0, KEYS, BATCH):
            run.admit(Outcomes(range(start, start + BATCH), BATCH))
            await asyncio.sleep(0)
        await done.wait()
        run.close()
        await engine.close()

    return timed(lambda: uvloop.run(main()))


def with_gather() -> Sample:
    """KEYS lookups as written by hand."""

    async def fetch(key: int) -> int:
        return key

    async def main() -> None:
        semaphore = asyncio.Semaphore(CAPACITY)

        async def one(key: int) -> int:
            async with semaphore, asyncio.timeout(10.0):
                return await fetch(key)

        for start in range(0, KEYS, BATCH):
            keys = range(start, start + BATCH)
            assert await asyncio.gather(*map(one, keys)) == list(keys)

    return timed(lambda: uvloop.run(main()))


def with_bare_slots() -> Sample:
    """KEYS lookups by slots and nothing else: the floor."""

    async def main() -> None:
        connector, about = Noop(ConnectorConfig()), Call(timeout=10.0)
        pending, found = deque(range(KEYS)), {}

        async def slot() -> None:
            while pending:
                key = pending.popleft()
                found[key] = (await connector.fetch_many((key,), about))[key]

        await asyncio.gather(*(slot() for _ in range(CAPACITY)))
        assert len(found) == KEYS

    return timed(lambda: uvloop.run(main()))


def cached_handover() -> Sample:
    """CACHED_ROWS rows in batches of CACHED_BATCH distinct keys that are all cached, from Arrow array to Arrow array."""
    cache = AnswerCache(3600.0, 2**30, None)
    names = [f"key {number}" for number in range(CACHED_BATCH)]
    cache.put_many(names, [f"value of {name}" for name in names], time.monotonic())
    batch = pa.array(names)
    expected = pa.array([f"value of {name}" for name in names])
    options = Options(cache=Cache(ttl=3600))
    handover = Handover(loop_thread(), 100_000, 100_000, lambda emit: Run("noop", options, identity, emit, cache=cache))

    def slices() -> Iterator[Outcomes]:
        for _ in range(CACHED_ROWS // CACHED_BATCH):
            keys, codes = encode([batch])
            yield Outcomes(keys.objects(), CACHED_BATCH, codes)

    def work() -> None:
        for part in handover.process(slices(), "n9", lambda: Engine(Noop(ConnectorConfig()), CAPACITY, 500)):
            assert assemble(part.outcomes.values, part.outcomes.tag, pa.string()).equals(expected)

    return timed(work)


def in_a_new_process(work: Callable[[], Sample]) -> Sample:
    """Return the second run of *work* in a process of its own, which what ran here before cannot slow down."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        process.submit(work).result()
        return process.submit(work).result()


def main(quick: bool) -> list[Table]:
    """Measure N6 and N9; a run takes two seconds, so a quick one makes fewer."""
    rounds = 2 if quick else PAIRS
    samples = alternate({"enrichkit": with_engine, "gather": with_gather, "bare slots": with_bare_slots}, rounds)
    n6 = Table(
        "N6", f"{KEYS:,} lookups, one key per call, no-op connector, capacity {CAPACITY}", ("", "us CPU per lookup")
    )
    costs = {name: [run.cpu / KEYS * 1e6 for run in runs] for name, runs in samples.items()}
    n6.rows = [(name, spread(found)) for name, found in costs.items()]
    n6.rows.append(("enrichkit / gather", times(costs["enrichkit"], costs["gather"])))
    per_lookup = median(costs["enrichkit"])
    n6.goals.append((f"at most 6 us CPU per lookup: {per_lookup:.2f}", per_lookup <= 6.0))

    cached = alternate({"cached batches": lambda: in_a_new_process(cached_handover)}, 2 * rounds, warmup=0)[
        "cached batches"
    ]
    n9 = Table(
        "N9", f"hand-over of batches of {CACHED_BATCH:,} cached keys, encoding and assembly included", ("", "M rows/s")
    )
    by_core = [CACHED_ROWS / run.cpu / 1e6 for run in cached]
    n9.rows = [
        ("per core (CPU time of both threads)", spread(by_core)),
        ("wall", spread([rate / 1e6 for rate in rates(cached, CACHED_ROWS)])),
    ]
    n9.goals.append((f"at least 2 M rows/s per core: {median(by_core):.2f}", median(by_core) >= 2.0))
    return [n6, n9]
