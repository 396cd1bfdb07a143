"""`describe()`: the facts about a source that the driver knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..driver.connections import ask_connections, known_connections, warn_of_connections
from ..driver.tiers import main_source, tier_capacities
from ..secrets import redact
from ..sources.config import find_source
from .text import Report, plural, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.types import DataType

    from ..interface import ConnectorConfig, Returns
    from ..sources.tiers import Tiers

__all__ = ["Description", "describe"]


@dataclass(frozen=True, repr=False)
class Description(Report):
    """
    The result of `describe`; its `str` is the text to print.

    Attributes:
        source: Name of the source.
        connector: Name of the source's connector.
        value: Spark type of one value.
        value_from: Where the type *value* was found, for example in `returns=`.
        key_columns: Number of key columns that the source needs; None: one or more.
        key_types: Names of the Python types that a part of a key may have; empty: all.
        capacity: Default of `capacity`: calls in flight per worker process.
        batch_size: Default of `batch_size`: keys per call.
        max_batch_size: Most keys that a call may hold.
        config: The config as text, without its secrets.
        tiers: For each source that is asked before this one, its name and its calls in flight per worker process.
        connections: Most connections that the source accepts from all its clients; None: the source does not say, or
            was not asked.
    """

    source: str
    connector: str
    value: DataType
    value_from: str
    key_columns: int | None
    key_types: tuple[str, ...]
    capacity: int
    batch_size: int
    max_batch_size: int
    config: str
    tiers: Mapping[str, int]
    connections: int | None = None

    def __str__(self) -> str:
        keys = "one or more columns" if self.key_columns is None else plural(self.key_columns, "column")
        facts = [
            ("connector", self.connector),
            ("key", keys),
            *([("", f"of the Python types {', '.join(self.key_types)}")] if self.key_types else []),
            ("calls", f"{plural(self.batch_size, 'key')} per call (at most {self.max_batch_size:,})"),
            ("", f"{plural(self.capacity, 'call')} in flight per worker process"),
            *([("", f"{self.connections:,} connections from all clients")] if self.connections is not None else []),
            *(
                ("tier", f"{name} is asked first, {plural(capacity, 'call')} in flight per worker process")
                for name, capacity in self.tiers.items()
            ),
            ("config", self.config),
            ("value", _ddl(self.value) if not _fields(self.value) else f"a struct, from {self.value_from}:"),
        ]
        if not _fields(self.value):
            facts.append(("", f"from {self.value_from}"))
        return "\n".join([f"The source {self.source!r}", *table(facts), *table(_fields(self.value), indent=15)])


def describe(source: str | ConnectorConfig | Tiers, *, returns: Returns | None = None) -> Description:
    """
    Describe *source*: the type of its values, the origin of that type, its keys, and the defaults of its calls.

    Print the result to read it. When no type is declared, the source itself is asked for the type, as `enrich` does; no
    key is looked up. If the type is a DDL text, there must be a Spark session, which parses the text. The source is
    also asked how many connections it accepts, if no type is declared or if the workers run on this machine. If the
    tasks in all slots of the session would open more connections than that, a warning is logged once.

    Args:
        source: Name of a source, or its config.
        returns: As for `enrich`.

    Raises:
        UnknownConnectorError: There is no source with the name *source*. Raised on the driver.
        ConfigError: The config is wrong, or no type is declared and the source cannot tell the type. Raised on the
            driver.

    >>> describe("users")
    The source 'users'
      connector  http
      key        1 column
      ...
    """
    from ..driver.planner import is_local, make_plan

    _, connector, config = find_source(main_source(source))
    plan, value = make_plan(source, None, returns, {})
    # If the workers run on other machines, perhaps only they can reach the source and its secrets. In that case, the
    # driver asks for the number of connections only if it must ask the source for the type anyway.
    may_ask = (returns is None and config.returns is None) or is_local()
    connections = ask_connections(connector, config) if may_ask else known_connections(connector, config)
    warn_of_connections(plan.source, connector, config, plan.capacity)
    declared = f"{type(config).__name__}.returns" if config.returns is not None else "the source, which was asked"
    return Description(
        source=plan.source,
        connector=connector.name,
        value=value,
        value_from="returns=" if returns is not None else declared,
        key_columns=config.key_parts,
        key_types=tuple(kind.__name__ for kind in connector.key_types),
        capacity=plan.capacity,
        batch_size=plan.batch_size,
        max_batch_size=connector(config).max_batch_size,
        config=redact(repr(config)),
        tiers=tier_capacities(source),
        connections=connections,
    )


def _fields(value: DataType) -> list[tuple[str, str]]:
    from pyspark.sql.types import StructType

    return [(field.name, _ddl(field.dataType)) for field in value] if isinstance(value, StructType) else []


def _ddl(value: DataType) -> str:
    """Return the DDL of a type, with spaces at which a long text can be wrapped."""
    return value.simpleString().replace(",", ", ")
