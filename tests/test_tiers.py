"""Tiers without Spark: what the driver refuses, and what real servers hold after their write-back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from enrichkit_mariadb import MariadbConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from enrichkit_sqlite import SqliteConfig
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from enrichkit import ConfigError, local, tiers
from enrichkit.driver.planner import make_plan
from enrichkit.local import value_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from enrichkit.local import HttpService, PostgresServer
    from enrichkit.sql import SqlConfig

    from .sparkless import Row, Worker

    Near = tuple[SqlConfig, Callable[[str], str], str]
    """The config of a table, the function that runs statements on its server, and SQL of a time that is over."""

LAST = HttpConfig(url="http://localhost:1/{}")


def refusal(tier: Any, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make_plan(tiers(tier, LAST, write_back=True, **settings), 1, StringType(), {})
    return str(caught.value)


def test_a_source_that_writes_nothing_is_refused_as_a_tier_to_write_to() -> None:
    assert refusal(LAST) == (
        "tiers(write_back=True) was given, and the connector of 'http' cannot write: it has no store_many. Name "
        "another tier, for example a Redis, or leave write_back out."
    )
    assert refusal(RedisConfig(kind="hash")) == (
        "tiers(write_back=True) was given, and the source 'redis' cannot be written to: RedisConfig.kind is 'hash'; "
        "only 'string' and 'json' can be written. Use one of them to store values. Or name another tier, or leave "
        "write_back out."
    )


def test_a_table_is_written_to_only_if_its_config_says_so() -> None:
    table = PostgresConfig(table="users")
    assert refusal(table) == (
        "tiers(write_back=True) was given, and the source 'postgres' cannot be written to: PostgresConfig.writable is "
        "False; set it to True if the table may change. Or name another tier, or leave write_back out."
    )
    assert refusal(replace(table, table=None, query="SELECT id, name FROM u WHERE id = ANY($1)", writable=True)) == (
        "tiers(write_back=True) was given, and the source 'postgres' cannot be written to: PostgresConfig.query takes "
        "no values; name a table. Or name another tier, or leave write_back out."
    )
    assert refusal(replace(table, writable=True), ttl=60) == (
        "tiers(ttl=60) was given, and the source 'postgres' does not forget by itself. Leave ttl out, and remove old "
        "rows with a job of your own; or name another tier: a Redis, or a table whose config names a column in expires."
    )
    source = tiers(replace(table, writable=True, expires="until"), LAST, write_back=True, ttl=60)
    make_plan(source, 1, StringType(), {})


# On real servers -----------------------------------------------------------------------------------------------------

TYPE = StructType([StructField("name", StringType()), StructField("score", IntegerType())])


@pytest.fixture
def postgres(postgres_server: PostgresServer, postgres_dsn: str) -> Near:
    def sql(text: str) -> str:
        return postgres_server.execute(text, postgres_dsn.rpartition("/")[2])

    sql("CREATE TABLE kept (k text PRIMARY KEY, name text, score int, until timestamptz)")
    return (
        PostgresConfig(dsn=postgres_dsn, table="kept", key="k", expires="until", writable=True),
        sql,
        "now() - interval '1 s'",
    )


@pytest.fixture
def sqlite(tmp_path: Path) -> Near:
    path = str(tmp_path / "near.db")

    def sql(text: str) -> str:
        with closing(sqlite3.connect(path)) as db, db:
            return "\n".join("|".join(map(str, row)) for row in db.execute(text))

    sql("CREATE TABLE kept (k TEXT PRIMARY KEY, name TEXT, score INTEGER, until REAL)")
    return SqliteConfig(path=path, table="kept", key="k", expires="until", writable=True), sql, "unixepoch() - 1"


@pytest.fixture
def mariadb() -> Iterator[Near]:
    with local.mariadb() as server:
        url = server.create_database()

        def sql(text: str) -> str:
            return server.execute(text, database=url.rpartition("/")[2]).replace("\t", "|")

        sql(
            "CREATE TABLE kept (k varchar(50) COLLATE utf8mb4_nopad_bin PRIMARY KEY, name text, score int, "
            "`until` timestamp(6) NULL)"
        )
        config = MariadbConfig(url=url, table="kept", key="k", expires="until", writable=True)
        yield config, sql, "now() - INTERVAL 1 SECOND"


@pytest.fixture(params=["postgres", "sqlite", pytest.param("mariadb", marks=[pytest.mark.apt])])
def near(request: pytest.FixtureRequest) -> Iterator[Near]:
    """An empty table with the columns k, name, score and until, which a tier may write to."""
    return request.getfixturevalue(request.param)


def right(key: str) -> Row | None:
    found = value_of(key)
    return None if "missing" in key else {"name": found["name"], "score": found["score"]}


@pytest.mark.service
def test_what_the_service_knows_is_in_the_table_and_asked_again_after_its_time(
    worker: Worker, http_service: HttpService, near: Near
) -> None:
    config, sql, over = near
    last = HttpConfig(url=f"{http_service.url}/{{}}", missing=(404,))
    keys = [f"u{n}" for n in range(900)] + [f"missing{n}" for n in range(100)]

    def look_up(**settings: Any) -> tuple[set[str], int]:
        """Return the origins of the rows with a value, and how often the service was asked."""
        before = http_service.stats().calls
        rows = worker.outcomes(tiers(config, last, **settings), TYPE, keys)
        assert [row["value"] for row in rows] == [right(key) for key in keys]
        return {row["origin"] for row in rows if row["value"]}, http_service.stats().calls - before

    near_origin = {f"tier:{config.__class__.__name__.removesuffix('Config').lower()}"}
    assert look_up(write_back=True, ttl=3600) == ({"call"}, 1_000)
    kept = sql("SELECT k, name, score, until IS NULL FROM kept ORDER BY k").splitlines()
    rows = [(key, value) for key in sorted(keys) if (value := right(key)) is not None]
    assert [line.split("|")[:3] for line in kept] == [[key, row["name"], str(row["score"])] for key, row in rows]
    assert {line.split("|")[3] for line in kept} <= {"f", "0"}
    assert look_up() == (near_origin, 100), "a miss is not written"
    sql(f"UPDATE kept SET until = {over}")
    assert look_up() == ({"call"}, 1_000), "the time of all rows is over"
    assert look_up(write_back=True) == ({"call"}, 1_000)
    assert sql("SELECT count(*) FROM kept WHERE until IS NULL") == "900", "for ever, without a ttl"
    assert look_up() == (near_origin, 100)


@pytest.mark.service
def test_a_table_that_cannot_be_written_to_fails_no_row_and_is_told_once(
    worker: Worker, http_service: HttpService, near: Near, caplog: pytest.LogCaptureFixture
) -> None:
    config, sql, _ = near
    sql("CREATE TABLE loose AS SELECT * FROM kept")  # it has no unique index
    last = HttpConfig(url=f"{http_service.url}/{{}}", missing=(404,))
    keys = [f"u{n}" for n in range(900)]
    source = tiers(replace(config, table="loose"), last, write_back=True)
    rows = worker.outcomes(source, TYPE, keys)
    assert [row["value"] for row in rows] == [right(key) for key in keys]
    (message,) = [each.message for each in caplog.records if "was not written to" in each.message]
    assert "a tier was not written to, which concerns no row: FatalError: " in message
    assert " has no unique index over exactly the columns of " in message
    assert " Make one: CREATE UNIQUE INDEX " in message
    assert sql("SELECT count(*) FROM loose") == "0"
