"""The monitor of a job: its totals are what the sources counted, for batch, `limit`, streams and jobs that fail."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F

import enrichkit
from enrichkit import ConfigError, Journal, Monitor, enrich, enrich_frame, monitor
from enrichkit.local import Fault
from enrichkit.observe.report import read, text_of

from ..pace import at_pace
from ..test_local import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = [pytest.mark.spark, pytest.mark.service]


@pytest.fixture
def watched() -> Iterator[Monitor]:
    with monitor(terminal=False) as started:
        yield started


def source(service: HttpService, **settings: Any) -> HttpConfig:
    return HttpConfig(url=f"{service.url}/{uuid.uuid4().int}/{{}}", value="score", missing=(404,), **settings)


def keys(spark: SparkSession, rows: int, tasks: int = 4) -> DataFrame:
    """Every tenth row has a null key, and every seventh a key that the source does not hold."""
    key = F.when(F.col("id") % 7 == 0, F.concat(F.lit("missing"), "id")).otherwise(F.concat(F.lit("u"), "id"))
    return spark.range(0, rows, 1, tasks).select("id", F.when(F.col("id") % 10 != 0, key).alias("k"))


def run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def settled(watched: Monitor, service: HttpService) -> dict[str, int]:
    """The totals, when all tasks have ended, and the service has counted what was on its way."""

    def agreed() -> bool:
        view, seen = watched.view(), service.stats().calls
        totals = view["totals"]
        ended = view["state"] != "running" and view["tasks"]
        return bool(ended) and totals["calls"] - totals["abandoned"] <= seen <= totals["calls"]

    wait_until(agreed)
    return {**watched.view()["totals"]}


@pytest.mark.parametrize("form", ["column", "frame", "unordered"])
def test_totals_of_a_batch(spark: SparkSession, http_service: HttpService, watched: Monitor, form: str) -> None:
    frame, config = keys(spark, 2_000), source(http_service)
    if form == "column":
        run(frame.withColumn("v", enrich(config, "k", returns="int")))
    else:
        run(enrich_frame(frame, config, on="k", into="v", returns="int", ordered=form == "frame"))
    totals = settled(watched, http_service)
    lost = sum(n % 7 == 0 and n % 10 != 0 for n in range(2_000))
    assert totals == totals | {
        "rows": 2_000,
        "keys": 1_800,
        "distinct": 1_800,
        "calls": 1_800,
        "sent": 1_800,
        "ok": 1_800 - lost,
        "missing": lost,
        "tasks": 4,
        "failed_tasks": 0,
        "abandoned": 0,
    }
    view = watched.view()
    assert sum(part["share"] for part in view["time"]) == pytest.approx(1.0)
    assert [task["partition"] for task in view["tasks"]] == [0, 1, 2, 3] or len(view["tasks"]) == 4
    assert view["sources"][0]["name"] == "http"


def test_totals_of_a_job_that_wants_a_few_rows(
    spark: SparkSession, http_service: HttpService, watched: Monitor
) -> None:
    http_service.script(latency=0.02)
    rows = keys(spark, 100_000).withColumn("v", enrich(source(http_service), "k", returns="int")).head(5)
    assert len(rows) == 5
    totals = settled(watched, http_service)
    assert 0 < totals["calls"] <= 300
    assert totals["failed_tasks"] == 0


@pytest.mark.slow
def test_totals_of_a_stream(spark: SparkSession, http_service: HttpService, watched: Monitor, tmp_path: Path) -> None:
    keys(spark, 300).write.parquet(str(tmp_path / "in"))
    stream = (
        spark.readStream.schema("id bigint, k string").option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
    )
    query = (
        stream.withColumn("v", enrich(source(http_service), "k", returns="int"))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(100)
    totals = settled(watched, http_service)
    assert (totals["rows"], totals["calls"], totals["failed_calls"]) == (300, 270, 0)
    assert {0, 1} == {task["batch"] for task in watched.view()["tasks"]}


def test_a_job_that_fails_leaves_its_figures_in_a_report(
    spark: SparkSession, http_service: HttpService, tmp_path: Path
) -> None:
    http_service.script(Fault(match="u78", status=400))
    with monitor(terminal=False) as watched:
        frame = keys(spark, 200, 2).withColumn("v", enrich(source(http_service), "k", returns="int"))
        with pytest.raises(Exception, match="LookupFailedError"):
            run(frame)
        totals = settled(watched, http_service)
    assert totals["failed_tasks"] >= 1
    assert 0 < totals["failed_calls"] <= totals["calls"]
    watched.report(tmp_path / "run.html")
    watched.report(str(tmp_path / "run.json"))
    for name in ("run.html", "run.json"):
        view = read(tmp_path / name)
        assert view["totals"]["calls"] == totals["calls"]
        assert view["state"] == "closed"
        assert any("LookupFailedError: http: the lookup of key #" in (task["error"] or "") for task in view["tasks"])
        assert f"{totals['calls']:,} calls with" in text_of(view)
    assert "hunter2" not in (tmp_path / "run.html").read_text()


@pytest.mark.slow
def test_a_monitor_that_has_ended_does_not_hold_a_job_up(spark: SparkSession, http_service: HttpService) -> None:
    with monitor(terminal=False) as watched:
        frame = keys(spark, 200).withColumn("v", enrich(source(http_service), "k", returns="int"))
    began = time.monotonic()
    run(frame)
    assert time.monotonic() - began < at_pace(10.0)
    assert (watched.view()["state"], watched.view()["totals"]["calls"]) == ("closed", 0)


def test_what_is_made_without_a_monitor_reports_to_none(spark: SparkSession, http_service: HttpService) -> None:
    frame = keys(spark, 50).withColumn("v", enrich(source(http_service), "k", returns="int"))
    with monitor(terminal=False) as watched:
        run(frame)
        assert watched.view()["totals"]["calls"] == 0


def test_a_session_or_the_environment_may_ask_for_a_monitor(
    spark: SparkSession, http_service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    from enrichkit.observe.active import active

    monkeypatch.setenv("ENRICHKIT_MONITOR", "1")
    frame = keys(spark, 50).withColumn("v", enrich(source(http_service), "k", returns="int"))
    started = active()
    assert started is not None
    try:
        run(frame)
        assert settled(started, http_service)["calls"] == 45
    finally:
        started.close()
    assert active() is None


def test_one_monitor_at_a_time(spark: SparkSession, watched: Monitor) -> None:
    with pytest.raises(ConfigError) as caught:
        monitor().start()
    address = watched.url.removesuffix("/").rpartition("/")[0]  # without the token, which a log may show
    assert str(caught.value) == f"There is a monitor already, at {address}. Close it first, or use it."


def test_exact_totals_by_spark_itself(spark: SparkSession, http_service: HttpService) -> None:
    http_service.script(Fault(match="u33", status=400))
    column = enrich(source(http_service), "k", returns="int", details=True, max_fallback_ratio=1.0)
    observed = enrichkit.observe(keys(spark, 1_000).withColumn("v", column).withColumn("odd.name", F.col("v")))
    run(observed.frame)
    lost = sum(n % 7 == 0 and n % 10 != 0 for n in range(1_000))
    bad = sum(str(n).startswith("33") and n % 10 != 0 and n % 7 != 0 for n in range(1_000))
    counts = {"rows": 1_000, "ok": 900 - lost - bad, "missing": lost, "error": bad, "null_key": 100, "call": 900}
    assert observed.totals() == {"v": counts, "odd.name": counts}


def test_exact_totals_tell_what_the_task_and_the_journal_knew(
    spark: SparkSession, http_service: HttpService, tmp_path: Path
) -> None:
    http_service.script(latency=0.01)
    journal = Journal(str(tmp_path), run_id="r")
    rows = spark.range(0, 60_000, 1, 1).select(F.concat(F.lit("u"), F.pmod(F.xxhash64("id"), F.lit(50))).alias("k"))
    config = source(http_service)
    for first in (True, False):
        observed = enrichkit.observe(
            rows.withColumn("v", enrich(config, "k", returns="int", details=True, journal=journal))
        )
        run(observed.frame)
        counts = observed.totals()["v"]
        assert counts["rows"] == counts["ok"] == 60_000
        origins = {name for name in ("call", "shared", "reuse", "journal", "cache") if counts.get(name)}
        assert origins == ({"call", "shared", "reuse"} if first else {"journal", "reuse"})
        assert sum(counts[name] for name in origins) == 60_000


def test_exact_totals_of_a_stream_are_in_its_progress(
    spark: SparkSession, http_service: HttpService, tmp_path: Path
) -> None:
    keys(spark, 100, 1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id bigint, k string").parquet(str(tmp_path / "in"))
    column = enrich(source(http_service), "k", returns="int", details=True)
    observed = enrichkit.observe(stream.withColumn("v", column), name="lookups")
    query = (
        observed.frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(100)
    lost = sum(n % 7 == 0 and n % 10 != 0 for n in range(100))
    [batch] = [progress for progress in query.recentProgress if observed.name in dict(progress["observedMetrics"])]
    assert observed.totals(batch) == {"v": {"rows": 100, "ok": 90 - lost, "missing": lost, "null_key": 10, "call": 90}}
    with pytest.raises(ConfigError) as caught:
        observed.totals()
    assert str(caught.value) == (
        "totals() of a streaming query needs the progress of a micro-batch, as in totals(query.lastProgress)."
    )


def test_what_has_no_details_cannot_be_observed(spark: SparkSession) -> None:
    with pytest.raises(ConfigError) as caught:
        enrichkit.observe(spark.range(3))
    assert str(caught.value) == "No column has details to be counted. Make one with enrich(..., details=True)."
    with pytest.raises(ConfigError) as caught:
        enrichkit.observe(spark.range(3), "id")
    assert str(caught.value) == (
        "The column 'id' has no details; enrich(..., details=True) makes columns that have them."
    )
