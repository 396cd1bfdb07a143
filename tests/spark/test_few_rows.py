"""A job that wants a few rows, or is cancelled, asks for little: counted by the source."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig

from enrichkit import enrich, enrich_frame, register_function
from enrichkit.testing import bench

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = pytest.mark.spark

CAPACITY = 100
"""The default of the HTTP connector."""
TYPE = "key string, name string"


@pytest.fixture
def many(spark: SparkSession) -> DataFrame:
    """100,000 rows with distinct keys."""
    return spark.range(100_000)


@pytest.fixture
def service(http_service: HttpService) -> HttpService:
    """A service that takes 20 ms."""
    http_service.script(latency=0.02)
    return http_service


def source(service: HttpService) -> HttpConfig:
    """A source of its own for each test, with default options."""
    return HttpConfig(url=f"{service.url}/{uuid.uuid4().int}/{{}}")


def profile(service: HttpService) -> Column:
    return enrich(source(service), "id", returns=TYPE)


def calls_that_follow(service: HttpService, seconds: float) -> int:
    calls = service.stats().calls
    time.sleep(seconds)
    return service.stats().calls - calls


USES: dict[str, Callable[[DataFrame, HttpService], Any]] = {
    "show": lambda many, service: many.withColumn("p", profile(service)).show(5),
    "show_text": lambda many, service: many.withColumn("p", enrich(source(service), "id")).show(5),
    "head": lambda many, service: many.withColumn("p", profile(service)).head(5),
    "head_of_fields": lambda many, service: many.withColumn("p", profile(service)).select("p.*").head(5),
    "filter": lambda many, service: many.withColumn("p", profile(service)).where("p.name is not null").head(5),
    "filter_limit": lambda many, service: (
        many.withColumn("p", profile(service)).where("p.name is not null").limit(5).collect()
    ),
    "is_empty": lambda many, service: many.withColumn("p", profile(service)).isEmpty(),
    "pandas": lambda many, service: many.withColumn(
        "p", enrich(source(service), "id", returns=TYPE, carrier="pandas")
    ).show(5),
    "frame": lambda many, service: enrich_frame(many, source(service), on="id", into="p", returns=TYPE).show(5),
    "unordered_frame": lambda many, service: enrich_frame(
        many, source(service), on="id", into="p", returns=TYPE, ordered=False
    ).show(5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_five_rows_of_many_take_at_most_three_rounds_of_calls(many: DataFrame, service: HttpService, name: str) -> None:
    """Asked up to three times, as Spark may take longer to close the socket on a busy machine than `GRACE` allows."""
    for _ in range(3):
        service.reset_stats()
        USES[name](many, service)
        time.sleep(1.0)
        assert calls_that_follow(service, 0.5) == 0
        if service.stats().calls <= 3 * CAPACITY:
            break
    rows = 0 if name == "is_empty" else 5  # Spark needs no value of the column to tell whether there is a row
    assert rows <= service.stats().calls <= 3 * CAPACITY


@pytest.mark.slow
def test_five_rows_after_a_whole_job_of_the_same_column(spark: SparkSession, service: HttpService) -> None:
    column = profile(service)
    frame = spark.range(10_000).withColumn("p", column)
    assert frame.where("p.key = string(id)").count() == 10_000
    service.reset_stats()
    frame.show(5)
    time.sleep(1.0)
    assert service.stats().calls <= 5 * CAPACITY, "such a worker is not waited for, but it still sees the end"


def test_a_rate_does_not_hold_up_five_rows(many: DataFrame, service: HttpService) -> None:
    many.withColumn("p", enrich(source(service), "id", returns=TYPE, rate=50.0)).show(5)
    assert service.stats().calls <= 3 * CAPACITY, "six seconds at 50/s, where 1,000 keys take twenty"


ACTIONS: dict[str, Callable[[DataFrame], Any]] = {
    "write": lambda frame: frame.write.format("noop").mode("overwrite").save(),
    "collect": lambda frame: frame.collect(),
    "aggregate": lambda frame: frame.groupBy("p.name").count().count(),
}


def cancel(spark: SparkSession, action: Callable[[], Any], service: HttpService, *, connect: bool) -> None:
    """Cancel the job of *action* in the midst of its calls: it says so, and *service* is asked for nothing more."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            action()
        except Exception as error:  # its class depends on the version, and on whether it is Spark Connect
            errors.append(error)

    job = threading.Thread(target=run)
    job.start()
    while service.stats().calls < 10 * CAPACITY:
        assert job.is_alive()
        time.sleep(0.02)
    if connect:
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()
    job.join()
    assert "cancel" in str(errors[0]).lower()
    # `./run bench few_rows` measures how soon.
    assert bench.wait_until(lambda: calls_that_follow(service, 1.0) == 0), what_goes_on(spark, service, connect)
    assert service.stats().calls < 50_000


def what_goes_on(spark: SparkSession, service: HttpService, connect: bool) -> str:
    """Return how often *service* was asked, and where the tasks of *spark* stand."""
    before = service.stats()
    more = calls_that_follow(service, 1.0)
    asked = f"{more} calls in a second after {before.calls}; {before.in_flight} in flight, {[*before.per_key][-5:]}"
    if connect:
        return asked
    stacks = spark._jvm.java.lang.Thread.getAllStackTraces().entrySet().toArray()
    tasks = [each for each in stacks if "task launch" in each.getKey().getName()]
    return "\n".join([asked, *(f"{each.getKey()}: {' < '.join(map(str, each.getValue()[:20]))}" for each in tasks)])


@pytest.mark.slow
@pytest.mark.parametrize(("action", "latency"), [("write", 0.02), ("collect", 0.02), ("aggregate", 0.5)])
def test_a_cancelled_job_asks_for_nothing_more(
    spark: SparkSession,
    many: DataFrame,
    service: HttpService,
    action: str,
    latency: float,
    request: pytest.FixtureRequest,
) -> None:
    service.script(latency=latency)
    frame = many.withColumn("p", profile(service))
    cancel(spark, lambda: ACTIONS[action](frame), service, connect=request.config.getoption("--connect"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("SELECT user_of(id) AS u, u.key, u.name FROM ids", {}),
        ("SELECT u.key, u.name FROM (SELECT user_of(id) AS u FROM ids) WHERE u.name IS NOT NULL", {}),
        ("SELECT user_of(id).key AS key, user_of(id).name AS name FROM ids", {"deterministic": True}),
    ],
    ids=["lateral_alias", "subquery", "deterministic"],
)
def test_sql_that_needs_two_fields_asks_once_for_each_row(
    spark: SparkSession, service: HttpService, query: str, options: dict[str, Any]
) -> None:
    service.script(latency=0.0)
    spark.range(1000).createOrReplaceTempView("ids")
    register_function(spark, "user_of", source(service), returns=TYPE, **options)
    rows = spark.sql(query).collect()
    assert {(row.key, row.name) for row in rows} == {(str(n), f"name of {n}") for n in range(1000)}
    assert service.stats().calls == 1000
