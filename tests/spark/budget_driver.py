"""A job with a budget on four executors, for `test_budget.py`: prints its rows as a line of JSON."""

from __future__ import annotations

import json
import sys

from enrichkit_llm import ChatConfig, Price
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F

from enrichkit import Budget, Retry, enrich, local


def main() -> None:
    asked = json.loads(sys.argv[1])
    with local.spark(master=asked["master"]) as spark:
        config = ChatConfig(
            base_url=asked["url"],
            model="m",
            returns="mood string, score double",
            choices={"mood": ("good", "bad")},
            max_tokens=40,
            price=Price(*asked["prices"]),
        )
        text = F.concat(F.lit("review "), F.col("id").cast("string"), F.repeat(F.lit(" word"), F.col("id") % 60))
        rows = spark.range(asked["rows"]).select(text.alias("text")).repartition(4)
        answer = enrich(
            config,
            "text",
            capacity=64,
            budget=Budget(**asked["budget"], store=RedisConfig(url=asked["store"]), name="reviews"),
            on_error="null",
            retry=Retry(attempts=8),
            timeout=60.0,
            details=True,
        )
        found = rows.select("text", answer.alias("answer")).collect()
        sys.stdout.write(json.dumps([row.asDict(recursive=True) for row in found]) + "\n")


if __name__ == "__main__":
    main()
