"""`lint`: finds all mistakes in a TOML file that declares sources, in one run and without contacting a source."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import ConfigError, PluginError, did_you_mean
from ..secrets import redact, secrets_of
from ..sources.config import from_toml, is_required, settings_of
from ..sources.registry import connectors, load, require_driver
from .output import heading, indented

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..interface import Connector, ConnectorConfig

__all__ = ["Finding", "lint"]


@dataclass(frozen=True)
class Finding:
    """
    One mistake in a TOML file that declares sources.

    Attributes:
        file: Path of the file.
        line: Number of the line, from 1; None when the line is unknown.
        source: Name of the source; None when the mistake concerns the whole file.
        setting: Name of the setting; None when the mistake concerns the whole table.
        message: The mistake and how to fix it.
    """

    file: str
    line: int | None
    source: str | None
    setting: str | None
    message: str

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        # "FILE:LINE" gets a line of its own, because some editors and terminals turn such a line into a link.
        yield heading(self.file if self.line is None else f"{self.file}:{self.line}")
        yield indented(self.message)


def lint(path: Path, *, secrets: bool = True) -> tuple[int, list[Finding]]:
    """
    Find all mistakes in a TOML file that declares sources.

    Args:
        path: Path of a TOML file.
        secrets: Whether a secret that does not exist on this machine is a mistake. Workers need all secrets, but
            this machine may lack them.

    Returns:
        The number of sources in the file, and the mistakes in the order of their lines.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        return 0, [Finding(str(path), None, None, None, f"The file cannot be read: {error.strerror}. Name another.")]
    except (ValueError, RecursionError) as error:
        # A number of 5,000 digits also raises a ValueError, and 5,000 open brackets raise a RecursionError; both have a
        # message without a line number.
        place = re.search(r"at line (\d+)", str(error))
        message = f"This is not TOML: {error}. Write tables such as [sources.users] with type = 'redis'."
        return 0, [Finding(str(path), int(place[1]) if place else None, None, None, message)]
    lines = text.splitlines()
    findings = [
        Finding(
            str(path), _line_of(lines, name), None, None, f"Nothing reads [{name}].{hint} Sources are [sources.NAME]."
        )
        for name in document
        if name != "sources" and (hint := did_you_mean(name, ["sources"]))
    ]
    sources = document.get("sources", {})
    if not isinstance(sources, dict):
        sources = {"": sources}
    for name, table in sources.items():
        if not isinstance(table, dict):
            message = "'sources' must hold tables only, such as [sources.users] with type = 'redis'."
            findings.append(Finding(str(path), _line_of(lines, "sources", name), name or None, None, message))
            continue
        for setting, message in _source_mistakes(table, secrets=secrets):
            line = _line_of(lines, f"sources.{name}", setting)
            findings.append(Finding(str(path), line, name, setting, f"[sources.{name}]: {redact(message)}"))
    return len(sources), sorted(findings, key=lambda finding: finding.line or 0)


Mistake = tuple[str | None, str]
"""The name of a setting, and a message; the name is None when the mistake concerns the whole table."""


def _source_mistakes(table: dict[str, Any], *, secrets: bool) -> Iterator[Mistake]:
    """Yield the mistakes in *table*, the table of one source."""
    settings = dict(table)
    kind = settings.pop("type", None)
    if not isinstance(kind, str):
        yield "type", f"There is no type; it must name a connector, for example type = {_example()!r}."
        return
    try:
        connector = load(kind)
    except (ConfigError, PluginError) as error:
        yield "type", str(error)
        return
    try:
        require_driver(connector)
    except PluginError as error:
        yield "type", str(error)
    yield from _name_mistakes(kind, connector.config_class, settings)
    known = {field.name for field in settings_of(connector.config_class)}
    values: dict[str, Any] = {}
    for setting in (setting for setting in settings if setting in known):
        try:
            values[setting] = from_toml(settings[setting])
        except ConfigError as error:
            yield setting, str(error)
    yield from _value_mistakes(connector, values)
    if secrets:
        yield from _absent_secrets(values)


def _name_mistakes(kind: str, cls: type[ConnectorConfig], settings: dict[str, Any]) -> Iterator[Mistake]:
    """Yield a mistake for each of *settings* that *cls* does not know, and for each absent required setting."""
    known = [field.name for field in settings_of(cls)]
    for setting in settings.keys() - known:
        hint = did_you_mean(setting, known)
        yield setting, f"There is no setting {setting!r}.{hint} The connector {kind!r} takes: {', '.join(known)}."
    for field in settings_of(cls):
        if is_required(field) and field.name not in settings:
            yield field.name, f"There is no {field.name!r}, which the connector {kind!r} requires. Add it."


def _absent_secrets(values: dict[str, Any]) -> Iterator[Mistake]:
    """Yield a mistake for each secret (variable or file) in *values* that does not exist on this machine."""
    for setting, value in values.items():
        for secret in (each for each in secrets_of(value) if each.ttl is None):
            try:
                secret.resolve()
            except ConfigError:
                message = f"The secret {secret!r} does not exist on this machine, and workers need it."
                yield setting, f"{message} Provide it, or skip the check of secrets with --no-secrets."


def _value_mistakes(connector: type[Connector[Any]], values: dict[str, Any]) -> Iterator[Mistake]:
    """
    Yield the mistakes in *values*, the settings of one source.

    A config raises only its first error. The config is therefore constructed repeatedly, each time without the setting
    that the last error named. To find mistakes that the config does not look for, the values are checked against the
    type hints of its fields. A config cannot be constructed without its required settings, so once a required setting
    is wrong, only the type hints can find more mistakes.
    """
    cls = connector.config_class
    of_wrong_type, remaining = _type_mistakes(cls, values), dict(values)
    while all(field.name in remaining for field in settings_of(cls) if is_required(field)):
        try:
            connector(cls(**remaining))
            break
        except ConfigError as error:
            match = re.match(rf"{cls.__name__}\.(\w+)", str(error))
            setting = match[1] if match and match[1] in remaining else None
            yield setting, str(error)
            if setting is None:
                break
            del remaining[setting]
            of_wrong_type.pop(setting, None)
        except Exception as error:  # noqa: BLE001  # raised by a config whose checks do not expect a value of this type
            if not (suspects := of_wrong_type.keys() & remaining):
                yield (
                    None,
                    f"{cls.__name__} raised {type(error).__name__}: {error}. Report this to the connector's author.",
                )
                break
            remaining = {name: value for name, value in remaining.items() if name not in suspects}
    yield from of_wrong_type.items()


def _type_mistakes(cls: type[ConnectorConfig], values: dict[str, Any]) -> dict[str, str]:
    """Return a message for each of *values* that does not fit the type hint of its field in *cls*."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a hint names a type that only type checkers import, so the hints cannot be read
        return {}
    messages = {}
    for setting, value in values.items():
        try:
            msgspec.convert(value, hints[setting])
        except msgspec.ValidationError as error:
            messages[setting] = (
                f"{cls.__name__}.{setting} has a value of the wrong type: {error}. Write a value of the expected type."
            )
        except TypeError:  # msgspec does not know this type hint, so the value is not checked
            continue
    return messages


def _line_of(lines: list[str], table: str, setting: str | None = None) -> int | None:
    """
    Return the line number of *setting* in *table*.

    Without a *setting*, or if its line is not found, return the line number of the table's header, or None if the table
    has no header.
    """
    header, inside = None, False
    for number, line in enumerate(lines, 1):
        if match := re.match(r"\s*\[([^\[\]]+)\]", line):
            name = re.sub(r"[\s\"']", "", match[1])
            inside = name == table
            if header is None and (inside or name.startswith(f"{table}.")):
                header = number
        elif inside and setting and re.match(rf"\s*[\"']?{re.escape(setting)}[\"']?\s*[.=]", line):
            return number
    return header


def _example() -> str:
    return next(iter(connectors()), "redis")
