"""
A first enriched column: the profile of each user, from Redis.

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

# The next line starts throw-away servers; in your job, use your own Spark session and your own Redis.
with local.redis() as server, local.spark() as spark, redis.Redis.from_url(server.url) as client:
    client.mset({"profile:u1": "Ann, gold", "profile:u2": "Bob, blue"})
    events = spark.createDataFrame([(1, "u1"), (2, "u2"), (3, "u1"), (4, "u9"), (5, None)], "id bigint, user_id string")

    # Give the source a name, and say how a user id becomes a Redis key. Spark sends the config to the workers.
    enrichkit.register("profiles", RedisConfig(url=server.url, key="profile:{}"))

    # Redis does not hold u9, and a null key is never looked up: both rows get a null. Each task looks up u1 once.
    events.withColumn("profile", enrich("profiles", col("user_id"))).show()

    print(f"calls: {client.info('commandstats')['cmdstat_mget']['calls']}, one for each task")
