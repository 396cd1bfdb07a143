"""
The workload of N1 in other engines. This module does not import enrichkit, because each engine has its own environment.

`python -m benchmarks.peer_jobs NAME URL IN_FLIGHT` prints a line when it is ready. For each number that it reads on
standard input it does the job once: it fetches this number of keys from the service, with IN_FLIGHT calls at a time,
divided between two workers or all in one worker. Each engine is used as its documentation recommends.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

MARK = "peer: "
TIMEOUT = 60

Job: TypeAlias = Callable[[list[str]], list[str]]
"""A function that returns the values of keys, in any order."""

limits: weakref.WeakKeyDictionary[Any, asyncio.Semaphore] = weakref.WeakKeyDictionary()
sessions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


@functools.cache
def client() -> Any:
    from pyreqwest.client import ClientBuilder

    return ClientBuilder().no_proxy().build()


async def fetch(url: str, key: str) -> str:
    """Fetch *key* with pyreqwest, the HTTP client of enrichkit."""
    response = await client().get(f"{url}/{key}").build().send()
    return str(await response.text())


def limit(in_flight: int) -> asyncio.Semaphore:
    """Return the semaphore of the running event loop."""
    return limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(in_flight))


async def fetch_by_aiohttp(url: str, key: str, in_flight: int) -> str:
    """Fetch *key* with aiohttp: a process with Pathway crashes when pyreqwest is used in a second job."""
    import aiohttp

    loop = asyncio.get_running_loop()
    if loop not in sessions:
        sessions[loop] = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=in_flight))
    async with sessions[loop].get(f"{url}/{key}") as response:
        return str(await response.text())


def pyflink(url: str, in_flight: int) -> Job:
    from pyflink.common import Time, Types
    from pyflink.datastream import AsyncDataStream, AsyncFunction, StreamExecutionEnvironment

    class Fetch(AsyncFunction):
        async def async_invoke(self, value: str) -> list[str]:
            return [await fetch(url, value)]

    def run(keys: list[str]) -> list[str]:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(2)
        stream = env.from_collection(keys, type_info=Types.STRING()).rebalance()
        found = AsyncDataStream.unordered_wait(stream, Fetch(), Time.seconds(TIMEOUT), in_flight // 2, Types.STRING())
        with found.execute_and_collect() as rows:
            return list(rows)

    return run


def daft(url: str, in_flight: int) -> Job:
    import daft as engine

    # Without a semaphore the service counted 2,492 concurrent requests, for any value of `max_concurrency`.
    @engine.func(return_dtype=engine.DataType.string(), max_concurrency=in_flight)
    async def value_of(key: str) -> str:
        async with limit(in_flight):
            return await fetch(url, key)

    def run(keys: list[str]) -> list[str]:
        frame = engine.from_pydict({"key": keys}).select(value_of(engine.col("key")).alias("value"))
        return list(frame.to_pydict()["value"])

    return run


def pathway(url: str, in_flight: int) -> Job:
    import pandas as pd
    import pathway as pw

    @pw.udf(executor=pw.udfs.async_executor(capacity=in_flight, timeout=float(TIMEOUT)))
    async def value_of(key: str) -> str:
        return await fetch_by_aiohttp(url, key, in_flight)

    def run(keys: list[str]) -> list[str]:
        table = pw.debug.table_from_pandas(pd.DataFrame({"key": keys}))
        return list(pw.debug.table_to_pandas(table.select(value=value_of(pw.this.key)))["value"])

    return run


def ray(url: str, in_flight: int) -> Job:
    import os

    os.environ["RAY_DATA_DEFAULT_ASYNC_ROW_UDF_MAX_CONCURRENCY"] = str(in_flight // 2)
    import ray as engine

    engine.init(num_cpus=4, include_dashboard=False, object_store_memory=2**28)

    class Fetch:
        async def __call__(self, row: dict[str, str]) -> dict[str, str]:
            return {"value": await fetch(url, row["key"])}

    def run(keys: list[str]) -> list[str]:
        rows = engine.data.from_items([{"key": key} for key in keys], override_num_blocks=min(len(keys), 8))
        found = rows.map(Fetch, compute=engine.data.ActorPoolStrategy(size=2))
        return [row["value"] for row in found.take_all()]

    return run


JOBS = {"PyFlink": pyflink, "Daft": daft, "Pathway": pathway, "Ray Data": ray}


def main(name: str, url: str, in_flight: str) -> None:
    """Do a job for each line of standard input, until standard input ends."""
    run = JOBS[name](url, int(in_flight))
    print(f"{MARK}ready", flush=True)
    for line in sys.stdin:
        keys = [f"k{number}" for number in range(int(line))]
        began = time.perf_counter()
        values = run(keys)
        seconds = time.perf_counter() - began
        names = {value["key"]: value["name"] for value in map(json.loads, values)}
        right = len(values) == len(keys) and names == {key: f"name of {key}" for key in keys}
        print(f"{MARK}{json.dumps({'seconds': seconds, 'right': right})}", flush=True)


if __name__ == "__main__":
    from benchmarks import peer_jobs  # the workers of these engines import the module by this name, not as __main__

    peer_jobs.main(*sys.argv[1:])
