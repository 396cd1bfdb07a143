"""Tiers in real jobs: a Redis before an HTTP service, both of which count what they are asked."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F

from enrichkit import enrich, enrich_frame, local, register_function, tiers
from enrichkit.local import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService
    from enrichkit.local.redis import RedisServer

pytestmark = pytest.mark.service


@pytest.fixture
def near() -> Iterator[RedisServer]:
    with local.redis() as server:
        yield server
        with contextlib.suppress(ProcessLookupError):
            os.kill(server.pid, signal.SIGCONT)


def sources(near: RedisServer, service: HttpService) -> tuple[RedisConfig, HttpConfig]:
    place = uuid.uuid4().hex
    return (
        RedisConfig(url=near.url, key=f"{place}:{{}}", kind="json"),
        HttpConfig(url=f"{service.url}/{place}/{{}}", missing=(404,)),
    )


def keys(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    name = F.when(F.col("id") % 10 == 9, F.lit("missing")).otherwise(F.lit("u"))
    return spark.range(0, count, 1, tasks).select("id", F.concat(name, F.col("id").cast("string")).alias("k"))


TYPE = "name string, score int"


def right(key: str) -> tuple[Any, ...] | None:
    found = value_of(key)
    return None if "missing" in key else (found["name"], found["score"])


def value(row: Any) -> tuple[Any, ...] | None:
    return None if row is None else tuple(row)


@pytest.mark.slow
@pytest.mark.spark
def test_what_the_service_knows_is_written_to_the_tier_and_found_there(
    spark: SparkSession, near: RedisServer, http_service: HttpService
) -> None:
    first, last = sources(near, http_service)
    column = enrich(tiers(first, last, write_back=True, ttl=600, timeout=5.0), "k", returns=TYPE, details=True)
    frame = keys(spark, 2_000)
    for known in (False, True):
        before = http_service.stats().calls
        rows = frame.withColumn("v", column).collect()
        asked = http_service.stats().calls - before
        assert {row.k: value(row.v.value) for row in rows} == {row.k: right(row.k) for row in rows}
        origins = Counter(row.v.origin for row in rows)
        assert origins == ({"tier:redis": 1_800, "call": 200} if known else {"call": 2_000})
        assert asked == (200 if known else 2_000), "a miss is not written"
    with redis.Redis.from_url(near.url) as client:
        names = list(client.scan_iter(count=1_000))
        assert len(names) == 1_800
        assert 0 < client.ttl(names[0]) <= 600


@pytest.mark.spark
@pytest.mark.parametrize("form", ["frame", "unordered", "sql", "pandas"])
def test_tiers_are_a_source_in_each_form(
    spark: SparkSession, near: RedisServer, http_service: HttpService, form: str
) -> None:
    first, last = sources(near, http_service)
    with redis.Redis.from_url(near.url) as client:
        client.set(first.key.format("u1"), '{"name": "from the tier", "score": 1}')
    source, frame = tiers(first, last, timeout=5.0), keys(spark, 100)
    if form == "sql":
        register_function(spark, "tiered", source, returns=TYPE)
        frame.createOrReplaceTempView("tier_rows")
        rows = spark.sql("SELECT k, tiered(k) AS v FROM tier_rows").collect()
    elif form == "pandas":
        rows = frame.withColumn("v", enrich(source, "k", returns=TYPE, carrier="pandas")).collect()
    else:
        rows = enrich_frame(frame, source, on="k", into="v", returns=TYPE, ordered=form == "frame").collect()
    found = {row.k: value(row.v) for row in rows}
    assert found == {row.k: right(row.k) for row in rows} | {"u1": ("from the tier", 1)}
    assert len(found) == 100


@pytest.mark.slow
@pytest.mark.parametrize("sig", [signal.SIGSTOP, signal.SIGKILL])
def test_a_tier_that_stops_in_the_middle_fails_no_row(
    spark: SparkSession, near: RedisServer, http_service: HttpService, sig: signal.Signals
) -> None:
    http_service.script(latency=0.01)
    first, last = sources(near, http_service)
    frame = keys(spark, 12_000)
    column = enrich(tiers(first, last, write_back=True), "k", returns=TYPE, details=True, capacity=20)
    before = http_service.stats().calls

    def stop() -> None:
        while http_service.stats().calls - before < 4_000:
            time.sleep(0.01)
        os.kill(near.pid, sig)

    stopper = threading.Thread(target=stop)
    stopper.start()
    rows = frame.withColumn("v", column).collect()
    stopper.join()
    assert {row.k: value(row.v.value) for row in rows} == {row.k: right(row.k) for row in rows}
    assert Counter(row.v.status for row in rows) == {"ok": 10_800, "missing": 1_200}
    assert http_service.stats().calls - before == 12_000, "each key is asked for once"
