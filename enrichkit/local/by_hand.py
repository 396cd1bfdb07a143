"""
UDFs as people write them by hand: one call per row, through a connection that lives as long as the worker process.

The demo and the benchmarks compare enrichkit with these UDFs. A worker process imports this module once, so the
connections that the module keeps serve all tasks of the process. The globals of a pickled UDF, in contrast, are new in
every task, so a connection kept there would be opened again for every task.
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
    """Return one profile, read with the Redis command `GET`; None when Redis does not hold the profile."""
    value: bytes | None = _redis(url).get(f"profile:{user_id}")
    return None if value is None else value.decode()


def postgres_fetch(dsn: str, place_id: int) -> str | None:
    """Return the name of one place, read with one `SELECT`; None when the table does not hold the place."""
    loop, connection = _postgres(dsn)
    row = loop.run_until_complete(connection.fetchrow("SELECT name, tier FROM places WHERE id = $1", place_id))
    return None if row is None else str(row["name"])


def http_get(url: str, device_id: str) -> str | None:
    """Return the body of one device, read with one GET request; None when the response is not 200."""
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
