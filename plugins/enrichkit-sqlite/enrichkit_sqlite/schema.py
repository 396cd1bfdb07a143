"""What the schema says about a table or view, and messages for what it does not say."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from enrichkit.errors import FatalError
from enrichkit.options import did_you_mean

__all__ = ["Column", "columns_of", "find", "quote"]


@dataclass(frozen=True, slots=True)
class Column:
    """
    A column of a table or view.

    Attributes:
        name: As the schema spells it.
        declared: Its declared type, which may be empty or anything.
    """

    name: str
    declared: str


def quote(name: str) -> str:
    """
    Return *name* as a quoted SQL identifier.

    >>> quote('we"ird')
    '"we""ird"'
    """
    return '"' + name.replace('"', '""') + '"'


def columns_of(connection: sqlite3.Connection, table: str) -> list[Column]:
    """Return the columns of a table or view; raises `FatalError` when there is none of that name."""
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
    if table not in tables:
        raise FatalError(
            f"SqliteConfig.table names {table!r}, which the file does not have.{did_you_mean(table, tables)} "
            f"Its tables and views: {_listed(tables)}."
        )
    # hidden is 1 for what a virtual table does not show; generated columns have other numbers.
    rows = connection.execute("SELECT name, type FROM pragma_table_xinfo(?1) WHERE hidden <> 1", (table,))
    return [Column(name, declared) for name, declared in rows]


def find(columns: Sequence[Column], name: str, field: str, source: str) -> Column:
    """Return the column *name*; raises `FatalError` that speaks of *field* when *source* has none of that name."""
    for column in columns:
        if column.name == name:
            return column
    names = [column.name for column in columns]
    raise FatalError(
        f"SqliteConfig.{field} names the column {name!r}, which {source} does not have.{did_you_mean(name, names)} "
        f"Its columns: {_listed(names)}."
    )


def _listed(names: Sequence[str]) -> str:
    return (", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")) or "none"
