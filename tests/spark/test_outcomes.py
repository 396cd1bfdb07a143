"""What a row gets, or the task, when a lookup times out, fails or finds nothing."""

from __future__ import annotations

import platform
import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F

from enrichkit import ConfigError, Retry, Secret, default, enrich, register
from enrichkit.local import Fault, value_of

from ..faults import TIMEOUT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService

pytestmark = pytest.mark.spark

PROFILE = "key string, name string, score int"
GOOD = [f"u{n}" for n in range(20)]
BAD = {"on_timeout": "slow-key", "on_error": "bad-key", "on_missing": "missing-key"}
UNKNOWN = {"key": "?", "name": None, "score": -1}


def config_of(service: HttpService, **settings: Any) -> HttpConfig:
    """A new source each time: workers keep the connections of the others."""
    # Digits only: the hexadecimal form may hold the word of a fault, such as "bad".
    return HttpConfig(url=f"{service.url}/{uuid.uuid4().int}/{{}}", returns=PROFILE, **settings)


@pytest.fixture
def service(http_service: HttpService) -> HttpService:
    """A service with one key that it never answers for, one that it refuses, and one that it does not hold."""
    http_service.script(Fault(match="slow", hang=True), Fault(match="/bad", status=400))
    return http_service


def frame_of(spark: SparkSession, *keys: str) -> DataFrame:
    return spark.createDataFrame([(key,) for key in (*GOOD, *keys)], "user_id string").coalesce(1)


def failure(frame: DataFrame) -> str:
    with pytest.raises(Exception, match=r"enrichkit\.errors\.\w+Error: ") as caught:
        frame.collect()
    return str(caught.value)


@pytest.mark.parametrize("option", BAD)
@pytest.mark.parametrize("policy", ["null", default(UNKNOWN), default(None)], ids=["null", "default", "default-null"])
def test_a_policy_concerns_its_own_rows_only(
    spark: SparkSession, service: HttpService, option: str, policy: Any
) -> None:
    options: Any = {"timeout": TIMEOUT, option: policy}
    column = enrich(config_of(service), "user_id", **options)
    rows = {row.user_id: row.http for row in frame_of(spark, BAD[option]).withColumn("http", column).collect()}
    assert {key: value_of(key) for key in GOOD} == {key: rows[key].asDict() for key in GOOD}
    value = rows[BAD[option]]
    assert (UNKNOWN if policy == default(UNKNOWN) else None) == (value and value.asDict())


def test_the_policies_work_together_on_both_carriers(spark: SparkSession, service: HttpService, carrier: str) -> None:
    column = enrich(
        config_of(service),
        "user_id",
        timeout=TIMEOUT,
        on_timeout="null",
        on_error=default({"score": 1}),
        on_missing=default({"score": 2}),
        carrier=carrier,
    )
    rows = frame_of(spark, *BAD.values()).select("user_id", column).where("not user_id like 'u%'").collect()
    assert {"slow-key": None, "bad-key": 1, "missing-key": 2} == {row[0]: row[1] and row[1].score for row in rows}


def test_a_missing_key_is_null_when_nothing_is_said(spark: SparkSession, service: HttpService) -> None:
    rows = frame_of(spark, "missing-key").select("user_id", enrich(config_of(service), "user_id")).collect()
    assert ["missing-key"] == [row.user_id for row in rows if row.http is None]


# --- messages of a failing task: source, hashed key, attempts, cause; no secret and no key


KEY = r"#[0-9a-f]{10}"


def assert_says(message: str, pattern: str, *hidden: str) -> None:
    assert re.search(pattern, message), message
    for text in hidden:
        assert text not in message


def test_a_timeout_fails_the_task_and_says_so(spark: SparkSession, service: HttpService) -> None:
    message = failure(frame_of(spark, "slow-key").select(enrich(config_of(service), "user_id", timeout=TIMEOUT)))
    assert_says(
        message,
        rf"LookupFailedError: http: the lookup of key {KEY} failed after 1 of 3 attempts and [\d.]+ s: TimeoutError: "
        rf"no answer within {TIMEOUT:g} s\. The task fails because on_timeout is 'fail'; on_timeout='null' or "
        r"on_timeout=default\(value\) keeps the row\.",
        "slow-key",
    )


def test_an_error_fails_the_task_and_says_what_the_service_said(
    spark: SparkSession, service: HttpService, tmp_path: Path, fresh_registry: None
) -> None:
    (tmp_path / "token").write_text("hunter2")
    config = config_of(service, headers={"Authorization": Secret.file(str(tmp_path / "token"))})
    register("customers", config)
    message = failure(frame_of(spark, "bad-key").select(enrich("customers", "user_id")))
    assert_says(
        message,
        rf"LookupFailedError: customers: the lookup of key {KEY} failed after 1 of 3 attempts and [\d.e-]+ s: "
        r"PermanentError: .*400.* The task fails because on_error is 'fail'; on_error='null' or "
        r"on_error=default\(value\) keeps the row\.",
        "bad-key",
        "hunter2",
    )
    assert "hunter2" == next(iter(service.log()))["headers"]["authorization"]


def test_attempts_are_counted_and_the_last_cause_is_told(spark: SparkSession, http_service: HttpService) -> None:
    http_service.script(Fault(match="busy", status=500))
    retry = Retry(attempts=3, wait=0.001)
    column = enrich(config_of(http_service), "user_id", retry=retry, carrier="pandas")
    message = failure(frame_of(spark, "busy-key").select(column))
    assert_says(
        message,
        rf"LookupFailedError: http: the lookup of key {KEY} failed after 3 of 3 attempts and [\d.e-]+ s: "
        r"TransientError: .*500.* The task fails because on_error is 'fail'; ",
        "busy-key",
    )
    assert 3 == http_service.stats().per_key["busy-key"]


def test_a_missing_key_fails_the_task_when_that_is_asked_for(spark: SparkSession, service: HttpService) -> None:
    column = enrich(config_of(service), "user_id", on_missing="fail", show_keys=True)
    assert_says(
        failure(frame_of(spark, "missing-key").select(column)),
        r"LookupFailedError: http: the lookup of key 'missing-key' found nothing after 1 attempt and [\d.e-]+ s: the "
        r"source does not hold the key\. The task fails because on_missing is 'fail'; on_missing='null' or "
        r"on_missing=default\(value\) keeps the row\.",
    )


@pytest.mark.slow
def test_too_many_fallbacks_fail_the_task(spark: SparkSession, service: HttpService) -> None:
    service.script(Fault(match="/u", status=400))
    keys = spark.range(0, 300, 1, 1).select(F.concat(F.lit("u"), F.col("id").cast("string")).alias("user_id"))
    assert_says(
        failure(keys.select(enrich(config_of(service), "user_id", on_error="null"))),
        r"TooManyFallbacksError: http: 100 of 100 keys timed out, failed or were refused, more than "
        r"max_fallback_ratio=0\.5 allows\. Last: PermanentError: .*400.* Mend the source, or set "
        r"max_fallback_ratio=1\.0 to accept any number of fallbacks\.",
    )
    column = enrich(config_of(service), "user_id", on_error="null", max_fallback_ratio=1.0)
    assert [None] * 300 == [row.http for row in keys.select(column).collect()]


def test_a_secret_that_is_absent_is_named_on_the_driver_if_it_is_the_worker_s_machine(
    spark: SparkSession, http_service: HttpService, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Only a classic session with a local master tells that the workers run here; else the worker tells it."""
    connect = request.config.getoption("--connect")
    machine = f"on this machine ({platform.node()})"
    absent = tmp_path / "absent"
    for secret, text in {
        Secret.env("ENRICHKIT_NOT_SET_ANYWHERE"): (
            f"The environment variable ENRICHKIT_NOT_SET_ANYWHERE is not set {machine}; a Secret names it."
        ),
        Secret.file(str(absent)): f"The secret file {absent} cannot be read {machine}: No such file or directory.",
    }.items():
        config = config_of(http_service, headers={"X-Api-Key": secret})
        if connect or secret.kind == "file":  # which may come until the job starts
            assert text in failure(frame_of(spark).select(enrich(config, "user_id")))
        else:
            with pytest.raises(ConfigError) as raised:
                enrich(config, "user_id")
            assert str(raised.value) == text
    assert http_service.stats().connections == 0


@pytest.mark.slow
def test_what_the_service_says_of_an_error_is_shown_with_show_keys(
    spark: SparkSession, http_service: HttpService
) -> None:
    http_service.script(Fault(match="/u7", status=400, body=b'{"error": "u7 is no tenant"}'))
    frame = frame_of(spark).where("user_id = 'u7'")
    shown = failure(frame.select(enrich(config_of(http_service), "user_id", show_keys=True)))
    assert "http: the lookup of key 'u7' failed after 1 of 3 attempts and " in shown
    assert 'add it to HttpConfig.missing (the source said: {"error": "u7 is no tenant"}). The task fails' in shown
    hidden = failure(frame.select(enrich(config_of(http_service), "user_id")))
    assert "no tenant" not in hidden
    assert "u7" not in hidden


def test_a_retry_that_succeeds_is_not_seen_in_the_column(spark: SparkSession, http_service: HttpService) -> None:
    http_service.script(Fault(status=503, times=5), Fault(reset=True, times=5))
    column = enrich(config_of(http_service), "user_id", retry=Retry(attempts=10, wait=0.001))
    rows = frame_of(spark).select("user_id", column).collect()
    assert {key: value_of(key) for key in GOOD} == {row.user_id: row.http.asDict() for row in rows}
    assert http_service.stats().faults_used == 10
