"""
What people write by hand: one call per row, with a connection that lives as long as the worker process.

The demo and the benchmarks compare with it. It lives in a module because a UDF's own globals start afresh with every
task, and so would its connections.
"""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import quote, urlsplit

__all__ = ["http_get", "postgres_fetch", "redis_get", "udf_of"]


def udf_of(lookup: Callable[[str, Any], str | None], address: str) -> Any:
    """Return the Spark UDF that calls *lookup* with *address* and the key of its row."""
    from pyspark.sql.functions import udf

    return udf(lambda key: None if key is None else lookup(address, key), "string").asNondeterministic()


def redis_get(url: str, user_id: str) -> str | None:
    """`GET` one profile."""
    value: bytes | None = _redis(url).get(f"profile:{user_id}")
    return None if value is None else value.decode()


def postgres_fetch(dsn: str, place_id: int) -> str | None:
    """Fetch one row."""
    loop, connection = _postgres(dsn)
    row = loop.run_until_complete(connection.fetchrow("SELECT name, tier FROM places WHERE id = $1", place_id))
    return None if row is None else str(row["name"])


def http_get(url: str, device_id: str) -> str | None:
    """Get one device."""
    connection = _http(urlsplit(url).netloc)
    connection.request("GET", "/devices/" + quote(device_id, safe=""))
    response = connection.getresponse()
    body = response.read()
    return body.decode() if response.status == 200 else None


@cache
def _redis(url: str) -> Any:
    import redis

    return redis.Redis.from_url(url)


@cache
def _postgres(dsn: str) -> tuple[asyncio.AbstractEventLoop, Any]:
    import asyncpg

    loop = asyncio.new_event_loop()
    return loop, loop.run_until_complete(asyncpg.connect(dsn))


@cache
def _http(host: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(host)
