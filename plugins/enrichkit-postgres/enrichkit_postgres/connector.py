"""Keys to the rows of a PostgreSQL table or query, a group of keys per statement."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from enrichkit.connector import Call, Connector, ConnectorConfig, Failure, Key, Value
from enrichkit.errors import FatalError

from .config import PostgresConfig
from .pool import Pool
from .statements import prepare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .lookup import Lookup

__all__ = ["PostgresConnector"]

OPEN_TIMEOUT = 10.0


class PostgresConnector(Connector[PostgresConfig]):
    """
    Look keys up with `key = ANY($1)`, through asyncpg.

    One value column gives its value, several a mapping; a stored NULL is None. A key that the column cannot hold is
    rejected without being sent. Sessions are read-only, and the server itself stops a statement a tenth before
    ``call.timeout``.

    CPU per key in the worker, from Arrow to Arrow, on 2 busy cores, one value column, 4 calls in flight, the least of 3
    runs of a million keys: 0.72 us with 500 keys a call, 0.68 with 1,000, 0.57 with 2,000, 0.52 with 5,000; bare
    `connection.fetch` of 1,000 keys a call 0.57. The server takes 2.5 to 3 us, less with larger calls, because their
    keys share pages of the index. Why a call returns arrays: docs/decisions/0034-columns-from-postgres.md.
    """

    name: ClassVar[str] = "postgres"
    config_class: ClassVar[type[ConnectorConfig]] = PostgresConfig
    capacity = 4
    batch_size = 2000
    max_batch_size = 10_000
    requires: ClassVar[tuple[str, ...]] = ("asyncpg",)
    pip: ClassVar[str | None] = "pip install 'enrichkit[postgres]'"

    _pool: Pool | None = None
    _lookup: Lookup | None = None

    def __repr__(self) -> str:
        return f"<PostgresConnector {self.config.table or 'query'}: {self._pool or 'closed'}>"

    async def open(self) -> None:
        """Connect once and check table, columns and types against the catalog."""
        import asyncpg  # here, so that a driver program without it can still build the config

        self._pool = Pool(self.config, self.capacity, asyncpg)
        try:
            self._lookup = await self._pool.run(self._prepare, OPEN_TIMEOUT)
        except BaseException:
            await self.close()
            raise

    async def describe(self) -> str | None:
        """Return the DDL of one value: of the column, or of a struct of all columns."""
        returns: str | None = self.config.returns
        return returns or self._opened()[1].ddl

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """Look *keys* up in one statement, see `Connector.fetch_many`."""
        pool, lookup = self._opened()
        asked = lookup.ask(keys)
        if not asked.keys:
            return asked.answers

        async def fetch(connection: Any, timeout: float) -> dict[Key, Value | Failure]:
            rows = await connection.fetch(lookup.sql, *asked.arguments, timeout=timeout)
            return lookup.read(rows, asked, call.many)

        return await pool.run(fetch, call.timeout)

    async def close(self) -> None:
        """Close all connections, without waiting for anything."""
        pool, self._pool = self._pool, None
        self._lookup = None
        if pool is not None:
            pool.close()
            await asyncio.sleep(0)  # the transports close in the loop's next turn

    async def _prepare(self, connection: Any, timeout: float) -> Lookup:
        async with asyncio.timeout(timeout):
            return await prepare(connection, self.config)

    def _opened(self) -> tuple[Pool, Lookup]:
        if self._pool is None or self._lookup is None:
            raise FatalError("The connector 'postgres' is not open; call open() before it is asked.")
        return self._pool, self._lookup
