"""N10: bad days with default options. A source goes away, loses its connections, is restarted, or refuses requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import redis

from benchmarks.harness import COLUMN, Table, timed
from benchmarks.redis_bulk import calls, seed
from benchmarks.spark_runs import keys_of
from enrichkit import enrich, local
from enrichkit.testing.bench import wait_until
from enrichkit.testing.proxy import FaultProxy, fault_proxy

KEYS = 10_000
TASKS = 2
WARM = 1_000
LATENCY = 0.1
"""Seconds of a call: of the HTTP service itself, and of the network to the databases."""
GROUP = 10
"""Keys of a call to a database: with their own defaults the job would be over before the source is away."""
BREAKS_APART = 1.5
SETTLED = 2.0
"""Seconds within which a job has its throughput back."""
PROBES = 5, 2.0
"""Calls of a process that ask whether the source is back: at first, and then per second."""
SOURCES = (
    *COLUMN,
    "enrichkit/sql",
    "plugins/enrichkit-http/enrichkit_http",
    "plugins/enrichkit-redis/enrichkit_redis",
    "plugins/enrichkit-postgres/enrichkit_postgres",
    "benchmarks/outages.py",
)


@dataclass(frozen=True)
class Source:
    """
    A source: two servers with the same data behind one proxy.

    Attributes:
        name: Name in the table.
        proxy: The network, which leads to the first server unless a day says otherwise.
        column: The enriched column, of text.
        in_flight: Most calls in flight of both tasks together.
        needed: Calls of a job without a fault.
        count: Runs a job, and returns how many calls the servers counted in it.
        servers: Host and port of both servers.
        service: The first server, where it is an HTTP service that can refuse requests; None: a database.
    """

    name: str
    proxy: FaultProxy
    column: Any
    in_flight: int
    needed: int
    count: Callable[[Callable[[], object]], int]
    servers: tuple[tuple[str, int], tuple[str, int]]
    service: local.HttpService | None = None

    def slow(self) -> None:
        """Give the network to a database the round trip that an HTTP service has by itself."""
        if self.service is None:
            self.proxy.delay(LATENCY)


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
    """Measure N10."""
    table = Table(
        "N10",
        f"a source on a bad day, {KEYS:,} keys, {TASKS} tasks, default options",
        ("source", "day", "breaks", "rows right", "seconds", "lost beyond", "calls repeated", "allowed"),
    )
    with local.spark() as spark:
        frame = keys_of(spark, KEYS, "", TASKS)
        for source in sources(frame):
            job(frame, source, None)  # the first one warms the JVM up
            good, right, _, _ = job(frame, source, None)
            table.rows.append((source.name, "a good day", "", f"{right:,}", f"{good:.1f}", "", "", ""))
            for day in DAYS[:1] if quick else DAYS:
                if not day.http or source.service is not None:
                    _measure(table, frame, source, day, good)
    table.notes += [
        "every value was compared with its key; the servers counted the calls",
        "lost beyond: seconds beyond a good day and beyond the time for which the source answered nobody",
        "allowed: the calls in flight at each break, and per task 5 probes and 2 a second while the source was away",
        f"HTTP: {LATENCY:g} s a request. Databases: {GROUP} keys a call over a network with {LATENCY:g} s a reply",
    ]
    return [table]


def _measure(table: Table, frame: Any, source: Source, day: Day, good: float) -> None:
    """Add a row to *table* for *day*, and its goal; a job takes *good* seconds on a good day."""
    seconds, right, repeated, breaks = job(frame, source, day)
    lost = seconds - good - day.away
    allowed = breaks * source.in_flight + TASKS * (PROBES[0] + int(PROBES[1] * day.away))
    table.rows.append(
        (
            source.name,
            day.name,
            str(breaks),
            f"{right:,}",
            f"{seconds:.1f}",
            f"{lost:.1f}",
            f"{repeated:,}",
            f"{allowed:,}",
        )
    )
    met = right == KEYS and lost <= SETTLED * max(1, breaks) and repeated <= allowed
    table.goals.append(
        (f"{source.name}, {day.name}: every row, {SETTLED:g} s lost for each break, calls repeated as allowed", met)
    )


def job(frame: Any, source: Source, day: Day | None) -> tuple[float, int, int, int]:
    """Run the job on a *day*; return its seconds, the right rows, the calls beyond those needed, and the breaks."""
    from pyspark.sql import functions as F

    right, seconds = 0, 0.0

    def work() -> None:
        nonlocal right
        found = frame.withColumn("value", source.column)
        right = found.where(F.col("value") == F.concat(F.lit("value of "), F.col("key"))).count()

    def timed_work() -> None:
        nonlocal seconds
        seconds = timed(work).seconds

    with during(source, day) as breaks:
        counted = source.count(timed_work)
    return seconds, right, counted - source.needed, sum(breaks)


@contextmanager
def during(source: Source, day: Day | None) -> Iterator[list[int]]:
    """Let *day* happen to *source* a moment after it has begun to answer the body; yield a list for its breaks."""
    over, before, breaks = threading.Event(), source.proxy.bytes_to_client, list[int]()

    def act() -> None:
        while source.proxy.bytes_to_client < before + 20_000:
            time.sleep(0.01)
        time.sleep(0.3)
        assert day is not None
        breaks.append(day.act(source, over))

    thread = threading.Thread(target=act) if day is not None else None
    if thread is not None:
        thread.start()
    yield breaks
    over.set()
    if thread is not None:
        thread.join()
        source.proxy.route(source.servers[0])


def sources(frame: Any) -> Iterator[Source]:
    """Yield one source after the other, each with its worker processes and connections warm."""
    for make in (_http, _redis, _postgres):
        with ExitStack() as stack:
            source = make(stack)
            source.slow()
            frame.limit(WARM).withColumn("value", source.column).count()
            yield source


def _http(stack: ExitStack) -> Source:
    from enrichkit_http import HttpConfig

    services = [stack.enter_context(local.http()) for _ in range(2)]
    for service in services:
        service.seed({str(n): {"value": f"value of {n}"} for n in range(KEYS)})
        service.script(latency=LATENCY)
    proxy = stack.enter_context(fault_proxy("127.0.0.1", services[0].port))

    def requests(work: Callable[[], object]) -> int:
        for service in services:
            service.reset_stats()
        work()
        return sum(service.stats().calls for service in services)

    config = HttpConfig(url=f"{proxy.url(services[0].url)}/{{}}", value="value")
    column = enrich(config, "key", returns="string")
    servers = ("127.0.0.1", services[0].port), ("127.0.0.1", services[1].port)
    return Source("http", proxy, column, 100 * TASKS, KEYS, requests, servers, services[0])


def _redis(stack: ExitStack) -> Source:
    from enrichkit_redis import RedisConfig

    servers = [stack.enter_context(local.redis()) for _ in range(2)]
    for server in servers:
        seed(server.url, KEYS, "")
        with redis.Redis.from_url(server.url) as client:
            client.mset({str(n): f"value of {n}" for n in range(KEYS)})
    proxy = stack.enter_context(fault_proxy(servers[0].host, servers[0].port))

    def commands(work: Callable[[], object]) -> int:
        for server in servers:
            calls(server.url)
        work()
        return sum(calls(server.url)[0] for server in servers)

    config = RedisConfig(url=proxy.url(servers[0].url), key="{}")
    column = enrich(config, "key", returns="string", batch_size=GROUP)
    pair = (servers[0].host, servers[0].port), (servers[1].host, servers[1].port)
    return Source("redis", proxy, column, 4 * TASKS, KEYS // GROUP, commands, pair)


def _postgres(stack: ExitStack) -> Source:
    from enrichkit_postgres import PostgresConfig

    databases = [stack.enter_context(local.postgres()) for _ in range(2)]
    for database in databases:
        database.execute(
            f"CREATE TABLE t AS SELECT n::text AS id, 'value of ' || n AS value FROM generate_series(0, {KEYS - 1}) n;"
            "ALTER TABLE t ADD PRIMARY KEY (id); ANALYZE t"
        )
    proxy = stack.enter_context(fault_proxy(databases[0].host, databases[0].port))

    def selects(work: Callable[[], object]) -> int:
        before = sum(map(_fetched, databases))
        work()
        return -(-(sum(map(_fetched, databases)) - before) // GROUP)

    config = PostgresConfig(dsn=proxy.url(databases[0].dsn), table="t")
    column = enrich(config, "key", returns="string", batch_size=GROUP)
    pair = (databases[0].host, databases[0].port), (databases[1].host, databases[1].port)
    return Source("postgres", proxy, column, 4 * TASKS, KEYS // GROUP, selects, pair)


def _fetched(database: local.PostgresServer) -> int:
    """Return how many rows of the table the server has fetched by its key; ends its sessions, which report then."""
    others = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    database.execute(f"SELECT pg_terminate_backend(pid) {others}")
    assert wait_until(lambda: database.execute(f"SELECT count(*) {others}") == "0", 10.0), "a session did not end"
    return int(database.execute("SELECT coalesce(sum(idx_tup_fetch), 0) FROM pg_stat_user_tables"))
