"""Models in Spark: typed columns, and what the service is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest
from enrichkit_llm import ChatConfig, EmbeddingConfig, Price
from pyspark.sql import functions as F

from enrichkit import Rate, enrich, enrich_frame
from enrichkit.local.model_api_service import reply_of, vector_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from enrichkit.local import LlmService

pytestmark = [pytest.mark.service, pytest.mark.spark]


@dataclass
class Review:
    sentiment: Literal["good", "bad"]
    score: float


@pytest.mark.parametrize("place", ["config", "enrich"])
def test_a_class_with_literals_becomes_columns(spark: SparkSession, service: LlmService, place: str) -> None:
    config = ChatConfig(base_url=service.url, model="m", returns=Review if place == "config" else "string")
    df = spark.range(60).select(F.concat(F.lit("text "), (F.col("id") % 20).cast("string")).alias("text")).coalesce(1)
    more: dict[str, Any] = {} if place == "config" else {"returns": Review}
    rows = df.withColumn("answer", enrich(config, "text", **more)).select("text", "answer.*").collect()
    assert {"good", "bad"} == {row.sentiment for row in rows}
    assert 20 == len({row.text for row in rows}) == len({(row.text, row.score) for row in rows})
    assert {1} == {*service.stats().per_text.values()}


def test_a_prompt_finds_key_columns_by_their_names(spark: SparkSession, service: LlmService) -> None:
    config = ChatConfig(base_url=service.url, model="m", prompt="{title}: {body}")
    df = spark.createDataFrame([("T", "B")], "title string, body string")
    named = F.lower("title").alias("title")
    for keys, text in (
        (("body", "title"), "T: B"),
        ((F.col("body"), df.title), "T: B"),
        ((F.col("body"), named), "t: B"),
        ((F.col("body"), F.lower("title")), "t: B"),
        ((F.upper("title"), F.lower("body")), "T: b"),
    ):
        assert [reply_of(text)] == [row.v for row in df.select(enrich(config, *keys).alias("v")).collect()]
    joined = enrich_frame(df, config, on=["body", "title"], into="v").collect()
    assert [reply_of("T: B")] == [row.v for row in joined]


def test_embeddings_are_a_column_of_floats(spark: SparkSession, service: LlmService) -> None:
    config = EmbeddingConfig(base_url=service.url, model="m", dimensions=16)
    df = spark.range(200).select(F.concat(F.lit("text "), F.col("id").cast("string")).alias("text")).coalesce(1)
    rows = df.withColumn("vector", enrich(config, "text")).collect()
    assert {row.text: vector_of(row.text, 16) for row in rows} == {row.text: row.vector for row in rows}
    assert (200, True) == (service.stats().inputs, service.stats().calls < 20)


CARRIERS: list[dict[str, Any]] = [{}, {"carrier": "pandas"}]


def test_the_costs_of_the_rows_add_up_to_those_of_the_service(spark: SparkSession, service: LlmService) -> None:
    """60 rows of 20 texts: a column for which each text is asked once, and a frame of vectors, many in a call."""
    service.script(prices=(2.0, 10.0))
    price, common = Price(input=2.0, output=10.0), {"base_url": service.url, "model": "m"}
    text = F.concat(F.repeat(F.lit("word "), (F.col("id") % 20).cast("int")), F.lit("end"))
    df = spark.range(60).select(text.alias("text")).coalesce(1)
    config = ChatConfig(**common, price=price)
    chat, pandas = (df.select(enrich(config, "text", details=True, **more).alias("v")) for more in CARRIERS)
    vectors = enrich_frame(df, EmbeddingConfig(**common, price=price), on="text", into="v", details=True)
    for frame, calls in ((chat, 20), (pandas, 20), (vectors, 1)):
        service.reset_stats()
        rows, stats = [row.v for row in frame.collect()], service.stats()
        assert ("ok", 60) == ("".join({row.status for row in rows}), len(rows))
        paid = [row.spent.asDict() for row in rows if row.spent is not None]
        assert (20, calls) == (len(paid), stats.calls)
        assert stats.input_tokens == pytest.approx(sum(each["tokens_in"] for each in paid))
        assert stats.output_tokens == pytest.approx(sum(each["tokens_out"] for each in paid))
        assert stats.cost == pytest.approx(sum(each["cost"] for each in paid))
        assert stats.calls == pytest.approx(sum(each["requests"] for each in paid))
    assert (
        "cost"
        not in enrich_frame(df, EmbeddingConfig(**common), on="text", into="v", details=True).schema.simpleString()
    )


def test_a_limit_of_tokens_is_kept_to(spark: SparkSession, service: LlmService) -> None:
    """120 prompts of ten times different lengths at a limit that refuses what comes too early."""
    service.script(requests=6_000, tokens=60_000, minute=6.0, burst=0.05, log=True)
    config = ChatConfig(base_url=service.url, model="m")
    text = F.concat(F.col("id").cast("string"), F.repeat(F.lit(" word"), (F.col("id") % 10 * 16).cast("int")))
    df = spark.range(120).select(text.alias("text")).coalesce(1)
    rate = Rate(requests=60_000, tokens=600_000, unit="minute")
    rows = df.withColumn("answer", enrich(config, "text", rate=rate, timeout=60.0)).collect()
    assert all(row.answer.startswith("reply ") for row in rows)
    assert 120 == service.stats().answered
