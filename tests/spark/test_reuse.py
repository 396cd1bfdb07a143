"""A task asks for a key once, in every form of an enrichment: counted by the source."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F

from enrichkit import enrich, enrich_frame, register_function
from enrichkit.local import Fault, value_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = [pytest.mark.spark, pytest.mark.service]

ROWS, DISTINCT, TASKS = 60_000, 500, 2


def source(service: HttpService) -> HttpConfig:
    return HttpConfig(url=f"{service.url}/{uuid.uuid4().int}/{{}}", value="score", missing=(404,))


def rows(spark: SparkSession) -> DataFrame:
    """Keys in random order, each on about 60 rows of each task; every tenth of them is not in the source."""
    number = F.pmod(F.xxhash64("id"), F.lit(DISTINCT))
    name = F.when(number % 10 == 9, F.lit("missing")).otherwise(F.lit("u"))
    return spark.range(0, ROWS, 1, TASKS).select("id", F.concat(name, number.cast("string")).alias("k"))


def sql(frame: DataFrame, config: HttpConfig) -> DataFrame:
    register_function(frame.sparkSession, "reuse_score", config, returns="int")
    frame.createOrReplaceTempView("reuse_rows")
    return frame.sparkSession.sql("SELECT id, k, reuse_score(k) AS v FROM reuse_rows")


FORMS: dict[str, Callable[[DataFrame, HttpConfig], DataFrame]] = {
    "column": lambda frame, config: frame.withColumn("v", enrich(config, "k", returns="int")),
    "pandas": lambda frame, config: frame.withColumn("v", enrich(config, "k", returns="int", carrier="pandas")),
    "frame": lambda frame, config: enrich_frame(frame, config, on="k", into="v", returns="int"),
    "unordered": lambda frame, config: enrich_frame(frame, config, on="k", into="v", returns="int", ordered=False),
    "sql": sql,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.slow
def test_each_task_asks_for_a_key_once(spark: SparkSession, http_service: HttpService, form: str) -> None:
    found = FORMS[form](rows(spark), source(http_service)).groupBy("k", "v").count().collect()
    expected = {f"u{n}": value_of(f"u{n}")["score"] for n in range(DISTINCT) if n % 10 != 9}
    expected |= {f"missing{n}": None for n in range(9, DISTINCT, 10)}
    assert {row.k: row.v for row in found} == expected
    assert len(found) == DISTINCT
    assert sum(row["count"] for row in found) == ROWS
    assert http_service.stats().calls <= TASKS * DISTINCT
    assert max(http_service.stats().per_key.values()) <= TASKS


def test_without_reuse_later_rows_ask_again(spark: SparkSession, http_service: HttpService) -> None:
    column = enrich(source(http_service), "k", returns="int", reuse=False)
    rows(spark).select(column).write.format("noop").mode("overwrite").save()
    assert http_service.stats().calls > 2 * TASKS * DISTINCT


def test_details_tell_which_rows_cost_no_call(spark: SparkSession, http_service: HttpService) -> None:
    column = enrich(source(http_service), "k", returns="int", details=True)
    found = rows(spark).withColumn("v", column).groupBy("v.origin").count().collect()
    counts = {row.origin: row["count"] for row in found}
    assert set(counts) == {"call", "shared", "reuse"}
    assert sum(counts.values()) == ROWS
    assert counts["reuse"] > ROWS / 2


def test_what_failed_is_asked_again_by_later_rows(spark: SparkSession, http_service: HttpService) -> None:
    http_service.script(Fault(match="u7", status=400, times=1))
    column = enrich(source(http_service), "k", returns="int", on_error="null")
    frame = spark.range(0, ROWS, 1, 1).select(F.lit("u7").alias("k")).select(column.alias("v"))
    values: list[Any] = [row.v for row in frame.collect()]
    assert None in values
    assert values[-1] == value_of("u7")["score"]
