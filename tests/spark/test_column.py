"""The column form: what the column is called, what its keys may be, and how it combines with others."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql import types as t

from enrichkit import enrich, register
from enrichkit.local import value_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import HttpService, PostgresServer

    Table = Callable[[dict[Any, Any]], Any]

pytestmark = pytest.mark.spark


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:
    return spark.range(0, 20, 1, 2).select("id", F.concat(F.lit("u"), F.col("id").cast("string")).alias("user_id"))


# --- names


@pytest.mark.slow
def test_the_column_is_named_after_its_source(events: DataFrame, table: Table, fresh_registry: None) -> None:
    register("user-names", table({"u1": "Ann"}))
    frame = events.select(
        "*", enrich(table({}), "id", returns="int"), enrich("user-names", "user_id", returns="string")
    )
    assert ["id", "user_id", "table", "user-names"] == frame.columns
    assert "Ann" == frame.where("id = 1").first()["user-names"]


def test_an_alias_replaces_the_name(events: DataFrame, table: Table) -> None:
    frame = events.select(enrich(table({}), "id", returns="int").alias("n")).withColumn("m", F.col("n"))
    assert ["n", "m"] == frame.columns


def test_an_existing_column_is_replaced_by_with_column(events: DataFrame, table: Table) -> None:
    frame = events.withColumn("user_id", enrich(table({"u1": "Ann"}), "user_id", returns="string"))
    assert ["Ann"] == [row.user_id for row in frame.where("user_id is not null").collect()]


# --- keys


@pytest.mark.slow
def test_keys_are_names_columns_or_expressions(spark: SparkSession, table: Table) -> None:
    frame = spark.createDataFrame([("a", "x y")], "k string, `odd name.` string")
    source = table({"a": 1, "A": 3, ("a", "x y"): 4})
    keys = [("k",), (F.upper(frame.k),), ("k", F.col("`odd name.`"))]
    row = frame.select(*(enrich(source, *key, returns="int").alias(f"c{i}") for i, key in enumerate(keys))).first()
    assert row is not None
    assert [1, 3, 4] == list(row)


@pytest.mark.slow
def test_a_field_of_a_struct_is_a_key(spark: SparkSession, table: Table) -> None:
    frame = spark.range(3).select(F.struct(F.col("id").alias("n")).alias("s"))
    rows = frame.select("s.n", enrich(table({1: "one"}), "s.n", returns="string")).collect()
    assert {0: None, 1: "one", 2: None} == {row.n: row.table for row in rows}


# --- several enrichments


@pytest.mark.slow
def test_two_enrichments_in_one_select(
    events: DataFrame, redis_url: str, http_service: HttpService, carrier: str
) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.mset({f"u{n}": f"tier {n}" for n in range(0, 20, 2)})
    rows = events.select(
        "id",
        enrich(RedisConfig(url=redis_url), "user_id", carrier=carrier),
        enrich(HttpConfig(url=f"{http_service.url}/{{}}", returns="name string"), "user_id", carrier=carrier),
    ).collect()
    assert {n: (f"tier {n}" if n % 2 == 0 else None, f"name of u{n}") for n in range(20)} == {
        row.id: (row.redis, row.http.name) for row in rows
    }


def test_an_enrichment_of_an_enrichment(events: DataFrame, table: Table, carrier: str) -> None:
    city_of = table({f"u{n}": f"city {n % 3}" for n in range(15)})
    country_of = table({"city 0": "NO", "city 1": "SE"})
    inner = enrich(city_of, "user_id", returns="string", carrier=carrier)
    nested = events.select("id", enrich(country_of, inner, returns="string", carrier=carrier))
    steps = events.withColumn("city", inner).select("id", enrich(country_of, "city", returns="string", carrier=carrier))
    expected = {n: {0: "NO", 1: "SE"}.get(n % 3) if n < 15 else None for n in range(20)}
    for frame in (nested, steps):
        assert expected == {row.id: row.table for row in frame.collect()}


def test_a_field_of_one_enrichment_is_the_key_of_another_on_the_other_carrier(events: DataFrame, table: Table) -> None:
    users = table({f"u{n}": {"city": n % 3, "name": f"name {n}"} for n in range(20)})
    user = enrich(users, "user_id", returns="city int, name string", carrier="pandas")
    city = enrich(table({0: "Oslo", 1: "Bergen"}), user["city"], returns="string", carrier="arrow")
    rows = events.select("id", city).collect()
    assert {n: {0: "Oslo", 1: "Bergen"}.get(n % 3) for n in range(20)} == {row.id: row.table for row in rows}


# --- where the config and the type come from


def test_a_source_by_name_with_its_config_from_a_file(
    events: DataFrame,
    http_service: HttpService,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh_registry: None,
) -> None:
    path = tmp_path / "enrichkit.toml"
    path.write_text(
        f"[sources.profiles]\ntype = 'http'\nurl = '{http_service.url}/{{}}'\nreturns = 'score int, name string'\n"
    )
    monkeypatch.setenv("ENRICHKIT_CONFIG", str(path))
    rows = events.select("user_id", enrich("profiles", "user_id")).collect()
    assert {key: (value_of(key)["score"], value_of(key)["name"]) for key in (f"u{n}" for n in range(20))} == {
        row.user_id: tuple(row.profiles) for row in rows
    }


def test_a_source_by_name_with_its_config_from_the_environment(
    events: DataFrame, redis_url: str, monkeypatch: pytest.MonkeyPatch, fresh_registry: None
) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.hset("user:u7", mapping={"name": "Ann", "tier": "3"})
    monkeypatch.setenv("ENRICHKIT_REDIS_URL", redis_url)
    monkeypatch.setenv("ENRICHKIT_REDIS_KIND", "hash")
    monkeypatch.setenv("ENRICHKIT_REDIS_KEY", "user:{}")
    frame = events.select("id", enrich("redis", "user_id", returns="name string, tier int"))
    assert [(7, "Ann", 3)] == [(row.id, *row.redis) for row in frame.where("redis is not null").collect()]


@pytest.mark.parametrize(
    "returns",
    [
        "score int, name string",
        t.StructType([t.StructField("score", t.IntegerType()), t.StructField("name", t.StringType())]),
    ],
    ids=["ddl", "type"],
)
def test_returns_replaces_the_type_that_the_config_names(
    events: DataFrame, http_service: HttpService, returns: Any
) -> None:
    """Of itself an HttpConfig gives the text of the answer."""
    config = HttpConfig(url=f"{http_service.url}/{uuid.uuid4().int}/{{}}")
    row = events.where("id = 3").select(enrich(config, "user_id"), enrich(config, "user_id", returns=returns)).first()
    assert row is not None
    value = value_of("u3")
    assert f'{{"key": "u3", "name": "name of u3", "score": {value["score"]}}}' == row[0]
    assert (value["score"], value["name"]) == tuple(row[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_postgres_tells_its_types_itself(
    spark: SparkSession,
    postgres_server: PostgresServer,
    postgres_dsn: str,
    carrier: str,
    kind: str,
    conf: Callable[[str, str], None],
) -> None:
    """An instant stays one where Spark is told that `timestamp` means local times."""
    conf("spark.sql.timestampType", kind)
    postgres_server.execute(
        "CREATE TABLE t (a int, b text, n numeric(10,2), at timestamptz, tags text[], PRIMARY KEY (a, b));"
        "INSERT INTO t VALUES (1, 'it''s', 1.50, '2026-07-01 00:00:00+00', '{x,NULL}'), (2, '', NULL, NULL, NULL)",
        postgres_dsn.rpartition("/")[2],
    )
    keys = spark.createDataFrame([(1, "it's"), (2, ""), (2, "x"), (None, "")], "a int, b string").coalesce(1)
    frame = keys.select(enrich(PostgresConfig(dsn=postgres_dsn, table="t", key=("a", "b")), "a", "b", carrier=carrier))
    assert "struct<n:decimal(10,2),at:timestamp,tags:array<string>>" == frame.schema["postgres"].dataType.simpleString()
    rows = frame.select(F.col("postgres").isNull(), "postgres.n", F.unix_seconds("postgres.at"), "postgres.tags")
    found = [tuple(row) for row in rows.collect()]
    assert [str(found[0][1]), found[0][2], found[0][3]] == ["1.50", 1782864000, ["x", None]]
    assert [(False, None, None, None), (True, None, None, None), (True, None, None, None)] == found[1:]


# --- determinism


@pytest.mark.slow
def test_a_column_is_nondeterministic_unless_that_is_lifted(events: DataFrame, table: Table) -> None:
    source = table({f"u{n}": n for n in range(20)})
    other = events.select(F.col("id").alias("n"))

    def joined(**options: Any) -> DataFrame:
        return events.join(other, enrich(source, "user_id", returns="bigint", **options) == F.col("n"))

    with pytest.raises(AnalysisException, match="NON_DETERMINISTIC"):
        joined().collect()
    assert 20 == joined(deterministic=True).count()


def test_results_can_be_grouped_and_sorted(events: DataFrame, table: Table, carrier: str) -> None:
    tier = enrich(table({f"u{n}": n % 4 for n in range(20)}), "user_id", returns="int", carrier=carrier)
    frame = events.withColumn("tier", tier)
    assert [(n, 5) for n in range(4)] == [tuple(row) for row in frame.groupBy("tier").count().orderBy("tier").collect()]
    assert sorted(n % 4 for n in range(20)) == [row.tier for row in frame.orderBy("tier").collect()]


def test_a_limit_takes_the_first_rows(events: DataFrame, table: Table, carrier: str) -> None:
    tier = enrich(table({f"u{n}": n for n in range(20)}), "user_id", returns="int", carrier=carrier)
    assert 5 == len(events.withColumn("tier", tier).where("tier >= 0").limit(5).collect())
