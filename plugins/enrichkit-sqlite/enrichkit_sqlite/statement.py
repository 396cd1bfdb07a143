"""
The prepared statement of a source, executed once for each key of a call.

SQLite is a library, so a statement costs no round trip (https://www.sqlite.org/np1queryprob.html). In a transaction
with 500 keys, a key takes 1.9 us with a statement of its own, and 1.3 us if one statement with `json_each` takes all
keys. Nevertheless the connector executes a statement for each key. Each row then belongs to the key of its statement,
whatever the collation of the column, and a key is bound without a conversion.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from enrichkit.errors import FatalError, PermanentError
from enrichkit.plugin import Failure, Key, Value, fields_of
from enrichkit.sql import Source, quote, subquery

from .listing import Listing, is_binary
from .schema import Column, columns_of
from .storage import KeyColumn, ddl_of, key_column, readers

if TYPE_CHECKING:
    from .config import SqliteConfig

__all__ = ["Statement"]


class Statement:
    """
    The statement that looks up one key in a table or a query.

    Args:
        connection: Connection to the file, from which the schema is read.
        config: Config of the source.

    Attributes:
        source: The table or query, for messages.
        names: Names of the value columns.
        types: Types of the value columns, as DDL; an empty text stands for a type that is not declared.

    Raises:
        FatalError: The schema lacks a table or column that *config* names, a field of `returns` has no column, or the
            query is not one SELECT with a parameter for each key column.
    """

    def __init__(self, connection: sqlite3.Connection, config: SqliteConfig) -> None:
        self._ddl = ""
        self._untyped = ""
        self._max_bytes = config.max_bytes
        self._table, self._is_binary, self._serves = "", False, ""
        if config.table is not None:
            self.source = Source(config, f"the table {config.table!r}")
            self._prepare_table(connection, config, config.table)
        else:
            self.source = Source(config, "the query")
            self._prepare_query(connection, config)
        self.source.check_fields(self.names)
        # `returns` is the type of the only value column, or a struct of all value columns.
        whole = config.returns or self._ddl
        types = fields_of(whole) if len(self.names) > 1 else {self.names[0]: whole}
        self.types = [types.get(name, "") for name in self.names]
        self._readers = [readers(each) for each in self.types]

    @property
    def ddl(self) -> str:
        """Type of one value as the table declares it; raises `FatalError` when the table declares no type."""
        if self._untyped:
            raise FatalError(self._untyped)
        return self._ddl

    def fetch(
        self, connection: sqlite3.Connection, keys: Sequence[Key], many: bool, *, over: bool = False
    ) -> dict[Key, Value | Failure]:
        """Return the answers to *keys*. If *over* is True, rows that have expired give answers, too."""
        sql = self._sql_of_all if over else self._sql
        answers: dict[Key, Value | Failure] = {}
        for key in dict.fromkeys(keys):
            parts = self.source.parts_of(key)
            failure = self._rejection(parts)
            if failure is None:
                try:
                    cursor = connection.execute(sql, parts)
                    values = [self._value_of(row) for row in (cursor.fetchall() if many else cursor.fetchmany(2))]
                except PermanentError as error:
                    failure = Failure(error)
                except sqlite3.Error as error:
                    failure = self._failure_of_key(error)
            if failure is not None:
                answers[key] = failure
            elif many:
                answers[key] = values
            elif len(values) > 1:
                answers[key] = self.source.ambiguity()
            elif values:
                answers[key] = values[0]
        return answers

    def checked_parts(self, key: Key) -> tuple[Any, ...]:
        """Return the parts of *key*; raises a `PermanentError` if the columns cannot hold the key."""
        parts = self.source.parts_of(key)
        failure = self._rejection(parts)
        if failure is not None:
            raise failure.error
        return parts

    def listing(self, size: int) -> Listing:
        """Return a `Listing` of the keys of the table, with at most *size* keys in a page."""
        return Listing(self._table, [key.name for key in self._keys], size, self._serves)

    def lists_all(self, kinds: Sequence[type]) -> bool:
        """Return whether a key with parts of the types *kinds* certainly has no row if `scan` does not list it."""
        return self._is_binary and all(key.lists_all(kind) for key, kind in zip(self._keys, kinds, strict=True))

    def _prepare_table(self, connection: sqlite3.Connection, config: SqliteConfig, table: str) -> None:
        columns = columns_of(connection, config, table)
        key_columns, value_columns = self.source.choose(columns)
        self._serves = _serves(self.source, columns)
        self._keys = [key_column(column) for column in key_columns]
        self._table = table
        self._is_binary = all(is_binary(connection, table, column.name) for column in key_columns)
        self.names = [column.name for column in value_columns]
        where = " AND ".join(key.condition(number) for number, key in enumerate(self._keys, 1))
        # Names have the prefix t, because SQLite reads an unqualified name in quotes as a text if the column no longer
        # exists (https://www.sqlite.org/quirks.html#dblquote).
        values = ", ".join(f"t.{quote(name)}" for name in self.names)
        self._sql_of_all = f"SELECT {values} FROM {quote(table)} AS t WHERE {where}"  # noqa: S608 - quoted names
        self._sql = self._sql_of_all + self._serves
        self._describe(value_columns)
        connection.execute(self._sql, [None] * len(self._keys))  # SQLite reports some errors only when it executes

    def _prepare_query(self, connection: sqlite3.Connection, config: SqliteConfig) -> None:
        query = subquery(config.query or "")
        self._keys = [KeyColumn(name, "", (str, int, float, bytes)) for name in config.key_columns]
        try:
            cursor = connection.execute(f"SELECT * FROM {query}", [None] * len(self._keys))  # noqa: S608 - user's query
        except (sqlite3.ProgrammingError, sqlite3.Warning) as error:  # Python 3.11 raises a Warning for two statements
            raise FatalError(
                "SqliteConfig.query must be one SELECT with as many parameters as SqliteConfig.key has columns, "
                f"{len(self._keys)}: ?1 for the first, ?2 for the second. Python says: {error}"
            ) from error
        self.names = [name for name, *_ in cursor.description]
        # Columns are selected by name, because after a change of the schema, a * in the query could expand to other
        # columns.
        values = ", ".join(f"t.{quote(name)}" for name in self.names)
        self._sql = self._sql_of_all = f"SELECT {values} FROM {query} AS t"  # noqa: S608 - the user's own query

    def _describe(self, value_columns: Sequence[Column]) -> None:
        untyped = [column for column in value_columns if ddl_of(column) is None]
        if untyped:
            self._untyped = (
                f"The column {untyped[0].name!r} of {self.source} is declared as {untyped[0].declared!r}, which does "
                "not say what its values are."
            )
        elif len(value_columns) == 1:
            self._ddl = ddl_of(value_columns[0]) or ""
        else:
            fields = (f"`{column.name.replace('`', '``')}`:{ddl_of(column)}" for column in value_columns)
            self._ddl = f"struct<{','.join(fields)}>"

    def _rejection(self, parts: tuple[Any, ...]) -> Failure | None:
        """Return the failure of a key with a part that its column cannot hold, or None if there is none."""
        for column, part in zip(self._keys, parts, strict=True):
            if not column.takes(part):
                type_, right = column.affinity or "of any type", type(part) in column.types
                return self.source.rejection(column.name, part, is_=type_, takes=column.allowed, right=right)
        return None

    def _value_of(self, row: Sequence[Any]) -> Value:
        values: list[str | bytes | None] = []
        for reader, value in zip(self._readers, row, strict=True):
            text = None if value is None else reader[type(value)](value)
            if text is None and value is not None:
                raise self._unfit(len(values), value)
            values.append(text)
        return values[0] if len(values) == 1 else dict(zip(self.names, values, strict=True))

    def _unfit(self, index: int, value: Any) -> PermanentError:
        storage_class = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}[type(value)]
        return PermanentError(
            f"The column {self.names[index]!r} of {self.source} holds a value of the storage class {storage_class}, "
            f"which is not exactly a {self.types[index]}. Correct the row, or declare another type with returns=."
        )

    def _failure_of_key(self, error: sqlite3.Error) -> Failure:
        """Return the failure of one key; raises *error* when it concerns all keys."""
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF == sqlite3.SQLITE_TOOBIG:
            text = f"A row of {self.source}, or the key, has more than SqliteConfig.max_bytes, {self._max_bytes} bytes"
            return Failure(PermanentError(f"{text}. Raise max_bytes if it may."))
        if code is not None and (code & 0xFF != sqlite3.SQLITE_ERROR or str(error).startswith("no such ")):
            raise error
        # An error without a code means that Python could not decode a text as UTF-8. The code ERROR means that an
        # expression failed for a value, which the text of *error* may quote.
        reason = "is not UTF-8" if code is None else "made an expression fail"
        return Failure(PermanentError(f"A value of {self.source} {reason}. Correct the row, or leave it out."))


def _serves(source: Source, columns: Mapping[str, Column]) -> str:
    """Return SQL that begins with `AND` and is true for rows that have not expired; empty if rows do not expire."""
    expiry = source.expiry(columns)
    if expiry is None:
        return ""
    if ddl_of(expiry) != "double":
        raise source.not_a_time(repr(expiry.declared), "REAL, with seconds since 1970")
    name = f"t.{quote(expiry.name)}"
    # 'now' has a resolution of milliseconds. 2440587.5 is the Julian day on which 1970 began.
    return f" AND ({name} IS NULL OR {name} > (julianday('now') - 2440587.5) * 86400.0)"
