"""Structured Streaming: the same column and frame over what arrives: files, a log, the clock."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F

from enrichkit import Cache, enrich, enrich_frame
from enrichkit.local import Fault, value_of
from enrichkit.local.log_source import LogSource, append

from ..test_local import wait_until
from .streams import started

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = pytest.mark.spark


def test_each_file_is_enriched_once(
    spark: SparkSession, http_service: HttpService, tmp_path: Path, carrier: str
) -> None:
    config = HttpConfig(
        url=f"{http_service.url}/{uuid.uuid4().int}/{{}}", returns="key string, name string, score int", missing=(404,)
    )

    def arrive(start: int, end: int) -> None:
        keys = F.concat(F.when(F.col("id") % 10 == 9, F.lit("missing-")).otherwise(F.lit("u")), "id")
        spark.range(start, end, 1, 1).select("id", keys.alias("k")).write.mode("append").parquet(str(tmp_path / "in"))

    def run() -> None:
        stream = spark.readStream.schema("id bigint, k string").parquet(str(tmp_path / "in"))
        query = (
            stream.withColumn("profile", enrich(config, "k", carrier=carrier))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(100)

    for start, end in ((0, 50), (50, 120)):
        arrive(start, end)
        run()
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        assert end == len(rows)
        assert {n: None if n % 10 == 9 else value_of(f"u{n}") for n in range(end)} == {
            row.id: row.profile and row.profile.asDict() for row in rows
        }
    assert {1} == set(http_service.stats().per_key.values())
    assert 120 == http_service.stats().keys


@pytest.mark.slow
def test_a_log_is_enriched_once_and_a_checkpoint_takes_the_other_form(
    spark: SparkSession, http_service: HttpService, tmp_path: Path
) -> None:
    """Nothing of an enrichment is in the checkpoint, so form, options and source may change from start to start."""
    spark.dataSource.register(LogSource)
    returns = "key string, name string, score int"
    single, bulk = (
        HttpConfig(url=http_service.url + url, bulk=url == "/bulk", returns=returns) for url in ("/{}", "/bulk")
    )

    def key_of(partition: int, offset: int) -> str | None:
        return None if offset % 10 == 9 else f"{'missing' if offset % 10 == 8 else 'u'}-{partition}-{offset}"

    def run(enriched: Callable[[DataFrame], DataFrame], **options: Any) -> list[int]:
        log = spark.readStream.format("log").options(startingOffsets="earliest", **options).load(str(tmp_path / "log"))
        writer = (
            enriched(log.withColumn("user_id", F.col("key").cast("string")))
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        query = started(lambda: writer.start(str(tmp_path / "out")))
        assert query.awaitTermination(100)
        return [progress["sources"][0]["numInputRows"] for progress in query.recentProgress]

    def arrive(start: int, end: int) -> None:
        for partition in (0, 1):
            keys = [key_of(partition, offset) for offset in range(start, end)]
            records = [(key and key.encode(), b"%d" % offset) for offset, key in enumerate(keys, start)]
            append(tmp_path / "log", "users", records, partition=partition)

    arrive(0, 40)
    assert [40, 40] == run(lambda log: log.withColumn("user", enrich(single, "user_id")), maxOffsetsPerTrigger=40)
    arrive(40, 100)
    assert [120] == run(
        lambda log: enrich_frame(log, bulk, on="user_id", into="user", ordered=False, cache=Cache(ttl=60), window=50)
    )
    places = [(partition, offset) for partition in (0, 1) for offset in range(100)]
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert Counter(places) == Counter((row.partition, row.offset) for row in rows)
    for row in rows:
        key = key_of(row.partition, row.offset)
        assert (key and key.encode(), b"%d" % row.offset, "users") == (row.key, row.value, row.topic)
        assert (value_of(key) if key and "missing" not in key else None) == (row.user and row.user.asDict())
    assert Counter(filter(None, (key_of(*place) for place in places))) == Counter(http_service.stats().per_key)


@pytest.mark.slow
def test_failed_rows_of_a_rate_source_are_put_aside_in_foreach_batch(
    spark: SparkSession, http_service: HttpService, tmp_path: Path
) -> None:
    http_service.script(Fault(match="/r3", status=400), log=True)  # and r30, r300 and so on
    config = HttpConfig(url=http_service.url + "/{}", returns="key string, name string, score int")
    folder = str(tmp_path)

    # Nothing of this module inside: on Spark Connect it runs in a process of the server.
    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        for name, which in (("good", "user.status = 'ok'"), ("failed", "user.status <> 'ok'")):
            batch.where(which).write.mode("overwrite").json(f"{folder}/{name}/batch={batch_id}")
        batch.unpersist()

    numbers = spark.readStream.format("rate").options(rowsPerSecond=20, numPartitions=2).load()
    writer = (
        numbers.withColumn("k", F.concat(F.lit("r"), "value"))
        .withColumn("user", enrich(config, "k", details=True, max_fallback_ratio=1.0))
        .writeStream.option("checkpointLocation", folder + "/checkpoint")
        .foreachBatch(write)
    )
    query = started(writer.start)
    commits = tmp_path / "checkpoint" / "commits"

    def done() -> list[int]:
        return sorted(int(commit.name) for commit in commits.glob("[0-9]*"))

    def seen() -> bool:
        assert query.isActive, query.exception()
        return {"r3", "r40"} <= set(http_service.stats().per_key) and len(done()) >= 2

    wait_until(seen)
    behind = done()[-1]
    wait_until(lambda: done()[-1] > behind)  # now what was asked for is written
    query.stop()

    def rows(name: str) -> dict[int, dict[str, Any]]:
        files = [file for n in done() for file in (tmp_path / name / f"batch={n}").glob("*.json")]
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        assert len(found) == len({row["value"] for row in found})
        return {row["value"]: row["user"] for row in found}

    good, failed = rows("good"), rows("failed")
    assert set(range(41)) <= set(good | failed) == set(range(len(good) + len(failed)))
    assert set(failed) == {n for n in good | failed if str(n).startswith("3")}
    assert {n: value_of(f"r{n}") for n in good} == {n: user["value"] for n, user in good.items()}
    assert {"error"} == {user["status"] for user in failed.values()}
    asked = http_service.stats().per_key
    assert {1} == {asked[f"r{n}"] for n in good | failed}, "two writes, and each row was enriched once"
