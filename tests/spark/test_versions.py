"""
What must work on every supported version of PySpark, classic and Connect.

`./run matrix` runs them in one environment for each version. They take the carrier that enrichkit takes there, and the
pandas carrier, which is there everywhere; so nothing here may be newer than PySpark 3.5.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F

from enrichkit import (
    Cache,
    Call,
    ConfigError,
    Connector,
    ConnectorConfig,
    Retry,
    default,
    enrich,
    enrich_frame,
    register_function,
)
from enrichkit.local import Fault, value_of

from .test_few_rows import calls_that_follow, cancel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService, PostgresServer

    Table = Callable[[dict[Any, Any]], Any]
    Conf = Callable[[str, str], None]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROFILE = "key string, name string, score int"
UTC = dt.UTC
both = pytest.mark.parametrize("carrier", ["auto", "pandas"])

# One value each of every type that is both a key and a value, and one that is lost when a carrier is careless.
PLAIN: dict[str, tuple[Any, Any]] = {
    "string": ("it's", "名 \U0001f600"),
    "binary": (b"", b"\xff\x00"),
    "boolean": (True, False),
    "tinyint": (0, -128),
    "smallint": (0, 2**15 - 1),
    "int": (0, -(2**31)),
    "bigint": (2**53, 2**53 + 1),
    "float": (0.0, 1.5),
    "double": (0.1, 2.0**53),
    "decimal(38,0)": (Decimal(10**37 + 1), Decimal(10**37 + 2)),
    "date": (dt.date(1, 1, 1), dt.date(9999, 12, 31)),
    # One wall clock, 1:45, twice: the clocks of Newfoundland go back between the two.
    "timestamp": (dt.datetime(2026, 11, 1, 4, 15, tzinfo=UTC), dt.datetime(2026, 11, 1, 5, 15, tzinfo=UTC)),
    "timestamp_ntz": (dt.datetime(2026, 3, 8, 2, 30), dt.datetime(1, 1, 1)),
}
# Likewise of types that are values only.
NESTED: dict[str, tuple[Any, Any]] = {
    "interval day to second": (dt.timedelta(0), dt.timedelta(days=-3, microseconds=1)),
    "array<bigint>": ([], [2**53 + 1, None]),
    "map<string,decimal(5,2)>": ({}, {"a": Decimal("1.50"), "b": None}),
    "struct<a:int,b:struct<c:array<double>>>": ({"a": None, "b": None}, {"a": 1, "b": {"c": [1.0, None]}}),
}


@dataclass(frozen=True, kw_only=True)
class EchoConfig(ConnectorConfig):
    """The source says what it was asked."""

    returns: str | None = "string"


class EchoConnector(Connector[EchoConfig]):
    """Answers with the text of the key; it travels by value, because workers do not have this module."""

    name = "echo"
    config_class = EchoConfig
    batch_size = 3
    max_batch_size = 1000

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, str]:
        return {key: repr(key) for key in keys}


@dataclass(frozen=True, kw_only=True)
class ProcessConfig(ConnectorConfig):
    """The source says in which process it was opened."""

    nonce: str
    returns: str | None = "process int, opened string"


class ProcessConnector(Connector[ProcessConfig]):
    """Answers with the process and with what tells one `open` from another."""

    name = "process"
    config_class = ProcessConfig

    async def open(self) -> None:
        self.opened = str(uuid.uuid4())

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        return {key: {"process": os.getpid(), "opened": self.opened} for key in keys}


@pytest.fixture
def people(spark: SparkSession) -> DataFrame:
    """Twenty rows in two partitions: id 0 to 19, and user_id u0 to u19."""
    return spark.range(0, 20, 1, 2).select("id", F.concat(F.lit("u"), F.col("id").cast("string")).alias("user_id"))


def new_config(service: HttpService, **settings: Any) -> HttpConfig:
    """A source that no other test has asked: workers keep the connections and caches of the others."""
    return HttpConfig(url=f"{service.url}/{uuid.uuid4()}/{{}}", returns=PROFILE, **settings)


def failure(frame: DataFrame) -> str:
    with pytest.raises(Exception, match=r"enrichkit\.errors\.\w+Error: ") as caught:
        frame.collect()
    return str(caught.value)


def plain(value: Any) -> Any:
    """A row as a dict at any depth, and bytes as bytes."""
    if hasattr(value, "asDict"):
        return {name: plain(part) for name, part in value.asDict().items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return bytes(value) if isinstance(value, bytearray) else value


def test_the_session_is_of_the_kind_that_was_asked_for(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    assert request.config.getoption("--connect") == (".connect." in type(spark).__module__)


@both
def test_each_row_gets_its_own_value_whatever_the_size_of_the_batches(
    spark: SparkSession, redis_url: str, conf: Conf, carrier: str
) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.mset({f"k{n}": f"v{n}" for n in range(0, 700, 2)})
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
    key = F.concat(F.lit("k"), (F.col("id") % 700).cast("string"))
    frame = spark.range(0, 1000, 1, 2).select("id", enrich(RedisConfig(url=redis_url), key, carrier=carrier))
    expected = [(n, f"v{n % 700}" if n % 2 == 0 else None) for n in range(1000)]
    assert expected == [tuple(row) for row in frame.collect()]


@both
def test_calls_for_several_batches_are_in_flight_at_once(
    spark: SparkSession, http_service: HttpService, conf: Conf, carrier: str
) -> None:
    """Spark hands further batches over while none has come back; a version that waits would stop at four calls."""
    http_service.script(latency=0.5)
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    key = F.concat(F.lit("u"), F.col("id").cast("string"))
    column = enrich(new_config(http_service), key, capacity=40, carrier=carrier)
    rows = spark.range(0, 120, 1, 1).select("id", column).collect()
    assert {n: value_of(f"u{n}") for n in range(120)} == {row.id: row.http.asDict() for row in rows}
    assert 12 <= http_service.stats().peak <= 40


@both
def test_a_value_of_any_type_comes_back_as_it_was(spark: SparkSession, table: Table, conf: Conf, carrier: str) -> None:
    conf("spark.sql.session.timeZone", "America/St_Johns")
    types = PLAIN | NESTED
    ddl = ", ".join(f"f{i} {name}" for i, name in enumerate(types))
    held = {n: {f"f{i}": pair[n] for i, pair in enumerate(types.values())} for n in (0, 1)}
    held |= {2: {f"f{i}": None for i in range(len(types))}, 3: None}
    frame = spark.range(0, 5, 1, 1).select("id", enrich(table(held), "id", returns=ddl, carrier=carrier))
    expected = spark.createDataFrame([*held.items(), (4, None)], f"id bigint not null, `table` struct<{ddl}>")
    assert expected.dtypes == frame.dtypes
    assert [plain(row) for row in expected.collect()] == [plain(row) for row in frame.collect()]


@both
def test_a_key_of_any_type_arrives_as_it_is_and_several_as_one(spark: SparkSession, conf: Conf, carrier: str) -> None:
    conf("spark.sql.session.timeZone", "America/St_Johns")
    rows = [tuple(pair[n % 2] for pair in PLAIN.values()) for n in range(5)]
    schema = "n int, " + ", ".join(f"k{i} {name}" for i, name in enumerate(PLAIN))
    frame = spark.createDataFrame([(n, *row) for n, row in enumerate(rows)], schema).coalesce(1)
    echo = enrich(EchoConfig(), *(f"k{i}" for i in range(len(PLAIN))), carrier=carrier)
    assert {n: repr(row) for n, row in enumerate(rows)} == {
        row.n: row.echo for row in frame.select("n", echo).collect()
    }


@both
def test_a_null_key_asks_nobody_and_the_id_beside_it_stays_exact(spark: SparkSession, carrier: str) -> None:
    keys = [(0, 2**53 + 1, "a"), (1, None, "a"), (2, 2**53, None), (3, 2**53, "b")]
    frame = spark.createDataFrame(keys, "n int, id bigint, part string").coalesce(1)
    single, pair = enrich(EchoConfig(), "id", carrier=carrier), enrich(EchoConfig(), "id", "part", carrier=carrier)
    details = enrich(EchoConfig(), "id", details=True, carrier=carrier)
    rows = frame.select("n", single.alias("single"), pair.alias("pair"), details["status"].alias("status")).collect()
    assert [
        (0, str(2**53 + 1), repr((2**53 + 1, "a")), "ok"),
        (1, None, None, "null_key"),
        (2, str(2**53), None, "ok"),
        (3, str(2**53), repr((2**53, "b")), "ok"),
    ] == sorted(tuple(row) for row in rows)


def test_a_missing_struct_is_null_and_a_default_takes_its_place(spark: SparkSession, table: Table) -> None:
    source = table({0: {"a": None}, 1: {"a": 1}, 2: None})
    frame = spark.range(0, 4, 1, 1).select(
        "id",
        enrich(source, "id", returns="a int").isNull().alias("is_null"),
        enrich(source, "id", returns="a int", on_missing=default({"a": 7}))["a"].alias("a"),
    )
    assert [(0, False, None), (1, False, 1), (2, True, None), (3, True, 7)] == [tuple(r) for r in frame.collect()]


def test_a_key_is_asked_once_and_its_answer_is_cached(spark: SparkSession, http_service: HttpService) -> None:
    key = F.concat(F.lit("u"), (F.col("id") % 10).cast("string"))
    column = enrich(new_config(http_service), key, cache=Cache(ttl=60), capacity=2, timeout=30, window=100)
    frame = spark.range(0, 400, 1, 1).select("id", column)
    assert {n: value_of(f"u{n % 10}") for n in range(400)} == {row.id: row.http.asDict() for row in frame.collect()}
    assert {f"u{n}": 1 for n in range(10)} == http_service.stats().per_key


@both
def test_each_row_tells_its_outcome(spark: SparkSession, http_service: HttpService, carrier: str) -> None:
    http_service.script(
        Fault(match="/slow", hang=True), Fault(match="/bad", status=400), Fault(match="/flaky", status=500, times=1)
    )
    keys = ("good", "missing", "slow", "bad", "flaky", "..", None)
    column = enrich(
        new_config(http_service),
        "k",
        details=True,
        timeout=2.0,
        retry=Retry(attempts=3, wait=0.001),
        max_fallback_ratio=1.0,
        carrier=carrier,
    )
    frame = spark.createDataFrame([(key,) for key in keys], "k string").coalesce(1).select("k", column.alias("o"))
    found = {row.k: row.o for row in frame.collect()}
    assert {
        "good": ("ok", 1, "call"),
        "missing": ("missing", 1, "call"),
        "slow": ("timeout", 1, "call"),
        "bad": ("error", 1, "call"),
        "flaky": ("ok", 2, "call"),
        "..": ("rejected", 1, "call"),
        None: ("null_key", 0, None),
    } == {key: (outcome.status, outcome.attempts, outcome.origin) for key, outcome in found.items()}
    assert "TimeoutError: no answer within 2 s" == found["slow"].error
    assert {key: value_of(key) for key in ("good", "flaky")} == {
        key: outcome.value.asDict() for key, outcome in found.items() if outcome.value is not None
    }


def test_a_failing_task_says_which_lookup_failed_and_shows_no_key(people: DataFrame, http_service: HttpService) -> None:
    http_service.script(Fault(match="/u7", status=400), Fault(match="/u8", hang=True))
    config = new_config(http_service)
    for key, option, cause in (
        ("u7", "on_error", "PermanentError: .*400"),
        ("u8", "on_timeout", "TimeoutError: no answer within 0.5 s"),
    ):
        frame = people.where(F.col("user_id") == key).select(enrich(config, "user_id", timeout=0.5))
        message = failure(frame)
        assert re.search(
            rf"LookupFailedError: http: the lookup of key #[0-9a-f]{{10}} failed after 1 of 3 attempts and [\d.e-]+ s: "
            rf"{cause}.* The task fails because {option} is 'fail'; {option}='null' or {option}=default\(value\) keeps "
            r"the row\.",
            message,
        ), message
        assert f"/{key}" not in message


def test_a_mistake_is_found_on_the_driver(spark: SparkSession, table: Table) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'timeout'\?"):
        enrich(table({}), "id", returns="int", timout=1.0)
    with pytest.raises(ConfigError, match=r"^returns is 'nam strin', which is no Spark type; it must be DDL, for "):
        enrich(table({}), "id", returns="nam strin")


def test_a_worker_that_is_reused_opens_a_source_once(spark: SparkSession) -> None:
    source = ProcessConfig(nonce=str(uuid.uuid4()))
    opened: dict[int, set[str]] = {}
    for _ in range(8):
        for row in spark.range(0, 2, 1, 1).select(enrich(source, "id")).collect():
            opened.setdefault(row.process.process, set()).add(row.process.opened)
    assert [1] * len(opened) == [len(each) for each in opened.values()]
    assert len(opened) < 8, "each task had a process of its own"


def test_an_enrichment_of_an_enrichment(people: DataFrame, table: Table) -> None:
    users = table({f"u{n}": {"city": n % 3, "name": f"name {n}"} for n in range(15)})
    user = enrich(users, "user_id", returns="city int, name string")
    city_of = table({0: "Oslo", 1: "Bergen"})
    rows = people.select("id", enrich(city_of, user["city"], returns="string"), user["name"].alias("name")).collect()
    assert {n: ({0: "Oslo", 1: "Bergen"}.get(n % 3), f"name {n}") if n < 15 else (None, None) for n in range(20)} == {
        row.id: (row.table, row.name) for row in rows
    }


def test_a_filter_on_the_value_asks_once_and_a_join_condition_can_be_deterministic(
    people: DataFrame, http_service: HttpService, table: Table
) -> None:
    frame = people.withColumn("http", enrich(new_config(http_service), "user_id")).where("http.score >= 500")
    assert {n for n in range(20) if value_of(f"u{n}")["score"] >= 500} == {row.id for row in frame.collect()}
    assert {f"u{n}": 1 for n in range(20)} == http_service.stats().per_key
    number = enrich(table({f"u{n}": n for n in range(20)}), "user_id", returns="bigint", deterministic=True)
    assert 20 == people.join(people.select(F.col("id").alias("n")), number == F.col("n")).count()


def test_a_stream_is_enriched_and_goes_on_after_a_restart(
    spark: SparkSession, http_service: HttpService, tmp_path: Path
) -> None:
    config = new_config(http_service)
    for start, end in ((0, 30), (30, 50)):
        keys = F.concat(F.lit("u"), F.col("id").cast("string")).alias("k")
        spark.range(start, end, 1, 1).select("id", keys).write.mode("append").parquet(str(tmp_path / "in"))
        query = (
            spark.readStream.schema("id bigint, k string")
            .parquet(str(tmp_path / "in"))
            .withColumn("profile", enrich(config, "k"))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(100)
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        assert end == len(rows)
        assert {n: value_of(f"u{n}") for n in range(end)} == {row.id: row.profile.asDict() for row in rows}
    assert {f"u{n}": 1 for n in range(50)} == http_service.stats().per_key


def test_rows_of_a_frame_leave_as_they_are_done_and_misses_are_dropped(
    spark: SparkSession, http_service: HttpService
) -> None:
    http_service.script(Fault(match="/u0", delay=1.0))
    keys = [(n, None if n == 3 else f"{'missing-' if n % 10 == 9 else 'u'}{n}") for n in range(60)]
    people = spark.createDataFrame(keys, "id bigint, user_id string").coalesce(1)
    config = new_config(http_service)
    timed = people.withColumn("at", F.timestamp_seconds("id"))
    left = enrich_frame(timed, config, on="user_id", into="profile").withColumn("at", F.col("at").cast("bigint"))
    assert [(n, key, n, None if key is None or key.startswith("missing") else value_of(key)) for n, key in keys] == [
        (row.id, row.user_id, row.at, plain(row.profile)) for row in left.collect()
    ]
    inner = enrich_frame(people, config, on="user_id", how="inner", ordered=False, window=40)
    assert ["id", "user_id", "key", "name", "score"] == inner.columns
    assert [(n, key, *value_of(key).values()) for n, key in keys if key is not None and key.startswith("u")] == sorted(
        tuple(row) for row in inner.collect()
    )


def test_a_function_for_sql(spark: SparkSession, people: DataFrame, table: Table) -> None:
    people.createOrReplaceTempView("people")
    source, name = table({f"u{n}": n * n for n in range(10)}), f"square_{uuid.uuid4().hex}"
    if not hasattr(F, "arrow_udf"):
        with pytest.raises(ConfigError, match=r"register_function\(\) needs 4\.1 or newer, the first with arrow_udf\."):
            register_function(spark, name, source, returns="int")
        return
    register_function(spark, name, source, returns="int")
    rows = spark.sql(f"SELECT id, {name}(user_id) AS square FROM people WHERE id < 12").collect()
    assert {n: n * n if n < 10 else None for n in range(12)} == {row.id: row.square for row in rows}


def test_a_redis_hash_by_a_composite_key(people: DataFrame, redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.hset("user:u7:7", mapping={"name": "Ann", "tier": "3"})
    config = RedisConfig(url=redis_url, kind="hash", key="user:{0}:{1}", returns="name string, tier int")
    frame = people.withColumn("redis", enrich(config, "user_id", "id")).where("redis is not null")
    assert [(7, "Ann", 3)] == [(row.id, *row.redis) for row in frame.collect()]


def test_postgres_tells_its_types_itself(
    spark: SparkSession, postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    postgres_server.execute(
        "CREATE TABLE t (a int, b text, n numeric(10,2), at timestamptz, tags text[], PRIMARY KEY (a, b));"
        "INSERT INTO t VALUES (1, 'it''s', 1.50, '2026-07-01 00:00:00+00', '{x,NULL}'), (2, '', NULL, NULL, NULL)",
        postgres_dsn.rpartition("/")[2],
    )
    keys = spark.createDataFrame([(1, "it's"), (2, ""), (2, "x"), (None, "")], "a int, b string").coalesce(1)
    frame = keys.select(enrich(PostgresConfig(dsn=postgres_dsn, table="t", key=("a", "b")), "a", "b"))
    assert "struct<n:decimal(10,2),at:timestamp,tags:array<string>>" == frame.schema["postgres"].dataType.simpleString()
    seconds = F.col("postgres.at").cast("bigint").alias("seconds")
    rows = frame.select(F.col("postgres").isNull(), "postgres.n", seconds, "postgres.tags").collect()
    assert [
        (False, Decimal("1.50"), 1782864000, ["x", None]),
        (False, None, None, None),
        (True, None, None, None),
        (True, None, None, None),
    ] == [tuple(row) for row in rows]


@pytest.mark.parametrize("action", ["head", "show"])
def test_five_rows_of_many_ask_for_little(
    spark: SparkSession, http_service: HttpService, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Found out by the frame of PySpark's own worker, which each version has under names of its own.

    Asked up to three times, as Spark may take longer to close the socket on a busy machine than it is given.
    """
    http_service.script(latency=0.02)
    frame = spark.range(100_000).select(F.concat(F.lit("u"), F.col("id").cast("string")).alias("k"))
    for _ in range(3):
        http_service.reset_stats()
        five = frame.withColumn("v", enrich(new_config(http_service), "k"))
        if action == "show":
            five.show(5, truncate=False)
            shown = capsys.readouterr().out
            assert all(f"{{u{n}, name of u{n}, " in shown for n in range(5))
        else:
            assert [(f"u{n}", value_of(f"u{n}")) for n in range(5)] == [(row.k, row.v.asDict()) for row in five.head(5)]
        time.sleep(1.0)
        assert calls_that_follow(http_service, 0.5) == 0
        if http_service.stats().calls <= 300:
            break
    assert 5 <= http_service.stats().calls <= 300, "three rounds of 100 calls"


def test_a_cancelled_job_asks_for_nothing_more(
    spark: SparkSession, http_service: HttpService, request: pytest.FixtureRequest
) -> None:
    http_service.script(latency=0.02)
    frame = spark.range(100_000).select(F.concat(F.lit("u"), F.col("id").cast("string")).alias("k"))
    frame = frame.withColumn("v", enrich(new_config(http_service), "k"))
    cancel(spark, frame.collect, http_service, connect=request.config.getoption("--connect"))
