"""The sources of the benchmark of outages: two servers with the same data behind a proxy that makes the faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import redis

from benchmarks.redis_bulk import calls, seed
from enrichkit import ConnectorConfig, enrich, local
from enrichkit.testing.bench import wait_until
from enrichkit.testing.proxy import FaultProxy, fault_proxy

KEYS = 10_000
TASKS = 2
WARM = 1_000
LATENCY = 0.1
"""Seconds of a call: of the HTTP service itself, and of the network to the databases."""
GROUP = 10
"""Keys of a call to a database: with their own defaults the job would be over before the source is away."""


@dataclass(frozen=True)
class Source:
    """
    A source: two servers with the same data behind one proxy.

    Attributes:
        name: Name in the table.
        proxy: The network, which leads to the first server unless a day says otherwise.
        config: Config of the source; a value is text.
        options: Options of the column for jobs, where they are not the defaults.
        in_flight: Most calls in flight of both tasks together.
        needed: Calls of a job without a fault.
        count: Runs a job, and returns how many calls the servers counted in it.
        servers: Host and port of both servers.
        service: The first server, where it is an HTTP service that can refuse requests; None: a database.
    """

    name: str
    proxy: FaultProxy
    config: ConnectorConfig
    options: Mapping[str, Any]
    in_flight: int
    needed: int
    count: Callable[[Callable[[], object]], int]
    servers: tuple[tuple[str, int], tuple[str, int]]
    service: local.HttpService | None = None

    def column(self, **options: Any) -> Any:
        """Return the enriched column of text with *options*, or else those for jobs."""
        return enrich(self.config, "key", returns="string", **(options or self.options))

    def slow(self) -> None:
        """Give the network to a database the round trip that an HTTP service has by itself."""
        if self.service is None:
            self.proxy.delay(LATENCY)


def sources(frame: Any) -> Iterator[Source]:
    """Yield one source after the other, each with its worker processes and connections warm."""
    for make in (_http, _redis, _postgres):
        with ExitStack() as stack:
            source = make(stack)
            source.slow()
            frame.limit(WARM).withColumn("value", source.column()).count()
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
    servers = ("127.0.0.1", services[0].port), ("127.0.0.1", services[1].port)
    return Source("http", proxy, config, {}, 100 * TASKS, KEYS, requests, servers, services[0])


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
    pair = (servers[0].host, servers[0].port), (servers[1].host, servers[1].port)
    return Source("redis", proxy, config, {"batch_size": GROUP}, 4 * TASKS, KEYS // GROUP, commands, pair)


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
    pair = (databases[0].host, databases[0].port), (databases[1].host, databases[1].port)
    return Source("postgres", proxy, config, {"batch_size": GROUP}, 4 * TASKS, KEYS // GROUP, selects, pair)


def _fetched(database: local.PostgresServer) -> int:
    """Return how many rows of the table the server has fetched by its key; ends its sessions, which report then."""
    others = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
    database.execute(f"SELECT pg_terminate_backend(pid) {others}")
    assert wait_until(lambda: database.execute(f"SELECT count(*) {others}") == "0", 60.0), "a session did not end"
    return int(database.execute("SELECT coalesce(sum(idx_tup_fetch), 0) FROM pg_stat_user_tables"))
