"""What fallbacks and tiers have in common: each is a source with an engine of its own, beside the main source."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, PluginError
from ..functions import make_connector
from ..sources.config import find_source
from ..sources.registry import require_driver
from .content import content_of
from .pickling import digest, identity_of

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from ..interface import Connector, ConnectorConfig
    from ..options import Options

__all__ = ["engine_of", "find_side", "side_options"]


def find_side(where: str, source: str | ConnectorConfig) -> tuple[str, type[Connector[Any]], ConnectorConfig]:
    """
    Return name, connector class and config of *source*. Error messages begin with *where*, the place where the user
    named the source.
    """
    try:
        name, connector, config = find_source(source)
        require_driver(connector)
    except (ConfigError, PluginError) as error:
        raise type(error)(f"{where}: {error}") from error
    return name, connector, config


def engine_of(
    connector: type[Connector[Any]], config: ConnectorConfig, spark_type: DataType
) -> tuple[Connector[Any], dict[str, Any]]:
    """Return an instance of *connector* for values of *spark_type*, and the fields of a `SidePlan` for its engine."""
    from ..values.types import arrow_type_of, ddl_of

    config = replace(config, returns=ddl_of(spark_type))  # a connector may make its answers fit the declared type
    instance = make_connector(connector, config)
    capacity, batch_size = instance.capacity, min(instance.batch_size, instance.max_batch_size)
    return instance, {
        "connector": connector,
        "config": config,
        "capacity": capacity,
        "batch_size": batch_size,
        "engine_key": digest(*identity_of(connector, config), capacity, None),
        "content_key": content_of(connector, config, arrow_type_of(spark_type)[1]) if instance.idempotency_keys else "",
    }


def side_options(options: Options, *, repeatable: bool) -> Options:
    """
    Return the options for the lookups of a fallback or tier. The timeout applies to these lookups alone, and options
    that concern rows, such as `details`, are off.
    """
    retry = options.retry
    return replace(
        options,
        retry=retry if repeatable or retry is None else replace(retry, on_missing=False),
        timeout=options.timeout if repeatable else options.longest_wait,
        attempt_timeout=options.attempt_timeout if repeatable else None,
        capacity=None,
        max_capacity=None,
        batch_size=None,
        on_timeout="null",
        on_error="null",
        on_missing="null",
        max_fallback_ratio=1.0,
        preload=False,
        cache=None,
        journal=None,
        rate=None,
        limit=None,
        budget=None,
        details=False,
    )
