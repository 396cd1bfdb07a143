"""
JSON from an HTTP service, one request per key or one for many, and what to do when it fails.

    +-------+----+----+-------+--------+
    |user_id|name|city| status|attempts|
    +-------+----+----+-------+--------+
    |     u1| Ann|Oslo|     ok|       1|
    |     u2| Bob|NULL|     ok|       2|
    |missing|NULL|NULL|missing|       1|
    |     u4|NULL|NULL|  error|       1|
    +-------+----+----+-------+--------+

    1,000 rows, 1,000 with the right name, all in fewer than 100 requests: True
"""

from enrichkit_http import HttpConfig
from pyspark.sql.functions import col, concat, lit

from enrichkit import enrich, local

with local.http() as service, local.spark() as spark:
    service.seed({"u1": {"name": "Ann", "address": {"city": "Oslo"}}, "u2": {"name": "Bob"}})
    # The service is told to be busy once for u2 (503: asked again) and to refuse u4 (400: it never will work).
    service.script(local.Fault(match="u2", status=503, times=1), local.Fault(match="u4", status=400))

    # The answer is decoded into the type that `returns` declares; a field that is not there is null. 404 is a miss.
    users = HttpConfig(url=service.url + "/users/{}", returns="name string, address struct<city string>")

    # With details=True a lookup that fails does not fail the job: each row says what became of it. When the service
    # takes no credentials of ours, or more than half of the keys fail, the job still does.
    rows = spark.createDataFrame([("u1",), ("u2",), ("missing",), ("u4",)], "user_id string")
    answered = rows.withColumn("user", enrich(users, "user_id", details=True))
    answered.select("user_id", "user.value.name", "user.value.address.city", "user.status", "user.attempts").show()

    # Where the service takes a list of keys in one POST, a thousand rows need few requests.
    service.reset()
    many = HttpConfig(url=service.url + "/bulk", bulk=True, returns="name string, score int")
    rows = spark.range(1000).select(concat(lit("u"), "id").alias("user_id"))
    named = rows.withColumn("user", enrich(many, "user_id"))
    right = named.where(col("user.name") == concat(lit("name of "), "user_id")).count()
    print(f"1,000 rows, {right:,} with the right name, all in fewer than 100 requests: {service.stats().calls < 100}")
