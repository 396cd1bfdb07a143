"""How often the source is asked, counted by the source."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F

from enrichkit import Cache, enrich
from enrichkit.local import value_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = pytest.mark.spark

PROFILE = "key string, name string, score int"
KEYS = {f"u{n}" for n in range(200)}


@pytest.fixture
def users(spark: SparkSession) -> DataFrame:
    """200 distinct keys, each once, in 4 partitions."""
    return spark.range(0, 200, 1, 4).select("id", F.concat(F.lit("u"), F.col("id").cast("string")).alias("user_id"))


def profile(service: HttpService, key: Column | str = "user_id", **options: Any) -> Column:
    """A new source each time: workers keep the connections and caches of the others."""
    url = f"{service.url}/{uuid.uuid4().int}/{{}}"
    return enrich(HttpConfig(url=url, returns=PROFILE), key, **options).alias("profile")


def assert_asked_once(service: HttpService, keys: set[str] = KEYS, times: int = 1) -> None:
    assert dict.fromkeys(keys, times) == service.stats().per_key
    assert service.stats().keys == times * len(keys)


@pytest.mark.slow
def test_each_key_is_asked_for_once(users: DataFrame, http_service: HttpService, carrier: str) -> None:
    rows = users.select("user_id", profile(http_service, carrier=carrier)).collect()
    assert {key: value_of(key) for key in KEYS} == {row.user_id: row.profile.asDict() for row in rows}
    assert_asked_once(http_service)


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda frame: frame.select("profile.name", "profile.score", "profile"), id="twice"),
        pytest.param(
            lambda frame: frame.withColumn("a", F.col("profile.name")).withColumn(
                "b", F.concat("a", F.col("profile.key"))
            ),
            id="in-two-steps",
        ),
        pytest.param(lambda frame: frame.where("profile.score >= 0"), id="filter"),
        pytest.param(lambda frame: frame.where("profile.score >= 0 and profile.name is not null"), id="two-filters"),
        pytest.param(lambda frame: frame.where("id < 1000").where("profile is not null"), id="filter-on-both"),
        pytest.param(lambda frame: frame.select("id", "profile.*").where("score >= 0"), id="star"),
        pytest.param(lambda frame: frame.repartition(2, "profile.score"), id="repartition"),
        pytest.param(lambda frame: frame.dropDuplicates(["profile"]), id="distinct"),
    ],
)
def test_a_column_that_is_used_more_than_once_is_asked_for_once(
    users: DataFrame, http_service: HttpService, use: Any
) -> None:
    assert len(use(users.withColumn("profile", profile(http_service))).collect()) == 200
    assert_asked_once(http_service)


def test_a_filter_on_the_result_asks_once_on_the_pandas_carrier_too(
    users: DataFrame, http_service: HttpService
) -> None:
    frame = users.withColumn("profile", profile(http_service, carrier="pandas"))
    assert frame.where("profile.score >= 0").select("profile.name", "profile.score").count() == 200
    assert_asked_once(http_service)


@pytest.mark.slow
def test_two_columns_ask_for_each_key_twice(users: DataFrame, http_service: HttpService) -> None:
    rows = users.select("user_id", profile(http_service), profile(http_service).alias("again")).collect()
    assert all(row.profile.asDict() == row.again.asDict() == value_of(row.user_id) for row in rows)
    assert_asked_once(http_service, times=2)


@pytest.mark.parametrize("kind", ["string", "timestamp"])
def test_an_enrichment_that_is_the_key_of_another_is_asked_for_once(
    users: DataFrame, http_service: HttpService, carrier: str, kind: str
) -> None:
    """On the pandas carrier a timestamp takes another way than the other types."""
    http_service.seed({f"u{n}": {"next": f"2026-01-01T00:00:{n:02d}Z"} for n in range(60)})
    inner = HttpConfig(url=f"{http_service.url}/{uuid.uuid4().int}/{{}}", returns=f"next {kind}")
    key = enrich(inner, "user_id", carrier=carrier)["next"]
    rows = users.where("id < 60").select("id", profile(http_service, key, carrier=carrier)).collect()
    zone = "Z" if kind == "string" else "+00:00"
    expected = {n: f"2026-01-01T00:00:{n:02d}{zone}" for n in range(60)}
    assert expected == {row.id: row.profile.key for row in rows}
    assert_asked_once(http_service, {*expected.values(), *(f"u{n}" for n in range(60))})


def test_a_column_that_nobody_looks_at_is_not_asked_for(users: DataFrame, http_service: HttpService) -> None:
    frame = users.withColumn("profile", profile(http_service))
    assert (frame.count(), len(frame.select("id").collect())) == (200, 200)
    assert http_service.stats().calls == 0


def test_a_key_on_many_rows_of_a_batch_is_asked_for_once(
    users: DataFrame, http_service: HttpService, carrier: str
) -> None:
    """In a slice of rows; the window begins with room for twice the keys in flight, and a slice is an eighth of it."""
    key = F.concat(F.lit("u"), (F.col("id") / 10).cast("int").cast("string"))
    rows = users.coalesce(1).select(key.alias("k"), profile(http_service, key, carrier=carrier, capacity=800)).collect()
    assert all(row.profile.asDict() == value_of(row.k) for row in rows)
    assert_asked_once(http_service, {f"u{n}" for n in range(20)})


def test_with_a_cache_a_key_on_many_rows_of_a_task_is_asked_for_once(
    spark: SparkSession, http_service: HttpService, carrier: str
) -> None:
    frame = spark.range(0, 5000, 1, 1).select(F.concat(F.lit("u"), (F.col("id") % 50).cast("string")).alias("user_id"))
    rows = frame.select("user_id", profile(http_service, cache=Cache(ttl=60), carrier=carrier)).collect()
    assert all(row.profile.asDict() == value_of(row.user_id) for row in rows)
    assert_asked_once(http_service, {f"u{n}" for n in range(50)})


def test_a_null_key_makes_no_call(users: DataFrame, http_service: HttpService, carrier: str) -> None:
    key = F.when(F.col("id") % 2 == 0, F.col("user_id"))
    rows = users.select("id", profile(http_service, key, carrier=carrier)).collect()
    assert {n: value_of(f"u{n}") if n % 2 == 0 else None for n in range(200)} == {
        row.id: row.profile and row.profile.asDict() for row in rows
    }
    assert_asked_once(http_service, {f"u{n}" for n in range(0, 200, 2)})


def test_only_null_keys_open_no_connection(users: DataFrame, http_service: HttpService, carrier: str) -> None:
    rows = users.select(profile(http_service, F.lit(None).cast("string"), carrier=carrier)).collect()
    assert [None] * 200 == [row.profile for row in rows]
    assert (http_service.stats().calls, http_service.stats().connections) == (0, 0)


@pytest.mark.parametrize("empty", ["id < 0", "rand(1) < 0"])
def test_an_empty_dataframe_opens_no_connection(
    users: DataFrame, http_service: HttpService, carrier: str, empty: str
) -> None:
    """Of the second one Spark cannot know that it is empty: the function is called on four empty partitions."""
    assert users.where(empty).select(profile(http_service, carrier=carrier)).collect() == []
    assert (http_service.stats().calls, http_service.stats().connections) == (0, 0)


def test_empty_partitions_open_no_connection(users: DataFrame, http_service: HttpService, carrier: str) -> None:
    frame = users.where(F.spark_partition_id() == 2).select(
        "user_id", profile(http_service, carrier=carrier, capacity=1)
    )
    assert len(frame.collect()) == 50
    assert (http_service.stats().keys, http_service.stats().connections) == (50, 1)


def test_many_keys_travel_in_one_call(users: DataFrame, http_service: HttpService) -> None:
    config = HttpConfig(url=f"{http_service.url}/bulk", bulk=True, returns=PROFILE)
    rows = users.coalesce(1).select("user_id", enrich(config, "user_id", batch_size=50).alias("profile")).collect()
    assert {key: value_of(key) for key in KEYS} == {row.user_id: row.profile.asDict() for row in rows}
    stats = http_service.stats()
    assert (stats.keys, stats.calls) == (200, 4)


def test_calls_overlap_up_to_capacity(users: DataFrame, http_service: HttpService) -> None:
    http_service.script(latency=0.05)
    users.coalesce(1).select(profile(http_service, capacity=7)).collect()
    assert http_service.stats().peak == 7
    assert_asked_once(http_service)


def test_a_limit_behind_a_filter_on_the_result_asks_for_a_part_of_the_keys(
    spark: SparkSession, http_service: HttpService, conf: Callable[[str, str], None], carrier: str
) -> None:
    """Spark stops the task when it has the rows, and the run then makes no more calls."""
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    count = 100_000
    users = spark.range(0, count, 1, 1).select(F.concat(F.lit("u"), F.col("id").cast("string")).alias("user_id"))
    frame = users.select("user_id", profile(http_service, carrier=carrier)).where("profile.score >= 0")
    rows = frame.limit(5).collect()
    assert {f"u{n}": value_of(f"u{n}") for n in range(5)} == {row.user_id: row.profile.asDict() for row in rows}
    asked = -1
    while asked != http_service.stats().keys:  # calls in flight may still arrive
        asked = http_service.stats().keys
        time.sleep(0.3)
    assert set(http_service.stats().per_key.values()) == {1}
    assert asked < count / 4  # the window has 20,000 rows
