"""
The listing of a table's keys in key order, page by page.

    SELECT t.`id` FROM (
        SELECT DISTINCT t.`id` FROM JSON_TABLE('[[7]]', '$[*]' COLUMNS (k0 BIGINT PATH '$[0]')) AS k
        STRAIGHT_JOIN `shop`.`users` AS t WHERE t.`id` IS NOT NULL AND t.`id` > k.k0 ORDER BY t.`id` LIMIT 500
    ) AS t ORDER BY t.`id`

Each page is read by a statement of its own, which begins after the last key of the previous page (keyset pagination).
The last key is sent as a JSON document, as in the statement that looks keys up, so that the server compares each part
of the key as the type of its column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from enrichkit.errors import FatalError

from .columns import Column, KeyType, quote, value_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enrichkit.sql import Source

__all__ = ["Listing"]

_NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")


class Listing:
    """
    The statements that list the keys of a table.

    Args:
        source: The table, for messages.
        table: SQL of the table's name.
        keys: The key columns.
        serves: SQL of a further condition, which begins with `AND` and is true for rows that have not expired; empty if
            rows never expire.
    """

    def __init__(self, source: Source, table: str, keys: Sequence[tuple[Column, KeyType]], serves: str = "") -> None:
        self._keys = tuple(keys)
        values = [value_type(column) for column, _ in keys]
        self._decoders = [None if value is None else value.decode for value in values]
        # Keys of types that are not in *listed* cannot be listed, because a stored date may not exist in the calendar,
        # an enum is not sorted by its texts, and a double is not exact.
        listed = (*_NUMBERS, *_TEXTS, *_BYTES, "uuid")
        other = next((column for column, _ in keys if column.type not in listed), None)
        unmapped = next((column for column, type_ in keys if type_.unmapped is not None), None)
        self._refusal = (
            f"The key column {other.name!r} of {source} has the type {other.full}, whose keys cannot be listed; "
            "integers, texts, binaries and uuid can. Leave preload out."
            if other is not None
            else f"The key column {unmapped.name!r} of {source} has the character set {unmapped.charset}, which does "
            "not map all bytes to Unicode, so its keys cannot be listed. Leave preload out, or name the column in "
            "MariadbConfig.as_bytes, if its keys are binary in Spark, too."
            if unmapped is not None
            else ""
        )
        names = ", ".join(column.sql for column, _ in keys)
        inner = ", ".join(f"{column.sql} AS {quote(column.name)}" for column, _ in keys)
        select = ", ".join(value.select for value in values if value is not None)
        known = " AND ".join(f"{column.sql} IS NOT NULL" for column, _ in keys) + serves
        columns = ", ".join(f"k{i} {type_.column} PATH '$[{i}]'" for i, (_, type_) in enumerate(keys))
        last = [type_.equals.format(f"k.k{i}") for i, (_, type_) in enumerate(keys)]
        behind = " OR ".join(
            "("
            + " AND ".join([*(f"{keys[j][0].sql} = {last[j]}" for j in range(i)), f"{keys[i][0].sql} > {last[i]}"])
            + ")"
            for i in range(len(keys))
        )

        def page(start: str, condition: str) -> str:
            return (
                f"SET STATEMENT max_statement_time = %s FOR SELECT {select} FROM (SELECT DISTINCT {inner} "  # noqa: S608 - quoted names
                f"FROM {start}{table} AS t WHERE {known}{condition} ORDER BY {names} LIMIT %s) AS t ORDER BY {names}"
            )

        self._first = page("", "")
        self._next = page(f"JSON_TABLE(%s, '$[*]' COLUMNS ({columns})) AS k STRAIGHT_JOIN ", f" AND ({behind})")

    async def after(self, session: Any, last: Sequence[Any] | None, size: int, timeout: float) -> list[tuple[Any, ...]]:
        """
        Return the parts of at most *size* keys: those after the key with the parts *last*, or the first keys of the
        table if *last* is None.
        """
        if self._refusal:
            raise FatalError(self._refusal)
        if last is None:
            rows = await session.fetch(self._first, timeout, size)
        else:
            encoded = [
                part if type_.encode is None else type_.encode(part)
                for (_, type_), part in zip(self._keys, last, strict=True)
            ]
            rows = await session.fetch(self._next, timeout, msgspec.json.encode([encoded]).decode(), size)
        return [
            tuple(part if decode is None else decode(part) for decode, part in zip(self._decoders, row, strict=True))
            for row in rows
        ]

    def lists_all(self, kinds: Sequence[type]) -> bool:
        """Return whether a key that is not listed certainly has no row. The parts of the key have the types *kinds*."""
        return all(
            type_.types[0] is kind and _is_exact(column)
            for (column, type_), kind in zip(self._keys, kinds, strict=True)
        )


def _is_exact(column: Column) -> bool:
    """
    Return whether the server treats keys of *column* as equal only if they are identical. Of several keys that the
    server treats as equal, it lists only one, so the others would be missing from the list.
    """
    # Of the collations, only those that compare bytes without padding are exact: a collation that pads treats 'a' and
    # 'a ' as equal, even if it compares bytes.
    return column.type in (*_NUMBERS, *_BYTES) or (column.collation or "").endswith("_nopad_bin")
