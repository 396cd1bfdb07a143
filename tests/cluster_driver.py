"""
The driver program of `test_cluster.py`: jobs on a cluster whose executors have PySpark, pandas and pyarrow only.

A script of its own, as one process cannot have sessions of classic Spark and of Spark Connect. Its argument and what it
prints are JSON objects. The argument has:

- how: how the archive is shipped (`ship`, `archives`, `connect-ship` on Spark Connect, or `not`)
- master, python: of the cluster and of its executors
- remote: the address of a Spark Connect server that runs; the process then starts none
- archive, url: of the archive, and of a Redis with values `v<n>` under `k<n>`
- keys, jobs, pause: number of keys, of batch jobs that ask for all of them, and seconds between two jobs
- folder: for checkpoints
- conf: settings of Spark
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from enrichkit_redis import RedisConfig
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from enrichkit import enrich
from enrichkit.shipping import ship


@contextlib.contextmanager
def session(given: dict[str, Any]) -> Iterator[SparkSession]:
    if "remote" in given:
        found = SparkSession.builder.remote(given["remote"]).getOrCreate()
        yield found
        found.stop()
        return
    from enrichkit import local

    how, python = given["how"], given["python"]
    conf = {"spark.executor.memory": "768m", "spark.executor.cores": "1", "spark.executorEnv.ENRICHKIT_PYTHON": python}
    if how == "archives":
        conf["spark.archives"] = f"{given['archive']}#environment"
        python = "./environment/bin/python"
    conf |= given.get("conf", {})
    with local.spark(connect=how == "connect-ship", master=given["master"], python=python, **conf) as found:
        yield found


def streamed(spark: SparkSession, value: Any, keys: int, folder: str) -> dict[str, Any]:
    """Run a stream until 3,000 rows have left it."""
    rates = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
    stream = rates.select((F.col("value") % keys).alias("id")).withColumn("value", value)
    query = stream.writeStream.format("memory").queryName("seen").option("checkpointLocation", folder).start()
    end = time.monotonic() + 60
    while time.monotonic() < end and query.exception() is None and spark.table("seen").count() < 3000:
        time.sleep(0.5)
    error = str(query.exception() or "")
    query.stop()
    rows, right = spark.table("seen").agg(F.count("*"), F.expr(RIGHT)).first() or (0, 0)
    return {"streamed": rows, "stream_right": right, "stream_error": error}


def client() -> dict[str, Any]:
    """Return what this Python has of Spark."""
    names = {each.name for each in importlib.metadata.distributions()}
    spec = importlib.util.find_spec("pyspark")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else Path("/nowhere")
    return {
        "packages": sorted(names & {"pyspark", "pyspark-client", "py4j"}),
        "jars": len(list(folder.glob("jars/*.jar"))),
        "java": shutil.which("java"),
    }


RIGHT = "count_if(value <=> concat('v', id))"
given = json.loads(sys.argv[1])
keys = given["keys"]
told: dict[str, Any] = {"rows": 0, "right": 0, **client()}
with session(given) as spark:
    if given["how"].endswith("ship"):
        told["plugins"] = ship(spark, given["archive"], plugins=["redis"]).plugins
    value = enrich(RedisConfig(url=given["url"], key="k{}"), "id", returns="string")
    frame = spark.range(0, keys, 1, 8).withColumn("value", value)
    try:
        for number in range(given.get("jobs", 1)):
            time.sleep(given.get("pause", 0.0) if number else 0.0)
            rows, right = frame.agg(F.count("*"), F.expr(RIGHT)).first() or (0, 0)
            told["rows"] += rows
            told["right"] += right
        # Spark 4.3 starts the workers of a stream on Connect elsewhere than it has unpacked the archive.
        if given.get("stream", True) and given["how"] in ("ship", "archives"):
            told |= streamed(spark, value, keys, given["folder"])
    except Exception as error:
        told["error"] = str(error)
sys.stdout.write(json.dumps(told))
