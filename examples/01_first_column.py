"""
Your first enriched column: the profile of each user, from Redis.

    +---+-------+---------+
    | id|user_id|  profile|
    +---+-------+---------+
    |  1|     u1|Ann, gold|
    |  2|     u2|Bob, blue|
    |  3|     u1|Ann, gold|
    |  4|     u9|     NULL|
    |  5|   NULL|     NULL|
    +---+-------+---------+
    calls: 2, one for each task
"""

import redis
from enrichkit_redis import RedisConfig
from pyspark.sql.functions import col

import enrichkit
from enrichkit import enrich, local

# Throw-away servers; with your own, the next line is your session and the one after it is your data.
with local.redis() as server, local.spark() as spark, redis.Redis.from_url(server.url) as client:
    client.mset({"profile:u1": "Ann, gold", "profile:u2": "Bob, blue"})
    events = spark.createDataFrame([(1, "u1"), (2, "u2"), (3, "u1"), (4, "u9"), (5, None)], "id bigint, user_id string")

    # A name for the source, and how a key becomes a Redis key. The config travels to the workers with the expression.
    enrichkit.register("profiles", RedisConfig(url=server.url, key="profile:{}"))

    # u9 is not in Redis and a null key is never asked for: both give null. u1 is asked for once per task.
    events.withColumn("profile", enrich("profiles", col("user_id"))).show()

    print(f"calls: {client.info('commandstats')['cmdstat_mget']['calls']}, one for each task")
