"""`enrich_frame(..., shuffle=True)`: the whole job asks once for a key, and each row comes back once with its value."""

from __future__ import annotations

import math
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F
from pyspark.sql import types as t

from enrichkit import connector, enrich_frame
from enrichkit.errors import ConfigError
from enrichkit.local import value_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = [pytest.mark.spark, pytest.mark.service]

DISTINCT = 200


@pytest.fixture
def echo() -> str:
    """The name of a source that answers a key, or the parts of one, with a text."""

    @connector("echo", returns="string", batch_size=100)
    async def echo(keys: list[Any]) -> dict[Any, str]:
        return {key: " ".join(key) if isinstance(key, tuple) else str(key) for key in keys}

    return "echo"


@pytest.fixture
def config(http_service: HttpService) -> HttpConfig:
    http_service.script(log=True)
    return HttpConfig(url=f"{http_service.url}/{uuid.uuid4().int}/{{}}", value="score", returns="int")


def rows(spark: SparkSession, count: int = 4_000, tasks: int = 4) -> DataFrame:
    """Each key is in all partitions, and every tenth row has none."""
    key = F.when(F.col("id") % 10 != 0, F.concat(F.lit("u"), F.pmod(F.xxhash64("id"), F.lit(DISTINCT))))
    return spark.range(0, count, 1, tasks).select("id", key.alias("k"))


def asked(service: HttpService) -> Counter[str]:
    """How often the service was asked for each key."""
    return Counter({key: count for key, count in service.stats().per_key.items() if count})


@pytest.mark.parametrize("shuffle", [True, 3])
@pytest.mark.parametrize("ordered", [True, False])
def test_the_job_asks_once_for_a_key(
    spark: SparkSession, http_service: HttpService, config: HttpConfig, shuffle: bool | int, ordered: bool
) -> None:
    found = enrich_frame(rows(spark), config, on="k", into="v", shuffle=shuffle, ordered=ordered).collect()
    assert sorted(row.id for row in found) == [*range(4_000)]
    assert all(row.v == (value_of(row.k)["score"] if row.k else None) for row in found)
    counts = asked(http_service)
    assert len(counts) == DISTINCT
    assert set(counts.values()) == {1}


def test_without_it_each_task_asks(spark: SparkSession, http_service: HttpService, config: HttpConfig) -> None:
    enrich_frame(rows(spark), config, on="k", into="v").collect()
    assert sum(asked(http_service).values()) > 3 * DISTINCT


def test_rows_without_a_key_are_in_all_tasks(spark: SparkSession, echo: str) -> None:
    """Even if all of them are alike."""
    frame = spark.range(0, 20_000, 1, 8).select(F.lit(None).cast("string").alias("k"), F.lit(1).alias("x"))
    found = enrich_frame(frame, echo, on="k", into="v", shuffle=4).groupBy(F.spark_partition_id()).count().collect()
    assert sum(row["count"] for row in found) == 20_000
    assert len(found) >= 3
    assert max(row["count"] for row in found) <= 12_500


def test_a_key_of_several_columns_with_a_null_part(spark: SparkSession, echo: str) -> None:
    frame = rows(spark, 1_000).select("id", "k", F.when(F.col("id") % 3 != 0, F.lit("x")).alias("other"))
    found = enrich_frame(frame, echo, on=("k", "other"), into="v", shuffle=True).collect()
    assert len(found) == 1_000
    assert all(row.v == (None if row.k is None or row.other is None else f"{row.k} {row.other}") for row in found)


def test_keys_that_the_engine_takes_for_one_are_in_one_task(spark: SparkSession, echo: str) -> None:
    zeros = spark.createDataFrame(
        [(0.0,), (-0.0,), (math.nan,), (-math.nan,)] * 50, t.StructType([t.StructField("k", t.DoubleType())])
    )
    frame = enrich_frame(zeros.repartition(4), echo, on="k", into="v", shuffle=4)
    tasks = frame.select("k", F.spark_partition_id().alias("task")).distinct().collect()
    assert len({row.task for row in tasks if row.k == 0.0}) == 1
    assert len({row.task for row in tasks if row.k != row.k}) == 1  # only NaN differs from itself


def test_columns_of_all_types_pass_through(spark: SparkSession, echo: str) -> None:
    """Those that Spark cannot hash count not, where rows without a key are spread."""
    frame = rows(spark, 100).select(
        "*", F.create_map(F.lit("a"), "id").alias("m"), F.array("id").alias("a"), F.struct("id").alias("s")
    )
    found = enrich_frame(frame, echo, on="k", into="v", shuffle=True).collect()
    assert sorted((row.id, row.m["a"], row.a[0], row.s.id) for row in found) == [(n, n, n, n) for n in range(100)]


def test_in_a_stream_it_is_once_for_a_micro_batch(
    spark: SparkSession, http_service: HttpService, config: HttpConfig, tmp_path: Path
) -> None:
    rows(spark).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id bigint, k string").parquet(str(tmp_path / "in"))
    query = (
        enrich_frame(stream, config, on="k", into="v", shuffle=True)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(100)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 4_000
    counts = asked(http_service)
    assert len(counts) == DISTINCT
    assert set(counts.values()) == {1}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"shuffle": 0},
            (
                "shuffle is 0; it must be True, False, or a number of partitions from 1 to 1,000,000, for example "
                "shuffle=True."
            ),
        ),
        (
            {"shuffle": "yes"},
            (
                "shuffle is 'yes'; it must be True, False, or a number of partitions from 1 to 1,000,000, for example "
                "shuffle=True."
            ),
        ),
        (
            {"shuffle": True, "barrier": "id", "ordered": False},
            (
                "barrier is given with shuffle, which mixes the rows, so that no order is left to keep. Leave one of "
                "them out."
            ),
        ),
    ],
)
def test_what_is_wrong_is_told(spark: SparkSession, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        enrich_frame(rows(spark, 1), "echo", on="k", **arguments)
    assert str(caught.value) == text
