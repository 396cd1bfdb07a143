"""
The column that Spark gets, made from the outcomes of the distinct keys and from one code per row, the index of its key.

A value gets to its rows by the code of its key, never by the position in which its answer arrived. Arrow accepts each
value here, because `enrichkit.values.decode` returns only values that Arrow accepts.

Measured on one core with batches of 10,000 rows: strings take 35 ns per distinct key and 9 ns per row; the 9 ns per
row are saved if no key repeats and the rows are in the order of the keys. A struct of three fields takes 210 ns per
distinct key. The details add 150 ns per key and 40 ns per row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import TaskFailedError
from ..outcome import STATUSES, Outcomes

__all__ = ["assemble", "assemble_details", "columns_of", "values_of"]

BYTES = 32 * 2**20
"""Most bytes of one column, unless it has only one row."""

_NULL_KEY = STATUSES.index("null_key")


def columns_of(
    outcomes: Outcomes, codes: pa.Int32Array, data_type: pa.DataType, units: Sequence[str] = ()
) -> Iterator[Any]:
    """
    Yield the column for the rows of a slice, in one or more pieces: values, or structs if *outcomes* have details.

    A piece has at most `BYTES` bytes. Several pieces are needed when many rows share a wide value: a value of 250 KB
    on 10,000 rows is 2.5 GB.

    Args:
        outcomes: The final outcomes of the distinct keys of the slice.
        codes: For each row the index of its key; null where the key is null.
        data_type: The type of a value.
        units: Units of the costs of calls. One row of each key shows what its calls have cost; empty: no row does.
    """
    if outcomes.details is not None:
        values, codes = _details(outcomes, data_type), codes.fill_null(len(outcomes.keys))
    else:
        values = _array(values_of(outcomes, data_type), data_type)
    start = 0
    for end in _piece_ends(values, codes):
        column = _take_rows(values, codes[start:end])
        yield _with_costs(column, outcomes, codes[start:end], units) if units else column
        start = end


def _with_costs(column: Any, outcomes: Outcomes, codes: pa.Int32Array, units: Sequence[str]) -> pa.StructArray:
    """
    Return the structs of *column* with a further field: what the calls of the row's key have cost, in *units*.

    The field is set on the first row of the key and null on its other rows, so that the sum over all rows is what the
    job has paid.
    """
    paid = {} if outcomes.details is None else outcomes.details.paid
    spent = [paid.pop(code, None) for code in codes.to_pylist()] if paid else [None] * len(codes)
    field = pa.array(spent, pa.struct([(unit, pa.float64()) for unit in units]))
    names = [column.type.field(place).name for place in range(column.type.num_fields)]
    return pa.StructArray.from_arrays([*column.flatten(), field], names=[*names, "spent"])


def values_of(outcomes: Outcomes, data_type: pa.DataType) -> Any:
    """Return the values of the keys of a slice as an array; values that came in Arrow columns stay in Arrow."""
    if not outcomes.value_columns:
        return _array(outcomes.values, data_type)
    size = len(outcomes.values)
    columns = sorted(outcomes.value_columns, key=lambda column: column[0][0])  # sorted by each column's first index
    parts = [column for _, column in columns]
    if _are_contiguous([indices for indices, _ in columns], size):
        return _concatenate(parts)
    indices_in_columns = list(chain.from_iterable(indices for indices, _ in columns))
    other_indices = sorted(set(range(size)).difference(indices_in_columns))
    parts.append(_array([outcomes.values[index] for index in other_indices], data_type))
    return _concatenate(parts).take(pc.sort_indices(pa.array(indices_in_columns + other_indices, pa.int32())))


def assemble(values: Any, codes: pa.Int32Array, data_type: pa.DataType) -> pa.Array[Any]:
    """
    Return the column for the rows of one slice.

    Args:
        values: One value per distinct key: a list of decoded values, see `enrichkit.values.decode`, or a column.
        codes: For each row the index of its key; null where the key is null.
        data_type: The declared type.

    Returns:
        One array, never a chunked one, as long as *codes*. Where a code is null, the element is null, even if
        *data_type* is a struct.

    Raises:
        TaskFailedError: On a worker: the values of the rows hold more than 2 GiB of text.

    >>> assemble(["Ann", None], pa.array([0, 1, None, 0], pa.int32()), pa.string()).to_pylist()
    ['Ann', None, None, 'Ann']
    """
    column: pa.Array[Any] = _take_rows(_array(values, data_type), codes)
    return column


def assemble_details(outcomes: Outcomes, codes: pa.Int32Array, data_type: pa.DataType) -> pa.StructArray:
    """
    Return a struct for each row: value, status, error, attempts, latency in seconds, origin.

    A row whose key is null has the status `null_key`, 0 attempts, a latency of 0 and a null origin.

    Args:
        outcomes: Final outcomes with details.
        codes: For each row the index of its key; null where the key is null.
        data_type: The type of a value.
    """
    column: pa.StructArray = _take_rows(_details(outcomes, data_type), codes.fill_null(len(outcomes.keys)))
    return column


def _details(outcomes: Outcomes, data_type: pa.DataType) -> pa.StructArray:
    """Return a struct for each key, and a last one for the null key."""
    details = outcomes.details
    if details is None:
        raise ValueError("The outcomes have no details; they must be made with details=True. Ask the run for details.")
    # Each column below has one more element than there are keys: the last one is for the null key.
    size = len(outcomes.keys)
    codes_of_status = pa.UInt8Array.from_buffers(
        pa.uint8(), size + 1, [None, pa.py_buffer(bytes(outcomes.statuses) + bytes([_NULL_KEY]))]
    )
    errors = [outcomes.errors.get(index) for index in range(size)] if outcomes.errors else [None] * size
    columns = {
        "value": pa.concat_arrays([values_of(outcomes, data_type), pa.nulls(1, data_type)]),
        "status": pa.array(STATUSES, pa.string()).take(codes_of_status),
        "error": _texts([*errors, None]),
        "attempts": pa.array([*details.attempts, 0], pa.int32()),
        "latency": pa.array([*details.latencies, 0.0], pa.float64()),
        "origin": _texts([*details.origins, None]),
    }
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _piece_ends(values: Any, codes: Any) -> Sequence[int]:
    """
    Return the row at which each piece of a column ends; the rows of the column hold the *values* at the indices
    *codes*.
    """
    # Each value is on at least one row, and each further row holds at most the widest value. So the sum of both is an
    # upper bound of the bytes of the column.
    further = max(0, len(codes) - len(values))
    if values.nbytes + (further and further * _widest(values)) <= BYTES:
        return [len(codes)]
    ends: list[int] = []
    piece_bytes = 0
    for row, size in enumerate(_sizes(values).take(codes).fill_null(0).to_pylist()):
        if piece_bytes and piece_bytes + size > BYTES:
            ends.append(row)
            piece_bytes = 0
        piece_bytes += size
    return [*ends, len(codes)]


def _widest(values: Any) -> int:
    """Return an upper bound of the sizes that `_sizes` returns; this takes a tenth of the time of `_sizes`."""
    kind = values.type
    if pa.types.is_struct(kind):
        return 1 + sum(map(_widest, values.flatten()))
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        elements = [values.keys, values.items] if pa.types.is_map(kind) else [values.values]
        counts = pc.subtract(values.offsets[1:], values.offsets[:-1])
        return int(pc.max(counts).as_py() or 0) * sum(map(_widest, elements)) + 4
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return int(pc.max(pc.binary_length(values)).as_py() or 0) + 4
    return 16


def _sizes(values: Any) -> Any:
    """Return the approximate number of bytes of each of *values*; for a list or map, an upper bound."""
    kind = values.type
    if pa.types.is_struct(kind):
        return functools.reduce(pc.add, map(_sizes, values.flatten()), _repeat_size(values, 1))
    if pa.types.is_map(kind) or pa.types.is_list(kind):
        elements = [values.keys, values.items] if pa.types.is_map(kind) else [values.values]
        widest = sum(pc.max(_sizes(part)).as_py() or 0 for part in elements)
        counts = pc.subtract(values.offsets[1:], values.offsets[:-1]).cast(pa.int64())
        return pc.add(pc.multiply(counts, widest), 4)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pc.add(pc.binary_length(values).fill_null(0).cast(pa.int64()), 4)
    return _repeat_size(values, 16)  # a decimal has 16 bytes, the most of all types of fixed width


def _repeat_size(values: Any, size: int) -> Any:
    return pa.repeat(pa.scalar(size, pa.int64()), len(values))


def _array(values: Any, data_type: pa.DataType) -> Any:
    array = values if isinstance(values, pa.Array) else pa.array(values, data_type)
    if isinstance(array, pa.ChunkedArray):
        raise _size_error()
    return array


def _are_contiguous(parts: Sequence[Sequence[int]], size: int) -> bool:
    """Return whether *parts* are ranges that, one after the other, make up the indices from 0 to *size* - 1."""
    end = 0
    for indices in parts:
        if not isinstance(indices, range) or indices.start != end:
            return False
        end = indices.stop
    return end == size


def _concatenate(parts: list[Any]) -> Any:
    try:
        return pa.concat_arrays(parts)
    except pa.ArrowInvalid as error:
        raise _size_error() from error


def _take_rows(array: Any, codes: Any) -> Any:
    """Return the elements of *array* at *codes*; *array* itself when *codes* are all of its indices in order."""
    # In a table of users, for example, each row has its own key, and the codes are 0, 1, 2, ... The sizes of the cached
    # arrays of such codes are powers of two, so that slices of different lengths share an array.
    if len(array) == len(codes) and codes.equals(_indices(1 << len(codes).bit_length())[: len(codes)]):
        return array
    try:
        return array.take(codes)
    except pa.ArrowInvalid as error:
        # The codes come from the same slice and so are valid indices. The only other reason for the error is too much
        # text: Arrow counts the bytes of a text or binary column in 32 bits.
        raise _size_error() from error


@functools.lru_cache(maxsize=4)
def _indices(size: int) -> Any:
    return pa.array(range(size), pa.int32())


def _texts(texts: list[Any]) -> Any:
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        # The text of a connector's error may quote bytes that are not UTF-8; these become escapes with a backslash.
        return pa.array([text and text.encode("utf-8", "backslashreplace").decode() for text in texts], pa.string())


def _size_error() -> TaskFailedError:
    return TaskFailedError(
        "The values of a slice of rows hold more than 2 GiB; an Arrow column of text holds at most that. Lower "
        "window, an eighth of which a slice has, or declare fewer fields with returns=."
    )
