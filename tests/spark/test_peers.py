"""What users of other projects ran into on Spark must not happen here; `docs/peers.md` lists it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F

from enrichkit import Secret, enrich, local
from enrichkit.local import value_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from enrichkit.local import HttpService

pytestmark = pytest.mark.spark

PROFILE = "key string, name string, score int"
TASK_SLOTS = 2  # of the session that `enrichkit.local` starts


def test_no_header_is_seen_in_the_plan(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENRICHKIT_TEST_TOKEN", "hunter3")
    headers = {"Authorization": "Bearer hunter2", "X-Api-Key": Secret.env("ENRICHKIT_TEST_TOKEN")}
    config = HttpConfig(url="http://127.0.0.1:9/{}", headers=headers, returns=PROFILE)
    column = enrich(config, F.col("id").cast("string"))
    spark.range(1).select(column).explain(True)
    shown = capsys.readouterr().out
    assert "http(" in shown
    for text in (shown, str(column), repr(config)):
        assert "hunter" not in text


def test_a_frame_that_is_kept_is_asked_for_once_however_often_it_is_used(
    spark: SparkSession, http_service: HttpService
) -> None:
    """Building the frame and looking at its schema asks nothing; an action asks, and on a kept frame only the first."""
    keys = spark.range(0, 50, 1, 2).select(F.concat(F.lit("u"), F.col("id").cast("string")).alias("user_id"))
    config = HttpConfig(url=f"{http_service.url}/{uuid.uuid4()}/{{}}", returns=PROFILE)
    frame = keys.withColumn("profile", enrich(config, "user_id"))
    assert f"struct<{PROFILE.replace(' ', ':').replace(',:', ',')}>" == frame.schema["profile"].dataType.simpleString()
    assert http_service.stats().calls == 0
    kept = frame.cache()
    try:
        for _ in range(3):
            rows = {row.user_id: row.profile.asDict() for row in kept.collect()}
            assert {f"u{n}": value_of(f"u{n}") for n in range(50)} == rows
        assert kept.where("profile.score >= 0").count() == 50
    finally:
        kept.unpersist()
    assert {f"u{n}": 1 for n in range(50)} == http_service.stats().per_key


@pytest.mark.slow
def test_calls_in_flight_are_at_most_capacity_times_the_tasks_that_run(spark: SparkSession) -> None:
    """Spark gives each task that runs a worker process, and each of these has `capacity`."""
    keys = spark.range(0, 200, 1, 8).select(F.concat(F.lit("u"), F.col("id").cast("string")).alias("user_id"))
    with local.http() as service:  # of its own: a request that another test left hanging would count
        service.script(latency=0.05)
        config = HttpConfig(url=f"{service.url}/{{}}", returns=PROFILE)
        rows = keys.select("user_id", enrich(config, "user_id", capacity=3).alias("profile")).collect()
        assert all(value_of(row.user_id) == row.profile.asDict() for row in rows)
        assert 200 == service.stats().calls
        assert 3 <= service.stats().peak <= 3 * TASK_SLOTS
