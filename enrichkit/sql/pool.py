"""
The connections of one connector: at most `capacity`, made when needed, never handed out in an unknown state.

Why not the pools of the drivers: they wait without bound for a frozen server, to connect, to cancel or to close. The
engine makes `capacity` calls at most, so there is no queue to manage either: a list of idle connections is enough.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ..errors import ConfigError, ConnectorError, FatalError, TransientError
from ..secrets import redact, reveal

if TYPE_CHECKING:
    from .config import SqlServerConfig

__all__ = ["Pool", "Session", "tls_context"]

T = TypeVar("T")

IDLE = 60.0  # an older idle connection may have been dropped by a firewall that told nobody
LIFETIME = 300.0  # +/- 20 %; a new connection follows a failover and a changed DNS entry
PAUSE = 1.0  # +/- 30 %; between a failed connect and the next one of this process
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}


class Session:
    """
    One connection, used by one call at a time. Made on the loop.

    Attributes:
        connection: The driver's.
        transport: The asyncio transport beneath it.
        ends: Loop time after which it is not used again.
        idle_since: Loop time of its last return.
    """

    __slots__ = ("connection", "ends", "idle_since", "transport")

    def __init__(self, connection: Any, transport: Any) -> None:
        self.connection = connection
        self.transport = transport
        now = asyncio.get_running_loop().time()
        self.ends = now + LIFETIME * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, so that they do not end together
        self.idle_since = now
        _keep_alive(transport.get_extra_info("socket"))

    @property
    def closed(self) -> bool:
        """Whether it is known to have ended."""
        closing: bool = self.transport.is_closing()
        return closing

    def end(self) -> None:
        """Close it now, and wait for nothing."""
        self.transport.abort()


SessionT = TypeVar("SessionT", bound=Session)


class Pool(Generic[SessionT]):
    """
    The connections to one server. A plugin says how to `connect`, what to `translate`, and what `survives`.

    Args:
        config: Where the server is, and who asks.
        size: Most connections at a time.

    Attributes:
        product: What messages call the database, for example `PostgreSQL`.
        config: As it was given.
        address: Its address.
        loop: The loop that it was made on.
        secrets: What must not be in a message.
    """

    product: ClassVar[str]

    def __init__(self, config: SqlServerConfig, size: int) -> None:
        self.config = config
        self.address = config.address
        self._size = size
        self.loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(size)
        self._dialling = asyncio.Semaphore(max(2, size // 4))
        self._dial_after = 0.0
        self._idle: list[SessionT] = []
        self._busy: set[SessionT] = set()
        self._closed = False
        self.secrets: tuple[str | None, ...] = (self.address.password,)

    def __repr__(self) -> str:
        return f"<Pool {self.address}: {len(self._busy)} busy, {len(self._idle)} idle, {self._size} at most>"

    async def connect(self, timeout: float) -> SessionT:
        """Return a new session, for a call that has *timeout* seconds left."""
        raise NotImplementedError

    async def lend(self, session: SessionT, use: Callable[[Any, float], Awaitable[T]], ends: float) -> T:
        """Return what *use* returns, given *session* and the seconds that are left; until the loop time *ends*."""
        async with asyncio.timeout_at(ends):
            return await use(session, self.left(ends))

    def survives(self, session: SessionT, error: BaseException) -> bool:
        """Whether *session* is after *error* as it was before: nothing is left that the next call would read."""
        return False

    def translate(self, error: Exception) -> ConnectorError:
        """Return *error* in our words, without keys and without `secrets`; a `ConnectorError` is in them already."""
        raise NotImplementedError

    def password(self) -> str | None:
        """Return the password of the config or of its URL, read anew each time: a secret file may be rotated."""
        try:
            password = reveal(self.config.password) or self.address.password
        except ConfigError as error:
            raise FatalError(str(error)) from None
        self.secrets = (password, self.address.password)
        return password

    def left(self, ends: float) -> float:
        """Return the seconds until the loop time *ends*, at least a millisecond."""
        return max(ends - self.loop.time(), 0.001)

    async def run(self, use: Callable[[Any, float], Awaitable[T]], timeout: float) -> T:
        """
        Return what *use* returns, given a connection that nobody else has and the seconds that are left.

        Raises:
            ConnectorError: Any failure of driver or server, in our words; `TransientError` after *timeout* seconds.
        """
        ends = self.loop.time() + timeout
        try:
            session = await self._acquire(timeout)
            try:
                result = await self.lend(session, use, ends)
            except BaseException as error:
                if self.survives(session, error):
                    self._keep(session)
                else:
                    self.discard(session)
                raise
            self._keep(session)
            return result
        except Exception as error:  # noqa: BLE001 - none is swallowed
            raise self.translate(error) from None

    def close(self) -> None:
        """Drop all connections at once; a call in flight fails. Waits for nothing."""
        self._closed = True
        for session in (*self._idle, *self._busy):
            session.end()
        self._idle.clear()

    def discard(self, session: SessionT) -> None:
        """End *session*; the place that `release` frees is free for another one."""
        session.end()
        self.release(session)

    def release(self, session: SessionT) -> None:
        """Free the place of *session*."""
        self._busy.discard(session)
        self._free.release()

    def _keep(self, session: SessionT) -> None:
        session.idle_since = self.loop.time()
        self._idle.append(session)
        self.release(session)

    async def _acquire(self, timeout: float) -> SessionT:
        if self._idle and not self._free.locked():
            await self._free.acquire()  # returns at once: the common case costs no timer
            session = self._take()
            if session is not None:
                self._busy.add(session)
                return session
            self._free.release()
        async with asyncio.timeout(timeout):
            await self._free.acquire()
            try:
                session = self._take() or await self._dial(timeout)
            except BaseException:
                self._free.release()
                raise
        self._busy.add(session)
        return session

    def _take(self) -> SessionT | None:
        now = self.loop.time()
        while self._idle:
            session = self._idle.pop()
            if now < session.ends and now - session.idle_since < IDLE and not session.closed:
                return session
            session.end()
        return None

    async def _dial(self, timeout: float) -> SessionT:
        server = f"{self.product} at {self.address}"
        async with self._dialling:
            wait = self._dial_after - self.loop.time()
            if wait > 0:
                raise TransientError(f"{server} could not be reached a moment ago.", retry_after=wait)
            try:
                session = await self.connect(timeout)
            except Exception as error:  # noqa: BLE001 - none is swallowed
                # After a restart all workers come back at once.
                pause = PAUSE * random.uniform(0.7, 1.3)  # noqa: S311 - jitter
                self._dial_after = self.loop.time() + pause
                ours = self.translate(error)
                if isinstance(ours, TransientError):
                    ours.retry_after = pause
                raise ours from None
        if self._closed:  # meanwhile; nobody else would ever end it
            session.end()
            raise TransientError(f"The connections to {server} were closed.")
        return session


def tls_context(config: SqlServerConfig, *secrets: str | None) -> ssl.SSLContext:
    """
    Return a context that verifies the other end with the certificates of *config*.

    Reading those of the system takes 10 ms: keep it.

    Raises:
        FatalError: A file cannot be used; its text holds none of *secrets*.
    """
    try:
        context = ssl.create_default_context(cafile=config.tls_ca)
        if config.tls_cert is not None:
            context.load_cert_chain(config.tls_cert, config.tls_key)
    except OSError as error:
        reason = redact(error.strerror or type(error).__name__, *secrets)
        raise FatalError(
            f"A certificate of {type(config).__name__} cannot be used on this worker: {reason}. tls_ca, tls_cert and "
            "tls_key must be paths of PEM files there."
        ) from None
    return context


def _keep_alive(sock: socket.socket | None) -> None:
    """Make the kernel notice within 45 s that the other end is gone; on its own it takes a quarter of an hour."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):  # a Unix socket needs none
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
