"""
The conversion rules: which values each declared Spark type takes, in each encoding (the form in which a connector
returns values). A rule converts a value exactly or raises an error; it never guesses.

| declared | `python` | `json` | `text` |
|---|---|---|---|
| string | str, UUID | a string; at the top level any document, as its text | UTF-8 |
| binary | bytes, bytearray, memoryview | a base64 string | the bytes |
| boolean | bool | true, false | true, false, 1, 0 in any case |
| tinyint ... bigint | int in range | a whole number in range, without `.` or exponent | digits with an optional sign |
| float, double | float; an int that is exact | a number; a whole one must be exact | a number, nan, inf |
| decimal(p,s) | Decimal or int that fits exactly | a number or string that fits exactly | a number that fits exactly |
| date | date, not datetime | `2024-01-31` | as in JSON |
| timestamp | datetime with a time zone | `2024-01-31T10:00:00.123456Z`, zone required | as in JSON |
| timestamp_ntz | datetime without a time zone | the same without a zone | as in JSON |
| time | time without a time zone | `10:00:00.123456` | as in JSON |
| interval day to second | timedelta | ISO 8601, `P1DT2H3.5S` | as in JSON |
| array | list, tuple, set | an array | JSON |
| map | mapping | an object, its keys as `text` | a mapping of texts, or JSON |
| struct | mapping, dataclass, NamedTuple | an object | a mapping of texts, or JSON |
| variant | None, bool, int, float, Decimal, str, UUID, bytes, date, datetime, lists, mappings | any document | JSON |
| void | None | null | nothing |

None and JSON null are null. An absent field is null, and a field that is not declared is ignored. If a JSON object has
two fields of the same name, the last one is used. NaN is a value, never a null; JSON has no NaN. A value of Spark's
type float is rounded to 32 bits; a number that would overflow is refused. In times and durations, digits beyond
microseconds must be zeros. Scalars and arrays of NumPy are treated as the Python objects that their `tolist` returns.
In a variant, a number without an exponent keeps all its digits; more than 38 digits are refused.

A rule converts one value at a time, so it is slow, but easy to read. `enrichkit.values.decode` is fast and gives the
same results.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import pyarrow as pa

from ..errors import ConfigError
from .scalars import (
    Encoding,
    MismatchError,
    Number,
    Rule,
    describe_kind,
    describe_non_unicode,
    is_string,
    plain_rule,
    unsupported_type_error,
    without_numpy,
)
from .types import is_variant, spark_name
from .variant import variant_rule

__all__ = ["rule"]


def rule(data_type: pa.DataType, encoding: Encoding) -> Rule:
    """
    Return the rule that converts one value to *data_type*; raises `ConfigError` if a worker cannot build this type.

    >>> rule(pa.int8(), "text")(b"+12")
    12
    """
    convert_part = _part_rule(data_type, encoding)
    if encoding != "json":
        return convert_part
    name, takes_document = spark_name(data_type), is_string(data_type)

    def convert_document(value: Any) -> Any:
        text, parsed = _parse(value, name)
        if parsed is None:
            return None
        # If a string is declared, the result is the content of a JSON string, or the text of any other document.
        return convert_part(text.strip(" \t\r\n") if takes_document and type(parsed) is not str else parsed)

    return convert_document


def _part_rule(data_type: pa.DataType, encoding: Encoding) -> Rule:
    """
    Return the rule for a value or a part of it; with the encoding `json`, the rule takes JSON that is parsed already.
    """
    if not pa.types.is_nested(data_type):
        return plain_rule(data_type, encoding)
    if is_variant(data_type):
        return _variant_rule(encoding)
    if pa.types.is_struct(data_type):
        convert = _struct_rule(data_type, encoding)
    elif pa.types.is_map(data_type):
        convert = _map_rule(data_type, encoding)
    elif pa.types.is_list(data_type):
        convert = _list_rule(data_type, encoding)
    else:
        raise unsupported_type_error(data_type)
    if encoding != "text":
        return convert
    from_json = rule(data_type, "json")
    return lambda value: from_json(value) if isinstance(value, str | bytes | bytearray | memoryview) else convert(value)


def _variant_rule(encoding: Encoding) -> Rule:
    convert = variant_rule(encoding)
    if encoding != "text":
        return convert
    return lambda value: None if (parsed := _parse(value, "variant")[1]) is None else convert(parsed)


def _list_rule(data_type: Any, encoding: Encoding) -> Rule:
    item, name = _part_rule(data_type.value_type, "json" if encoding == "text" else encoding), spark_name(data_type)
    kinds: Any = (list, tuple, set, frozenset) if encoding == "python" else (list,)
    takes = "a list, tuple or set" if encoding == "python" else "an array"

    def convert(value: Any) -> list[Any]:
        elements = without_numpy(value)
        if not isinstance(elements, kinds):
            raise MismatchError(describe_kind(elements, encoding), name, takes)
        return [_convert_part(item, element, f"[{index}]") for index, element in enumerate(elements)]

    return convert


def _map_rule(data_type: Any, encoding: Encoding) -> Rule:
    if pa.types.is_nested(data_type.key_type):
        raise unsupported_type_error(data_type.key_type, " as the key of a map")
    # The keys of a JSON object are strings. If another type is declared for the keys, the rules of the encoding `text`
    # convert each string.
    key = _part_rule(data_type.key_type, "python" if encoding == "python" else "text")
    item, name = _part_rule(data_type.item_type, encoding), spark_name(data_type)
    takes = "an object" if encoding == "json" else "a mapping"

    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise MismatchError(describe_kind(value, encoding), name, takes)
        if None in value:
            raise MismatchError("one of its keys is null", name, f"{takes} without null keys")
        # The path of an error holds "{key}" in place of the key, because error messages must not show data.
        result = {_convert_part(key, k, "{key}"): _convert_part(item, v, "{value}") for k, v in value.items()}
        if len(result) != len(value):
            raise MismatchError("two of its keys are the same", name, f"{takes} whose keys differ")
        return result

    return convert


def _struct_rule(data_type: Any, encoding: Encoding) -> Rule:
    name = spark_name(data_type)
    fields = [(field.name, field.name.encode(), _part_rule(field.type, encoding)) for field in data_type]
    if len({field for field, *_ in fields}) != len(fields):
        raise ConfigError(f"The type {name} has two fields of one name; names must differ. Rename one in returns=.")
    takes = {"python": "a mapping, dataclass or NamedTuple", "json": "an object", "text": "a mapping"}[encoding]
    key_kinds = (str, bytes) if encoding == "text" else (str,)

    def convert(value: Any) -> dict[str, Any]:
        mapping = _fields_of(value) if encoding == "python" else value
        if not isinstance(mapping, Mapping):
            raise MismatchError(describe_kind(value, encoding), name, takes)
        for k in mapping:
            if not isinstance(k, key_kinds):
                raise MismatchError(
                    f"one of its keys is of type {type(k).__name__}", name, f"{takes} with names as keys"
                )
        return {
            field: _convert_part(convert_field, mapping.get(field, mapping.get(encoded)), f".{field}")
            for field, encoded, convert_field in fields
        }

    return convert


def _convert_part(convert: Rule, value: Any, path: str) -> Any:
    """Return *value* converted, or None for None. If *convert* raises a `MismatchError`, prepend *path* to its path."""
    try:
        return None if value is None else convert(value)
    except MismatchError as error:
        error.path = path + error.path
        raise


def _fields_of(value: Any) -> Any:
    """Return a dataclass, a NamedTuple or a record of a client package as a mapping, and any other value as it is."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return value._asdict()
    # The records of asyncpg and sqlite3 have a method `keys`, but are no Mapping, so `dict` converts them.
    return dict(value) if not isinstance(value, Mapping) and hasattr(value, "keys") else value


def _parse(value: Any, name: str) -> tuple[str, Any]:
    """
    Return the text of one JSON document, and the parsed document, whose numbers keep all digits.

    A byte that is not UTF-8 becomes a lone surrogate. The rule of the part that holds the surrogate refuses it. A part
    that is not declared has no rule, so the byte is ignored there, as msgspec ignores it.
    """
    takes = "one JSON document in UTF-8"
    try:
        text = value if isinstance(value, str) else bytes(memoryview(value)).decode(errors="surrogateescape")
        return text, json.loads(text, parse_int=_parse_int, parse_float=Number, parse_constant=_refuse_constant)
    except MismatchError as error:
        error.type_name, error.takes = name, takes
        raise
    except TypeError:
        problem = f"it is of type {type(value).__name__}"
    except RecursionError:
        problem = "it is nested too deeply"
    except json.JSONDecodeError as error:
        problem = _describe_syntax_error(text, error)
    raise MismatchError(problem, name, takes)


def _describe_syntax_error(text: str, error: json.JSONDecodeError) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as encode_error:
        return describe_non_unicode(encode_error)
    if not text.strip():
        return "it is empty"
    if text.startswith("\ufeff"):
        return "it begins with a byte order mark"
    if error.msg == "Extra data":
        return f"it goes on after the end of the document at character {error.pos}"
    # The parser's message can be shown, because it does not quote the text.
    return f"it is not JSON ({error.msg} at character {error.pos})"


def _parse_int(digits: str) -> int:
    return int(digits[:400])  # cut, because no declared type holds 400 digits, and long texts slow `int` down


def _refuse_constant(name: str) -> NoReturn:
    raise MismatchError(f"it holds {name}, which is not JSON")
