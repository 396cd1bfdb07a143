"""The column form: `enrich()` checks its arguments on the driver and returns a Spark column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from ..errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from ..interface import ConnectorConfig, Returns
    from ..options import OptionsDict
    from ..sources.tiers import Tiers

__all__ = ["enrich"]


def enrich(
    source: str | ConnectorConfig | Tiers,
    *keys: Column | str,
    returns: Returns | None = None,
    **options: Unpack[OptionsDict],
) -> Column:
    """
    Look up each key in *source* and return the values as a column.

    Args:
        source: Name of a source, its config, or `tiers(...)` of several.
        keys: One key column, or several that form one key; columns or their names. A row with a null in a key column
            gets a null, without a lookup. A config that refers to key columns by name, such as the prompt of a model,
            finds them by the names of *keys*; columns without a name take the remaining names of the config, in order.
        returns: Type of one value: DDL text, a Spark type, an Arrow type or schema, or a dataclass or `TypedDict`. When
            absent: the type that the config declares or that the source tells.
        options: Flow control; see `Options`. Durations are in seconds.

    Returns:
        A column in row order, named after the source. A distinct key has at most one lookup in flight. Unless
        ``deterministic=True``, Spark treats the column as nondeterministic, so that no filter makes Spark evaluate the
        column twice.

    Raises:
        UnknownConnectorError: No source and no plugin has the name *source*. Raised here, on the driver.
        ConfigError: An option, config or type is wrong. Raised here, on the driver.
        LookupFailedError: On a worker, when a lookup fails and its policy is ``"fail"``.

    The queue semantics follow Flink's async I/O operator (`OrderedStreamElementQueue`).

    >>> df.withColumn("profile", enrich("redis", "user_id")).select("profile.name").first()
    Row(name='name of u0')
    """
    from .planner import make_plan, names_of
    from .udf import column

    if not keys:
        raise ConfigError(
            "enrich() was given no key; it needs one or more key columns, as in enrich('redis', 'user_id')."
        )
    for key in keys:
        if not isinstance(key, str) and not hasattr(key, "alias"):
            raise ConfigError(
                f"A key of enrich() is a {type(key).__name__}; it must be a column or the name of one, as in "
                "enrich('redis', 'user_id') or enrich('redis', col('user_id'))."
            )
    plan, spark_type = make_plan(source, len(keys), returns, {**options}, names=names_of(keys))
    return column(plan, spark_type, keys)
