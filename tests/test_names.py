"""
The name server: one that answers late or never, and a name that leads to another address than before.

A function in place of `socket.getaddrinfo` is the name server, so the loop is asyncio's: uvloop asks the C library, and
so does the client of http.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_mariadb import MariadbConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from enrichkit_redis import pool as redis_pool

from enrichkit import local
from enrichkit.engine import loop
from enrichkit.plugin import Call
from enrichkit.sql import session
from enrichkit.testing import open_connector
from enrichkit.testing.proxy import FaultProxy

from .faults import INT, PATIENT, TIMEOUT, TWICE, all_three, assert_good

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from enrichkit import ConnectorConfig

    from .sparkless import Worker

pytestmark = pytest.mark.service

NAME = "source.test"
SOURCES = ["redis", "postgres", pytest.param("mariadb", marks=pytest.mark.apt)]


class NameServer:
    """
    Leads `NAME` to *address*.

    Attributes:
        address: The address.
        before: Called in the thread of a lookup before it is answered.
        asked: How often it was asked for the name.
        first: When it was first asked for the name.
    """

    def __init__(self) -> None:
        self.address = "127.0.0.1"
        self.before: Callable[[], Any] = lambda: None
        self.asked = 0
        self.first = 0.0
        self._look_up = socket.getaddrinfo

    def __call__(self, host: Any, *rest: Any, **options: Any) -> Any:
        if host != NAME:
            return self._look_up(host, *rest, **options)
        self.first = self.first or time.monotonic()
        self.asked += 1
        self.before()
        return self._look_up(self.address, *rest, **options)


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server)
    monkeypatch.setattr(loop, "_new_loop", asyncio.new_event_loop)
    return server


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Callable[[int], ConnectorConfig]]]:
    """A server that holds 1 to 20, each under itself, and a function from a port to the config of `NAME` there."""
    statement = "CREATE TABLE t (id int PRIMARY KEY, score int);" + ";".join(
        f"INSERT INTO t VALUES ({n}, {n})" for n in range(1, 21)
    )
    if request.param == "redis":
        server, url = request.getfixturevalue("redis_server"), request.getfixturevalue("redis_url")
        with redis.Redis.from_url(url) as client:
            client.mset({f"k{n}": n for n in range(1, 21)})
        yield server, lambda port: RedisConfig(url=f"redis://{NAME}:{port}", key="k{}")
    elif request.param == "postgres":
        server, dsn = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_dsn")
        database = dsn.rpartition("/")[2]
        server.execute(statement, database)
        at = f"postgresql://postgres@{NAME}:{{}}/{database}?sslmode=disable"
        yield server, lambda port: PostgresConfig(dsn=at.format(port), table="t", insecure=True)
    else:
        with local.mariadb() as server:
            server.execute(f"CREATE DATABASE shop; USE shop; {statement}")
            at = f"mariadb://root@{NAME}:{{}}/shop"
            yield server, lambda port: MariadbConfig(url=at.format(port), table="t", tls=False, insecure=True)


@contextmanager
def proxy_at(host: str, port: int, server: Any) -> Iterator[FaultProxy]:
    """A proxy to *server* that listens at *host* and *port*; at any port when it is 0."""
    proxy = FaultProxy(server.host, server.port)
    proxy.host, proxy.port = host, port
    proxy._start()
    try:
        yield proxy
    finally:
        proxy._stop()


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_a_new_connection_looks_the_name_up_again(
    source: tuple[Any, Callable[[int], ConnectorConfig]], name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, config_at = source
    for module in (redis_pool, session):
        monkeypatch.setattr(module, "LIFETIME", 0.0)  # each call gets a new connection

    async def run(config: ConnectorConfig, here: FaultProxy, there: FaultProxy) -> None:
        async with open_connector(config) as connector:
            assert {1: 1} == await first(connector)
            opened = here.opened
            assert (opened >= 1, there.opened) == (True, 0)
            name_server.address = "127.0.0.2"
            assert {1: 1} == await first(connector)
            assert (here.opened, there.opened) == (opened, 1)

    async def first(connector: Any) -> dict[Any, int]:
        return {key: int(value) for key, value in (await connector.fetch_many([1], Call(timeout=20.0))).items()}

    with proxy_at("127.0.0.1", 0, server) as here, proxy_at("127.0.0.2", here.port, server) as there:
        asyncio.run(run(config_at(here.port), here, there))


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_a_name_server_that_never_answers_costs_each_key_its_timeout(
    source: tuple[Any, Callable[[int], ConnectorConfig]], name_server: NameServer, worker: Worker
) -> None:
    """And when it answers again, the next task is well."""
    server, config_at = source
    config, keys = config_at(server.port), [1, 2, 13, 3, 4]
    answers = threading.Event()
    name_server.before = answers.wait
    options = {"timeout": TIMEOUT, "retry": TWICE, **all_three("null")}
    try:
        rows = worker.outcomes(config, INT, keys, **options)
        assert time.monotonic() - name_server.first < 4 * TIMEOUT
        assert ["timeout"] * 5 == [row["status"] for row in rows]
        for row in rows:
            assert row["value"] is None
            assert row["latency"] < 2 * TIMEOUT
            assert row["error"].startswith(f"TimeoutError: no answer within {TIMEOUT:g} s")
        assert 1 <= name_server.asked <= 4
    finally:
        answers.set()
    name_server.before = lambda: None
    assert_good(worker.outcomes(config, INT, keys, timeout=PATIENT), keys)


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_a_name_server_that_answers_late_costs_no_row(
    source: tuple[Any, Callable[[int], ConnectorConfig]], name_server: NameServer, worker: Worker
) -> None:
    server, config_at = source
    name_server.before = lambda: time.sleep(TIMEOUT)
    keys = [1, 2, 13, 3, 4]
    assert_good(worker.outcomes(config_at(server.port), INT, keys, timeout=PATIENT), keys)
