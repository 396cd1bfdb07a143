"""What `describe` says of sources whose type is DDL or has to be asked for; no job runs."""

from __future__ import annotations

import contextlib
import sqlite3
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_sqlite import SqliteConfig

from enrichkit import ConfigError, describe, enrich, register, tiers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from enrichkit.local import PostgresServer

pytestmark = pytest.mark.spark


def test_a_type_that_the_source_was_asked_for(
    spark: SparkSession, postgres_server: PostgresServer, postgres_dsn: str, fresh_registry: None
) -> None:
    postgres_server.execute(
        "CREATE TABLE places (country text, city int, name text, area numeric(10,2), PRIMARY KEY (country, city))",
        postgres_dsn.rpartition("/")[2],
    )
    register("places", PostgresConfig(dsn=postgres_dsn, table="places", key=("country", "city"), password="hunter2"))
    expected = """
        The source 'places'
          connector  postgres
          key        2 columns
          calls      4,000 keys per call (at most 10,000)
                     4 calls in flight per worker process
                     97 connections from all clients
          config     PostgresConfig(returns=None, table='places', key=('country',
                     'city'), columns=(), max_bytes=67108864, expires=None,
                     writable=False, query=None, pgbouncer=False, settings=(),
                     tls_ca=None, tls_cert=None, tls_key=None, insecure=False)
          value      a struct, from the source, which was asked:
                       name  string
                       area  decimal(10, 2)
    """
    assert textwrap.dedent(expected).strip() == str(describe("places"))


def test_a_type_that_the_config_declares(spark: SparkSession) -> None:
    config = HttpConfig(url="https://api.example/{0}?token=hunter2", returns="name string, tags array<string>")
    expected = """
        The source 'http'
          connector  http
          key        1 column
                     of the Python types str, int, Decimal, date, datetime
          calls      1 key per call (at most 1)
                     100 calls in flight per worker process
          config     HttpConfig(returns='name string, tags array<string>',
                     url='https://api.example/{0}?token=***')
          value      a struct, from HttpConfig.returns:
                       name  string
                       tags  array<string>
    """
    assert textwrap.dedent(expected).strip() == repr(describe(config))
    assert ("  tier       'near' is asked first, 100 calls in flight per worker process\n") in str(
        describe(tiers(HttpConfig(url="https://near.example/{}"), config))
    ).replace("'http' is", "'near' is")
    assert "from returns=" in str(describe(config, returns="bigint")).splitlines()[-1]


def test_a_type_that_nobody_knows_must_be_declared(spark: SparkSession, table: Callable[[dict[Any, Any]], Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(table({}))
    assert str(caught.value) == (
        "The type of the values of 'table' is not known: the source cannot tell it. Declare it, for example "
        "enrich('table', ..., returns='string')."
    )


def test_a_source_that_cannot_be_asked_says_why_and_shows_no_secret(spark: SparkSession) -> None:
    with pytest.raises(ConfigError) as caught:
        describe(PostgresConfig(dsn="postgresql://user:hunter2@127.0.0.1:1/shop", table="users"))
    assert str(caught.value) == (
        "The type of the values of 'postgres' could not be asked: PostgreSQL at 127.0.0.1:1 cannot be reached: Connect "
        "call failed ('127.0.0.1', 1). Declare it, for example enrich('postgres', ..., returns='string')."
    )


@pytest.mark.slow
def test_a_type_that_the_table_does_not_have_is_found_before_the_job(
    spark: SparkSession,
    postgres_server: PostgresServer,
    postgres_dsn: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Only where the workers run on this machine: elsewhere the driver leaves the source to them."""
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute(
        "CREATE TABLE folk (id text PRIMARY KEY, name text, born date, score bigint, tags text[])", database
    )
    postgres_server.execute("INSERT INTO folk VALUES ('u1', '7', '2001-02-03', 4, '{a}')", database)
    lite = tmp_path / "folk.db"
    with contextlib.closing(sqlite3.connect(lite)) as connection:
        connection.executescript(
            "CREATE TABLE folk (id TEXT PRIMARY KEY, name TEXT, tags TEXT); INSERT INTO folk VALUES ('u1', '7', '[1]')"
        )
    frame = spark.createDataFrame([("u1",)], "user_id string")
    config = PostgresConfig(dsn=postgres_dsn, table="folk", columns=("name", "born"))
    one = PostgresConfig(dsn=postgres_dsn, table="folk", columns=("name",))
    for source, returns, text in (
        (
            config,
            "name string, born timestamp",
            (
                "The field 'born' of 'postgres' is declared as timestamp, but it is of type date in the source, and "
                "such a value does not fit. Declare date, or leave returns= out."
            ),
        ),
        (
            one,
            "int",
            (
                "The value of 'postgres' is declared as int, but it is of type string in the source, and such a value "
                "does not fit. Declare string, or leave returns= out."
            ),
        ),
        (
            PostgresConfig(dsn=postgres_dsn, table="folk", columns=("name", "tags")),
            "name string, tags array<int>",
            (
                "The field 'tags' of 'postgres' is declared as array<int>, but it is of type array<string> in the "
                "source, and such a value does not fit. Declare array<string>, or leave returns= out."
            ),
        ),
    ):
        if request.config.getoption("--connect"):
            with pytest.raises(Exception, match=r"does not fit the declared type "):
                frame.select(enrich(source, "user_id", returns=returns)).collect()
        else:
            with pytest.raises(ConfigError) as caught:
                enrich(source, "user_id", returns=returns)
            assert str(caught.value) == text
    scores = PostgresConfig(dsn=postgres_dsn, table="folk", columns=("score",))
    assert [(4,)] == frame.select(enrich(scores, "user_id", returns="int")).collect()  # a bigint may be an int
    tags = SqliteConfig(path=str(lite), table="folk", columns=("tags",))
    found = frame.select(enrich(tags, "user_id", returns="array<int>")).collect()
    assert [([1],)] == found  # SQLite has no arrays, so a text may be one, as JSON


def test_a_declared_type_needs_no_source(spark: SparkSession) -> None:
    enrich(PostgresConfig(dsn="postgresql://user@127.0.0.1:1/shop", table="users"), "user_id", returns="name string")
