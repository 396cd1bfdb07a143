"""A job with a journal pays for no key twice: counted by the source, in batch and streams, on classic and Connect."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F

from enrichkit import Journal, connector, enrich, enrich_frame, local
from enrichkit.local import Fault, value_of
from enrichkit.testing.bench import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = [pytest.mark.spark, pytest.mark.service]


@pytest.fixture
def config(http_service: HttpService) -> HttpConfig:
    return HttpConfig(
        url=f"{http_service.url}/{uuid.uuid4().int}/{{}}", returns="key string, name string, score int", missing=(404,)
    )


def keys(spark: SparkSession, start: int, end: int) -> DataFrame:
    name = F.when(F.col("id") % 10 == 9, F.lit("missing")).otherwise(F.lit("u"))
    return spark.range(start, end, 1, 2).select("id", F.concat(name, F.col("id").cast("string")).alias("k"))


def expected(number: int) -> dict[str, Any] | None:
    return None if number % 10 == 9 else value_of(f"u{number}")


def check(frame: DataFrame) -> None:
    for row in frame.collect():
        assert (row.v and row.v.asDict()) == expected(row.id), row


def calls(service: HttpService) -> int:
    made: int = service.stats().calls
    service.reset_stats()
    return made


@pytest.mark.parametrize("carrier", ["arrow", "pandas"])
def test_a_second_start_makes_no_call(
    spark: SparkSession, http_service: HttpService, config: HttpConfig, tmp_path: Path, carrier: str
) -> None:
    column = enrich(config, "k", journal=Journal(str(tmp_path), run_id="tuesday"), carrier=carrier)
    check(keys(spark, 0, 500).withColumn("v", column))
    assert calls(http_service) == 500
    check(keys(spark, 0, 500).withColumn("v", column))
    assert calls(http_service) == 0
    check(keys(spark, 400, 600).withColumn("v", column))
    assert calls(http_service) == 100, "the other half of them"
    other = enrich(config, "k", journal=Journal(str(tmp_path), run_id="wednesday"))
    check(keys(spark, 0, 50).withColumn("v", other))
    assert calls(http_service) == 50, "another run finds nothing"


@pytest.mark.slow
def test_a_job_that_failed_asks_for_the_rest(spark: SparkSession, tmp_path: Path) -> None:
    with local.http() as service:  # its own, because late calls of other tests may still be in flight in the shared one
        service.script(Fault(match="u777", status=400), latency=0.01, log=True)
        config = HttpConfig(url=f"{service.url}/{{}}", returns="key string, name string, score int", missing=(404,))
        column = enrich(config, "k", journal=Journal(str(tmp_path), run_id="r"), capacity=10)
        frame = keys(spark, 0, 1_000).withColumn("v", column)
        with pytest.raises(Exception, match="LookupFailedError"):
            frame.collect()
        assert wait_until(lambda: service.stats().in_flight == 0), service.stats()
        made = -1
        while made != service.stats().calls:  # the other task may go on for a moment when the job has failed
            made = service.stats().calls
            time.sleep(0.5)
        paid = {key for key, count in service.stats().per_key.items() if count}
        service.script()
        service.reset_stats()
        check(frame)
        again = set(service.stats().per_key) & paid
        assert len(again) <= 2 * 10 + 1, "those that were in flight in two tasks, and the one that failed"
        assert service.stats().calls <= 1_000 - len(paid) + len(again)


def test_other_jobs_find_the_answers_of_a_shared_journal(
    spark: SparkSession, http_service: HttpService, config: HttpConfig, tmp_path: Path
) -> None:
    shared = Journal(str(tmp_path), shared=True)
    check(keys(spark, 0, 300).withColumn("v", enrich(config, "k", journal=shared)))
    assert calls(http_service) == 300
    frame = enrich_frame(keys(spark, 30, 330), config, on="k", into="v", journal=shared, ordered=False)
    check(frame)
    assert calls(http_service) == 30
    narrow = enrich(config, "k", returns="name string", journal=shared)
    assert keys(spark, 0, 20).select(narrow.alias("v")).where("v.name is not null").count() == 18
    assert calls(http_service) == 20, "another declared type is another question"


def test_details_tell_what_came_from_the_journal(
    spark: SparkSession, http_service: HttpService, config: HttpConfig, tmp_path: Path
) -> None:
    column = enrich(config, "k", journal=Journal(str(tmp_path), run_id="r"), details=True)
    for origin in ("call", "journal"):
        rows = keys(spark, 0, 40).withColumn("v", column).select("v.*").collect()
        assert {(row.origin, row.attempts) for row in rows} == {(origin, int(origin == "call"))}
        assert {row.status for row in rows} == {"ok", "missing"}


@pytest.mark.slow
def test_each_micro_batch_has_answers_of_its_own(
    spark: SparkSession, http_service: HttpService, config: HttpConfig, tmp_path: Path
) -> None:
    """The same key in a later micro-batch is asked for anew; a replayed micro-batch asks for nothing."""
    journal = Journal(str(tmp_path / "journal"))

    def run(start: int, end: int) -> None:
        keys(spark, start, end).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema("id bigint, k string").parquet(str(tmp_path / "in"))
        query = (
            stream.withColumn("v", enrich(config, "k", journal=journal))
            .writeStream.format("noop")  # a sink of files would skip a micro-batch that it has written
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(100)

    run(0, 50)
    assert calls(http_service) == 50
    run(0, 60)
    assert calls(http_service) == 60
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    newest.unlink()  # as if the query had been killed before it noted that the micro-batch is done
    run(100, 101)
    assert calls(http_service) == 1, "the last micro-batch was run again, and then the new one"


def test_a_batch_job_needs_a_name(spark: SparkSession, config: HttpConfig, tmp_path: Path) -> None:
    column = enrich(config, "k", journal=Journal(str(tmp_path)))
    with pytest.raises(
        Exception, match=r"Journal\.run_id is None; a batch job needs a name under which a second start"
    ):
        keys(spark, 0, 5).select(column).collect()


@pytest.mark.slow
def test_a_journal_that_cannot_be_written_costs_no_row(
    spark: SparkSession, http_service: HttpService, config: HttpConfig, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    path = str(tmp_path / "file" / "journal")
    check(keys(spark, 0, 50).withColumn("v", enrich(config, "k", journal=Journal(path, run_id="r"))))
    assert calls(http_service) == 50
    strict = enrich(config, "k", journal=Journal(path, run_id="r", on_error="fail"))
    with pytest.raises(Exception, match=r"The task fails because Journal\.on_error is 'fail'; 'warn' goes on without"):
        keys(spark, 0, 50).select(strict).collect()
    assert calls(http_service) == 0


def define_scorer(factor: int) -> None:
    @connector("scorer", returns="bigint")
    async def ask(key: int) -> int:
        return key * factor


@pytest.mark.slow
def test_a_changed_function_finds_nothing_old(spark: SparkSession, tmp_path: Path, fresh_registry: None) -> None:
    journal = Journal(str(tmp_path), shared=True)
    frame = spark.range(20)
    for factor in (2, 3, 2):
        define_scorer(factor)
        rows = frame.select("id", enrich("scorer", "id", journal=journal).alias("v")).collect()
        assert {row.id: row.v for row in rows} == {n: n * factor for n in range(20)}
