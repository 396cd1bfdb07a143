"""
N6 and N9: the cost of the engine itself, without Spark and without a source.

N6 measures a connector that answers immediately, with one key per call. It is compared with code that people write by
hand (`gather`, a semaphore and `asyncio.timeout`), and with a bare loop of slots without deadlines, retries, queue and
statistics. N9 measures batches of 10,000 keys that are all in the cache, from Arrow array to Arrow array through the
real loop thread.
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
from enrichkit.engine.admission import admit
from enrichkit.engine.bridge import Bridge
from enrichkit.engine.cache import AnswerCache
from enrichkit.engine.engine import Engine
from enrichkit.engine.loop import loop_thread
from enrichkit.engine.run import Run
from enrichkit.interface import Call, Connector, ConnectorConfig
from enrichkit.options import Cache, Options
from enrichkit.outcome import Outcomes
from enrichkit.worker.assemble import assemble
from enrichkit.worker.keys import encode

if TYPE_CHECKING:
    from enrichkit.engine.records import Part

KEYS = 200_000
CAPACITY = 100
BATCH = 2_500
CACHED_ROWS = 2_000_000
CACHED_BATCH = 10_000
SOURCES = (
    "enrichkit/engine",
    "enrichkit/interface",
    *(f"enrichkit/{name}.py" for name in ("worker/keys", "worker/assemble", "options", "outcome")),
    "benchmarks/harness.py",
    "benchmarks/passes.py",
    "benchmarks/engine.py",
)


class Noop(Connector[ConnectorConfig]):
    """A connector that answers each key with the key itself, without waiting."""

    name = "noop"
    config_class = ConnectorConfig

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        return {key: key for key in keys}


def identity(raws: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
    return list(raws), {}


def with_engine() -> Sample:
    """Make KEYS lookups through the engine, with deadlines, retries, statistics and the ordered queue."""

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

        engine = Engine(Noop(ConnectorConfig()), CAPACITY)
        run = Run(engine, "noop", Options(on_error="null"), identity, emit)
        for start in range(0, KEYS, BATCH):
            admit(run, Outcomes(range(start, start + BATCH), BATCH))
            await asyncio.sleep(0)
        await done.wait()
        run.close()
        await engine.close()

    return timed(lambda: uvloop.run(main()))


def with_gather() -> Sample:
    """Make KEYS lookups with code as people write it by hand."""

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
    """Make KEYS lookups with slots only, which is the floor of the cost."""

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
    """Look up CACHED_ROWS rows, in batches of CACHED_BATCH distinct cached keys, from Arrow array to Arrow array."""
    cache = AnswerCache(3600.0, 2**30, None)
    names = [f"key {number}" for number in range(CACHED_BATCH)]
    cache.put_many(names, [f"value of {name}" for name in names], time.monotonic())
    batch = pa.array(names)
    expected = pa.array([f"value of {name}" for name in names])
    options = Options(cache=Cache(ttl=3600))
    loop = loop_thread()

    def run(emit: Callable[[Any], None]) -> Run:
        engine = loop.engine("n9", lambda: Engine(Noop(ConnectorConfig()), CAPACITY))
        return Run(engine, "noop", options, identity, emit, batch_size=500, cache=cache)

    bridge = Bridge(loop, 100_000, 100_000, "noop", options, run)

    def slices() -> Iterator[Outcomes]:
        for _ in range(CACHED_ROWS // CACHED_BATCH):
            keys, codes = encode([batch])
            yield Outcomes(keys.objects(), CACHED_BATCH, codes)

    def work() -> None:
        for part in bridge.process(slices()):
            assert assemble(part.outcomes.values, part.outcomes.tag, pa.string()).equals(expected)

    return timed(work)


def in_a_new_process(work: Callable[[], Sample]) -> Sample:
    """Return the second run of *work* in a new process, which earlier work in this process cannot slow down."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        process.submit(work).result()
        return process.submit(work).result()


def main(quick: bool) -> list[Table]:
    """Measure N6 and N9. A run takes two seconds, so with *quick* there are fewer runs."""
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
