"""
Finds the config of a named source, in the first of these places that has the name:

    1. enrichkit.register(name, config)
    2. [sources.NAME] in the TOML file that ENRICHKIT_CONFIG names, or else in ./enrichkit.toml
    3. the plugin of that name, with its defaults and its environment variables, ENRICHKIT_<NAME>_<FIELD>

The file and the environment variables are read on the driver only. The workers get the config with the expression that
uses it.
"""

from __future__ import annotations

import logging
import os
import tomllib
from collections.abc import Container, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from ..errors import ConfigError, EnrichkitError, UnknownConnectorError, UnknownOptionError, did_you_mean
from ..interface import Connector, ConnectorConfig, connector_of
from ..secrets import Secret
from .registry import connectors, load, registered

__all__ = ["check_no_fields", "config_file", "find_source", "from_toml", "is_required", "settings_of", "source_names"]

ADDRESSES = ("url", "dsn", "host", "path")
"""Fields of configs that say where a source is."""

_log = logging.getLogger("enrichkit")
_told: set[str] = set()


def find_source(source: str | ConnectorConfig) -> tuple[str, type[Connector[Any]], ConnectorConfig]:
    """
    Return the name, connector class and config of *source*, which is the name of a source or a config.

    Raises:
        UnknownConnectorError: No source and no plugin has that name.
        ConfigError: The config is wrong or incomplete; the message names the place where it was found, or all places
            that were searched.
    """
    if isinstance(source, ConnectorConfig):
        connector = connector_of(source)
        return connector.name, connector, source
    if not isinstance(source, str):
        raise ConfigError(
            f"source is a {type(source).__name__}; it must be the name of a source or a config, for example "
            "enrich('redis', 'user_id') or enrich(RedisConfig(...), 'user_id')."
        )
    config = registered().get(source)
    if config is not None:
        return source, connector_of(config), config
    path = config_file()
    tables = _read_tables(path) if path is not None else {}
    if source in tables:
        return _source_in_file(source, tables[source], path)
    connector = load(source, tables)
    settings = _settings_in_environment(source, connector.config_class)
    missing = _missing_setting(connector.config_class, settings)
    if missing is not None:
        places = _searched_places(source, path, _variable(source, missing))
        raise ConfigError(f"The source {source!r} has no {missing!r}. {places} Set it in one of them.")
    _tell_default_address(source, connector.config_class, settings)
    try:
        return source, connector, connector.config_class(**settings)
    except ConfigError as error:
        # Either an environment variable has a wrong value, or a setting is absent that another setting requires. The
        # message therefore names the variables of the source.
        variables = [_variable(source, name) for name in settings] or [_variable(source, "") + "<FIELD>"]
        raise ConfigError(f"{error} {_searched_places(source, path, *variables)}") from error


def _tell_default_address(source: str, cls: type[ConnectorConfig], settings: Mapping[str, Any]) -> None:
    """Log, once for each source, the default address of *source* if *settings* contains no other address."""
    for setting in settings_of(cls):
        if setting.name in ADDRESSES and setting.name not in settings and isinstance(setting.default, str):
            if source not in _told:
                _told.add(source)
                _log.warning(
                    "%s: nothing says where the source is, so it is asked at %s. Another address is set by "
                    "enrichkit.register(%r, ...) or the environment variable %s.",
                    source,
                    setting.default,
                    source,
                    _variable(source, setting.name),
                )
            return


def check_no_fields(names: Iterable[str], known: Container[str], source: object, function: str) -> None:
    """
    Raise an `UnknownOptionError` when a user gave *function* an option that is a field of the config of *source*.

    *names* are the options that the user gave, and *known* are the options that *function* has.
    """
    unknown = [name for name in names if name not in known]
    cls = _config_class(source) if unknown else None
    for name in unknown:
        if cls is not None and any(field.name == name for field in fields(cls)):
            raise UnknownOptionError(
                f"{function} has no option {name!r}; it is a field of the source's config. Set it there, as in "
                f"{cls.__name__}({name}=...), and give that config to {function}."
            )


def _config_class(source: object) -> type[ConnectorConfig] | None:
    """Return the class of the config of *source*; None if the class is not known or cannot be loaded."""
    if isinstance(source, str):
        source = registered().get(source, source)
    if not isinstance(source, str):
        return type(source) if isinstance(source, ConnectorConfig) else None
    try:
        path = config_file()
        tables = _read_tables(path) if path is not None else {}
        kind = tables.get(source, {}).get("type", source)
        return load(kind).config_class if isinstance(kind, str) and kind in connectors() else None
    except EnrichkitError:  # ignored here, because `find_source`, which is called later, raises the same error
        return None


def source_names() -> list[str]:
    """Return the names of all registered sources, all sources in the TOML file, and all installed plugins."""
    path = config_file()
    return sorted({*registered(), *(_read_tables(path) if path is not None else ()), *connectors()})


def _searched_places(source: str, path: Path | None, *variables: str) -> str:
    """Return a sentence with the places where *source* was searched; *path* is the path of the TOML file."""
    file = path or "enrichkit.toml (no such file; ENRICHKIT_CONFIG is not set)"
    plural = "s" * (len(variables) > 1)
    return (
        f"Searched: enrichkit.register({source!r}, ...); [sources.{source}] in {file}; the environment "
        f"variable{plural} {', '.join(variables)}."
    )


def config_file() -> Path | None:
    """
    Return the path of the TOML file; None when there is no file.

    Raises:
        ConfigError: The environment variable ENRICHKIT_CONFIG names a file that does not exist.
    """
    named = os.environ.get("ENRICHKIT_CONFIG")
    path = Path(named or "enrichkit.toml")
    if path.is_file():
        return path
    if named:
        raise ConfigError(
            f"ENRICHKIT_CONFIG is {named!r}, which is no file; it must name a TOML file. Create it or unset it."
        )
    return None


def _read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of the sources in the TOML file, by name."""
    try:
        sources = tomllib.loads(path.read_text(encoding="utf-8")).get("sources", {})
    except (ValueError, RecursionError) as error:  # RecursionError: for example, the file holds 5,000 open brackets
        raise ConfigError(
            f"{path} is not TOML: {error}. Write tables such as [sources.users] with type = 'redis'."
        ) from error
    if not isinstance(sources, dict) or not all(isinstance(table, dict) for table in sources.values()):
        raise ConfigError(f"'sources' in {path} must hold tables only, such as [sources.users] with type = 'redis'.")
    return sources


def _source_in_file(
    name: str, table: Mapping[str, Any], path: Path | None
) -> tuple[str, type[Connector[Any]], ConnectorConfig]:
    where = f"[sources.{name}] in {path}"
    settings = dict(table)
    kind = settings.pop("type", None)
    if not isinstance(kind, str):
        raise ConfigError(f"{where} has no type; it must name a connector, for example type = 'redis'.")
    try:
        connector = load(kind)
    except UnknownConnectorError as error:
        raise UnknownConnectorError(f"{where}: {error}") from error
    known = [f.name for f in settings_of(connector.config_class)]
    for setting in settings:
        if setting not in known:
            raise ConfigError(
                f"{where} has an unknown setting {setting!r}.{did_you_mean(setting, known)} "
                f"The connector {kind!r} takes: {', '.join(known)}."
            )
    missing = _missing_setting(connector.config_class, settings)
    if missing is not None:
        raise ConfigError(f"{where} has no {missing!r}, which the connector {kind!r} requires. Add it there.")
    try:
        return name, connector, connector.config_class(**{k: from_toml(v) for k, v in settings.items()})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def from_toml(value: Any) -> Any:
    """
    Return *value* with {env = "X"}, {file = "p"}, {call = "m:f", ttl = 900} and {command = ["p", "a"], ttl = 900}
    replaced by a `Secret`, and with lists replaced by tuples, at any depth.
    """
    if isinstance(value, dict):
        if value.keys() in ({"call", "ttl"}, {"command", "ttl"}):
            kind = next(key for key in value if key != "ttl")
            return Secret(kind, from_toml(value[kind]), value["ttl"])
        if len(value) == 1:
            kind, name = next(iter(value.items()))
            if kind in ("env", "file") and isinstance(name, str):
                return Secret(kind, name)
        return {key: from_toml(part) for key, part in value.items()}
    if isinstance(value, list):
        return tuple(from_toml(part) for part in value)
    return value


def _settings_in_environment(name: str, cls: type[ConnectorConfig]) -> dict[str, Any]:
    settings = {}
    for setting in settings_of(cls):
        text = os.environ.get(_variable(name, setting.name))
        if text is not None:
            settings[setting.name] = _parse_setting(_variable(name, setting.name), text, setting)
    return settings


def _parse_setting(variable: str, text: str, setting: Field[Any]) -> Any:
    """Convert *text*, the value of the environment variable *variable*, to the type of the field *setting*."""
    kind = _setting_type(setting)
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ConfigError(f"{variable} is {text!r}; it must be true, false, 1 or 0. For example {variable}=true.")
        return text.lower() in ("true", "1")
    if kind in (int, float):
        return _parse_number(variable, text, kind)
    if kind is not tuple:
        return text
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if "tuple[int" in str(setting.type):
        return tuple(_parse_number(variable, part, int) for part in parts)
    # If the field takes a text as well as a tuple of texts, a value of one part becomes a text.
    return parts[0] if len(parts) == 1 and "str |" in str(setting.type) else parts


def _setting_type(setting: Field[Any]) -> type | None:
    """Return the type of the default of *setting*, or else the type that its annotation names; None means a text."""
    if setting.default is not MISSING and setting.default is not None and not isinstance(setting.default, str):
        return type(setting.default)
    annotation = str(setting.type)
    if "tuple[" in annotation:
        return tuple
    names = {part.strip() for part in annotation.split("|")}
    return next((kind for kind in (bool, int, float) if kind.__name__ in names and "str" not in names), None)


def _parse_number(variable: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        noun, example = ("a whole number", "8") if kind is int else ("a number", "0.5")
        raise ConfigError(f"{variable} is {text!r}; it must be {noun}, for example {variable}={example}.") from error


def _variable(name: str, setting: str) -> str:
    return f"ENRICHKIT_{name}_{setting}".upper().replace("-", "_").replace(".", "_")


def settings_of(cls: type[ConnectorConfig]) -> list[Field[Any]]:
    """Return the fields of the config *cls* that a user may set."""
    return [f for f in fields(cls) if f.init]


def is_required(setting: Field[Any]) -> bool:
    """Return whether *setting* has no default."""
    return setting.default is MISSING and setting.default_factory is MISSING


def _missing_setting(cls: type[ConnectorConfig], settings: Mapping[str, Any]) -> str | None:
    """Return the name of the first required field of *cls* that is absent from *settings*; None if all are there."""
    return next((f.name for f in settings_of(cls) if is_required(f) and f.name not in settings), None)
