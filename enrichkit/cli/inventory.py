"""`connectors`: what is installed, and what each connector can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..connector import Connector
from ..errors import MissingDriverError, PluginError
from ..registry import FIRST_PARTY, Plugin, connectors, load, require_driver
from ..report import Report, plural, table

__all__ = ["Installed", "Inventory", "inventory"]


@dataclass(frozen=True)
class Installed:
    """
    One connector.

    Attributes:
        name: What users write.
        package: Name of the package that offers it.
        version: Version of the package; None: it is not installed.
        config: Name of the class of its config; likewise what follows is None when it cannot be loaded.
        batch_size: Keys per call, unless an option says otherwise.
        max_batch_size: Most keys that a call may hold.
        capacity: Calls in flight per worker process, unless an option says otherwise.
        describe: Whether the source can tell the type of its values.
        store: Whether values can be written to the source.
        scan: Whether the source can be read as a whole.
        problem: Why it cannot be used, and the line for pip; None: it can.
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


@dataclass(frozen=True, repr=False)
class Inventory(Report):
    """The connectors by name; `str` of it is the text."""

    connectors: tuple[Installed, ...]

    def __str__(self) -> str:
        return "\n\n".join("\n".join(_lines(each)) for each in self.connectors)


def inventory() -> Inventory:
    """Load each installed connector, and name those of the project that are not there."""
    installed = connectors()
    absent = [
        Installed(name, f"enrichkit-{name}", None, problem=f"Run: pip install 'enrichkit[{name}]'")
        for name in FIRST_PARTY
        if name not in installed
    ]
    found = [_look_at(plugin) for plugin in installed.values()]
    return Inventory(tuple(sorted([*found, *absent], key=lambda each: each.name)))


def _look_at(plugin: Plugin) -> Installed:
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
        describe=_offers(connector, "describe"),
        store=_offers(connector, "store_many"),
        scan=_offers(connector, "scan"),
        problem=problem,
    )


def _offers(connector: type[Connector[Any]], method: str) -> bool:
    return getattr(connector, method) is not getattr(Connector, method)


def _lines(each: Installed) -> list[str]:
    if each.version is None:
        return [f"{each.name}: not installed", f"  {each.problem}"]
    facts = []
    if each.config is not None:
        can = [word for word in ("describe", "store", "scan") if getattr(each, word)]
        facts = [
            ("config", each.config),
            ("calls", f"{plural(each.batch_size or 1, 'key')} per call (at most {each.max_batch_size:,})"),
            ("", f"{plural(each.capacity or 1, 'call')} in flight per worker process"),
            ("can", ", ".join(["look keys up", *(_CAN[word] for word in can)])),
        ]
    facts.append(("driver", "there" if each.problem is None else each.problem))
    return [f"{each.name}: {each.package} {each.version}", *table(facts)]


_CAN = {
    "describe": "tell the type of its values",
    "store": "be written to",
    "scan": "be read as a whole",
}
