"""What a row gets from a function of its key, or from another source, when its own has no answer."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F

from enrichkit import ConfigError, ConnectorConfig, enrich, register
from enrichkit.local import Fault, value_of

from ..faults import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = pytest.mark.spark

PROFILE = "key string, name string, score int"
BAD = {"on_timeout": "slow-key", "on_error": "bad-key", "on_missing": "missing-key"}


def config_of(service: HttpService) -> HttpConfig:
    """A new source each time: workers keep the connections of the others."""
    return HttpConfig(url=f"{service.url}/{uuid.uuid4()}/{{}}", returns=PROFILE)


@pytest.fixture
def service(http_service: HttpService) -> HttpService:
    """A service with one key that it never answers for, one that it refuses, and one that it does not hold."""
    http_service.script(Fault(match="slow", hang=True), Fault(match="/bad", status=400))
    return http_service


@pytest.fixture
def keys(spark: SparkSession) -> DataFrame:
    """One task of five keys, three of which have no answer."""
    return spark.createDataFrame([(key,) for key in ("u1", *BAD.values(), "u2")], "user_id string").coalesce(1)


def named(name: str, key: str, score: int = 0) -> dict[str, Any]:
    """What the functions below return; it travels with them."""
    return {"key": key, "name": name, "score": score}


async def slowly(key: str) -> dict[str, Any]:
    await asyncio.sleep(0.001)
    return named("slowly", key)


def test_functions_and_a_source_answer_for_a_service(
    keys: DataFrame, service: HttpService, table: Callable[[Mapping[Any, Any]], ConnectorConfig], carrier: str
) -> None:
    """A lambda, an async function of this module, which the workers do not have, and a source of this module."""
    column = enrich(
        config_of(service),
        "user_id",
        timeout=TIMEOUT,
        on_timeout=lambda key: named("lambda", key, score=len(key)),
        on_error=slowly,
        on_missing=table({"missing-key": named("backup", "missing-key")}),
        details=True,
        carrier=carrier,
    )
    rows = {row.user_id: row.http for row in keys.select("user_id", column).collect()}
    expected = {
        "u1": ("ok", value_of("u1"), "call"),
        "u2": ("ok", value_of("u2"), "call"),
        "slow-key": ("timeout", named("lambda", "slow-key", 8), "fallback"),
        "bad-key": ("error", named("slowly", "bad-key"), "fallback"),
        "missing-key": ("missing", named("backup", "missing-key"), "fallback"),
    }
    assert expected == {key: (row.status, row.value.asDict(), row.origin) for key, row in rows.items()}
    assert f"TimeoutError: no answer within {TIMEOUT:g} s" == rows["slow-key"].error
    assert 1 == service.stats().per_key["missing-key"]


def test_a_function_gets_several_key_columns_as_a_tuple(keys: DataFrame, service: HttpService) -> None:
    config = HttpConfig(url=f"{service.url}/{{0}}/{{1}}", returns=PROFILE)
    column = enrich(
        config,
        F.lit("tenant"),
        "user_id",
        on_missing=lambda key: named(*key),
        on_error="null",
        timeout=TIMEOUT,
        on_timeout="null",
    )
    rows = {row.user_id: row.http for row in keys.select("user_id", column).collect()}
    assert named("tenant", "missing-key") == rows["missing-key"].asDict()
    assert (None, None, value_of("u1")) == (rows["slow-key"], rows["bad-key"], rows["u1"].asDict())


def test_a_named_source_answers_with_its_own_groups_and_connections(
    spark: SparkSession, http_service: HttpService, fresh_registry: None
) -> None:
    http_service.script(Fault(match="/old/", status=404))
    register("old", HttpConfig(url=f"{http_service.url}/old/{uuid.uuid4()}/{{}}", returns=PROFILE))
    register("new", HttpConfig(url=f"{http_service.url}/{uuid.uuid4()}", bulk=True))
    frame = spark.range(0, 600, 1, 1).select(F.concat(F.lit("u"), "id").alias("user_id"))
    rows = frame.select("user_id", enrich("old", "user_id", on_missing="new")).collect()
    assert {f"u{n}": value_of(f"u{n}") for n in range(600)} == {row.user_id: row.old.asDict() for row in rows}
    stats = http_service.stats()
    assert dict.fromkeys((f"u{n}" for n in range(600)), 2) == stats.per_key
    assert 600 < stats.calls < 900  # one per key of the first, and many keys in each of the second


@pytest.mark.parametrize("details", [True, False], ids=["details", "no-details"])
def test_the_error_of_a_fallback_is_the_rows_error(keys: DataFrame, service: HttpService, details: bool) -> None:
    def stumble(key: str) -> None:
        raise LookupError(key)

    column = enrich(
        config_of(service),
        "user_id",
        on_missing=stumble,
        on_error="null" if details else "fail",
        timeout=TIMEOUT,
        on_timeout="null",
        details=details,
    )
    rows = keys.where("user_id <> 'bad-key'").select("user_id", column)
    said = (
        "PermanentError: the function raised LookupError at test_fallbacks.py, line "
        f"{stumble.__code__.co_firstlineno + 1}, in stumble: raise LookupError(key) (in the function stumble, after: "
        "the source does not hold the key)"
    )
    if details:
        row = next(row.http for row in rows.collect() if row.user_id == "missing-key")
        assert (None, "error", said, "call") == (row.value, row.status, row.error, row.origin)
    else:
        with pytest.raises(Exception, match=re.escape(f"{said}. The task fails because on_error is 'fail'; ")):
            rows.collect()


def test_an_answer_of_a_function_that_does_not_fit_is_that_rows_error(keys: DataFrame, service: HttpService) -> None:
    column = enrich(
        config_of(service), "user_id", on_missing=lambda key: {"score": "high"}, timeout=TIMEOUT, details=True
    )
    rows = {row.user_id: row.http for row in keys.select("user_id", column).collect()}
    assert (None, "error") == (rows["missing-key"].value, rows["missing-key"].status)
    assert rows["missing-key"].error.startswith(
        "PermanentError: The part 'score' of the value does not fit the declared"
    )
    assert value_of("u1") == rows["u1"].value.asDict()


def test_a_fallback_does_not_hide_an_outage(spark: SparkSession, http_service: HttpService) -> None:
    """The default of `max_fallback_ratio`, whole message."""
    http_service.script(Fault(match="/u", status=400))
    frame = spark.range(0, 300, 1, 1).select(F.concat(F.lit("u"), "id").alias("user_id"))
    rescued = enrich(config_of(http_service), "user_id", on_error=slowly, capacity=1)
    with pytest.raises(Exception, match="TooManyFallbacksError") as caught:
        frame.select(rescued).collect()
    assert (
        "enrichkit.errors.TooManyFallbacksError: http: 100 of 100 keys timed out, failed or were refused, more than "
        "max_fallback_ratio=0.5 allows. Last: PermanentError: The service answered 400; a value comes with 200, 201 or "
        "203. If 400 says that the service does not hold the key, add it to HttpConfig.missing. Mend the source, or "
        "set max_fallback_ratio=1.0 to accept any number of fallbacks."
    ) in str(caught.value)


@pytest.mark.slow
def test_columns_with_other_fallbacks_share_the_connections_of_their_source(
    spark: SparkSession, http_service: HttpService
) -> None:
    """One pool per worker process, whatever stands in for a failed lookup, and however often the job runs."""
    http_service.script(Fault(match="/bad", status=400), latency=0.005)
    config = config_of(http_service)
    frame = spark.range(0, 100, 1, 1).select(
        F.when(F.col("id") % 10 == 0, F.concat(F.lit("bad"), "id")).otherwise(F.concat(F.lit("u"), "id")).alias("k")
    )
    processes: set[int] = set()
    for attempt in range(3):
        # A new lambda each time, which says in which process it was called.
        here = lambda key, attempt=attempt: {"name": key, "score": os.getpid()}  # noqa: E731
        options: Any = {"on_error": here, "capacity": 3, "max_fallback_ratio": 1.0}
        one = enrich(config, "k", **options, on_timeout=here).alias("one")
        other = enrich(config, "k", **options, on_timeout="null").alias("other")
        for row in frame.select("k", one, other).collect():
            if row.k.startswith("bad"):
                assert (row.k, row.k) == (row.one.name, row.other.name)
                processes |= {row.one.score, row.other.score}
            else:
                assert value_of(row.k) == row.one.asDict() == row.other.asDict()
    assert 3 * len(processes) == http_service.stats().connections
    assert 600 == http_service.stats().keys


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_a_fallback_answers_with_the_same_type(spark: SparkSession, http_service: HttpService) -> None:
    other = HttpConfig(url=f"{http_service.url}/{{}}", returns="name string")
    enriched = partial(enrich, config_of(http_service), "user_id")
    assert refusal(lambda: enriched(on_error=other)) == (
        "on_error is the source 'http', whose values are declared as struct<name:string>; they must be of the column's "
        "type, struct<key:string,name:string,score:int>. Leave returns= out of the fallback's config, or declare the "
        "same type."
    )
