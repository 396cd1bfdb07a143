"""Converts texts of the command line into options of `enrich` and, with the same code as workers, into keys."""

from __future__ import annotations

import csv
import json
import re
import reprlib
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, did_you_mean
from ..options import Cache, Options, Retry
from ..reports.text import plural

if TYPE_CHECKING:
    import pyarrow as pa

    from ..interface import ConnectorConfig, Key

__all__ = ["ArgumentError", "keys_of", "options_of", "types_of"]


class ArgumentError(ConfigError):
    """An argument of the command line is wrong, so the exit code is 2."""


_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def options_of(texts: Iterable[str]) -> dict[str, Any]:
    """
    Return the options in *texts*, each of the form ``NAME=VALUE``. The options are checked as `enrich` checks them.

    A value is a TOML value, or text without quotes; `none` stands for None. A name with a dot sets a part of `retry` or
    `cache`, as in `cache.ttl=60`.

    Raises:
        ConfigError: A text does not have the form ``NAME=VALUE``, or an option is wrong.

    >>> options_of(["timeout=0.5", "on_error=null", "retry.attempts=2", "limit=none"])["retry"].attempts
    2
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        option, _, part = name.strip().partition(".")
        if not equals or not re.fullmatch(r"\w+", option) or not re.fullmatch(r"\w*", part):
            raise ConfigError(f"The option is {text!r}; it must be NAME=VALUE, for example timeout=0.5.")
        if not part:
            options[option] = _value(value.strip())
        elif isinstance(parts := options.setdefault(option, {}), dict):
            parts[part] = _value(value.strip())
        else:
            raise ConfigError(f"The option {option} is given whole and in parts. Give it once, for example {text}.")
    for option, cls in (("retry", Retry), ("cache", Cache)):
        if isinstance(options.get(option), dict):
            options[option] = _option_of_parts(cls, option, options[option])
    Options.of(options)
    return options


def _value(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # the text is no TOML that tomllib can read, so the value is the text
        return text


def _option_of_parts(cls: type[Retry | Cache], option: str, parts: dict[str, Any]) -> Retry | Cache:
    known = [field.name for field in fields(cls)]
    for part in parts:
        if part not in known:
            raise ConfigError(
                f"{cls.__name__} has no {part!r}.{did_you_mean(part, known)} It has: {', '.join(known)}. "
                f"For example {option}.{known[0]}=3."
            )
    try:
        return cls(**parts)
    except TypeError as error:  # no text sets a field that `cls` requires
        raise ConfigError(f"{cls.__name__} needs {known[0]!r}. Add, for example, {option}.{known[0]}=60.") from error


def keys_of(texts: Sequence[str], types: str | None, config: ConnectorConfig) -> list[Key]:
    """
    Return the distinct keys that *texts* describe.

    Args:
        texts: One text for each key. Commas separate the parts of a key, as in a line of a CSV file.
        types: Spark types of the key columns, separated by commas. None: `string` for each part that *config*
            requires.
        config: Config of the source.

    Raises:
        ArgumentError: A type is unknown, or a text is not UTF-8, does not fit the types or their number, or is NaN.

    >>> from enrichkit import ConnectorConfig
    >>> keys_of(["7", "7", "8"], "bigint", ConnectorConfig())
    [7, 8]
    >>> keys_of(["eu,7", '"a,b",8'], "string,int", ConnectorConfig())
    [('eu', 7), ('a,b', 8)]
    """
    import pyarrow as pa

    from ..worker.keys import encode

    if not texts:
        return []

    names = types_of(types, config)
    columns = [_arrow_type(name) for name in names]
    rows = [_parts_of(text, len(names)) for text in texts]
    for text, row in zip(texts, rows, strict=True):
        if len(row) != len(names):
            raise ArgumentError(
                f"The key {text!r} has {plural(len(row), 'part')}; it must have {len(names)}, separated by commas. For "
                f"example {json.dumps(','.join('ab'[: len(names)]))}. Put a part that has a comma in double quotes."
            )
    arrays = []
    for name, column, parts in zip(names, columns, zip(*rows, strict=True), strict=True):
        try:
            arrays.append(pa.array(parts, pa.string()).cast(column))
        except pa.ArrowInvalid as error:
            raise ArgumentError(
                f"A key does not fit the type {name}: {error}. Give keys of this type, or name the type of the keys "
                "with --type, for example --type bigint."
            ) from error
    keys, codes = encode(arrays)
    if codes.null_count:
        raise ArgumentError(
            "A key is NaN. A row with this key gets a null without a lookup, so there is nothing to look up. Leave "
            "this key out."
        )
    return keys.objects()


def _parts_of(text: str, count: int) -> list[str]:
    try:
        text.encode()
    except UnicodeEncodeError as error:  # Python replaced bytes that are not UTF-8 with surrogates
        raise ArgumentError(
            f"The key {text!r} is not UTF-8; a key must be UTF-8. Choose a UTF-8 locale for the terminal, or convert "
            "the file, for example with iconv -f latin1 -t utf-8."
        ) from error
    try:
        return [text] if count == 1 else next(csv.reader([text]), [])
    except csv.Error as error:
        raise ArgumentError(
            f"The key {reprlib.repr(text)} is not a line of CSV; a line break must be inside double quotes, and a part "
            f"must have at most {csv.field_size_limit():,} characters. Put quotes around the part, for example "
            "$'\"a\\nb\",c', or leave the key out."
        ) from error


def types_of(types: str | None, config: ConnectorConfig) -> list[str]:
    """
    Return the Spark types in *types*, one for each key column.

    Raises:
        ArgumentError: *types* has more or fewer types than *config* requires.

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
