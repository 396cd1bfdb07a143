"""
A network that misbehaves on demand: a TCP proxy between a real client and a real server.

A test of a connector against its real server shows that it works. What it does when the network is slow, stops, loses
a connection in the middle of an answer or refuses new ones is shown by the same server behind this proxy:

>>> from enrichkit import local
>>> from enrichkit.testing.proxy import fault_proxy
>>> with local.redis() as server, fault_proxy(server.host, server.port) as proxy:
...     url = proxy.url(server.url)  # for the config of the connector
...     proxy.delay(lambda chunk: 0.1 if chunk.number % 10 == 0 else 0.02)  # every tenth reply is late
...     proxy.freeze()  # nothing passes, connections stay open
...     proxy.thaw()
...     proxy.close_after(20)  # each connection ends in the middle of what it receives
...     proxy.heal()
...     (proxy.opened, proxy.open)
(0, 0)

It runs in a thread with an event loop of its own, so it works for blocking and for asyncio clients alike. Its methods
take effect before they return.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import struct
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Chunk", "Direction", "FaultProxy", "fault_proxy"]

Direction: TypeAlias = Literal["to server", "to client"]

_LINGER_NOT: Final = struct.pack("ii", 1, 0)  # a socket closed with this sends a reset
_HELD_MAX: Final = 2**20  # bytes that wait in one direction of one connection, above which no more are read


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    What one read of a socket returned; for a protocol of small requests, one request or one reply.

    Attributes:
        number: How many chunks went in this direction before, over all connections.
        direction: `"to server"` or `"to client"`.
        data: The bytes.
        connection: How many connections were opened before this one.
    """

    number: int
    direction: Direction
    data: bytes
    connection: int


@dataclass(slots=True)
class _Cut:
    """Connections end after so many bytes in one direction."""

    after: int
    direction: Direction
    reset: bool
    times: int | None


class FaultProxy:
    """
    The handle of a running proxy. Made by `fault_proxy`.

    Attributes:
        host: Where it listens; always `127.0.0.1`. Likewise *port*, which stays the same.
        opened: Connections that clients have opened so far.
        open: Connections that are open now.
        bytes_to_server: Bytes that passed so far; likewise *bytes_to_client*.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.opened = 0
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self._target = (host, port)
        self._links: dict[_Link, None] = {}
        self._transports: set[asyncio.Transport] = set()
        self._chunks: dict[Direction, int] = {"to server": 0, "to client": 0}
        self._delay: Callable[[Chunk], float] | None = None
        self._cut: _Cut | None = None
        self._frozen = False
        self._black = False
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="enrichkit-proxy", daemon=True)

    def __repr__(self) -> str:
        return f"<FaultProxy {self.host}:{self.port} to {self._target[0]}:{self._target[1]}, {self.open} open>"

    @property
    def open(self) -> int:
        return sum(not link.client.ended for link in list(self._links))

    @property
    def heard(self) -> int:
        """
        How often clients have connected or sent a chunk, that has not passed yet perhaps.

        To connect counts, because in some protocols (MySQL's, SMTP) the client then waits for the server's greeting.
        """
        return self.opened + self._chunks["to server"]

    def url(self, url: str) -> str:
        """Return *url*, or DSN, with the address of the proxy in place of the server's."""
        parts = urlsplit(url)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return parts._replace(netloc=f"{user}{self.host}:{self.port}").geturl()

    # faults

    def delay(self, seconds: Callable[[Chunk], float] | float, *, direction: Direction = "to client") -> None:
        """
        Let what arrives from now on wait for as many *seconds*; what one connection sends keeps its order.

        Args:
            seconds: A number, or a function of the chunk. It is called on the proxy's thread.
            direction: The other one is not delayed.
        """
        wait = seconds if callable(seconds) else lambda chunk: seconds
        self._call(lambda: setattr(self, "_delay", lambda chunk: wait(chunk) if chunk.direction == direction else 0.0))

    def freeze(self) -> None:
        """Let nothing pass in either direction. Connections stay open, and new ones are accepted."""
        self._call(lambda: setattr(self, "_frozen", True))

    def thaw(self) -> None:
        """Let pass what `freeze` held back, and all that follows."""
        self._call(self._thaw)

    def blackhole(self) -> None:
        """Drop all bytes from now on. A connection that lost some stays dead, also after `heal`."""
        self._call(lambda: setattr(self, "_black", True))

    def reset_after(self, size: int, *, direction: Direction = "to client", times: int | None = None) -> None:
        """
        Reset (RST) each connection as soon as *size* more bytes have passed on it.

        Args:
            size: Counted from now, or from the beginning of a new connection; 0: with the next chunk.
            direction: Bytes of the other one are not counted.
            times: How many connections end so; all that follow when None.
        """
        self._call(lambda: self._cut_after(_Cut(size, direction, reset=True, times=times)))

    def close_after(self, size: int, *, direction: Direction = "to client", times: int | None = None) -> None:
        """Close (FIN) each connection as soon as *size* more bytes have passed on it; otherwise as `reset_after`."""
        self._call(lambda: self._cut_after(_Cut(size, direction, reset=False, times=times)))

    def cut(self) -> None:
        """Reset all connections that are open now, as a server does that crashes."""
        self._call(self._end_all)

    def refuse(self) -> None:
        """Refuse new connections, on the level of TCP. Open ones go on."""
        self._call(self._stop_listening)

    def accept(self) -> None:
        """Accept new connections again, on the same port."""
        self._run(self._listen())

    def heal(self) -> None:
        """End all faults."""
        self._call(self._forget)
        self.thaw()
        self.accept()

    # the rest runs on the proxy's thread

    def _forget(self) -> None:
        self._delay = self._cut = None
        self._black = False

    def _start(self) -> None:
        self._thread.start()
        self._run(self._listen())

    def _stop(self) -> None:
        self._run(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, function: Callable[[], Any]) -> None:
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            try:
                function()
            except Exception as error:  # noqa: BLE001  # it belongs to the caller's thread
                done.set_exception(error)
            else:
                done.set_result(None)

        self._loop.call_soon_threadsafe(run)
        done.result()

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await self._loop.create_server(
                lambda: _Link(self).client, self.host, self.port, backlog=1000
            )
            self.port = self._server.sockets[0].getsockname()[1]

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _end_all(self) -> None:
        for link in list(self._links):
            link.end(reset=True)

    async def _shut(self) -> None:
        self._stop_listening()
        for _ in range(3):  # connections that are just being accepted come later
            self._end_all()
            for transport in self._transports:
                transport.abort()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # transports close by a callback

    def _thaw(self) -> None:
        self._frozen = False
        for link in list(self._links):
            link.client.pump()
            link.server.pump()

    def _cut_after(self, cut: _Cut) -> None:
        self._cut = cut
        for link in self._links:
            link.client.passed = link.server.passed = 0

    def _arrived(self, direction: Direction, data: bytes, connection: int) -> float:
        """Count a chunk and return the seconds that it has to wait."""
        chunk = Chunk(self._chunks[direction], direction, data, connection)
        self._chunks[direction] += 1
        return self._delay(chunk) if self._delay is not None else 0.0

    def _passed(self, direction: Direction, size: int) -> None:
        if direction == "to server":
            self.bytes_to_server += size
        else:
            self.bytes_to_client += size


class _Link:
    """One connection of a client and the one to the server that belongs to it."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.number = 0
        self.black = False
        self.client = _End(self, "to server")
        self.server = _End(self, "to client")
        self.client.peer, self.server.peer = self.server, self.client
        self._connecting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """The client has connected."""
        self.number = self.proxy.opened
        self.proxy.opened += 1
        self.proxy._links[self] = None
        self._connecting = self.proxy._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self.proxy._loop.create_connection(lambda: self.server, *self.proxy._target)
        except OSError:
            self.end(reset=True)  # the server is away
            return
        self.client.pump()

    def end(self, *, reset: bool) -> None:
        """End both connections, the client's with a reset or after what was written."""
        self.proxy._links.pop(self, None)
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.client, self.server):
            end.end(reset=reset)


class _End(asyncio.Protocol):
    """One of the two sockets of a link. What it reads waits here until the peer may write it."""

    def __init__(self, link: _Link, direction: Direction) -> None:
        self.link = link
        self.direction = direction
        self.peer: _End
        self.passed = 0  # bytes that it read and the peer wrote
        self._opened: asyncio.Transport
        self._transport: asyncio.Transport | None = None  # while it may be used
        self._held: deque[tuple[float, bytes]] = deque()  # (when it is due, data)
        self._size = 0
        self.ended = False  # it has read the end of the stream
        self._told = False  # so has the peer
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.link.proxy._transports.add(self._transport)
        self._opened = self._transport
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.direction == "to server":
            self.link.begin()
        elif self.link not in self.link.proxy._links:
            self.end(reset=True)  # the client has gone while we were connecting

    def data_received(self, data: bytes) -> None:
        proxy, link = self.link.proxy, self.link
        link.black |= proxy._black
        if link.black:
            return
        now = proxy._loop.time()
        due = now + proxy._arrived(self.direction, data, link.number)
        self._held.append((max(due, self._held[-1][0]) if self._held else due, data))
        self._size += len(data)
        if self._size > _HELD_MAX and self._transport is not None:
            self._transport.pause_reading()
        self.pump()

    def eof_received(self) -> bool:
        self.ended = True
        if self.link.black:
            self.link.end(reset=True)
        self.pump()
        return True  # keeps the other direction open; `end` closes both

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.proxy._transports.discard(self._opened)
        if not self.ended:
            self.link.end(reset=True)

    def pump(self) -> None:
        """Let the peer write what is due."""
        link, proxy = self.link, self.link.proxy
        peer = self.peer._transport
        if peer is None or proxy._frozen or link not in proxy._links:
            return
        now = proxy._loop.time()
        while self._held and self._held[0][0] <= now:
            _, data = self._held.popleft()
            self._size -= len(data)
            if self._size <= _HELD_MAX and self._transport is not None and not self._transport.is_reading():
                self._transport.resume_reading()
            if self._write(peer, data):
                return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            self._timer = proxy._loop.call_at(self._held[0][0], self.pump)
        elif self.ended and not self._told:
            self._told = True
            try:
                peer.write_eof()
            except OSError:  # it was reset meanwhile, of which we hear next
                link.end(reset=True)
                return
            if self.peer._told:
                link.end(reset=False)

    def _write(self, peer: asyncio.Transport, data: bytes) -> bool:
        """Write *data* as far as no cut forbids it; return whether the connection was cut."""
        proxy, cut = self.link.proxy, self.link.proxy._cut
        if cut is None or cut.direction != self.direction or self.passed + len(data) < cut.after or cut.times == 0:
            cut = None
        else:
            data = data[: cut.after - self.passed]
        self.passed += len(data)
        proxy._passed(self.direction, len(data))  # before it is written: who reads it may look at the count at once
        peer.write(data)
        if cut is None:
            return False
        if cut.times is not None:
            cut.times -= 1
        self.link.end(reset=cut.reset)
        return True

    def end(self, *, reset: bool) -> None:
        """Close the socket, at once or after what was written."""
        if self._timer is not None:
            self._timer.cancel()
        self.ended = True
        transport, self._transport = self._transport, None
        if transport is None or transport.is_closing():
            return
        if reset:
            sock: socket.socket = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            transport.abort()
        else:
            transport.close()


@contextlib.contextmanager
def fault_proxy(host: str, port: int) -> Iterator[FaultProxy]:
    """
    Run a proxy on a free loopback port that passes everything on to *host* and *port*, until a fault is asked for.

    Args:
        host: Of the server.
        port: Of the server.
    """
    proxy = FaultProxy(host, port)
    proxy._start()
    try:
        yield proxy
    finally:
        proxy._stop()
