"""
Encoding of values as Spark's variant, which is two binaries: one holds the value, and the other the names of the fields
of all objects in it.

The format is https://github.com/apache/parquet-format/blob/master/VariantEncoding.md. PySpark has an encoder, too, but
only for JSON text; it accepts NaN, rounds a long whole number to a double, and turns 1e400 into infinity.
"""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from .scalars import Encoding, MismatchError, Number, Rule, describe_non_unicode, without_numpy

__all__ = ["variant_rule"]

# The most bytes that a variant may have in Spark before 4.1; also the largest offset that fits into three bytes.
SIZE_MAX = 2**24 - 1
DEPTH_MAX = 200  # limited because the functions that read and write a variant are recursive, here and in Spark

_NULL, _TRUE, _FALSE, _DOUBLE, _DATE, _TIMESTAMP, _TIMESTAMP_NTZ, _BINARY, _STRING = 0, 1, 2, 7, 11, 12, 13, 15, 16
_INTS = ((1, 3), (2, 4), (4, 5), (8, 6))  # for each width: number of bytes, type id in the format
_DECIMALS = ((9, 4, 8), (18, 8, 9), (38, 16, 10))  # for each width: most digits, number of bytes, type id
_SHORT_STRING, _OBJECT, _ARRAY = 1, 2, 3
_BYTE = [bytes([number]) for number in range(256)]
_EPOCH = dt.datetime(1970, 1, 1)
_LONG = f"it takes more than {SIZE_MAX:,} bytes"
_DIGITS = "it holds a number of more than 38 digits"
_MICROSECOND = dt.timedelta(microseconds=1)
_TAKES = {
    "python": "None, bool, int, float, Decimal, str, UUID, bytes, date, datetime, a list or tuple, or a mapping with "
    "str keys, and these at any depth",
    "json": "one JSON document with numbers of at most 38 digits",
    "text": "one JSON document with numbers of at most 38 digits",
}


def variant_rule(encoding: Encoding) -> Rule:
    """
    Return the rule for a variant. The rule takes Python objects; `enrichkit.values.rules` parses JSON beforehand.

    >>> variant_rule("python")([True, "a"])
    {'value': b'\\x03\\x02\\x00\\x01\\x03\\x04\\x05a', 'metadata': b'\\x01\\x00\\x00'}
    """

    def convert(value: Any) -> dict[str, bytes]:
        names: dict[str, int] = {}
        try:
            encoded = _encode(value, names, 0)
            if len(encoded) > SIZE_MAX:
                raise MismatchError(_LONG)
            return {"value": encoded, "metadata": _metadata(names)}
        except MismatchError as error:
            problem = error.problem
        except UnicodeEncodeError as error:
            problem = describe_non_unicode(error)
        raise MismatchError(problem, "variant", _TAKES[encoding])

    return convert


def _encode(value: Any, names: dict[str, int], depth: int) -> bytes:
    if (encode_exact := _EXACT.get(type(value))) is not None:
        return encode_exact(value)
    if depth > DEPTH_MAX:
        raise MismatchError(f"it is nested more than {DEPTH_MAX} levels deep")
    plain = without_numpy(value)
    if isinstance(plain, Mapping):
        return _object(plain, names, depth)
    if isinstance(plain, list | tuple) and not hasattr(plain, "_fields"):
        return _sized(b"", [_encode(part, names, depth + 1) for part in plain], _ARRAY, 0)
    for kind, encode in _ENCODERS.items():
        if isinstance(plain, kind):
            return encode(plain)
    raise MismatchError(f"it holds a value of the type {type(plain).__name__}")


def _object(mapping: Mapping[Any, Any], names: dict[str, int], depth: int) -> bytes:
    for name in mapping:
        if not isinstance(name, str):
            raise MismatchError(f"one of its keys is of type {type(name).__name__}")
    # Spark looks up a field by bisection in the order of Java strings, which is the order of UTF-16. Python's order of
    # strings is the same up to U+D7FF, so ASCII names need no encoding for the comparison.
    fields = sorted(mapping, key=None if all(map(str.isascii, mapping)) else lambda name: name.encode("utf-16-be"))
    ids = [names.setdefault(str.__str__(name), len(names)) for name in fields]
    id_size = _width(max(ids, default=0))
    return _sized(
        _numbers(ids, id_size), [_encode(mapping[name], names, depth + 1) for name in fields], _OBJECT, id_size
    )


def _sized(ids: bytes, parts: Sequence[bytes], basic: int, id_size: int) -> bytes:
    """
    Return the bytes of an object or array: header, number of parts, ids, offsets and parts.

    Args:
        ids: The encoded ids that stand for an object's field names; empty for an array.
        parts: Encoded values.
        basic: `_OBJECT` or `_ARRAY`.
        id_size: Bytes of one id.
    """
    size = sum(map(len, parts))
    if size > SIZE_MAX:
        raise MismatchError(_LONG)
    large = len(parts) > 255
    offset_size = _width(size)
    # The header of an array has no bits for id_size, so the bit for `large` is two positions lower.
    flags = (large << 4 | (id_size - 1) << 2) if basic == _OBJECT else large << 2
    header = _BYTE[(flags | (offset_size - 1)) << 2 | basic] + len(parts).to_bytes(4 if large else 1, "little")
    return header + ids + _numbers(accumulate(map(len, parts), initial=0), offset_size) + b"".join(parts)


def _metadata(names: Mapping[str, int]) -> bytes:
    texts = [name.encode() for name in names]
    size = sum(map(len, texts))
    width = _width(max(size, len(texts)))
    if 1 + width * (len(texts) + 2) + size > SIZE_MAX:
        raise MismatchError(f"the names of its fields take more than {SIZE_MAX:,} bytes")
    offsets = [len(texts), *accumulate(map(len, texts), initial=0)]
    version = 1
    return _BYTE[version | (width - 1) << 6] + _numbers(offsets, width) + b"".join(texts)


def _numbers(numbers: Iterable[int], width: int) -> bytes:
    return bytes(numbers) if width == 1 else b"".join(number.to_bytes(width, "little") for number in numbers)


def _width(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


def _primitive(kind: int, content: bytes = b"") -> bytes:
    return _BYTE[kind << 2] + content


def _int(number: int) -> bytes:
    for size, kind in _INTS:
        if -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1:
            return _primitive(kind, int(number).to_bytes(size, "little", signed=True))
    if number.bit_length() > 128:
        raise MismatchError(_DIGITS)
    return _scaled(int(number), 0)


def _float(number: float) -> bytes:
    return _primitive(_DOUBLE, struct.pack("<d", number))


def _number(text: str) -> bytes:
    """
    Encode a JSON number with a fraction or an exponent: as a double if it has an exponent, otherwise as a decimal.
    """
    if "e" not in text and "E" not in text:
        whole, _, fraction = text.partition(".")
        if len(text) > 41:  # 38 digits, a sign, a zero before the point, and the point
            raise MismatchError(_DIGITS)
        return _scaled(int(whole + fraction), len(fraction))
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise MismatchError("it holds a number out of the range of a double")
    return _float(number)


def _decimal(number: decimal.Decimal) -> bytes:
    if not number.is_finite():
        raise MismatchError("it holds a Decimal that is not finite")
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if max(len(digits) + exponent, -exponent) > 38:
        raise MismatchError(_DIGITS)
    unscaled = int("".join(map(str, digits))) * 10 ** max(exponent, 0)
    return _scaled(-unscaled if sign else unscaled, max(-exponent, 0))


def _scaled(unscaled: int, scale: int) -> bytes:
    width = max(len(str(abs(unscaled))), scale)
    if width > 38:
        raise MismatchError(_DIGITS)
    size, kind = next((size, kind) for most, size, kind in _DECIMALS if width <= most)
    return _primitive(kind, bytes([scale]) + unscaled.to_bytes(size, "little", signed=True))


def _text(text: str) -> bytes:
    content = str.__str__(text).encode()
    if len(content) < 64:
        return _BYTE[len(content) << 2 | _SHORT_STRING] + content
    return _primitive(_STRING, len(content).to_bytes(4, "little") + content)


def _bytes(value: Any) -> bytes:
    content = bytes(value)
    return _primitive(_BINARY, len(content).to_bytes(4, "little") + content)


def _datetime(moment: dt.datetime) -> bytes:
    if moment != moment:  # only pandas' NaT is not equal to itself
        raise MismatchError("it holds a datetime that is no point in time")
    if getattr(moment, "nanosecond", 0):
        raise MismatchError("it holds a time with digits beyond microseconds")
    offset = moment.utcoffset()
    kind = _TIMESTAMP_NTZ if offset is None else _TIMESTAMP
    wall = dt.datetime.combine(moment.date(), moment.time()) - _EPOCH
    micros = (wall - (offset or dt.timedelta())) // _MICROSECOND
    return _primitive(kind, micros.to_bytes(8, "little", signed=True))


def _date(day: dt.date) -> bytes:
    return _primitive(_DATE, (day - _EPOCH.date()).days.to_bytes(4, "little", signed=True))


# The first kind that fits is used, so the order matters: a bool is also an int, a Number is also a str, and a datetime
# is also a date.
_ENCODERS: dict[Any, Callable[[Any], bytes]] = {
    bool: lambda value: _primitive(_TRUE if value else _FALSE),
    int: _int,
    float: _float,
    Number: _number,
    str: _text,
    decimal.Decimal: _decimal,
    bytes | bytearray | memoryview: _bytes,
    uuid.UUID: lambda value: _text(str(value)),
    dt.datetime: _datetime,
    dt.date: _date,
}
_EXACT: dict[Any, Callable[[Any], bytes]] = {
    type(None): lambda _: _primitive(_NULL),
    **{kind: _ENCODERS[kind] for kind in (bool, int, float, Number, str)},
}
