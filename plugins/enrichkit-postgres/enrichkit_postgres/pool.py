"""
The connections to PostgreSQL: how they are made, and when a connection may be used again.

Why not `asyncpg.Pool`: its `release` waits until the server acknowledges a cancel, and waits for ever when the server
is frozen. It also sends a reset query after every call, a round trip that a read-only lookup does not need.
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
DISPOSE = 0.5  # seconds, to cancel a statement and to close the connection

# The role or the database may have another default isolation level, at which one of two writers of a row fails.
WRITING = "ISOLATION LEVEL READ COMMITTED READ WRITE"


class PostgresSession(Session):
    """
    An asyncpg connection.

    Attributes:
        limit: The `statement_timeout` of the session, in seconds.
        settings: The settings that the config gives, as values by name; each transaction that the pool begins applies
            them again.
    """

    __slots__ = ("limit", "settings")

    def __init__(self, connection: Any, limit: float, settings: Mapping[str, str]) -> None:
        super().__init__(connection, connection._transport)  # asyncpg has no public way to the transport
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
        Make the server stop a statement after nine tenths of *timeout*, and begin a transaction unless *transaction*,
        the text of its modes, is empty.

        With this limit the connection survives the timeout, and the server does no work whose result nobody reads.
        """
        if transaction:
            await self.connection.execute(
                f"BEGIN {transaction}; {local_settings(timeout, self.settings)}", timeout=timeout
            )
        elif not 0.7 * timeout <= self.limit <= timeout:
            # The calls of a run have almost the same timeout, so the round trip to change the limit is rare.
            await self.connection.execute(f"SET statement_timeout = {milliseconds(timeout)}", timeout=timeout)
            self.limit = 0.9 * timeout


class PostgresPool(Pool[PostgresSession]):
    """
    The connections to one server.

    Args:
        config: Config with the address of the server and the login.
        size: Most connections at a time.
        driver: The module asyncpg.
        writes: Whether the calls write; each call is then a transaction of its own. Otherwise the sessions are
            read-only.
    """

    product: ClassVar[str] = "PostgreSQL"

    config: PostgresConfig
    address: Address

    def __init__(self, config: PostgresConfig, size: int, driver: ModuleType, *, writes: bool = False) -> None:
        super().__init__(config, size)
        self._driver = driver
        self._writes = writes
        # Behind PgBouncer, even a call that only reads is a transaction: settings of the session would stay in a server
        # connection that PgBouncer lends to other clients afterwards.
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
        Return whether *session* can be used again: after an error that the server reported, if the session is neither
        closed nor in a transaction.
        """
        reported = isinstance(error, self._driver.PostgresError) and not session.closed
        return reported and not session.connection.is_in_transaction()

    def translate(self, error: Exception) -> ConnectorError:
        """Return the `ConnectorError` for *error*."""
        return translate(error, self._driver, str(self.address), *self.secrets)

    def close(self) -> None:
        """Drop all connections at once; a call in flight fails."""
        for task in self._disposals:
            task.cancel()
        super().close()

    def discard(self, session: PostgresSession) -> None:
        """End *session* in the background."""
        # If a statement still runs, asyncpg asks the server on another connection to cancel the statement, and close()
        # waits for the answer. The permit of this connection is released only after close(), so that the server never
        # has more connections than permits.
        task = self.loop.create_task(self._dispose(session), name="enrichkit-postgres-dispose")
        self._disposals.add(task)
        task.add_done_callback(self._disposals.discard)

    async def _dispose(self, session: PostgresSession) -> None:
        try:
            with contextlib.suppress(Exception):  # after any error, end() closes the connection
                await session.connection.close(timeout=DISPOSE)
        finally:
            session.end()
            self.release(session)

    async def connect(self, timeout: float) -> PostgresSession:
        """
        Return a new session, whose statements the server stops after nine tenths of *timeout*.

        The hosts are tried one after the other, each with a time limit of its own. asyncpg has one limit for all hosts,
        which a host that does not answer would use up.
        """
        configured = self.address.target_session_attrs or "any"  # never PGTARGETSESSIONATTRS of the worker
        # For read-write and read-only, asyncpg inspects whether the session is read-only by default, which all sessions
        # of this pool are. So the pool asks for a primary or a standby instead.
        wanted = {"read-write": "primary", "read-only": "standby"}.get(configured, configured)
        hosts = list(zip(self.address.hosts, self.address.ports, strict=True))
        if self._writes and len(hosts) > 1:
            wanted = "primary"
        # asyncpg prefers a standby only among hosts that it gets together. Here it gets one host at a time, so the
        # first round accepts only a standby, and the second round any server.
        rounds = ("standby", "any") if wanted == "prefer-standby" else (wanted,)
        choices = [(attributes, *host) for attributes in rounds for host in hosts]
        for attributes, host, port in choices[:-1]:
            try:
                return await self._connect(host, port, attributes, timeout)
            except self._driver.TargetServerAttributeNotMatched:
                continue
            except Exception as error:
                # An error that only says that this host is unavailable leads to the next host: for example, a load
                # balancer without a server accepts a connection and closes it.
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
                max_cacheable_statement_size=0,  # no limit: a statement for 70 columns of text is beyond the default
                connection_class=self._connection,
                timeout=None,  # `time_limit` above is the limit
                command_timeout=COMMAND_TIMEOUT,  # for statements without a timeout of their own
            )
        return PostgresSession(connection, 0.9 * limit, given)

    def _tls(self) -> ssl.SSLContext | str | bool:
        """Return asyncpg's argument for TLS; never None, because asyncpg would then read the environment."""
        mode = self.config.sslmode
        if mode in ("allow", "prefer"):
            return mode
        return False if mode == "disable" else self.context()

    def new_context(self) -> ssl.SSLContext:
        """Return a TLS context from the files as they are now."""
        context = tls_context(self.config, *self.secrets, verify=self.config.sslmode != "require")
        if self.config.sslmode == "verify-ca":
            context.check_hostname = False
        return context
