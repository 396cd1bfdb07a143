"""An enrichment among other expressions of a query: Flink's cases of async functions in SQL, on Spark."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from enrichkit import enrich

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

    from enrichkit.local import HttpService

    Table = Callable[[dict[Any, Any]], Any]

pytestmark = pytest.mark.spark


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, 20, 1, 1).select("id", F.concat(F.lit("row "), F.col("id").cast("string")).alias("name"))


@pytest.fixture
def plus_ten(table: Table) -> Callable[..., Column]:
    """A function that enriches a number with the number ten above it."""
    source = table({n: n + 10 for n in range(60)})
    return lambda key, **options: enrich(source, key, returns="bigint", **options)


def test_a_literal_and_other_columns_stay_on_their_rows(numbers: DataFrame, plus_ten: Callable[..., Column]) -> None:
    """U2: beside an enrichment, and inside one expression with it."""
    found = plus_ten("id")
    rows = numbers.select(F.lit(4), "name", found + 4, found + F.col("id"), F.concat("name", F.lit("!"))).collect()
    assert [(4, f"row {n}", n + 14, 2 * n + 10, f"row {n}!") for n in range(20)] == [tuple(row) for row in rows]


def test_enrichments_inside_each_other_beside_one_alone(numbers: DataFrame, plus_ten: Callable[..., Column]) -> None:
    """U4: three inside each other, and one beside them."""

    def plus(key: Any) -> Column:
        return plus_ten(key)

    rows = numbers.select("id", plus(plus(plus("id"))).alias("far"), plus("id").alias("near")).collect()
    assert [(n, n + 30, n + 10) for n in range(20)] == [tuple(row) for row in rows]


@pytest.mark.slow
def test_enrichments_and_functions_of_python_inside_each_other(
    numbers: DataFrame, plus_ten: Callable[..., Column], carrier: str
) -> None:
    """U5: one inside the other, the other inside the one, and both around a third."""
    double = F.udf(lambda n: 2 * n, "bigint")
    rows = numbers.select(
        "id",
        double(plus_ten("id", carrier=carrier)).alias("outside"),
        plus_ten(double("id"), carrier=carrier).alias("inside"),
        plus_ten(double(plus_ten("id", carrier=carrier)), carrier=carrier).alias("between"),
    ).collect()
    assert [(n, 2 * n + 20, 2 * n + 10, 2 * n + 30 if n < 20 else None) for n in range(20)] == [
        tuple(row) for row in rows
    ]


def test_a_constant_key_is_asked_for_once(spark: SparkSession, http_service: HttpService) -> None:
    """U6: of a frame of one row that was made of nothing, and of one of many rows."""
    config = HttpConfig(url=f"{http_service.url}/{uuid.uuid4()}/{{}}", returns="name string")
    one = spark.range(1).select(enrich(config, F.lit("u1"))["name"])
    assert [("name of u1",)] == [tuple(row) for row in one.collect()]
    many = spark.range(0, 10, 1, 1).select("id", enrich(config, F.lit("u2"))["name"])
    assert [(n, "name of u2") for n in range(10)] == [tuple(row) for row in many.collect()]
    assert {"u1": 1, "u2": 1} == http_service.stats().per_key


def test_an_enrichment_selects_and_filters_at_the_same_time(
    numbers: DataFrame, plus_ten: Callable[..., Column]
) -> None:
    """U7: the same expression written twice, in the list of columns and in the condition."""
    rows = numbers.where(plus_ten("id").cast("string").rlike("^1[0-4]$")).select("name", plus_ten("id"))
    assert [(f"row {n}", n + 10) for n in range(5)] == [tuple(row) for row in rows.collect()]


def test_three_key_columns_and_one_beside_them_are_not_mixed_up(
    spark: SparkSession, table: Table, carrier: str
) -> None:
    """U13: with keys whose parts are those of another key in another order."""
    keys = [("a", "b", "c"), ("c", "b", "a"), ("b", "a", "c"), ("a", "a", "a"), ("ab", "", "c"), ("a", "bc", "")]
    held = {key: "-".join(key) for key in keys if key != ("a", "a", "a")}
    column = enrich(table(held), "x", "y", "z", returns="string", carrier=carrier)
    frame = spark.createDataFrame([(*key, n) for n, key in enumerate(keys)], "x string, y string, z string, n int")
    rows = frame.coalesce(1).select("n", column, "y").collect()
    assert [(n, held.get(key), key[1]) for n, key in enumerate(keys)] == [tuple(row) for row in rows]


def test_an_inner_join_takes_an_enrichment_of_both_sides_and_an_outer_one_says_no(
    numbers: DataFrame, table: Table
) -> None:
    """U12: deterministic, or Spark's analyser refuses it in any join; the way round is to enrich before the join."""
    other = numbers.select(F.col("id").alias("n"))
    pair = enrich(table({(n, n + 1): True for n in range(0, 20, 2)}), "id", "n", returns="boolean", deterministic=True)
    rows = numbers.join(other, pair).select("id", "n").collect()
    assert {(n, n + 1) for n in range(0, 20, 2)} == {tuple(row) for row in rows}
    with pytest.raises(AnalysisException, match=r"Python UDF in the ON clause of a LEFT OUTER JOIN"):
        numbers.join(other, pair, "left").collect()


def test_two_enrichments_in_one_select_overlap(
    spark: SparkSession, http_service: HttpService, conf: Callable[[str, str], None], carrier: str
) -> None:
    """
    U19: neither waits for the other to end: the service is asked for the second while the first has rows to ask.

    The keys are long, because Spark takes no output before the buffers of the input, of 64 KiB each, are full or the
    input ends; with less than that in a task, one enrichment comes after the other.
    """
    http_service.script(latency=0.002, log=True)
    key = F.rpad(F.concat(F.lit("u"), "id", F.lit("-")), 1500, "x")
    columns = []
    for name in ("first", "second"):
        config = HttpConfig(url=f"{http_service.url}/{name}/{uuid.uuid4()}/{{}}", returns="name string")
        column = enrich(config, key, capacity=4, carrier=carrier)["name"]
        columns.append(F.split_part(column, F.lit("-"), F.lit(1)).alias(name))
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    rows = spark.range(0, 600, 1, 1).select("id", *columns).collect()
    assert [(n, f"name of u{n}", f"name of u{n}") for n in range(600)] == [tuple(row) for row in rows]
    asked = [entry["path"].split("/")[1] for entry in http_service.log()]
    assert {"first": 600, "second": 600} == Counter(asked)
    assert asked not in (sorted(asked), sorted(asked, reverse=True)), "all of one, then all of the other"
