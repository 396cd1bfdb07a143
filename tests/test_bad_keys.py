"""Keys for which a whole call fails, on real servers: each costs its own row, and every other row has its value."""

from __future__ import annotations

import math
import random
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_mariadb import MariadbConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from enrichkit_sqlite import SqliteConfig
from pyspark.sql.types import DataType, LongType, StringType

from enrichkit import local
from enrichkit.local import Fault, value_of

from .faults import PATIENT, PROFILE

if TYPE_CHECKING:
    from pathlib import Path

    from enrichkit.interface import ConnectorConfig

    from .sparkless import Worker

    # The config of a source in which the keys of these numbers are bad, the type of its values, the key of a number,
    # its value, and what counts the calls that reached the server.
    Source = tuple[ConnectorConfig, DataType, Callable[[int], Any], Callable[[int], Any], Callable[[], int] | None]
    Make = Callable[[set[int]], Source]

pytestmark = [pytest.mark.service, pytest.mark.slow]

KEYS, BATCH = 4000, 1000


def listed(bad: set[int]) -> str:
    return ", ".join(map(str, bad))


@pytest.fixture
def of_postgres(postgres_server: local.PostgresServer, postgres_dsn: str) -> Make:
    """A view that divides by zero, as one over somebody else's data does."""

    def make(bad: set[int]) -> Source:
        postgres_server.execute(
            f"CREATE TABLE t AS SELECT n AS id, n NOT IN ({listed(bad)}) AS good FROM generate_series(0, {KEYS - 1}) n;"
            "CREATE VIEW shares AS SELECT id, 1000 * id / good::int AS share FROM t",
            postgres_dsn.rpartition("/")[2],
        )
        config = PostgresConfig(dsn=postgres_dsn, table="shares", key="id", columns=("share",))
        return config, LongType(), lambda n: n, lambda n: 1000 * n, None

    return make


@pytest.fixture
def of_mariadb() -> Iterator[Make]:
    with local.mariadb() as server:

        def make(bad: set[int]) -> Source:
            server.execute(
                "CREATE DATABASE shop; USE shop;"
                f"CREATE TABLE t AS SELECT seq AS id, seq NOT IN ({listed(bad)}) AS good FROM seq_0_to_{KEYS - 1};"
                "CREATE VIEW shares AS SELECT id, CAST(IF(good, 1000 * id, exp(1000 + id)) AS SIGNED) AS share FROM t"
            )
            config = MariadbConfig(url=f"{server.url}/shop", table="shares", key="id", columns=("share",))
            return config, LongType(), lambda n: n, lambda n: 1000 * n, None

        yield make


@pytest.fixture
def of_sqlite(tmp_path: Path) -> Make:
    def make(bad: set[int]) -> Source:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as db, db:
            db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, document TEXT)")
            documents = ((n, "{" if n in bad else f'{{"share": {1000 * n}}}') for n in range(KEYS))
            db.executemany("INSERT INTO t VALUES (?, ?)", documents)
            db.execute("CREATE VIEW shares AS SELECT id, json_extract(document, '$.share') AS share FROM t")
        config = SqliteConfig(path=str(tmp_path / "shop.db"), table="shares", key="id", columns=("share",))
        return config, LongType(), lambda n: n, lambda n: 1000 * n, None

    return make


@pytest.fixture
def of_redis(redis_server: local.RedisServer) -> Iterator[Make]:
    """A user who may read some keys; Redis refuses an MGET with another one as a whole."""
    redis_server.flush()
    with redis.Redis.from_url(redis_server.url) as client:

        def make(bad: set[int]) -> Source:
            client.acl_setuser("ann", enabled=True, passwords=["+S3cret"], keys=["u*"], categories=["+@all"])
            client.mset({f"u{n}": f"v{n}" for n in range(KEYS)})
            client.config_resetstat()
            config = RedisConfig(url=redis_server.url, key="{}", username="ann", password="S3cret")

            def calls() -> int:
                found = client.info("commandstats").get("cmdstat_mget", {})
                return int(found.get("calls", 0) + found.get("rejected_calls", 0))

            return config, StringType(), lambda n: f"x{n}" if n in bad else f"u{n}", lambda n: f"v{n}", calls

        yield make
        client.acl_deluser("ann")


@pytest.fixture
def of_http(http_service: local.HttpService) -> Make:
    """A service that refuses a request with a key that it does not like."""

    def make(bad: set[int]) -> Source:
        http_service.script(Fault(match="bad-", status=400), log=False)
        config = HttpConfig(url=f"{http_service.url}/{uuid.uuid4().int}", bulk=True, returns=PROFILE)

        def key(n: int) -> str:
            return f"bad-{n}" if n in bad else f"u{n}"

        def value(n: int) -> dict[str, Any]:
            return {"name": value_of(f"u{n}")["name"], "score": value_of(f"u{n}")["score"]}

        return config, PROFILE, key, value, lambda: http_service.stats().calls

    return make


SOURCES = ["postgres", "sqlite", "redis", "http", pytest.param("mariadb", marks=pytest.mark.apt)]


@pytest.mark.parametrize("number", [1, 3, 10, 300])
@pytest.mark.parametrize("source", SOURCES)
def test_a_bad_key_costs_its_own_row(source: str, number: int, worker: Worker, request: pytest.FixtureRequest) -> None:
    make: Make = request.getfixturevalue(f"of_{source}")
    bad = {*random.Random(number).sample(range(KEYS), number)}
    config, returns, key, value, calls = make(bad)
    keys = [key(n) for n in range(KEYS)]
    rows = worker.outcomes(config, returns, keys, batch_size=BATCH, on_error="null", timeout=PATIENT, retry=None)
    assert [n for n, row in enumerate(rows) if row["status"] != "ok"] == sorted(bad)
    assert {row["status"] for row in (rows[n] for n in bad)} == {"error"}
    for n, row in enumerate(rows):
        assert row["value"] == (None if n in bad else value(n))
    made = worker.run.stats.calls if calls is None else calls()
    fewest = -(-KEYS // BATCH)
    # A bulk request of HTTP and a call of Redis may hold fewer keys than are asked for, so the first calls may be more.
    assert made <= 4 * fewest + min(2 * number * math.ceil(math.log2(BATCH)), 3 * KEYS // 2)
