"""
A cluster of hundreds or thousands of worker processes at one source, under virtual time: the engine is the real one.

Each worker has an engine and a task of its own; they know of each other only what the store of a rate of the job tells
them. The source has a capacity and a queue, and is away from the 8th to the 18th second. The store of the rate takes
as long for a question as a real one did here, for as many workers; see `QUESTION`.

    python -m benchmarks.cluster_simulation          # 400 and 4,000 workers, a quarter of an hour; writes the result
    python -m benchmarks.cluster_simulation 400      # as many; writes nothing
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from benchmarks.harness import Table
from benchmarks.report import fingerprint, save
from enrichkit.engine.admission import admit
from enrichkit.engine.engine import Engine
from enrichkit.engine.job import Store
from enrichkit.engine.run import Run
from enrichkit.errors import UnavailableError
from enrichkit.interface import Call, Connector, ConnectorConfig
from enrichkit.leases import Ask, Grant, grant
from enrichkit.limits import Rate
from enrichkit.options import Options
from enrichkit.outcome import STATUSES, Outcomes
from enrichkit.testing.clock import run as under_virtual_time

WORKERS = (400, 4000)
CAPACITY = 8000.0
"""Calls that the source answers in a second."""
LATENCY = 0.02
SLOTS = 4
"""Calls in flight that a worker may have."""
AWAY, BACK, END = 8.0, 18.0, 26.0
STEADY = 4.0
QUESTION = (0.000035, 0.0000012)
"""Seconds of a Redis or Valkey for a question, and for each worker when it looks at all of them; measured."""
SOURCES = ("enrichkit/engine", "enrichkit/leases.py", "benchmarks/cluster_simulation.py")


class Source:
    """
    A server that answers its callers one after the other, `CAPACITY` in a second.

    Attributes:
        arrivals: When calls arrived, also while it was away.
        answers: When it answered.
        by_worker: Answers of each worker from the 4th to the 8th second.
        in_flight: Calls that have arrived and have no answer.
        most: The most calls that have ever been in flight.
    """

    def __init__(self, workers: int) -> None:
        self.arrivals: list[float] = []
        self.answers: list[float] = []
        self.by_worker = np.zeros(workers)
        self.in_flight = self.most = 0
        self._free = 0.0

    async def call(self, worker: int) -> None:
        now = asyncio.get_running_loop().time()
        self.arrivals.append(now)
        if AWAY <= now < BACK:
            await asyncio.sleep(0.001)
            raise UnavailableError("The source refuses connections.", sent=False)
        self._free = max(now, self._free) + 1.0 / CAPACITY
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            ends = self._free + LATENCY
            if now < AWAY < ends:  # it ends with the connection
                await asyncio.sleep(AWAY - now)
                raise UnavailableError("The source closed the connection.")
            await asyncio.sleep(ends - now)
        finally:
            self.in_flight -= 1
        self.answers.append(ends)
        self.by_worker[worker] += STEADY <= ends < AWAY

    def most_in_a_second(self, begin: float, end: float) -> float:
        """Return the most arrivals in any second from *begin* to *end*, as a multiple of the capacity."""
        times = np.sort(np.array(self.arrivals))
        times = times[(times >= begin) & (times < end)]
        return float((np.searchsorted(times, times + 1.0 - 1e-9) - np.arange(len(times))).max()) / CAPACITY

    def throughput(self, begin: float, end: float) -> float:
        """Return the answers in a second from *begin* to *end*, as a part of the capacity."""
        times = np.array(self.answers)
        return float(((times >= begin) & (times < end)).sum()) / (end - begin) / CAPACITY

    def recovery(self, begin: float, end: float) -> float:
        """Return the seconds after *begin* at which a second begins that has 90 % of the capacity."""
        for step in np.arange(begin, end - 1.0, 0.1):
            if self.throughput(step, step + 1.0) >= 0.9:
                return float(step - begin)
        return float("inf")


class Simulated(Connector[ConnectorConfig]):
    """The connector of one worker."""

    name = "simulated"
    config_class = ConnectorConfig

    def __init__(self, source: Source, worker: int) -> None:
        super().__init__(ConnectorConfig())
        self._source = source
        self._worker = worker

    async def open(self) -> None:
        """Nothing is connected before the first call."""

    async def close(self) -> None:
        """Nothing is open."""

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        await self._source.call(self._worker)
        return {key: key for key in keys}


class Leases:
    """A store of limits that answers one question after the other."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.questions = self.unheard = 0
        self._free = 0.0

    async def lease(self, ask: Ask) -> Grant:
        loop = asyncio.get_running_loop()
        each, per_worker = QUESTION
        self.questions += 1
        many = self.state.get("many")
        looks = many is None or 1e9 + loop.time() >= many[0]
        self._free = max(loop.time(), self._free) + each + looks * per_worker * len(self.state.get("workers", ()))
        try:
            await asyncio.sleep(self._free - loop.time())
        except asyncio.CancelledError:
            self.unheard += 1  # its answer came too late
            raise
        return grant(self.state, ask, 1e9 + loop.time())

    async def close(self) -> None:
        """The next simulation has a store of its own."""


class LeaseConnector(Connector[ConnectorConfig]):
    """The connector of the one store of a simulation."""

    name = "leases"
    config_class = ConnectorConfig
    store: ClassVar[Leases]

    @classmethod
    def lease_store(cls, config: ConnectorConfig) -> Leases:
        return cls.store


async def simulate(workers: int, rate: Rate | None) -> tuple[Source, Leases, dict[str, int]]:
    """Let *workers* begin at once; return the source, the store, and the rows by status."""
    source, leases = Source(workers), Leases()
    LeaseConnector.store = leases
    stores = {} if rate is None else {"rate": Store("rate", "leases", LeaseConnector, ConnectorConfig())}
    options = Options(timeout=60.0, max_fallback_ratio=1.0, on_error="null", on_timeout="null", details=True)
    statuses: dict[str, int] = {}
    engines, runs = [], []
    for worker in range(workers):
        engine = Engine(Simulated(source, worker), SLOTS, rate=rate, stores=stores, seed=worker)

        def emit(parts: Any) -> None:
            if isinstance(parts, BaseException):
                raise parts
            for part in parts:
                for status in part.outcomes.statuses:
                    statuses[STATUSES[status]] = statuses.get(STATUSES[status], 0) + 1

        run = Run(engine, "simulated", options, lambda raws: (list(raws), {}), emit, default_values={}, seed=worker)
        for key in range(int(1.5 * END * CAPACITY / workers) + 10):
            admit(run, Outcomes([key], 1, details=True, counts=[1]))
        engines.append(engine)
        runs.append(run)
    await asyncio.sleep(END)
    for run in runs:
        run.close()
    for engine in engines:
        await engine.close()
    return source, leases, statuses


def main(quick: bool, counts: Sequence[int] = WORKERS) -> list[Table]:
    """Simulate clusters, without a limit and with a rate of the job."""
    logging.getLogger("enrichkit").setLevel(logging.ERROR)
    counts = (40,) if quick else counts
    return [table_of(None, counts), table_of(Rate(CAPACITY, per="job", store="leases"), counts)]


def table_of(rate: Rate | None, counts: Sequence[int]) -> Table:
    """Simulate a cluster of each of *counts* workers."""
    table = Table(
        "without a limit" if rate is None else "a rate of the job",
        f"{CAPACITY:,.0f} calls/s, {LATENCY * 1000:g} ms, {SLOTS} calls in flight a worker, away for {BACK - AWAY:g} s",
        (
            *("workers", "start: most in 1 s", "steady", "slowest worker", "fastest", "most in flight", "probes/s"),
            *("return: most in 1 s", "90 % after, s", "questions/s", "unheard", "failed rows"),
        ),
    )
    for workers in counts:
        source, leases, statuses = under_virtual_time(simulate(workers, rate), limit=1000.0)
        fair = source.by_worker / max(source.by_worker.mean(), 1e-9)
        after, recovery = source.most_in_a_second(BACK, END), source.recovery(BACK, END)
        away = sum(AWAY + 1.0 <= at < BACK for at in source.arrivals) / (BACK - AWAY - 1.0)
        failed = sum(count for status, count in statuses.items() if status != "ok")
        table.rows.append(
            (
                *(
                    f"{workers:,}",
                    f"{source.most_in_a_second(0.0, STEADY):.2f} x",
                    f"{source.throughput(STEADY, AWAY):.1%}",
                ),
                *(f"{fair.min():.2f} x", f"{fair.max():.2f} x", f"{source.most:,}", f"{away:,.0f}"),
                *(f"{after:.2f} x", f"{recovery:.1f}", f"{leases.questions / END:,.0f}", f"{leases.unheard:,}"),
                f"{failed:,}",
            )
        )
        table.goals.append((f"{workers:,} workers: no row fails", failed == 0))
        if rate is not None:
            table.goals += [
                (f"{workers:,} workers: after the return no second above 1.1 x the capacity", after <= 1.1),
                (f"{workers:,} workers: 90 % of the capacity within 5 s", recovery <= 5.0),
            ]
    return table


if __name__ == "__main__":
    before = fingerprint(SOURCES)
    made = main(False, [int(text) for text in sys.argv[1:]] or WORKERS)
    print("\n".join(table.text() for table in made))
    if not sys.argv[1:]:
        print(save("cluster_simulation", made, SOURCES, before))
