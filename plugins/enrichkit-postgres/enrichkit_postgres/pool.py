"""
The connections to PostgreSQL: how they are made, and when a connection may be used again.

`asyncpg.Pool` is not used, because its `release` waits until the server has acknowledged a cancel; if the server is
frozen, `release` never returns. `release` also sends a reset query after every call, and a read-only lookup does not
need this extra round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from enrichkit.errors import UnavailableError
from enrichkit.plugin import time_limit, tls_context
from enrichkit.sql import Pool, Session

from .connection import connection_class
from .faults import translate
from .settings import SETTINGS, local_settings, milliseconds, settings_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import ModuleType

    from enrichkit.errors import ConnectorError

    from .address import Address
    from .config import PostgresConfig

__all__ = ["PostgresPool"]

T = TypeVar("T")

CONNECT_TIMEOUT = 2.0  # seconds, for TCP, TLS and authentication together
COMMAND_TIMEOUT = 10.0
DISPOSE = 0.5  # most seconds to cancel a statement and to close the connection

# The isolation level is given explicitly, because the role or the database may have a stricter default. At a stricter
# level, one of two transactions that write the same row at the same time fails.
WRITING = "ISOLATION LEVEL READ COMMITTED READ WRITE"


class PostgresSession(Session):
    """
    An asyncpg connection.

    Attributes:
        limit: The `statement_timeout` of the session, in seconds.
        settings: The settings from the config, as a mapping from name to value; each transaction that the pool begins
            applies them again.
    """

    __slots__ = ("limit", "settings")

    def __init__(self, connection: Any, limit: float, settings: Mapping[str, str]) -> None:
        super().__init__(connection, connection._transport)  # asyncpg has no public attribute for the transport
        self.limit = limit
        self.settings = settings

    @property
    def closed(self) -> bool:
        """Whether the connection is known to have ended."""
        closed: bool = self.connection.is_closed()
        return closed

    def end(self) -> None:
        """Close the connection now, without waiting for the server."""
        self.connection.terminate()

    async def begin(self, timeout: float, transaction: str) -> None:
        """
        Make the server stop each statement after about nine tenths of *timeout* seconds. If *transaction* is not empty,
        also begin a transaction with the modes in *transaction*, for example `READ ONLY`.

        Because the server stops the statement before the client gives up, the connection stays usable, and the server
        does not go on working for a result that nobody reads.
        """
        if transaction:
            await self.connection.execute(
                f"BEGIN {transaction}; {local_settings(timeout, self.settings)}", timeout=timeout
            )
        elif not 0.7 * timeout <= self.limit <= timeout:
            # The current `statement_timeout` of the session is kept if it almost fits. Most calls have almost the same
            # timeout, so this extra round trip, which sets a new one, is rare.
            await self.connection.execute(f"SET statement_timeout = {milliseconds(timeout)}", timeout=timeout)
            self.limit = 0.9 * timeout


class PostgresPool(Pool[PostgresSession]):
    """
    The connections to one server.

    Args:
        config: Config with the address of the server and the login.
        size: Most connections at a time.
        driver: The module asyncpg.
        writes: Whether the calls write, each in a transaction of its own. If False, the sessions are read-only.
    """

    product: ClassVar[str] = "PostgreSQL"

    config: PostgresConfig
    address: Address

    def __init__(self, config: PostgresConfig, size: int, driver: ModuleType, *, writes: bool = False) -> None:
        super().__init__(config, size)
        self._driver = driver
        self._writes = writes
        # Behind PgBouncer, even a call that only reads runs in a transaction, and the settings apply to this
        # transaction only. Settings of the session would stay in the server connection, and PgBouncer lends that
        # connection to other clients afterwards.
        self._transaction = WRITING if writes else "READ ONLY" if config.pgbouncer else ""
        self._connection = connection_class(driver, pgbouncer=config.pgbouncer)
        self._disposals: set[asyncio.Task[None]] = set()

    async def lend(self, session: PostgresSession, use: Callable[[Any, float], Awaitable[T]], ends: float) -> T:
        """
        Call *use* with the connection of *session* and the seconds left until *ends*, and return its result. asyncpg
        itself enforces the time limit, which costs less than a further timer.
        """
        await session.begin(self.left(ends), self._transaction)
        result = await use(session.connection, self.left(ends))
        if self._transaction:
            await session.connection.execute("COMMIT", timeout=self.left(ends))
        return result

    def survives(self, session: PostgresSession, error: BaseException) -> bool:
        """
        Return whether *session* can be used again after *error*: the server must have reported the error, and the
        session must be neither closed nor in a transaction.
        """
        reported = isinstance(error, self._driver.PostgresError) and not session.closed
        return reported and not session.connection.is_in_transaction()

    def translate(self, error: Exception) -> ConnectorError:
        """Return the `ConnectorError` for *error*."""
        return translate(error, self._driver, str(self.address), *self.secrets)

    def close(self) -> None:
        """Drop all connections at once, without waiting for the server; a call in flight fails."""
        for task in self._disposals:
            task.cancel()
        super().close()

    def discard(self, session: PostgresSession) -> None:
        """End *session* in a background task, so that the caller does not wait for the server."""
        # If a statement still runs, asyncpg asks the server on another connection to cancel the statement, and close()
        # waits for the answer. The permit (semaphore slot) of this connection is released only after close(), so that
        # this pool never has more connections to the server than its size.
        task = self.loop.create_task(self._dispose(session), name="enrichkit-postgres-dispose")
        self._disposals.add(task)
        task.add_done_callback(self._disposals.discard)

    async def _dispose(self, session: PostgresSession) -> None:
        try:
            with contextlib.suppress(Exception):  # after any error, end() below closes the connection
                await session.connection.close(timeout=DISPOSE)
        finally:
            session.end()
            self.release(session)

    async def connect(self, timeout: float) -> PostgresSession:
        """
        Return a new session in which the server stops each statement after nine tenths of *timeout* seconds.

        The hosts are tried one after the other, each with a time limit of its own. asyncpg itself would apply one limit
        to all hosts together, and a host that does not answer would use up this limit.
        """
        configured = self.address.target_session_attrs or "any"  # with None, asyncpg would read PGTARGETSESSIONATTRS
        # For read-write and read-only, asyncpg would check whether the session is read-only by default. All sessions of
        # this pool are read-only by default, so the pool asks for a primary or a standby instead.
        wanted = {"read-write": "primary", "read-only": "standby"}.get(configured, configured)
        hosts = list(zip(self.address.hosts, self.address.ports, strict=True))
        if self._writes and len(hosts) > 1:
            wanted = "primary"
        # asyncpg can prefer a standby only if it gets all hosts in one call. Because this method passes one host at a
        # time, the first round over the hosts accepts only a standby, and the second round accepts any server.
        rounds = ("standby", "any") if wanted == "prefer-standby" else (wanted,)
        choices = [(attributes, *host) for attributes in rounds for host in hosts]
        for attributes, host, port in choices[:-1]:
            try:
                return await self._connect(host, port, attributes, timeout)
            except self._driver.TargetServerAttributeNotMatched:
                continue
            except Exception as error:
                # If the error only means that this host is unavailable, the next host is tried. For example, a load
                # balancer without a backend accepts a connection and then closes it.
                if not isinstance(error, OSError) and not isinstance(self.translate(error), UnavailableError):
                    raise
        attributes, host, port = choices[-1]
        return await self._connect(host, port, attributes, timeout)

    async def _connect(self, host: str, port: int, attributes: str, timeout: float) -> PostgresSession:
        address, config = self.address, self.config
        limit = min(timeout, 86_400.0)
        given, password = await settings_of(config), self.password()
        hidden = (given[name] for name, value in config.setting_pairs if not isinstance(value, str))
        self.secrets = (*self.secrets[:2], *hidden)
        settings = {"application_name": address.application_name}
        if not config.pgbouncer:  # PgBouncer refuses settings that it does not know
            settings |= SETTINGS | {"statement_timeout": str(milliseconds(limit))} | given
        async with time_limit(min(CONNECT_TIMEOUT, limit)):
            connection = await self._driver.connect(
                host=host,
                port=port,
                user=address.user,
                database=address.database,
                password=password,
                ssl=self._tls(),
                target_session_attrs=attributes,
                server_settings=settings,
                statement_cache_size=0 if config.pgbouncer else 100,
                # 0 means no limit: a statement for 70 columns of text is longer than the default limit.
                max_cacheable_statement_size=0,
                connection_class=self._connection,
                timeout=None,  # `time_limit` above is the only limit
                # Seconds for statements that are executed without a timeout of their own.
                command_timeout=COMMAND_TIMEOUT,
            )
        return PostgresSession(connection, 0.9 * limit, given)

    def _tls(self) -> ssl.SSLContext | str | bool:
        """Return the argument `ssl` for asyncpg; never None, because with None asyncpg would read the environment."""
        mode = self.config.sslmode
        if mode in ("allow", "prefer"):
            return mode
        return False if mode == "disable" else self.context()

    def new_context(self) -> ssl.SSLContext:
        """Return a new TLS context from the certificate files of the config as they are now."""
        context = tls_context(self.config, *self.secrets, verify=self.config.sslmode != "require")
        if self.config.sslmode == "verify-ca":
            context.check_hostname = False
        return context
