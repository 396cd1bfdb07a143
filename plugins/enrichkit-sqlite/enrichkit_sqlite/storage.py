"""
The match of SQLite's storage classes to declared types, without any conversion.

A column may hold values of any storage class, whatever its declared type, and SQLite's `=` converts its operands, so
that `12` finds `'12'` (https://www.sqlite.org/datatype3.html). The connector converts nothing. A key must have the
storage class of its column, and a value must have one of the storage classes of its declared type:

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

from enrichkit.sql import are_utf8, quote

if TYPE_CHECKING:
    from .schema import Column

__all__ = ["KeyColumn", "ddl_of", "key_column", "readers"]

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
# The rules of https://www.sqlite.org/datatype3.html#determination_of_column_affinity. The first rule that matches wins.
_AFFINITIES = (
    ("INTEGER", re.compile("INT")),
    ("TEXT", re.compile("CHAR|CLOB|TEXT")),
    ("BLOB", re.compile("BLOB")),
    # A column without a declared type, or with the type ANY, can hold values of any storage class. SQLite itself gives
    # it the affinity BLOB or NUMERIC.
    ("ANY", re.compile("^(ANY)?$")),
    ("REAL", re.compile("REAL|FLOA|DOUB")),
)
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
class KeyColumn:
    """
    A key column.

    Attributes:
        name: Name as the schema spells it.
        affinity: Affinity, which decides the conversions that `=` makes; empty for a query, where it is unknown.
        types: Python types of the keys that the column takes.
    """

    name: str
    affinity: str
    types: tuple[type, ...]

    @property
    def allowed(self) -> str:
        """The types of the keys, for messages."""
        return " or ".join(kind.__name__ for kind in self.types)

    def condition(self, number: int) -> str:
        """Return the SQL that compares this column of the table t with the parameter of the given *number*."""
        name = f"t.{quote(self.name)}"
        if self.affinity not in ("NUMERIC", "ANY"):
            return f"{name} = ?{number}"
        # Without the comparison of the types, the text '12' would find the number 12.
        return f"{name} = ?{number} AND (typeof({name}) = 'text') = (typeof(?{number}) = 'text')"

    def takes(self, part: Any) -> bool:
        """Return whether the column can hold *part* without a conversion."""
        if type(part) not in self.types:
            return False
        if type(part) is str:
            return part.isascii() or are_utf8((part,))
        if type(part) is not int:
            return True
        # An index on a REAL column converts the key to REAL, so that 2 ** 53 + 1 would find the row of 2 ** 53. So an
        # int that REAL cannot hold exactly is refused.
        return -(2**63) <= part < 2**63 and (self.affinity != "REAL" or int(float(part)) == part)

    def lists_all(self, kind: type) -> bool:
        """Return whether each stored value that SQLite finds equal to a key of type *kind* is equal in Python, too."""
        # The result is False for an int and a REAL column: an int that REAL cannot hold exactly must be rejected with
        # an error, and not be taken for a missing key.
        return kind in self.types and not (kind is int and self.affinity == "REAL")


def key_column(column: Column) -> KeyColumn:
    """Return *column* as a key column, with the types of the keys that it takes."""
    affinity = _affinity(column)
    return KeyColumn(column.name, affinity, _KEYS[affinity])


def ddl_of(column: Column) -> str | None:
    """Return the type of the values of *column*, or None if the declared type of *column* does not determine it."""
    by_name = _BY_NAME.get(column.declared.upper().partition("(")[0].strip())
    return by_name or _DDL.get(_affinity(column))


def readers(wanted: str) -> Mapping[type, Reader]:
    """
    Return a mapping from the Python type of each storage class to the function that turns a value of that class into a
    text of the Spark type *wanted*.

    The function returns None for a value that is not of the type *wanted*.

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
        whole = lambda value: str(value) if abs(value) <= most else None  # noqa: E731
    return {
        int: whole,
        float: repr if kind in _EXACT_IN or not kind else _refuse,
        str: _refuse if kind in _NOT_TEXT else str,
        bytes: bytes if kind in ("binary", "") else _refuse,
    }


def _refuse(value: Any) -> None:
    """Return None; used for a storage class in which no value of the wanted type is stored."""


def _affinity(column: Column) -> str:
    declared = column.declared.upper()
    return next((name for name, pattern in _AFFINITIES if pattern.search(declared)), "NUMERIC")
