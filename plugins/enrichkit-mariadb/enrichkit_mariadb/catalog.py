"""What the server's catalog says about a table, and messages for what it does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.ddl import fields_of
from enrichkit.errors import FatalError
from enrichkit.options import did_you_mean

from .columns import Column
from .lookup import Lookup
from .names import quote, split_table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from .config import MariadbConfig

    Ask = Callable[..., Awaitable[Sequence[Sequence[Any]]]]

__all__ = ["prepare"]

# Compared as bytes: the catalog's own collation finds `Users` and `users` equal, which are two tables on Linux.
_COLUMNS = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, NUMERIC_PRECISION, NUMERIC_SCALE
FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND BINARY TABLE_SCHEMA = BINARY %s AND BINARY TABLE_NAME = BINARY %s
ORDER BY ORDINAL_POSITION
"""

_TABLES = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s ORDER BY TABLE_NAME LIMIT 2000"


async def prepare(ask: Ask, config: MariadbConfig) -> Lookup:
    """
    Return the lookup that *config* means, checked against the server; raises `FatalError`.

    Args:
        ask: Takes a statement and its arguments, returns rows.
        config: What the user said.
    """
    database, table = split_table(config.table, config.address.database)
    rows = await ask(_COLUMNS, database, table, database, table)
    if not rows:
        tables = [name for (name,) in await ask(_TABLES, database)]
        if table in tables:  # a view that is broken has no columns; the server says why
            await ask(f"SELECT * FROM {quote(database)}.{quote(table)} LIMIT 0")  # noqa: S608 - quoted names
        raise _no_table(database, table, tables)
    columns = {row[0]: Column(*row) for row in rows}
    source = f"the table {database}.{table}"
    keys = [_find(columns, name, "key", source) for name in config.key_columns]
    names = config.columns or [name for name in columns if name not in config.key_columns]
    if not names:
        raise FatalError(
            f"MariadbConfig.columns is empty and {source} has no column besides its key {config.key_columns}. Name a "
            "column in it."
        )
    values = [_find(columns, name, "columns", source) for name in names]
    if len(values) > 1:  # else the value of the only column is the value, and not a field of it
        for name in fields_of(config.returns or ""):  # a field that no column fills would be null in every row
            _find({value.name: value for value in values}, name, "returns", source)
    [(max_packet,)] = await ask("SELECT @@max_allowed_packet")
    lookup = Lookup(database, table, keys, values, max_packet)
    # Without keys it returns nothing, but finds what only execution finds: a broken view, missing privileges.
    await ask(lookup.sql, 5.0, 0, "[]")
    return lookup


def _find(columns: dict[str, Column], name: str, field: str, source: str) -> Column:
    if name in columns:
        return columns[name]
    raise FatalError(
        f"MariadbConfig.{field} names the column {name!r}, which {source} does not have."
        f"{did_you_mean(name, columns)} Its columns: {_listed(list(columns))}."
    )


def _no_table(database: str, table: str, names: list[str]) -> FatalError:
    return FatalError(
        f"MariadbConfig.table names {table!r}, which the database {database!r} does not have."
        + (
            f"{did_you_mean(table, names)} Its tables: {_listed(names)}."
            if names
            else " It has no table that this user can see."
        )
    )


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
