"""The DDL of one value: its Spark type as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .pgtypes import ValueColumn

__all__ = ["ddl_of"]

# The words that Spark 4.3 does not accept as a field name while spark.sql.ansi.enforceReservedKeywords is on.
_RESERVED = frozenset(
    """
    all and any as authorization both call case cast check collate collation collations column constraint create cross
    current_date current_path current_schema current_time current_timestamp current_user distinct else end escape except
    execute false fetch filter for foreign from full grant group having in inner intersect into is join lateral leading
    left localtime natural not null offset on only or order outer overlaps primary recursive references right select
    session_user some sql table then time to trailing union unique unknown user using when where with within
    """.split()  # noqa: SIM905 - a list would be a page of quotes
)


def ddl_of(columns: Mapping[str, ValueColumn]) -> str:
    """Return the DDL of one value: the type of the only value column, or the fields of a struct of several columns."""
    if len(columns) == 1:
        return next(iter(columns.values())).ddl
    return ", ".join(f"{_field(name)} {column.ddl}" for name, column in columns.items())


def _field(name: str) -> str:
    plain = name.isascii() and name.isidentifier() and name.lower() not in _RESERVED
    return name if plain else "`" + name.replace("`", "``") + "`"
