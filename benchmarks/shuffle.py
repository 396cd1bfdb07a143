"""
What `enrich_frame(..., shuffle=True)` saves and costs: keys that a whole job sends to Redis, on one machine and on two
executors, and the time of a row with and without the shuffle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.harness import COLUMN, SHORT_PAIRS, Sample, Table, alternate, per_item, rates, spread, times
from benchmarks.redis_bulk import calls, seed
from benchmarks.reuse import SOME, rows_of
from benchmarks.spark_runs import Meter
from enrichkit import enrich_frame, local

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

ROWS = 1_000_000
MASTERS = ("local[2]", "local-cluster[2,1,2048]")
WARMUP = 8
SOURCES = (
    *COLUMN,
    "enrichkit/worker/frame.py",
    "enrichkit/driver/frame_plan.py",
    "plugins/enrichkit-redis/enrichkit_redis",
    "benchmarks/shuffle.py",
)


def main(quick: bool) -> list[Table]:
    """Measure the shuffle."""
    count = ROWS // 20 if quick else ROWS
    table = Table(
        "shuffle",
        f"{count:,} rows of {SOME:,} keys in two partitions, Redis, enrich_frame",
        ("master", "approach", "rows/s", "us CPU per row", "JVM", "server", "most keys sent"),
    )
    with local.redis() as server:
        seed(server.url, SOME)
        for master in MASTERS:
            with local.spark(master=master) as spark:
                samples = _measure(spark, server, count, quick=quick)
            _tell(table, master, samples, count)
        table.notes.append(f"{server}; each value was compared with what its key says, in a run of its own")
    return [table]


def _measure(spark: SparkSession, server: local.RedisServer, count: int, *, quick: bool) -> dict[str, list[Sample]]:
    from enrichkit_redis import RedisConfig

    meter = Meter(server.pid)
    runs: dict[str, Callable[[], Sample]] = {}
    for name, options in (("no shuffle", {}), ("shuffle=True", {"shuffle": True})):
        arguments: dict[str, Any] = {"on": "key", "into": "value", **options}
        frame = enrich_frame(rows_of(spark, count, SOME), RedisConfig(url=server.url), **arguments)
        right = frame.where("value <=> concat('value of ', key)").count()
        assert right == count, f"{name}: {count - right:,} values are wrong"

        def run(frame: Any = frame) -> Sample:
            calls(server.url)
            sample = meter.spark(frame)
            return sample.counting(sent=calls(server.url)[1])

        runs[name] = run
    return alternate(runs, rounds=2 if quick else SHORT_PAIRS, warmup=1 if quick else WARMUP)


def _tell(table: Table, master: str, samples: dict[str, list[Sample]], count: int) -> None:
    for name, found in samples.items():
        sent = f"{max(int(sample.counts['sent']) for sample in found):,}"
        table.rows.append((master, name, spread(rates(found, count), digits=0), *per_item(found, count), sent))
    shuffled, plain = samples["shuffle=True"], samples["no shuffle"]
    most = max(int(sample.counts["sent"]) for sample in shuffled)
    table.goals.append((f"{master}: at most {SOME:,} keys sent by the whole job: {most:,}", most <= SOME))
    table.notes.append(f"{master}: {times(rates(shuffled, count), rates(plain, count))} x the rate without the shuffle")
