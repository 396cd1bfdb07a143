"""The SQL form: `register_function()` gives an enrichment a name that SQL queries can use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Unpack

from ..errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..interface import ConnectorConfig, Returns
    from ..options import OptionsDict
    from ..sources.tiers import Tiers

__all__ = ["register_function"]

_INSTEAD = (
    "enrich a DataFrame with enrich() and give it a name for SQL with "
    "df.withColumn(...).createOrReplaceTempView('enriched')"
)


def register_function(
    spark: SparkSession,
    name: str,
    source: str | ConnectorConfig | Tiers,
    *,
    returns: Returns | None = None,
    **options: Unpack[OptionsDict],
) -> None:
    """
    Register the SQL function *name*, which looks up keys in *source*, for the life of the session.

    The function takes one key column, or the several columns that form one key, by position. A call with a wrong number
    of key columns fails only when the query runs, because Spark does not tell enrichkit the number earlier.

    A query that names the function twice looks each key up twice. To avoid this, give the result a name and use that
    name, as in ``SELECT user_of(user_id) AS user, user.name, user.score``; a ``WHERE`` needs a subquery to use that
    name.

    Args:
        spark: The session whose SQL gets the function; classic or Spark Connect.
        name: Name of the function: letters, digits and `_`; not the name of a built-in function of Spark. A second
            registration replaces the first.
        source: Name of a source, its config, or `tiers(...)` of several.
        returns: Type of one value, as for `enrich`.
        options: Options of the lookups, such as timeouts; see `Options`. They are the same for all calls of the
            function. ``deterministic=True`` allows the function in join conditions and aggregates. ``carrier="pandas"``
            is refused: SQL passes keys directly, and pandas would turn integer keys beside a null into floats.

    Raises:
        UnknownConnectorError: No source and no plugin has the name *source*. Raised here, on the driver.
        ConfigError: An argument, option, config or type is wrong. Raised here, on the driver.

    >>> register_function(spark, "user_of", "users")
    >>> spark.sql("SELECT user_of(user_id).name AS name FROM events LIMIT 2").collect()
    [Row(name='name of u0'), Row(name='name of u1')]
    """
    from .planner import make_plan
    from .udf import function

    if not hasattr(spark, "udf") or not hasattr(spark, "sql"):
        raise ConfigError(
            f"spark is a {type(spark).__name__}; it must be a SparkSession, as in "
            "register_function(spark, 'user_of', 'users')."
        )
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ConfigError(
            f"The name of the SQL function is {name!r}; it must consist of letters, digits and '_' and begin with no "
            "digit. For example register_function(spark, 'user_of', 'users')."
        )
    if spark.sql(f"SHOW SYSTEM FUNCTIONS LIKE '{name}'").collect():
        # If the new function had this name, Spark 4.3 would go on calling the built-in function, and older versions
        # would replace the built-in function, both without an error.
        raise ConfigError(
            f"The name of the SQL function is {name!r}, the name of a built-in function of Spark; it must be another. "
            f"For example register_function(spark, 'my_{name}', 'users')."
        )
    keywords: dict[str, Any] = {**options}
    plan, spark_type = make_plan(source, None, returns, keywords)
    if plan.options.carrier == "pandas":
        raise ConfigError(
            "carrier is 'pandas'; a SQL function needs 'arrow', because SQL hands keys over as they are, and in pandas "
            f"an integer beside a null is a float, another key. Leave carrier out, or {_INSTEAD}."
        )
    _require_arrow()
    spark.udf.register(name, function(plan, spark_type))


def _require_arrow() -> None:
    import pyspark
    from pyspark.sql import functions as F

    if not hasattr(F, "arrow_udf"):
        raise ConfigError(
            f"PySpark is {pyspark.__version__}; register_function() needs 4.1 or newer, the first with arrow_udf. "
            f"Upgrade PySpark, or {_INSTEAD}."
        )
