"""Compares the declared type of a value with the type that the source itself reports."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ..errors import ConfigError

__all__ = ["check_declared"]

_Path = tuple[str, ...]
"""The names of the fields that lead to a part of a value; the elements of a list add no name."""
_SAMPLES: tuple[tuple[Any, Any], ...] = (
    (pa.types.is_boolean, True),
    (pa.types.is_integer, 1),
    (pa.types.is_floating, 1.0),
    (pa.types.is_decimal, Decimal(1)),
    (pa.types.is_string, "1"),
    (pa.types.is_binary, b"1"),
    (pa.types.is_date, dt.date(2000, 1, 1)),
    (pa.types.is_time, dt.time(1)),
    (pa.types.is_duration, dt.timedelta(1)),
)
"""For each kind of Arrow type, a sample that fits into any declared type that can hold some value of the kind."""


def check_declared(name: str, declared: pa.DataType, told: pa.DataType) -> None:
    """
    Raise a `ConfigError` if no value of the type *told* fits into *declared*, so that each row would fail.

    The check decodes a sample value of the type *told*, as a worker decodes values. If there is no sample of this type,
    nothing is raised. For structs, the fields are compared; a field that the source does not report is skipped. For
    lists, the elements are compared, because if they do not fit, only empty lists and lists of nulls would fit.

    Args:
        name: Name of the source, for the message.
        declared: Type of one value, as the user has declared it.
        told: Type of one value, as the source reports it.

    >>> check_declared("users", pa.int32(), pa.int64())
    >>> check_declared("users", pa.int32(), pa.string())
    Traceback (most recent call last):
    enrichkit.errors.ConfigError: The value of 'users' is declared as int, but it is of type string in the source, and \
such a value does not fit. Declare string, or leave returns= out.
    >>> check_declared("users", pa.list_(pa.int32()), pa.list_(pa.string()))
    Traceback (most recent call last):
    enrichkit.errors.ConfigError: The value of 'users' is declared as array<int>, but it is of type array<string> in \
the source, and such a value does not fit. Declare array<string>, or leave returns= out.
    """
    from ..values.types import spark_name

    for path, one, other in _misfits((), declared, told):
        what = f"The field {'.'.join(path)!r}" if path else "The value"
        raise ConfigError(
            f"{what} of {name!r} is declared as {spark_name(one)}, but it is of type {spark_name(other)} in the "
            f"source, and such a value does not fit. Declare {spark_name(other)}, or leave returns= out."
        )


def _misfits(path: _Path, declared: pa.DataType, told: pa.DataType) -> Iterator[tuple[_Path, pa.DataType, pa.DataType]]:
    """
    Yield each part of the type, at or below *path*, into which no value of the source fits: the path of the part, its
    declared type and its type in the source.
    """
    if _is_plain_struct(declared) and _is_plain_struct(told):
        theirs = {field.name: field.type for field in told}
        for field in declared:
            if field.name in theirs:
                yield from _misfits((*path, field.name), field.type, theirs[field.name])
    elif pa.types.is_list(declared) and pa.types.is_list(told):
        for below, one, other in _misfits(path, _innermost(declared), _innermost(told)):
            yield (below, one, other) if below != path else (path, declared, told)
    elif not _takes(declared, told):
        yield path, declared, told


def _takes(declared: pa.DataType, told: pa.DataType) -> bool:
    """Return whether a sample of the type *told* fits into *declared*; True if there is no sample."""
    from ..values.rules import rule
    from ..values.scalars import MismatchError

    sample = _sample(told)
    try:
        if sample is not None:
            rule(declared, "python")(sample)
    except MismatchError:
        return False
    return True


def _is_plain_struct(data_type: pa.DataType) -> bool:
    from ..values.types import is_variant

    return pa.types.is_struct(data_type) and not is_variant(data_type)


def _innermost(data_type: Any) -> pa.DataType:
    """Return the element type of nested lists at any depth, because PostgreSQL does not report the depth of arrays."""
    while pa.types.is_list(data_type):
        data_type = data_type.value_type
    return data_type


def _sample(data_type: pa.DataType) -> Any:
    """Return a sample value of *data_type*; None if no single value can stand for all values of the type."""
    if pa.types.is_timestamp(data_type):
        return dt.datetime(2000, 1, 1, tzinfo=dt.UTC if data_type.tz else None)
    return next((sample for is_kind, sample in _SAMPLES if is_kind(data_type)), None)
