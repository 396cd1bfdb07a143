"""The distinct keys of a DataFrame: how many there are, their bytes, and a sample of them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ..interface import Key

__all__ = ["Counted", "counted_in", "keyed_by", "sample_of"]

SAMPLE_MIN, SAMPLE_MAX = 50, 10_000
"""Fewest and most keys of a sample, unless the DataFrame has fewer keys."""
BUCKETS = 1_000_000
ERROR = 0.02
"""Relative standard deviation of an approximate count, which Spark is asked to keep."""


class Counted(NamedTuple):
    """
    Numbers of rows and keys of a DataFrame.

    `distinct` counts each key once; `asked` counts each key once for each partition that has it. `bytes` is the total
    size of the keys that `asked` counts, so a key in two partitions is added twice.
    """

    rows: int
    distinct: int
    asked: int
    bytes: float


def keyed_by(df: DataFrame, keys: Sequence[Column | str]) -> DataFrame:
    """
    Return a DataFrame with a row for each row of *df*, and these columns: `k0`, `k1`, ..., the parts of the key; `p`,
    the number of the partition; `is_key`, true if no part is null or NaN; and `size`, the bytes of the key.
    """
    from pyspark.sql import functions as F

    columns = [F.col(key) if isinstance(key, str) else key for key in keys]
    plain = df.select(*(column.alias(f"k{place}") for place, column in enumerate(columns)))
    is_key, size = F.lit(True), F.lit(0)
    for field in plain.schema.fields:
        column, kind = F.col(field.name), field.dataType.typeName()
        is_key = is_key & column.isNotNull()
        if kind in ("float", "double"):
            is_key = is_key & ~F.isnan(column)
        size = size + F.octet_length(column if kind in ("string", "binary") else column.cast("string"))
    return plain.select("*", F.spark_partition_id().alias("p"), is_key.alias("is_key"), size.alias("size"))


def counted_in(keyed: DataFrame, parts: int, *, approximate: bool) -> Counted:
    from pyspark.sql import functions as F

    names = [f"k{place}" for place in range(parts)]
    if approximate:
        one, each = F.xxhash64(*names), F.xxhash64("p", *names)
        found = keyed.agg(
            F.count(F.lit(1)),
            F.approx_count_distinct(F.when(F.col("is_key"), one), ERROR),
            F.approx_count_distinct(F.when(F.col("is_key"), each), ERROR),
            F.avg(F.when(F.col("is_key"), F.col("size"))),
        ).collect()[0]
        return Counted(found[0], found[1], max(found[1], found[2]), float(found[3] or 0.0) * max(found[1], found[2]))
    in_tasks = keyed.groupBy("p", "is_key", "size", *names).agg(F.count(F.lit(1)).alias("rows"))
    by_key = in_tasks.groupBy("is_key", "size", *names).agg(
        F.sum("rows").alias("rows"), F.count(F.lit(1)).alias("tasks")
    )
    found = by_key.agg(
        F.sum("rows"),
        F.count(F.when(F.col("is_key"), 1)),
        F.sum(F.when(F.col("is_key"), F.col("tasks"))),
        F.sum(F.when(F.col("is_key"), F.col("size") * F.col("tasks"))),
    ).collect()[0]
    return Counted(*(int(each or 0) for each in found))


def sample_of(keyed: DataFrame, parts: int, distinct: int, share: float) -> list[tuple[float, Key]]:
    """
    Return a sample of keys, each with its size in bytes, sorted by size.

    Keys are chosen by hash, so frequent keys are not preferred.
    """
    from pyspark.sql import functions as F

    names = [f"k{place}" for place in range(parts)]
    wanted = min(max(share * distinct, SAMPLE_MIN), SAMPLE_MAX)
    buckets = math.ceil(min(1.0, wanted / max(1, distinct)) * BUCKETS)
    chosen = keyed.where("is_key").where(F.pmod(F.xxhash64(*names), F.lit(BUCKETS)) < buckets)
    few = chosen.select("size", *names).distinct().limit(SAMPLE_MAX)
    if hasattr(few, "toArrow"):  # PySpark 4
        rows: Iterable[Any] = zip(*(column.to_pylist() for column in few.toArrow().columns), strict=True)
    else:
        rows = few.collect()
    return sorted(((float(size), _key(key)) for size, *key in rows), key=lambda each: each[0])


def _key(parts: Sequence[Any]) -> Key:
    """Return the key that consists of *parts*, in the form in which a connector gets it."""
    found = tuple(
        part.astimezone(dt.UTC) if isinstance(part, dt.datetime) and part.tzinfo is not None else part for part in parts
    )
    return found if len(found) > 1 else found[0]
