"""The lookup statement of a source, made from the columns that the server's catalog lists for the table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from enrichkit.errors import FatalError
from enrichkit.sql import Source, no_table

from .columns import Column, quote
from .statement import Statement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from .config import MariadbConfig

    Fetch = Callable[..., Awaitable[Sequence[Sequence[Any]]]]

__all__ = ["prepare"]

# Names are compared as bytes, because the collation of the catalog treats `Users` and `users` as equal, although on
# Linux these are two tables. Invisible columns are left out, as in `SELECT *`, unless the config names them.
_COLUMNS = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, NUMERIC_PRECISION, NUMERIC_SCALE
FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND BINARY TABLE_SCHEMA = BINARY %s AND BINARY TABLE_NAME = BINARY %s
    AND (EXTRA NOT LIKE '%%INVISIBLE%%' OR {named})
ORDER BY ORDINAL_POSITION
"""

_TABLES = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s ORDER BY TABLE_NAME LIMIT 2000"


async def prepare(fetch: Fetch, config: MariadbConfig) -> Statement:
    """
    Return the statement for *config*; raises `FatalError` if the server's catalog shows that the config is wrong.

    Args:
        fetch: Function that takes the text of a statement and its arguments, and returns rows.
        config: Config of the source.
    """
    database, table = config.database_and_table()
    named = [*config.key_columns, *config.columns, *config.as_bytes, config.expires]
    columns_of = _COLUMNS.format(named=f"COLUMN_NAME IN ({', '.join(['%s'] * len(named))})")
    rows = await fetch(columns_of, database, table, database, table, *named)
    if not rows:
        tables = [name for (name,) in await fetch(_TABLES, database)]
        if table in tables:  # a broken view has no columns; this SELECT raises the error that gives the reason
            await fetch(f"SELECT * FROM {quote(database)}.{quote(table)} LIMIT 0")  # noqa: S608 - quoted names
        raise no_table(config, table, f"the database {database!r}", tables)
    source = Source(config, f"the table {database}.{table}")
    columns = {row[0]: Column(*row) for row in rows}
    for name in config.as_bytes:
        columns[name] = _as_bytes(source.find("as_bytes", name, columns), source)
    keys, values = source.choose(columns)
    source.check_fields([value.name for value in values])
    [(max_packet,)] = await fetch("SELECT @@max_allowed_packet")
    statement = Statement(
        source, f"{quote(database)}.{quote(table)}", keys, values, max_packet, _serves(source, columns)
    )
    # The statement is executed once without keys. This execution returns no rows, but it raises errors that only an
    # execution finds, such as a broken view or missing privileges.
    await fetch(statement.sql, 5.0, 0, "[]")
    return statement


def _as_bytes(column: Column, source: Source) -> Column:
    if not column.is_text:
        raise FatalError(
            f"MariadbConfig.as_bytes names the column {column.name!r} of {source}, which has the type {column.full}; "
            "it must be a column of texts. Leave it out of as_bytes."
        )
    return replace(column, as_bytes=True)


def _serves(source: Source, columns: Mapping[str, Column]) -> str:
    """Return SQL that begins with `AND` and is true for rows that have not expired; empty if rows never expire."""
    expiry = source.expiry(columns)
    if expiry is None:
        return ""
    if expiry.type not in ("timestamp", "datetime"):
        raise source.not_a_time(expiry.full, "timestamp(6), or datetime(6) in UTC")
    return f" AND ({expiry.sql} IS NULL OR {expiry.sql} > UTC_TIMESTAMP(6))"
