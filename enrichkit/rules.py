"""
What one value of each declared type may be, in each encoding. Exact, or an error; never a guess.

| declared | `python` | `json` | `text` |
|---|---|---|---|
| string | str, UUID | a string; at the top level any document, as its text | UTF-8 |
| binary | bytes, bytearray, memoryview | a base64 string | the bytes |
| boolean | bool | true, false | true, false, 1, 0 in any case |
| tinyint ... bigint | int in range | a whole number in range, without `.` or exponent | digits with an optional sign |
| float, double | float; an int that is exact | a number; a whole one must be exact | a number, nan, inf |
| decimal(p,s) | Decimal or int that fits exactly | a number or string that fits exactly | likewise |
| date | date, not datetime | `2024-01-31` | likewise |
| timestamp | datetime with a time zone | `2024-01-31T10:00:00.123456Z`, zone required | likewise |
| timestamp_ntz | datetime without a time zone | the same without a zone | likewise |
| time | time without a time zone | `10:00:00.123456` | likewise |
| interval day to second | timedelta | ISO 8601, `P1DT2H3.5S` | likewise |
| array | list, tuple, set | an array | JSON |
| map | mapping | an object, its keys as `text` | a mapping of texts, or JSON |
| struct | mapping, dataclass, NamedTuple | an object | a mapping of texts, or JSON |
| variant | None, bool, int, float, Decimal, str, UUID, bytes, date, datetime, lists, mappings | any document | JSON |
| void | None | null | nothing |

None and JSON null are null. A field that is absent is null and one that is not declared is ignored; of two JSON fields
with one name the last counts. NaN is a value, never a null, and JSON has none. A value of type float is rounded to 32
bits, but neither it nor anything else overflows. Digits beyond microseconds must be zeros. Scalars and arrays of NumPy
count as the Python objects that `tolist` makes of them. In a variant a number without an exponent keeps its digits, at
most 38.

This module is the slow, readable authority, one value at a time; `enrichkit.decode` is fast and agrees with it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import pyarrow as pa

from .errors import ConfigError
from .scalars import Encoding, Number, Refused, Rule, is_string, kind_of, not_unicode, plain, unsupported, without_numpy
from .types import is_variant, spark_name
from .variant import variant_rule

__all__ = ["rule"]


def rule(data_type: pa.DataType, encoding: Encoding) -> Rule:
    """
    Return the rule for one value; raises `ConfigError` for a type that a worker does not build.

    >>> rule(pa.int8(), "text")(b"+12")
    12
    """
    inner = _part(data_type, encoding)
    if encoding != "json":
        return inner
    name, whole = spark_name(data_type), is_string(data_type)

    def of_document(value: Any) -> Any:
        text, parsed = _parse(value, name)
        if parsed is None:
            return None
        return inner(text.strip(" \t\r\n") if whole and type(parsed) is not str else parsed)

    return of_document


def _part(data_type: pa.DataType, encoding: Encoding) -> Rule:
    if not pa.types.is_nested(data_type):
        return plain(data_type, encoding)
    if is_variant(data_type):
        return _variant(encoding)
    if pa.types.is_struct(data_type):
        inner = _struct(data_type, encoding)
    elif pa.types.is_map(data_type):
        inner = _map(data_type, encoding)
    elif pa.types.is_list(data_type):
        inner = _list(data_type, encoding)
    else:
        raise unsupported(data_type)
    if encoding != "text":
        return inner
    from_json = rule(data_type, "json")
    return lambda value: from_json(value) if isinstance(value, str | bytes | bytearray | memoryview) else inner(value)


def _variant(encoding: Encoding) -> Rule:
    inner = variant_rule(encoding)
    if encoding != "text":
        return inner
    return lambda value: None if (parsed := _parse(value, "variant")[1]) is None else inner(parsed)


def _list(data_type: Any, encoding: Encoding) -> Rule:
    item, name = _part(data_type.value_type, "json" if encoding == "text" else encoding), spark_name(data_type)
    kinds: Any = (list, tuple, set, frozenset) if encoding == "python" else (list,)
    takes = "a list, tuple or set" if encoding == "python" else "an array"

    def convert(value: Any) -> list[Any]:
        elements = without_numpy(value)
        if not isinstance(elements, kinds):
            raise Refused(kind_of(elements, encoding), name, takes)
        return [_inside(item, element, f"[{index}]") for index, element in enumerate(elements)]

    return convert


def _map(data_type: Any, encoding: Encoding) -> Rule:
    if pa.types.is_nested(data_type.key_type):
        raise unsupported(data_type.key_type, " as the key of a map")
    # The keys of a JSON object are strings, which stand for keys of other types as text does.
    key = _part(data_type.key_type, "python" if encoding == "python" else "text")
    item, name = _part(data_type.item_type, encoding), spark_name(data_type)
    takes = "an object" if encoding == "json" else "a mapping"

    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise Refused(kind_of(value, encoding), name, takes)
        if None in value:
            raise Refused("one of its keys is null", name, f"{takes} without null keys")
        # A key is data: the path does not show it.
        result = {_inside(key, k, "{key}"): _inside(item, v, "{value}") for k, v in value.items()}
        if len(result) != len(value):
            raise Refused("two of its keys are the same", name, f"{takes} whose keys differ")
        return result

    return convert


def _struct(data_type: Any, encoding: Encoding) -> Rule:
    name = spark_name(data_type)
    fields = [(field.name, field.name.encode(), _part(field.type, encoding)) for field in data_type]
    if len({field for field, *_ in fields}) != len(fields):
        raise ConfigError(f"The type {name} has two fields of one name; names must differ. Rename one in returns=.")
    takes = {"python": "a mapping, dataclass or NamedTuple", "json": "an object", "text": "a mapping"}[encoding]
    key_kinds = (str, bytes) if encoding == "text" else (str,)

    def convert(value: Any) -> dict[str, Any]:
        mapping = _fields_of(value) if encoding == "python" else value
        if not isinstance(mapping, Mapping):
            raise Refused(kind_of(value, encoding), name, takes)
        for k in mapping:
            if not isinstance(k, key_kinds):
                raise Refused(f"one of its keys is of type {type(k).__name__}", name, f"{takes} with names as keys")
        return {
            field: _inside(convert_field, mapping.get(field, mapping.get(encoded)), f".{field}")
            for field, encoded, convert_field in fields
        }

    return convert


def _inside(convert: Rule, value: Any, path: str) -> Any:
    try:
        return None if value is None else convert(value)
    except Refused as refused:
        refused.path = path + refused.path
        raise


def _fields_of(value: Any) -> Any:
    """The mapping in a dataclass, a NamedTuple or a record of a driver; anything else as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return value._asdict()
    # Records of drivers (asyncpg, sqlite3) have keys but are no Mapping.
    return dict(value) if not isinstance(value, Mapping) and hasattr(value, "keys") else value


def _parse(value: Any, name: str) -> tuple[str, Any]:
    """
    Return the text of one JSON document, and what it says with all the digits of its numbers.

    Bytes that are no UTF-8 come as lone surrogates, which the part that they are in refuses. A part that is not
    declared may hold anything that JSON has, as msgspec has it too.
    """
    takes = "one JSON document in UTF-8"
    try:
        text = value if isinstance(value, str) else bytes(memoryview(value)).decode(errors="surrogateescape")
        return text, json.loads(text, parse_int=_parse_int, parse_float=Number, parse_constant=_refuse_constant)
    except Refused as refused:
        refused.type_name, refused.takes = name, takes
        raise
    except TypeError:
        problem = f"it is of type {type(value).__name__}"
    except RecursionError:
        problem = "it is nested too deeply"
    except json.JSONDecodeError as error:
        # The parser's messages say what is wrong and where; they do not quote the text.
        problem = f"it is not JSON ({error.msg} at character {error.pos})"
        if not text.strip():
            problem = "it is empty"
        elif text.startswith("\ufeff"):
            problem = "it begins with a byte order mark"
        elif error.msg == "Extra data":
            problem = f"it goes on after the end of the document at character {error.pos}"
        try:
            text.encode()
        except UnicodeEncodeError as lone:
            problem = not_unicode(lone)
    raise Refused(problem, name, takes)


def _parse_int(digits: str) -> int:
    return int(digits[:400])  # no declared type holds so many, and `int` is quadratic


def _refuse_constant(name: str) -> NoReturn:
    raise Refused(f"it holds {name}, which is not JSON")
