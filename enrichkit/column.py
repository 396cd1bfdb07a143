"""The column form: `enrich()` checks its arguments on the driver and returns a Spark column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from .errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from .connector import ConnectorConfig, Returns
    from .options import OptionsDict

__all__ = ["enrich"]


def enrich(
    source: str | ConnectorConfig,
    *keys: Column | str,
    returns: Returns | None = None,
    **options: Unpack[OptionsDict],
) -> Column:
    """
    Look up each key in *source* and return the values as a column.

    Args:
        source: Name of a source, or its config.
        keys: One column of keys, or several that form one key; columns or their names. A null part gives null and no
            lookup.
        returns: Type of one value: DDL text, a Spark type, an Arrow type or schema, or a dataclass or `TypedDict`; the
            config's or the source's own when absent.
        options: Flow control; see `Options`. Durations in seconds.

    Returns:
        A column in row order, named after the source. One lookup per distinct key in flight at most. It is
        nondeterministic for Spark unless ``deterministic=True``, so that no filter makes Spark evaluate it twice.

    Raises:
        UnknownConnectorError: Nothing is named *source*. Here, on the driver.
        ConfigError: An option, config or type is wrong. Here, on the driver.
        LookupFailedError: On a worker, when a lookup fails and its policy is ``"fail"``.

    Queue semantics follow Flink's async I/O operator (`OrderedStreamElementQueue`).

    >>> df.withColumn("profile", enrich("redis", "user_id")).select("profile.name").first()
    Row(name='name of u0')
    """
    from .carriers import column
    from .plan import make_plan

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
    given: dict[str, Any] = {**options}
    if "ordered" in given:
        raise ConfigError(
            f"ordered={given['ordered']!r} is no option of enrich(): a column must come back in row order, so it is "
            "always ordered. Leave ordered= out."
        )
    plan, spark_type = make_plan(source, len(keys), returns, given)
    return column(plan, spark_type, keys)
