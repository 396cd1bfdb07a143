"""What the Spark benchmarks share: warm sessions, the CPU of the Python workers, and the hand-written rivals."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Sample

TICKS = os.sysconf("SC_CLK_TCK")


def worker_cpu() -> float:
    """Return the CPU seconds that the Python workers below this process have used so far, ended ones included."""
    parents: dict[int, int] = {}
    workers: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                workers[int(folder.name)] = sum(map(int, fields[11:15]))  # its own, and that of ended children
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
    return sum(ticks for pid, ticks in workers.items() if _is_below(pid, parents)) / TICKS


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


def run_to_nowhere(frame: Any) -> Sample:
    """Run *frame* into the noop sink."""
    cpu, began = worker_cpu(), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return Sample(time.perf_counter() - began, worker_cpu() - cpu)


def gather_per_batch(url: str, capacity: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what Spark users write by hand: `asyncio.run(gather(...))` for each Arrow batch, with one client."""

    def enrich(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyreqwest.client import ClientBuilder

        async def fetch_all(keys: list[str]) -> list[str]:
            semaphore = asyncio.Semaphore(capacity)
            async with ClientBuilder().build() as client:

                async def fetch(key: str) -> str:
                    async with semaphore:
                        response = await client.get(f"{url}/{key}").build().send()
                        return str(await response.text())

                return await asyncio.gather(*map(fetch, keys))

        for batch in batches:
            yield pa.array(asyncio.run(fetch_all(batch.to_pylist())))

    return enrich


def thread_pool(url: str, capacity: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the other thing that they write: a thread pool over a `requests` session, for each Arrow batch."""

    def enrich(batches: Iterator[Any]) -> Iterator[Any]:
        from concurrent.futures import ThreadPoolExecutor

        import pyarrow as pa
        import requests

        session = requests.Session()
        adapter = requests.adapters.HTTPAdapter(pool_maxsize=capacity)
        session.mount("http://", adapter)
        with ThreadPoolExecutor(capacity) as pool:
            for batch in batches:
                yield pa.array(list(pool.map(lambda key: session.get(f"{url}/{key}").text, batch.to_pylist())))

    return enrich


def by_hand(function: Callable[[Iterator[Any]], Iterator[Any]], column: str) -> Any:
    """Return the column that *function*, an Arrow iterator UDF, makes of *column*."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    array: Any = pa.Array
    function.__annotations__ = {"batches": Iterator[array], "return": Iterator[array]}
    return F.arrow_udf(function, "string").asNondeterministic()(column)  # type: ignore[attr-defined]
