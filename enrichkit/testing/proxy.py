"""
A network that misbehaves on demand: a TCP proxy between a real client and a real server.

A test of a connector with its real server shows only that the connector works. A test with the same server behind this
proxy shows what the connector does when the network is slow or stops, when a connection ends in the middle of an
answer, and when the server refuses new connections:

>>> from enrichkit import local
>>> from enrichkit.testing.proxy import fault_proxy
>>> with local.redis() as server, fault_proxy(server.host, server.port) as proxy:
...     url = proxy.url(server.url)  # for the config of the connector
...     proxy.delay(lambda chunk: 0.1 if chunk.number % 10 == 0 else 0.02)  # every tenth reply is late
...     proxy.freeze()  # nothing passes, connections stay open
...     proxy.thaw()
...     proxy.close_after(20)  # each connection is closed after 20 more bytes of replies
...     proxy.heal()
...     (proxy.opened, proxy.open)
(0, 0)

The proxy runs in a thread with an event loop of its own, so clients can be blocking or use asyncio. A method of the
proxy has taken effect when it returns.
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

_NO_LINGER: Final = struct.pack("ii", 1, 0)  # a socket with this SO_LINGER sends RST when it is closed
_BUFFER_MAX: Final = 2**20  # the proxy stops reading a socket while more bytes than this wait to be passed on


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    The bytes that the proxy got in one read from a socket. If requests and replies are small, a chunk is one request or
    one reply.

    Attributes:
        number: Number of chunks that arrived in this direction before this one, counted over all connections.
        direction: `"to server"` or `"to client"`.
        data: The bytes.
        connection: Number of connections that were opened before this one.
    """

    number: int
    direction: Direction
    data: bytes
    connection: int


@dataclass(slots=True)
class _Cut:
    """
    The fault that ends connections after a number of bytes.

    Attributes:
        after: Number of bytes after which a connection ends.
        direction: The direction in which the bytes are counted.
        reset: Whether a connection ends with RST; otherwise it ends with FIN.
        times: Number of connections that the fault still has to end; None means that it ends all of them.
    """

    after: int
    direction: Direction
    reset: bool
    times: int | None


@dataclass(slots=True)
class _Slices:
    """
    The fault that passes bytes on in small pieces.

    Attributes:
        size: The most bytes that a piece may have.
        pause: Seconds between two pieces of a chunk.
        direction: The direction whose chunks are sliced.
    """

    size: int
    pause: float
    direction: Direction


class FaultProxy:
    """
    The handle of a running proxy; `fault_proxy` creates it.

    Attributes:
        host: Address on which the proxy listens, always `127.0.0.1`.
        port: Port on which the proxy listens; it never changes.
        opened: Number of connections that clients have opened so far.
        open: Number of connections that are open now.
        bytes_to_server: Number of bytes that the proxy has passed on to the server.
        bytes_to_client: Number of bytes that the proxy has passed on to clients.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.opened = 0
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self._servers: tuple[tuple[str, int], ...] = ((host, port),)
        self._turn = 0
        self._links: dict[_Link, None] = {}
        self._transports: set[asyncio.Transport] = set()
        self._chunks: dict[Direction, int] = {"to server": 0, "to client": 0}
        self._delay: Callable[[Chunk], float] | None = None
        self._cut: _Cut | None = None
        self._slices: _Slices | None = None
        self._swaps = 0  # number of pairs of replies that are still to be exchanged
        self._held: tuple[_End, bytes] | None = None  # the `_End` that read the first reply of a pair, and this reply
        self._frozen = False
        self._drops = False
        self._listener: socket.socket | None = None
        self._accepting: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="enrichkit-proxy", daemon=True)

    def __repr__(self) -> str:
        servers = " and ".join(f"{host}:{port}" for host, port in self._servers)
        return f"<FaultProxy {self.host}:{self.port} to {servers}, {self.open} open>"

    @property
    def open(self) -> int:
        return sum(not link.client.ended for link in list(self._links))

    @property
    def heard(self) -> int:
        """
        Number of connections that clients opened, plus the number of chunks received from clients, including chunks
        that the proxy holds back.

        Connections are counted too, because in some protocols (MySQL's, SMTP) a client that has connected waits for the
        server's greeting before it sends anything.
        """
        return self.opened + self._chunks["to server"]

    def url(self, url: str) -> str:
        """Return *url*, a URL or DSN, with the proxy's address instead of the server's."""
        parts = urlsplit(url)
        user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
        return parts._replace(netloc=f"{user}{self.host}:{self.port}").geturl()

    # faults

    def delay(self, seconds: Callable[[Chunk], float] | float, *, direction: Direction = "to client") -> None:
        """
        From now on, delay each arriving chunk by *seconds*. The chunks of one connection keep their order.

        Args:
            seconds: A number, or a function that takes the chunk and returns a number; the proxy's thread calls the
                function.
            direction: The direction whose chunks are delayed.
        """
        wait = seconds if callable(seconds) else lambda chunk: seconds
        self._call(lambda: setattr(self, "_delay", lambda chunk: wait(chunk) if chunk.direction == direction else 0.0))

    def freeze(self) -> None:
        """Hold back all bytes in both directions. Connections stay open, and new connections are accepted."""
        self._call(lambda: setattr(self, "_frozen", True))

    def thaw(self) -> None:
        """Pass on the bytes that `freeze` has held back, and all bytes that arrive later."""
        self._call(self._thaw)

    def blackhole(self) -> None:
        """Drop all bytes from now on. A connection that has lost bytes stays dead, even after `heal`."""
        self._call(lambda: setattr(self, "_drops", True))

    def reset_after(self, size: int, *, direction: Direction = "to client", times: int | None = None) -> None:
        """
        Reset (RST) each connection as soon as *size* more bytes have passed on it.

        Args:
            size: Number of bytes, counted from now, or from the beginning of a new connection. With 0 the connection is
                reset when the next chunk arrives.
            direction: The direction in which bytes are counted.
            times: Number of connections that are reset; None: all.
        """
        self._call(lambda: self._cut_after(_Cut(size, direction, reset=True, times=times)))

    def close_after(self, size: int, *, direction: Direction = "to client", times: int | None = None) -> None:
        """Close (FIN) each connection as soon as *size* more bytes have passed on it; arguments as in `reset_after`."""
        self._call(lambda: self._cut_after(_Cut(size, direction, reset=False, times=times)))

    def slice(self, size: int, *, pause: float = 0.001, direction: Direction = "to client") -> None:
        """
        Pass each chunk on in pieces of at most *size* bytes, so that the receiver reads a reply in many parts.

        Args:
            size: The most bytes that a piece may have, at least 1.
            pause: Seconds between two pieces of a chunk.
            direction: The direction whose chunks are sliced.
        """
        if size < 1:
            raise ValueError(f"slice({size}): a piece has at least 1 byte.")
        self._call(lambda: setattr(self, "_slices", _Slices(size, pause, direction)))

    def inject(self, data: bytes, *, quiet: float = 0.01) -> int:
        """
        Send *data* to the clients of all idle connections, as if the server had sent it.

        Return the number of these connections.

        Args:
            data: Bytes that no request has asked for, for example a copy of an earlier reply.
            quiet: Seconds without traffic after which a connection is idle. A connection for which the proxy still has
                bytes to pass on is not idle.
        """
        sent = 0

        def send() -> None:
            nonlocal sent
            for link in list(self._links):
                sent += link.inject(data, quiet)

        self._call(send)
        return sent

    def swap(self, times: int = 1) -> None:
        """
        Exchange the replies of two connections, *times* times.

        The first chunk of the next reply is held back until a reply begins on another connection; then each client gets
        the chunk that was meant for the other client. A chunk that is still held back when `heal` is called goes to its
        own client.
        """
        self._call(lambda: setattr(self, "_swaps", times))

    def cut(self) -> None:
        """Reset all open connections, as a crashing server does."""
        self._call(self._end_all)

    def refuse(self) -> None:
        """Refuse new TCP connections. Open connections go on."""
        self._call(self._stop_listening)

    def accept(self) -> None:
        """Accept new connections again, on the same port."""
        self._run(self._listen())

    def route(self, *servers: tuple[str, int]) -> None:
        """
        Pass new connections on to *servers* in turn, and reset open connections to other servers, as load balancers do.

        Args:
            servers: Host and port of each server, at least one. `heal` does not change the servers.
        """
        if not servers:
            raise ValueError("route() was given no server; name one, as (host, port), or call refuse().")

        def change() -> None:
            self._servers = servers
            for link in list(self._links):
                if link.target not in servers:
                    link.end(reset=True)

        self._call(change)

    def heal(self) -> None:
        """End all faults, pass on what was held back, and accept new connections."""
        self._call(self._forget)
        self.thaw()
        self.accept()

    # The callbacks and coroutines below run on the proxy's thread.

    def _next_server(self) -> tuple[str, int]:
        self._turn += 1
        return self._servers[self._turn % len(self._servers)]

    def _forget(self) -> None:
        self._delay = self._cut = self._slices = None
        self._drops = False
        self._swaps = 0
        held, self._held = self._held, None
        if held is not None:
            held[0].put(held[1], 0.0)

    def _holds(self, end: _End) -> bool:
        """Return whether a chunk read by *end* is held back until it changes places with a chunk of another end."""
        return self._held is not None and self._held[0] is end

    def _swap(self, end: _End, data: bytes, delay: float) -> None:
        """Exchange *data*, which *end* has read, with the chunk held back; if none is held back, hold *data* back."""
        other, held = self._held or (end, b"")
        if other is end or other.link not in self._links:
            self._held = end, held + data if other is end else data
            return
        self._held = None
        self._swaps -= 1
        other.put(data, delay)
        end.put(held, delay)

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
            except Exception as error:  # noqa: BLE001  # the caller's thread raises it again
                done.set_exception(error)
            else:
                done.set_result(None)

        self._loop.call_soon_threadsafe(run)
        done.result()

    def _run(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((self.host, self.port), backlog=1000)
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            self._loop.add_reader(self._listener, self._accept, self._listener)

    def _accept(self, listener: socket.socket) -> None:
        """
        Accept all waiting connections.

        asyncio's `create_server` is not used: in Python 3.11 a server that is closed never closes a connection that it
        accepted just before.
        """
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            while True:
                client, _ = listener.accept()
                task = self._loop.create_task(self._loop.connect_accepted_socket(lambda: _Link(self).client, client))
                self._accepting.add(task)
                task.add_done_callback(self._accepting.discard)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _end_all(self) -> None:
        for link in list(self._links):
            link.end(reset=True)

    async def _shut(self) -> None:
        self._stop_listening()
        # Three rounds, because a connection that is being accepted in one round can be ended only in a later round.
        for _ in range(3):
            self._end_all()
            for transport in self._transports:
                transport.abort()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # transports close in a callback of the loop

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
        """Count a chunk, and return the seconds by which it is delayed."""
        chunk = Chunk(self._chunks[direction], direction, data, connection)
        self._chunks[direction] += 1
        return self._delay(chunk) if self._delay is not None else 0.0

    def _passed(self, direction: Direction, size: int) -> None:
        if direction == "to server":
            self.bytes_to_server += size
        else:
            self.bytes_to_client += size


class _Link:
    """The connection of a client and the corresponding connection to the server."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.target = proxy._next_server()
        self.number = 0
        self.last_read = 0.0  # loop time of the last chunk, in either direction
        self.replying = False  # whether the last chunk went to the client
        self.has_lost_bytes = False
        self.client = _End(self, "to server")
        self.server = _End(self, "to client")
        self.client.peer, self.server.peer = self.server, self.client
        self._connecting: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Register the connection of the client, and connect to the server."""
        self.number = self.proxy.opened
        self.proxy.opened += 1
        self.proxy._links[self] = None
        self._connecting = self.proxy._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            await self.proxy._loop.create_connection(lambda: self.server, *self.target)
        except OSError:
            self.end(reset=True)  # the server cannot be reached
            return
        self.client.pump()

    def inject(self, data: bytes, quiet: float) -> bool:
        """Send *data* to the client if the connection has been idle for *quiet* seconds; return whether it was sent."""
        client = self.client._transport
        waits = self.client._buffer or self.server._buffer
        if client is None or self.server.ended or waits or self.proxy._loop.time() < self.last_read + quiet:
            return False
        client.write(data)
        return True

    def end(self, *, reset: bool) -> None:
        """End both connections: with RST at once if *reset* is true, otherwise with FIN after all bytes are sent."""
        self.proxy._links.pop(self, None)
        if self._connecting is not None:
            self._connecting.cancel()
        for end in (self.client, self.server):
            end.end(reset=reset)


class _End(asyncio.Protocol):
    """
    One of the two sockets of a link.

    Bytes that this socket has read stay in its buffer until the other socket, `peer`, may write them.
    """

    def __init__(self, link: _Link, direction: Direction) -> None:
        self.link = link
        self.direction = direction
        self.peer: _End
        # Number of bytes that were read here and written by the peer since the connection began or a `_Cut` was set.
        self.passed = 0
        self._opened: asyncio.Transport
        self._transport: asyncio.Transport | None = None  # None when this end is not open
        self._buffer: deque[tuple[float, bytes]] = deque()  # (loop time at which the bytes are due, bytes)
        self._size = 0  # number of bytes in the buffer
        self.ended = False  # whether this socket has received EOF, or is closed
        self._end_passed = False  # whether the peer has passed on the EOF that this socket received
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
            self.end(reset=True)  # the client disconnected while the proxy was connecting to the server

    def data_received(self, data: bytes) -> None:
        proxy, link = self.link.proxy, self.link
        link.has_lost_bytes |= proxy._drops
        if link.has_lost_bytes:
            return
        delay = proxy._arrived(self.direction, data, link.number)
        begins = self.direction == "to client" and not link.replying
        link.last_read, link.replying = proxy._loop.time(), self.direction == "to client"
        if (begins and proxy._swaps) or proxy._holds(self):
            proxy._swap(self, data, delay)
        else:
            self.put(data, delay)

    def put(self, data: bytes, delay: float) -> None:
        """Buffer *data* until the peer may write it, *delay* seconds from now."""
        due = self.link.proxy._loop.time() + delay
        if self._buffer:
            due = max(due, self._buffer[-1][0])
        slices = self.link.proxy._slices
        if slices is None or slices.direction != self.direction:
            self._buffer.append((due, data))
        else:
            for number, start in enumerate(range(0, len(data), slices.size)):
                self._buffer.append((due + number * slices.pause, data[start : start + slices.size]))
        self._size += len(data)
        if self._size > _BUFFER_MAX and self._transport is not None:
            self._transport.pause_reading()
        self.pump()

    def eof_received(self) -> bool:
        self.ended = True
        if self.link.has_lost_bytes:
            self.link.end(reset=True)
        self.pump()
        return True  # asyncio then keeps the other direction open; `end` closes both directions

    def connection_lost(self, exc: Exception | None) -> None:
        self.link.proxy._transports.discard(self._opened)
        if not self.ended:
            self.link.end(reset=True)

    def pump(self) -> None:
        """Let the peer write all bytes that are due."""
        link, proxy = self.link, self.link.proxy
        peer = self.peer._transport
        if peer is None or proxy._frozen or link not in proxy._links:
            return
        now = proxy._loop.time()
        while self._buffer and self._buffer[0][0] <= now:
            _, data = self._buffer.popleft()
            self._size -= len(data)
            if self._size <= _BUFFER_MAX and self._transport is not None and not self._transport.is_reading():
                self._transport.resume_reading()
            if self._write(peer, data):
                return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._buffer:
            self._timer = proxy._loop.call_at(self._buffer[0][0], self.pump)
        elif self.ended and not self._end_passed and not proxy._holds(self):
            self._end_passed = True
            try:
                peer.write_eof()
            except OSError:  # the peer was reset meanwhile; asyncio calls its `connection_lost` next
                link.end(reset=True)
                return
            if self.peer._end_passed:
                link.end(reset=False)

    def _write(self, peer: asyncio.Transport, data: bytes) -> bool:
        """Write *data*, or only the part that a `_Cut` still lets pass, and return whether the connection was cut."""
        proxy, cut = self.link.proxy, self.link.proxy._cut
        if cut is None or cut.direction != self.direction or self.passed + len(data) < cut.after or cut.times == 0:
            cut = None
        else:
            data = data[: cut.after - self.passed]
        self.passed += len(data)
        # The bytes are counted before the write, because a test may read the count as soon as they have arrived.
        proxy._passed(self.direction, len(data))
        peer.write(data)
        if cut is None:
            return False
        if cut.times is not None:
            cut.times -= 1
        self.link.end(reset=cut.reset)
        return True

    def end(self, *, reset: bool) -> None:
        """Close the socket: with RST at once if *reset* is true, otherwise with FIN after all bytes are sent."""
        if self._timer is not None:
            self._timer.cancel()
        self.ended = True
        transport, self._transport = self._transport, None
        if transport is None or transport.is_closing():
            return
        if reset:
            sock: socket.socket = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            transport.abort()
        else:
            transport.close()


@contextlib.contextmanager
def fault_proxy(host: str, port: int) -> Iterator[FaultProxy]:
    """
    Run a proxy on a free loopback port. Until a fault is set, the proxy passes all bytes on to *host* and *port*.

    Args:
        host: Host of the server.
        port: Port of the server.
    """
    proxy = FaultProxy(host, port)
    proxy._start()
    try:
        yield proxy
    finally:
        proxy._stop()
