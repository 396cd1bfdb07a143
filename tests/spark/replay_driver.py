"""
The driver program of `test_streaming_replay.py`: three streaming queries over one log, in a process that is killed.

Each query starts from its checkpoint and ends when it has read what the log held at its start. A script of its own, as
a job is; what it is given and what it leaves is in a folder.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enrichkit_http import HttpConfig
from pyspark.sql import functions as F
from streams import started

from enrichkit import enrich, enrich_frame, local
from enrichkit.local.log_source import LogSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter

PER_BATCH = 60
TABLES = """
    CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS rows (partition INTEGER, "offset" INTEGER, key TEXT, value TEXT)
"""


def main(folder: str, url: str, connect: bool) -> None:
    """Run the queries to the end of the log and write what their sinks hold into `result.json`."""
    config = HttpConfig(url=url + "/{}", returns="key string, name string, score int")
    # Longer than a test may take: a held answer is late, not lost.
    options: dict[str, Any] = {"timeout": 3600.0, "capacity": 4}

    def by_column(events: DataFrame) -> DataFrame:
        return events.withColumn("user", enrich(config, "asked", **options))

    def by_frame(events: DataFrame) -> DataFrame:
        return enrich_frame(events, config, on="asked", into="user", ordered=False, **options)

    out = Path(folder, "out")
    # A slot for each task of a micro-batch: one that waits for an answer holds up no other query.
    with local.spark(connect=connect, master="local[6]", spark__python__daemon__module="tests.daemon") as spark:
        spark.dataSource.register(LogSource)
        queries = [
            start(spark, folder, "batch", by_column, lambda writer: writer.foreachBatch(transaction(folder))),
            start(spark, folder, "column", by_column, lambda writer: writer.option("path", str(out / "column"))),
            start(spark, folder, "frame", by_frame, lambda writer: writer.option("path", str(out / "frame"))),
        ]
        for query in queries:
            query.awaitTermination()
        result: dict[str, Any] = {}
        for form in ("column", "frame"):
            rows = spark.read.parquet(str(out / form)).collect()
            result[form] = [[r.partition, r.offset, r.key, r.user and r.user.asDict()] for r in rows]
        with closing(sqlite3.connect(database(folder))) as db:
            kept = db.execute('SELECT partition, "offset", key, value FROM rows').fetchall()
        result["batch"] = [[*row[:3], row[3] and json.loads(row[3])] for row in kept]
    Path(folder, "result.json").write_text(json.dumps(result))


def start(
    spark: SparkSession,
    folder: str,
    form: str,
    enriched: Callable[[DataFrame], DataFrame],
    into: Callable[[DataStreamWriter], DataStreamWriter],
) -> Any:
    """Start the query *form*; its keys begin with its name, so that the service can tell who asked."""
    log = spark.readStream.format("log").options(startingOffsets="earliest", maxOffsetsPerTrigger=PER_BATCH)
    events = log.load(str(Path(folder, "log"))).select(
        "partition",
        "offset",
        F.col("key").cast("string").alias("key"),
        F.concat(F.lit(form + "-"), F.col("key").cast("string")).alias("asked"),
    )
    writer = enriched(events).writeStream.option("checkpointLocation", str(Path(folder, "checkpoint", form)))
    return started(into(writer).trigger(availableNow=True).start)


def database(folder: str) -> Path:
    """The file of the sink that `foreachBatch` writes to."""
    return Path(folder, "out.db")


def transaction(folder: str) -> Callable[[DataFrame, int], None]:
    """Return the function that writes a micro-batch and its number in one transaction, unless the number is there."""
    path, tables = str(database(folder)), TABLES

    def write(batch: DataFrame, batch_id: int) -> None:
        import json
        import sqlite3
        from contextlib import closing

        rows = [
            (row.partition, row.offset, row.key, row.user and json.dumps(row.user.asDict())) for row in batch.collect()
        ]
        with closing(sqlite3.connect(path)) as db:
            db.executescript(tables)
            with db:
                if db.execute("INSERT OR IGNORE INTO batches VALUES (?)", (batch_id,)).rowcount:
                    db.executemany("INSERT INTO rows VALUES (?, ?, ?, ?)", rows)

    return write


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
