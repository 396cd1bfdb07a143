"""
The vectorised UDFs as the driver makes them: `arrow_udf`, `pandas_udf` (both iterator kinds) and `mapInArrow`.

What Spark ships is a small closure that carries a pickled `Plan` and imports enrichkit on the worker, where `worker.py`
goes on; all state lives in enrichkit's modules there, because a closure's globals start afresh with every task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import __version__
from .plan import Plan, pack

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

__all__ = ["column", "frame", "function"]

INSTANT = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'G", "timeZone": "UTC"}


def column(plan: Plan, spark_type: DataType, keys: Sequence[Column | str]) -> Column:
    """Return the column that runs *plan* over *keys*; needs a live Spark session."""
    from pyspark.sql import functions as F

    from .types import details_of

    result_type = details_of(spark_type) if plan.options.details else spark_type
    columns = [F.col(key) if isinstance(key, str) else key for key in keys]
    carrier = plan.options.carrier
    if carrier == "auto":
        carrier = "arrow" if hasattr(F, "arrow_udf") else "pandas"
    if carrier == "arrow":
        return _arrow_column(plan, result_type, columns).alias(plan.source)
    return _pandas_column(plan, result_type, columns).alias(plan.source)


def frame(df: DataFrame, payload: bytes, schema: StructType, source: str) -> DataFrame:
    """Return the frame with *schema* that `frame_batches` makes of *df*; *payload* is a pickled `FrameTask`."""
    return df.mapInArrow(_shipped("frame_batches", payload, source, __version__), schema)


def function(plan: Plan, spark_type: DataType) -> Any:
    """Return the UDF that runs *plan* for SQL, where only a worker learns how many keys it is called with."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    from .types import details_of

    run = _shipped("sql_batches", pack(plan), plan.source, __version__)
    array: Any = pa.Array
    # Spark learns from them that it is an iterator, and takes other numbers of key columns all the same.
    run.__annotations__ = {"batches": Iterator[array], "return": Iterator[array]}
    result_type = details_of(spark_type) if plan.options.details else spark_type
    return _as_declared(F.arrow_udf(run, result_type), plan)  # type: ignore[attr-defined]  # absent from its stubs


def _arrow_column(plan: Plan, result_type: DataType, columns: list[Column]) -> Column:
    import pyarrow as pa
    from pyspark.sql import functions as F

    function = _shipped("arrow_batches", pack(plan), plan.source, __version__)
    array: Any = pa.Array
    given: Any = array if len(columns) == 1 else tuple[array, ...]
    function.__annotations__ = {"batches": Iterator[given], "return": Iterator[array]}  # Spark reads them
    return _apply(F.arrow_udf(function, result_type), plan, columns)  # type: ignore[attr-defined]  # absent from its stubs


def _pandas_column(plan: Plan, result_type: DataType, columns: list[Column]) -> Column:
    """
    The pandas form. A key travels as an array of one element, a timestamp as text, and the value inside a struct.

    As a plain pandas Series, an integer key beside a null becomes a float, and 2^53 + 1 another user's key; a timestamp
    loses its instant in the hour that the session's zone has twice; a null struct would come back as a struct of nulls.
    """
    import pandas as pd
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    function = _shipped("pandas_batches", pack(plan), plan.source, __version__)
    given: Any = tuple[pd.Series, ...]
    function.__annotations__ = {"batches": Iterator[given], "return": Iterator[pd.DataFrame]}  # Spark reads them
    envelope = StructType([StructField("value", result_type)])
    # Only Spark's analyser knows a column's type; its optimiser then drops the branch that does not apply. Each branch
    # names the column once, because Spark evaluates it, an enrichment perhaps, as often as it is named.
    keys = [F.when(F.typeof(c) != "timestamp", F.array_compact(F.array(c))) for c in columns]
    instants = [F.when(F.typeof(c) == "timestamp", F.transform(F.array(c), _instant)[0]) for c in columns]
    return _apply(F.pandas_udf(function, envelope), plan, [*keys, *instants])["value"]  # type: ignore[attr-defined]  # likewise


def _instant(timestamp: Column) -> Column:
    from pyspark.sql import functions as F

    # Without the condition Spark 4.3 ends in a NullPointerException.
    return F.when(timestamp.isNotNull(), F.to_csv(F.struct(timestamp.alias("k")), INSTANT))


def _apply(udf: Any, plan: Plan, columns: list[Column]) -> Column:
    result: Column = _as_declared(udf, plan)(*columns)
    return result


def _as_declared(udf: Any, plan: Plan) -> Any:
    return udf if plan.options.deterministic else udf.asNondeterministic()


def _shipped(entry: str, payload: bytes, source: str, version: str) -> Callable[[Any], Any]:
    """Return the closure that Spark ships. It is pickled by value, so it may use nothing but its own variables."""

    def run(batches: Any) -> Any:
        try:
            import enrichkit
            from enrichkit import worker
        except ImportError as error:
            raise ImportError(
                f"enrichkit cannot be imported on this Spark worker ({error}). Install it on the workers as on the "
                f"driver: pip install enrichkit=={version}, and the plugin of the source {source!r}."
            ) from None
        if enrichkit.__version__ != version:
            raise ImportError(
                f"This Spark worker has enrichkit {enrichkit.__version__}, but the driver has {version}. "
                f"Install one version on both: pip install enrichkit=={version}"
            )
        return getattr(worker, entry)(payload, batches)

    run.__name__ = run.__qualname__ = source
    return run
