"""
The approaches that people use today to look up values from Spark, in the code that they write.

Sessions and connections are kept in this module, because the globals of a pickled UDF are new in every task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

TIMEOUT = 30.0


def row_udf(url: str) -> Any:
    """Return the column of a UDF that is called for each row and uses `requests`."""
    from pyspark.sql.functions import udf

    return udf(lambda key: get(url, key), "string", useArrow=False).asNondeterministic()("key")


def concurrent_udf(url: str) -> Any:
    """Return the same with Arrow, where Spark uses `spark.sql.execution.pythonUDF.arrow.concurrency.level` threads."""
    from pyspark.sql.functions import udf

    return udf(lambda key: get(url, key), "string", useArrow=True).asNondeterministic()("key")


def get(url: str, key: str) -> str:
    """Fetch one key with `requests`."""
    response = session().get(f"{url}/{key}", timeout=TIMEOUT)
    response.raise_for_status()
    return str(response.text)


@cache
def session() -> Any:
    """Return the session of this process, with enough connections for all threads."""
    import requests

    found = requests.Session()
    found.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=256))
    return found


def thread_pool(url: str, capacity: int) -> Any:
    """Return the column of an iterator `pandas_udf` with a thread pool."""
    import pandas as pd
    from pyspark.sql import functions as F

    def enrich(batches: Iterator[Any]) -> Iterator[Any]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(capacity) as pool:
            for batch in batches:
                yield pd.Series(list(pool.map(lambda key: get(url, key), batch)), dtype=object)

    series: Any = pd.Series
    enrich.__annotations__ = {"batches": Iterator[series], "return": Iterator[series]}
    return F.pandas_udf(enrich, "string").asNondeterministic()("key")  # type: ignore[attr-defined]


def gather_per_batch(url: str, capacity: int) -> Any:
    """Return the column of an Arrow UDF that calls `asyncio.run(gather(...))` with a new client for each batch."""

    def enrich(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            yield pa.array(asyncio.run(_fetch_all(url, batch.to_pylist(), capacity)))

    return arrow_column(enrich)


async def _fetch_all(url: str, keys: list[str], capacity: int) -> list[str]:
    from pyreqwest.client import ClientBuilder

    semaphore = asyncio.Semaphore(capacity)
    async with ClientBuilder().no_proxy().build() as client:

        async def fetch(key: str) -> str:
            async with semaphore:
                response = await client.get(f"{url}/{key}").build().send()
                return await response.text()

        return await asyncio.gather(*map(fetch, keys))


def arrow_column(function: Callable[[Iterator[Any]], Iterator[Any]]) -> Any:
    """Return the text column of *function*, a function from Arrow arrays to Arrow arrays, on the column `key`."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    array: Any = pa.Array
    function.__annotations__ = {"batches": Iterator[array], "return": Iterator[array]}
    return F.arrow_udf(function, "string").asNondeterministic()("key")  # type: ignore[attr-defined]


def statement_per_row(dsn: str) -> Any:
    """Return the column of a UDF that is called for each row and executes one statement on a connection kept open."""
    from pyspark.sql.functions import udf

    return udf(lambda key: _name_of(dsn, key), "string", useArrow=False).asNondeterministic()("key")


def _name_of(dsn: str, key: int) -> str | None:
    loop, connection = _connection(dsn)
    name: str | None = loop.run_until_complete(connection.fetchval("SELECT name FROM users WHERE id = $1", key))
    return name


@cache
def _connection(dsn: str) -> tuple[asyncio.AbstractEventLoop, Any]:
    import asyncpg

    loop = asyncio.new_event_loop()
    return loop, loop.run_until_complete(asyncpg.connect(dsn))


def export(dsn: str, path: str) -> None:
    """Copy the table `users` into a CSV file, which Spark can read."""
    import asyncpg

    async def copy() -> None:
        connection = await asyncpg.connect(dsn)
        await connection.copy_from_table("users", columns=("id", "name"), output=path, format="csv")
        await connection.close()

    asyncio.run(copy())
