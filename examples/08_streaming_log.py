"""
A topic, as in Kafka: failed rows go to a table of their own, and a repeated micro-batch writes no row twice.

    crashed in the middle of micro-batch 1
    +-----+------+-------+----+
    |batch|offset|user_id|name|
    +-----+------+-------+----+
    |    0|     0|     u1| Ann|
    |    0|     1|     u2| Bob|
    |    1|     2|     u1| Ann|
    |    1|     4|   NULL|NULL|
    +-----+------+-------+----+
    put aside: Row(user_id='u9', status='error')
    asked for: u1 3 x, u2 1 x, u9 2 x
"""

import tempfile
from contextlib import suppress

from enrichkit_http import HttpConfig
from pyspark.errors import StreamingQueryException

from enrichkit import enrich, local
from enrichkit.local.log_source import LogSource, append

crashes = [1]


def write(batch, batch_id):
    batch.persist()  # without this, each of the two writes would enrich the rows again
    good = "user.status in ('ok', 'missing', 'null_key')"
    names = batch.where(good).select("offset", "user_id", "user.value.name")
    names.write.mode("overwrite").parquet(f"{folder}/good/batch={batch_id}")  # a repeated batch overwrites its rows
    if batch_id in crashes:
        crashes.remove(batch_id)
        print(f"crashed in the middle of micro-batch {batch_id}")
        raise OSError
    failed = batch.where(f"not {good}").select("offset", "user_id", "user.status")
    failed.write.mode("overwrite").parquet(f"{folder}/failed/batch={batch_id}")
    batch.unpersist()


with local.http() as service, local.spark() as spark, tempfile.TemporaryDirectory() as folder:
    service.seed({"u1": {"name": "Ann"}, "u2": {"name": "Bob"}})
    service.script(local.Fault(match="u9", status=400), log=True)
    spark.dataSource.register(LogSource)
    log = spark.readStream.format("log").option("startingOffsets", "earliest").load(f"{folder}/log")
    events = log.selectExpr("offset", "cast(key as string) as user_id")
    user = enrich(HttpConfig(url=service.url + "/users/{}", returns="name string"), "user_id", details=True)
    query = events.withColumn("user", user).writeStream.foreachBatch(write).trigger(availableNow=True)
    for keys in ([b"u1", b"u2"], [b"u1", b"u9", None]):
        append(f"{folder}/log", "visits", [(key, b"") for key in keys])
        for _ in range(5):  # starts the query again after a crash, as the scheduler of your jobs would
            with suppress(StreamingQueryException):
                query.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
                break
    spark.read.parquet(f"{folder}/good").select("batch", "offset", "user_id", "name").orderBy("offset").show()
    print("put aside:", *spark.read.parquet(f"{folder}/failed").select("user_id", "status").collect())
    print("asked for:", ", ".join(f"{key} {n} x" for key, n in sorted(service.stats().per_key.items())))
