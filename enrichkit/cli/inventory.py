"""`connectors`: lists the connectors, and what each connector can do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import MissingDriverError, PluginError
from ..interface import Connector
from ..sources.registry import FIRST_PARTY, Plugin, connectors, load, require_driver
from .output import columns, heading

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Installed", "Inventory", "inventory"]


@dataclass(frozen=True)
class Installed:
    """
    One connector. All attributes from *config* to *scan* are None when the connector cannot be loaded.

    Attributes:
        name: The name that users write.
        package: Name of the package that offers the connector.
        version: Version of the package; None when the package is not installed.
        config: Name of the connector's config class.
        batch_size: Keys per call, unless an option says otherwise.
        max_batch_size: The most keys that a call may hold.
        capacity: Calls in flight per worker process, unless an option says otherwise.
        describe: Whether the source can tell the type of its values.
        store: Whether values can be written to the source.
        scan: Whether the source can be read as a whole.
        problem: Why the connector cannot be used, with the `pip install` line; None when the connector can be used.
    """

    name: str
    package: str
    version: str | None
    config: str | None = None
    batch_size: int | None = None
    max_batch_size: int | None = None
    capacity: int | None = None
    describe: bool | None = None
    store: bool | None = None
    scan: bool | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Inventory:
    """
    The result of `connectors`.

    Attributes:
        connectors: The connectors, sorted by name.
    """

    connectors: tuple[Installed, ...]

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        heads = ("connector", "package and config", "keys per call", "in flight", "can also")
        if usable := [each for each in self.connectors if each.problem is None]:
            yield columns([_row(each) for each in usable], heads, numbers=heads[2:4])
        if unusable := [each for each in self.connectors if each.problem is not None]:
            yield from [""] * bool(usable)
            yield heading("Cannot be used")
            yield columns(
                [(each.name, ("" if each.version else "Not installed. ") + str(each.problem)) for each in unusable]
            )


def inventory() -> Inventory:
    """Load and return the installed connectors; also return this project's connectors that are not installed."""
    installed = connectors()
    absent = [
        Installed(name, f"enrichkit-{name}", None, problem=f"Run: pip install 'enrichkit[{name}]'")
        for name in FIRST_PARTY
        if name not in installed
    ]
    loaded = [_load(plugin) for plugin in installed.values()]
    return Inventory(tuple(sorted([*loaded, *absent], key=lambda each: each.name)))


def _load(plugin: Plugin) -> Installed:
    try:
        connector = load(plugin.name)
    except PluginError as error:
        return Installed(plugin.name, plugin.package, plugin.version, problem=str(error))
    problem = None
    try:
        require_driver(connector)
    except MissingDriverError as error:
        problem = str(error)
    return Installed(
        name=plugin.name,
        package=plugin.package,
        version=plugin.version,
        config=connector.config_class.__name__,
        batch_size=min(connector.batch_size, connector.max_batch_size),
        max_batch_size=connector.max_batch_size,
        capacity=connector.capacity,
        describe=_overrides(connector, "describe"),
        store=_overrides(connector, "store_many"),
        scan=_overrides(connector, "scan"),
        problem=problem,
    )


def _overrides(connector: type[Connector[Any]], method: str) -> bool:
    return getattr(connector, method) is not getattr(Connector, method)


def _row(each: Installed) -> Sequence[str]:
    abilities = ", ".join(ability for ability in ("describe", "store", "scan") if getattr(each, ability))
    package = f"{each.package} {each.version}\n{each.config}"
    keys_per_call = f"{each.batch_size:,}\nup to {each.max_batch_size:,}"
    return each.name, package, keys_per_call, f"{each.capacity:,}", abilities or "-"
