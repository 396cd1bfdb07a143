"""`describe()`: what a source is, as the driver sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .config import find_source
from .report import Report, plural, table
from .secrets import redact

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from .connector import ConnectorConfig, Returns

__all__ = ["Description", "describe"]


@dataclass(frozen=True, repr=False)
class Description(Report):
    """
    What `describe` found; `str` of it is the text.

    Attributes:
        source: Name of the source.
        connector: Name of its connector.
        value: Spark type of one value.
        value_from: Where that type came from.
        key_columns: How many there must be; None: one or more.
        key_types: Names of the Python types that a part of a key may have; empty: all.
        capacity: Calls in flight per worker process, unless an option says otherwise.
        batch_size: Keys per call, likewise.
        max_batch_size: Most keys that a call may hold.
        config: The config as text, without its secrets.
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

    def __str__(self) -> str:
        keys = "one or more columns" if self.key_columns is None else plural(self.key_columns, "column")
        facts = [
            ("connector", self.connector),
            ("key", keys),
            *([("", f"of the Python types {', '.join(self.key_types)}")] if self.key_types else []),
            ("calls", f"{plural(self.batch_size, 'key')} per call (at most {self.max_batch_size:,})"),
            ("", f"{plural(self.capacity, 'call')} in flight per worker process"),
            ("config", self.config),
            ("value", _ddl(self.value) if not _fields(self.value) else f"a struct, from {self.value_from}:"),
        ]
        if not _fields(self.value):
            facts.append(("", f"from {self.value_from}"))
        return "\n".join([f"The source {self.source!r}", *table(facts), *table(_fields(self.value), indent=15)])


def describe(source: str | ConnectorConfig, *, returns: Returns | None = None) -> Description:
    """
    Say what a value of *source* is, where its type comes from, and how the source is asked; print it to read it.

    Where no type is declared the source itself is asked, as `enrich` does; no key is looked up. Needs a Spark session
    where a type is given as DDL text.

    Args:
        source: Name of a source, or its config.
        returns: As for `enrich`.

    Raises:
        UnknownConnectorError: Nothing is named *source*. On the driver.
        ConfigError: The config is wrong, or the type of a value is not known and the source cannot tell it. On the
            driver.

    >>> describe("users")
    The source 'users'
      connector  http
      key        1 column
      ...
    """
    from .plan import make_plan

    _, connector, config = find_source(source)
    plan, value = make_plan(source, None, returns, {})
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
    )


def _fields(value: DataType) -> list[tuple[str, str]]:
    from pyspark.sql.types import StructType

    return [(field.name, _ddl(field.dataType)) for field in value] if isinstance(value, StructType) else []


def _ddl(value: DataType) -> str:
    """The type with spaces, at which a long one can be wrapped."""
    return value.simpleString().replace(",", ", ")
