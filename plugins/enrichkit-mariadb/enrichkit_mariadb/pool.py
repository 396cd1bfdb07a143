"""
The connections to MariaDB: how they are made, and when a connection may be used again.

`asyncmy.Pool` is not used: it waits without a time limit for a frozen server, both when it connects and when it closes,
and it keeps a connection after any error. This pool uses a connection again only after a call that ended cleanly, or a
read that the server stopped at its time limit. After any other call the connection is closed, so that the next call
cannot read a reply to an earlier one.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, ClassVar

from enrichkit.plugin import time_limit, tls_context
from enrichkit.sql import Pool, Session

from .faults import STOPPED, translate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from enrichkit.errors import ConnectorError

    from .address import Address
    from .config import MariadbConfig

__all__ = ["MariadbPool", "MariadbSession"]

CONNECT_TIMEOUT = 2.0  # seconds, for TCP, TLS and authentication together

# These settings are fixed, so that no setting of the server changes the meaning of a text, a date or a quote. With
# max_error_count = 0, the server makes no warnings; asyncmy would fetch and log warnings, which quote keys.
SETTINGS = (
    "SET NAMES utf8mb4",
    "SET sql_mode = '', time_zone = '+00:00', max_error_count = 0, sql_select_limit = 18446744073709551615",
    "SET SESSION TRANSACTION READ ONLY",
)
# In strict mode, a value that does not fit its column is an error. READ COMMITTED takes no gap locks; with gap locks,
# two writers of different rows would wait for each other.
WRITING = (
    *SETTINGS[:-1],
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
    "SET sql_mode = 'STRICT_ALL_TABLES'",
)


class MariadbSession(Session):
    """An asyncmy connection."""

    __slots__ = ()

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, connection._transport)  # asyncmy has no public attribute for the transport

    async def fetch(self, sql: str, *arguments: Any) -> Sequence[Sequence[Any]]:
        """Execute the statement *sql* with *arguments*, and return its rows."""
        async with self.connection.cursor() as cursor:
            await cursor.execute(sql, arguments)
            rows: Sequence[Sequence[Any]] = await cursor.fetchall()
            return rows

    def end(self) -> None:
        """Abort the transport and close the connection; asyncmy's `close` alone would wait until all data is sent."""
        super().end()
        self.connection.close()


class MariadbPool(Pool[MariadbSession]):
    """
    The connections to one server.

    Args:
        config: Config with the address of the server and the login.
        size: Most connections at a time.
        asyncmy: The module asyncmy, which the connector imports only when it opens.
        writes: Whether the sessions may write. If True, each call is a transaction of its own. If False, the sessions
            are read-only.
    """

    product: ClassVar[str] = "MariaDB"

    config: MariadbConfig
    address: Address

    def __init__(self, config: MariadbConfig, size: int, asyncmy: ModuleType, *, writes: bool = False) -> None:
        super().__init__(config, size)
        self._writes = writes
        self._asyncmy = asyncmy

    def survives(self, session: MariadbSession, error: BaseException) -> bool:
        """
        Return whether *session* can be used again: only if *error* says that the server stopped a lookup at its time
        limit, because the server then sends nothing more.
        """
        # After an error, a session that writes is not used again: closing its connection makes the server roll the
        # transaction back.
        stopped = isinstance(error, self._asyncmy.errors.MySQLError) and error.args[:1] == (STOPPED,)
        return stopped and not self._writes

    def translate(self, error: Exception) -> ConnectorError:
        """Return the `ConnectorError` for *error*."""
        return translate(error, self._asyncmy.errors, str(self.address), *self.secrets)

    async def connect(self, timeout: float) -> MariadbSession:
        """
        Return a new session; raises `TimeoutError` after 2 s, or after nine tenths of *timeout* if that is less.

        So an attempt to connect to a frozen server fails before the call times out. The pool then raises an error for
        the other callers that wait for a connection, too.
        """
        address = self.address
        async with time_limit(min(CONNECT_TIMEOUT, 0.9 * timeout)):
            password = self.password() or ""
            connection = await self._asyncmy.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=password.encode(),  # asyncmy would send a str as Latin-1
                ssl=self.context() if self.config.encrypted else None,
                autocommit=True,
                program_name="enrichkit",
            )
            session = MariadbSession(connection)
            try:
                # The statements are joined, so that they take one round trip together.
                await session.fetch("; ".join(WRITING if self._writes else SETTINGS))
            except BaseException:
                session.end()
                raise
            return session

    def new_context(self) -> ssl.SSLContext:
        """Return a new TLS context from the certificate files of the config as they are now."""
        return tls_context(self.config, *self.secrets, verify=not self.config.insecure)
