"""Sources that are loaded as a whole, on real servers: each row's value, and what the server was asked for."""

from __future__ import annotations

import datetime as dt
import sqlite3
import tracemalloc
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_mariadb import MariadbConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from enrichkit_sqlite import SqliteConfig
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from enrichkit import ConfigError, Preload, local
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.engine.preload import Table
from enrichkit.errors import TaskFailedError
from enrichkit.worker import entry

from .test_local import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .sparkless import Worker

TEXT = StringType()
COUNT = 12_345


@pytest.fixture(scope="module")
def server() -> Iterator[local.RedisServer]:
    with local.redis() as running:
        yield running


@pytest.fixture
def client(server: local.RedisServer) -> Iterator[redis.Redis]:
    server.flush()
    with redis.Redis(port=server.port, protocol=2) as client:
        yield client


def values(rows: list[dict[str, Any]]) -> list[Any]:
    return [row["value"] for row in rows]


def commands(client: redis.Redis) -> dict[str, int]:
    """Return how often the server has executed each command."""
    stats: dict[str, Any] = client.info("commandstats")  # type: ignore[assignment]  # not of an asynchronous client
    return {name.removeprefix("cmdstat_"): each["calls"] for name, each in stats.items()}


# Redis


@pytest.mark.service
def test_a_table_of_redis_answers_without_a_lookup(worker: Worker, client: redis.Redis, server: Any) -> None:
    client.mset({f"user[*]:{n}": f"v{n}" for n in range(COUNT)})
    client.mset({"user:1": "another", "user[*]:01": "no number", "user[*]:x": "text"})
    config = RedisConfig(url=server.url, key="user[*]:{}")
    rows = worker.outcomes(config, TEXT, list(range(-5, COUNT + 5)), preload=True, batch_size=1000)
    assert values(rows) == [f"v{n}" if 0 <= n < COUNT else None for n in range(-5, COUNT + 5)]
    assert {(row["status"], row["origin"]) for row in rows} == {("ok", "preload"), ("missing", "preload")}
    before = commands(client)
    assert values(worker.outcomes(config, TEXT, [7, 8, -1], preload=True, batch_size=1000)) == ["v7", "v8", None]
    after = commands(client)
    assert {name for name in after if after[name] != before.get(name, 0)} <= {"info"}
    # For texts the names are other keys: a table of its own.
    assert values(worker.outcomes(config, TEXT, ["x", "01", "1", "y"], preload=True)) == [
        "text",
        "no number",
        "v1",
        None,
    ]


@pytest.mark.service
def test_a_table_of_hashes_with_keys_of_two_columns(worker: Worker, client: redis.Redis, server: Any) -> None:
    names = ["a", "a:b", "%", "{t}", "\N{SNOWMAN}", ""]
    quoted = {
        name: name.replace("%", "%25").replace(":", "%3A").replace("{", "%7B").replace("}", "%7D") for name in names
    }
    for name in names:
        for n in range(3):
            client.hset(f"u:{quoted[name]}:{n}", mapping={"name": f"{name} {n}", "tier": str(n)})
    client.set("u:text:1", "no hash")
    config = RedisConfig(url=server.url, key="u:{}:{}", kind="hash", fields=("name", "tier"))
    user = StructType([StructField("name", StringType()), StructField("tier", IntegerType())])
    keys = [(name, n) for name in names for n in range(4)]
    rows = worker.outcomes(
        config, user, [name for name, _ in keys], [n for _, n in keys], preload=True, on_missing="null"
    )
    assert values(rows) == [{"name": f"{name} {n}", "tier": n} if n < 3 else None for name, n in keys]
    assert {row["origin"] for row in rows} == {"preload"}
    (wrong,) = worker.outcomes(config, user, ["text"], [1], preload=True, on_error="null")
    assert (wrong["status"], wrong["origin"]) == ("error", "call"), "the source says itself what is wrong"


@pytest.mark.slow
@pytest.mark.service
def test_a_refresh_adds_changes_and_removes_and_a_server_that_stops_costs_no_row(worker: Worker) -> None:
    with local.redis() as server, redis.Redis(port=server.port) as client:
        client.mset({"stays": "1", "changes": "2", "goes": "3"})
        config, keys = RedisConfig(url=server.url), ["stays", "changes", "goes", "comes"]
        preload = Preload(refresh=0.2)

        def look() -> list[Any]:
            return values(worker.outcomes(config, TEXT, keys, preload=preload, stall_timeout=1.0))

        assert look() == ["1", "2", "3", None]
        client.mset({"changes": "20", "comes": "4"})
        client.delete("goes")
        wait_until(lambda: look() == ["1", "20", None, "4"])
        (table,) = worker.thread.tables.values()
        client.shutdown(nosave=True)
        wait_until(lambda: table.failures > 0)
        loads = table.loads
        rows = worker.outcomes(config, TEXT, keys * 1000, preload=preload, stall_timeout=1.0)
        assert values(rows) == ["1", "20", None, "4"] * 1000
        assert {row["origin"] for row in rows} == {"preload"}
        assert table.loads == loads


# SQLite


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


def fill(path: str, script: str, insert: str = "", rows: Any = ()) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(script)
        if insert:
            db.executemany(insert, rows)


def test_a_table_of_sqlite_answers_without_a_lookup(worker: Worker, path: str) -> None:
    fill(
        path,
        "CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT)",
        "INSERT INTO users VALUES (?, ?)",
        [(n, f"v{n}") for n in range(COUNT)],
    )
    config = SqliteConfig(path=path, table="users")
    rows = worker.outcomes(config, TEXT, list(range(-5, COUNT + 5)), preload=True)
    assert values(rows) == [f"v{n}" if 0 <= n < COUNT else None for n in range(-5, COUNT + 5)]
    assert {row["origin"] for row in rows} == {"preload"}
    fill(path, "DROP TABLE users")
    assert values(worker.outcomes(config, TEXT, [7, -1], preload=True)) == ["v7", None]


AFFINITIES = ("INTEGER", "TEXT", "TEXT COLLATE NOCASE", "VARCHAR(9) COLLATE RTRIM", "BLOB", "REAL", "NUMERIC", "")
STORED = (
    0,
    1,
    -1,
    2**53 + 1,
    2**63 - 1,
    1.5,
    7.0,
    -(2.0**63),
    1e300,
    "1",
    "a",
    "A",
    "a ",
    "",
    "1.0",
    b"a",
    b"",
    b"1",
    None,
)
ASKED = (
    pa.array([0, 1, -1, 2, 7, 2**53 + 1, 2**53, 2**63 - 1, -(2**63)]),
    pa.array([0.0, 1.0, 1.5, 2.0**53, 7.0, -(2.0**63), 1e300, float("inf")]),
    pa.array(["1", "a", "A", "a ", "", "1.0", "b", "01"]),
    pa.array([b"a", b"", b"1", b"b"]),
    pa.array([True, False]),
)


@pytest.mark.parametrize("affinity", AFFINITIES)
@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: str(asked.type))
def test_each_key_finds_what_a_lookup_finds(worker: Worker, path: str, affinity: str, asked: Any) -> None:
    """Whatever SQLite stores in a column of each affinity and collation, and takes for equal to a key."""
    fill(
        path,
        f"CREATE TABLE t (k {affinity}, v TEXT); CREATE INDEX i ON t (k)",
        "INSERT INTO t VALUES (?, ?)",
        [(key, repr(key)) for key in STORED],
    )
    config = SqliteConfig(path=path, table="t", key="k")
    told = [
        [(row["value"], row["status"], row["error"]) for row in worker.outcomes(config, TEXT, asked, **options)]
        for options in ({"on_error": "null"}, {"on_error": "null", "preload": True})
    ]
    assert told[0] == told[1]


def test_matches_of_sqlite_that_span_pages(worker: Worker, path: str) -> None:
    fill(
        path,
        "CREATE TABLE t (a TEXT, b INTEGER, v INTEGER); CREATE INDEX i ON t (a, b)",
        "INSERT INTO t VALUES (?, ?, ?)",
        [(f"k{n % 7}", n % 3, n) for n in range(1000)] + [(None, 1, -1), ("k1", None, -1)],
    )
    config = SqliteConfig(path=path, table="t", key=("a", "b"), columns=("v",))
    a = [f"k{n % 7}" for n in range(21)] + ["x"]
    b = [n % 3 for n in range(21)] + [1]
    alone = worker.outcomes(config, LongType(), a, b, on_error="null", preload=True, batch_size=5)
    assert {row["status"] for row in alone} == {"error", "missing"}, "a key has several rows"
    config = SqliteConfig(path=path, table="t", key=("a", "b"), columns=("v",), returns="bigint")
    plan, spark_type = make_plan(
        config, 2, LongType(), {"preload": True, "batch_size": 5}, many=True, shape=lambda _, each: ArrayType(each)
    )
    assert spark_type == ArrayType(LongType())
    columns = (pa.array(a), pa.array(b))
    found = [row for array in entry.arrow_batches(pack(plan), [columns]) for row in array.to_pylist()]
    for first, second, matches in zip(a, b, found, strict=True):
        expected = [n for n in range(1000) if f"k{n % 7}" == first and n % 3 == second]
        assert (sorted(matches) if matches else []) == expected
    assert worker.run.stats.calls == 0


def test_a_misspelt_field_fails_the_task(worker: Worker, client: redis.Redis, server: Any) -> None:
    client.mset({f"j:{n}": '{"name": "x"}' for n in range(30)})
    returns = StructType([StructField("nmae", StringType())])
    config = RedisConfig(url=server.url, key="j:{}", kind="json")
    with pytest.raises(ConfigError, match="nmae"):
        worker.outcomes(config, returns, [1, 2], preload=True)


# What is refused


def test_a_query_cannot_be_loaded(worker: Worker, path: str) -> None:
    config = SqliteConfig(path=path, query="SELECT 1 WHERE ?1", returns="string")
    with pytest.raises(ConfigError) as caught:
        worker.outcomes(config, TEXT, [1], preload=True)
    assert str(caught.value) == (
        "preload is True, but 'sqlite' cannot be loaded. SqliteConfig.query tells no keys; name a table or a view. "
        "Leave preload out; the keys of the rows are then looked up as they come."
    )


def test_a_connector_without_scan_cannot_be_loaded(worker: Worker) -> None:
    with pytest.raises(ConfigError) as caught:
        worker.outcomes(HttpConfig(url="http://localhost/{}"), TEXT, ["a"], preload=Preload(refresh=60))
    assert str(caught.value) == (
        "preload is Preload(refresh=60, max_bytes=268435456, on_refresh_error='serve'), but 'http' cannot be loaded. "
        "The connector 'http' has no scan, which lists the keys. Leave preload out; the keys of the rows are then "
        "looked up as they come."
    )


def test_a_table_that_is_too_large_fails_the_task(worker: Worker, path: str) -> None:
    fill(
        path,
        "CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)",
        "INSERT INTO t VALUES (?, ?)",
        [(n, "x" * 1000) for n in range(1000)],
    )
    with pytest.raises(TaskFailedError, match=r"Preload.max_bytes is 100,000"):
        worker.outcomes(SqliteConfig(path=path, table="t", key="k"), TEXT, [1], preload=Preload(max_bytes=100_000))


def test_the_bytes_of_a_table_are_about_those_that_python_takes(worker: Worker, path: str) -> None:
    fill(
        path,
        "CREATE TABLE t (k TEXT PRIMARY KEY, v TEXT)",
        "INSERT INTO t VALUES (?, ?)",
        [(f"key {n:020}", "x" * 100 + str(n)) for n in range(50_000)],
    )
    config = SqliteConfig(path=path, table="t", key="k")
    tracemalloc.start()
    try:
        worker.outcomes(config, TEXT, ["a"], preload=True)
        took, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (table,) = worker.thread.tables.values()
    assert isinstance(table, Table)
    assert 0.8 * took < table.bytes < 1.25 * took


# PostgreSQL


@pytest.fixture(scope="module")
def postgres() -> Iterator[local.PostgresServer]:
    with local.postgres() as running:
        yield running


@pytest.mark.service
def test_a_table_of_postgres_answers_without_a_lookup(worker: Worker, postgres: local.PostgresServer) -> None:
    postgres.execute(
        "DROP TABLE IF EXISTS users; CREATE TABLE users (id int4 PRIMARY KEY, name text); "
        f"INSERT INTO users SELECT n, 'v' || n FROM generate_series(0, {COUNT - 1}) AS n"
    )
    config = PostgresConfig(dsn=postgres.dsn, table="users")
    rows = worker.outcomes(config, TEXT, list(range(-5, COUNT + 5)), preload=True, batch_size=1000)
    assert values(rows) == [f"v{n}" if 0 <= n < COUNT else None for n in range(-5, COUNT + 5)]
    assert {row["origin"] for row in rows} == {"preload"}
    postgres.execute("DROP TABLE users")
    assert values(worker.outcomes(config, TEXT, [7, -1], preload=True, batch_size=1000)) == ["v7", None]


POSTGRES_KEYS: list[tuple[str, str, Any]] = [
    ("int8", "(1), (-2), (9223372036854775807)", pa.array([1, -2, 5, 2**63 - 1])),
    ("numeric", "(1), (1.50), ('NaN'), (1e30)", pa.array([Decimal("1.00"), Decimal("1.50"), Decimal("2.00")])),
    ("numeric", "(1), (2.00), (2.5)", pa.array([1, 2, 3])),
    ("float8", "(0), (1.5), ('NaN'), ('Infinity')", pa.array([0.0, -0.0, 1.5, float("inf"), 2.0])),
    ("float4", "(0.1), (1.5)", pa.array([1.5, 0.1, 2.0])),
    ("text", "('a'), ('A'), (''), ('a '), ('ä')", pa.array(["a", "A", "", "a ", "\u00e4", "b"])),
    ("varchar(9)", "('a'), ('b')", pa.array(["a", "c"])),
    ("char(5)", "('a'), ('b ')", pa.array(["a", "a ", "b", "c"])),
    ("citext", "('a'), ('B')", pa.array(["a", "A", "b", "c"])),
    ("bytea", r"('\x00ff'), ('')", pa.array([b"\x00\xff", b"", b"x"])),
    (
        "uuid",
        "('0191f0a0-0000-7000-8000-000000000001')",
        pa.array(["0191f0a0-0000-7000-8000-000000000001", "0191F0A0000070008000000000000001", "x"]),
    ),
    ("bool", "(true)", pa.array([True, False])),
    ("date", "('2026-07-30'), ('infinity'), ('0044-03-15 BC')", pa.array([dt.date(2026, 7, 30), dt.date.max])),
    (
        "timestamptz",
        "('2026-07-30 10:00:00+02'), ('-infinity')",
        pa.array([dt.datetime(2026, 7, 30, 8, tzinfo=dt.UTC), dt.datetime(2026, 7, 30, 9, tzinfo=dt.UTC)]),
    ),
    ("mood", "('sad'), ('happy')", pa.array(["happy", "sad", "none"])),
]


@pytest.mark.service
@pytest.mark.parametrize(("kind", "stored", "asked"), POSTGRES_KEYS, ids=[kind for kind, _, _ in POSTGRES_KEYS])
def test_each_key_finds_what_a_lookup_in_postgres_finds(
    worker: Worker, postgres: local.PostgresServer, kind: str, stored: str, asked: Any
) -> None:
    """In a schema outside of the search path, with twins, and with other rows without a key."""
    postgres.execute("CREATE SCHEMA IF NOT EXISTS ext; CREATE EXTENSION IF NOT EXISTS citext SCHEMA ext")
    postgres.execute("DROP TYPE IF EXISTS ext.mood CASCADE; CREATE TYPE ext.mood AS ENUM ('sad', 'happy')")
    column = f"ext.{kind}" if kind in ("citext", "mood") else kind
    rows = stored.replace("(", "(1, ")
    postgres.execute(
        f"DROP TABLE IF EXISTS keys; CREATE TABLE keys (n serial, v int, k {column}); CREATE INDEX ON keys (k); "
        f"INSERT INTO keys (v, k) VALUES {rows}; INSERT INTO keys (v, k) VALUES (2, NULL); "
        "INSERT INTO keys (v, k) SELECT 3, k FROM keys WHERE n = 2"
    )
    config = PostgresConfig(dsn=postgres.dsn, table="keys", key="k", columns=("v", "n"))
    returns = StructType([StructField("v", IntegerType()), StructField("n", IntegerType())])
    told = []
    for preload in (False, True):
        options = {"on_error": "null", "preload": preload, "batch_size": 2}
        found = worker.outcomes(config, returns, asked, **options)
        told.append([(row["value"], row["status"], row["error"]) for row in found])
    assert told[0] == told[1]
    assert "preload" in {row["origin"] for row in found} or kind in ("numeric", "float4")


@pytest.mark.service
def test_keys_of_two_columns_of_postgres_in_pages(worker: Worker, postgres: local.PostgresServer) -> None:
    postgres.execute(
        "DROP TABLE IF EXISTS pairs; CREATE TABLE pairs (a text, b int4, v int4, PRIMARY KEY (a, b)); "
        "INSERT INTO pairs SELECT 'k' || n / 10, n % 10, n FROM generate_series(0, 999) AS n"
    )
    config = PostgresConfig(dsn=postgres.dsn, table="pairs", key=("a", "b"))
    a, b = [f"k{n // 10}" for n in range(1010)], [n % 10 for n in range(1010)]
    rows = worker.outcomes(config, IntegerType(), a, b, preload=True, batch_size=7)
    assert values(rows) == [*range(1000), *[None] * 10]
    assert {row["origin"] for row in rows} <= {"preload"}


@pytest.mark.slow
@pytest.mark.service
def test_a_refresh_from_postgres_and_a_server_that_stops(worker: Worker) -> None:
    with local.postgres() as server:
        server.execute("CREATE TABLE t (id text PRIMARY KEY, v text)")
        server.execute("INSERT INTO t VALUES ('stays', '1'), ('changes', '2'), ('goes', '3')")
        config, keys = PostgresConfig(dsn=server.dsn, table="t"), ["stays", "changes", "goes", "comes"]
        preload = Preload(refresh=0.2)

        def look(times: int = 1) -> list[Any]:
            return values(worker.outcomes(config, TEXT, keys * times, preload=preload, stall_timeout=1.0))

        assert look() == ["1", "2", "3", None]
        server.execute("UPDATE t SET v = '20' WHERE id = 'changes'; DELETE FROM t WHERE id = 'goes'")
        server.execute("INSERT INTO t VALUES ('comes', '4')")
        wait_until(lambda: look() == ["1", "20", None, "4"])
        (table,) = worker.thread.tables.values()
    wait_until(lambda: table.failures > 0)
    assert look(1000) == ["1", "20", None, "4"] * 1000
    assert worker.run.stats.calls == 0


# MariaDB


@pytest.fixture(scope="module")
def mariadb() -> Iterator[local.MariadbServer]:
    with local.mariadb() as running:
        yield running


MARIADB_KEYS: list[tuple[str, str, Any]] = [
    ("int", "(1), (-2), (77)", pa.array([1, -2, 5, 77])),
    (
        "varchar(9) COLLATE utf8mb4_general_ci",
        "('a'), ('A'), ('b '), ('\u00e4')",
        pa.array(["a", "A", "b", "b ", "\u00e4"]),
    ),
    ("varchar(9) COLLATE utf8mb4_bin", "('a'), ('A'), ('b '), ('')", pa.array(["a", "A", "b", "b ", "", " "])),
    ("varchar(9) COLLATE utf8mb4_nopad_bin", "('a'), ('A'), ('b '), ('')", pa.array(["a", "A", "b", "b ", "", " "])),
    ("varbinary(9)", "(x'00ff'), ('')", pa.array([b"\x00\xff", b"", b"x"])),
    (
        "uuid",
        "('0191f0a0-0000-7000-8000-000000000001')",
        pa.array(["0191f0a0-0000-7000-8000-000000000001", "0191F0A0000070008000000000000001"]),
    ),
]


@pytest.mark.apt
@pytest.mark.parametrize(("kind", "stored", "asked"), MARIADB_KEYS, ids=[kind for kind, _, _ in MARIADB_KEYS])
def test_each_key_finds_what_a_lookup_in_mariadb_finds(
    worker: Worker, mariadb: local.MariadbServer, kind: str, stored: str, asked: Any
) -> None:
    """With twins, and with a row without a key."""
    url = mariadb.create_database()
    mariadb.execute(
        f"CREATE TABLE t (n int AUTO_INCREMENT PRIMARY KEY, v int, k {kind}, INDEX (k)); "
        f"INSERT INTO t (v, k) VALUES {stored.replace('(', '(1, ')}; INSERT INTO t (v, k) VALUES (2, NULL); "
        "INSERT INTO t (v, k) SELECT 3, k FROM t WHERE n = 2",
        url.rpartition("/")[2],
    )
    config = MariadbConfig(url=url, table="t", key="k", columns=("v", "n"))
    returns = StructType([StructField("v", IntegerType()), StructField("n", IntegerType())])
    told = []
    for preload in (False, True):
        options = {"on_error": "null", "preload": preload, "batch_size": 2}
        found = worker.outcomes(config, returns, asked, **options)
        told.append([(row["value"], row["status"], row["error"]) for row in found])
    assert told[0] == told[1]
    assert "preload" in {row["origin"] for row in found} or len(asked) == 2


@pytest.mark.apt
def test_tables_of_mariadb_in_pages(worker: Worker, mariadb: local.MariadbServer) -> None:
    url = mariadb.create_database()
    database = url.rpartition("/")[2]
    mariadb.execute(
        "CREATE TABLE pairs (a varchar(9) COLLATE utf8mb4_general_ci, b int, v int, PRIMARY KEY (a, b)); "
        "INSERT INTO pairs SELECT concat('k', seq DIV 10), seq % 10, seq FROM seq_0_to_999; "
        f"CREATE TABLE users AS SELECT seq AS id, concat('v', seq) AS name FROM seq_0_to_{COUNT - 1}; "
        "ALTER TABLE users ADD PRIMARY KEY (id)",
        database,
    )
    config = MariadbConfig(url=url, table="pairs", key=("a", "b"))
    a, b = [f"k{n // 10}" for n in range(1010)], [n % 10 for n in range(1010)]
    rows = worker.outcomes(config, IntegerType(), a, b, preload=True, batch_size=7)
    assert values(rows) == [*range(1000), *[None] * 10]
    assert {row["origin"] for row in rows[:1000]} == {"preload"}
    config = MariadbConfig(url=url, table="users")
    rows = worker.outcomes(config, TEXT, list(range(-5, COUNT + 5)), preload=True)
    assert values(rows) == [f"v{n}" if 0 <= n < COUNT else None for n in range(-5, COUNT + 5)]
    assert {row["origin"] for row in rows} == {"preload"}
    mariadb.execute("DROP TABLE users", database)
    assert values(worker.outcomes(config, TEXT, [7, -1], preload=True)) == ["v7", None]


@pytest.mark.apt
def test_a_refresh_from_mariadb_and_a_server_that_stops(worker: Worker) -> None:
    with local.mariadb() as server:
        url = server.create_database()
        database = url.rpartition("/")[2]
        server.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, '1'), (2, '2')", database)
        config, keys, preload = MariadbConfig(url=url, table="t"), [1, 2, 3], Preload(refresh=0.2)

        def look(times: int = 1) -> list[Any]:
            return values(worker.outcomes(config, TEXT, keys * times, preload=preload, stall_timeout=1.0))

        assert look() == ["1", "2", None]
        server.execute("UPDATE t SET v = '10' WHERE id = 1; DELETE FROM t WHERE id = 2", database)
        server.execute("INSERT INTO t VALUES (3, '30')", database)
        wait_until(lambda: look() == ["10", None, "30"])
        (table,) = worker.thread.tables.values()
    wait_until(lambda: table.failures > 0)
    assert look(1000) == ["10", None, "30"] * 1000
    assert worker.run.stats.calls == 0
