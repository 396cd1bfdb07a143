"""N10: bad days with default options. A source goes away, loses its connections, is restarted, or refuses requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks import pressure
from benchmarks.harness import COLUMN, Table, timed
from benchmarks.outage_sources import GROUP, KEYS, LATENCY, TASKS, Source, sources
from benchmarks.spark_runs import keys_of
from enrichkit import local

BREAKS_APART = 1.5
SETTLED = 2.0
"""Seconds within which a job has its throughput back."""
PROBES = 5, 2.0
"""Calls of a process that ask whether the source is back: at first, and then per second."""
BACK, WINDOW = 0.9, 0.5
"""Share of the throughput of a good day that a job has to have again, in a window of so many seconds."""
STRICT: dict[str, Any] = {
    "timeout": 0.5,
    "on_timeout": "null",
    "on_error": "null",
    "max_fallback_ratio": 1.0,
    "capacity": 20,
    "batch_size": 1,
}
"""Options of a user who would rather have nulls than wait."""
STRICT_ROWS, STRICT_SECONDS = 200, 6.5
SOURCES = (
    *COLUMN,
    "enrichkit/sql",
    "plugins/enrichkit-http/enrichkit_http",
    "plugins/enrichkit-redis/enrichkit_redis",
    "plugins/enrichkit-postgres/enrichkit_postgres",
    "benchmarks/outages.py",
    "benchmarks/outage_sources.py",
    "benchmarks/pressure.py",
    "benchmarks/peak.py",
)


@dataclass(frozen=True)
class Day:
    """
    A bad day.

    Attributes:
        name: Name in the table.
        act: Makes the fault and mends it, and returns how often calls in flight were lost. It ends early when the job
            is over, which the event says.
        away: Seconds for which the source answers nobody.
        http: Whether only a service can have it.
    """

    name: str
    act: Callable[[Source, threading.Event], int]
    away: float = 0.0
    http: bool = False


def away(seconds: float) -> Day:
    """The server is gone: connections are reset and new ones are refused."""

    def act(source: Source, over: threading.Event) -> int:
        source.proxy.refuse()
        source.proxy.cut()
        over.wait(seconds)
        source.proxy.heal()
        source.slow()
        return 1

    return Day(f"away for {seconds:g} s", act, seconds)


def silent(seconds: float) -> Day:
    """Nothing comes through, and nothing says so; connections stay open."""

    def act(source: Source, over: threading.Event) -> int:
        source.proxy.freeze()
        over.wait(seconds)
        source.proxy.thaw()
        return 0

    return Day(f"silent for {seconds:g} s", act, seconds)


def closed(times: int) -> Day:
    """A load balancer closes all connections, and accepts new ones at once."""

    def act(source: Source, over: threading.Event) -> int:
        for broken in range(times):
            source.proxy.cut()
            if over.wait(BREAKS_APART):
                return broken + 1
        return times

    return Day(f"all connections closed, up to {times} x", act)


def restarted() -> Day:
    """Two servers behind a load balancer are restarted one after the other."""

    def act(source: Source, over: threading.Event) -> int:
        first, second = source.servers
        source.proxy.route(first, second)
        for breaks, staying in enumerate((second, first), 1):
            source.proxy.route(staying)
            if over.wait(BREAKS_APART):
                return breaks
            source.proxy.route(first, second)
        return 2

    return Day("rolling restart of two servers", act)


def refused(status: int, seconds: float, **headers: str) -> Day:
    """The service answers every request with *status*."""

    def act(source: Source, over: threading.Event) -> int:
        assert source.service is not None
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        source.service.script(local.Fault(status=status, headers=named), latency=LATENCY)
        over.wait(seconds)
        source.service.script(latency=LATENCY)
        return 1

    said = f", Retry-After {headers['Retry_After']}" if headers else ""
    return Day(f"{status} for {seconds:g} s{said}", act, seconds, http=True)


DAYS = (
    *map(away, (1.0, 3.0, 20.0)),
    silent(3.0),
    *map(closed, (1, 3, 10)),
    restarted(),
    *(refused(status, seconds) for status in (503, 429) for seconds in (1.0, 3.0)),
    refused(503, 10.0),
    *(refused(status, 3.0, Retry_After="1") for status in (503, 429)),
)


def main(quick: bool) -> list[Table]:
    """Measure N10, deadlines that stay strict, and N12."""
    table = Table(
        "N10",
        f"a source on a bad day, {KEYS:,} keys, {TASKS} tasks, default options",
        ("source", "day", "breaks", "rows right", "seconds", "lost beyond", "90 % after", "calls repeated", "allowed"),
    )
    strict = Table(
        "strict",
        f"{STRICT_ROWS} rows of a source that answers nobody, {', '.join(f'{k}={v!r}' for k, v in STRICT.items())}",
        ("source", "it is", "nulls", "seconds"),
    )
    with local.spark() as spark:
        frame = keys_of(spark, KEYS, "", TASKS)
        few = keys_of(spark, STRICT_ROWS, "", 1)
        for source in sources(frame):
            job(frame, source, None)  # the first one warms the JVM up
            good = job(frame, source, None)
            seconds = f"{good.seconds:.1f}"
            table.rows.append((source.name, "a good day", "", f"{good.right:,}", seconds, "", "", "", ""))
            for day in DAYS[:1] if quick else DAYS:
                if not day.http or source.service is not None:
                    _measure(table, frame, source, day, good)
            _measure_strict(strict, few, source)
    table.notes += [
        "every value was compared with its key; the servers counted the calls",
        "lost beyond: seconds beyond a good day and beyond the time for which the source answered nobody",
        f"90 % after: seconds from the source's return to the first {WINDOW:g} s with 90 % of a good day's bytes",
        "allowed: the calls in flight at each break, and per task 5 probes and 2 a second while the source was away",
        f"HTTP: {LATENCY:g} s a request. Databases: {GROUP} keys a call over a network with {LATENCY:g} s a reply",
    ]
    return [table, strict, pressure.measure(quick)]


def _measure(table: Table, frame: Any, source: Source, day: Day, good: Job) -> None:
    """Add a row to *table* for *day*, and its goal, which the job on a *good* day sets."""
    found = job(frame, source, day)
    lost = found.seconds - good.seconds - day.away
    allowed = found.breaks * source.in_flight + TASKS * (PROBES[0] + int(PROBES[1] * day.away))
    back = found.back(BACK * good.rate()) if day.away else 0.0
    table.rows.append(
        (
            source.name,
            day.name,
            str(found.breaks),
            f"{found.right:,}",
            f"{found.seconds:.1f}",
            f"{lost:.1f}",
            f"{back:.1f}" if day.away else "",
            f"{found.repeated:,}",
            f"{allowed:,}",
        )
    )
    met = found.right == KEYS and lost <= SETTLED * max(1, found.breaks) and found.repeated <= allowed
    text = f"{source.name}, {day.name}: every row, {SETTLED:g} s lost for each break, calls repeated as allowed"
    if day.away:
        text, met = f"{text}, 90 % of the throughput within {SETTLED:g} s", met and back <= SETTLED
    table.goals.append((text, met))


def _measure_strict(table: Table, few: Any, source: Source) -> None:
    """Add a row to *table*, and a goal, for each way in which *source* answers nobody."""
    from pyspark.sql import functions as F

    enriched = few.withColumn("value", source.column(**STRICT))

    def nulls() -> int:
        return int(enriched.where(F.col("value").isNull()).count())

    ways = {"silent": source.proxy.freeze, "gone": lambda: (source.proxy.refuse(), source.proxy.cut())}
    for way, act in ways.items():
        # To open the connections takes a part of so short a timeout, and each worker process has its own.
        assert any(nulls() == 0 for _ in range(10))
        act()
        found = 0

        def work() -> None:
            nonlocal found
            found = nulls()

        seconds = timed(work).seconds
        source.proxy.thaw()
        source.proxy.heal()
        source.slow()
        table.rows.append((source.name, way, str(found), f"{seconds:.1f}"))
        met = found == STRICT_ROWS and seconds <= STRICT_SECONDS
        table.goals.append((f"{source.name} is {way}: {STRICT_ROWS} nulls in {STRICT_SECONDS:g} s", met))


@dataclass
class Job:
    """
    How a job went.

    Attributes:
        seconds: For how long it ran.
        right: Rows with their own value.
        repeated: Calls beyond those needed.
        breaks: How often calls in flight were lost.
        mended: Time at which the fault was mended; None: there was none.
        passed: Times, and how many bytes the source had sent then.
    """

    seconds: float = 0.0
    right: int = 0
    repeated: int = 0
    breaks: int = 0
    mended: float | None = None
    passed: list[tuple[float, int]] = field(default_factory=list)

    def rate(self) -> float:
        """Return the bytes a second in the middle half of the time in which the source answered."""
        first, last = self.passed[0][1], self.passed[-1][1]
        times = [at for at, size in self.passed if first < size < last]
        quarter = (times[-1] - times[0]) / 4
        return self._between(times[0] + quarter, times[-1] - quarter)

    def back(self, rate: float) -> float:
        """Return after how many seconds from the mending the source sent *rate* bytes a second; infinite: it did not."""
        assert self.mended is not None
        starts = [at for at, _ in self.passed if at >= self.mended]
        return next((at - self.mended for at in starts if self._between(at, at + WINDOW) >= rate), float("inf"))

    def _between(self, start: float, end: float) -> float:
        """Return the bytes a second from *start* to *end*."""
        sizes = [size for at, size in self.passed if start <= at <= end]
        return (sizes[-1] - sizes[0]) / (end - start) if sizes else 0.0


def job(frame: Any, source: Source, day: Day | None) -> Job:
    """Run the job on a *day*, and return how it went."""
    from pyspark.sql import functions as F

    found = Job()

    def work() -> None:
        rows = frame.withColumn("value", source.column())
        found.right = rows.where(F.col("value") == F.concat(F.lit("value of "), F.col("key"))).count()

    def timed_work() -> None:
        found.seconds = timed(work).seconds

    with during(source, day, found):
        counted = source.count(timed_work)
    found.repeated = counted - source.needed
    return found


@contextmanager
def during(source: Source, day: Day | None, found: Job) -> Iterator[None]:
    """Let *day* happen to *source* a moment after it has begun to answer, and write down in *found* what passes."""
    over, before = threading.Event(), source.proxy.bytes_to_client

    def act() -> None:
        while source.proxy.bytes_to_client < before + 20_000:
            if over.wait(0.01):
                return
        time.sleep(0.3)
        assert day is not None
        found.breaks = day.act(source, over)
        found.mended = time.monotonic()

    threads = [threading.Thread(target=_watch, args=(source, found, over))]
    if day is not None:
        threads.append(threading.Thread(target=act))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()  # or a failed job would leave the process running
        for thread in threads:
            thread.join()
        source.proxy.route(source.servers[0])


def _watch(source: Source, found: Job, over: threading.Event) -> None:
    """Write down in *found*, twenty times a second, how many bytes *source* has sent."""
    while not over.wait(0.05):
        found.passed.append((time.monotonic(), source.proxy.bytes_to_client))
