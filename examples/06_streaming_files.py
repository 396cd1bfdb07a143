"""
Structured Streaming: new files are enriched with the same expression as in a batch job.

    after the first file:
    +---+-------+----+
    | id|user_id|user|
    +---+-------+----+
    |  1|     u1| Ann|
    |  2|     u2| Bob|
    +---+-------+----+

    after the second file:
    +---+-------+----+
    | id|user_id|user|
    +---+-------+----+
    |  1|     u1| Ann|
    |  2|     u2| Bob|
    |  3|     u1| Ann|
    |  4|   NULL|NULL|
    +---+-------+----+
"""

import tempfile
from pathlib import Path

import redis
from enrichkit_redis import RedisConfig

from enrichkit import Cache, enrich, local

with (
    local.redis() as server,
    local.spark() as spark,
    redis.Redis.from_url(server.url) as client,
    tempfile.TemporaryDirectory() as temporary,
):
    client.mset({"user:u1": "Ann", "user:u2": "Bob"})
    folder = Path(temporary)
    arriving, out = folder / "arriving", folder / "out"
    arriving.mkdir()

    # A worker process keeps its connections and its cache between micro-batches.
    user = enrich(RedisConfig(url=server.url, key="user:{}"), "user_id", cache=Cache(ttl=60))
    events = spark.readStream.schema("id int, user_id string").json(str(arriving))
    writer = events.withColumn("user", user).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.start(str(out))

    for number, lines in {
        "first": '{"id": 1, "user_id": "u1"}\n{"id": 2, "user_id": "u2"}\n',
        "second": '{"id": 3, "user_id": "u1"}\n{"id": 4}\n',
    }.items():
        (arriving / f"{number}.json").write_text(lines)
        query.processAllAvailable()
        print(f"after the {number} file:")
        spark.read.parquet(str(out)).orderBy("id").show()
    query.stop()
