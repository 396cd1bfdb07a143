"""
Raw answers -> values that `pa.array` takes without loss, a whole call at a time.

The table of what each type takes is in `enrichkit.rules`. Here is the fast way through it: msgspec checks all values of
a call in C against a type made from the declared one. That type is narrower than the rules where msgspec is laxer than
they are (an int for a double loses digits above 2**53, a fraction of a second is rounded), so what it takes is right;
what it does not take goes to the rules, which convert it or say what is wrong with that one key.

Measured per value, one core of a busy machine, 500 values a call, all of them right: string and bigint 20 ns, struct of
three plain fields 250 ns from Python and 270 ns from JSON; text to string 75 ns, to bigint 170 ns, to a struct of three
1.2 us; a decimal or a time inside JSON 1.5 us. A bad value adds 5 to 10 us for itself and for up to 15 neighbours.

Longer than other modules because each kind of type has a few lines here, too.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeAlias, TypedDict

import msgspec
import pyarrow as pa

from .bulk import dicts_of
from .errors import ConfigError, PermanentError
from .rules import rule
from .scalars import FLOAT_MAX, INT_BITS, Encoding, Number, Refused, Rule, is_string, plain
from .types import is_variant

__all__ = ["Decode", "decoder", "keyed_by_text", "msgspec_type", "named_in_ascii", "parts_of"]

Decode: TypeAlias = Callable[[Sequence[Any]], tuple[list[Any], dict[int, PermanentError]]]
"""Takes the n answers of a call; returns n values, and by index the error of each that could not be decoded."""

_Batch: TypeAlias = Callable[[Sequence[Any]], list[Any]]
"""Converts n values at once, or raises anything when not all of them are plainly right."""

_CHUNK = 16
_BOOLEANS = {b"true": True, b"1": True, b"false": False, b"0": False}
_NATIVE = (bytes, bytearray, memoryview, decimal.Decimal, dt.datetime, dt.date, dt.time, dt.timedelta)


@functools.lru_cache(maxsize=256)
def decoder(data_type: pa.DataType, encoding: Encoding) -> Decode:
    """
    Return the function that decodes the answers of one call for a column of the Arrow type *data_type*.

    The function takes n raw answers in *encoding*, None for a null, and returns n Python values and the errors by index
    (the value there is None). `pa.array(values, data_type)` takes the values: no overflow, no rounding but that of a
    double to a float, no lost time zone. One bad answer does not touch its neighbours, and no error shows a value.

    A declared string in JSON gets the content of a JSON string, and the text of any other document as it came, so that
    `from_json` can read it later. A string inside a struct, an array or a map must be a JSON string.

    Args:
        data_type: As `enrichkit.types.arrow_type_of` makes it.
        encoding: `"python"`, `"json"` or `"text"`, see `Connector.encoding`.

    Raises:
        ConfigError: No such encoding, or a type that a worker does not build.

    >>> values, errors = decoder(pa.int32(), "json")([b"7", None, b'"7"'])
    >>> values
    [7, None, None]
    >>> print(errors[2])
    The value does not fit the declared type int: it is a string; it must be a whole number from -2147483648 to \
2147483647. Change the source, or declare another type with returns=.
    """
    if encoding not in ("python", "json", "text"):
        raise ConfigError(
            f"The encoding of a connector is {encoding!r}; it must be 'python', 'json' or 'text'. "
            "Set it in the connector's class."
        )
    one = rule(data_type, encoding)
    batch = {"python": _objects, "json": _documents, "text": _texts}[encoding](data_type)
    parts = list(parts_of(data_type))
    if any(map(is_variant, parts)) or (encoding != "text" and not all(map(named_in_ascii, parts))):
        # msgspec builds no variants, and 0.22 does not find a TypedDict's field by a name that is not ASCII.
        batch = lambda values: [None if value is None else one(value) for value in values]  # noqa: E731  as the others

    def decode(values: Sequence[Any]) -> tuple[list[Any], dict[int, PermanentError]]:
        try:
            return batch(values), {}
        except Exception:  # noqa: BLE001  whatever the fast way stumbles over, the rules explain
            return _in_chunks(values, batch, one)

    return decode


def _in_chunks(values: Sequence[Any], batch: _Batch, one: Rule) -> tuple[list[Any], dict[int, PermanentError]]:
    """Keep the fast way for all but the neighbours of a bad value; the rules give the same result."""
    result: list[Any] = []
    errors: dict[int, PermanentError] = {}
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        if len(values) > _CHUNK:
            try:
                result += batch(chunk)
                continue
            except Exception:  # noqa: BLE001, S110  the rules come next
                pass
        for value in chunk:
            try:
                result.append(None if value is None else one(value))
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001  an object may raise anything when it is looked at
                errors[len(result)] = _error(error)
                result.append(None)
    return result, errors


def _error(error: Exception) -> PermanentError:
    if isinstance(error, Refused):
        return PermanentError(str(error))
    return PermanentError(
        f"The value cannot be read: looking at it raised {type(error).__name__}; it must be a plain Python object. "
        "Convert it in the connector."
    )


def _objects(data_type: pa.DataType) -> _Batch:
    element = msgspec_type(data_type, "python")
    holds = list[element | None]  # type: ignore[valid-type]  # made at run time
    # msgspec lets lone surrogates pass; its encoder finds them at a third of the price of an Arrow array.
    arrow = any(map(_arrow_decides, parts_of(data_type)))
    prove: Callable[[Any], Any] = functools.partial(pa.array, type=data_type) if arrow else msgspec.msgpack.encode
    needs_proof = arrow or any(map(is_string, parts_of(data_type)))

    def convert(values: Sequence[Any]) -> list[Any]:
        result: list[Any] = msgspec.convert(values, holds, strict=True, builtin_types=_NATIVE)
        if needs_proof:
            prove(result)
        return result

    return convert


def _documents(data_type: pa.DataType) -> _Batch:
    if is_string(data_type):
        return lambda values: [None if value is None else _text_of_document(value) for value in values]
    if not all(map(keyed_by_text, parts_of(data_type))):
        one = rule(data_type, "json")
        return lambda values: [None if value is None else one(value) for value in values]
    read = msgspec.json.Decoder(
        msgspec_type(data_type, "json") | None, dec_hook=operator.call, float_hook=Number
    ).decode
    return lambda values: [None if value is None else read(value) for value in values]


def _text_of_document(value: Any) -> str | None:
    if value[:1] in (b'"', '"'):
        return _read_string(value)
    text = bytes(_read_raw(value)).strip(b" \t\r\n")
    if text.startswith(b'"'):
        return _read_string(text)
    return None if text == b"null" else text.decode()


_read_raw = msgspec.json.Decoder(msgspec.Raw).decode
_read_string = msgspec.json.Decoder(str).decode


def _texts(data_type: pa.DataType) -> _Batch:
    if pa.types.is_struct(data_type):
        return _text_structs(data_type)
    if pa.types.is_map(data_type):
        return _text_maps(data_type)
    if is_string(data_type):
        return _column_of_texts(_strings)
    if pa.types.is_boolean(data_type):
        return _column_of_texts(lambda texts: [_BOOLEANS[text] for text in texts])
    if data_type in INT_BITS:
        check = _objects(data_type)
        return _column_of_texts(lambda texts: check(list(map(int, _only(b"0123456789+-,", texts)))))
    if pa.types.is_float64(data_type):
        return _column_of_texts(_floats)
    if data_type == pa.date32():
        return _column_of_texts(lambda texts: msgspec.convert([text.decode() for text in texts], list[dt.date]))
    one = rule(data_type, "text")
    return lambda values: [None if value is None else one(value) for value in values]


def _column_of_texts(convert: _Batch) -> _Batch:
    """A batch that converts the values that are there, which must be bytes or str, and leaves the None in place."""

    def convert_present(values: Sequence[Any]) -> list[Any]:
        try:
            return convert(values)
        except TypeError:  # some of them are not bytes
            pass
        kinds = {*map(type, values)}
        present = [value for value in values if value is not None] if type(None) in kinds else values
        if kinds - {bytes, type(None)}:
            present = [value.encode() for value in present]
        return _with_nulls(values, convert(present))

    return convert_present


def _strings(texts: Sequence[Any]) -> list[str]:
    if texts and type(texts[0]) is str and {*map(type, texts)} == {str}:
        "".join(texts).encode()  # raises for a lone surrogate, which UTF-8 has no form for
        return list(texts)
    return list(map(bytes.decode, texts))


def _with_nulls(values: Sequence[Any], converted: list[Any]) -> list[Any]:
    """Put None back where *values* has it."""
    if len(converted) == len(values):
        return converted
    following = iter(converted)
    return [None if value is None else next(following) for value in values]


def _only(allowed: bytes, texts: Sequence[bytes]) -> Sequence[bytes]:
    """Raise when *texts* hold other bytes than *allowed*: int() and float() take spaces, underscores and any digits."""
    if b",".join(texts).translate(None, allowed):
        raise ValueError
    return texts


def _floats(texts: Sequence[bytes]) -> list[float]:
    numbers = list(map(float, _only(b"0123456789+-.eE,", texts)))
    # Without the letters of "inf", an infinity can only be an overflow. The sum may overflow alone; the rules decide.
    if not math.isfinite(sum(numbers)):
        raise OverflowError
    return numbers


def _text_structs(data_type: Any) -> _Batch:
    """Field by field, as columns: a hash of Redis comes as a mapping of bytes (or str) to bytes."""
    structs = dicts_of(tuple(field.name for field in data_type))
    columns = [(field.name, field.name.encode(), _texts(field.type)) for field in data_type]

    def convert(values: Sequence[Any]) -> list[Any]:
        if {*map(type, values)} - {dict, type(None)}:
            raise TypeError
        present = [value for value in values if value is not None]
        # All keys are str or all are bytes, or the rules look at it.
        kinds = {*map(type, itertools.chain.from_iterable(present))}
        if len(kinds) > 1 or kinds - {bytes, str}:
            raise TypeError
        named = 1 if bytes in kinds else 0
        parts = [column[2](list(map(operator.methodcaller("get", column[named]), present))) for column in columns]
        return _with_nulls(values, structs(zip(*parts, strict=True)))

    return convert


def _text_maps(data_type: Any) -> _Batch:
    """All keys of a call as one column, all values as another."""
    keys, items = _texts(data_type.key_type), _texts(data_type.item_type)

    def convert(values: Sequence[Any]) -> list[Any]:
        if {*map(type, values)} - {dict, type(None)}:
            raise TypeError
        present = [value for value in values if value is not None]
        flat = keys(list(itertools.chain.from_iterable(present)))
        pairs = zip(flat, items(list(itertools.chain.from_iterable(map(dict.values, present)))), strict=True)
        maps = [dict(itertools.islice(pairs, len(value))) for value in present]
        if None in flat or list(map(len, maps)) != list(map(len, present)):
            raise ValueError  # a null key, or two that are one after conversion
        return _with_nulls(values, maps)

    return convert


class _Anything(type):
    """A type whose call is the hook of msgspec, which then asks whether the result is an instance of the type."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


def msgspec_type(data_type: Any, encoding: Encoding) -> Any:
    """The type that msgspec checks a value against; for what it reads too laxly in JSON, one that calls the rule."""
    if data_type in INT_BITS:
        top = 2 ** (INT_BITS[data_type] - 1)
        return Annotated[int, msgspec.Meta(ge=-top, le=top - 1)]
    if pa.types.is_floating(data_type):
        single = bool(pa.types.is_float32(data_type))
        in_range = Annotated[float, msgspec.Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)] if single else float
        exact = 2**24 if single else 2**53
        number = in_range | Annotated[int, msgspec.Meta(ge=-exact, le=exact)]
        return number if encoding == "json" else number | decimal.Decimal
    if pa.types.is_list(data_type):
        return list[msgspec_type(data_type.value_type, encoding) | None]  # type: ignore[misc]
    if pa.types.is_map(data_type):
        key = msgspec_type(data_type.key_type, "python")
        return dict[key, msgspec_type(data_type.item_type, encoding) | None]  # type: ignore[misc,valid-type]
    if pa.types.is_struct(data_type):
        fields = {field.name: msgspec_type(field.type, encoding) | None for field in data_type}
        return TypedDict("Value", fields, total=False)  # type: ignore[operator]
    simple = {pa.bool_(): bool, pa.date32(): dt.date, pa.null(): type(None)}
    if data_type in simple or is_string(data_type):
        return simple.get(data_type, str)
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        return bytes
    if encoding == "json":
        convert = plain(data_type, "json")
        return _Anything("Hooked", (), {"__new__": lambda _, value: convert(value)})
    if pa.types.is_timestamp(data_type):
        return Annotated[dt.datetime, msgspec.Meta(tz=data_type.tz is not None)]
    if pa.types.is_time(data_type):
        return Annotated[dt.time, msgspec.Meta(tz=False)]
    return decimal.Decimal if pa.types.is_decimal(data_type) else dt.timedelta


def parts_of(data_type: Any) -> Iterator[Any]:
    """*data_type* and all types inside it."""
    yield data_type
    if pa.types.is_nested(data_type):
        for index in range(data_type.num_fields):
            yield from parts_of(data_type.field(index).type)


def keyed_by_text(part: Any) -> bool:
    """Whether *part* is no map of other keys, which msgspec reads from JSON more laxly than the rules: -0 beside 0."""
    return not pa.types.is_map(part) or is_string(part.key_type)


def named_in_ascii(part: Any) -> bool:
    return not pa.types.is_struct(part) or all(field.name.isascii() for field in part)


def _arrow_decides(part: Any) -> bool:
    """
    True when only Arrow tells whether a value that msgspec took is right.

    Decimals, timestamps and durations have a smaller range in Arrow. A Decimal for a double would be rounded by
    msgspec, so it is let through as it is, and Arrow refuses it.
    """
    is_ = pa.types
    kinds = is_.is_decimal(part), is_.is_timestamp(part), is_.is_duration(part), is_.is_floating(part)
    return any(kinds)
