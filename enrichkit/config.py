"""
Where the config of a named source comes from; the first hit wins.

    1. enrichkit.register(name, config)
    2. [sources.NAME] in the TOML file that ENRICHKIT_CONFIG names, else in ./enrichkit.toml
    3. the plugin of that name, with its defaults and its environment variables, ENRICHKIT_<NAME>_<FIELD>

File and environment are read on the driver only; the config travels with the expression.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from .connector import Connector, ConnectorConfig, connector_of
from .errors import ConfigError, UnknownConnectorError
from .options import did_you_mean
from .registry import connectors, load, registered
from .secrets import Secret

__all__ = ["config_file", "find_source", "from_toml", "is_required", "settings_of", "source_names"]


def find_source(source: str | ConnectorConfig) -> tuple[str, type[Connector[Any]], ConnectorConfig]:
    """
    Return name, connector class and config of *source*, a name or a config.

    Raises:
        UnknownConnectorError: Nothing has that name.
        ConfigError: What was found is wrong; the message says where it was found, or everywhere that was searched.
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
    tables = _read(path) if path is not None else {}
    if source in tables:
        return _from_file(source, tables[source], path)
    connector = load(source, tables)
    found = _from_environment(source, connector.config_class)
    missing = [f.name for f in settings_of(connector.config_class) if is_required(f) and f.name not in found]
    if missing:
        where = _searched(source, path, _variable(source, missing[0]))
        raise ConfigError(f"The source {source!r} has no {missing[0]!r}. {where} Set it in one of them.")
    try:
        return source, connector, connector.config_class(**found)
    except ConfigError as error:
        # A setting that another one makes necessary is absent, or one from the environment is wrong.
        variables = [_variable(source, name) for name in found] or [_variable(source, "") + "<FIELD>"]
        raise ConfigError(f"{error} {_searched(source, path, *variables)}") from error


def source_names() -> list[str]:
    """Return the names of all sources: registered ones, those in the TOML file, and installed plugins."""
    path = config_file()
    return sorted({*registered(), *(_read(path) if path is not None else ()), *connectors()})


def _searched(source: str, path: Path | None, *variables: str) -> str:
    file = path or "enrichkit.toml (no such file; ENRICHKIT_CONFIG is not set)"
    plural = "s" * (len(variables) > 1)
    return (
        f"Searched: enrichkit.register({source!r}, ...); [sources.{source}] in {file}; the environment "
        f"variable{plural} {', '.join(variables)}."
    )


def config_file() -> Path | None:
    """Return the path of the TOML file, or None when there is none. Raises `ConfigError` when a named one is absent."""
    named = os.environ.get("ENRICHKIT_CONFIG")
    path = Path(named or "enrichkit.toml")
    if path.is_file():
        return path
    if named:
        raise ConfigError(
            f"ENRICHKIT_CONFIG is {named!r}, which is no file; it must name a TOML file. Create it or unset it."
        )
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        sources = tomllib.loads(path.read_text(encoding="utf-8")).get("sources", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not TOML: {error}. Write tables such as [sources.users] with type = 'redis'."
        ) from error
    if not isinstance(sources, dict) or not all(isinstance(table, dict) for table in sources.values()):
        raise ConfigError(f"'sources' in {path} must hold tables only, such as [sources.users] with type = 'redis'.")
    return sources


def _from_file(
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
    missing = [f.name for f in settings_of(connector.config_class) if is_required(f) and f.name not in settings]
    if missing:
        raise ConfigError(f"{where} has no {missing[0]!r}, which the connector {kind!r} requires. Add it there.")
    try:
        return name, connector, connector.config_class(**{k: from_toml(v) for k, v in settings.items()})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def from_toml(value: Any) -> Any:
    """Turn {env = "X"} and {file = "p"} into secrets and lists into tuples, at any depth."""
    if isinstance(value, dict):
        if len(value) == 1:
            kind, name = next(iter(value.items()))
            if kind in ("env", "file") and isinstance(name, str):
                return Secret(kind, name)
        return {key: from_toml(part) for key, part in value.items()}
    if isinstance(value, list):
        return tuple(from_toml(part) for part in value)
    return value


def _from_environment(name: str, cls: type[ConnectorConfig]) -> dict[str, Any]:
    found = {}
    for setting in settings_of(cls):
        text = os.environ.get(_variable(name, setting.name))
        if text is not None:
            found[setting.name] = _from_text(_variable(name, setting.name), text, setting)
    return found


def _from_text(variable: str, text: str, setting: Field[Any]) -> Any:
    """Turn the text of an environment variable into what the field's default, or else its annotation, suggests."""
    kind = _kind(setting)
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ConfigError(f"{variable} is {text!r}; it must be true, false, 1 or 0. For example {variable}=true.")
        return text.lower() in ("true", "1")
    if kind in (int, float):
        return _number(variable, text, kind)
    if kind is not tuple:
        return text
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if "tuple[int" in str(setting.type):
        return tuple(_number(variable, part, int) for part in parts)
    # A field that may be one text or a tuple of them takes a single name as a text.
    return parts[0] if len(parts) == 1 and "str |" in str(setting.type) else parts


def _kind(setting: Field[Any]) -> type | None:
    if setting.default is not MISSING and setting.default is not None and not isinstance(setting.default, str):
        return type(setting.default)
    annotation = str(setting.type)
    if "tuple[" in annotation:
        return tuple
    names = {part.strip() for part in annotation.split("|")}
    return next((kind for kind in (bool, int, float) if kind.__name__ in names and "str" not in names), None)


def _number(variable: str, text: str, kind: type) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        what, example = ("a whole number", "8") if kind is int else ("a number", "0.5")
        raise ConfigError(f"{variable} is {text!r}; it must be {what}, for example {variable}={example}.") from error


def _variable(name: str, setting: str) -> str:
    return f"ENRICHKIT_{name}_{setting}".upper().replace("-", "_").replace(".", "_")


def settings_of(cls: type[ConnectorConfig]) -> list[Field[Any]]:
    """Return the fields of the config *cls* that a user may set."""
    return [f for f in fields(cls) if f.init]


def is_required(setting: Field[Any]) -> bool:
    """Whether *setting* has no default."""
    return setting.default is MISSING and setting.default_factory is MISSING
