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
from enrichkit.sql import Source, quote

from .schema import Column, columns_of
from .storage import Taken, ddl_of, readers, taken_by

if TYPE_CHECKING:
    from .config import SqliteConfig

__all__ = ["Lookup"]


class Lookup:
    """How a table or a query is asked."""

    def __init__(self, connection: sqlite3.Connection, config: SqliteConfig) -> None:
        """Check *config* against the schema; raises `FatalError`."""
        self._ddl = ""
        self._unknown = ""
        if config.table is not None:
            self._source = Source(config, f"the table {config.table!r}")
            self._of_table(connection, config, config.table)
        else:
            self._source = Source(config, "the query")
            self._of_query(connection, config)
        self._source.check_fields(self._names)
        # `returns` is the type of the only column, or of a struct of them.
        whole = config.returns or self._ddl
        wanted = fields_of(whole) if len(self._names) > 1 else {self._names[0]: whole}
        self._wanted = [wanted.get(name, "") for name in self._names]
        self._readers = [readers(each) for each in self._wanted]

    @property
    def ddl(self) -> str:
        """The type of one value, as the table declares it; raises `FatalError` when it does not say."""
        if self._unknown:
            raise FatalError(self._unknown)
        return self._ddl

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
                found[key] = self._source.ambiguity()
            elif values:
                found[key] = values[0]
        return found

    def _of_table(self, connection: sqlite3.Connection, config: SqliteConfig, table: str) -> None:
        keys, kept = self._source.choose(columns_of(connection, config, table))
        self._taken = [taken_by(column) for column in keys]
        self._names = [column.name for column in kept]
        where = " AND ".join(taken.condition(n) for n, taken in enumerate(self._taken, 1))
        # Of t: alone, a name in quotes that is a column no more would be a text (https://www.sqlite.org/quirks.html#dblquote).
        values = ", ".join(f"t.{quote(name)}" for name in self._names)
        self._sql = f"SELECT {values} FROM {quote(table)} AS t WHERE {where}"  # noqa: S608 - names of the schema, quoted
        self._describe(kept)
        connection.execute(self._sql, [None] * len(keys))  # finds what only execution finds

    def _of_query(self, connection: sqlite3.Connection, config: SqliteConfig) -> None:
        # As a subquery it can be nothing but one SELECT. The line break ends a comment of its last line.
        query = f"(\n{(config.query or '').rstrip().rstrip(';')}\n)"
        self._taken = [Taken(name, "", (str, int, float, bytes)) for name in config.key_columns]
        try:
            cursor = connection.execute(f"SELECT * FROM {query}", [None] * len(self._taken))  # noqa: S608 - the user's own query
        except (sqlite3.ProgrammingError, sqlite3.Warning) as error:  # a Warning up to Python 3.11
            raise FatalError(
                "SqliteConfig.query must be one SELECT with as many parameters as SqliteConfig.key has columns, "
                f"{len(self._taken)}: ?1 for the first, ?2 for the second. Python says: {error}"
            ) from error
        self._names = [name for name, *_ in cursor.description]
        # By name: what * stands for in the query changes with the schema, which SQLite looks up again, and we do not.
        values = ", ".join(f"t.{quote(name)}" for name in self._names)
        self._sql = f"SELECT {values} FROM {query} AS t"  # noqa: S608 - likewise

    def _describe(self, kept: Sequence[Column]) -> None:
        untyped = [column for column in kept if ddl_of(column) is None]
        if untyped:
            self._unknown = (
                f"The column {untyped[0].name!r} of {self._source} is declared as {untyped[0].declared!r}, which does "
                "not say what its values are."
            )
        elif len(kept) == 1:
            self._ddl = ddl_of(kept[0]) or ""
        else:
            parts = (f"`{column.name.replace('`', '``')}`:{ddl_of(column)}" for column in kept)
            self._ddl = f"struct<{','.join(parts)}>"

    def _rejection(self, parts: tuple[Any, ...]) -> Failure | None:
        if len(parts) != len(self._taken):
            raise self._source.misshapen()
        for taken, part in zip(self._taken, parts, strict=True):
            if not taken.takes(part):
                is_, right = taken.affinity or "of any type", type(part) in taken.types
                return self._source.rejection(taken.name, part, is_=is_, takes=taken.allowed, right=right)
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
