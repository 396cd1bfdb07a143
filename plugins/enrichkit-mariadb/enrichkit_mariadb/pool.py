"""
The connections of one connector: at most `capacity`, made when needed, never handed out in an unknown state.

Why not `asyncmy.Pool`: it waits without bound for a frozen server, when it connects and when it closes, and it keeps a
connection after any error. Here only a call that ended cleanly, or that the server stopped at its time limit, gives its
connection back; every other one closes it, so that no reply is left for the next call to read.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from typing import TYPE_CHECKING, Any, TypeVar

from enrichkit.errors import ConfigError, FatalError, TransientError
from enrichkit.secrets import redact, reveal

from .faults import STOPPED, translate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import ModuleType

    from .config import MariadbConfig

__all__ = ["Pool", "Session"]

T = TypeVar("T")

CONNECT_TIMEOUT = 2.0  # seconds, for TCP, TLS and login together
IDLE = 60.0  # an older idle connection may have been dropped by a firewall that told nobody
LIFETIME = 300.0  # +/- 20 %; a new connection follows a failover and a changed DNS entry
PAUSE = 1.0  # +/- 30 %; between a failed connect and the next one of this process
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}

# Fixed, so that no setting of the server changes what a text, a date or a quote means. max_error_count: the driver asks
# for warnings and logs them, and a warning quotes keys.
SETTINGS = (
    "SET NAMES utf8mb4",
    "SET sql_mode = '', time_zone = '+00:00', max_error_count = 0, sql_select_limit = DEFAULT",
    "SET SESSION TRANSACTION READ ONLY",
)


class Session:
    """
    One connection, used by one call at a time.

    Attributes:
        connection: asyncmy's.
        ends: Loop time after which it is not used again.
        idle_since: Loop time of its last return.
    """

    __slots__ = ("connection", "ends", "idle_since", "transport")

    def __init__(self, connection: Any, now: float) -> None:
        self.connection = connection
        self.transport = connection._transport  # no public way to end it at once, nor to see that it has ended
        self.ends = now + LIFETIME * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, so that they do not end together
        self.idle_since = now

    async def ask(self, sql: str, *arguments: Any) -> Sequence[Sequence[Any]]:
        """Return the rows of a statement."""
        async with self.connection.cursor() as cursor:
            await cursor.execute(sql, arguments)
            rows: Sequence[Sequence[Any]] = await cursor.fetchall()
            return rows

    def end(self) -> None:
        """Close it now; the driver's own close waits until all that was written is sent."""
        self.transport.abort()
        self.connection.close()


class Pool:
    """
    The connections to one server.

    Args:
        config: Where it is.
        size: Most connections at a time.
        driver: The module asyncmy.
    """

    def __init__(self, config: MariadbConfig, size: int, driver: ModuleType) -> None:
        self._config = config
        self._address = config.address
        self._driver = driver
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(size)
        self._dialling = asyncio.Semaphore(max(2, size // 4))
        self._dial_after = 0.0
        self._idle: list[Session] = []
        self._busy: set[Session] = set()
        self._secrets: tuple[str | None, ...] = (self._address.password,)
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool {self._address}: {len(self._busy)} busy, {len(self._idle)} idle, {self._size} at most>"

    async def run(self, use: Callable[[Session, float], Awaitable[T]], timeout: float) -> T:
        """
        Return what *use* returns, given a connection that nobody else has and the seconds that are left.

        Raises:
            ConnectorError: Any failure of driver or server, in our words; `TransientError` after *timeout* seconds.
        """
        ends = self._loop.time() + timeout
        try:
            async with asyncio.timeout(timeout), self._free:
                session = self._take() or await self._dial(0.9 * timeout)
                self._busy.add(session)
                try:
                    result = await use(session, max(ends - self._loop.time(), 0.001))
                except BaseException as error:
                    self._busy.discard(session)
                    if isinstance(error, self._driver.errors.MySQLError) and error.args[:1] == (STOPPED,):
                        self._keep(session)
                    else:
                        session.end()
                    raise
                self._busy.discard(session)
                self._keep(session)
                return result
        except Exception as error:  # noqa: BLE001 - none is swallowed
            raise translate(error, self._driver.errors, str(self._address), *self._secrets) from None

    def close(self) -> None:
        """Drop all connections at once; a call in flight fails. Waits for nothing."""
        self._closed = True
        for session in (*self._idle, *self._busy):
            session.end()
        self._idle.clear()

    def _keep(self, session: Session) -> None:
        session.idle_since = self._loop.time()
        self._idle.append(session)

    def _take(self) -> Session | None:
        now = self._loop.time()
        while self._idle:
            session = self._idle.pop()
            if now < session.ends and now - session.idle_since < IDLE and not session.transport.is_closing():
                return session
            session.end()
        return None

    async def _dial(self, timeout: float) -> Session:
        async with self._dialling:
            wait = self._dial_after - self._loop.time()
            if wait > 0:
                raise TransientError(f"MariaDB at {self._address} could not be reached a moment ago.", retry_after=wait)
            try:
                async with asyncio.timeout(min(CONNECT_TIMEOUT, timeout)):
                    session = await self._connect()
            except Exception as error:  # noqa: BLE001 - none is swallowed
                # After a restart all workers come back at once.
                pause = PAUSE * random.uniform(0.7, 1.3)  # noqa: S311 - jitter
                self._dial_after = self._loop.time() + pause
                ours = translate(error, self._driver.errors, str(self._address), *self._secrets)
                if isinstance(ours, TransientError):
                    ours.retry_after = pause
                raise ours from None
        if self._closed:  # meanwhile; nobody else would ever end it
            session.end()
            raise TransientError(f"The connections to MariaDB at {self._address} were closed.")
        return session

    async def _connect(self) -> Session:
        address = self._address
        try:
            # anew each time: a secret file may have been rotated
            password = reveal(self._config.password) or address.password
        except ConfigError as error:
            raise FatalError(str(error)) from None
        self._secrets = (password, address.password)
        connection = await self._driver.connect(
            host=address.host,
            port=address.port,
            user=address.user,
            password=(password or "").encode(),  # of a str the driver sends Latin-1
            ssl=self._tls(),
            autocommit=True,
            program_name="enrichkit",
        )
        session = Session(connection, self._loop.time())
        try:
            _set_keepalive(session.transport)
            for statement in SETTINGS:
                await session.ask(statement)
        except BaseException:
            session.end()
            raise
        return session

    def _tls(self) -> ssl.SSLContext | None:
        config = self._config
        if not config.encrypted or self._context is not None:  # to read the system's certificates takes 10 ms
            return self._context
        try:
            context = ssl.create_default_context(cafile=config.tls_ca)
            if config.tls_cert is not None:
                context.load_cert_chain(config.tls_cert, config.tls_key)
        except OSError as error:
            reason = redact(error.strerror or type(error).__name__, *self._secrets)
            raise FatalError(
                f"A certificate of MariadbConfig cannot be used on this worker: {reason}. tls_ca, tls_cert and "
                "tls_key must be paths of PEM files there."
            ) from None
        if config.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._context = context
        return context


def _set_keepalive(transport: Any) -> None:
    """Make the kernel notice within 45 s that the other end is gone; on its own it takes a quarter of an hour."""
    sock = transport.get_extra_info("socket")
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
