"""How many connections a source takes, as real servers with a low limit say, and the warning where a job makes more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig

from enrichkit import describe, enrich, explain, local
from enrichkit.driver import connections

# `describe` needs a session; only the last test is another one on Spark Connect.
pytestmark = [pytest.mark.service, pytest.mark.usefixtures("spark")]

FEW = 8  # as many as the two task slots of the session make
FAULT = (
    "it takes 8 connections from all its clients, and 64 task slots make up to 256 (capacity 4 x 64 x 1 expression of "
    "a stage). Even capacity=1 is too much: use fewer task slots, or put a connection pooler in front of it, or raise "
    "its limit."
)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No source has told anything, and nothing was warned of."""
    monkeypatch.setattr(connections, "_told", {})
    monkeypatch.setattr(connections, "_warned", type(connections._warned)())


@pytest.fixture
def users(postgres_dsn: str) -> PostgresConfig:
    """A table in a database that takes few connections."""

    async def fill() -> None:
        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
        name = await connection.fetchval("SELECT current_database()")
        await connection.execute(f'ALTER DATABASE "{name}" CONNECTION LIMIT {FEW}')
        await connection.close()

    asyncio.run(fill())
    return PostgresConfig(dsn=postgres_dsn, table="users")


@pytest.fixture
def cache() -> Iterator[RedisConfig]:
    """A Redis that takes few clients, and has no others: those of other tests would keep this one out."""
    with local.redis() as server:
        with redis.Redis.from_url(server.url) as client:
            client.config_set("maxclients", FEW)
        yield RedisConfig(url=server.url)


def warnings_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in log.records if each.levelno == logging.WARNING and each.name == "enrichkit"]


@pytest.mark.parametrize("source", ["users", "cache"])
def test_describe_says_what_the_source_takes_and_explain_warns_once(
    source: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    config: Any = request.getfixturevalue(source)
    assert explain(config, task_slots=64).connections is None
    described = describe(config)
    assert described.connections == FEW
    assert "8 connections from all clients" in str(described)

    fits = explain(config, task_slots=2)
    assert "The source takes 8 connections from all its clients." in str(fits)
    assert warnings_of(caplog) == []
    for _ in range(2):
        exceeds = explain(config, task_slots=64)
    assert FAULT in " ".join(str(exceeds).split())
    assert warnings_of(caplog) == [f"The source {exceeds.source!r} may refuse connections: {FAULT}"]


def test_the_warning_names_the_capacity_that_fits(users: PostgresConfig) -> None:
    describe(users)
    text = " ".join(str(explain(users, task_slots=3)).split())
    assert "3 task slots make up to 12 (capacity 4 x 3 x 1 expression of a stage). Set capacity=2, or put" in text


def test_a_server_without_a_limit_for_a_database_keeps_some_for_its_owners(postgres_dsn: str) -> None:
    async def ask(*settings: str) -> list[int]:
        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute("CREATE TABLE users (id int PRIMARY KEY, name text)")
        found = [int(await connection.fetchval(f"SHOW {setting}")) for setting in settings]
        await connection.close()
        return found

    most, *kept = asyncio.run(ask("max_connections", "superuser_reserved_connections", "reserved_connections"))
    assert describe(PostgresConfig(dsn=postgres_dsn, table="users")).connections == most - sum(kept)


def test_a_source_that_does_not_tell_is_not_asked() -> None:
    service = HttpConfig(url="http://127.0.0.1:1/{}", returns="string")
    assert describe(service).connections is None
    assert "connections" not in str(describe(service))


def test_a_server_that_is_away_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    assert describe(RedisConfig(url="redis://127.0.0.1:1/0")).connections is None
    assert warnings_of(caplog) == []


@pytest.mark.spark
def test_a_job_whose_type_is_asked_warns_once_for_its_session(
    users: PostgresConfig, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    for _ in range(2):
        enrich(users, "id", capacity=5)
    # The session has two task slots. Spark Connect does not tell how many there are, unless its settings do.
    expected = 0 if request.config.getoption("--connect") else 1
    assert len(warnings_of(caplog)) == expected
    assert all("2 task slots make up to 10 (capacity 5 x 2 x 1" in each for each in warnings_of(caplog))
