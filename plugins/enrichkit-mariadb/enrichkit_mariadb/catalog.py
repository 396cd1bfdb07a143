"""What the server's catalog says about a table, and messages for what it does not say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.sql import Source, no_table

from .columns import Column, quote
from .lookup import Lookup

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
    database, table = config.database_and_table()
    rows = await ask(_COLUMNS, database, table, database, table)
    if not rows:
        tables = [name for (name,) in await ask(_TABLES, database)]
        if table in tables:  # a view that is broken has no columns; the server says why
            await ask(f"SELECT * FROM {quote(database)}.{quote(table)} LIMIT 0")  # noqa: S608 - quoted names
        raise no_table(config, table, f"the database {database!r}", tables)
    source = Source(config, f"the table {database}.{table}")
    keys, values = source.choose({row[0]: Column(*row) for row in rows})
    source.check_fields([value.name for value in values])
    [(max_packet,)] = await ask("SELECT @@max_allowed_packet")
    lookup = Lookup(source, f"{quote(database)}.{quote(table)}", keys, values, max_packet)
    # Without keys it returns nothing, but finds what only execution finds: a broken view, missing privileges.
    await ask(lookup.sql, 5.0, 0, "[]")
    return lookup
