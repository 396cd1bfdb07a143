"""The columns of a table or view, as the schema of the file declares them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

from enrichkit.sql import no_table

if TYPE_CHECKING:
    from .config import SqliteConfig

__all__ = ["Column", "columns_of"]


@dataclass(frozen=True, slots=True)
class Column:
    """
    A column of a table or view.

    Attributes:
        name: Name as the schema spells it.
        declared: Declared type, which may be empty or any text.
    """

    name: str
    declared: str


def columns_of(connection: sqlite3.Connection, config: SqliteConfig, table: str) -> dict[str, Column]:
    """Return the columns of a table or view by name; raises `FatalError` when the schema has no such table."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    if table not in tables:
        raise no_table(config, table, "the file", tables)
    # `hidden` is 1 for a hidden column of a virtual table, and such a column is left out. For a generated column,
    # `hidden` is 2 or 3, and the column is kept.
    rows = connection.execute("SELECT name, type FROM pragma_table_xinfo(?1) WHERE hidden <> 1", (table,))
    return {name: Column(name, declared) for name, declared in rows}
