"""
PostgreSQL's types: which Spark type a value gets, how it is selected, and which keys a key column takes.

A key that the column cannot hold must be found before it is sent, or the whole call fails for it. Three things that
the driver does silently are avoided here (asyncpg 0.32): it sends True for int4 as 1, the date 9999-12-31 as
`infinity`, and reads `infinity` as 9999-12-31.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isnan
from typing import TYPE_CHECKING, Any

from enrichkit.connector import Keys
from enrichkit.sql import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Kept", "KeyType", "PgType", "Taken", "key_type", "value_type"]


@dataclass(frozen=True, slots=True)
class PgType:
    """
    A type as the catalog describes it; a domain is the type below it.

    Attributes:
        name: For example `int4`; as the type's own schema calls it.
        builtin: True when it is one of `pg_catalog`.
        kind: `typtype`: `b` base, `e` enum, `c` composite, `r` range, ...
        category: `typcategory`: `S` for strings, ...
        typmod: Length, or precision and scale; -1 for none.
        array: The type of an array of it, as SQL; None when there is none.
        equality: Schema of its own operator `=`; None when it uses another type's.
        element: Name of its elements' type, for an array of a builtin type; `""` for an array of others.
        element_oid: None unless it is an array.
    """

    name: str
    builtin: bool
    kind: str
    category: str
    typmod: int
    array: str | None
    equality: str | None
    element: str | None
    element_oid: int | None = None


# Values -----------------------------------------------------------------------------------------------------------

# Everything that is not here is selected as the text that the server writes for it.
_DDL = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "oid": "bigint",
    "float4": "float",
    "float8": "double",
    "numeric": "decimal",
    "text": "string",
    "varchar": "string",
    "bpchar": "string",
    "json": "string",
    "jsonb": "string",
    "bytea": "binary",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp_ltz",
}

# Outside of these a value has no Python object (year 10000), or the driver makes it another one (infinity). NaN is
# greater than all numbers here.
_LIMITS = {
    "numeric": ("'-1e38'", "'1e38'"),
    "date": ("'0001-01-01'", "'9999-12-31'"),
    "timestamp": ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"),
    "timestamptz": ("'0001-01-01 00:00:00+00'", "'9999-12-31 23:59:59.999999+00'"),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """
    How a value column is read.

    Attributes:
        ddl: Its Spark type.
        select: SQL of the value, NULL where it is refused.
        refused: SQL that is true where Spark cannot hold the value; None when it always can.
        is_text: True when `select` is text or varchar to the server.
    """

    ddl: str
    select: str
    refused: str | None = None
    is_text: bool = False


def value_type(type_: PgType, column: str) -> Kept:
    """Return how to read *column*, a quoted and qualified name, of type *type_*."""
    is_array = type_.element is not None
    name = (type_.element if is_array else type_.name) or ""
    if name not in _DDL or not (type_.builtin or is_array):
        return (
            Kept("array<string>", f"{column}::pg_catalog.text[]")
            if is_array
            else Kept("string", f"{column}::pg_catalog.text", is_text=True)
        )
    ddl = _decimal(type_.typmod) if name == "numeric" else _DDL[name]
    if is_array:
        ddl = f"array<{ddl}>"
    elif name in ("json", "jsonb"):
        return Kept(ddl, f"{column}::pg_catalog.text", is_text=True)
    if name not in _LIMITS:
        return Kept(ddl, column, is_text=not is_array and name in ("text", "varchar"))  # char(n) would lose its spaces
    low, high = (f"{limit}::pg_catalog.{name}" for limit in _LIMITS[name])
    # IS FALSE: a NULL, or an array with one, is unknown and is kept.
    inside = (
        f"({low} <= ALL ({column}) AND {high} >= ALL ({column}))"
        if is_array
        else f"({column} BETWEEN {low} AND {high})"
    )
    return Kept(ddl, f"CASE WHEN {inside} IS NOT FALSE THEN {column} END", f"{inside} IS FALSE")


def _decimal(typmod: int) -> str:
    """Return Spark's type for numeric(p, s), bounded as Spark's own JDBC source does it."""
    if typmod < 0:
        return "decimal(38,18)"
    precision, scale = (
        (typmod - 4) >> 16 & 0xFFFF,
        ((typmod - 4) & 0x7FF ^ 1024) - 1024,
    )  # numeric.c, numeric_typmod_scale
    # Since PostgreSQL 15 the scale may be negative (rounds to hundreds) or greater than the precision.
    precision = max(precision - min(scale, 0), scale)
    return f"decimal({min(precision, 38)},{min(max(scale, 0), 38)})"


# Keys -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyType:
    """
    What a type of key column takes.

    Attributes:
        types: The Python types of its keys.
        allowed: In words, for messages.
        holds: Given a list of keys of these types, True when the column can hold each. Called once for a whole group.
        exact: True when the column's `=` is Python's `==`, so that a key can be found again by what is sent back.
        as_text: True when keys are sent as text and cast by the server.
        joined: True when they are sent as one text, with commas between them, which the driver need not look through.
        same: What the server sends back for a key, when that is another object; None for the key itself, or unknown.
    """

    types: tuple[type, ...]
    allowed: str
    holds: Callable[[Sequence[Any]], bool] = lambda keys: True
    exact: bool = True
    as_text: bool = False
    joined: bool = False
    same: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """
    A key column: its name, its type, and how an array of its keys is written.

    Attributes:
        name: As the catalog spells it.
        pg: Its type, as messages call it.
        key: What it takes.
        array: SQL type of an array of it.
        equals: SQL of its equality operator.
    """

    name: str
    pg: str
    key: KeyType
    array: str
    equals: str = "="

    def parameter(self, number: int) -> str:
        """Return the SQL of parameter *number*, an array of keys."""
        if self.key.joined:
            return f"pg_catalog.string_to_array(${number}::pg_catalog.text, ',')::{self.array}"
        return f"${number}::pg_catalog.text[]::{self.array}" if self.key.as_text else f"${number}::{self.array}"

    def encode(self, keys: Sequence[Any]) -> Any:
        """Return *keys* as the driver takes them."""
        if self.key.joined:
            return _joined(keys)
        keys = keys.objects() if isinstance(keys, Keys) else keys
        # str() of a date or datetime is ISO 8601 with a four-digit year; the text goes around the driver's infinity.
        return list(map(str, keys)) if self.key.as_text else keys


def key_type(type_: PgType, *, exact_collation: bool = True) -> KeyType | None:
    """
    Return what a key column of *type_* takes, or None when nothing can be looked up in it.

    Args:
        type_: Its type.
        exact_collation: False for a column whose collation finds different texts equal.
    """
    if type_.kind == "e":
        return KeyType((str,), "str", _is_text, as_text=True)
    if type_.category == "S" and (not exact_collation or not type_.builtin):  # citext among them
        return KeyType((str,), _TEXT, _is_text, exact=False, as_text=type_.name != "bpchar", same=None)
    return _KEYS.get(type_.name) if type_.builtin else None


def equality(type_: PgType) -> str:
    """Return the SQL of the operator that compares two values of *type_*, wherever its extension lives."""
    # A plain = would not find citext's operator outside of the search path, and silently compare as text.
    return "=" if type_.builtin or type_.equality is None else f"OPERATOR({quote(type_.equality)}.=)"


def _integer(bits: int) -> KeyType:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    allowed = f"int from {low} to {high}"
    return KeyType((int,), allowed, lambda keys: low <= min(keys) and max(keys) <= high, joined=True)


def _joined(keys: Sequence[int]) -> str:
    if isinstance(keys, Keys):
        import pyarrow as pa
        import pyarrow.compute as pc

        (column,) = keys.columns
        if pa.types.is_integer(column.type):
            every = pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column.cast(pa.string()))
            return str(pc.binary_join(every, ",")[0])
    return ",".join(map(str, keys))


def _is_text(keys: Sequence[str]) -> bool:
    joined = "".join(keys)  # one scan in C for the whole group
    if "\0" in joined:
        return False
    if not joined.isascii():
        try:
            joined.encode()
        except UnicodeEncodeError:  # half a surrogate pair
            return False
    return True


_UUID = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")


def _uuid_text(key: str) -> str:
    digits = key.replace("-", "").lower()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_TEXT = "str without NUL and without half a surrogate pair"

_KEYS = {
    "bool": KeyType((bool,), "bool"),
    "int2": _integer(16),
    "int4": _integer(32),
    "int8": _integer(64),
    "oid": KeyType((int,), "int from 0 to 4294967295", lambda keys: min(keys) >= 0 and max(keys) < 2**32),
    "float4": KeyType((float,), "float that 32 bits can hold", lambda keys: array("f", keys).tolist() == list(keys)),
    "float8": KeyType((float,), "float, not NaN", lambda keys: not any(map(isnan, keys))),
    "numeric": KeyType(
        (Decimal, int),
        "Decimal or int, finite",
        lambda keys: all(Decimal(key).is_finite() for key in keys),
        same=lambda key: key,  # 3 is asked and 3.00 is sent back: equal, but the answer is under the very key asked
    ),
    "text": KeyType((str,), _TEXT, _is_text),
    "varchar": KeyType((str,), _TEXT, _is_text),
    # The server cuts a longer text to 63 bytes when it becomes a name, and would find another row.
    "name": KeyType(
        (str,),
        "str of at most 63 bytes without NUL",
        lambda keys: _is_text(keys) and max(len(k.encode()) for k in keys) < 64,
    ),
    # Trailing spaces do not count.
    "bpchar": KeyType((str,), _TEXT, _is_text, exact=False, same=lambda key: key.rstrip(" ")),
    "uuid": KeyType(
        (str,),
        "str of 32 hexadecimal digits",
        lambda keys: all(map(_UUID.fullmatch, keys)),
        exact=False,
        same=_uuid_text,
    ),
    "bytea": KeyType((bytes,), "bytes"),
    "date": KeyType((date,), "date", as_text=True),
    "timestamp": KeyType(
        (datetime,), "datetime without a time zone", lambda keys: all(k.tzinfo is None for k in keys), as_text=True
    ),
    # Not exact: within the hour that clocks repeat, Python finds equal times of two zones unequal (PEP 495).
    "timestamptz": KeyType(
        (datetime,),
        "datetime with a time zone",
        lambda keys: all(k.tzinfo is not None for k in keys),
        exact=False,
        as_text=True,
    ),
}
