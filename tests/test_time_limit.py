"""A time limit of a login counts only the time in which the event loop ran."""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_mariadb import MariadbConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig

from enrichkit import local
from enrichkit.plugin import Call, time_limit
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT = 0.3


def hold_up(turns: int, seconds: float) -> None:
    """Let the running loop stand still for *seconds* after so many *turns*."""
    loop = asyncio.get_running_loop()
    if turns:
        loop.call_soon(hold_up, turns - 1, seconds)
    else:
        time.sleep(seconds)


def test_the_time_in_which_the_loop_stands_still_does_not_count() -> None:
    async def work() -> int:
        done = 0
        async with time_limit(LIMIT):
            for turns in range(3):
                hold_up(turns, 2 * LIMIT)
                await asyncio.sleep(0)
                done += 1
        return done

    assert asyncio.run(work()) == 3


def test_the_time_in_which_the_loop_runs_counts() -> None:
    async def work() -> None:
        async with time_limit(0.05):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(work())


def test_what_ends_in_time_leaves_no_timer() -> None:
    async def work() -> list[Any]:
        async with time_limit(60.0):
            await asyncio.sleep(0)
        return [timer for timer in asyncio.get_running_loop()._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]

    assert asyncio.run(work()) == []


@pytest.fixture
def redis_source(redis_url: str) -> RedisConfig:
    return RedisConfig(url=redis_url)


@pytest.fixture
def postgres_source(postgres_server: local.PostgresServer, postgres_dsn: str) -> PostgresConfig:
    postgres_server.execute("CREATE TABLE t (id text PRIMARY KEY, v text)", postgres_dsn.rpartition("/")[2])
    return PostgresConfig(dsn=postgres_dsn, table="t", key="id", columns=("v",))


@pytest.fixture
def mariadb_source() -> Iterator[MariadbConfig]:
    with local.mariadb() as server:
        server.execute("CREATE DATABASE shop; CREATE TABLE shop.t (id varchar(9) PRIMARY KEY, v text)")
        yield MariadbConfig(url=f"{server.url}/shop", table="t", key="id", columns=("v",))


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.parametrize("name", ["redis", "postgres", pytest.param("mariadb", marks=pytest.mark.apt)])
def test_a_login_outlives_a_loop_that_stands_still(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """At whichever of its round trips that happens."""
    monkeypatch.setattr(importlib.import_module(f"enrichkit_{name}.pool"), "CONNECT_TIMEOUT", LIMIT)
    config = request.getfixturevalue(f"{name}_source")

    async def first_call(turns: int) -> Any:
        hold_up(turns, 2 * LIMIT)
        async with open_connector(config) as connector:
            return await connector.fetch_many(["k"], Call(timeout=60.0))

    for turns in range(12):
        assert dict(asyncio.run(first_call(turns))) == {}
