"""Texts of the command line -> keys as a worker makes them of columns, and options of `enrich`."""

from __future__ import annotations

import csv
import json
import re
import reprlib
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..options import Cache, Options, Retry, did_you_mean
from ..report import plural

if TYPE_CHECKING:
    import pyarrow as pa

    from ..connector import ConnectorConfig, Key

__all__ = ["ArgumentError", "keys_of", "options_of", "types_of"]


class ArgumentError(ConfigError):
    """What the command line says of a key is wrong."""


_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def options_of(texts: Iterable[str]) -> dict[str, Any]:
    """
    Return the options that *texts* of the form ``NAME=VALUE`` give, checked as `enrich` does.

    A value is one of TOML, or text that needs no quotes; `none` is None. The parts of `retry` and `cache` have a dot.

    Raises:
        ConfigError: A text is not of that form, or an option is wrong.

    >>> options_of(["timeout=0.5", "on_error=null", "cache.ttl=60", "retry=none"])
    {'timeout': 0.5, 'on_error': 'null', 'cache': Cache(ttl=60, max_bytes=134217728, missing_ttl=None), 'retry': None}
    """
    given: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        option, _, part = name.strip().partition(".")
        if not equals or not re.fullmatch(r"\w+", option) or not re.fullmatch(r"\w*", part):
            raise ConfigError(f"The option is {text!r}; it must be NAME=VALUE, for example timeout=0.5.")
        if not part:
            given[option] = _value(value.strip())
        elif isinstance(parts := given.setdefault(option, {}), dict):
            parts[part] = _value(value.strip())
        else:
            raise ConfigError(f"The option {option} is given whole and in parts. Give it once, for example {text}.")
    for option, cls in (("retry", Retry), ("cache", Cache)):
        if isinstance(given.get(option), dict):
            given[option] = _parts(cls, option, given[option])
    Options.of(given)
    return given


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _parts(cls: type[Retry | Cache], option: str, parts: dict[str, Any]) -> Retry | Cache:
    known = [field.name for field in fields(cls)]
    for part in parts:
        if part not in known:
            raise ConfigError(
                f"{cls.__name__} has no {part!r}.{did_you_mean(part, known)} It has: {', '.join(known)}. "
                f"For example {option}.{known[0]}=3."
            )
    try:
        return cls(**parts)
    except TypeError as error:  # one that is required is not there
        raise ConfigError(f"{cls.__name__} needs {known[0]!r}. Add, for example, {option}.{known[0]}=60.") from error


def keys_of(texts: Sequence[str], types: str | None, config: ConnectorConfig) -> list[Key]:
    """
    Return the distinct keys that *texts* stand for.

    Args:
        texts: One key each. Where a key has several parts they are separated by commas, as in a CSV file.
        types: Spark types of the key columns, separated by commas; None: strings, as many as *config* wants.
        config: Of the source.

    Raises:
        ArgumentError: A type is unknown, or a text is no UTF-8, or no key of that type or number of parts.

    >>> from enrichkit import ConnectorConfig
    >>> keys_of(["7", "7", "8"], "bigint", ConnectorConfig())
    [7, 8]
    >>> keys_of(["eu,7", '"a,b",8'], "string,int", ConnectorConfig())
    [('eu', 7), ('a,b', 8)]
    """
    import pyarrow as pa

    from ..keys import encode

    if not texts:
        return []

    names = types_of(types, config)
    columns = [_arrow_type(name) for name in names]
    rows = [_parts_of(text, len(names)) for text in texts]
    for text, row in zip(texts, rows, strict=True):
        if len(row) != len(names):
            raise ArgumentError(
                f"The key {text!r} has {plural(len(row), 'part')}; it must have {len(names)}, separated by commas. For "
                f"example {json.dumps(','.join('ab'[: len(names)]))}; a part with a comma stands in double quotes."
            )
    arrays = []
    for name, column, parts in zip(names, columns, zip(*rows, strict=True), strict=True):
        try:
            arrays.append(pa.array(parts, pa.string()).cast(column))
        except pa.ArrowInvalid as error:
            raise ArgumentError(
                f"A key is no {name}: {error}. Give keys of that type, or their type with --type, for example "
                "--type bigint."
            ) from error
    keys, codes = encode(arrays)
    if codes.null_count:
        raise ArgumentError("A key is NaN, which is no key: a row with it asks nobody and gets a null. Leave it out.")
    return keys.objects()


def _parts_of(text: str, count: int) -> list[str]:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # Python has put surrogates in the place of bytes that are no UTF-8
        raise ArgumentError(
            f"The key {text!r} is no UTF-8, which a key must be. Choose a locale of UTF-8 for the terminal, or convert "
            "the file, for example with iconv -f latin1 -t utf-8."
        ) from error
    try:
        return [text] if count == 1 else next(csv.reader([text]), [])
    except csv.Error as error:
        raise ArgumentError(
            f"The key {reprlib.repr(text)} is no line of CSV; a line break must stand in double quotes, and a part "
            f"must have at most {csv.field_size_limit():,} characters. Put quotes around the part, for example "
            "$'\"a\\nb\",c', or leave the key out."
        ) from error


def types_of(types: str | None, config: ConnectorConfig) -> list[str]:
    """
    Return the Spark types of the key columns, one for each.

    Raises:
        ArgumentError: There are more or fewer than *config* wants.

    >>> from enrichkit import ConnectorConfig
    >>> types_of("string, decimal(10,2)", ConnectorConfig())
    ['string', 'decimal(10,2)']
    """
    names = re.findall(r"[^,(]+(?:\([^)]*\))?", types.lower()) if types else ["string"] * (config.key_parts or 1)
    if config.key_parts not in (None, len(names)):
        raise ArgumentError(
            f"{plural(len(names), 'key type')} given; {type(config).__name__} needs {config.key_parts}, one for each "
            "key column. For example --type string,bigint."
        )
    return [name.strip() for name in names]


def _arrow_type(name: str) -> pa.DataType:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestamp_ntz": pa.timestamp("us"),
    }
    if name in types:
        return types[name]
    if decimal := _DECIMAL.fullmatch(name.replace(" ", "")):
        precision, scale = int(decimal[1]), int(decimal[2])
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    raise ArgumentError(
        f"The key type is {name!r}; it must be one of {', '.join(types)} or decimal(p,s), s <= p <= 38."
        f"{did_you_mean(name, types)} For example --type bigint."
    )
