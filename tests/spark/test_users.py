"""Two queries in one worker, which ask one address as different users, share no engine, connection or cached answer."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig

from enrichkit import Cache, Secret, enrich
from enrichkit.driver.planner import make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from enrichkit import ConnectorConfig
    from enrichkit.local import HttpService, PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.service, pytest.mark.slow]

VALUE = "name string, score int"


class Told(NamedTuple):
    """What a query got: the value of a key, where it came from, and the process that asked."""

    name: str
    score: int
    origin: str
    worker: int


Ask = Callable[["ConnectorConfig"], Told]


@pytest.fixture
def ask(spark: SparkSession, conf: Callable[[str, str], None]) -> Ask:
    """A function that looks up `here` in a query of its own; each query runs in the same worker."""
    # No other test has this setting, so Spark takes none of their workers, and the first query starts the only one.
    conf("spark.sql.execution.pyspark.udf.hideTraceback.enabled", "true")
    keys = spark.createDataFrame([("here",), ("missing",)], "key string").coalesce(1)

    def worker(key: Any) -> dict[str, Any]:
        return {"name": key, "score": os.getpid()}

    def ask(config: ConnectorConfig) -> Told:
        column = enrich(
            config, "key", returns=VALUE, details=True, cache=Cache(ttl=600), capacity=1, on_missing=worker
        ).alias("o")
        here, missing = (row.o for row in keys.select(column).collect())
        return Told(here.value.name, here.value.score, here.origin, missing.value.score)

    return ask


@pytest.fixture
def users(postgres_server: PostgresServer, postgres_dsn: str) -> Iterator[list[str]]:
    """Two users of an empty database, who may read a table that holds one key."""
    names = [f"user_{uuid.uuid4().hex[:12]}" for _ in range(2)]
    database = postgres_dsn.rpartition("/")[2]
    roles = ", ".join(names)
    postgres_server.execute("".join(f"CREATE ROLE {name} LOGIN;" for name in names))
    try:
        postgres_server.execute(
            f"CREATE TABLE held (key text); INSERT INTO held VALUES ('here'); GRANT SELECT ON held TO {roles}", database
        )
        yield names
    finally:
        postgres_server.execute(f"DROP OWNED BY {roles} CASCADE; DROP ROLE {roles}", database)


def test_two_users_in_the_address_share_nothing(
    ask: Ask, users: list[str], postgres_server: PostgresServer, postgres_dsn: str
) -> None:
    """The server tells each user another value, and the number of the connection."""
    query = "SELECT key, session_user::text AS name, pg_backend_pid() AS score FROM held WHERE key = ANY($1)"
    first, second = (
        PostgresConfig(dsn=postgres_dsn.replace("postgres@", f"{user}@"), query=query, key="key") for user in users
    )
    told = [ask(first), ask(first), ask(second), ask(second), ask(first)]
    assert [users[0], users[0], users[1], users[1], users[0]] == [each.name for each in told]
    assert ["call", "cache", "call", "cache", "cache"] == [each.origin for each in told]
    assert 1 == len({each.worker for each in told})

    sessions = postgres_server.execute(
        f"SELECT usename, pid FROM pg_stat_activity WHERE usename IN ({', '.join(map(repr, users))})"
    )
    assert {f"{told[0].name}|{told[0].score}", f"{told[2].name}|{told[2].score}"} == set(sessions.splitlines())
    plans = [make_plan(config, 1, VALUE, {})[0] for config in (first, second)]
    assert 2 == len({plan.engine_key for plan in plans}) == len({plan.cache_key for plan in plans})


def test_two_users_in_a_secret_share_nothing(ask: Ask, http_service: HttpService, tmp_path: Path) -> None:
    """The two configs are equal, and only the worker learns that the secret is another one."""
    http_service.seed({"here": {"name": "value of here", "score": 1}})
    token = tmp_path / "token"
    config = HttpConfig(url=f"{http_service.url}/{{}}", headers={"X-Token": Secret.file(str(token))})
    told = []
    for user in ("ann", "ann", "bob", "bob", "ann"):
        token.write_text(user)
        told.append(ask(config))
    assert ["value of here"] * 5 == [each.name for each in told]
    assert ["call", "cache", "call", "cache", "cache"] == [each.origin for each in told]
    assert 1 == len({each.worker for each in told})

    requests = [(entry["headers"]["x-token"], entry["path"]) for entry in http_service.log()]
    assert {("ann", "/here"), ("ann", "/missing"), ("bob", "/here"), ("bob", "/missing")} == set(requests)
    assert 4 == len(requests)
    assert 2 == http_service.stats().connections
