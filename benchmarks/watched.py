"""
N13: what a monitor costs the workers: their CPU with a monitor and without one, in pairs.

The works are those of N1, N3, N4 and N9. Where neither a source nor the decoding of answers takes time, as with cached
keys, the share of the monitor is the largest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.harness import COLUMN, Table, alternate, median
from benchmarks.postgres_bulk import TABLE
from benchmarks.redis_bulk import seed
from benchmarks.spark_runs import WARMUP, Meter, keys_of
from enrichkit import Cache, enrich, local, monitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

PAIRS = 20
MORE_MAX = 0.03
KEYS = 1_000_000
HTTP_KEYS = 20_000
REPEATED = 10_000
"""Distinct keys of the rows that repeat their keys."""
CACHED = 4
"""So many times the rows for cached keys: the kernel counts CPU in steps of 10 ms, 3 % of a run of a million rows."""
SOURCES = (*COLUMN, "enrichkit/observe", "benchmarks/watched.py")


def main(quick: bool) -> list[Table]:
    """Measure N13."""
    from enrichkit_http import HttpConfig
    from enrichkit_postgres import PostgresConfig
    from enrichkit_redis import RedisConfig

    table = Table(
        "N13",
        "CPU of the workers with a monitor and without one, median of pairs",
        ("work", "rows", "us CPU per row without", "with", "more"),
    )
    with local.redis() as server, local.http() as service, local.postgres() as database, local.spark() as spark:
        count = KEYS // 20 if quick else KEYS
        seed(server.url, count)
        service.script(latency=0.05)
        dsn = database.create_database()
        database.execute(TABLE.format(count=count), dsn.rpartition("/")[2])
        meter = Meter(server.pid, database.pid)
        http = HttpConfig(url=service.url + "/{}", value="score")
        store = RedisConfig(url=server.url)
        users = PostgresConfig(dsn=dsn, table="users", key="id", columns=("name",))
        numbers = spark.range(0, count, 1, 2).selectExpr("cast(id as int) as key")
        works: dict[str, tuple[int, Callable[[], DataFrame]]] = {
            "N1: HTTP, 50 ms": (HTTP_KEYS, lambda: _column(spark, HTTP_KEYS, http, returns="int")),
            "N3: Redis, distinct keys": (count, lambda: _column(spark, count, store)),
            "N4: PostgreSQL, distinct keys": (count, lambda: numbers.select(enrich(users, "key"))),
            "N9: cached keys": (
                CACHED * count,
                lambda: keys_of(spark, CACHED * count, "u").selectExpr(
                    f"concat('u', pmod(cast(substring(key, 2) as int), {REPEATED})) as key"
                ).select(enrich(store, "key", cache=Cache(ttl=600.0))),
            ),
        }  # fmt: skip
        for name, (rows, frame) in works.items():
            unwatched = frame()  # an enrichment reports to the monitor that there is when it is made
            with monitor(terminal=False):
                watched = frame()
                samples = alternate(
                    {"without": lambda f=unwatched: meter.spark(f), "with": lambda f=watched: meter.spark(f)},  # type: ignore[misc]
                    rounds=2 if quick else PAIRS,
                    warmup=1 if quick or rows == HTTP_KEYS else WARMUP // 2,
                )
            without, with_monitor = (
                [sample.cpu / rows * 1e6 for sample in samples[one]] for one in ("without", "with")
            )
            more = median([on / off for on, off in zip(with_monitor, without, strict=True)]) - 1
            table.rows.append(
                (name, f"{rows:,}", f"{median(without):.3g}", f"{median(with_monitor):.3g}", f"{more:+.1%}")
            )
            print("   ", *table.rows[-1], flush=True)
            table.goals.append((f"{name}: at most {MORE_MAX:.0%} more CPU: {more:+.1%}", more <= MORE_MAX))
    table.notes = ["the statistics are always counted; the monitor adds the pushes of the workers, once a second"]
    return [table]


def _column(spark: SparkSession, count: int, source: Any, **options: Any) -> DataFrame:
    return keys_of(spark, count, "u").select(enrich(source, "key", **options))
