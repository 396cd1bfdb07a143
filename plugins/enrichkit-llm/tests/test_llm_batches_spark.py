"""Batches of the keys of a DataFrame: what `enrich` finds after them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest
from enrichkit_llm import ChatConfig
from pyspark.sql import functions as F

from enrichkit import Journal, collect_batches, enrich, submit_batches, tiers
from enrichkit.errors import ConfigError
from enrichkit.local import LlmBatches, LlmFault

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import LlmService

pytestmark = [pytest.mark.service, pytest.mark.spark]


@dataclass
class Review:
    sentiment: Literal["good", "bad"]
    score: float


@pytest.fixture
def df(spark: SparkSession, service: LlmService) -> DataFrame:
    service.forget_batches()
    number = F.col("id") % 20
    columns = [number.cast("string").alias("body"), F.date_add(F.lit("2026-01-01"), number.cast("int")).alias("day")]
    return spark.range(60).select(*columns).union(spark.sql("SELECT null, current_date()"))


def test_enrich_finds_the_answers_of_batches_and_calls_nobody(
    df: DataFrame, service: LlmService, tmp_path: Path
) -> None:
    config = ChatConfig(base_url=service.url, model="m", prompt="{day}: {body}", returns=Review)
    called = {row.body: row.answer for row in df.withColumn("answer", enrich(config, "body", "day")).collect()}
    service.script(batches=LlmBatches(seconds=0.2), log=True)
    service.reset_stats()
    journal = Journal(str(tmp_path), run_id="tuesday")
    assert str(submit_batches(df, config, "body", "day", journal=journal, batch_requests=15)) == (
        "llm: 2 batches; keys: 20 submitted\n"
        "  batch_1  submitted  0 of 15 requests answered\n"
        "  batch_2  submitted  0 of 5 requests answered"
    )
    report = collect_batches(df, config, "body", "day", journal=journal, wait=20.0, every=0.1)
    assert (True, 20) == (report.done, sum(batch.answered for batch in report.batches))
    asked = service.stats().calls
    rows = df.withColumn("answer", enrich(config, "body", "day", journal=journal, details=True)).collect()
    assert asked == service.stats().calls
    assert {**called, None: None} == {row.body: row.answer.value for row in rows}
    assert {"journal", "reuse", None} == {row.answer.origin for row in rows}
    assert {1} == {*service.stats().per_text.values()}


def test_what_failed_is_the_error_of_its_rows_after_it_was_asked_again(
    df: DataFrame, service: LlmService, tmp_path: Path
) -> None:
    service.script(LlmFault(match="7", status=400), log=True)
    config, journal = ChatConfig(base_url=service.url, model="m"), Journal(str(tmp_path), shared=True)
    submit_batches(df, config, "body", journal=journal)
    report = collect_batches(df, config, "body", journal=journal)
    assert {"The service answered 400.": 2} == report.batches[0].failed
    calls = service.stats().calls
    answer = enrich(config, "body", journal=journal, on_error="null", details=True)
    rows = df.withColumn("answer", answer).where("body IS NOT NULL").collect()
    assert {"7", "17"} == {row.body for row in rows if row.answer.status == "error"}
    assert {"7", "17"} == {row.body for row in rows if row.answer.value is None}
    assert {"7", "17"} == {json.loads(each["body"])["messages"][0]["content"] for each in service.log()[calls:]}


CONFIG = ChatConfig(base_url="http://127.0.0.1:1/v1", model="m")
JOURNAL = Journal("/nowhere", run_id="tuesday")


@pytest.mark.parametrize(
    ("call", "source", "keys", "more", "message"),
    [
        (
            submit_batches, CONFIG, (), {"journal": JOURNAL},
            ("submit_batches() was given no key column; name those of enrich(), as in submit_batches(df, config, "
             "'text')."),
        ),
        (
            submit_batches, tiers("redis", "users"), ("body",), {"journal": JOURNAL},
            "submit_batches() was given tiers(); a batch goes to one source. Name the last of them.",
        ),
        (
            submit_batches, CONFIG, ("body",), {"journal": "/data"},
            ("journal is a str; submit_batches() needs a Journal, in which the answers are found later. Write "
             "journal=Journal('/data/answers', run_id='tuesday')."),
        ),
        (
            submit_batches, CONFIG, ("body",), {"journal": JOURNAL, "batch_requests": 50_001},
            ("batch_requests is 50001; it must be a whole number from 1 to 50,000, which the service takes, or None. "
             "Write batch_requests=10_000."),
        ),
        (
            collect_batches, CONFIG, ("body",), {"journal": JOURNAL, "wait": -1},
            "wait is -1; it must be a number of seconds, 0 or more, for example wait=3600.0.",
        ),
        (
            collect_batches, CONFIG, ("body",), {"journal": JOURNAL, "every": 0.0},
            "every is 0.0; it must be a number of seconds, more than 0, for example every=3600.0.",
        ),
        (
            collect_batches, CONFIG, ("body",), {"journal": JOURNAL},
            ("collect_batches() found no batch of 'llm' in the journal at '/nowhere'. Batches are found with the "
             "journal, config, key columns and type with which they were submitted: pass the same to submit_batches() "
             "first."),
        ),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(
    df: DataFrame, call: Any, source: Any, keys: tuple[str, ...], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        call(df, source, *keys, **more)
    assert message == str(caught.value)


def test_a_stream_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError) as caught:
        submit_batches(spark.readStream.format("rate").load(), CONFIG, "value", journal=JOURNAL)
    assert str(caught.value) == (
        "submit_batches() was given a stream, whose keys have no end. Call it in foreachBatch, or give it a DataFrame "
        "that is no stream."
    )
