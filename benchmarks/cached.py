"""N5: the cache. A million rows with ten thousand skewed keys, compared with Spark's cheapest Python function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count as numbers_from
from typing import Any

from benchmarks.harness import COLUMN, SHORT_PAIRS, Sample, Table, alternate, at_least, per_item, rates, spread
from benchmarks.redis_bulk import calls, seed
from benchmarks.rivals import arrow_column
from benchmarks.spark_runs import WARMUP, Meter
from enrichkit import Cache, enrich, local

ROWS, DISTINCT = 1_000_000, 10_000
SOURCES = (*COLUMN, "plugins/enrichkit-redis/enrichkit_redis", "benchmarks/cached.py")


def identity() -> Any:
    """Return the column of an Arrow UDF that returns each batch unchanged."""

    def same(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches

    return arrow_column(same)


def most(samples: Sequence[Sample]) -> tuple[int, int]:
    """Return, of the sample with the most keys sent, the number of keys and of worker processes."""
    return max((int(sample.counts["sent"]), int(sample.counts["workers"])) for sample in samples)


def main(quick: bool) -> list[Table]:
    """Measure N5."""
    from enrichkit_redis import RedisConfig
    from pyspark.sql import functions as F

    count = ROWS // 20 if quick else ROWS
    table = Table(
        "N5",
        f"{count:,} rows, {DISTINCT:,} skewed keys in Redis, cache=Cache(ttl=60)",
        ("approach", "rows/s", "us CPU per row", "JVM", "server", "most keys sent", "worker processes"),
    )
    with local.redis() as server, local.spark() as spark:
        meter = Meter(server.pid)
        # A third power: the first tenth of the keys has 46 % of the rows.
        skewed = F.floor(F.pow(F.abs(F.hash("id")) / 2**31, 3) * DISTINCT).cast("string")
        rows = spark.range(0, count, 1, 2).select(F.concat(F.lit("u"), skewed).alias("key"))
        distinct = rows.distinct().count()
        prefixes = numbers_from()

        def cold() -> Any:
            """Return a column over a new source, whose keys are in no cache."""
            prefix = f"{next(prefixes)}:"
            seed(server.url, DISTINCT, before=prefix + "u")
            return enrich(RedisConfig(url=server.url, key=prefix + "{}"), "key", cache=Cache(ttl=60))

        warm = cold()
        right = rows.withColumn("value", warm).where("value <=> concat('value of ', key)").count()
        assert right == count, f"{count - right:,} values are wrong"

        def run(column: Any) -> Sample:
            calls(server.url)
            sample = meter.spark(rows.select(column))
            return sample.counting(sent=calls(server.url)[1], workers=len(meter.workers))

        empty, full, same = "enrichkit, empty cache", "enrichkit, warm cache", "Spark's identity Arrow UDF"
        samples = alternate(
            {
                empty: lambda: run(cold()),
                full: lambda: run(warm),
                same: lambda: run(identity()),
            },
            rounds=2 if quick else SHORT_PAIRS,
            warmup=1 if quick else WARMUP // 3,  # each round has three jobs
        )
    for name, found in samples.items():
        sent, workers = most(found)
        speed = spread(rates(found, count), digits=0)
        table.rows.append((name, speed, *per_item(found, count), f"{sent:,}", str(workers)))
    table.notes.append(
        f"{server}; two tasks; {distinct:,} distinct keys; the cache is empty at the start of a run, or full"
    )
    table.notes.append("each value was compared with what its key says, in a run of its own")
    sent, workers = most(samples[empty])
    allowed = distinct * workers
    table.goals.append((f"at most distinct keys x worker processes sent: {sent:,} of {allowed:,}", sent <= allowed))
    for name in (empty, full):
        goal, reached = at_least(0.75, same, rates(samples[name], count), rates(samples[same], count))
        table.goals.append((f"{name}: {goal}", reached))
    return [table]
