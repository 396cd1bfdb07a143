"""The config of a SQLite source."""

from __future__ import annotations

import os
from dataclasses import dataclass

from enrichkit.errors import ConfigError
from enrichkit.sql import SqlConfig

__all__ = ["SqliteConfig"]

_EXAMPLES = (
    "SqliteConfig(path='/data/shop.db', table='users', key='id') or "
    "SqliteConfig(path='/data/shop.db', query='SELECT name FROM users WHERE id = ?1', returns='string')"
)


@dataclass(frozen=True, kw_only=True)
class SqliteConfig(SqlConfig):
    """
    The table, view or query with the values, in a file that every worker can read.

    With one value column, the value of a key is the value of that column; with several, it is a struct. Names must be
    spelled exactly as in the schema; upper and lower case differ.

    Attributes:
        path: Absolute path of the file on each worker, and also on the driver unless *returns* is set.
        table: Name of a table or view.
        key: Name of the key column, or a tuple of names in the order of the key columns in Spark. An index must begin
            with these columns; otherwise SQLite reads the whole table for each key.
        columns: Names of the value columns; empty: all columns of the table except the key columns and *expires*.
        max_bytes: Most bytes of one row; 64 KiB to 1 GiB.
        expires: Name of a column of the type REAL that says until when a row is valid, in seconds since 1970, UTC.
            A row with NULL in this column is always valid. A key whose row is no longer valid is a missing key. None:
            all rows are always valid.
        writable: True allows `tiers(write_back=True)` to insert and update rows, on a separate connection. A unique
            index must hold exactly the key columns. False: the connector only reads the file.
        query: Used instead of *table*: one SELECT that returns the value columns for one key; `?1` is the first key
            column, `?2` the second, and so on. A query needs *returns*, because SQLite does not know the types of a
            query.
        returns: DDL of one value; needed for a query. None: the value has the type that the table declares.

    Raises:
        ConfigError: On the driver, when a field is wrong.

    >>> SqliteConfig(path="/data/shop.db", table="users", columns=("name", "tier"))
    SqliteConfig(returns=None, table='users', key='id', columns=('name', 'tier'), max_bytes=67108864, expires=None, \
writable=False, path='/data/shop.db', query=None)
    """

    path: str
    table: str | None = None
    query: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.path, str) or not os.path.isabs(self.path) or "\0" in self.path:
            raise ConfigError(
                f"SqliteConfig.path is {self.path!r}; it must be the absolute path of a file, because each worker has "
                "a current folder of its own. For example path='/data/shop.db'."
            )
        self.check_query(self.query, mark="?", takes="one value", condition="{} = {}", examples=_EXAMPLES)
        if self.table is not None:
            self.check_name("table", self.table, "table")
        elif self.returns is None:
            raise ConfigError(
                "SqliteConfig.query comes without returns, and SQLite does not know the types of a query; it must be "
                "the type of one value. For example returns='name string, tier int'."
            )
