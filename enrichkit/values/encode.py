"""Encoding of values of a declared type for a store, so that `decode.py` turns them back into the same values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from .decode import decoder

if TYPE_CHECKING:
    import pyarrow as pa

    from .scalars import Encoding

__all__ = ["Encode", "encoder"]

Encode: TypeAlias = Callable[[Sequence[Any]], Mapping[int, Any]]
"""Takes n values; returns their raw values by index, leaving out each value that decoding would not restore exactly."""


@lru_cache(maxsize=256)
def encoder(data_type: pa.DataType, encoding: Encoding) -> Encode:
    """
    Return the function that encodes decoded values of the Arrow type *data_type* as raw values in *encoding*.

    Each value is encoded, decoded again and compared with the original; if the two differ, the value is left out. So a
    task never reads a value that differs from the original. The encoding `python` leaves all values as they are.

    >>> import pyarrow as pa
    >>> encoder(pa.int32(), "text")([7, 8])
    {0: '7', 1: '8'}
    >>> encoder(pa.float64(), "json")([0.5, float("nan")])
    {0: b'0.5'}
    """
    if encoding == "python":
        return lambda values: dict(enumerate(values))
    one, decode = _text if encoding == "text" else msgspec.json.encode, decoder(data_type, encoding)

    def encode(values: Sequence[Any]) -> Mapping[int, Any]:
        raws: dict[int, Any] = {}
        for index, value in enumerate(values):
            try:
                raws[index] = one(value)
            except (TypeError, ValueError):
                continue  # leave the value out, because values of its type cannot be encoded
        decoded, bad = decode(list(raws.values()))
        same = zip(raws, decoded, strict=True)
        return {index: raws[index] for n, (index, value) in enumerate(same) if n not in bad and value == values[index]}

    return encode


def _text(value: Any) -> str | bytes:
    """Return *value* as the text that `decode.py` reads: plain text for a scalar, and JSON for any other value."""
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int | Decimal):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    return msgspec.json.encode(value)
