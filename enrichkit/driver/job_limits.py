"""Checks, on the driver, the limits that all tasks of a job share, and plans the stores that keep these limits."""

from __future__ import annotations

import uuid
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, PluginError
from ..interface import Connector
from ..limits import Budget, Limit, Rate
from ..plan import LimitPlan
from ..sources.config import find_source
from ..sources.registry import require_driver
from .pickling import canonical_text, digest

if TYPE_CHECKING:
    from ..interface import ConnectorConfig
    from ..options import Options

__all__ = ["check_budget", "engine_limits", "plan_limits", "without_stores"]

PROGRAM = uuid.uuid4().hex[:16]
"""
The id of this driver program. It is a part of the name of each limit that the user has not named, so that other driver
programs do not share the limit.
"""


def plan_limits(options: Options, source: str, config: ConnectorConfig) -> tuple[LimitPlan, ...]:
    """
    Return a plan for each limit in *options* that all tasks of the job share, for the lookups in *source*.

    Raises:
        ConfigError: A store does not exist, or cannot hold limits.
    """
    return tuple(_plan(option, limit, source, config) for option, limit in _of_job(options).items())


def check_budget(source: str, instance: Connector[Any], budget: Budget | None) -> None:
    """
    Check that the connector of *source* can say how much of *budget* a call may take at most.

    Raises:
        ConfigError: The connector cannot say how much a call may take, or cannot say it in all units of the budget.
    """
    if budget is None:
        return
    most = instance.most(())
    if most is None:
        raise ConfigError(
            f"budget is given, but the connector {instance.name!r} of {source!r} cannot say what a call may take at "
            "most. Leave budget out, or have the connector define most()."
        )
    lacking = [unit for unit in budget.units if unit not in most]
    if lacking:
        remedy = "Set the price= in the config of the source" if lacking == ["cost"] else "Limit one of these"
        raise ConfigError(
            f"Budget.{lacking[0]} is given, but the calls of {source!r} are counted in {' and '.join(most)} only. "
            f"{remedy}, or leave Budget.{lacking[0]} out."
        )


def _of_job(options: Options) -> dict[str, Rate | Limit | Budget]:
    """Return the limits among *options* that all tasks of the job share, by the name of the option."""
    given = {"rate": options.rate, "limit": options.limit, "budget": options.budget}
    return {
        option: limit
        for option, limit in given.items()
        if isinstance(limit, Rate | Limit | Budget) and limit.per == "job"
    }


def _plan(option: str, limit: Rate | Limit | Budget, source: str, of: ConnectorConfig) -> LimitPlan:
    where = f"{type(limit).__name__}.store"
    assert limit.store is not None
    try:
        store, connector, config = find_source(limit.store)
        require_driver(connector)
    except (ConfigError, PluginError) as error:
        raise type(error)(f"{where}: {error}") from error
    if connector.lease_store.__func__ is Connector.lease_store.__func__:  # type: ignore[attr-defined]  # a classmethod
        raise ConfigError(
            f"{where} is the source {store!r}, whose connector {connector.name!r} can hold no limits; of those of "
            "enrichkit, 'redis' (for Valkey, too) and 'postgres' can. Name a source of one of them."
        )
    if limit.name is not None:
        name = f"{option}:{limit.name}"
    else:
        # The digest of the config gives different services with the same name different limits. The field `returns` is
        # left out, so that columns of different types share the limit of their service.
        asked = {each.name: getattr(of, each.name) for each in fields(of) if each.name != "returns"}
        name = f"{option}:{source}:{digest(canonical_text(asked))[:16]}:{PROGRAM}"
    return LimitPlan(option=option, name=name, source=store, connector=connector, config=config)


def engine_limits(options: Options, limits: tuple[LimitPlan, ...]) -> list[object]:
    """Return what *options* add to an engine's fingerprint, so that lookups with different limits share no engine."""
    if not isinstance(options.rate, Rate) and options.limit is None and options.budget is None:
        return [options.rate]
    stores = [(each.option, each.name, canonical_text(each.config)) for each in limits]
    bare = without_stores(options)
    return [*(canonical_text(each) for each in (bare.rate, bare.limit, bare.budget)), *stores]


def without_stores(options: Options) -> Options:
    """Return *options* without the configs of stores: the config of a store travels only in its `LimitPlan`."""
    changed: dict[str, Any] = {option: replace(limit, store="planned") for option, limit in _of_job(options).items()}
    return replace(options, **changed) if changed else options
