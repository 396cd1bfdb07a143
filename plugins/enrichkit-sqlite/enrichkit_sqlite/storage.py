"""
SQLite's storage classes against declared types: exactly, or not at all.

A column may hold values of any class, whatever it is declared as, and `=` converts: `12` finds `'12'`
(https://www.sqlite.org/datatype3.html). Here a key must be of the class of its column, and a value of one of its type:

| wanted | stored as | | wanted | stored as |
|---|---|---|---|---|
| bigint and smaller | INTEGER | | date, timestamp, time, interval | TEXT in ISO 8601 |
| double, float | REAL, an INTEGER that is exact | | decimal | INTEGER, TEXT |
| string | TEXT | | array, map, struct, variant | TEXT in JSON |
| binary | BLOB | | boolean | INTEGER 0 or 1 |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from enrichkit.sql import quote

if TYPE_CHECKING:
    from .schema import Column

__all__ = ["Taken", "ddl_of", "readers", "taken_by"]

Reader: TypeAlias = Callable[[Any], str | bytes | None]

_INTEGERS = {"tinyint", "smallint", "int", "bigint"}
_EXACT_IN = {"double": 2**53, "float": 2**24}
_NOT_TEXT = {*_INTEGERS, *_EXACT_IN, "boolean", "binary"}
_BY_NAME = {
    "BOOL": "boolean",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "DATETIME": "timestamp_ntz",
    "TIMESTAMP": "timestamp_ntz",
}
# https://www.sqlite.org/datatype3.html#determination_of_column_affinity, in this order
_AFFINITIES = (
    ("INTEGER", re.compile("INT")),
    ("TEXT", re.compile("CHAR|CLOB|TEXT")),
    ("BLOB", re.compile("BLOB")),
    ("ANY", re.compile("^(ANY)?$")),  # which SQLite counts as BLOB, or as NUMERIC: it holds anything
    ("REAL", re.compile("REAL|FLOA|DOUB")),
)
_HALF_A_PAIR = re.compile("[\ud800-\udfff]")  # which has no UTF-8
_DDL = {"INTEGER": "bigint", "TEXT": "string", "BLOB": "binary", "REAL": "double"}
_KEYS: dict[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "TEXT": (str,),
    "BLOB": (bytes,),
    "REAL": (float, int),
    "NUMERIC": (int, float, str),
    "ANY": (int, float, str, bytes),
}


@dataclass(frozen=True, slots=True)
class Taken:
    """
    A key column.

    Attributes:
        name: As the schema spells it.
        affinity: Which conversions its `=` makes; empty: not known, for a query.
        types: Python types of the keys that it takes.
    """

    name: str
    affinity: str
    types: tuple[type, ...]

    @property
    def allowed(self) -> str:
        """What it takes, for messages."""
        return " or ".join(kind.__name__ for kind in self.types)

    def condition(self, number: int) -> str:
        """Return the SQL that compares it, in the table t, with parameter *number*."""
        name = f"t.{quote(self.name)}"
        if self.affinity not in ("NUMERIC", "ANY"):
            return f"{name} = ?{number}"
        # Or the text '12' would find the number 12.
        return f"{name} = ?{number} AND (typeof({name}) = 'text') = (typeof(?{number}) = 'text')"

    def takes(self, part: Any) -> bool:
        """Whether *part* can be in it, as it is."""
        if type(part) not in self.types:
            return False
        if type(part) is str:
            return part.isascii() or _HALF_A_PAIR.search(part) is None
        if type(part) is not int:
            return True
        # An index makes a REAL of the key, so that 2 ** 53 + 1 would find the row of 2 ** 53.
        return -(2**63) <= part < 2**63 and (self.affinity != "REAL" or int(float(part)) == part)


def taken_by(column: Column) -> Taken:
    """Return what the key column *column* takes."""
    affinity = _affinity(column)
    return Taken(column.name, affinity, _KEYS[affinity])


def ddl_of(column: Column) -> str | None:
    """Return the type of the values of *column*; None when its declaration does not say."""
    named = _BY_NAME.get(column.declared.upper().partition("(")[0].strip())
    return named or _DDL.get(_affinity(column))


def readers(wanted: str) -> Mapping[type, Reader]:
    """
    Return what makes text for the type *wanted* of a value of each class, as SQLite gives it: None when it is not one.

    >>> [read(12) for read in (readers("bigint")[int], readers("string")[int], readers("boolean")[int])]
    ['12', None, None]
    """
    kind = re.split("[(<]", wanted, maxsplit=1)[0]
    whole: Reader = _refuse
    if kind in _INTEGERS or kind in ("decimal", ""):
        whole = str
    elif kind == "boolean":
        whole = {0: "0", 1: "1"}.get
    elif kind in _EXACT_IN:
        most = _EXACT_IN[kind]
        whole = lambda value: str(value) if abs(value) <= most else None  # noqa: E731  # as the others
    return {
        int: whole,
        float: repr if kind in _EXACT_IN or not kind else _refuse,
        str: _refuse if kind in _NOT_TEXT else str,
        bytes: bytes if kind in ("binary", "") else _refuse,
    }


def _refuse(value: Any) -> None:
    """For a class that the type is never stored as."""


def _affinity(column: Column) -> str:
    declared = column.declared.upper()
    return next((name for name, pattern in _AFFINITIES if pattern.search(declared)), "NUMERIC")
