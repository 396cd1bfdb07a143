"""A service knows a repeated request again by its idempotency key: after retries, failed tasks, and in replays."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F

from enrichkit import Journal, enrich, tiers
from enrichkit.local import Fault

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = [pytest.mark.spark, pytest.mark.service]


def config(service: HttpService, **settings: Any) -> HttpConfig:
    return HttpConfig(
        url=f"{service.url}/{uuid.uuid4().int}/values",
        method="POST",
        body={"id": "{0}"},
        idempotency_key=True,
        returns="string",
        **settings,
    )


def rows(spark: SparkSession, start: int, end: int) -> DataFrame:
    return spark.range(start, end, 1, 2).select(F.concat(F.lit("u"), "id").alias("k"))


def sent(service: HttpService) -> dict[str, list[str]]:
    """The idempotency keys that the service got, in order, by key of the lookup; the log is empty then."""
    found: dict[str, list[str]] = defaultdict(list)
    for request in service.log():
        found[json.loads(request["body"])["id"]].append(request["headers"]["idempotency-key"])
    service.reset_stats()
    return found


def test_it_is_the_same_for_each_attempt_and_another_one_for_each_key(
    spark: SparkSession, http_service: HttpService
) -> None:
    http_service.script(Fault(match="u7", times=2, status=503), Fault(match="u8", times=1, reset=True), log=True)
    rows(spark, 0, 40).select(enrich(config(http_service), "k")).collect()
    found = sent(http_service)
    assert len(found) == 40
    assert len(found["u7"]) >= 3
    assert {len(set(each)) for each in found.values()} == {1}
    assert len({each[0] for each in found.values()}) == 40


def test_a_batch_job_with_a_run_id_repeats_it_and_another_run_does_not(
    spark: SparkSession, http_service: HttpService, tmp_path: Path
) -> None:
    """Each start has a journal of its own, or the second one would ask for nothing."""
    http_service.script(log=True)
    source = config(http_service)

    def start(folder: str, run_id: str) -> dict[str, list[str]]:
        journal = Journal(str(tmp_path / folder), run_id=run_id)
        rows(spark, 0, 20).select(enrich(source, "k", journal=journal)).collect()
        return sent(http_service)

    monday = start("a", "monday")
    assert len(monday) == 20
    assert start("b", "monday") == monday
    tuesday = start("c", "tuesday")
    assert not {key for keys in monday.values() for key in keys} & {key for keys in tuesday.values() for key in keys}


def test_without_a_run_id_it_belongs_to_the_call_of_enrich(spark: SparkSession, http_service: HttpService) -> None:
    http_service.script(log=True)
    source = config(http_service)
    column = enrich(source, "k")
    rows(spark, 0, 5).select(column).collect()
    first = sent(http_service)
    rows(spark, 0, 5).select(column).collect()
    assert sent(http_service) == first
    rows(spark, 0, 5).select(enrich(source, "k")).collect()
    other = sent(http_service)
    assert other.keys() == first.keys()
    assert not {key for keys in first.values() for key in keys} & {key for keys in other.values() for key in keys}


@pytest.mark.slow
def test_a_replayed_micro_batch_repeats_it(spark: SparkSession, http_service: HttpService, tmp_path: Path) -> None:
    http_service.script(log=True)
    source = config(http_service)

    def run(start: int, end: int) -> dict[str, list[str]]:
        rows(spark, start, end).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema("k string").parquet(str(tmp_path / "in"))
        query = (
            stream.withColumn("v", enrich(source, "k"))
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)
        return sent(http_service)

    first = run(0, 10)
    again = run(0, 10)
    assert first.keys() == again.keys()
    assert first != again, "another micro-batch is another request"
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    newest.unlink()  # as if the query had been killed before it noted that the micro-batch is done
    replayed = run(100, 101)
    assert {key: each for key, each in replayed.items() if key != "u100"} == again


def test_a_fallback_that_is_asked_has_it_too(spark: SparkSession, http_service: HttpService) -> None:
    http_service.script(Fault(match="/first/", status=400), log=True)
    first = HttpConfig(url=http_service.url + "/first/{}", returns="string")
    found = rows(spark, 0, 5).select(enrich(first, "k", on_error=config(http_service)).alias("v")).collect()
    assert all(row.v for row in found)
    posts = [request for request in http_service.log() if request["method"] == "POST"]
    assert len({request["headers"]["idempotency-key"] for request in posts}) == 5


def test_a_tier_has_it_too(spark: SparkSession, http_service: HttpService) -> None:
    http_service.script(log=True)
    last = HttpConfig(url=http_service.url + "/last/{}", returns="string")
    found = rows(spark, 0, 5).select(enrich(tiers(config(http_service), last), "k").alias("v")).collect()
    assert all(row.v for row in found)
    asked = http_service.log()
    assert {request["method"] for request in asked} == {"POST"}, "the tier has answered all"
    assert len({request["headers"]["idempotency-key"] for request in asked}) == 5
