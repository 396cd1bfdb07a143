"""What a job will cost, said beforehand: against what the service has counted afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_llm import ChatConfig, EmbeddingConfig, Price
from pyspark.sql import functions as F

from enrichkit import Rate, enrich, estimate, explain
from enrichkit.local import LlmFault

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import LlmService

pytestmark = [pytest.mark.service, pytest.mark.spark]

PRICES = (0.15, 0.60)
ROWS, DISTINCT = 12_000, 6_000


def config_of(service: LlmService, kind: str) -> Any:
    common: dict[str, Any] = {"base_url": service.url, "model": "m", "price": Price(*PRICES)}
    if kind == "vectors":
        return EmbeddingConfig(**common)
    returns = "mood string, tags array<string>"
    return ChatConfig(**common, system="You read.", returns=returns, choices={"mood": ("good", "bad")})


@pytest.fixture(scope="module")
def reviews(spark: SparkSession) -> DataFrame:
    """Texts of which the longest have forty times as many bytes as the shortest, and some rows without one."""
    number = F.col("id") % DISTINCT
    words = F.repeat(F.lit("great "), F.pmod(F.xxhash64(number), F.lit(80)).cast("int"))
    text = F.when(F.col("id") >= ROWS, F.lit(None)).otherwise(F.concat_ws(" ", F.lit("review"), number, words))
    return spark.range(ROWS + 100).select(text.alias("text")).repartition(2, "text")


@pytest.mark.parametrize("kind", [pytest.param("chat", marks=pytest.mark.slow), "vectors"])
def test_the_estimate_from_a_hundredth_of_the_keys_is_close_to_what_the_service_counts(
    spark: SparkSession, service: LlmService, reviews: DataFrame, kind: str
) -> None:
    service.script(prices=PRICES)
    config = config_of(service, kind)
    told = estimate(reviews, config, "text", sample=0.01, task_slots=2, rate=Rate(tokens=60_000, per="process"))
    assert service.stats().calls == told.tried
    assert service.stats().cost == pytest.approx(told.paid["cost"])
    service.reset_stats()
    rows = reviews.withColumn("v", enrich(config, "text")).collect()
    stats = service.stats()
    assert (len(rows), DISTINCT, stats.calls) == (told.rows, told.distinct, pytest.approx(told.calls, rel=0.02))
    tokens = stats.input_tokens + stats.output_tokens
    assert told.tokens == pytest.approx(tokens, rel=0.1)
    assert told.cost == pytest.approx(stats.cost, rel=0.1)
    assert told.spent["tokens_in"] == pytest.approx(stats.input_tokens, rel=0.02)
    assert (told.seconds, told.bound) == (pytest.approx((told.tokens or 0) / 120_000), "the rate of tokens")
    assert f"{told.tokens:,.0f}" in str(told)


@pytest.mark.slow
def test_each_task_asks_for_its_own_keys_unless_they_are_shuffled(
    spark: SparkSession, service: LlmService, reviews: DataFrame
) -> None:
    config, spread = config_of(service, "chat"), reviews.repartition(2)
    by_tasks = estimate(spread, config, "text", calls=0)
    shuffled = estimate(spread, config, "text", calls=0, shuffle=True)
    about = estimate(spread, config, "text", calls=0, approximate=True)
    assert 0 == service.stats().calls
    assert (DISTINCT, DISTINCT) == (shuffled.distinct, shuffled.asked)
    assert DISTINCT < by_tasks.asked <= 2 * DISTINCT
    assert by_tasks.asked / DISTINCT == pytest.approx((by_tasks.cost or 0) / (shuffled.cost or 1), rel=0.02)
    assert (about.asked, about.cost) == (pytest.approx(by_tasks.asked, rel=0.1), pytest.approx(by_tasks.cost, rel=0.1))
    assert "The source was not asked" in " ".join(str(by_tasks).split())


def test_calls_that_all_fail_are_told(service: LlmService, reviews: DataFrame) -> None:
    service.script(LlmFault(status=500, body="canary"))
    with pytest.raises(ValueError) as caught:  # the whole message is compared
        estimate(reviews, config_of(service, "chat"), "text", calls=2)
    assert str(caught.value) == (
        "None of the 2 calls that estimate() made was answered: The service answered 500. Mend that, or use calls=0, "
        "which makes none."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sample": 0}, "sample is 0; it must be a share above 0, up to 1. For example sample=0.01."),
        ({"calls": -1}, "calls is -1; it must be a whole number from 0 to 1,000. For example calls=20."),
        ({"task_slots": 0}, "task_slots is 0; it must be a whole number from 1 on. For example task_slots=8."),
    ],
)
def test_a_wrong_argument_is_refused(
    service: LlmService, reviews: DataFrame, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as caught:  # the whole message is compared
        estimate(reviews, config_of(service, "chat"), "text", **arguments)
    assert message == str(caught.value)


def test_explain_names_the_estimate(service: LlmService) -> None:
    for arguments in ({}, {"keys": 10}):
        assert "enrichkit.estimate(df, ...)" in " ".join(str(explain(config_of(service, "chat"), **arguments)).split())
    assert "estimate(" not in str(explain("redis", keys=10))
