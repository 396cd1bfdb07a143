"""
One lookup, prepared once: a key to a row, with one statement for each key.

SQLite is a library, so a statement costs no round trip: 500 keys in one transaction take 1.9 us each, in one statement
with `json_each` 1.3 us (https://www.sqlite.org/np1queryprob.html). In return each row belongs to the key it was asked
for, whatever the column's collation, and a key is bound as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from enrichkit.connector import Failure, Key, Value
from enrichkit.ddl import fields_of
from enrichkit.errors import FatalError, PermanentError

from .schema import Column, columns_of, find, quote
from .storage import Taken, ddl_of, readers, taken_by

if TYPE_CHECKING:
    from .config import SqliteConfig

__all__ = ["Lookup"]


class Lookup:
    """
    How a table or a query is asked.

    Attributes:
        ddl: The type of one value, as the table declares it; None: it does not say.
        unknown: Why it does not say.
    """

    def __init__(self, connection: sqlite3.Connection, config: SqliteConfig) -> None:
        """Check *config* against the schema; raises `FatalError`."""
        self.ddl: str | None = None
        self.unknown = ""
        if config.table is not None:
            self._source = f"the table {config.table!r}"
            self._of_table(connection, config)
        else:
            self._source = "the query"
            self._of_query(connection, config)
        # `returns` is the type of the only column, or of a struct of them.
        whole = config.returns or self.ddl or ""
        wanted = fields_of(whole) if len(self._names) > 1 else {self._names[0]: whole}
        for name in wanted:  # a field that no column fills would be null in every row
            find([Column(each, "") for each in self._names], name, "returns", self._source)
        self._wanted = [wanted.get(name, "") for name in self._names]
        self._readers = [readers(each) for each in self._wanted]

    def fetch(self, connection: sqlite3.Connection, keys: Sequence[Key], many: bool) -> dict[Key, Value | Failure]:
        """Return the answers to *keys*."""
        found: dict[Key, Value | Failure] = {}
        for key in dict.fromkeys(keys):
            parts = key if isinstance(key, tuple) else (key,)
            failure = self._rejection(parts)
            if failure is None:
                try:
                    cursor = connection.execute(self._sql, parts)
                    values = [self._value_of(row) for row in (cursor.fetchall() if many else cursor.fetchmany(2))]
                except PermanentError as error:
                    failure = Failure(error)
                except sqlite3.Error as error:
                    failure = self._of_one_key(error)
            if failure is not None:
                found[key] = failure
            elif many:
                found[key] = values
            elif len(values) > 1:
                found[key] = self._ambiguity()
            elif values:
                found[key] = values[0]
        return found

    def _of_table(self, connection: sqlite3.Connection, config: SqliteConfig) -> None:
        assert config.table is not None
        columns = columns_of(connection, config.table)
        keys = [find(columns, name, "key", self._source) for name in config.key_columns]
        names = config.columns or [column.name for column in columns if column.name not in config.key_columns]
        kept = [find(columns, name, "columns", self._source) for name in names]
        if not kept:
            raise FatalError(
                f"SqliteConfig.columns is empty and {self._source} has no column besides its key {config.key_columns}. "
                "Name a column in it."
            )
        self._taken = [taken_by(column) for column in keys]
        self._names = [column.name for column in kept]
        where = " AND ".join(taken.condition(n) for n, taken in enumerate(self._taken, 1))
        values = ", ".join(quote(name) for name in self._names)
        self._sql = f"SELECT {values} FROM {quote(config.table)} WHERE {where}"  # noqa: S608 - names of the schema, quoted
        self._describe(kept)
        connection.execute(self._sql, [None] * len(keys))  # finds what only execution finds

    def _of_query(self, connection: sqlite3.Connection, config: SqliteConfig) -> None:
        # As a subquery it can be nothing but one SELECT. The line break ends a comment of its last line.
        self._sql = f"SELECT * FROM (\n{(config.query or '').rstrip().rstrip(';')}\n)"  # noqa: S608 - the user's own query
        self._taken = [Taken(name, "", (str, int, float, bytes)) for name in config.key_columns]
        try:
            cursor = connection.execute(self._sql, [None] * len(self._taken))
        except (sqlite3.ProgrammingError, sqlite3.Warning) as error:  # a Warning up to Python 3.11
            raise FatalError(
                "SqliteConfig.query must be one SELECT with as many parameters as SqliteConfig.key has columns, "
                f"{len(self._taken)}: ?1 for the first, ?2 for the second. Python says: {error}"
            ) from error
        self._names = [name for name, *_ in cursor.description]

    def _describe(self, kept: Sequence[Column]) -> None:
        untyped = [column for column in kept if ddl_of(column) is None]
        if untyped:
            self.unknown = (
                f"The column {untyped[0].name!r} of {self._source} is declared as {untyped[0].declared!r}, which does "
                "not say what its values are."
            )
        elif len(kept) == 1:
            self.ddl = ddl_of(kept[0])
        else:
            parts = (f"`{column.name.replace('`', '``')}`:{ddl_of(column)}" for column in kept)
            self.ddl = f"struct<{','.join(parts)}>"

    def _rejection(self, parts: tuple[Any, ...]) -> Failure | None:
        if len(parts) != len(self._taken):
            names = ", ".join(repr(taken.name) for taken in self._taken)
            raise FatalError(
                f"A key came with another number of parts than SqliteConfig.key names columns: {names}. "
                "Name as many key columns in enrich(...) as in SqliteConfig.key."
            )
        for taken, part in zip(self._taken, parts, strict=True):
            if not taken.takes(part):
                error = PermanentError(
                    f"The key was not sent: the key column {taken.name!r} of {self._source} takes {taken.allowed}, and "
                    f"was given a value of the type {type(part).__name__} that it cannot hold. Cast or filter the key "
                    "in Spark."
                )
                return Failure(error, rejected=True)
        return None

    def _value_of(self, row: Sequence[Any]) -> Value:
        values: list[str | bytes | None] = []
        for read, value in zip(self._readers, row, strict=True):
            text = None if value is None else read[type(value)](value)
            if text is None and value is not None:
                raise self._unfit(len(values), value)
            values.append(text)
        return values[0] if len(values) == 1 else dict(zip(self._names, values, strict=True))

    def _unfit(self, n: int, value: Any) -> PermanentError:
        kind = {int: "INTEGER", float: "REAL", str: "TEXT", bytes: "BLOB"}[type(value)]
        return PermanentError(
            f"The column {self._names[n]!r} of {self._source} holds a value of the storage class {kind}, which is "
            f"not exactly a {self._wanted[n]}. Correct the row, or declare another type with returns=."
        )

    def _of_one_key(self, error: sqlite3.Error) -> Failure:
        """Return the error of a key; raises what is the error of all."""
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and (code & 0xFF != sqlite3.SQLITE_ERROR or str(error).startswith("no such ")):
            raise error
        # Of Python, because a text is not UTF-8; or of an expression, which a value did not suit. The text may hold it.
        reason = "is not UTF-8" if code is None else "made an expression fail"
        return Failure(PermanentError(f"A value of {self._source} {reason}. Correct the row, or leave it out."))

    def _ambiguity(self) -> Failure:
        names = " and ".join(repr(taken.name) for taken in self._taken)
        return Failure(
            PermanentError(
                f"Several rows of {self._source} have one key, and one is allowed: {names} is not unique. "
                "Use enrich_frame(..., many=True) to get them all, or a key that is unique."
            )
        )
