"""
Two enrichments in one select, and a third one whose key is a value of the first.

    +---+-----+----+-------+----------+
    | id| name|city|country|    device|
    +---+-----+----+-------+----------+
    |  1|  Ann|Oslo| Norway|thermostat|
    |  2|  Bob|Bonn|Germany|    camera|
    |  3|  Ann|Oslo| Norway|    camera|
    |  4|Chloé|Rome|  Italy|      NULL|
    |  5| NULL|NULL|   NULL|    camera|
    +---+-----+----+-------+----------+

    6 requests over HTTP: 3 devices and 3 cities
"""

import redis
from enrichkit_http import HttpConfig
from enrichkit_redis import RedisConfig

from enrichkit import enrich, local

EVENTS = [(1, "u1", "d1"), (2, "u2", "d2"), (3, "u1", "d2"), (4, "u3", "missing"), (5, "u4", "d2")]
USERS = {"u1": ("Ann", "Oslo"), "u2": ("Bob", "Bonn"), "u3": ("Chloé", "Rome")}
CITIES = {"Oslo": {"country": "Norway"}, "Bonn": {"country": "Germany"}, "Rome": {"country": "Italy"}}
DEVICES = {"d1": {"model": "thermostat"}, "d2": {"model": "camera"}}

with (
    local.redis() as server,
    local.http() as service,
    local.spark() as spark,
    redis.Redis.from_url(server.url) as client,
):
    for user, (name, city) in USERS.items():
        client.hset(f"user:{user}", mapping={"name": name, "city": city})
    service.seed({**CITIES, **DEVICES})
    events = spark.createDataFrame(EVENTS, "id int, user_id string, device_id string").coalesce(1)

    # Each enrichment is an ordinary column, with its own connector, options and calls in flight.
    users = RedisConfig(url=server.url, key="user:{}", kind="hash", fields=("name", "city"))
    devices = HttpConfig(url=service.url + "/devices/{}", value="model")
    enriched = events.select(
        "id",
        enrich(users, "user_id").alias("user"),
        enrich(devices, "device_id", timeout=10.0).alias("device"),
    )

    # The city is a value of the first enrichment. A null city costs no call, because a null key is never looked up.
    cities = HttpConfig(url=service.url + "/cities/{}", value="country")
    enriched = enriched.withColumn("country", enrich(cities, "user.city"))

    enriched.select("id", "user.*", "country", "device").show()
    print(f"{service.stats().calls} requests over HTTP: 3 devices and 3 cities")
