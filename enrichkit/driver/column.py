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
            finds them by the names of *keys*. Key columns without a name get the remaining names in the config, in the
            order of the columns.
        returns: Type of one value: DDL text, a Spark type, an Arrow type or schema, or a dataclass or `TypedDict`.
            None: the type that the config declares, or else the type that the source reports.
        options: Options of the lookups, such as timeouts; see `Options`. Durations are in seconds.

    Returns:
        A column in row order, named after the source. Rows of a task that wait for the same key share one lookup.
        Unless ``deterministic=True``, Spark treats the column as nondeterministic, so that no filter makes Spark
        evaluate the column twice.

    Raises:
        UnknownConnectorError: No source and no plugin has the name *source*. Raised here, on the driver.
        ConfigError: An option, config or type is wrong. Raised here, on the driver.
        LookupFailedError: A lookup failed, and the option for this case, such as `on_error`, is ``"fail"``. Raised on a
            worker.

    The queue of rows under way works like that of Flink's async I/O operator (`OrderedStreamElementQueue`).

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
