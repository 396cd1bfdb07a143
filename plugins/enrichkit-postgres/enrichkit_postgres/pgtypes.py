"""
PostgreSQL's types: how a value column is read (its Spark type and its SQL), and which keys a key column takes.

A key that its column cannot hold must be detected before it is sent; otherwise the whole call would fail. This module
avoids three silent conversions of asyncpg (0.32): it sends True as 1 where an int4 is expected, sends the date
9999-12-31 as `infinity`, and reads `infinity` as 9999-12-31.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isnan
from typing import TYPE_CHECKING, Any

from enrichkit.plugin import Keys
from enrichkit.sql import are_utf8, are_uuids, quote, uuid_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LIMITS", "KeyColumn", "KeyType", "PgType", "ValueColumn", "equality", "key_type", "value_column"]


@dataclass(frozen=True, slots=True)
class PgType:
    """
    A type as the catalog describes it. For a domain, the attributes are those of its base type.

    Attributes:
        name: Name of the type inside its schema, for example `int4`.
        builtin: Whether the type is in the schema `pg_catalog`.
        kind: The `typtype` of the catalog: `b` base, `e` enum, `c` composite, `r` range, ...
        category: The `typcategory` of the catalog: `S` for strings, ...
        typmod: The type modifier of the catalog, which encodes a length, or a precision and scale; -1 for none.
        array: SQL of the array type whose elements have this type; None when there is no such array type.
        equality: Schema of the type's own operator `=`; None when the type uses the operator of another type.
        element: For an array whose elements have a builtin type, the name of that type. `""` for an array whose
            elements have any other type; None for a type that is no array.
        element_oid: Oid of the elements' type; None for a type that is no array.
        base_array: For an array of a domain over a builtin type, the SQL of the array type of that builtin type; None
            otherwise.
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
    base_array: str | None = None


# Values -----------------------------------------------------------------------------------------------------------

# The Spark type for each PostgreSQL type that this module supports. The server casts a value of any other type to text.
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

# A value outside of these limits cannot be represented in Python (year 10000) or as a decimal in Spark (more than 38
# digits), or asyncpg reads it as another value (infinity). PostgreSQL treats NaN as greater than all numbers, so NaN is
# outside of the limits, too.
LIMITS = {
    "numeric": ("'-1e38'", "'1e38'"),
    "date": ("'0001-01-01'", "'9999-12-31'"),
    "timestamp": ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"),
    "timestamptz": ("'0001-01-01 00:00:00+00'", "'9999-12-31 23:59:59.999999+00'"),
}


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """
    The Spark type of a value column, and the SQL that selects the column.

    Attributes:
        ddl: Spark type.
        select: SQL of the value; the SQL gives NULL for a value for which the SQL *refused* is true.
        refused: SQL that is true for a value that Spark cannot hold; None when Spark can hold all values.
        is_text: Whether the SQL *select* has the type text or varchar.
    """

    ddl: str
    select: str
    refused: str | None = None
    is_text: bool = False


def value_column(type_: PgType, column: str) -> ValueColumn:
    """Return the value column for *column*, a quoted and qualified name, of type *type_*."""
    is_array = type_.element is not None
    name = (type_.element if is_array else type_.name) or ""
    if name not in _DDL or not (type_.builtin or is_array):
        return (
            ValueColumn("array<string>", f"{column}::pg_catalog.text[]")
            if is_array
            else ValueColumn("string", f"{column}::pg_catalog.text", is_text=True)
        )
    ddl = _decimal(type_.typmod) if name == "numeric" else _DDL[name]
    if type_.base_array is not None:  # asyncpg cannot read an array of a domain, so the array is cast
        column = f"{column}::{type_.base_array}"
    if is_array:
        ddl = f"array<{ddl}>"
    elif name in ("json", "jsonb"):
        return ValueColumn(ddl, f"{column}::pg_catalog.text", is_text=True)
    if name not in LIMITS:
        return ValueColumn(
            ddl, column, is_text=not is_array and name in ("text", "varchar")
        )  # is_text is False for char(n), because a cast to text would remove trailing spaces
    low, high = (f"{limit}::pg_catalog.{name}" for limit in LIMITS[name])
    # A value is refused only if the comparison IS FALSE. The comparison gives NULL for a NULL, and for an array that
    # holds a NULL besides elements within the limits; such values must be returned.
    inside = (
        f"({low} <= ALL ({column}) AND {high} >= ALL ({column}))"
        if is_array
        else f"({column} BETWEEN {low} AND {high})"
    )
    return ValueColumn(ddl, f"CASE WHEN {inside} IS NOT FALSE THEN {column} END", f"{inside} IS FALSE")


def _decimal(typmod: int) -> str:
    """
    Return Spark's type for numeric(p, s) with the type modifier *typmod*. Precision and scale have the same upper
    limits as in Spark's own JDBC source.
    """
    if typmod < 0:
        return "decimal(38,18)"
    precision, scale = (
        (typmod - 4) >> 16 & 0xFFFF,
        ((typmod - 4) & 0x7FF ^ 1024) - 1024,
    )  # decoded from *typmod* as in numeric_typmod_scale() in PostgreSQL's numeric.c
    # Since PostgreSQL 15 the scale may be negative (-2 rounds to hundreds), or greater than the precision.
    precision = max(precision - min(scale, 0), scale)
    return f"decimal({min(precision, 38)},{min(max(scale, 0), 38)})"


# Keys -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyType:
    """
    The keys that a key column of one PostgreSQL type can hold, and how they are sent.

    Attributes:
        types: Python types of the keys.
        allowed: The allowed keys in words, for messages.
        holds: Function that takes a list of keys of the *types*, and returns whether the column can hold all of them.
            The statement calls it once with all keys of a call, and again with each single key only if the first result
            is False.
        exact: Whether the column's `=` gives the same result as Python's `==`, so that a key that the server returns
            equals the requested key in Python.
        as_text: Whether keys are sent as text and cast by the server.
        enum: Whether the keys are labels of an enum.
        joined: Whether keys are sent as one text with commas between them, so that asyncpg need not check each key.
        returned_as: Function that takes a key and returns the form in which the server sends this key back; None if the
            server sends the key back unchanged, or if the form cannot be predicted.
    """

    types: tuple[type, ...]
    allowed: str
    holds: Callable[[Sequence[Any]], bool] = lambda keys: True
    exact: bool = True
    as_text: bool = False
    enum: bool = False
    joined: bool = False
    returned_as: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """
    A key column.

    Attributes:
        name: Name as the catalog spells it.
        type_name: Name of the type, for messages.
        type: The keys that the column takes.
        array: SQL of the array type to which the parameter with the keys is cast.
        equals: SQL of the operator that compares the column with a key.
    """

    name: str
    type_name: str
    type: KeyType
    array: str
    equals: str = "="

    def parameter(self, number: int) -> str:
        """Return the SQL of parameter *number*, an array of keys."""
        if self.type.joined:
            return f"pg_catalog.string_to_array(${number}::pg_catalog.text, ',')::{self.array}"
        if self.type.enum:
            # The cast of an unknown label would make the whole statement fail. So an unknown label is replaced by NULL,
            # which matches no row.
            labels = f"pg_catalog.enum_range(NULL::{self.array.removesuffix('[]')})::pg_catalog.text[]"
            return (
                f"ARRAY(SELECT CASE WHEN u.label = ANY ({labels}) THEN u.label END "  # noqa: S608 - quoted names
                f"FROM pg_catalog.unnest(${number}::pg_catalog.text[]) WITH ORDINALITY AS u (label, n) "
                f"ORDER BY u.n)::{self.array}"
            )
        return f"${number}::pg_catalog.text[]::{self.array}" if self.type.as_text else f"${number}::{self.array}"

    def encode(self, keys: Sequence[Any]) -> Any:
        """Return *keys* as an argument for asyncpg."""
        if self.type.joined:
            return _joined(keys)
        keys = keys.objects() if isinstance(keys, Keys) else keys
        # asyncpg would send date.min and date.max as infinite dates. So dates are sent as text, and the server casts
        # the text. str() of a date or datetime is ISO 8601 with a four-digit year.
        return list(map(str, keys)) if self.type.as_text else keys


def key_type(type_: PgType, *, exact_collation: bool = True) -> KeyType | None:
    """
    Return the `KeyType` for a key column of *type_*, or None if a column of that type cannot be a key column.

    Args:
        type_: Type of the column.
        exact_collation: False for a column whose collation treats some different texts as equal.
    """
    if type_.kind == "e":
        return KeyType((str,), "str", _is_text, as_text=True, enum=True)
    if type_.category == "S" and (not exact_collation or not type_.builtin):  # for example citext
        return KeyType((str,), _TEXT, _is_text, exact=False, as_text=type_.name != "bpchar")
    return _KEYS.get(type_.name) if type_.builtin else None


def equality(type_: PgType) -> str:
    """Return the SQL of the equality operator of *type_*, whatever schema the operator is in."""
    # A type of an extension, such as citext, may have its operators in a schema outside of the search path. A plain =
    # would then silently compare the values as text, so the SQL names the schema of the operator.
    return "=" if type_.builtin or type_.equality is None else f"OPERATOR({quote(type_.equality)}.=)"


def _integer(bits: int) -> KeyType:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    allowed = f"int from {low} to {high}"
    return KeyType((int,), allowed, lambda keys: low <= min(keys) and max(keys) <= high, joined=True)


def _joined(keys: Sequence[int]) -> str:
    """Return *keys* as one text with commas between them."""
    if isinstance(keys, Keys):
        import pyarrow as pa
        import pyarrow.compute as pc

        (column,) = keys.columns
        if pa.types.is_integer(column.type):
            one_list = pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column.cast(pa.string()))
            return str(pc.binary_join(one_list, ",")[0])
    return ",".join(map(str, keys))


def _is_text(keys: Sequence[str]) -> bool:
    joined = ("".join(keys),)  # the keys are joined, so that one scan in C checks all of them
    return "\0" not in joined[0] and are_utf8(joined)


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
        returned_as=lambda key: key,  # the server may return 3.00 for the key 3, but the answer needs the key as given
    ),
    "text": KeyType((str,), _TEXT, _is_text),
    "varchar": KeyType((str,), _TEXT, _is_text),
    # A cast to the type `name` cuts a text to 63 bytes. A longer key could match the row of another key, so it is
    # rejected.
    "name": KeyType(
        (str,),
        "str of at most 63 bytes without NUL",
        lambda keys: _is_text(keys) and max(len(k.encode()) for k in keys) < 64,
    ),
    # A comparison of char(n) ignores trailing spaces, so several different keys can find the same row.
    "bpchar": KeyType((str,), _TEXT, _is_text, exact=False, returned_as=lambda key: key.rstrip(" ")),
    "uuid": KeyType(
        (str,),
        "str of 32 hexadecimal digits",
        are_uuids,
        exact=False,
        returned_as=uuid_text,
    ),
    "bytea": KeyType((bytes,), "bytes"),
    "date": KeyType((date,), "date", as_text=True),
    "timestamp": KeyType(
        (datetime,), "datetime without a time zone", lambda keys: all(k.tzinfo is None for k in keys), as_text=True
    ),
    # A timestamptz is not exact, because in the hour that clocks repeat in autumn, Python treats the same instant in
    # two time zones as unequal (PEP 495).
    "timestamptz": KeyType(
        (datetime,),
        "datetime with a time zone",
        lambda keys: all(k.tzinfo is not None for k in keys),
        exact=False,
        as_text=True,
    ),
}
