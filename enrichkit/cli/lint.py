"""`lint`: all that is wrong in a TOML file of sources, at once, without asking a source."""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..config import from_toml, is_required, settings_of
from ..errors import ConfigError, PluginError
from ..options import did_you_mean
from ..plan import secrets_of
from ..registry import connectors, load, require_driver
from ..secrets import redact
from .output import heading, indented

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..connector import Connector, ConnectorConfig

__all__ = ["Finding", "lint"]


@dataclass(frozen=True)
class Finding:
    """
    One thing that is wrong.

    Attributes:
        file: Path of the file.
        line: Number of the line, from 1; None: not found.
        source: Name of the source; None: it is the whole file.
        setting: Name of the setting; None: it is the whole table.
        message: What is wrong, and what to do.
    """

    file: str
    line: int | None
    source: str | None
    setting: str | None
    message: str

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        # On a line of its own, for the editors and terminals that make a link of it.
        yield heading(self.file if self.line is None else f"{self.file}:{self.line}")
        yield indented(self.message)


def lint(path: Path, *, secrets: bool = True) -> tuple[int, list[Finding]]:
    """
    Return how many sources the file at *path* has, and what is wrong in it.

    Args:
        path: Of a TOML file.
        secrets: Look also whether the secrets that it refers to are here; where the workers run they have to be.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        return 0, [Finding(str(path), None, None, None, f"The file cannot be read: {error.strerror}. Name another.")]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        at = re.search(r"at line (\d+)", str(error))
        said = f"This is not TOML: {error}. Write tables such as [sources.users] with type = 'redis'."
        return 0, [Finding(str(path), int(at[1]) if at else None, None, None, said)]
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
            said = "'sources' must hold tables only, such as [sources.users] with type = 'redis'."
            findings.append(Finding(str(path), _line_of(lines, "sources", name), name or None, None, said))
            continue
        for setting, said in _of_source(table, secrets=secrets):
            line = _line_of(lines, f"sources.{name}", setting)
            findings.append(Finding(str(path), line, name, setting, f"[sources.{name}]: {redact(said)}"))
    return len(sources), sorted(findings, key=lambda finding: finding.line or 0)


def _of_source(table: dict[str, Any], *, secrets: bool) -> Iterator[tuple[str | None, str]]:
    """Yield what is wrong with the *table* of one source: the setting and the message."""
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
    cls = connector.config_class
    known = [field.name for field in settings_of(cls)]
    for setting in settings.keys() - known:
        hint = did_you_mean(setting, known)
        yield setting, f"There is no setting {setting!r}.{hint} The connector {kind!r} takes: {', '.join(known)}."
    for field in settings_of(cls):
        if is_required(field) and field.name not in settings:
            yield field.name, f"There is no {field.name!r}, which the connector {kind!r} requires. Add it."
    given: dict[str, Any] = {}
    for name, value in settings.items():
        try:
            given |= {name: from_toml(value)} if name in known else {}
        except ConfigError as error:
            yield name, str(error)
    yield from _of_values(connector, given)
    if secrets:
        for setting, value in given.items():
            for secret in secrets_of(value):
                try:
                    secret.resolve()
                except ConfigError:
                    said = f"The secret {secret!r} is not here, and workers need it."
                    yield setting, f"{said} Set it, or leave secrets out of the search with --no-secrets."


def _of_values(connector: type[Connector[Any]], given: dict[str, Any]) -> Iterator[tuple[str | None, str]]:
    """
    Make the config again and again, each time without the setting that its last error named.

    What a config does not check itself, the annotations of its fields tell. Behind a required setting that is wrong
    nothing can be made, so there they are all that tells.
    """
    cls = connector.config_class
    unlike, left = _unlike_their_annotation(cls, given), dict(given)
    while all(field.name in left for field in settings_of(cls) if is_required(field)):
        try:
            connector(cls(**left))
            break
        except ConfigError as error:
            named = re.match(rf"{cls.__name__}\.(\w+)", str(error))
            setting = named[1] if named and named[1] in left else None
            yield setting, str(error)
            if setting is None:
                break
            del left[setting]
            unlike.pop(setting, None)
        except Exception as error:  # noqa: BLE001  # of a config that does not expect a value of such a type
            if not (suspects := unlike.keys() & left):
                yield (
                    None,
                    f"{cls.__name__} raised {type(error).__name__}: {error}. Report this to its author.",
                )
                break
            left = {name: value for name, value in left.items() if name not in suspects}
    yield from unlike.items()


def _unlike_their_annotation(cls: type[ConnectorConfig], given: dict[str, Any]) -> dict[str, str]:
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # imported for type checkers only
        return {}
    unlike = {}
    for setting, value in given.items():
        try:
            msgspec.convert(value, hints[setting])
        except msgspec.ValidationError as error:
            unlike[setting] = (
                f"{cls.__name__}.{setting} has a value of the wrong type: {error}. Write one of that type."
            )
        except TypeError:  # an annotation that msgspec does not know
            continue
    return unlike


def _line_of(lines: list[str], table: str, setting: str | None = None) -> int | None:
    """Return the number of the line of *setting* in *table*, else that of the table's header, else None."""
    header, inside = None, False
    for number, line in enumerate(lines, 1):
        if found := re.match(r"\s*\[([^\[\]]+)\]", line):
            name = re.sub(r"[\s\"']", "", found[1])
            inside = name == table
            if header is None and (inside or name.startswith(f"{table}.")):
                header = number
        elif inside and setting and re.match(rf"\s*[\"']?{re.escape(setting)}[\"']?\s*[.=]", line):
            return number
    return header


def _example() -> str:
    return next(iter(connectors()), "redis")
