"""
How to connect to MariaDB, and when a connection may be used again.

Why not `asyncmy.Pool`: it waits without bound for a frozen server, when it connects and when it closes, and it keeps a
connection after any error. Here only a call that ended cleanly, or that the server stopped at its time limit, gives its
connection back; every other one closes it, so that no reply is left for the next call to read.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from enrichkit.sql import Pool, Session, tls_context

from .faults import STOPPED, translate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from enrichkit.errors import ConnectorError

    from .address import Address
    from .config import MariadbConfig

__all__ = ["MariadbPool", "MariadbSession"]

CONNECT_TIMEOUT = 2.0  # seconds, for TCP, TLS and login together

# Fixed, so that no setting of the server changes what a text, a date or a quote means. max_error_count: the driver asks
# for warnings and logs them, and a warning quotes keys.
SETTINGS = (
    "SET NAMES utf8mb4",
    "SET sql_mode = '', time_zone = '+00:00', max_error_count = 0, sql_select_limit = 18446744073709551615",
    "SET SESSION TRANSACTION READ ONLY",
)


class MariadbSession(Session):
    """An asyncmy connection."""

    __slots__ = ()

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, connection._transport)  # no public way to end it, nor to see that it has ended

    async def ask(self, sql: str, *arguments: Any) -> Sequence[Sequence[Any]]:
        """Return the rows of a statement."""
        async with self.connection.cursor() as cursor:
            await cursor.execute(sql, arguments)
            rows: Sequence[Sequence[Any]] = await cursor.fetchall()
            return rows

    def end(self) -> None:
        """Close it now; the driver's own close waits until all that was written is sent."""
        super().end()
        self.connection.close()


class MariadbPool(Pool[MariadbSession]):
    """
    The connections to one server.

    Args:
        config: Where it is.
        size: Most connections at a time.
        driver: The module asyncmy.
    """

    product: ClassVar[str] = "MariaDB"

    config: MariadbConfig
    address: Address

    def __init__(self, config: MariadbConfig, size: int, driver: ModuleType) -> None:
        super().__init__(config, size)
        self._driver = driver

    def survives(self, session: MariadbSession, error: BaseException) -> bool:
        """After it stopped a statement at its time limit the server has nothing more to say."""
        return isinstance(error, self._driver.errors.MySQLError) and error.args[:1] == (STOPPED,)

    def translate(self, error: Exception) -> ConnectorError:
        """Return *error* in our words."""
        return translate(error, self._driver.errors, str(self.address), *self.secrets)

    async def connect(self, timeout: float) -> MariadbSession:
        """Return a new session, in nine tenths of *timeout* at most: a server that is frozen is not dialled at once."""
        address = self.address
        async with asyncio.timeout(min(CONNECT_TIMEOUT, 0.9 * timeout)):
            password = self.password() or ""
            connection = await self._driver.connect(
                host=address.host,
                port=address.port,
                user=address.user,
                password=password.encode(),  # of a str the driver sends Latin-1
                ssl=self._context if self.config.encrypted else None,
                autocommit=True,
                program_name="enrichkit",
            )
            session = MariadbSession(connection)
            try:
                for statement in SETTINGS:
                    await session.ask(statement)
            except BaseException:
                session.end()
                raise
            return session

    @cached_property
    def _context(self) -> ssl.SSLContext:
        context = tls_context(self.config, *self.secrets)
        if self.config.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
