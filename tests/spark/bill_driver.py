"""A job with a model, of which `test_bill.py` kills a worker: prints its rows and statistics as a line of JSON."""

from __future__ import annotations

import json
import sys

from enrichkit_llm import ChatConfig, Price
from pyspark.sql import functions as F

from enrichkit import Retry, enrich, local, monitor
from enrichkit.testing.bench import wait_until


def main() -> None:
    asked = json.loads(sys.argv[1])
    with local.spark(master="local[2,4]") as spark, monitor(terminal=False) as watched:
        config = ChatConfig(
            base_url=asked["url"],
            model="m",
            returns="mood string, score double",
            choices={"mood": ("good", "bad")},
            price=Price(*asked["prices"]),
        )
        number = (F.col("id") % asked["distinct"]).cast("int")
        text = F.concat(F.lit("review "), number.cast("string"), F.repeat(F.lit(" word"), number % 100))
        rows = spark.range(asked["rows"]).select(text.alias("text")).repartition(2, "text")
        rows = rows.withColumn("partition", F.spark_partition_id())
        answer = enrich(config, "text", capacity=asked["capacity"], timeout=60.0, retry=Retry(attempts=8), details=True)
        found = rows.withColumn("answer", answer).collect()
        assert wait_until(lambda: watched.view()["state"] != "running")
        result = {
            "rows": [row.asDict(recursive=True) for row in found],
            "stats": watched.stats().as_dict(),
            "failed_tasks": watched.view()["totals"]["failed_tasks"],
            "spending": watched.view()["sources"][0]["spending"],
        }
        sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
