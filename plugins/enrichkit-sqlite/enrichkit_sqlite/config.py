"""What a user says about a SQLite source."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from enrichkit.connector import ConnectorConfig
from enrichkit.errors import ConfigError

__all__ = ["SqliteConfig"]

_EXAMPLES = (
    "SqliteConfig(path='/data/shop.db', table='users', key='id') or "
    "SqliteConfig(path='/data/shop.db', query='SELECT name FROM users WHERE id = ?1', returns='string')"
)


@dataclass(frozen=True, kw_only=True)
class SqliteConfig(ConnectorConfig):
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
    SqliteConfig(returns=None, path='/data/shop.db', table='users', key='id', columns=('name', 'tier'), query=None)
    """

    path: str
    table: str | None = None
    key: str | tuple[str, ...] = "id"
    columns: tuple[str, ...] = ()
    query: str | None = None

    def __post_init__(self) -> None:
        for name in ("key", "columns"):
            if isinstance(getattr(self, name), list):  # from TOML or JSON; a list has no hash
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.columns, str):  # columns=("name") is no tuple, and nobody means its letters
            object.__setattr__(self, "columns", (self.columns,))
        if not isinstance(self.path, str) or not os.path.isabs(self.path) or "\0" in self.path:
            raise ConfigError(
                f"SqliteConfig.path is {self.path!r}; it must be the absolute path of a file, because each worker has "
                "a current folder of its own. For example path='/data/shop.db'."
            )
        if (self.table is None) == (self.query is None):
            fault = "both a table and a query" if self.table is not None else "neither a table nor a query"
            raise ConfigError(f"SqliteConfig has {fault}; it must have one of them. Write {_EXAMPLES}.")
        self._check_names()
        if self.query is not None:
            self._check_query()

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the key columns, one or more."""
        return self.key if isinstance(self.key, tuple) else (self.key,)

    @property
    def key_parts(self) -> int:
        """How many key columns the source needs."""
        return len(self.key_columns)

    def _check_names(self) -> None:
        if self.table is not None:
            _check_name("table", self.table, "table")
        for field, names in (("key", self.key_columns), ("columns", self.columns)):
            if not isinstance(names, tuple):
                raise ConfigError(
                    f"SqliteConfig.{field} is {names!r}; it must be a tuple of names, for example ('name', 'tier')."
                )
            for name in names:
                _check_name(field, name, "column")
            if len(set(names)) < len(names):
                raise ConfigError(f"SqliteConfig.{field} is {names!r}; it must hold each name once. Remove the second.")
        if not self.key_columns:
            raise ConfigError(
                "SqliteConfig.key is (); it must be the name of a column, for example 'id', or a tuple of them."
            )

    def _check_query(self) -> None:
        if self.columns:
            raise ConfigError(
                f"SqliteConfig.columns is {self.columns!r} beside a query; it must be empty then. "
                "Select these columns in the query."
            )
        if not isinstance(self.query, str) or "\0" in self.query:
            raise ConfigError(
                f"SqliteConfig.query is {self.query!r}; it must be one SELECT statement, a str without NUL. "
                f"Write {_EXAMPLES}."
            )
        for number, name in enumerate(self.key_columns, 1):
            if f"?{number}" not in self.query:
                raise ConfigError(
                    f"SqliteConfig.query does not mention ?{number}; it takes one value for each of the "
                    f"{len(self.key_columns)} key columns, for example WHERE {name} = ?{number}."
                )
        if self.returns is None:
            raise ConfigError(
                "SqliteConfig.query comes without returns, and SQLite does not know the types of a query; it must be "
                "the type of one value. For example returns='name string, tier int'."
            )


def _check_name(field: str, name: Any, what: str) -> None:
    if not isinstance(name, str) or not name or "\0" in name or not _is_utf8(name):
        raise ConfigError(
            f"SqliteConfig.{field} holds {name!a}; it must be the name of a {what}, a str of one character or more, "
            f"without a NUL or half a surrogate pair. Write it as the schema has it."
        )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
