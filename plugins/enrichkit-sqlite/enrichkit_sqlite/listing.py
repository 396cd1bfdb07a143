"""
The listing of a table's keys in key order, page by page.

Each page begins after the last key of the previous page. So SQLite finds the first key of a page by one search in the
index, without a walk over the earlier keys, and no transaction is open between two pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from itertools import chain
from typing import Any

from enrichkit.errors import FatalError
from enrichkit.sql import quote

__all__ = ["Listing", "is_binary", "listed"]


class Listing:
    """
    The statements that list the keys.

    Args:
        table: Name of the table or view.
        columns: Names of the key columns.
        size: Most keys of a page.
        serves: SQL that begins with `AND` and is true for rows that have not expired; empty: rows do not expire.
    """

    def __init__(self, table: str, columns: Sequence[str], size: int, serves: str = "") -> None:
        self._table = table
        names = [f"t.{quote(name)}" for name in columns]
        together = ", ".join(names)
        # A key column of SQLite may hold NULL. Such rows are not listed, because no `=` finds a NULL.
        known = " AND ".join(f"{name} IS NOT NULL" for name in names) + serves
        behind = f"({together}) > ({', '.join('?' * len(names))})" if len(names) > 1 else f"{together} > ?"
        page = f"ORDER BY {together} LIMIT {size}"
        # S608 is ignored, because all names are from the schema and quoted.
        self._first = f"SELECT DISTINCT {together} FROM {quote(table)} AS t WHERE {known} {page}"  # noqa: S608
        self._next = f"SELECT DISTINCT {together} FROM {quote(table)} AS t WHERE {known} AND {behind} {page}"  # noqa: S608

    def after(self, connection: sqlite3.Connection, last: Sequence[Any] | None) -> list[tuple[Any, ...]]:
        """
        Return the page of keys after the key *last*, each key as a tuple of its parts; *last* is None for the first
        page.
        """
        try:
            return connection.execute(self._first if last is None else self._next, last or ()).fetchall()
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) is not None:
                raise
            # An error without a code of SQLite says that Python could not decode a text. Its message quotes the key, so
            # the message below replaces it.
            raise FatalError(
                f"A key of the table {self._table!r} is not UTF-8, so that the keys cannot be listed. Correct the row."
            ) from None


def listed(page: Sequence[tuple[Any, ...]], kinds: Sequence[type]) -> Sequence[Any]:
    """
    Return the keys of *page*. *kinds* has the wanted type of each part of a key; a number is converted to this type if
    the type has an equal number.

    >>> listed([(1,), (2.0,), (2.5,)], [int]), listed([("a", 1)], [str, float])
    ([1, 2, 2.5], [('a', 1.0)])
    """
    if len(kinds) == 1 and set(map(type, chain.from_iterable(page))) == {kinds[0]}:
        return [part for (part,) in page]
    keys = [tuple(map(_number_of, row, kinds)) for row in page]
    return [key[0] for key in keys] if len(kinds) == 1 else keys


def _number_of(part: Any, kind: type) -> Any:
    """Return *part* as an equal number of the type *kind*, or unchanged if there is no such number."""
    if kind is int and type(part) is float and part.is_integer():
        return int(part)
    return float(part) if kind is float and type(part) is int and int(float(part)) == part else part


def is_binary(connection: sqlite3.Connection, table: str, column: str) -> bool:
    """Return whether the collation of *column* treats only identical texts as equal, unlike NOCASE and RTRIM."""
    # The first SELECT, of *column*, decides with which collation a UNION removes duplicates. So the texts 'a', 'A' and
    # 'a ' remain three rows only if this collation tells them apart. This works for a column of a view, too.
    (distinct,) = connection.execute(
        f"SELECT count(*) FROM (SELECT t.{quote(column)} FROM {quote(table)} AS t WHERE 0 "  # noqa: S608 - quoted names
        "UNION SELECT 'a' UNION SELECT 'A' UNION SELECT 'a ')"
    ).fetchone()
    return bool(distinct == 3)
