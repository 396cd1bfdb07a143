"""The connector of SQLite: a call looks up its keys in a table or query, in one transaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from enrichkit.errors import TransientError
from enrichkit.sql import SqlConnector

from .config import SqliteConfig
from .database import Database
from .listing import listed
from .statement import Statement
from .writer import Writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from enrichkit.plugin import Call, ConnectorConfig, Failure, Key, Value

__all__ = ["SqliteConnector"]


class SqliteConnector(SqlConnector[SqliteConfig, Database, Statement]):
    """
    A connector to a SQLite file. It never creates the file, and only `store_many` writes to it.

    With one value column, the value of a key is the value of the column; with several, it is a mapping. A stored NULL
    is None. A key that the column cannot hold gets an error without a lookup. If a stored value is not exactly of the
    declared type, its key gets an error.

    In calls of 500 keys, a lookup of one value column takes 3.0 us of CPU time per key; the bare statements without the
    checks take 1.9 us. These times were measured on one core of a busy machine, as the best of 5 runs.
    """

    name: ClassVar[str] = "sqlite"
    config_class: ClassVar[type[ConnectorConfig]] = SqliteConfig
    capacity = 4
    batch_size = 500
    max_batch_size = 10_000
    key_types = (str, int, float, bytes)
    encoding = "text"
    # With "text", the engine would pass a struct to `store_many` as one text, but each field has a column of its own.
    store_encoding = "python"

    _writer: Writer | None = None

    def make_pool(self) -> Database:
        return Database(self.config.path, self.capacity, self.config.max_bytes)

    def make_writers(self) -> Database:
        self._turn = asyncio.Lock()
        return Database(self.config.path, 1, self.config.max_bytes, writes=True)

    async def prepare(self, pool: Database) -> Statement:
        return await pool.run(lambda connection: Statement(connection, self.config))

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """Look up *keys*, see `Connector.fetch_many`; all keys of a call are read from one state of the file."""
        database, statement = self.opened()
        return await database.run(lambda connection: statement.fetch(connection, keys, call.many))

    async def store_many(self, values: Mapping[Key, Value], ttl: float | None) -> None:
        """
        Insert or replace the rows of *values* in one transaction, see `Connector.store_many`.

        The values may also be texts as `fetch_many` returns them.
        """
        database, statement = self.opened_to_write(ttl)
        if not values:
            return

        def write(connection: Any) -> None:
            if self._writer is None or self._writer.statement is not statement:
                self._writer = Writer(connection, self.config, statement)
            self._writer.write(connection, values, ttl)

        try:
            async with asyncio.timeout(self.write_timeout), self._turn:
                await database.run(write)
        except TimeoutError:
            raise TransientError(
                f"SQLite has not written to {self.config.path} within {self.write_timeout:g} s, while other writes "
                "were before it."
            ) from None

    async def scan(self, kinds: Sequence[type], size: int) -> AsyncIterator[Sequence[Key]]:
        """Iterate over the keys in key order, see `Connector.scan`; each page is read in a transaction of its own."""
        database, statement = self.opened()
        listing = statement.listing(size)
        page: Sequence[Any] = await database.run(lambda connection: listing.after(connection, None))
        while page:
            yield listed(page, kinds)
            last = page[-1]
            page = await database.run(lambda connection, last=last: listing.after(connection, last))  # type: ignore[misc]

    def lists_all(self, kinds: Sequence[type]) -> bool:
        """Return whether a key of the types *kinds* is a miss if `scan` does not list it; see `Connector.lists_all`."""
        return self.opened()[1].lists_all(kinds)
