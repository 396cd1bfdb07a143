"""Keys to the rows of a PostgreSQL table or query, a group of keys per statement."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from enrichkit.sql import SqlConnector

from .config import PostgresConfig
from .lookup import Lookup
from .pool import PostgresPool
from .statements import prepare

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enrichkit.connector import Call, ConnectorConfig, Failure, Key, Value

__all__ = ["PostgresConnector"]


class PostgresConnector(SqlConnector[PostgresConfig, PostgresPool, Lookup]):
    """
    Look keys up with `key = ANY($1)`, through asyncpg.

    One value column gives its value, several a mapping; a stored NULL is None. A key that the column cannot hold is
    rejected without being sent. Sessions are read-only, and the server itself stops a statement a tenth before
    ``call.timeout``.

    CPU per key through Spark, a million int keys, one column of texts, 4 calls in flight, worker and server: 0.4 +
    0.5 to 0.6 us with 4,000 keys a call; before texts came as bytes the server took 0.60 with 2,000, 0.46 with 4,000.
    Without Spark the worker takes 0.35 to 0.37, and bare `connection.fetch` of 1,000 keys a call 0.57. The server takes
    2 to 3 us for a key whose call has others from all over a table of a million rows, and half a microsecond for one
    among its neighbours, as in a long job: see docs/decisions/0036-calls-of-neighbours.md. How columns come without
    objects: `gathered.py`.
    A call of 4,000 keys stays within `timeout` where each has to be read from a disk that takes 2 ms.
    """

    name: ClassVar[str] = "postgres"
    config_class: ClassVar[type[ConnectorConfig]] = PostgresConfig
    capacity = 4
    batch_size = 4000
    max_batch_size = 10_000
    key_columns = True
    requires: ClassVar[tuple[str, ...]] = ("asyncpg",)
    pip: ClassVar[str | None] = "pip install 'enrichkit[postgres]'"

    def make_pool(self) -> PostgresPool:
        import asyncpg  # here, so that a driver program without it can still build the config

        return PostgresPool(self.config, self.capacity, asyncpg)

    async def prepare(self, pool: PostgresPool) -> Lookup:
        async def check(connection: Any, timeout: float) -> Lookup:
            async with asyncio.timeout(timeout):
                return await prepare(connection, self.config)

        return await pool.run(check, self.open_timeout)

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """Look *keys* up in one statement, see `Connector.fetch_many`."""
        pool, lookup = self.opened()
        asked = lookup.ask(keys)
        if not asked.keys:
            return asked.answers

        async def fetch(connection: Any, timeout: float) -> Mapping[Key, Value | Failure]:
            rows = await connection.fetch(lookup.sql, *asked.arguments, timeout=timeout)
            return lookup.read(rows, asked, call.many)

        return await pool.run(fetch, call.timeout)
