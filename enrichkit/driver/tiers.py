"""Plans the tiers: sources that are asked before the main source, each with an engine of its own, like a fallback."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..interface import Connector, check_key_parts
from ..plan import TierPlan
from ..sources.tiers import Tiers
from .side import engine_of, find_side, side_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import DataType

    from ..interface import ConnectorConfig
    from ..options import Options

__all__ = ["check_tiers", "main_source", "plan_tiers", "tier_capacities"]


def main_source(source: str | ConnectorConfig | Tiers) -> str | ConnectorConfig:
    """
    Return the source to which options and messages refer: *source* itself, or the last source if *source* is tiers.
    """
    return source.sources[-1] if isinstance(source, Tiers) else source


def tier_capacities(source: str | ConnectorConfig | Tiers) -> dict[str, int]:
    """Return, by quoted name, how many calls a worker process may have in flight to each tier except the last."""
    capacities: dict[str, int] = {}
    for tier in source.sources[:-1] if isinstance(source, Tiers) else ():
        name, connector, config = find_side("tiers()", tier)
        capacities[repr(name)] = capacities.get(repr(name), 0) + connector(config).capacity
    return capacities


def plan_tiers(
    source: str | ConnectorConfig | Tiers,
    options: Options,
    keys: int | None,
    spark_type: DataType,
    names: Sequence[str | None] = (),
    *,
    many: bool,
) -> tuple[TierPlan, ...]:
    """
    Return the plans of all tiers of *source* except the last one.

    Args:
        source: Name of a source, its config, or tiers.
        options: Options of the lookup.
        keys: Number of key columns; None: not known yet.
        spark_type: Type of one value of the last source.
        names: Name of each key column, as in `make_plan`.
        many: Whether a value is a list of matches.

    Raises:
        ConfigError: A tier does not exist, does not fit the keys, or cannot be written to; or the tiers leave no time
            for the last source.
    """
    if not isinstance(source, Tiers):
        return ()
    check_tiers(source, options, many=many)
    return tuple(_plan_tier(tier, source, options, keys, spark_type, names) for tier in source.sources[:-1])


def check_tiers(source: Tiers, options: Options, *, many: bool = False) -> None:
    """
    Raise a `ConfigError` when the tiers of *source* leave no time for the last source, or would have to store lists,
    because a tier stores one value for a key.
    """
    spent = source.timeout * (len(source.sources) - 1)
    if options.timeout is not None and spent >= options.timeout:
        raise ConfigError(
            f"The tiers may take {spent:g} s for a key, tiers(timeout={source.timeout:g}) each; it must be less than "
            f"the option timeout ({options.timeout:g} s), or nothing is left for the last source. Lower the one or "
            "raise the other."
        )
    if many and source.write_back:
        raise ConfigError(
            "tiers(write_back=True) was given with many=True, and a tier holds one value for a key. Leave write_back "
            "or many out."
        )


def _plan_tier(
    source: str | ConnectorConfig,
    of: Tiers,
    options: Options,
    keys: int | None,
    spark_type: DataType,
    names: Sequence[str | None],
) -> TierPlan:
    name, connector, config = find_side("tiers()", source)
    check_key_parts(
        config,
        keys,
        f"The tier {name!r} gets",
        "A tier gets the same key columns as the last source: name a source that takes them.",
    )
    if names:
        config = config.for_columns(names)
    if of.write_back:
        _check_writable(name, connector(config), of.ttl)
    _, engine = engine_of(connector, config, spark_type)
    options = replace(side_options(options, repeatable=False), retry=None, timeout=of.timeout)
    return TierPlan(source=name, options=options, write_back=of.write_back, ttl=of.ttl, **engine)


def _check_writable(name: str, connector: Connector[Any], ttl: float | None) -> None:
    if type(connector).store_many is Connector.store_many:
        raise ConfigError(
            f"tiers(write_back=True) was given, and the connector of {name!r} cannot write: it has no store_many. Name "
            "another tier, for example a Redis, or leave write_back out."
        )
    if connector.cannot_store:
        raise ConfigError(
            f"tiers(write_back=True) was given, and the source {name!r} cannot be written to: {connector.cannot_store} "
            "Or name another tier, or leave write_back out."
        )
    if ttl is not None and not connector.stores_ttl:
        raise ConfigError(
            f"tiers(ttl={ttl:g}) was given, and the source {name!r} does not forget by itself. Leave ttl out, and "
            "remove old rows with a job of your own; or name another tier: a Redis, or a table whose config names a "
            "column in expires."
        )
