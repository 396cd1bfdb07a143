"""Keys to the rows of a SQLite table or query, a group of keys per transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from enrichkit.connector import Call, Connector, ConnectorConfig, Failure, Key, Value
from enrichkit.errors import FatalError

from .config import SqliteConfig
from .database import Database
from .lookup import Lookup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SqliteConnector"]


class SqliteConnector(Connector[SqliteConfig]):
    """
    Look keys up in a file, which is only read, never written or created.

    One value column gives its value, several a mapping; a stored NULL is None. A key that the column cannot hold is
    rejected, and a value that is not stored as its type is an error of its key.

    CPU per key, groups of 500, one core of a busy machine, best of 5: one value column 3.0 us, bare statements without
    the checks 1.9 us.
    """

    name: ClassVar[str] = "sqlite"
    config_class: ClassVar[type[ConnectorConfig]] = SqliteConfig
    capacity = 4
    batch_size = 500
    max_batch_size = 10_000
    key_types = (str, int, float, bytes)
    encoding = "text"

    _database: Database | None = None
    _lookup: Lookup | None = None

    def __repr__(self) -> str:
        return f"<SqliteConnector {self.config.table or 'query'}: {self._database or 'closed'}>"

    async def open(self) -> None:
        """Open the file and check table, columns and query against its schema."""
        self._database = Database(self.config.path, self.capacity)
        self._lookup = await self._database.run(lambda connection: Lookup(connection, self.config))

    async def describe(self) -> str | None:
        """Return the DDL of one value: of the column, or of a struct of all columns."""
        returns: str | None = self.config.returns
        lookup = self._opened()[1]
        if returns is None and lookup.ddl is None:
            raise FatalError(lookup.unknown)
        return returns or lookup.ddl

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """Look *keys* up, see `Connector.fetch_many`; all of them see one state of the file."""
        database, lookup = self._opened()
        return await database.run(lambda connection: lookup.fetch(connection, keys, call.many))

    async def close(self) -> None:
        """Close all connections, without waiting for anything."""
        database, self._database = self._database, None
        self._lookup = None
        if database is not None:
            database.close()

    def _opened(self) -> tuple[Database, Lookup]:
        if self._database is None or self._lookup is None:
            raise FatalError("The connector 'sqlite' is not open; call open() before it is asked.")
        return self._database, self._lookup
