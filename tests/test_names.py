"""
The name server: one that answers late or never, and a name that leads to another address than before.

A function in place of `socket.getaddrinfo` is the name server. The client of http has another one, so it is not here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
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
from enrichkit.engine.names import new_loop
from enrichkit.plugin import Call
from enrichkit.sql import session
from enrichkit.testing import open_connector
from enrichkit.testing.proxy import FaultProxy

from .faults import INT, PATIENT, TIMEOUT, TWICE, all_three, assert_good

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from enrichkit import ConnectorConfig

    from .certificates import Authority
    from .sparkless import Worker

pytestmark = [pytest.mark.service, pytest.mark.waits]

NAME, OTHER = "source.test", "other.test"
SOURCES = ["redis", "postgres", pytest.param("mariadb", marks=pytest.mark.apt)]


class NameServer:
    """
    Leads `NAME` to its addresses, and `OTHER` to 127.0.0.1.

    Attributes:
        addresses: The addresses.
        before: Called in the thread of a lookup before it is answered.
        asked: How often it was asked for the name.
    """

    def __init__(self) -> None:
        self.addresses = ["127.0.0.1"]
        self.before: Callable[[], Any] = lambda: None
        self.asked = 0
        self._look_up = socket.getaddrinfo

    def __call__(self, host: Any, *rest: Any, **options: Any) -> Any:
        if host != NAME:
            return self._look_up("127.0.0.1" if host == OTHER else host, *rest, **options)
        self.asked += 1
        self.before()
        return [info for address in self.addresses for info in self._look_up(address, *rest, **options)]


@pytest.fixture
def name_server(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server)
    return server


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Callable[..., ConnectorConfig]]]:
    """A server that holds 1 to 20, each under itself, and a function from a port to the config of a name there."""
    statement = "CREATE TABLE t (id int PRIMARY KEY, score int);" + ";".join(
        f"INSERT INTO t VALUES ({n}, {n})" for n in range(1, 21)
    )
    if request.param == "redis":
        server, url = request.getfixturevalue("redis_server"), request.getfixturevalue("redis_url")
        with redis.Redis.from_url(url) as client:
            client.mset({f"k{n}": n for n in range(1, 21)})
        yield server, lambda port, name=NAME: RedisConfig(url=f"redis://{name}:{port}", key="k{}")
    elif request.param == "postgres":
        server, dsn = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_dsn")
        database = dsn.rpartition("/")[2]
        server.execute(statement, database)
        at = f"postgresql://postgres@{{}}:{{}}/{database}?sslmode=disable"
        yield server, lambda port, name=NAME: PostgresConfig(dsn=at.format(name, port), table="t", insecure=True)
    else:
        with local.mariadb() as server:
            server.execute(f"CREATE DATABASE shop; USE shop; {statement}")
            at = "mariadb://root@{}:{}/shop"
            yield (
                server,
                lambda port, name=NAME: MariadbConfig(url=at.format(name, port), table="t", tls=False, insecure=True),
            )


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
    source: tuple[Any, Callable[..., ConnectorConfig]], name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, config_at = source
    for module in (redis_pool, session):
        monkeypatch.setattr(module, "LIFETIME", 0.0)  # each call gets a new connection

    async def run(config: ConnectorConfig, here: FaultProxy, there: FaultProxy) -> None:
        async with open_connector(config) as connector:
            assert {1: 1} == await first(connector)
            opened = here.opened
            assert (opened >= 1, there.opened) == (True, 0)
            name_server.addresses = ["127.0.0.2"]
            assert {1: 1} == await first(connector)
            assert (here.opened, there.opened) == (opened, 1)

    async def first(connector: Any) -> dict[Any, int]:
        return {key: int(value) for key, value in (await connector.fetch_many([1], Call(timeout=20.0))).items()}

    with proxy_at("127.0.0.1", 0, server) as here, proxy_at("127.0.0.2", here.port, server) as there:
        asyncio.run(run(config_at(here.port), here, there))


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_a_name_server_that_never_answers_costs_each_key_its_timeout(
    source: tuple[Any, Callable[..., ConnectorConfig]], name_server: NameServer, worker: Worker
) -> None:
    """And when it answers again, the next task is well."""
    server, config_at = source
    config, keys = config_at(server.port), [1, 2, 13, 3, 4]
    answers = threading.Event()
    name_server.before = answers.wait
    options = {"timeout": TIMEOUT, "retry": TWICE, **all_three("null")}
    try:
        rows = worker.outcomes(config, INT, keys, **options)
        assert ["timeout"] * 5 == [row["status"] for row in rows]
        for row in rows:
            assert row["value"] is None
            assert row["error"].startswith(f"TimeoutError: no answer within {TIMEOUT:g} s")
        assert 1 <= name_server.asked <= 4
    finally:
        answers.set()
    name_server.before = lambda: None
    assert_good(worker.outcomes(config, INT, keys, timeout=PATIENT), keys)


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_a_name_server_that_answers_late_costs_no_row(
    source: tuple[Any, Callable[..., ConnectorConfig]], name_server: NameServer, worker: Worker
) -> None:
    server, config_at = source
    name_server.before = lambda: time.sleep(TIMEOUT)
    keys = [1, 2, 13, 3, 4]
    rows, _ = worker.outcomes_of_two(config_at(server.port), INT, keys, timeout=PATIENT)
    assert_good(rows, keys)


@contextmanager
def silent_at(host: str, port: int) -> Iterator[None]:
    """An address that answers no attempt to connect, as that of a machine that was switched off."""
    with socket.create_server((host, port), backlog=0), contextlib.ExitStack() as waiting:
        for _ in range(4):  # the queue of the listener is full after the first ones; Linux drops what comes then
            sock = waiting.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex((host, port))
        yield


@pytest.mark.parametrize("source", SOURCES, indirect=True)
@pytest.mark.parametrize("first", ["silent", "refuses"])
def test_a_dead_first_address_of_a_name_costs_no_row(
    source: tuple[Any, Callable[..., ConnectorConfig]], name_server: NameServer, worker: Worker, first: str
) -> None:
    server, config_at = source
    name_server.addresses = ["127.0.0.9", "127.0.0.8", server.host]
    keys = [1, 2, 13, 3, 4]
    with contextlib.ExitStack() as dead:
        for address in name_server.addresses[:2] if first == "silent" else ():
            dead.enter_context(silent_at(address, server.port))
        rows, _ = worker.outcomes_of_two(config_at(server.port), INT, keys, timeout=PATIENT)
    assert_good(rows, keys)
    assert {row["attempts"] for row in rows} == {1}


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_a_name_that_hangs_holds_up_no_other_source(
    source: tuple[Any, Callable[..., ConnectorConfig]], name_server: NameServer, worker: Worker
) -> None:
    server, config_at = source
    answers, keys = threading.Event(), [1, 2, 13, 3, 4]
    name_server.before = answers.wait
    found: list[list[dict[str, Any]]] = []
    hangs = threading.Thread(
        target=lambda: found.append(worker.outcomes(config_at(server.port), INT, keys, timeout=PATIENT))
    )
    hangs.start()
    try:
        while not name_server.asked:
            time.sleep(0.01)
        assert_good(worker.outcomes(config_at(server.port, OTHER), INT, keys, timeout=PATIENT), keys)
        assert hangs.is_alive()
    finally:
        answers.set()
        hangs.join()
    assert_good(found[0], keys)


ENDS = """
import asyncio, socket, sys, threading
from enrichkit.engine.names import new_loop

asked = threading.Event()

def never(*_):
    asked.set()
    threading.Event().wait()

socket.getaddrinfo = never
loop = new_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
for number in range(100):
    asyncio.run_coroutine_threadsafe(loop.create_connection(asyncio.Protocol, f"{number}.test", 80), loop)
asked.wait()
print("ends")
"""


def test_a_process_ends_while_names_are_looked_up() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("ends\n", "")


@pytest.mark.parametrize("base", ["uvloop", "asyncio"])
def test_the_errors_of_a_connect_are_those_of_python(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    if base == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    loop = new_loop()
    for addresses in (["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]):
        name_server.addresses = addresses
        with pytest.raises(ConnectionRefusedError):
            loop.run_until_complete(loop.create_connection(asyncio.Protocol, NAME, free))
    name_server.before = lambda: (_ for _ in ()).throw(socket.gaierror(socket.EAI_NONAME, "no such name"))
    with pytest.raises(socket.gaierror, match="no such name"):
        loop.run_until_complete(loop.create_connection(asyncio.Protocol, NAME, free))
    assert name_server.asked == 3
    loop.close()


def test_callers_share_a_look_up_and_one_that_gives_up_ends_it_for_no_other(name_server: NameServer) -> None:
    answers = threading.Event()
    name_server.before = answers.wait
    loop = new_loop()

    async def ask() -> list[Any]:
        asking = [asyncio.create_task(loop.getaddrinfo(NAME, 80)) for _ in range(10)]
        await asyncio.sleep(0)
        asking[0].cancel()
        loop.call_later(0.05, answers.set)
        return await asyncio.gather(*asking, return_exceptions=True)

    first, *others = loop.run_until_complete(ask())
    assert isinstance(first, asyncio.CancelledError)
    assert {infos[0][4] for infos in others} == {("127.0.0.1", 80)}
    assert name_server.asked == 1
    loop.close()


@pytest.mark.parametrize("base", ["uvloop", "asyncio"])
def test_a_certificate_is_compared_with_the_name_whichever_address_answers(
    name_server: NameServer, monkeypatch: pytest.MonkeyPatch, base: str, authority: Callable[[str], Authority]
) -> None:
    if base == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    ours = authority("ours")
    trusts = ssl.create_default_context(cafile=ours.file)
    loop = new_loop()

    def connect(certified: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*ours.issue(certified, f"DNS:{certified}"))

        def serve() -> None:
            with contextlib.suppress(ssl.SSLError), context.wrap_socket(server.accept()[0], server_side=True) as client:
                client.recv(1)

        with socket.create_server(("127.0.0.1", 0)) as server:
            serving = threading.Thread(target=serve)
            serving.start()
            port = server.getsockname()[1]
            try:
                transport, _ = loop.run_until_complete(loop.create_connection(asyncio.Protocol, NAME, port, ssl=trusts))
                transport.close()
                loop.run_until_complete(asyncio.sleep(0.01))
            finally:
                serving.join()

    for addresses in (["127.0.0.1"], ["127.0.0.9", "127.0.0.1"]):
        name_server.addresses = addresses
        connect(NAME)
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            connect(OTHER)
    loop.close()
