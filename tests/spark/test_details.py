"""The outcome as data: value, status, error, attempts, latency and origin of each row."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig

from enrichkit import Cache, Retry, default, enrich
from enrichkit.local import Fault, value_of

from ..faults import TIMEOUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = pytest.mark.spark

PROFILE = "key string, name string, score int"


@pytest.fixture
def keys(spark: SparkSession) -> DataFrame:
    rows = [(key,) for key in ("good", "missing", "slow", "bad", "flaky", "..", None, "good")]
    return spark.createDataFrame(rows, "k string").coalesce(1)


@pytest.fixture
def config(http_service: HttpService) -> HttpConfig:
    http_service.script(
        Fault(match="slow", hang=True),
        Fault(match="/bad", status=400),
        Fault(match="flaky", status=500, times=1),
    )
    # Digits only: the hexadecimal form may hold the word of a fault, such as "bad".
    return HttpConfig(url=f"{http_service.url}/{uuid.uuid4().int}/{{}}", returns=PROFILE)


def outcomes(frame: DataFrame) -> dict[Any, dict[str, Any]]:
    """The outcome by key; that of `good` is the last of its two rows."""
    return {row[0]: row[1].asDict() for row in frame.collect()}


def test_each_row_tells_its_outcome(keys: DataFrame, config: HttpConfig, carrier: str) -> None:
    column = enrich(config, "k", details=True, timeout=TIMEOUT, retry=Retry(attempts=3, wait=0.001), carrier=carrier)
    frame = keys.select("k", column.alias("o"))
    assert frame.schema["o"].dataType.simpleString() == (
        f"struct<value:struct<{PROFILE.replace(' string', ':string').replace(' int', ':int').replace(', ', ',')}>,"
        "status:string,error:string,attempts:int,latency:double,origin:string>"
    )
    found = outcomes(frame)
    assert {
        "good": "ok",
        "missing": "missing",
        "slow": "timeout",
        "bad": "error",
        "flaky": "ok",
        "..": "rejected",
        None: "null_key",
    } == {key: outcome["status"] for key, outcome in found.items()}
    assert {"good": 1, "missing": 1, "slow": 1, "bad": 1, "flaky": 2, "..": 1, None: 0} == {
        key: outcome["attempts"] for key, outcome in found.items()
    }
    for key, outcome in found.items():
        value = outcome["value"]
        assert (value_of(key) if outcome["status"] == "ok" else None) == (value and value.asDict())
        assert ("call" if key is not None else None) == outcome["origin"]
    assert found["slow"]["error"] == f"TimeoutError: no answer within {TIMEOUT:g} s"
    assert found["bad"]["error"].startswith("PermanentError: ")
    assert "400" in found["bad"]["error"]
    assert found[".."]["error"].startswith("PermanentError: ")
    assert [None] * 4 == [found[key]["error"] for key in ("good", "missing", "flaky", None)]
    assert round(found["slow"]["latency"], 3) >= TIMEOUT  # the difference of two floats
    assert 0.0 < found["good"]["latency"] < TIMEOUT
    assert found[None]["latency"] == 0.0


def test_a_fallback_says_so_and_keeps_its_status(keys: DataFrame, config: HttpConfig) -> None:
    column = enrich(
        config,
        "k",
        details=True,
        timeout=TIMEOUT,
        on_timeout=default({"score": 1}),
        on_error=default({"score": 2}),
        on_missing=default({"score": 3}),
    )
    found = outcomes(keys.select("k", column))
    assert {
        "slow": ("timeout", 1, "fallback"),
        "bad": ("error", 2, "fallback"),
        "..": ("rejected", 2, "fallback"),
        "missing": ("missing", 3, "fallback"),
    } == {
        key: (found[key]["status"], found[key]["value"].score, found[key]["origin"])
        for key in ("slow", "bad", "..", "missing")
    }


def test_a_filter_on_the_status_asks_once(keys: DataFrame, config: HttpConfig, http_service: HttpService) -> None:
    frame = keys.where("k in ('good', 'missing')").withColumn("o", enrich(config, "k", details=True))
    assert ["missing"] == [row.k for row in frame.where("o.status <> 'ok'").select("k", "o.value").collect()]
    assert {"good": 1, "missing": 1} == http_service.stats().per_key


def test_an_answer_from_the_cache_has_no_attempts_and_no_latency(
    spark: SparkSession, config: HttpConfig, http_service: HttpService
) -> None:
    """One call at a time, and slices of one row, so that the second row of a key comes after its answer."""
    keys = spark.createDataFrame([("good",), ("missing",)] * 20, "k string").coalesce(1)
    column = enrich(config, "k", details=True, cache=Cache(ttl=60), capacity=1, window=1)
    rows = [row.http for row in keys.select(column).collect()]
    assert ["call", "call", *["cache"] * 38] == [row.origin for row in rows]
    assert [(0, 0.0)] == list({(row.attempts, row.latency) for row in rows if row.origin == "cache"})
    assert ["ok", "missing"] * 20 == [row.status for row in rows]
    assert http_service.stats().calls == 2
