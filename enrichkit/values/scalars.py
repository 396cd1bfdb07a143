"""
The rules of the plain types, for one value at a time. `rules.py` has the table of the values that each type takes, and
the rules of nested types.

The module is longer than others because there are fifteen types, with a few lines for each.
"""

from __future__ import annotations

import binascii
import dataclasses
import datetime as dt
import decimal
import re
import struct
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec
import pyarrow as pa

from ..errors import ConfigError
from .types import SUPPORTED, spark_name

__all__ = [
    "Encoding",
    "MismatchError",
    "Number",
    "Rule",
    "describe_kind",
    "describe_non_unicode",
    "is_string",
    "plain_rule",
    "unsupported_type_error",
    "without_numpy",
]

Encoding: TypeAlias = Literal["python", "json", "text"]
Rule: TypeAlias = Callable[[Any], Any]
"""Takes one value that is not None; returns a value that `pa.array` takes, or raises `MismatchError`."""

FLOAT_MAX: float = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
INT_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}

_INT = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"nan|[+-]?inf(?:inity)?", re.IGNORECASE)
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
# The group matches the digits beyond microseconds, which are dropped if they are zeros, and refused otherwise.
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6}((?<=\.[0-9]{6})[0-9]+)?)?)?"
_DAY = re.compile(_DATE)
_TIME_OF_DAY = re.compile(_CLOCK)
_INSTANT = re.compile(rf"{_DATE}[Tt ]{_CLOCK}(?:[Zz]|[+-][0-9]{{2}}(?::?[0-9]{{2}})?)?")
_SPAN = re.compile(
    r"(-?)P(?=[0-9T])(?:([0-9]+)D)?(?:T(?=[0-9])(?:([0-9]+)H)?(?:([0-9]+)M)?(?:([0-9]+)(?:\.([0-9]{1,6})0*)?S)?)?"
)
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_LONGEST = dt.timedelta(microseconds=2**63 - 1)
_FORM = "it is not of that form"
_RANGE = "it is out of range"


class MismatchError(Exception):
    """
    A value does not fit its declared type. The message names the kind of the value, and never shows the value.

    Attributes:
        problem: The problem, for example "it is of type str".
        type_name: Name of the declared Spark type of the part that does not fit.
        takes: Description of the values that this type takes in the encoding of the connector.
        path: Path of the part in the value; `""` for the value itself.
    """

    def __init__(self, problem: str, type_name: str = "", takes: str = "") -> None:
        super().__init__(problem)
        self.problem, self.type_name, self.takes, self.path = problem, type_name, takes, ""

    def __str__(self) -> str:
        part = f"The part {self.path.removeprefix('.')!r} of the value" if self.path else "The value"
        return (
            f"{part} does not fit the declared type {self.type_name}: {self.problem}; it must be {self.takes}. "
            "Change the source, or declare another type with returns=."
        )


class Number(str):
    """The text of a JSON number with a fraction or an exponent. The text keeps all digits, which a decimal needs."""

    __slots__ = ()


_JSON_KINDS = {
    str: "a string",
    int: "a whole number",
    Number: "a number with a fraction or exponent",
    bool: "a boolean",
    list: "an array",
    dict: "an object",
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaf:
    """
    The rules of one plain type.

    Attributes:
        python: The rule for Python objects.
        text: The rule for text.
        json: Python types of the parsed JSON values to which the rule `python` is applied.
        json_text: Python types of the parsed JSON values to which the rule `text` is applied.
        takes: Descriptions, for messages, of the values that the type takes in the encodings python, json and text.
    """

    python: Rule
    text: Callable[[str], Any]
    json: tuple[type, ...]
    json_text: tuple[type, ...]
    takes: tuple[str, str, str]


def without_numpy(value: Any) -> Any:
    """Return *value* as a Python object if it is a scalar or array of NumPy, and any other value as it is."""
    # A datetime64 is not converted, because `tolist` would turn its nanoseconds into an int, which a declared bigint
    # would accept. So the rules refuse it.
    if type(value).__module__ == "numpy" and value.dtype.kind in "biufUSO":
        return value.tolist()
    return value


def describe_kind(value: Any, encoding: Encoding) -> str:
    """Return a text for `MismatchError.problem` that names the kind of *value*, for example "it is a string"."""
    return f"it is {_JSON_KINDS[type(value)]}" if encoding == "json" else f"it is of type {type(value).__name__}"


def describe_non_unicode(error: UnicodeEncodeError) -> str:
    """Return the text for `MismatchError.problem` that says why UTF-8 cannot encode a text."""
    # Python's error handler surrogateescape decodes a byte that is not UTF-8 to a surrogate in this range.
    is_byte = "\udc80" <= error.object[error.start] <= "\udcff"
    return "it is not UTF-8" if is_byte else "it holds half of a surrogate pair"


def unsupported_type_error(data_type: pa.DataType, where: str = "") -> ConfigError:
    """
    Return the error for a type that a worker does not build; in the message, *where* follows the name of the type.
    """
    return ConfigError(
        f"A worker does not build the type {spark_name(data_type)}{where}; allowed are {SUPPORTED}. "
        "Declare another type with returns=."
    )


def plain_rule(data_type: pa.DataType, encoding: Encoding) -> Rule:
    """Return the rule for one value of a plain type; raises `ConfigError` for a type that a worker does not build."""
    leaf = _leaf(data_type)
    name, takes = spark_name(data_type), leaf.takes[("python", "json", "text").index(encoding)]
    if encoding == "python":
        convert = _object_rule(leaf)
    elif encoding == "json":
        convert = _json_rule(leaf)
    else:
        convert = _bytes_rule if _is_binary(data_type) else _text_rule(leaf)
    return _with_messages(convert, name, takes)


def _object_rule(leaf: _Leaf) -> Rule:
    return lambda value: leaf.python(without_numpy(value))


def _json_rule(leaf: _Leaf) -> Rule:
    def convert(value: Any) -> Any:
        if type(value) in leaf.json_text:
            return leaf.text(value)
        if type(value) in leaf.json:
            return leaf.python(value)
        raise MismatchError(describe_kind(value, "json"))

    return convert


def _text_rule(leaf: _Leaf) -> Rule:
    def convert(value: Any) -> Any:
        if isinstance(value, str):
            return leaf.text(value)
        if not isinstance(value, bytes | bytearray | memoryview):
            raise MismatchError(f"it is of type {type(value).__name__}")
        return leaf.text(bytes(value).decode())

    return convert


def _bytes_rule(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise MismatchError(f"it is of type {type(value).__name__}")
    return bytes(value)


def _with_messages(rule: Rule, name: str, takes: str) -> Rule:
    """
    Return a rule that does the same as *rule*, but turns exceptions into a `MismatchError` with a complete message.
    """

    def convert(value: Any) -> Any:
        try:
            return rule(value)
        except MismatchError as error:
            problem = error.problem
        except UnicodeDecodeError:
            problem = "it is not UTF-8"
        except UnicodeEncodeError as error:
            problem = describe_non_unicode(error)
        except OverflowError:
            problem = _RANGE
        except ValueError:
            problem = _FORM
        raise MismatchError(problem, name, takes)

    return convert


def is_string(data_type: pa.DataType) -> bool:
    """Return whether *data_type* is one of Arrow's two types for Spark's string."""
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def _is_binary(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


def _leaf(data_type: pa.DataType) -> _Leaf:
    leaf = _basic_leaf(data_type) or _number_leaf(data_type) or _time_leaf(data_type)
    if leaf is None:
        raise unsupported_type_error(data_type)
    return leaf


def _basic_leaf(data_type: pa.DataType) -> _Leaf | None:
    if is_string(data_type):
        return _Leaf(_string, _string, (), (str,), ("a str or UUID without lone surrogates", "a string", "UTF-8 text"))
    if _is_binary(data_type):
        return _Leaf(
            _binary, _base64, (), (str,), ("bytes, bytearray or memoryview", "a base64 string", "bytes or a str")
        )
    if pa.types.is_boolean(data_type):
        return _Leaf(partial(_require, bool), _boolean, (bool,), (), ("a bool", "true or false", "true, false, 1 or 0"))
    if pa.types.is_null(data_type):
        return _Leaf(_nothing, _nothing, (), (), ("None", "null", "absent"))
    return None


def _number_leaf(data_type: pa.DataType) -> _Leaf | None:
    if data_type in INT_BITS:
        top = 2 ** (INT_BITS[data_type] - 1)
        span = f"from {-top} to {top - 1}"
        takes = f"an int {span}", f"a whole number {span}", f"digits of a number {span}"
        return _Leaf(partial(_int, top), partial(_int_text, top), (int,), (), takes)
    if pa.types.is_float32(data_type) or pa.types.is_float64(data_type):
        single = bool(pa.types.is_float32(data_type))
        takes = "a float, or an int it holds exactly", "a number in its range, exact if whole", "a number in its range"
        return _Leaf(partial(_float, single), partial(_float_text, single), (int,), (Number,), takes)
    if pa.types.is_decimal128(data_type):
        convert = partial(_decimal, decimal.Decimal(1).scaleb(-data_type.scale), decimal_context(data_type.precision))
        fits = f"with at most {data_type.scale} digits after the point and {data_type.precision} in all"
        takes = f"a Decimal or int {fits}", f"a number or string of digits {fits}", f"a number {fits}"
        return _Leaf(convert, lambda text: convert(_decimal_text(text)), (int,), (Number, str), takes)
    return None


def _time_leaf(data_type: pa.DataType) -> _Leaf | None:
    if pa.types.is_date32(data_type):
        return _Leaf(_date, _date_text, (), (str,), ("a date, not a datetime", *2 * ("a date such as 2024-01-31",)))
    if data_type == pa.time64("ns") or data_type == pa.time64("us"):
        form = "a time of day such as 10:00:00.123456 without a zone"
        return _Leaf(_time, _time_text, (), (str,), ("a time without tzinfo", form, form))
    if data_type == pa.duration("us"):
        form = "an ISO 8601 duration such as P1DT2H3.5S"
        return _Leaf(_span, _span_text, (), (str,), ("a timedelta below 292,000 years", form, form))
    if pa.types.is_timestamp(data_type) and data_type.unit == "us":
        moment = _instant if data_type.tz is not None else _wall_clock
        kind, example = ("with", "10:00:00.123456Z") if data_type.tz is not None else ("without", "10:00:00.123456")
        form = f"a timestamp {kind} a time zone such as 2024-01-31T{example}"
        takes = f"a datetime {kind} a time zone", form, form
        return _Leaf(moment, lambda text: moment(_datetime_text(text)), (), (str,), takes)
    return None


def _require(kind: type, value: Any) -> Any:
    """Return *value*; raise `MismatchError` if *value* is not an instance of *kind*."""
    if isinstance(value, kind):
        return value
    raise MismatchError(f"it is of type {type(value).__name__}")


def _string(value: Any) -> str:
    if isinstance(value, uuid.UUID):
        return str(value)
    text = str.__str__(_require(str, value))
    text.encode()  # raises for a lone surrogate, which UTF-8 cannot encode
    return text


def _binary(value: Any) -> bytes:
    return bytes(_require(bytes | bytearray | memoryview, value))  # type: ignore[arg-type]  # isinstance takes a union


def _base64(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise MismatchError(_FORM)
    return _BOOLEANS[text.lower()]


def _int(top: int, value: Any) -> int:
    number = int(_require(int, value))
    if isinstance(value, bool):
        raise MismatchError("it is of type bool")
    if not -top <= number < top:
        raise MismatchError(_RANGE)
    return number


def _int_text(top: int, text: str) -> int:
    if not _INT.fullmatch(text):
        raise MismatchError(_FORM)
    if len(text) > 400:
        raise MismatchError(_RANGE)
    return _int(top, int(text))


def _float(single: bool, value: Any) -> float:
    if isinstance(value, bool):
        raise MismatchError("it is of type bool")
    number = float(_require(float | int, value))  # type: ignore[arg-type]  # isinstance takes a union
    as_single = struct.unpack("<f", struct.pack("<f", number))[0] if single else number
    if isinstance(value, int) and as_single != value:
        raise MismatchError("it is a whole number that this type does not hold exactly")
    return number


def _float_text(single: bool, text: str) -> float:
    if _NOT_FINITE.fullmatch(text):
        return float(text)
    if not _NUMBER.fullmatch(text):
        raise MismatchError(_FORM)
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise MismatchError(_RANGE)
    return _float(single, number)


def decimal_context(precision: int) -> decimal.Context:
    """Return a decimal context in which `quantize` raises an error if the number would lose a digit."""
    return decimal.Context(prec=precision, traps=[decimal.Inexact, decimal.InvalidOperation])


def _decimal(exponent: decimal.Decimal, context: decimal.Context, value: Any) -> decimal.Decimal:
    if isinstance(value, bool):
        raise MismatchError("it is of type bool")
    number = value
    if not isinstance(value, decimal.Decimal):
        if _require(int, value).bit_length() > 256:  # certainly too large: a decimal of 38 digits needs 127 bits
            raise MismatchError(_RANGE)
        number = decimal.Decimal(value)
    if not number.is_finite():
        raise MismatchError("it is not finite")
    try:
        return context.quantize(number, exponent)
    except decimal.Inexact:
        raise MismatchError("it has too many digits after the point") from None
    except decimal.InvalidOperation:
        raise MismatchError(_RANGE) from None


def _decimal_text(text: str) -> decimal.Decimal:
    if not _NUMBER.fullmatch(text):
        raise MismatchError(_FORM)
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        raise MismatchError(_RANGE) from None


def _nothing(value: Any) -> NoReturn:
    raise MismatchError("it is not null")


def _date(value: Any) -> dt.date:
    if isinstance(value, dt.datetime):
        raise MismatchError(f"it is of type {type(value).__name__}")
    date: dt.date = _require(dt.date, value)
    return date


def _date_text(text: str) -> dt.date:
    if not _DAY.fullmatch(text):
        raise MismatchError(_FORM)
    return dt.date.fromisoformat(text)


def _time(value: Any) -> dt.time:
    if _require(dt.time, value).tzinfo is not None:
        raise MismatchError("it has a time zone")
    time: dt.time = value
    return time


def _time_text(text: str) -> dt.time:
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        raise MismatchError(_FORM)
    return dt.time.fromisoformat(_without_finer(text, match))


def _without_finer(text: str, match: re.Match[str]) -> str:
    """
    Return *text* without the digits beyond microseconds, which must be zeros.

    Python itself would drop these digits silently, zeros or not.
    """
    if not match[1]:
        return text
    if match[1].strip("0"):
        raise MismatchError("it has digits beyond microseconds")
    return text[: match.start(1)] + text[match.end(1) :]


def _datetime(value: Any) -> dt.datetime:
    """
    Return *value* as a plain datetime, not an instance of a subclass.

    pandas has a subclass of datetime with nanoseconds, and the value `NaT`, which is not a time.
    """
    if type(value) is dt.datetime:
        return value
    if _require(dt.datetime, value) != value:  # pandas' NaT is a datetime that is not equal to itself
        raise MismatchError("it is no point in time")
    if getattr(value, "nanosecond", 0):
        raise MismatchError("it has digits beyond microseconds")
    return dt.datetime.combine(value.date(), value.timetz())


def _instant(value: Any) -> dt.datetime:
    moment = _datetime(value)
    if moment.utcoffset() is None:
        raise MismatchError("it has no time zone")
    return moment


def _wall_clock(value: Any) -> dt.datetime:
    moment = _datetime(value)
    if moment.tzinfo is not None:
        raise MismatchError("it has a time zone")
    return moment


def _datetime_text(text: str) -> dt.datetime:
    # msgspec reads an RFC 3339 timestamp in UTC in a quarter of the time that the code below takes. msgspec rounds
    # a fraction of more than six digits, but a text of at most 27 characters has no such fraction.
    if text.endswith("Z") and len(text) <= 27:
        try:
            return msgspec.convert(text, dt.datetime)
        except msgspec.ValidationError:
            pass  # the code below finds out what is wrong
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise MismatchError(_FORM)
    return dt.datetime.fromisoformat(_without_finer(text, match).upper())


def _span(value: Any) -> dt.timedelta:
    span: dt.timedelta = _require(dt.timedelta, value)
    if not -_LONGEST <= span <= _LONGEST:
        raise MismatchError(_RANGE)
    return span


def _span_text(text: str) -> dt.timedelta:
    match = _SPAN.fullmatch(text)
    if match is None or len(text) > 100:
        raise MismatchError(_FORM)
    sign, *parts, fraction = match.groups()
    days, hours, minutes, seconds = (int(part or 0) for part in parts)
    micros = int((fraction or "").ljust(6, "0"))
    span = dt.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, microseconds=micros)
    return _span(-span if sign else span)
