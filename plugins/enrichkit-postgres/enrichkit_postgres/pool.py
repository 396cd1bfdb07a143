"""
How to connect to PostgreSQL, and when a connection may be used again.

Why not `asyncpg.Pool`: its `release` waits for the server to acknowledge a cancel, without bound when the server is
frozen, and sends a reset query after every call, a round trip that a read-only lookup does not need.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from enrichkit.sql import Pool, Session, tls_context

from .faults import translate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import ModuleType

    from enrichkit.errors import ConnectorError

    from .address import Address
    from .config import PostgresConfig

__all__ = ["PostgresPool"]

T = TypeVar("T")

CONNECT_TIMEOUT = 2.0  # seconds, for TCP, TLS and authentication together
COMMAND_TIMEOUT = 10.0
DISPOSE = 0.5  # to cancel a statement and say goodbye

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


class PostgresSession(Session):
    """
    An asyncpg connection.

    Attributes:
        limit: The `statement_timeout` that is set, in seconds.
    """

    __slots__ = ("limit",)

    def __init__(self, connection: Any, limit: float) -> None:
        super().__init__(connection, connection._transport)  # no public way
        self.limit = limit

    @property
    def closed(self) -> bool:
        """Whether it is known to have ended."""
        closed: bool = self.connection.is_closed()
        return closed

    def end(self) -> None:
        """Say goodbye to the server, and wait for nothing."""
        self.connection.terminate()

    async def begin(self, timeout: float, *, pgbouncer: bool) -> None:
        """Make the server stop statements a tenth before *timeout*: the connection survives, no work is wasted."""
        if pgbouncer:
            # Settings of a session would stay with a server connection that PgBouncer gives to others.
            await self.connection.execute(f"BEGIN READ ONLY; {_local_settings(timeout)}", timeout=timeout)
        elif not 0.7 * timeout <= self.limit <= timeout:
            # The calls of a run have almost the same timeout: this round trip is rare.
            await self.connection.execute(f"SET statement_timeout = {_milliseconds(timeout)}", timeout=timeout)
            self.limit = 0.9 * timeout


class PostgresPool(Pool[PostgresSession]):
    """
    The connections to one server.

    Args:
        config: Where it is.
        size: Most connections at a time.
        driver: The module asyncpg.
    """

    product: ClassVar[str] = "PostgreSQL"

    config: PostgresConfig
    address: Address

    def __init__(self, config: PostgresConfig, size: int, driver: ModuleType) -> None:
        super().__init__(config, size)
        self._driver = driver
        self._connection = _abrupt(driver) if config.pgbouncer else driver.Connection
        self._disposals: set[asyncio.Task[None]] = set()

    async def lend(self, session: PostgresSession, use: Callable[[Any, float], Awaitable[T]], ends: float) -> T:
        """Return what *use* returns; the driver keeps the time, with less work than a timer of ours."""
        await session.begin(self.left(ends), pgbouncer=self.config.pgbouncer)
        result = await use(session.connection, self.left(ends))
        if self.config.pgbouncer:
            await session.connection.execute("COMMIT", timeout=self.left(ends))
        return result

    def survives(self, session: PostgresSession, error: BaseException) -> bool:
        """After an error that the server reported the connection is as before."""
        known = isinstance(error, self._driver.PostgresError) and not session.closed
        return known and not session.connection.is_in_transaction()

    def translate(self, error: Exception) -> ConnectorError:
        """Return *error* in our words."""
        return translate(error, self._driver, str(self.address), *self.secrets)

    def close(self) -> None:
        """Drop all connections at once; a call in flight fails."""
        for task in self._disposals:
            task.cancel()
        super().close()

    def discard(self, session: PostgresSession) -> None:
        """End *session* in the background."""
        # When a statement still runs, the driver has asked the server to cancel it, on a connection of its own, and
        # its close() waits for that. The place of this connection is free only then, so that the server never has more.
        task = self.loop.create_task(self._dispose(session), name="enrichkit-postgres-dispose")
        self._disposals.add(task)
        task.add_done_callback(self._disposals.discard)

    async def _dispose(self, session: PostgresSession) -> None:
        try:
            with contextlib.suppress(Exception):  # whatever it is, end() is the answer
                await session.connection.close(timeout=DISPOSE)
        finally:
            session.end()
            self.release(session)

    async def connect(self, timeout: float) -> PostgresSession:
        """
        Return a new session, whose statements the server stops a tenth before *timeout*.

        The hosts are tried in turn. Each has its own time: the driver has one for all, which a host that says nothing
        would use up.
        """
        asked = self.address.target_session_attrs or "any"  # not PGTARGETSESSIONATTRS of the worker
        # Our own sessions are all read-only, by which the driver would go.
        wanted = {"read-write": "primary", "read-only": "standby"}.get(asked, asked)
        hosts = list(zip(self.address.hosts, self.address.ports, strict=True))
        # The driver prefers a standby among the hosts that it is given, so here they are asked for one first.
        rounds = ("standby", "any") if wanted == "prefer-standby" else (wanted,)
        choices = [(attributes, *host) for attributes in rounds for host in hosts]
        for attributes, host, port in choices[:-1]:
            with contextlib.suppress(
                OSError, self._driver.TargetServerAttributeNotMatched, self._driver.CannotConnectNowError
            ):
                return await self._connect(host, port, attributes, timeout)
        attributes, host, port = choices[-1]
        return await self._connect(host, port, attributes, timeout)

    async def _connect(self, host: str, port: int, attributes: str, timeout: float) -> PostgresSession:
        address, config = self.address, self.config
        limit = min(timeout, 86_400.0)
        settings = {"application_name": address.application_name}
        if not config.pgbouncer:  # which refuses settings that it does not know
            settings |= SETTINGS | {"statement_timeout": str(_milliseconds(limit))}
        connection = await self._driver.connect(
            host=host,
            port=port,
            user=address.user,
            database=address.database,
            password=self.password(),
            ssl=self._tls(),
            target_session_attrs=attributes,
            server_settings=settings,
            statement_cache_size=0 if config.pgbouncer else 100,
            max_cacheable_statement_size=0,  # no limit: a statement for 70 columns of text is longer than the default
            connection_class=self._connection,
            timeout=min(CONNECT_TIMEOUT, limit),
            command_timeout=COMMAND_TIMEOUT,  # for what is asked without a timeout
        )
        return PostgresSession(connection, 0.9 * limit)

    def _tls(self) -> ssl.SSLContext | str | bool:
        """What the driver shall do about TLS; never None, for which it would ask the worker's environment."""
        mode = self.config.sslmode
        if mode in ("allow", "prefer"):
            return mode
        return False if mode == "disable" else self._context

    @cached_property
    def _context(self) -> ssl.SSLContext:
        context = tls_context(self.config, *self.secrets)
        context.check_hostname = self.config.sslmode == "verify-full"
        if self.config.sslmode == "require":
            context.verify_mode = ssl.CERT_NONE
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
