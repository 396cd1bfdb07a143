"""
Aggregates that send the values of a column in all rows as a single value: an array, or bytes from which Arrow makes a
column.

If a column arrives as an array, asyncpg makes a Python object for each element, and Arrow then makes a column from
these objects. Integers need no such objects if they arrive as one string of bytes. Neither do texts, if they arrive as
one string of bytes together with the length of each text; see docs/decisions/0039-columns-in-bytes-from-postgres.md.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from enrichkit.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["INTEGERS", "Aggregate", "as_array", "as_integers", "as_texts"]

INTEGERS = {"int2": "h", "int4": "i", "int8": "q"}  # type codes of the module `array` for integers of the same size


@dataclass(frozen=True, slots=True)
class Aggregate:
    """
    The SQL with which the statement returns all values of one column as a single value, and the function that reads it.

    Attributes:
        sql: SQL of the column's value in a single row.
        functions: SQL of the aggregate functions, with ``{}`` for the name of the column. The first function gives NULL
            if there are no rows; by this NULL, the statement finds out that no key has a row.
        read: Function that takes the results of *functions* and returns the column as a list or an Arrow array.
    """

    sql: str
    functions: tuple[str, ...]
    read: Callable[..., Any]


def as_array(sql: str) -> Aggregate:
    """
    Return the aggregate that sends the column *sql* as an array. The values of *sql* must not be arrays themselves,
    because array_agg() takes only arrays of equal length.
    """
    return Aggregate(sql, ("pg_catalog.array_agg({})",), lambda values: values)


def as_integers(sql: str, type_name: str) -> Aggregate:
    """
    Return the aggregate that sends the integers of the column *sql* as one string of bytes. The column must hold no
    NULL; *type_name* is a key of `INTEGERS`.
    """
    # Without the cast, the statement would fail if somebody gave the column a wider type while the statement is in use.
    return Aggregate(
        f"{sql}::pg_catalog.{type_name}", (_in_binary("{}", type_name),), partial(_read_integers, INTEGERS[type_name])
    )


def as_texts(sql: str) -> Aggregate:
    """
    Return the aggregate that sends the texts of the column *sql*, of the type text or varchar, as one string of UTF-8
    bytes, and the length of each text.
    """
    length, texts = "coalesce(pg_catalog.octet_length({}), -1)", "pg_catalog.string_agg({}, ''::pg_catalog.bytea)"
    return Aggregate(f"pg_catalog.textsend({sql}::pg_catalog.text)", (_in_binary(length, "int4"), texts), _read_texts)


def _in_binary(sql: str, type_name: str) -> str:
    return f"pg_catalog.string_agg(pg_catalog.{type_name}send({sql}), ''::pg_catalog.bytea)"


def _read_integers(code: str, data: bytes) -> Any:
    import pyarrow as pa  # imported here, because a driver program that only plans the job does not need pyarrow

    numbers = array(code, data)
    if sys.byteorder == "little":
        numbers.byteswap()
    types = {"h": pa.int16(), "i": pa.int32(), "q": pa.int64()}
    return pa.Array.from_buffers(types[code], len(numbers), [None, pa.py_buffer(numbers)])


def _read_texts(lengths: bytes, texts: bytes | None) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    data, sizes, present = texts or b"", _read_integers("i", lengths), None
    if pc.min(sizes).as_py() < 0:
        present = pc.greater_equal(sizes, 0).buffers()[1]
        sizes = pc.max_element_wise(sizes, pa.scalar(0, pa.int32()))
    ends = pc.cumulative_sum_checked(sizes)
    if ends[-1].as_py() != len(data):  # without this check, Arrow could read beyond the end of the data
        raise TransientError("PostgreSQL sent texts of other lengths than it said; the connection was closed.")
    bounds = pa.concat_arrays([pa.array([0], pa.int32()), ends]).buffers()[1]
    return pa.Array.from_buffers(pa.string(), len(sizes), [present, bounds, pa.py_buffer(data)])
