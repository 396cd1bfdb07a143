"""Old values of the cache while the source is gone: a real Redis that is killed, and real jobs before and after."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import redis
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F

from enrichkit import Cache, enrich, local

from ..pace import at_pace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.service]


@pytest.mark.slow
def test_rows_get_old_values_while_the_source_is_gone(spark: SparkSession) -> None:
    """A cache survives jobs: the second job finds nothing but what the first has found out."""
    with local.redis() as server:
        with redis.Redis.from_url(server.url) as client:
            client.mset({f"u{number}": f"value {number}" for number in range(500)})
        cache = Cache(ttl=0.2, stale_if_error=600)
        value = enrich(RedisConfig(url=server.url), "k", cache=cache, details=True)
        for gone in (False, True):
            if gone:
                time.sleep(0.3)  # so that no answer is within its time
                os.kill(server.pid, signal.SIGKILL)
            began = time.monotonic()
            # Spark takes its idle workers in turn, and each has a cache of its own: the first job reaches them all.
            numbers = spark.range(0, 5_000, 1, 1 if gone else 8)
            frame = numbers.select("id", F.concat(F.lit("u"), F.col("id") % 500).alias("k"))
            rows = frame.withColumn("v", value).collect()
            seconds = time.monotonic() - began
            assert [row.v.value for row in rows] == [f"value {row.id % 500}" for row in rows]
            assert {row.v.status for row in rows} == {"ok"}
            if gone:
                assert Counter(row.v.origin for row in rows) == {"stale": 5_000}
                assert seconds < at_pace(10.0), "the second job has waited for the source"
