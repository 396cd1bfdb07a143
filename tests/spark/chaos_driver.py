"""Jobs in a Spark of its own, which `test_chaos.py` disturbs: prints what came out of each as a line of JSON."""

from __future__ import annotations

import json
import queue
import sys
import threading

from enrichkit_http import HttpConfig
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from enrichkit import enrich, local


def job(spark: SparkSession, values: Column, keys: int, tasks: int = 4) -> dict[str, object]:
    """Enrich *keys* rows in *tasks* tasks; return how many came out, and how many different ones were right."""
    rows = spark.range(0, keys, 1, tasks).select(F.concat(F.lit("u"), "id").alias("key"))
    right = F.col("value") == F.concat(F.lit("name of "), "key")
    found = rows.withColumn("value", values).agg(F.count("*"), F.countDistinct(F.when(right, F.col("key")))).first()
    assert found is not None
    return {"rows": found[0], "right": found[1]}


def main() -> None:
    """Run a job for each line "job" of standard input, and cancel the one that runs at a line "cancel"."""
    asked = json.loads(sys.argv[1])
    wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
    with local.spark(master=asked["master"]) as spark:
        config = HttpConfig(url=asked["url"] + "/{}", value="name")
        values = enrich(config, "key", returns="string", capacity=asked["capacity"])

        def listen() -> None:
            for line in sys.stdin:
                if line == "cancel\n":
                    spark.sparkContext.cancelAllJobs()
                else:
                    wanted.put(True)
            wanted.put(False)

        threading.Thread(target=listen, daemon=True).start()
        while wanted.get():
            try:
                result = job(spark, values, asked["keys"])
            except Exception as error:  # the test reads which
                result = {"error": str(error)}
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
