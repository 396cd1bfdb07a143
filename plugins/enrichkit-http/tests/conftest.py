"""A connector on a service, a service of single bytes, and an authority for its certificates."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig, HttpConnector

from enrichkit.connector import Call
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable


def opened(url: str, *, capacity: int = 8, **fields: Any) -> contextlib.AbstractAsyncContextManager[HttpConnector]:
    return open_connector(HttpConfig(url=url, **fields), capacity=capacity)


@pytest.fixture
def connected() -> Callable[..., Any]:
    """`async with connected(url, capacity=8, **fields) as connector`."""
    return opened


@pytest.fixture
def lookup() -> Callable[..., dict[Any, Any]]:
    """`lookup(url, *keys, timeout=5.0, many=False, **fields)`: one call on a connector of its own."""

    def run(url: str, *keys: Any, timeout: float = 5.0, many: bool = False, **fields: Any) -> dict[Any, Any]:
        async def once() -> dict[Any, Any]:
            async with opened(url, **fields) as connector:
                return dict(await connector.fetch_many(keys, Call(timeout=timeout, many=many)))

        return asyncio.run(once())

    return run


@dataclass
class ByteServer:
    """
    An HTTP server without opinions: it sends the bytes that it was given, whatever they are.

    Attributes:
        answers: One for each request that comes, the last one again and again: bytes, and whether to `"keep"`,
            `"close"` or `"reset"` the connection after them.
        url: Where it listens.
        requests: The bytes of each request.
        connections: Connections so far.
        transports: Connections that are open now.
        closed: Told whenever a connection is gone.
    """

    answers: list[tuple[bytes, str]]
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    transports: set[asyncio.Transport] = field(default_factory=set)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def next_answer(self) -> tuple[bytes, str]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @property
    def heads(self) -> list[bytes]:
        """The first line of each request."""
        return [request.partition(b"\r\n")[0] for request in self.requests]

    async def all_closed(self) -> None:
        """Wait until no connection is open."""
        while self.transports:
            self.closed.clear()
            await self.closed.wait()


class _Bytes(asyncio.Protocol):
    def __init__(self, server: ByteServer) -> None:
        self.server = server
        self.buffer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.server.connections += 1
        self.server.transports.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server.transports.discard(self.transport)
        self.server.closed.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, blank, body = self.buffer.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        if not blank or len(body) < length:
            return
        self.server.requests.append(self.buffer)
        self.buffer = b""
        answer, then = self.server.next_answer()
        self.transport.write(answer)
        if then == "close":
            self.transport.close()
        elif then == "reset":
            raw: socket.socket = self.transport.get_extra_info("socket")
            # Linger zero: the kernel sends RST instead of FIN.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()


@contextlib.asynccontextmanager
async def serve_bytes(
    *answers: bytes | tuple[bytes, str], tls: ssl.SSLContext | None = None
) -> AsyncIterator[ByteServer]:
    server = ByteServer([answer if isinstance(answer, tuple) else (answer, "keep") for answer in answers])
    listener = await asyncio.get_running_loop().create_server(lambda: _Bytes(server), "127.0.0.1", 0, ssl=tls)
    server.url = f"http{'s' if tls else ''}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for transport in server.transports:
            transport.abort()
        await server.all_closed()


@pytest.fixture
def serving() -> Callable[..., Any]:
    """`async with serving(b"HTTP/1.1 200 OK...", (b"...", "close"), tls=None) as server`."""
    return serve_bytes


@pytest.fixture
def answered(serving: Callable[..., Any]) -> Callable[..., Any]:
    """`answered(data, key="k", then="keep", timeout=5.0, many=False, **fields)`: the outcome of one lookup and the "
    "server's view."""

    def run(
        data: bytes,
        key: Any = "k",
        *keys: Any,
        path: str = "/{}",
        then: str = "keep",
        timeout: float = 5.0,
        many: bool = False,
        **fields: Any,
    ) -> Any:
        async def once() -> Any:
            async with serving((data, then)) as server, opened(server.url + path, **fields) as connector:
                return dict(await connector.fetch_many((key, *keys), Call(timeout=timeout, many=many)))

        return asyncio.run(once())

    return run


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """The bytes of an honest answer."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture(name="http")
def http_bytes() -> Callable[..., bytes]:
    """`http(body, *headers, status="200 OK")`: the bytes of an honest answer."""
    return http
