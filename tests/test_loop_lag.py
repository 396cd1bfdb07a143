"""
How long one step of a connector holds up the event loop, with answers as large as the default limits allow.

CPU seconds of the loop's thread between two turns of the loop, the least of three calls: on a machine that does much
else, the same work takes up to four times as many now and then.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig

from enrichkit.plugin import Call
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from enrichkit import ConnectorConfig, local

pytestmark = [pytest.mark.service, pytest.mark.slow]

LONGEST = 0.1
CALL = Call(timeout=60.0)
MANY = 5000


async def longest_turn(work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    """Return the result of *work*, and the most CPU seconds between two turns of the loop until then."""
    loop = asyncio.get_running_loop()
    longest, last, over = 0.0, time.thread_time(), False

    def turn() -> None:
        nonlocal longest, last
        now = time.thread_time()
        longest, last = max(longest, now - last), now
        if not over:
            loop.call_soon(turn)

    loop.call_soon(turn)
    try:
        return await work, longest
    finally:
        over = True


def asked(config: ConnectorConfig, keys: Sequence[Any]) -> tuple[Mapping[Any, Any], float]:
    async def run() -> tuple[Mapping[Any, Any], float]:
        async with open_connector(config) as connector:
            await connector.fetch_many(keys[:1], CALL)  # connects
            calls = [await longest_turn(connector.fetch_many(keys, CALL)) for _ in range(3)]
            return calls[0][0], min(longest for _, longest in calls)

    return asyncio.run(run())


def test_the_turn_that_the_rest_is_compared_with_is_measured() -> None:
    async def busy() -> None:
        await asyncio.sleep(0)
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0)

    assert 0.05 <= asyncio.run(longest_turn(busy()))[1] < 0.1


def test_a_json_document_of_a_service_at_the_limit(http_service: local.HttpService) -> None:
    """Of 1 MiB, in the smallest parts."""
    size = 2**20
    http_service.seed({"k": {"name": "x", "rest": [[]] * (size // 4 - 20)}})
    config = HttpConfig(url=f"{http_service.url}/{{}}", value="name")
    found, longest = asked(config, ["k"])
    assert found == {"k": "x"}
    assert longest < LONGEST


@pytest.mark.parametrize("shape", ["list", "object"])
def test_many_json_documents_of_a_service_at_the_limit(shape: str, http_service: local.HttpService) -> None:
    """Of 8 MiB, for 5,000 keys."""
    value = {"name": "x", "rest": [[]] * 370}
    keys = [f"u{number}" for number in range(MANY)]
    http_service.seed(dict.fromkeys(keys, value))
    config = HttpConfig(url=f"{http_service.url}/{uuid.uuid4()}?shape={shape}", bulk=True, returns="name string")
    found, longest = asked(config, keys)
    assert sum(map(len, found.values())) > 7 * 2**20
    assert all(json.loads(each) == value for each in found.values())
    assert longest < LONGEST


@pytest.mark.parametrize("count", [1, 1000, MANY])
def test_values_of_redis_at_the_limit(count: int, redis_url: str) -> None:
    """Of 64 MiB together."""
    size = 63 * 2**20 // count
    keys = [str(number) for number in range(count)]
    with redis.Redis.from_url(redis_url) as client:
        client.mset(dict.fromkeys(keys, b"x" * size))
    found, longest = asked(RedisConfig(url=redis_url), keys)
    assert dict(found) == dict.fromkeys(keys, b"x" * size)
    assert longest < LONGEST


def test_hashes_of_redis_at_the_limit(redis_url: str) -> None:
    fields = {f"f{number}": "x" * 1000 for number in range(60)}
    keys = [str(number) for number in range(1000)]
    with redis.Redis.from_url(redis_url) as client, client.pipeline(transaction=False) as commands:
        for key in keys:
            commands.hset(key, mapping=fields)
        commands.execute()
    found, longest = asked(RedisConfig(url=redis_url, kind="hash"), keys)
    assert list(found) == keys
    assert longest < LONGEST


@pytest.mark.parametrize("columns", [("v",), ("v", "n")])
def test_rows_of_postgres_at_the_limit(
    columns: tuple[str, ...], postgres_server: local.PostgresServer, postgres_dsn: str
) -> None:
    """Of 60 MB together."""
    count, size = 4000, 15_000
    postgres_server.execute(
        f"CREATE TABLE t AS SELECT n AS id, repeat('x', {size}) AS v, n FROM generate_series(0, {count - 1}) n",
        postgres_dsn.rpartition("/")[2],
    )
    found, longest = asked(PostgresConfig(dsn=postgres_dsn, table="t", columns=columns), range(count))
    assert len(found) == count
    assert longest < LONGEST
