"""The frame of a connector that has connections and one prepared lookup: open, describe, close."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Generic, TypeVar

from ..connector import Connector
from ..errors import FatalError
from .config import SqlConfig

__all__ = ["SqlConnector"]


SqlConfigT = TypeVar("SqlConfigT", bound=SqlConfig)
PoolT = TypeVar("PoolT", bound=Any)  # its `close` drops all connections at once
LookupT = TypeVar("LookupT", bound=Any)  # its `ddl` is the type of one value


class SqlConnector(Connector[SqlConfigT], Generic[SqlConfigT, PoolT, LookupT]):
    """
    Base of a connector to a SQL database: `make_pool`, `prepare` and `fetch_many` are the plugin's.

    Attributes:
        open_timeout: Seconds that `prepare` may take.
    """

    neighbours = True  # the index of a table is a tree
    open_timeout: ClassVar[float] = 10.0

    _pool: PoolT | None = None
    _lookup: LookupT | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.config.table or 'query'}: {self._pool or 'closed'}>"

    def make_pool(self) -> PoolT:
        """Return the connections, none of them made yet. The driver is imported here, not with the plugin."""
        raise NotImplementedError

    async def prepare(self, pool: PoolT) -> LookupT:
        """Connect once and return the lookup, checked against the catalog; raises a `ConnectorError`."""
        raise NotImplementedError

    async def open(self) -> None:
        """Connect once and check table, columns and types against the catalog."""
        self._pool = self.make_pool()
        try:
            self._lookup = await self.prepare(self._pool)
        except BaseException:
            await self.close()
            raise

    async def describe(self) -> str | None:
        """Return the DDL of one value: of the column, or of a struct of all columns."""
        returns: str | None = self.config.returns
        return returns or str(self.opened()[1].ddl)

    async def close(self) -> None:
        """Close all connections, without waiting for anything."""
        pool, self._pool = self._pool, None
        self._lookup = None
        if pool is not None:
            pool.close()
            await asyncio.sleep(0)  # the transports close in the loop's next turn

    def opened(self) -> tuple[PoolT, LookupT]:
        """Return what `make_pool` and `prepare` made; raises `FatalError` when the connector is not open."""
        if self._pool is None or self._lookup is None:
            raise FatalError(f"The connector {self.name!r} is not open; call open() before it is asked.")
        return self._pool, self._lookup
