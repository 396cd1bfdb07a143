"""
JSON from an HTTP service, with one request per key or per many keys, and the outcomes of failed lookups.

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
    # The service answers the first request for u2 with 500, so enrichkit retries, and all requests for u4 with 400.
    service.script(local.Fault(match="u2", status=500, times=1), local.Fault(match="u4", status=400))

    # The JSON is decoded as the type that `returns` declares; an absent field is null. 404 means a missing key.
    users = HttpConfig(url=service.url + "/users/{}", returns="name string, address struct<city string>")

    # With details=True a failed lookup does not fail the job: each row has the status of its lookup. The job still
    # fails when the service refuses our credentials, or when more than half of the keys fail.
    rows = spark.createDataFrame([("u1",), ("u2",), ("missing",), ("u4",)], "user_id string")
    answered = rows.withColumn("user", enrich(users, "user_id", details=True))
    answered.select("user_id", "user.value.name", "user.value.address.city", "user.status", "user.attempts").show()

    # If the service takes a list of keys in one POST, a thousand rows need few requests.
    service.reset()
    many = HttpConfig(url=service.url + "/bulk", bulk=True, returns="name string, score int")
    rows = spark.range(1000).select(concat(lit("u"), "id").alias("user_id"))
    named = rows.withColumn("user", enrich(many, "user_id"))
    right = named.where(col("user.name") == concat(lit("name of "), "user_id")).count()
    print(f"1,000 rows, {right:,} with the right name, all in fewer than 100 requests: {service.stats().calls < 100}")
