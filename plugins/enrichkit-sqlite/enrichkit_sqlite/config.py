"""What a user says about a SQLite source."""

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
    Where the values are: rows of a table or view, or of a query, in a file that every worker can read.

    One value column gives its value, several give a struct. A name is taken as the schema spells it: case counts.

    Attributes:
        path: Absolute path of the file, on each worker; on the driver, too, unless *returns* is given.
        table: Name of a table or view.
        key: The key column, or a tuple of them in the order of the key columns in Spark. An index must lead with them.
        columns: The value columns; empty: all columns of the table but the key's.
        query: Instead of *table*, one SELECT of the value columns for the key `?1` (and `?2`, ... of further key
            columns). Needs *returns*, because SQLite does not know the types of a query.
        returns: DDL of one value, when it shall be another type than the table declares.

    Raises:
        ConfigError: On the driver, when a field is wrong.

    >>> SqliteConfig(path="/data/shop.db", table="users", columns=("name", "tier"))
    SqliteConfig(returns=None, table='users', key='id', columns=('name', 'tier'), path='/data/shop.db', query=None)
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
