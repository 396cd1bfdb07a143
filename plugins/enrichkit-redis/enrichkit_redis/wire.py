"""
One connection to a Redis server: the RESP protocol with hiredis' parser, and checks that no key gets another key's
value.

docs/decisions/0005-redis-data-path.md explains why the connection of redis-py is not used.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
from typing import TYPE_CHECKING, Any

import hiredis

from enrichkit.errors import ConnectorError, PermanentError, TransientError, UnavailableError

from .replies import translate

if TYPE_CHECKING:
    from .config import Address

__all__ = ["Connection"]

_PARTIAL: Any = object()
# After a reply, hiredis frees its buffer if the buffer has more bytes than this number. With the default of hiredis, 16
# KiB, each larger reply would cost a new malloc.
_KEPT_BUFFER = 256 * 1024

# If a peer vanishes without a FIN, the kernel notices it after 30 + 3 x 5 s on an idle connection, and after 30 s if
# sent bytes are not acknowledged.
_SOCKET_OPTIONS = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))


class Connection(asyncio.Protocol):
    """
    A connection that does one exchange (commands and their replies) at a time, and closes at the first sign of a wrong
    reply.

    A reply without a request (from a server or proxy that repeats itself, or the late reply to a cancelled request)
    would shift all later replies by one, and each key would get the value of another key. Three checks prevent this:

    1. Bytes that arrive while no exchange is in progress end the connection at once.
    2. Each exchange begins and ends with an `ECHO` of a nonce that was never used before; the first and the last reply
       must be that nonce.
    3. The number of replies is known; one reply too many, or a part of a further reply, ends the connection.

    Attributes:
        closed: Whether the connection must not be used again.
        hello: Future of the replies to the greeting, which are the commands that are sent as soon as the connection is
            made; see `exchange`.
        used: Loop time of the end of the last exchange; the `Pool` sets it.
        expires: Loop time after which the `Pool` replaces the connection; the `Dialler` sets it.
        address: Address of the server; the `Dialler` sets it.
    """

    hello: asyncio.Future[list[Any] | ConnectorError]
    address: Address

    def __init__(self, source: str, max_bytes: int, greeting: bytes, replies: int) -> None:
        self.closed = False
        self.used = self.expires = 0.0
        self._source = source
        self._max_bytes = max_bytes
        self._greeting = greeting, replies
        self._reader = hiredis.Reader(notEnoughData=_PARTIAL)
        self._reader.setmaxbuf(_KEPT_BUFFER)
        self._nonces = map(b"%b%08x".__mod__, zip(itertools.repeat(secrets.token_hex(8).encode()), itertools.count()))
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[list[Any] | ConnectorError] | None = None
        self._replies: list[Any] = []
        self._expected = self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream has a Transport, a subclass of BaseTransport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != getattr(socket, "AF_UNIX", None):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _SOCKET_OPTIONS:
                if hasattr(socket, name):  # not every operating system has all these options
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        # The greeting is sent at once, so that an exchange is in progress when the server sends its first bytes. A
        # server that refuses a client sends the reason without being asked; with no exchange in progress, check 1 in
        # `data_received` would drop this reason.
        self.hello = self.exchange(*self._greeting)

    def exchange(self, data: bytes, replies: int) -> asyncio.Future[list[Any] | ConnectorError]:
        """
        Send *data*, which holds as many commands as the number *replies*, and return a future of the list of their
        replies. The reply to a refused command is a `ReplyError`.

        If the connection is lost, the error becomes the result of the future and not its exception. The reason: if the
        caller has been cancelled, nobody would retrieve an exception, and asyncio would log it.
        """
        assert self._waiter is None, "one exchange at a time"
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._replies, self._expected, self._received = [], replies, 0
        if self._transport is None or self.closed:  # the connection may be lost between two exchanges
            self._end(UnavailableError(f"{self._source} closed the connection."))
        else:
            self._transport.write(data)
        return waiter

    async def ask(self, frames: bytes, replies: int) -> list[Any]:
        """Send *frames*, the bytes of *replies* commands, and return the replies in order; raises `ConnectorError`."""
        nonce = next(self._nonces)
        echo = b"*2\r\n$4\r\nECHO\r\n$24\r\n%b\r\n" % nonce
        answers = await self.exchange(b"".join((echo, frames, echo)), replies + 2)
        if isinstance(answers, ConnectorError):
            raise answers
        if answers[0] != nonce or answers[-1] != nonce:
            self.abort()
            if isinstance(answers[0], hiredis.ReplyError):
                raise translate(answers[0], self._source)
            raise self._stray()
        return answers[1:-1]

    def abort(self) -> None:
        """
        Close the connection at once; a caller that waits for replies gets an error. A second call does nothing more.
        """
        self._end(TransientError(f"The connection to {self._source} was closed."))

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        if self._waiter is None:
            self.abort()  # check 1 in the docstring of the class: no exchange is in progress
            return
        self._received += len(data)
        replies = self._replies
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not _PARTIAL:
                replies.append(reply)
        except Exception as error:  # noqa: BLE001  # hiredis can also raise MemoryError and UnicodeDecodeError
            self._end(TransientError(f"{self._source} sent what is not RESP ({type(error).__name__})."))
            return
        if self._received > self._max_bytes:
            self._end(
                PermanentError(
                    f"{self._source} sent a reply of more than RedisConfig.max_bytes, {self._max_bytes} bytes. "
                    "Lower batch_size, or raise max_bytes."
                )
            )
        elif len(replies) > self._expected:
            self._end(self._stray())  # check 3 in the docstring of the class: there is one reply too many
        elif len(replies) == self._expected:
            if not _ends_with(data, replies[-1]):
                self._end(self._stray())  # check 3: a part of a further reply has arrived
                return
            waiter, self._waiter, self._replies = self._waiter, None, []
            if not waiter.done():  # otherwise the caller was cancelled, and is about to abort the connection
                waiter.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        reply = self._replies[0] if len(self._replies) == 1 else None
        # A server that refuses a client sends the reason and then closes the connection.
        if isinstance(reply, hiredis.ReplyError):
            self._end(translate(reply, self._source))
        else:
            self._end(UnavailableError(f"{self._source} closed the connection."))

    def _stray(self) -> TransientError:
        return TransientError(f"{self._source} sent a reply that belongs to no request; the connection was dropped.")

    def _end(self, error: ConnectorError) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(error)


def _ends_with(data: bytes, reply: Any) -> bool:
    """
    Return whether *data* ends with *reply*, the echo at the end of an exchange, or is only the last part of that echo.

    This check is needed because hiredis does not tell whether it has also consumed the first bytes of a further reply.
    """
    return type(reply) is not bytes or (reply + b"\r\n").endswith(data[-len(reply) - 2 :])
