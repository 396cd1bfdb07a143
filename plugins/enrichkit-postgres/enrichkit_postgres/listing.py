"""
The keys of a table in their order, page by page.

Each page is read by a statement of its own, which begins after the last key of the previous page (keyset pagination).
So no cursor and no transaction stays open between two pages. If an index begins with the key columns, the server reads
a page without a sort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.sql import quote

from .pgtypes import LIMITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .pgtypes import KeyColumn

__all__ = ["Listing"]


class Listing:
    """
    The statements that list the keys of a table.

    Args:
        table: SQL of the table as it stands after FROM, with the alias `t`.
        columns: The key columns.
        serves: SQL of a further condition, which begins with `AND` and is true for rows that have not expired; empty if
            rows never expire.
    """

    def __init__(self, table: str, columns: Sequence[KeyColumn], serves: str = "") -> None:
        self._columns = tuple(columns)
        ordered = [_ordered(f"t.{quote(column.name)}", column) for column in columns]
        parameters = [_last(i, column) for i, column in enumerate(columns, 1)]
        inner = ", ".join(f"{each} AS k{i}" for i, each in enumerate(ordered, 1))
        numbers = ", ".join(str(i) for i in range(1, len(columns) + 1))
        outer = [_selected(f"p.k{i}", column) for i, column in enumerate(columns, 1)]
        outer += [f"p.k{i}::pg_catalog.text" for i in range(1, len(columns) + 1)]
        known = " AND ".join(f"{each} IS NOT NULL" for each in ordered) + serves
        behind = f" AND ({', '.join(ordered)}) > ({', '.join(parameters)})"

        def page(condition: str, size: int) -> str:
            return (
                f"SELECT {', '.join(outer)} FROM (SELECT DISTINCT {inner} FROM {table} "  # noqa: S608 - quoted names
                f"WHERE {known}{condition} ORDER BY {numbers} LIMIT ${size}::pg_catalog.int8) AS p "
                f"ORDER BY {', '.join(f'p.k{i}' for i in range(1, len(columns) + 1))}"
            )

        self._first, self._next = page("", 1), page(behind, len(columns) + 1)

    async def after(
        self, connection: Any, last: Sequence[str] | None, size: int, timeout: float
    ) -> tuple[list[Any], Sequence[str] | None]:
        """
        Return a page of at most *size* keys that follow the key *last*, and the parts of the last key of the page as
        texts. If the page is empty, None takes the place of these parts.

        Args:
            connection: Connection to the server.
            last: The parts of a key as texts, as the previous call returned them; None: begin with the first key.
            size: Most keys to return.
            timeout: Most seconds that the statement may take.
        """
        arguments = (size,) if last is None else (*last, size)
        rows = await connection.fetch(self._first if last is None else self._next, *arguments, timeout=timeout)
        width = len(self._columns)
        keys = [row[0] if width == 1 else tuple(row)[:width] for row in rows]
        return keys, tuple(rows[-1])[width:] if rows else None

    def lists_all(self, kinds: Sequence[type]) -> bool:
        """Return whether a key that is not listed certainly has no row. The parts of the key have the types *kinds*."""
        # The result is False for float4, because 32 bits cannot hold most of Python's 64-bit floats. No row has such a
        # float as its key, but the answer to it must be a rejection and not a miss.
        return all(
            column.type.exact and column.type_name != "float4" and column.type.types[0] is kind
            for column, kind in zip(self._columns, kinds, strict=True)
        )


def _ordered(name: str, column: KeyColumn) -> str:
    """Return the SQL by which the column *name* is sorted and compared, so that `>` and the sort use the same order."""
    # A type of an extension, such as citext, may have its operators in a schema outside of the search path. Then a
    # plain > would silently compare the values as text. So these values are explicitly compared and sorted as text.
    return name if column.equals == "=" else f'{name}::pg_catalog.text COLLATE "C"'


def _last(number: int, column: KeyColumn) -> str:
    """Return the SQL of parameter *number*: one part of the last key of the previous page, sent as text."""
    # The part of the key is sent as text, because text holds each value exactly; asyncpg would send date.max as
    # infinity.
    text = f"${number}::pg_catalog.text"
    return f"{text}::{column.array.removesuffix('[]')}" if column.equals == "=" else f'{text} COLLATE "C"'


def _selected(name: str, column: KeyColumn) -> str:
    """
    Return the SQL that selects one part of a key, the column *name*. For a value that Python cannot represent (year
    10000, infinity), the SQL gives NULL. The engine ignores this NULL, because no row of Spark can have such a key.
    """
    if column.type.types == (str,):
        return f"{name}::pg_catalog.text"
    if column.type_name not in LIMITS or column.type_name == "numeric":
        return name
    low, high = (f"{limit}::pg_catalog.{column.type_name}" for limit in LIMITS[column.type_name])
    return f"CASE WHEN {name} BETWEEN {low} AND {high} THEN {name} END"
