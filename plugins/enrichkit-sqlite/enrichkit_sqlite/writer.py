"""
The statement that writes a row, executed for each row of a call, and the check that the table returns each value as it
was written. The check is needed because a column's affinity may turn the text '1.10' into the number 1.1, and because
SQLite stores a NaN as NULL.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import sqlite3
import time
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from enrichkit.errors import FatalError
from enrichkit.sql import check_stored, quote, rows_of

from .listing import is_binary
from .schema import columns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enrichkit.plugin import Key, Value

    from .config import SqliteConfig
    from .statement import Statement

__all__ = ["Writer"]

_WHOLE = ("tinyint", "smallint", "int", "bigint", "boolean")
_NUMBERS = (*_WHOLE, "float", "double", "decimal")


class Writer:
    """
    A writer of rows to a table.

    Args:
        connection: Connection to the file, from which the schema is read.
        config: Config of the source.
        statement: The statement that looks keys up.

    Attributes:
        statement: The statement that looks keys up.

    Raises:
        FatalError: The table is a view, has no unique index over exactly the key columns, or has a key column that
            treats different texts as equal.
    """

    def __init__(self, connection: sqlite3.Connection, config: SqliteConfig, statement: Statement) -> None:
        self.statement = statement
        self._table, self._keys, self._expires = config.table or "", config.key_columns, config.expires
        self._ddl = {
            name: type_.partition("(")[0].partition("<")[0]
            for name, type_ in zip(statement.names, statement.types, strict=True)
        }
        columns = columns_of(connection, config, self._table)
        self._types = {name: columns[name].declared or "ANY" for name in statement.names}
        (kind,) = connection.execute("SELECT type FROM sqlite_master WHERE name = ?1", (self._table,)).fetchone()
        if kind != "table":
            raise FatalError(
                f"SqliteConfig.writable is True, and {statement.source} is a view; values can only be written to a "
                "table. Name the table."
            )
        for name in self._keys:
            if not is_binary(connection, self._table, name):
                raise statement.source.not_exact(name, columns[name].declared)
        try:
            connection.execute(f"EXPLAIN {self._sql(statement.names)}", [None] * len(self._targets(statement.names)))
        except sqlite3.OperationalError as error:
            if not str(error).startswith("ON CONFLICT clause does not match"):
                raise
            names = ", ".join(map(quote, self._keys))
            index = quote(f"{self._table}_by_key")
            raise statement.source.not_unique(
                f"CREATE UNIQUE INDEX {index} ON {quote(self._table)} ({names})"
            ) from None

    def write(self, connection: sqlite3.Connection, values: Mapping[Key, Value], ttl: float | None) -> None:
        """
        Write *values* in the transaction of *connection*, and check that the table returns them unchanged.

        Args:
            connection: Connection to the file, in a transaction that the caller commits, or rolls back after an error.
            values: Mapping from each key to its value, with at least one key.
            ttl: Seconds after which the rows expire; None: never.

        Raises:
            PermanentError: A key or a value cannot be written, or would be read as another value.
        """
        statement, source = self.statement, self.statement.source
        rows = {
            key: {name: self._stored(name, value) for name, value in row.items()}
            for key, row in rows_of(values, statement.names, source).items()
        }
        names = list(next(iter(rows.values())))
        until = [] if self._expires is None else [None if ttl is None else time.time() + ttl]
        connection.executemany(
            self._sql(names),
            [(*statement.checked_parts(key), *(row[name] for name in names), *until) for key, row in rows.items()],
        )
        found = statement.fetch(connection, list(rows), many=False, over=True)
        check_stored(source, rows, found, self._types, self._same)

    def _targets(self, names: Sequence[str]) -> list[str]:
        return [*self._keys, *names, *([] if self._expires is None else [self._expires])]

    def _sql(self, names: Sequence[str]) -> str:
        targets = self._targets(names)
        update = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in targets[len(self._keys) :])
        return (
            f"INSERT INTO {quote(self._table)} ({', '.join(map(quote, targets))}) "  # noqa: S608 - quoted names
            f"VALUES ({', '.join('?' * len(targets))}) "
            f"ON CONFLICT ({', '.join(map(quote, self._keys))}) DO UPDATE SET {update}"
        )

    def _stored(self, name: str, value: Any) -> int | float | str | bytes | None:
        """Return *value* as an object that SQLite can store; raises `PermanentError` if there is no such object."""
        try:
            if isinstance(value, str) and self._ddl[name] in _WHOLE:  # a text that `fetch_many` has returned
                return int(value)
            if isinstance(value, str) and self._ddl[name] in ("float", "double"):
                return float(value)
            return _stored(value)
        except ValueError:
            raise self.statement.source.changed(name, self._types[name]) from None

    def _same(self, name: str, written: Any, found: Any) -> bool:
        if written is None or found is None or isinstance(written, bytes):
            return bool(written == found)
        text = repr(written) if isinstance(written, float) else str(written)
        return text == found or (self._ddl[name] in _NUMBERS and Decimal(text) == Decimal(found))


def _stored(value: Any) -> int | float | str | bytes | None:
    """Return *value* as an object that SQLite can store; raises ValueError if there is no such object."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        value.encode()  # half a surrogate pair raises UnicodeEncodeError, a ValueError
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)  # int() turns a bool into 0 or 1
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, Mapping | list):
        return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False)
    raise ValueError


def _plain(value: Any) -> Any:
    """Return *value* if JSON can hold each of its parts unchanged; raises ValueError if not."""
    if isinstance(value, Mapping):
        if {*map(type, value)} - {str}:
            raise ValueError
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, str):
        value.encode()
    elif not isinstance(value, bool | int | float | None):
        raise ValueError
    return value
