"""The connector of PostgreSQL: a call looks up its keys in a table or query with one statement."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from enrichkit.errors import FatalError
from enrichkit.sql import SqlConnector

from .config import PostgresConfig
from .pool import PostgresPool
from .prepare import prepare
from .statement import Statement
from .writer import Writer, make_writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from enrichkit.plugin import Call, ConnectorConfig, Failure, Key, Value

    from .leases import PostgresLeases

__all__ = ["PostgresConnector"]

# This statement selects how many connections ordinary users may open: the lowest of the limits of the server, of this
# user and of this database.
_MAX_CONNECTIONS = """
SELECT least(
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
        - coalesce(nullif(current_setting('reserved_connections', true), '')::int, 0),
    (SELECT nullif(rolconnlimit, -1) FROM pg_catalog.pg_roles WHERE rolname = current_user),
    (SELECT nullif(datconnlimit, -1) FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
)
"""


class PostgresConnector(SqlConnector[PostgresConfig, PostgresPool, Statement]):
    """
    A connector that uses asyncpg, and looks up all keys of a call with one statement; see `statement.py`.

    With one value column, the value of a key is the value of that column; with several, it is a mapping. A stored NULL
    is None. A key that the column cannot hold is rejected without being sent. Sessions are read-only, except those of
    `store_many`. The server itself stops a statement when nine tenths of ``call.timeout`` have passed.

    CPU time per key, measured through Spark with a million int keys, one column of texts, and 4 calls in flight with
    4,000 keys each: 0.4 us in the worker and 0.5 to 0.6 us in the server. When texts were still sent as arrays, the
    server took 0.60 us with 2,000 keys a call and 0.46 us with 4,000. Without Spark, the worker takes 0.35 to 0.37 us,
    and a bare `connection.fetch` with 1,000 keys a call takes 0.57 us. The server takes 2 to 3 us for a key when the
    keys of a call are spread over a table of a million rows, and 0.5 us when they are neighbours in the index. In a
    long job the engine puts neighbours into one call, see docs/decisions/0036-calls-of-neighbours.md. `aggregates.py`
    describes how columns arrive without a Python object for each value. A call of 4,000 keys stays within the default
    `timeout` of 10 s even if the server reads each row from a disk and each read takes 2 ms.
    """

    name: ClassVar[str] = "postgres"
    config_class: ClassVar[type[ConnectorConfig]] = PostgresConfig
    capacity = 4
    batch_size = 4000
    max_batch_size = 10_000
    key_columns = True
    requires: ClassVar[tuple[str, ...]] = ("asyncpg",)
    pip: ClassVar[str | None] = "pip install 'enrichkit[postgres]'"
    _writer: Writer | None = None

    def make_pool(self) -> PostgresPool:
        import asyncpg  # imported here, so that a driver program without asyncpg can still build the config

        return PostgresPool(self.config, self.capacity, asyncpg)

    def make_writers(self) -> PostgresPool:
        import asyncpg

        return PostgresPool(self.config, self.write_capacity, asyncpg, writes=True)

    @classmethod
    def lease_store(cls, config: PostgresConfig) -> PostgresLeases:
        """Return a store that keeps limits of a whole job on the server of *config*; see `Connector.lease_store`."""
        from .leases import PostgresLeases

        return PostgresLeases(config)

    async def prepare(self, pool: PostgresPool) -> Statement:
        async def check(connection: Any, timeout: float) -> Statement:
            async with asyncio.timeout(timeout):
                return await prepare(connection, self.config)

        return await pool.run(check, self.open_timeout)

    async def max_connections(self) -> int | None:
        """
        Return the lowest connection limit of the server, the user and the database. The result is None behind
        PgBouncer, because PgBouncer has a limit of its own. See `Connector.max_connections`.
        """
        if self.config.pgbouncer:
            return None

        async def fetch(connection: Any, timeout: float) -> int | None:
            found: int | None = await connection.fetchval(_MAX_CONNECTIONS, timeout=timeout)
            return found

        return await self.opened()[0].run(fetch, self.open_timeout)

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """Look up *keys* with one statement, see `Connector.fetch_many`."""
        pool, statement = self.opened()
        request = statement.request(keys)
        if not request.keys:
            return request.answers

        async def fetch(connection: Any, timeout: float) -> Mapping[Key, Value | Failure]:
            rows = await statement.fetch(connection, request, timeout)
            return statement.read(rows, request, call.many)

        return await pool.run(fetch, call.timeout, self.config.max_bytes)

    async def store_many(self, values: Mapping[Key, Value], ttl: float | None) -> None:
        """Insert or replace the rows of *values* in one transaction, see `Connector.store_many`."""
        pool, statement = self.opened_to_write(ttl)
        if not values:
            return

        async def write(connection: Any, timeout: float) -> None:
            async with asyncio.timeout(timeout):
                if self._writer is None or self._writer.statement is not statement:
                    self._writer = await make_writer(connection, self.config, statement)
                await self._writer.write(connection, values, ttl)

        await pool.run(write, self.write_timeout, self.config.max_bytes)

    async def scan(self, kinds: Sequence[type], size: int) -> AsyncIterator[Sequence[Key]]:
        """Yield the keys in their order, page by page, with one statement for each page; see `Connector.scan`."""
        pool, statement = self.opened()
        listing, last = statement.listing, None
        if listing is None:
            raise FatalError(self.cannot_scan)

        async def fetch(connection: Any, timeout: float) -> tuple[list[Key], Sequence[str] | None]:
            return await listing.after(connection, last, size, timeout)

        while True:
            keys, last = await pool.run(fetch, self.page_timeout, self.config.max_bytes)
            if last is None:
                return
            yield keys

    def lists_all(self, kinds: Sequence[type]) -> bool:
        """
        Return whether a key that `scan` does not list is a miss for which the engine need not ask the server. The parts
        of the key have the types *kinds*; see `Connector.lists_all`.
        """
        listing = self.opened()[1].listing
        return listing is not None and listing.lists_all(kinds)
