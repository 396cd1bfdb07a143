"""
The statement that writes rows, and the check that the table gives back what was written.

    INSERT INTO "public"."users" AS t ("id", "name")
    SELECT v.k0::integer, v.c0::character varying(50) FROM json_to_recordset($1) AS v (k0 text, c0 text)
    ON CONFLICT ("id") DO UPDATE SET "name" = excluded."name"

All rows are sent as one parameter, a JSON document of texts. The server turns these texts into values in the same way
as the literals in a statement, so no type needs an encoder here. If a value does not fit its column, an INSERT without
a cast would fail with an error that does not name the column. An explicit cast cuts or rounds the value instead, and
the check then names the column.
"""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from enrichkit.errors import FatalError, PermanentError
from enrichkit.sql import check_stored, quote, rows_of, same_value

from .catalog import Column, columns_of_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enrichkit.plugin import Key, Value

    from .config import PostgresConfig
    from .statement import Statement

__all__ = ["Writer", "make_writer"]

# This query returns whether the name is that of a table, and whether a unique index has exactly the key columns.
# Deferrable, partial and expression indexes are left out, because ON CONFLICT with plain columns cannot use them.
_TARGET = """
SELECT c.relkind IN ('r', 'p'), EXISTS (
    SELECT FROM pg_catalog.pg_index i, LATERAL (
        SELECT pg_catalog.array_agg(a.attname::text) AS names
        FROM pg_catalog.unnest(i.indkey::pg_catalog.int2[]) WITH ORDINALITY AS k (number, n)
        JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number
        WHERE k.n <= i.indnkeyatts
    ) AS x
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
        AND i.indexprs IS NULL AND x.names @> $3::pg_catalog.text[] AND x.names <@ $3::pg_catalog.text[]
)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = $2
"""


async def make_writer(connection: Any, config: PostgresConfig, statement: Statement) -> Writer:
    """
    Check in the catalog that values can be written to the table of *config*, and return the writer of this table.

    Raises:
        FatalError: The config names a view or a foreign table, a key column treats different keys as equal, or no
            unique index has exactly the key columns.
    """
    schema, table = config.schema_and_table()
    source, name = statement.source, f"{quote(schema)}.{quote(table)}"
    columns = await columns_of_table(connection, config)
    is_table, is_unique = await connection.fetchrow(_TARGET, schema, table, list(config.key_columns))
    if not is_table:
        raise FatalError(
            f"PostgresConfig.writable is True, and {source} is a view or a foreign table; values can only be written "
            "to a table. Name the table."
        )
    for key in statement.keys:
        # uuid and timestamptz are allowed although their `KeyType.exact` is False, because all spellings of a uuid mean
        # the same uuid, and an instant is the same in any time zone.
        if key.type.types == (str,) and not key.type.exact and key.type_name != "uuid":
            raise source.not_exact(key.name, columns[key.name].sql)
    if not is_unique:
        raise source.not_unique(f"CREATE UNIQUE INDEX ON {name} ({', '.join(map(quote, config.key_columns))})")
    return Writer(statement, name, columns, config)


class Writer:
    """
    The writer of rows to one table.

    Args:
        statement: The statement that looks keys up in the table.
        table: SQL of the table's name.
        columns: The columns of the table.
        config: Config of the source.

    Attributes:
        statement: The *statement*.
    """

    def __init__(self, statement: Statement, table: str, columns: Mapping[str, Column], config: PostgresConfig) -> None:
        self.statement = statement
        self._table = table
        self._columns = columns
        self._keys = config.key_columns
        self._expires = config.expires
        self._types = {name: columns[name].sql for name in statement.names}

    async def write(self, connection: Any, values: Mapping[Key, Value], ttl: float | None) -> None:
        """
        Write *values* in the transaction of *connection*, and check that the table gives the same values back.

        Args:
            connection: Connection with an open transaction; the caller commits the transaction, or rolls it back after
                an error.
            values: Mapping from each key to its value, with at least one key.
            ttl: Seconds after which the values expire; None: never.

        Raises:
            PermanentError: A key or a value cannot be written, or the table gives back a value that differs from the
                written one.
        """
        statement, source = self.statement, self.statement.source
        request = statement.request(list(values))
        for failure in request.answers.values():
            raise failure.error
        rows = rows_of(values, statement.names, source)
        names = list(next(iter(rows.values())))
        # All workers write in the same sorted order, so that two workers that write the same keys cannot deadlock.
        texts = sorted(
            (
                *(_text(part) for part in source.parts_of(key)),
                *(self._text(name, rows[key][name]) for name in names),
            )
            for key in request.keys
        )
        labels = [f"k{i}" for i in range(len(self._keys))] + [f"c{i}" for i in range(len(names))]
        document = msgspec.json.encode([dict(zip(labels, row, strict=True)) for row in texts]).decode()
        arguments = [document] if self._expires is None else [document, ttl]
        try:
            await connection.execute(self._sql(labels, names), *arguments)
        except Exception as error:
            if not str(getattr(error, "sqlstate", "")).startswith("22"):  # class 22: data exceptions
                raise
            written = ", ".join(f"{name!r} {self._types[name]}" for name in names)
            raise PermanentError(
                f"Nothing was written to {source}: a value is none of the type of its column, {type(error).__name__}, "
                f"SQLSTATE {error.sqlstate}. The columns are {written}. Give them types that hold each value of "  # type: ignore[attr-defined]  # it has one
                "the source, or name other columns in PostgresConfig.columns."
            ) from None
        found = statement.read(await statement.fetch(connection, request), request, many=False)
        check_stored(source, rows, found, self._types, self._same)

    def _sql(self, labels: Sequence[str], names: Sequence[str]) -> str:
        targets = [*self._keys, *names]
        columns = [self._columns[name] for name in targets]
        declared = ", ".join(
            f"{label} text{'[]' * (column.type.element is not None)}"
            for label, column in zip(labels, columns, strict=True)
        )
        select = [f"v.{label}::{column.sql}" for label, column in zip(labels, columns, strict=True)]
        if self._expires is not None:
            targets.append(self._expires)
            # If the parameter $2, the ttl, is NULL, the sum is NULL, too, and the row never expires.
            select.append("pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $2::pg_catalog.float8)")
        update = ", ".join(f"{quote(name)} = excluded.{quote(name)}" for name in targets[len(self._keys) :])
        return (
            f"INSERT INTO {self._table} AS t ({', '.join(map(quote, targets))}) SELECT {', '.join(select)} "  # noqa: S608 - quoted names
            f"FROM pg_catalog.json_to_recordset($1::pg_catalog.json) AS v ({declared}) "
            f"ON CONFLICT ({', '.join(map(quote, self._keys))}) DO UPDATE SET {update}"
        )

    def _text(self, name: str, value: Any) -> Any:
        try:
            return _text(value)
        except ValueError:
            raise self.statement.source.changed(name, self._types[name]) from None

    def _same(self, name: str, written: Any, found: Any) -> bool:
        if self._columns[name].type.name == "jsonb" and isinstance(written, str) and isinstance(found, str):
            return written == found or _json(written) == _json(found)
        return same_value(written, found)


def _text(value: Any) -> Any:
    """
    Return *value* as the text of a literal, or a list as a list of texts; raises ValueError if that is impossible.
    """
    if value is None:
        return None
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError
        value.encode()  # half a surrogate pair raises UnicodeEncodeError, a ValueError
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, list):
        return list(map(_text, value))
    raise ValueError


def _json(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)
