"""The base class of SQL connectors: it implements open, describe and close with a pool and one prepared statement."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Generic, TypeVar

from ..errors import FatalError
from ..interface import Connector
from .config import SqlConfig

__all__ = ["SqlConnector"]


SqlConfigT = TypeVar("SqlConfigT", bound=SqlConfig)
PoolT = TypeVar("PoolT", bound=Any)  # a class with a method `close` that drops all connections at once
StatementT = TypeVar("StatementT", bound=Any)  # a class with an attribute `ddl`, the type of one value


class SqlConnector(Connector[SqlConfigT], Generic[SqlConfigT, PoolT, StatementT]):
    """
    Base of a connector to a SQL database. The plugin implements `make_pool`, `prepare` and `fetch_many`, and
    `make_writers` if it has `store_many`.

    Attributes:
        open_timeout: Seconds that `prepare` may take.
        page_timeout: Seconds that `scan` may take for a page of keys. This is long, because a server without an index
            for the keys sorts the whole table for each page.
        write_capacity: Number of sessions that may write, per worker process; the engine makes at most this number of
            calls of `store_many` at a time.
        write_timeout: Seconds that `store_many` may take; less than the 5 seconds after which the engine cancels it.
    """

    neighbours = True  # a call costs less if its keys are next to each other in the B-tree index of the table
    open_timeout: ClassVar[float] = 10.0
    page_timeout: ClassVar[float] = 30.0
    write_capacity: ClassVar[int] = 2
    write_timeout: ClassVar[float] = 4.5

    _pool: PoolT | None = None
    _writers: PoolT | None = None
    _statement: StatementT | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.config.table or 'query'}: {self._pool or 'closed'}>"

    @property
    def cannot_scan(self) -> str:  # type: ignore[override]  # a property, as it depends on the config
        """
        The reason why keys cannot be listed: a query takes keys, but does not tell which keys exist. For a table, the
        text is empty.
        """
        if self.config.table is not None:
            return ""
        return f"{type(self.config).__name__}.query tells no keys; name a table or a view."

    @property
    def cannot_store(self) -> str:  # type: ignore[override]  # a property, as it depends on the config
        """
        The reason why values cannot be written: the source is a query, or a table that is not `writable`. If values can
        be written, the text is empty.
        """
        config = type(self.config).__name__
        if self.config.table is None:
            return f"{config}.query takes no values; name a table."
        return "" if self.config.writable else f"{config}.writable is False; set it to True if the table may change."

    @property
    def stores_ttl(self) -> bool:  # type: ignore[override]  # a property, as it depends on the config
        """Whether a column of the table holds the time until which a row is valid."""
        return self.config.expires is not None

    def make_pool(self) -> PoolT:
        """
        Return a pool that has made no connection yet.

        Import the client package here, not at the top of the plugin.
        """
        raise NotImplementedError

    def make_writers(self) -> PoolT:
        """Return a pool that has made no connection yet, for the sessions that may write."""
        raise NotImplementedError

    async def prepare(self, pool: PoolT) -> StatementT:
        """Connect once, check the config against the catalog, and return the statement; raises a `ConnectorError`."""
        raise NotImplementedError

    async def open(self) -> None:
        """Connect once, and check table, columns and types against the catalog of the database."""
        self._pool = self.make_pool()
        try:
            self._statement = await self.prepare(self._pool)
        except BaseException:
            await self.close()
            raise

    async def describe(self) -> str | None:
        """
        Return the DDL of one value: the config's `returns` if it is set. Otherwise it is the type of the only value
        column, or a struct of all value columns.
        """
        returns: str | None = self.config.returns
        return returns or str(self.opened()[1].ddl)

    async def close(self) -> None:
        """Close all connections at once, without waiting for a server."""
        pools = [pool for pool in (self._pool, self._writers) if pool is not None]
        self._pool = self._writers = self._statement = None
        for pool in pools:
            pool.close()
        if pools:
            await asyncio.sleep(0)  # the transports close in the next iteration of the event loop

    def opened(self) -> tuple[PoolT, StatementT]:
        """Return the pool and the prepared statement; raises `FatalError` when the connector is not open."""
        if self._pool is None or self._statement is None:
            raise FatalError(f"The connector {self.name!r} is not open; call open() before it is asked.")
        return self._pool, self._statement

    def opened_to_write(self, ttl: float | None) -> tuple[PoolT, StatementT]:
        """
        Return the pool of the writing sessions, which lookups never use, and the prepared statement.

        Args:
            ttl: Seconds after which the values are to be forgotten; None: never.

        Raises:
            FatalError: The connector is not open, the config does not let it write, or *ttl* is set and the config
                names no column `expires`.
        """
        _, statement = self.opened()
        if self.cannot_store:
            raise FatalError(self.cannot_store)
        if ttl is not None and not self.stores_ttl:
            raise FatalError(
                f"Values were to be forgotten after {ttl:g} s, and {type(self.config).__name__}.expires names no "
                "column for that time. Name one, or leave ttl out."
            )
        if self._writers is None:
            self._writers = self.make_writers()
        return self._writers, statement
