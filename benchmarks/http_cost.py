"""N8: the cost of an HTTP request. The service answers after a millisecond, so that the CPU is the limit."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import uvloop

from benchmarks.harness import COLUMN, PAIRS, Sample, Table, alternate, at_least, drain, per_item, rates, spread
from benchmarks.spark_runs import Meter, keys_of
from enrichkit import enrich, local
from enrichkit.engine.admission import admit
from enrichkit.engine.engine import Engine
from enrichkit.engine.run import Run
from enrichkit.options import Options
from enrichkit.outcome import Outcomes
from enrichkit.values.decode import decoder

if TYPE_CHECKING:
    from enrichkit_http import HttpConfig

    from enrichkit.engine.records import Part

KEYS = 100_000
CAPACITY = 100
BATCH = 2_500
LATENCY = 0.001
SOURCES = (*COLUMN, "plugins/enrichkit-http/enrichkit_http", "benchmarks/http_cost.py")


def with_engine(config: HttpConfig, keys: list[str]) -> dict[str, str]:
    """Fetch *keys* through engine and connector, with deadlines, retries, limits and the ordered queue."""
    import pyarrow as pa
    from enrichkit_http import HttpConnector

    found: dict[str, str] = {}

    async def main() -> None:
        done = asyncio.Event()
        failed: list[BaseException] = []

        def emit(parts: list[Part] | BaseException) -> None:
            if isinstance(parts, BaseException):
                failed.append(parts)
            else:
                for part in parts:
                    found.update(zip(part.outcomes.keys, part.outcomes.values, strict=True))
            if failed or len(found) == len(keys):
                done.set()

        connector = HttpConnector(config)
        connector.capacity = CAPACITY
        engine = Engine(connector, CAPACITY)
        run = Run(engine, "http", Options(), decoder(pa.string(), "text"), emit)
        for start in range(0, len(keys), BATCH):
            group = keys[start : start + BATCH]
            admit(run, Outcomes(group, len(group)))
            await asyncio.sleep(0)
        await done.wait()
        run.close()
        await engine.close()
        if failed:
            raise failed[0]

    uvloop.run(main())
    return found


def with_client(url: str, keys: list[str]) -> dict[str, str]:
    """Fetch *keys* with the bare HTTP client in CAPACITY coroutines."""
    from pyreqwest.client import Client, ClientBuilder

    found: dict[str, str] = {}

    async def main() -> None:
        async with ClientBuilder().no_proxy().build() as client:

            async def fetch(client: Client, key: str) -> None:
                response = await client.get(f"{url}/{key}").build().send()
                found[key] = await response.text()

            await drain(keys, CAPACITY, lambda: contextlib.nullcontext(client), fetch)

    uvloop.run(main())
    return found


def main(quick: bool) -> list[Table]:
    """Measure N8."""
    from enrichkit_http import HttpConfig

    count = KEYS // 50 if quick else KEYS
    keys = [f"k{number}" for number in range(count)]
    table = Table(
        "N8",
        f"HTTP, {LATENCY * 1000:g} ms, {count:,} distinct keys, capacity {CAPACITY}; the server shares the cores",
        ("approach", "keys/s", "us CPU per key", "JVM", "server", "calls", "connections"),
    )
    with local.http() as service, local.spark() as spark:
        config = HttpConfig(url=service.url + "/{}")
        service.script(latency=LATENCY)
        meter = Meter(service.pid)
        frame = keys_of(spark, count, "k", tasks=1)
        column = enrich(config, "key", capacity=CAPACITY)

        expected = {key: local.value_of(key) for key in keys}
        right = frame.withColumn("value", enrich(config, "key", capacity=CAPACITY, returns="key string, name string"))
        assert right.where("value.key <=> key AND value.name <=> concat('name of ', key)").count() == count
        for found in (with_engine(config, keys), with_client(service.url, keys)):
            assert {key: json.loads(value) for key, value in found.items()} == expected

        def run(name: str) -> Sample:
            service.reset_stats()
            sample = runs[name]()
            stats = service.stats()
            assert stats.calls == count, f"{name}: the service counted {stats.calls:,} calls, not {count:,}"
            return sample.counting(calls=stats.calls, connections=stats.connections)

        spark_task, engine, bare = "enrichkit, one Spark task", "enrichkit, engine without Spark", "bare pyreqwest"
        runs = {
            spark_task: lambda: meter.spark(frame.select(column)),
            engine: lambda: meter.run(lambda: with_engine(config, keys)),
            bare: lambda: meter.run(lambda: with_client(service.url, keys)),
        }
        samples = alternate({name: lambda n=name: run(n) for name in runs}, rounds=2 if quick else PAIRS)
    for name, sampled in samples.items():
        speed = spread(rates(sampled, count), digits=0)
        counts = (f"{sampled[-1].counts[what]:,}" for what in ("calls", "connections"))
        table.rows.append((name, speed, *per_item(sampled, count), *counts))
    table.notes.append("without Spark each run opens its connections, in Spark the worker has kept them")
    table.notes.append("each value was compared with what its key says, in a run of its own")
    for name in (spark_task, engine):
        goal, reached = at_least(0.7, bare, rates(samples[name], count), rates(samples[bare], count))
        table.goals.append((f"{name}: {goal}", reached))
    return [table]
