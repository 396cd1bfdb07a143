"""Compares the declared type of a value with the type that the source itself tells."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ..errors import ConfigError

__all__ = ["check_declared"]

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
"""For each kind of Arrow type a sample value. It fits into every declared type that can hold some value of the kind."""


def check_declared(name: str, declared: pa.DataType, told: pa.DataType) -> None:
    """
    Raise a `ConfigError` if no value of the type *told* fits into *declared*, so that each row would be an error.

    The check decodes a sample value of the type *told*, as a worker decodes values. If there is no sample of this type,
    nothing is raised.

    Args:
        name: Name of the source, for the message.
        declared: Type of one value that the user has declared.
        told: Type of one value that the source has told.

    >>> check_declared("users", pa.int32(), pa.int64())
    >>> check_declared("users", pa.int32(), pa.string())
    Traceback (most recent call last):
    enrichkit.errors.ConfigError: The value of 'users' is declared as int, but it is of type string in the source, and \
such a value does not fit. Declare string, or leave returns= out.
    """
    from ..values.rules import rule
    from ..values.scalars import MismatchError
    from ..values.types import is_variant, spark_name

    pairs = [("The value", declared, told)]
    if all(pa.types.is_struct(one) and not is_variant(one) for one in (declared, told)):
        theirs = {field.name: field.type for field in told}
        pairs = [(f"The field {f.name!r}", f.type, theirs[f.name]) for f in declared if f.name in theirs]
    for what, one, other in pairs:
        sample = _sample(other)
        try:
            if sample is not None:
                rule(one, "python")(sample)
        except MismatchError:
            raise ConfigError(
                f"{what} of {name!r} is declared as {spark_name(one)}, but it is of type {spark_name(other)} in the "
                f"source, and such a value does not fit. Declare {spark_name(other)}, or leave returns= out."
            ) from None


def _sample(data_type: pa.DataType) -> Any:
    """Return a sample value of *data_type*; None if no single value can stand for all values of the type."""
    if pa.types.is_timestamp(data_type):
        return dt.datetime(2000, 1, 1, tzinfo=dt.UTC if data_type.tz else None)
    return next((sample for is_kind, sample in _SAMPLES if is_kind(data_type)), None)
