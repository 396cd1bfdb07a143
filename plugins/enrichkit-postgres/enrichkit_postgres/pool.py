"""
The connections of one connector: at most `capacity`, made when needed, never handed out in an unknown state.

Why not `asyncpg.Pool`: its `release` waits for the server to acknowledge a cancel, without bound when the server is
frozen, and sends a reset query after every call, a round trip that a read-only lookup does not need. The engine makes
`capacity` calls at most, so there is no queue to manage either: a list of idle connections is enough.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from typing import TYPE_CHECKING, Any, TypeVar

from enrichkit.errors import ConfigError, FatalError, TransientError
from enrichkit.secrets import redact, reveal

from .faults import translate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import ModuleType

    from .config import PostgresConfig

__all__ = ["Pool"]

T = TypeVar("T")

CONNECT_TIMEOUT = 2.0  # seconds, for TCP, TLS and authentication together
COMMAND_TIMEOUT = 10.0
IDLE = 60.0  # an older idle connection may have been dropped by a firewall that told nobody
LIFETIME = 300.0  # +/- 20 %; a new connection follows a failover and a changed DNS entry
PAUSE = 1.0  # +/- 30 %; between a failed connect and the next one of this process
DISPOSE = 0.5  # to cancel a statement and say goodbye
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}

# Fixed, so that no setting of the role, the database or a DSN changes what a name, a date or a statement means.
SETTINGS = {
    "search_path": "public, pg_temp",  # pg_temp last, or it would come first
    "default_transaction_read_only": "on",
    "idle_in_transaction_session_timeout": "10s",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "jit": "off",  # compiling takes longer than a lookup
}


class Session:
    """
    One connection, used by one call at a time.

    Attributes:
        connection: asyncpg's.
        limit: The `statement_timeout` that is set, in seconds.
        ends: Loop time after which it is not used again.
        idle_since: Loop time of its last return.
    """

    __slots__ = ("connection", "ends", "idle_since", "limit")

    def __init__(self, connection: Any, limit: float, now: float) -> None:
        self.connection = connection
        self.limit = limit
        self.ends = now + LIFETIME * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, so that they do not end together
        self.idle_since = now

    async def begin(self, timeout: float, *, pgbouncer: bool) -> None:
        """Make the server stop statements a tenth before *timeout*: the connection survives, no work is wasted."""
        if pgbouncer:
            # Settings of a session would stay with a server connection that PgBouncer gives to others.
            await self.connection.execute(f"BEGIN READ ONLY; {_local_settings(timeout)}", timeout=timeout)
        elif not 0.7 * timeout <= self.limit <= timeout:
            # The calls of a run have almost the same timeout: this round trip is rare.
            await self.connection.execute(f"SET statement_timeout = {_milliseconds(timeout)}", timeout=timeout)
            self.limit = 0.9 * timeout


class Pool:
    """
    The connections to one server.

    Args:
        config: Where it is.
        size: Most connections at a time.
        driver: The module asyncpg.
    """

    def __init__(self, config: PostgresConfig, size: int, driver: ModuleType) -> None:
        self._config = config
        self._address = config.address
        self._driver = driver
        self._connection = _abrupt(driver) if config.pgbouncer else driver.Connection
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(size)
        self._dialling = asyncio.Semaphore(max(2, size // 4))
        self._dial_after = 0.0
        self._idle: list[Session] = []
        self._busy: set[Session] = set()
        self._disposals: set[asyncio.Task[None]] = set()
        self._secrets: tuple[str | None, ...] = (self._address.password,)
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<Pool {self._address}: {len(self._busy)} busy, {len(self._idle)} idle, {self._size} at most>"

    async def run(self, use: Callable[[Any, float], Awaitable[T]], timeout: float) -> T:
        """
        Return what *use* returns, given a connection that nobody else has and the seconds that are left.

        Raises:
            ConnectorError: Any failure of driver or server, in our words; `TransientError` after *timeout* seconds.
        """
        ends = self._loop.time() + timeout
        try:
            session = await self._acquire(timeout)
            try:
                await session.begin(max(ends - self._loop.time(), 0.001), pgbouncer=self._config.pgbouncer)
                result = await use(session.connection, max(ends - self._loop.time(), 0.001))
                if self._config.pgbouncer:
                    await session.connection.execute("COMMIT", timeout=max(ends - self._loop.time(), 0.001))
            except BaseException as error:
                # After an error that the server reported the connection is as before.
                known = isinstance(error, self._driver.PostgresError) and not session.connection.is_closed()
                if known and not session.connection.is_in_transaction():
                    self._release(session)
                else:
                    self._discard(session)
                raise
            self._release(session)
            return result
        except Exception as error:  # noqa: BLE001 - none is swallowed
            raise translate(error, self._driver, str(self._address), *self._secrets) from None

    def close(self) -> None:
        """Drop all connections at once; a call in flight fails. Says goodbye to the server, waits for nothing."""
        self._closed = True
        for task in self._disposals:
            task.cancel()
        for session in (*self._idle, *self._busy):
            session.connection.terminate()
        self._idle.clear()

    async def _acquire(self, timeout: float) -> Session:
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

    def _release(self, session: Session) -> None:
        self._busy.discard(session)
        session.idle_since = self._loop.time()
        self._idle.append(session)
        self._free.release()

    def _discard(self, session: Session) -> None:
        # When a statement still runs, the driver has asked the server to cancel it, on a connection of its own, and
        # its close() waits for that. The place of this connection is free only then, so that the server never has more.
        task = self._loop.create_task(self._dispose(session), name="enrichkit-postgres-dispose")
        self._disposals.add(task)
        task.add_done_callback(self._disposals.discard)

    def _take(self) -> Session | None:
        now = self._loop.time()
        while self._idle:
            session = self._idle.pop()
            if now < session.ends and now - session.idle_since < IDLE and not session.connection.is_closed():
                return session
            session.connection.terminate()
        return None

    async def _dispose(self, session: Session) -> None:
        try:
            with contextlib.suppress(Exception):  # whatever it is, terminate() is the answer
                await session.connection.close(timeout=DISPOSE)
        finally:
            session.connection.terminate()
            self._busy.discard(session)
            self._free.release()

    async def _dial(self, timeout: float) -> Session:
        async with self._dialling:
            wait = self._dial_after - self._loop.time()
            if wait > 0:
                raise TransientError(
                    f"PostgreSQL at {self._address} could not be reached a moment ago.", retry_after=wait
                )
            limit = min(timeout, 86_400.0)
            try:
                connection = await self._connect(limit)
            except Exception as error:  # noqa: BLE001 - none is swallowed
                # After a restart all workers come back at once.
                pause = PAUSE * random.uniform(0.7, 1.3)  # noqa: S311 - jitter
                self._dial_after = self._loop.time() + pause
                ours = translate(error, self._driver, str(self._address), *self._secrets)
                if isinstance(ours, TransientError):
                    ours.retry_after = pause
                raise ours from None
        if self._closed:  # meanwhile; nobody else would ever end it
            connection.terminate()
            raise TransientError(f"The connections to PostgreSQL at {self._address} were closed.")
        _set_keepalive(connection)
        return Session(connection, 0.9 * limit, self._loop.time())

    async def _connect(self, limit: float) -> Any:
        address, config = self._address, self._config
        try:
            password = (
                reveal(config.password) or address.password
            )  # anew each time: a secret file may have been rotated
        except ConfigError as error:
            raise FatalError(str(error)) from None
        self._secrets = (password, address.password)
        settings = {"application_name": address.application_name}
        if not config.pgbouncer:  # which refuses settings that it does not know
            settings |= SETTINGS | {"statement_timeout": str(_milliseconds(limit))}
        return await self._driver.connect(
            host=list(address.hosts),
            port=list(address.ports),
            user=address.user,
            database=address.database,
            password=password,
            ssl=self._tls(),
            target_session_attrs=address.target_session_attrs or "any",  # not PGTARGETSESSIONATTRS of the worker
            server_settings=settings,
            statement_cache_size=0 if config.pgbouncer else 100,
            connection_class=self._connection,
            timeout=min(CONNECT_TIMEOUT, limit),
            command_timeout=COMMAND_TIMEOUT,  # for what is asked without a timeout
        )

    def _tls(self) -> ssl.SSLContext | str | bool:
        """What the driver shall do about TLS; never None, for which it would ask the worker's environment."""
        config, mode = self._config, self._config.sslmode
        if mode in ("allow", "prefer"):
            return mode
        if mode == "disable":
            return False
        if self._context is not None:  # to read the system's certificates takes 10 ms
            return self._context
        try:
            context = ssl.create_default_context(cafile=config.tls_ca)
            if config.tls_cert is not None:
                context.load_cert_chain(config.tls_cert, config.tls_key)
        except OSError as error:
            reason = redact(error.strerror or type(error).__name__, *self._secrets)
            raise FatalError(
                f"A certificate of PostgresConfig cannot be used on this worker: {reason}. tls_ca, tls_cert and "
                "tls_key must be paths of PEM files there."
            ) from None
        context.check_hostname = mode == "verify-full"
        if mode == "require":
            context.verify_mode = ssl.CERT_NONE
        self._context = context
        return context


def _abrupt(driver: ModuleType) -> type[Any]:
    """
    Return a class of connections that are dropped where the driver would ask the server to cancel their statement.

    PgBouncer ends (`bad client state`, seen with 1.18 to 1.24) when who asked it for a cancel has hung up by then, and
    we do not wait for that. It drops the server's connection with the client's, and `statement_timeout` ends the rest.
    """

    class Abrupt(driver.Connection):  # type: ignore[name-defined,misc]  # the driver is imported when it is needed
        def _cancel_current_command(self, waiter: asyncio.Future[None], *others: Any) -> None:  # no public way
            if not waiter.done():
                waiter.set_result(None)
            self._loop.call_soon(self.terminate)

    return Abrupt


def _milliseconds(timeout: float) -> int:
    return max(1, int(0.9 * min(timeout, 86_400.0) * 1000))


def _local_settings(timeout: float) -> str:
    settings = SETTINGS | {"statement_timeout": str(_milliseconds(timeout))}
    del settings["default_transaction_read_only"]  # the transaction says it itself
    quoted = {name: "public, pg_temp" if name == "search_path" else f"'{value}'" for name, value in settings.items()}
    return "; ".join(f"SET LOCAL {name} = {value}" for name, value in quoted.items())


def _set_keepalive(connection: Any) -> None:
    """Make the kernel notice within 45 s that the other end is gone; on its own it takes a quarter of an hour."""
    sock = connection._transport.get_extra_info("socket")  # no public way; a Unix socket needs none
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
