"""
The vectorized UDFs, which the driver makes: `arrow_udf`, `pandas_udf` (both of the iterator kind) and `mapInArrow`.

Spark ships a small closure that carries a pickled `Plan`. On the worker the closure imports enrichkit and calls
`worker/entry.py`. All state is in modules on the worker, because a closure has new globals in every task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..version import VERSION
from .pickling import pack

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from ..plan import Plan

__all__ = ["column", "frame", "function"]

INSTANT = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'G", "timeZone": "UTC"}


def column(plan: Plan, spark_type: DataType, keys: Sequence[Column | str]) -> Column:
    """Return the column that runs *plan* over *keys*; it needs a live Spark session."""
    from pyspark.sql import functions as F

    from ..values.types import details_of

    result_type = details_of(spark_type, plan.units) if plan.options.details else spark_type
    columns = [F.col(key) if isinstance(key, str) else key for key in keys]
    carrier = plan.options.carrier
    if carrier == "auto":
        carrier = "arrow" if hasattr(F, "arrow_udf") else "pandas"
    if carrier == "arrow":
        return _arrow_column(plan, result_type, columns).alias(plan.source)
    return _pandas_column(plan, result_type, columns).alias(plan.source)


def frame(df: DataFrame, payload: bytes, schema: StructType, source: str) -> DataFrame:
    """
    Return the DataFrame that the worker function `frame_batches` makes of *df*.

    Args:
        df: The input, with numbered columns.
        payload: A pickled `FrameTask`.
        schema: Schema of the result.
        source: Name of the source.
    """
    return df.mapInArrow(_closure("frame_batches", payload, source, VERSION), schema)


def function(plan: Plan, spark_type: DataType) -> Any:
    """Return the UDF that runs *plan* for SQL, where only a worker learns the number of key columns of a call."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    from ..values.types import details_of

    run = _closure("sql_batches", pack(plan), plan.source, VERSION)
    array: Any = pa.Array
    # The annotations tell Spark that the UDF is an iterator UDF. They name one key column, but Spark calls the UDF with
    # any number of them.
    run.__annotations__ = {"batches": Iterator[array], "return": Iterator[array]}
    result_type = details_of(spark_type, plan.units) if plan.options.details else spark_type
    return _set_determinism(F.arrow_udf(run, result_type), plan)  # type: ignore[attr-defined]  # not in PySpark stubs


def _arrow_column(plan: Plan, result_type: DataType, columns: list[Column]) -> Column:
    import pyarrow as pa
    from pyspark.sql import functions as F

    run = _closure("arrow_batches", pack(plan), plan.source, VERSION)
    array: Any = pa.Array
    batch: Any = array if len(columns) == 1 else tuple[array, ...]
    run.__annotations__ = {"batches": Iterator[batch], "return": Iterator[array]}  # Spark reads the annotations
    return _apply(F.arrow_udf(run, result_type), plan, columns)  # type: ignore[attr-defined]  # not in PySpark stubs


def _pandas_column(plan: Plan, result_type: DataType, columns: list[Column]) -> Column:
    """
    Return the column for the pandas carrier.

    A text key travels as its bytes, a timestamp key as text, and any other key as an array of one element. The
    looked-up value travels back inside a struct. These forms avoid four faults of a plain pandas Series. In such a
    Series, an integer key beside a null would become a float, so that 2^53 + 1 would become the key of another user. A
    text that is not UTF-8, which Spark allows, would fail the task. A timestamp in the hour that the session's time
    zone repeats in autumn could mean either of two instants. A null struct would come back as a struct of nulls.
    """
    import pandas as pd
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructField, StructType

    run = _closure("pandas_batches", pack(plan), plan.source, VERSION)
    batch: Any = tuple[pd.Series, ...]
    run.__annotations__ = {"batches": Iterator[batch], "return": Iterator[pd.DataFrame]}  # Spark reads the annotations
    envelope = StructType([StructField("value", result_type)])
    # Only Spark's analyzer knows the type of a column, so there is a branch for each kind of type. The optimizer then
    # drops the branches for other types. Each branch uses the value of the column once, because Spark evaluates a
    # column as often as an expression uses it, and the column may itself be an enrichment.
    texts = [F.when(_is_text(c), c.cast("string").cast("binary")) for c in columns]
    instants = [F.when(F.typeof(c) == "timestamp", F.transform(F.array(c), _instant)[0]) for c in columns]
    others = (~_is_text(c) & (F.typeof(c) != "timestamp") for c in columns)
    keys = [F.when(other, F.array_compact(F.array(c))) for other, c in zip(others, columns, strict=True)]
    return _apply(F.pandas_udf(run, envelope), plan, [*keys, *texts, *instants])["value"]  # type: ignore[attr-defined]  # not in PySpark stubs


def _is_text(column: Column) -> Column:
    from pyspark.sql import functions as F

    # The type of a string with a collation is shown as, for example, "string collate UNICODE".
    return F.startswith(F.typeof(column), F.lit("string"))


def _instant(timestamp: Column) -> Column:
    """Return *timestamp* as text, which the worker module `pandas_arrow` parses."""
    from pyspark.sql import functions as F

    # Without the condition, Spark 4.3 raises a NullPointerException for a null.
    return F.when(timestamp.isNotNull(), F.to_csv(F.struct(timestamp.alias("k")), INSTANT))


def _apply(udf: Any, plan: Plan, columns: list[Column]) -> Column:
    result: Column = _set_determinism(udf, plan)(*columns)
    return result


def _set_determinism(udf: Any, plan: Plan) -> Any:
    return udf if plan.options.deterministic else udf.asNondeterministic()


def _closure(entry: str, payload: bytes, source: str, version: str) -> Callable[[Any], Any]:
    """Return the closure that Spark ships. The closure is pickled by value, so it may use only its own variables."""

    def run(batches: Any) -> Any:
        try:
            import enrichkit
            from enrichkit.worker import entry as entries
        except ImportError as error:
            raise ImportError(
                f"enrichkit cannot be imported on this Spark worker ({error}). Ship it with its plugins: enrichkit "
                "pack prints the lines that do. Or install it on the workers as on the driver: pip install "
                f"enrichkit=={version}, and the plugin of the source {source!r}."
            ) from None
        if enrichkit.__version__ != version:
            raise ImportError(
                f"This Spark worker has enrichkit {enrichkit.__version__}, but the driver has {version}. Ship that of "
                f"the driver: enrichkit pack prints the lines that do. Or install one on both: pip install "
                f"enrichkit=={version}"
            )
        return getattr(entries, entry)(payload, batches)

    run.__name__ = run.__qualname__ = source
    return run
