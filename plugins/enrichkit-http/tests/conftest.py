"""Fixtures: a connector, one lookup in a service, and a service that sends prepared bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig, HttpConnector

from enrichkit.errors import ConnectorError
from enrichkit.plugin import Call
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


@dataclass(frozen=True)
class Request:
    """A request as the server has read it; the names of headers are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: str

    @classmethod
    def of(cls, data: bytes) -> Request:
        head, _, body = data.decode("latin-1").partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            assert name.lower() not in headers, "each header is sent once"
            headers[name.lower()] = value.strip()
        return cls(method, target, headers, body)


@dataclass
class ByteServer:
    """
    A server that answers each request with prepared bytes, which need not be valid HTTP.

    Attributes:
        answers: One answer for each request; the last answer serves all further requests. An answer is bytes, and
            whether to `"keep"`, `"close"` or `"reset"` the connection after them.
        url: URL of the server.
        requests: The bytes of each request.
        connections: Number of connections so far.
        transports: The connections that are open now.
        closed: Set whenever a connection ends.
        handler: Makes the answer to a request, instead of `answers`.
    """

    answers: list[tuple[bytes, str]]
    url: str = ""
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    transports: set[asyncio.Transport] = field(default_factory=set)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    handler: Callable[[Request], bytes] | None = None

    def next_answer(self) -> tuple[bytes, str]:
        if self.handler is not None:
            return self.handler(Request.of(self.requests[-1])), "keep"
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
    *answers: bytes | tuple[bytes, str],
    tls: ssl.SSLContext | None = None,
    handler: Callable[[Request], bytes] | None = None,
) -> AsyncIterator[ByteServer]:
    prepared = [answer if isinstance(answer, tuple) else (answer, "keep") for answer in answers]
    server = ByteServer(prepared, handler=handler)
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
def asked(serving: Callable[..., Any]) -> Callable[..., Any]:
    """`asked(handler, *keys, path="/{}", timeout=5.0, many=False, **fields)`: one lookup of each key in a service of "
    "which `handler(request)` makes the answers; returns the outcomes, errors included, and the requests."""

    def run(
        handler: Callable[[Request], bytes],
        *keys: Any,
        path: str = "/{}",
        timeout: float = 5.0,
        many: bool = False,
        **fields: Any,
    ) -> tuple[list[Any], list[Request]]:
        async def once() -> tuple[list[Any], list[Request]]:
            outcomes: list[Any] = []
            async with serving(handler=handler) as server, opened(server.url + path, **fields) as connector:
                for key in keys:
                    try:
                        found = await connector.fetch_many((key,), Call(timeout=timeout, many=many))
                        outcomes.append(found.get(key, "missing"))
                    except ConnectorError as error:
                        outcomes.append(error)
                return outcomes, [Request.of(request) for request in server.requests]

        return asyncio.run(once())

    return run


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


@pytest.fixture
def in_frames() -> Callable[[BaseException], str]:
    """`in_frames(error)`: the text of an error, and the variables of all frames of the connector in its traceback."""

    def run(error: BaseException) -> str:
        shown = [repr(error)]
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if "enrichkit_http" in frame.f_code.co_filename:
                for value in frame.f_locals.values():
                    with contextlib.suppress(RuntimeError):  # the client shows no request that was sent
                        shown.append(repr(value))
        assert len(shown) > 1
        return "\n".join(shown)

    return run


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return the bytes of a valid answer."""
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.fixture(name="http")
def http_bytes() -> Callable[..., bytes]:
    """`http(body, *headers, status="200 OK")`: the bytes of a valid answer."""
    return http
