"""Sources that are loaded as a whole, on Spark: what the rows get, and what the server was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F

from enrichkit import Preload, enrich, enrich_frame, local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.service]


@pytest.fixture(scope="module")
def server() -> Iterator[local.RedisServer]:
    with local.redis() as running, redis.Redis(port=running.port) as client:
        client.mset({f"user:{n}": f"v{n}" for n in range(3000)})
        yield running


def test_a_column_from_a_loaded_table(spark: SparkSession, server: local.RedisServer) -> None:
    config = RedisConfig(url=server.url, key="user:{}")
    value = enrich(config, "id", returns="string", preload=True, details=True)
    rows = spark.range(0, 20_000, numPartitions=4).withColumn("found", value).collect()
    assert sorted((row.id, row.found.value) for row in rows) == [
        (n, f"v{n}" if n < 3000 else None) for n in range(20_000)
    ]
    assert {row.found.origin for row in rows} == {"preload"}
    with redis.Redis(port=server.port) as client:
        read = client.info("commandstats")["cmdstat_mget"]  # type: ignore[index]  # of no asynchronous client
    # At most four worker processes load 3,000 names, about a thousand at a time; 20,000 rows would be 20 calls more.
    assert read["calls"] <= 4 * 6


def test_rows_of_a_frame_from_a_loaded_table(spark: SparkSession, server: local.RedisServer) -> None:
    config = RedisConfig(url=server.url, key="user:{}", returns="string")
    frame = spark.range(2990, 3010).withColumn("k", F.col("id").cast("string"))
    found = enrich_frame(frame, config, on="k", into="name", how="inner", preload=Preload(refresh=600)).collect()
    assert sorted((row.id, row.name) for row in found) == [(n, f"v{n}") for n in range(2990, 3000)]
