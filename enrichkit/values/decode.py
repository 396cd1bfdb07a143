"""
Decoding of all raw answers of a call at once, into values that `pa.array` takes without loss.

`rules.py` has the table of the values that each type takes. This module gives the same results faster: msgspec checks
all values of a call in C against a type made from the declared type. In some cases, msgspec is laxer than the rules:
for a double, it would accept an int above 2**53, which then loses digits, and it would round a fraction of a second. In
these cases, the type given to msgspec admits fewer values than the rules do, so every value that msgspec accepts is
right. The values that msgspec refuses go to the rules, which convert a value or say what is wrong with it.

Times per value, measured on one core of a busy machine with 500 correct values a call: a string or bigint 20 ns; a
struct of three plain fields 250 ns from Python and 270 ns from JSON; text to string 75 ns, to bigint 170 ns, to a
struct of three fields 1.2 us; a decimal or a time inside JSON 1.5 us. A bad value costs 5 to 10 us more for each value
of its chunk of at most 16 values, because the rules decode the whole chunk.

The module is longer than others because each kind of type needs a few lines here.
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

from ..columnar import dicts_of
from ..errors import ConfigError, PermanentError
from .rules import rule
from .scalars import FLOAT_MAX, INT_BITS, Encoding, MismatchError, Number, Rule, is_string, plain_rule
from .types import is_variant

__all__ = ["Decode", "decoder", "has_ascii_names", "has_text_keys", "msgspec_type", "parts_of"]

Decode: TypeAlias = Callable[[Sequence[Any]], tuple[list[Any], dict[int, PermanentError]]]
"""Takes the n answers of a call; returns n values, and the errors of the answers that cannot be decoded, by index."""

_Batch: TypeAlias = Callable[[Sequence[Any]], list[Any]]
"""Converts n values at once; raises an exception of any type when one of the values is not clearly right."""

_CHUNK = 16
_BOOLEANS = {b"true": True, b"1": True, b"false": False, b"0": False}
_NATIVE = (bytes, bytearray, memoryview, decimal.Decimal, dt.datetime, dt.date, dt.time, dt.timedelta)


@functools.lru_cache(maxsize=256)
def decoder(data_type: pa.DataType, encoding: Encoding) -> Decode:
    """
    Return the function that decodes the answers of one call for a column of the Arrow type *data_type*.

    The function takes n raw answers in *encoding*; None is a null. It returns n Python values, and a dict of the errors
    by index; an answer with an error has the value None. `pa.array(values, data_type)` takes the values without
    overflow, without a lost time zone, and without rounding, except from a double to a float. A bad answer has no
    effect on other answers, and no error shows a value.

    If the declared type is string and the encoding is JSON, a JSON string gives its content, and any other document
    gives its unchanged text, so that `from_json` can read it later. For a string declared inside a struct, an array or
    a map, only a JSON string is accepted.

    Args:
        data_type: A type that `enrichkit.values.types.arrow_type_of` returns.
        encoding: `"python"`, `"json"` or `"text"`, see `Connector.encoding`.

    Raises:
        ConfigError: *encoding* is unknown, or a worker cannot build the type.

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
    if any(map(is_variant, parts)) or (encoding != "text" and not all(map(has_ascii_names, parts))):
        # The rules decode all values of a type with a variant or a field whose name is not ASCII: msgspec builds no
        # variants, and msgspec 0.22 does not find such a field of a TypedDict.
        batch = _batch_of(one)

    def decode(values: Sequence[Any]) -> tuple[list[Any], dict[int, PermanentError]]:
        try:
            return batch(values), {}
        except Exception:  # noqa: BLE001  the rules decode the values again and say what is wrong
            return _decode_in_chunks(values, batch, one)

    return decode


def _batch_of(one: Rule) -> _Batch:
    return lambda values: [None if value is None else one(value) for value in values]


def _decode_in_chunks(values: Sequence[Any], batch: _Batch, one: Rule) -> tuple[list[Any], dict[int, PermanentError]]:
    """Decode in small chunks, so that only the chunks with a bad value are decoded by the slower rules."""
    result: list[Any] = []
    errors: dict[int, PermanentError] = {}
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        if len(values) > _CHUNK:
            try:
                result += batch(chunk)
                continue
            except Exception:  # noqa: BLE001, S110  the loop below applies the rules
                pass
        for value in chunk:
            try:
                result.append(None if value is None else one(value))
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001  the methods of an object may raise anything
                errors[len(result)] = _error(error)
                result.append(None)
    return result, errors


def _error(error: Exception) -> PermanentError:
    if isinstance(error, MismatchError):
        return PermanentError(str(error))
    return PermanentError(
        f"The value cannot be read: looking at it raised {type(error).__name__}; it must be a plain Python object. "
        "Convert it in the connector."
    )


def _objects(data_type: pa.DataType) -> _Batch:
    """Return the function that decodes a batch of Python objects."""
    element = msgspec_type(data_type, "python")
    list_type = list[element | None]  # type: ignore[valid-type]  # made at run time
    # `msgspec.convert` accepts lone surrogates, so the result is checked: msgspec's encoder raises for them, in a third
    # of the time that Arrow takes to make an array.
    needs_arrow = any(map(_needs_arrow, parts_of(data_type)))
    check: Callable[[Any], Any] = functools.partial(pa.array, type=data_type) if needs_arrow else msgspec.msgpack.encode
    needs_check = needs_arrow or any(map(is_string, parts_of(data_type)))

    def convert(values: Sequence[Any]) -> list[Any]:
        result: list[Any] = msgspec.convert(values, list_type, strict=True, builtin_types=_NATIVE)
        if needs_check:
            check(result)
        return result

    return convert


def _documents(data_type: pa.DataType) -> _Batch:
    """Return the function that decodes a batch of JSON documents."""
    if is_string(data_type):
        return _batch_of(_text_of_document)
    if not all(map(has_text_keys, parts_of(data_type))):
        return _batch_of(rule(data_type, "json"))
    document_type = msgspec_type(data_type, "json") | None
    return _batch_of(msgspec.json.Decoder(document_type, dec_hook=operator.call, float_hook=Number).decode)


def _text_of_document(value: Any) -> str | None:
    """Return the content of a JSON string, the text of any other JSON document, and None for a null."""
    if value[:1] in (b'"', '"'):
        return _read_string(value)
    text = bytes(_read_raw(value)).strip(b" \t\r\n")
    if text.startswith(b'"'):
        return _read_string(text)
    return None if text == b"null" else text.decode()


_read_raw = msgspec.json.Decoder(msgspec.Raw).decode
_read_string = msgspec.json.Decoder(str).decode


def _texts(data_type: pa.DataType) -> _Batch:
    """Return the function that decodes a batch of texts."""
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
        return _column_of_texts(lambda texts: check(list(map(int, _require_bytes(b"0123456789+-,", texts)))))
    if pa.types.is_float64(data_type):
        return _column_of_texts(_floats)
    if data_type == pa.date32():
        return _column_of_texts(lambda texts: msgspec.convert([text.decode() for text in texts], list[dt.date]))
    return _batch_of(rule(data_type, "text"))


def _column_of_texts(convert: _Batch) -> _Batch:
    """
    Return a function that applies *convert* to all values of a batch except None, and keeps each None in place.

    The values are bytes or str. *convert* must accept bytes. If *convert* raises TypeError for other values, it is
    called again without the None values and with each str encoded as UTF-8.
    """

    def convert_present(values: Sequence[Any]) -> list[Any]:
        try:
            return convert(values)
        except TypeError:  # some of the values are not bytes
            pass
        kinds = {*map(type, values)}
        present = [value for value in values if value is not None] if type(None) in kinds else values
        if kinds - {bytes, type(None)}:
            present = [value.encode() for value in present]
        return _with_nulls(values, convert(present))

    return convert_present


def _strings(texts: Sequence[Any]) -> list[str]:
    if texts and type(texts[0]) is str and {*map(type, texts)} == {str}:
        "".join(texts).encode()  # raises for a lone surrogate, which UTF-8 cannot encode
        return list(texts)
    return list(map(bytes.decode, texts))


def _with_nulls(values: Sequence[Any], converted: list[Any]) -> list[Any]:
    """Return *converted* with None inserted wherever *values* has None."""
    if len(converted) == len(values):
        return converted
    remaining = iter(converted)
    return [None if value is None else next(remaining) for value in values]


def _require_bytes(allowed: bytes, texts: Sequence[bytes]) -> Sequence[bytes]:
    """
    Return *texts*; raise `ValueError` if they hold a byte that is not in *allowed*.

    Without this check, `int` and `float` would also accept spaces, underscores and the digits of all scripts.
    """
    if b",".join(texts).translate(None, allowed):
        raise ValueError
    return texts


def _floats(texts: Sequence[bytes]) -> list[float]:
    numbers = list(map(float, _require_bytes(b"0123456789+-.eE,", texts)))
    # The letters of "inf" are not allowed, so an infinite number can only come from an overflow. The sum may overflow
    # although no number does; then the rules decode the values, which is only slower.
    if not math.isfinite(sum(numbers)):
        raise OverflowError
    return numbers


def _text_structs(data_type: Any) -> _Batch:
    """
    Return the function that decodes a batch of mappings from the names of fields to texts, such as Redis hashes.

    The function converts the values field by field, each field as one column.
    """
    structs = dicts_of(tuple(field.name for field in data_type))
    columns = [(field.name, field.name.encode(), _texts(field.type)) for field in data_type]

    def convert(values: Sequence[Any]) -> list[Any]:
        if {*map(type, values)} - {dict, type(None)}:
            raise TypeError
        present = [value for value in values if value is not None]
        # All names must be str, or all must be bytes; the rules decode mappings with a mix of both.
        kinds = {*map(type, itertools.chain.from_iterable(present))}
        if len(kinds) > 1 or kinds - {bytes, str}:
            raise TypeError
        name = 1 if bytes in kinds else 0
        parts = [column[2](list(map(operator.methodcaller("get", column[name]), present))) for column in columns]
        return _with_nulls(values, structs(zip(*parts, strict=True)))

    return convert


def _text_maps(data_type: Any) -> _Batch:
    """
    Return the function that decodes a batch of mappings of texts.

    The function converts the keys of all mappings as one column, and their values as another.
    """
    keys, items = _texts(data_type.key_type), _texts(data_type.item_type)

    def convert(values: Sequence[Any]) -> list[Any]:
        if {*map(type, values)} - {dict, type(None)}:
            raise TypeError
        present = [value for value in values if value is not None]
        flat = keys(list(itertools.chain.from_iterable(present)))
        pairs = zip(flat, items(list(itertools.chain.from_iterable(map(dict.values, present)))), strict=True)
        maps = [dict(itertools.islice(pairs, len(value))) for value in present]
        if None in flat or list(map(len, maps)) != list(map(len, present)):
            raise ValueError  # a key is null, or two keys are the same after conversion
        return _with_nulls(values, maps)

    return convert


class _HookType(type):
    """
    The metaclass of a type whose constructor converts a value; msgspec's `dec_hook` calls the constructor.

    After the hook, msgspec checks that the result is an instance of the type. This metaclass lets every object pass
    this check.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return True


def msgspec_type(data_type: Any, encoding: Encoding) -> Any:
    """
    Return the type against which msgspec checks a value that is declared as *data_type*.

    For a type that msgspec would read too laxly from JSON, the result is a class made here, for which msgspec calls
    `dec_hook`. The hook applies the stricter `plain_rule`.
    """
    if pa.types.is_list(data_type):
        return list[msgspec_type(data_type.value_type, encoding) | None]  # type: ignore[misc]
    if pa.types.is_map(data_type):
        key = msgspec_type(data_type.key_type, "python")
        return dict[key, msgspec_type(data_type.item_type, encoding) | None]  # type: ignore[misc,valid-type]
    if pa.types.is_struct(data_type):
        fields = {field.name: msgspec_type(field.type, encoding) | None for field in data_type}
        return TypedDict("Value", fields, total=False)  # type: ignore[operator]
    return _plain_msgspec_type(data_type, encoding)


def _plain_msgspec_type(data_type: Any, encoding: Encoding) -> Any:
    if data_type in INT_BITS:
        top = 2 ** (INT_BITS[data_type] - 1)
        return Annotated[int, msgspec.Meta(ge=-top, le=top - 1)]
    if pa.types.is_floating(data_type):
        single = bool(pa.types.is_float32(data_type))
        in_range = Annotated[float, msgspec.Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)] if single else float
        exact = 2**24 if single else 2**53
        number = in_range | Annotated[int, msgspec.Meta(ge=-exact, le=exact)]
        return number if encoding == "json" else number | decimal.Decimal
    simple = {pa.bool_(): bool, pa.date32(): dt.date, pa.null(): type(None)}
    if data_type in simple or is_string(data_type):
        return simple.get(data_type, str)
    if pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type):
        return bytes
    if encoding == "json":
        convert = plain_rule(data_type, "json")
        return _HookType("Hooked", (), {"__new__": lambda _, value: convert(value)})
    if pa.types.is_timestamp(data_type):
        return Annotated[dt.datetime, msgspec.Meta(tz=data_type.tz is not None)]
    if pa.types.is_time(data_type):
        return Annotated[dt.time, msgspec.Meta(tz=False)]
    return decimal.Decimal if pa.types.is_decimal(data_type) else dt.timedelta


def parts_of(data_type: Any) -> Iterator[Any]:
    """Yield *data_type* and all types inside it."""
    yield data_type
    if pa.types.is_nested(data_type):
        for index in range(data_type.num_fields):
            yield from parts_of(data_type.field(index).type)


def has_text_keys(part: Any) -> bool:
    """
    Return whether *part* is not a map, or is a map whose keys are strings.

    msgspec reads keys of other types more laxly than the rules: for example, it accepts an object with the keys -0 and
    0, which are the same number.
    """
    return not pa.types.is_map(part) or is_string(part.key_type)


def has_ascii_names(part: Any) -> bool:
    """Return whether *part* is not a struct, or is a struct in which all names of fields are ASCII."""
    return not pa.types.is_struct(part) or all(field.name.isascii() for field in part)


def _needs_arrow(part: Any) -> bool:
    """
    Return whether Arrow must check values of the type *part* after msgspec has accepted them.

    Arrow may refuse decimals, timestamps and durations that msgspec accepts, because they are out of Arrow's range. If
    a double is declared, msgspec would round a Decimal. So the type given to msgspec lets the Decimal pass unchanged,
    and Arrow refuses it.
    """
    is_ = pa.types
    kinds = is_.is_decimal(part), is_.is_timestamp(part), is_.is_duration(part), is_.is_floating(part)
    return any(kinds)
