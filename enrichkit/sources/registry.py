"""
The names of sources: those that the user has registered, and those of installed plugins.

A plugin is an entry point in the group `enrichkit`. The plugin is found by its name, and loaded through pluggy when the
name is first used. Importing enrichkit loads no plugin, and workers do not look for plugins.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from .. import hookspecs
from ..errors import (
    ConfigError,
    DuplicateConnectorError,
    MissingDriverError,
    PluginError,
    UnknownConnectorError,
    did_you_mean,
)
from ..interface import Connector, ConnectorConfig

__all__ = ["Plugin", "connectors", "load", "register", "registered", "require_driver"]

GROUP = "enrichkit"
FIRST_PARTY = ("http", "llm", "mariadb", "postgres", "redis", "sqlite")

_lock = threading.RLock()  # re-entrant: a plugin may call register() while it is imported
_sources: dict[str, ConnectorConfig] = {}
_loaded: dict[str, type[Connector[Any]]] = {}


@dataclass(frozen=True, slots=True)
class Plugin:
    """
    An installed connector, described without loading it.

    Attributes:
        name: Name of the connector, which users write, for example `redis`.
        package: Name of the package that offers the connector.
        version: Version of the package.
    """

    name: str
    package: str
    version: str


def register(name: str, config: ConnectorConfig) -> None:
    """
    Register *name* as the name of the source that *config* describes, in this Python process.

    Args:
        name: Name of the source for `enrich`; letters, digits, `_`, `-` and `.`. A second registration replaces the
            first.
        config: Config of the source. It travels to the workers with each expression that uses it.

    Raises:
        ConfigError: The name has other characters, or *config* is not a config. Raised on the driver.

    >>> from enrichkit.interface import ConnectorConfig
    >>> register("users", ConnectorConfig(returns="string"))
    """
    if not isinstance(name, str) or not name or not all(c.isalnum() or c in "_-." for c in name):
        raise ConfigError(
            f"The source name is {name!r}; it must consist of letters, digits, '_', '-' and '.'. "
            "For example register('users', config)."
        )
    if not isinstance(config, ConnectorConfig):
        raise ConfigError(
            f"The config of source {name!r} is a {type(config).__name__}; it must be a ConnectorConfig, "
            "for example register('users', RedisConfig(url='redis://localhost:6379/0'))."
        )
    with _lock:
        _sources[name] = config


def registered() -> dict[str, ConnectorConfig]:
    """Return a copy of the registered sources by name."""
    with _lock:
        return dict(_sources)


def connectors() -> dict[str, Plugin]:
    """Return the installed connectors by name, without loading any of them."""
    return {
        point.name: Plugin(
            point.name, point.dist.name if point.dist else "?", point.dist.version if point.dist else "?"
        )
        for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)
    }


def load(name: str, others: Iterable[str] = ()) -> type[Connector[Any]]:
    """
    Return the connector class of the plugin *name*; load the plugin on first use.

    Args:
        name: Name of an entry point.
        others: Further names, besides those of plugins and registered sources, for the hint in an error message.

    Raises:
        UnknownConnectorError: No installed package offers the connector.
        DuplicateConnectorError: Two packages offer a connector of that name.
        MissingDriverError: The client package of the connector is not installed.
        PluginError: The plugin cannot be imported, or its hook `enrichkit_connector` does not return one connector.
    """
    with _lock:
        if name not in _loaded:
            _loaded[name] = _load(name, _entry_point(name, others))
        return _loaded[name]


def require_driver(connector: type[Connector[Any]]) -> None:
    """Raise `MissingDriverError` when a module that *connector* needs is not installed on the driver."""
    for module in connector.requires:
        if not _is_installed(module):
            install = connector.pip or f"pip install {module}"
            raise MissingDriverError(
                f"The connector {connector.name!r} needs the package {module}, which is not installed. Run: {install}"
            )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that would hold the module is not installed
        return False


def _entry_point(name: str, others: Iterable[str]) -> EntryPoint:
    points = {point.dist.name if point.dist else "?": point for point in entry_points(group=GROUP, name=name)}
    if len(points) > 1:
        packages = " and ".join(f"{point.dist.name} {point.dist.version}" for point in points.values() if point.dist)
        raise DuplicateConnectorError(
            f"Two packages offer a connector named {name!r}: {packages}. Uninstall one of them."
        )
    if points:
        return next(iter(points.values()))
    if name in FIRST_PARTY:
        raise UnknownConnectorError(f"The connector {name!r} is not installed. Run: pip install 'enrichkit[{name}]'")
    if "://" in name:
        raise UnknownConnectorError(
            "The source is an address, which is not shown because it may hold a password. Pass a config with the "
            "address: HttpConfig(url=...), RedisConfig(url=...) or PostgresConfig(dsn=...)."
        )
    known = sorted({*connectors(), *_sources, *others})
    raise UnknownConnectorError(
        f"No connector is named {name!r}.{did_you_mean(name, known)} Installed or registered: "
        f"{', '.join(map(repr, known)) or 'none'}. Install a plugin, or call enrichkit.register({name!r}, config)."
    )


def _load(name: str, point: EntryPoint) -> type[Connector[Any]]:
    package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    try:
        manager.load_setuptools_entrypoints(GROUP, name=name)
        results = manager.hook.enrichkit_connector()
    except ModuleNotFoundError as error:
        absent = (error.name or "").partition(".")[0]
        if not absent or absent == point.module.partition(".")[0] or _is_installed(absent):
            raise _load_error(name, package, error) from error
        raise MissingDriverError(
            f"The connector {name!r} needs the package {absent}, which is not installed. "
            f"Run: pip install {package.split()[0]}"
        ) from error
    except Exception as error:
        raise _load_error(name, package, error) from error
    is_connector = len(results) == 1 and isinstance(results[0], type) and issubclass(results[0], Connector)
    if not is_connector or not (hasattr(results[0], "config_class") and hasattr(results[0], "name")):
        raise PluginError(
            f"The plugin {name!r} of {package} offers {results!r}; its hook enrichkit_connector must return one "
            "Connector class with a name and a config_class. Report this to the plugin's author."
        )
    connector: type[Connector[Any]] = results[0]
    return connector


def _load_error(name: str, package: str, error: Exception) -> PluginError:
    return PluginError(
        f"The plugin {name!r} of {package} cannot be loaded: {type(error).__name__}: {error}. "
        "Reinstall it, or report this to its author."
    )
