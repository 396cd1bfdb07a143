"""
How a statement sends a column of all its rows as one: as an array, or in the form in which Arrow holds it.

Of an array the driver makes an object for each element, and Arrow a column of the objects. Integers in binary, one
after the other, are a column without any, and so are texts one after the other with the length of each: see
docs/decisions/0039-columns-in-bytes-from-postgres.md.
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

__all__ = ["INTEGERS", "Gathered", "as_array", "as_integers", "as_texts"]

INTEGERS = {"int2": "h", "int4": "i", "int8": "q"}  # and their codes in `array`, of as many bytes on all machines


@dataclass(frozen=True, slots=True)
class Gathered:
    """
    A column of all rows as one.

    Attributes:
        sql: SQL of it in one row.
        aggregates: SQL of the aggregates that it needs, with ``{}`` for its name. The first is NULL if there is no row.
        read: Takes their values, of one row or more, and returns the column, a list or an Arrow array.
    """

    sql: str
    aggregates: tuple[str, ...]
    read: Callable[..., Any]


def as_array(sql: str) -> Gathered:
    """Gather *sql*, of any type but an array, whose elements must have one length."""
    return Gathered(sql, ("pg_catalog.array_agg({})",), lambda values: values)


def as_integers(sql: str, pg: str) -> Gathered:
    """Gather *sql*, which is never NULL, of a type that *pg*, one of `INTEGERS`, has room for."""
    # The cast: a column may get a wider type while it is asked.
    return Gathered(f"{sql}::pg_catalog.{pg}", (_in_binary("{}", pg),), partial(_integers, INTEGERS[pg]))


def as_texts(sql: str) -> Gathered:
    """Gather *sql*, of type text or varchar, in UTF-8, which is the driver's encoding."""
    length, texts = "coalesce(pg_catalog.octet_length({}), -1)", "pg_catalog.string_agg({}, ''::pg_catalog.bytea)"
    return Gathered(f"pg_catalog.textsend({sql}::pg_catalog.text)", (_in_binary(length, "int4"), texts), _texts)


def _in_binary(sql: str, pg: str) -> str:
    return f"pg_catalog.string_agg(pg_catalog.{pg}send({sql}), ''::pg_catalog.bytea)"


def _integers(code: str, data: bytes) -> Any:
    import pyarrow as pa  # here, as in all of this plugin: a driver program that only plans has no use for it

    numbers = array(code, data)
    if sys.byteorder == "little":
        numbers.byteswap()
    types = {"h": pa.int16(), "i": pa.int32(), "q": pa.int64()}
    return pa.Array.from_buffers(types[code], len(numbers), [None, pa.py_buffer(numbers)])


def _texts(lengths: bytes, texts: bytes | None) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    data, sizes, present = texts or b"", _integers("i", lengths), None
    if pc.min(sizes).as_py() < 0:
        present = pc.greater_equal(sizes, 0).buffers()[1]
        sizes = pc.max_element_wise(sizes, pa.scalar(0, pa.int32()))
    ends = pc.cumulative_sum_checked(sizes)
    if ends[-1].as_py() != len(data):  # Arrow would read beyond the end
        raise TransientError("PostgreSQL sent texts of other lengths than it said; the connection was closed.")
    bounds = pa.concat_arrays([pa.array([0], pa.int32()), ends]).buffers()[1]
    return pa.Array.from_buffers(pa.string(), len(sizes), [present, bounds, pa.py_buffer(data)])
