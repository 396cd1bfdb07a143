"""Fixtures: real servers, an independent client that fills them, and a proxy that misbehaves in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import redis
import uvloop
from enrichkit_redis import RedisConfig, RedisConnector, pool
from enrichkit_redis import cluster as clusters
from enrichkit_redis import connector as connectors

from enrichkit import local
from enrichkit.local.redis_cluster import RedisCluster, redis_cluster
from enrichkit.plugin import Call
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence


@pytest.fixture(scope="session", params=local.redis_servers())
def server(request: pytest.FixtureRequest) -> Iterator[local.RedisServer]:
    """A server of each kind on this machine, one after the other."""
    with local.redis(request.param) as running:
        yield running


@pytest.fixture
def client(server: local.RedisServer) -> Iterator[redis.Redis]:
    """redis-py on an empty server: the client that fills the server shares no code with the connector that reads it."""
    server.flush()
    with redis.Redis(port=server.port, protocol=2) as client:
        for (
            entry
        ) in client.client_list():  # the workers of a Spark test keep connections for a while, and tests count them
            if entry["name"] == "enrichkit":
                client.client_kill_filter(_id=entry["id"])
        yield client


@pytest.fixture(scope="session", params=local.redis_servers())
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    """A cluster of three masters of each kind of server on this machine."""
    with redis_cluster(request.param) as running:
        yield running


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time limits that only a server that hangs uses up, however busy the machine is; a test of one sets its own."""
    monkeypatch.setattr(pool, "CONNECT_TIMEOUT", 60.0)
    monkeypatch.setattr(pool, "CHECK_TIMEOUT", 60.0)
    monkeypatch.setattr(clusters, "LOAD_TIMEOUT", 60.0)
    monkeypatch.setattr(connectors, "DESCRIBE_TIMEOUT", 60.0)


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`run(coroutine)` on each kind of event loop that a worker may have."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


def opened(url: str, *, capacity: int = 8, **fields: Any) -> contextlib.AbstractAsyncContextManager[RedisConnector]:
    return open_connector(RedisConfig(url=url, **fields), capacity=capacity)


@pytest.fixture
def connected() -> Callable[..., Any]:
    """`async with connected(url, capacity=8, **fields) as connector`."""
    return opened


@pytest.fixture
def lookup() -> Callable[..., dict[Any, Any]]:
    """`lookup(url, keys, many=False, **fields)`: one call on a connector of its own."""

    def run(url: str, keys: Sequence[Any], *, many: bool = False, **fields: Any) -> dict[Any, Any]:
        async def once() -> dict[Any, Any]:
            async with opened(url, **fields) as connector:
                return dict(await connector.fetch_many(keys, Call(timeout=5, many=many)))

        return asyncio.run(once())

    return run


@pytest.fixture
def frozen() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """`with frozen(pid)`: the process accepts and answers nothing, but its sockets stay open."""

    @contextlib.contextmanager
    def freeze(pid: int) -> Iterator[None]:
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    return freeze


class Proxy:
    """
    A relay to a server on loopback.

    Attributes:
        port: Where it listens.
        target: The port it relays to; may be changed for later connections.
        accepted: Connections so far.
        on_request: Sees each chunk of requests before it is sent on.
        on_reply: Turns the replies of an exchange, from echo to echo, into what the client gets; others as they come.
    """

    def __init__(self, target: int, *, tls: ssl.SSLContext | None = None, path: str | None = None) -> None:
        self.target = target
        self.port = 0
        self.accepted = 0
        self.on_request: Callable[[bytes], None] = lambda data: None
        self.on_reply: Callable[[bytes], bytes] = lambda data: data
        self._tls = tls
        self._path = path
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Proxy:
        await self.up()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen again on the same port."""
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._relay, self._path)
        else:
            self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port, ssl=self._tls)
            self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Stop listening and cut all connections."""
        self._server.close()
        tasks = list(self._clients)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def inject(self, data: bytes) -> None:
        """Send *data* to every client, as if it came from the server."""
        for writer in self._clients.values():
            writer.write(data)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = writer
        up_writer = None
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._requests(reader, up_writer))
                group.create_task(self._replies(up_reader, writer))
        except (asyncio.CancelledError, OSError, ExceptionGroup):
            pass
        finally:
            del self._clients[task]
            for each in (writer, up_writer):
                if each is not None:
                    each.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.on_request(data)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # ends the other direction too

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = b""
        while data := await reader.read(65536):
            left += data
            while whole := exchange_of(left):
                left = left[len(whole) :]
                writer.write(self.on_reply(whole))
            await writer.drain()
        writer.write(left)
        raise ConnectionResetError


def exchange_of(replies: bytes) -> bytes:
    """Return the first replies of *replies*: those between two echoes of a nonce, or all of them without an echo."""
    echo = replies[:31]
    if not echo.startswith(b"$24\r\n"):
        return replies
    end = replies.find(echo, 31)
    return replies[: end + 31] if end >= 0 else b""


@pytest.fixture
def proxy() -> type[Proxy]:
    """`async with proxy(server.port) as p`: `p.port`, `p.inject(...)`, `p.on_reply = ...`."""
    return Proxy
