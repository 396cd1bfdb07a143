"""
N11: repeated keys without options, with Redis: how many keys two tasks send, and what reuse costs and saves.

And the cost of a journal on the local disk: distinct keys with and without one, and the replay that finds all answers.
"""

from __future__ import annotations

import shutil
from itertools import count as numbers_from
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.harness import (
    COLUMN,
    SHORT_PAIRS,
    Sample,
    Table,
    alternate,
    at_least,
    median,
    per_item,
    rates,
    ratios,
    spread,
    times,
)
from benchmarks.redis_bulk import calls, seed
from benchmarks.spark_runs import WARMUP, Meter, keys_of, to_nowhere
from enrichkit import Journal, enrich, local

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

ROWS, TASKS = 1_000_000, 2
FEW, SOME = 100, 10_000
SENT_MAX = TASKS * SOME
TIMES_MAX = 1.4
SLOWER_MAX = 0.03
JOURNAL_MIN = 0.5
SOURCES = (
    *COLUMN,
    "enrichkit/journal",
    "plugins/enrichkit-redis/enrichkit_redis",
    "benchmarks/reuse.py",
)


def rows_of(spark: SparkSession, count: int, distinct: int) -> DataFrame:
    """Return *count* rows in two tasks; their *distinct* keys come in random order, or once each."""
    from pyspark.sql import functions as F

    if distinct == count:
        return keys_of(spark, count, "u", TASKS)
    number = F.pmod(F.xxhash64("id"), F.lit(distinct)).cast("string")
    return spark.range(0, count, 1, TASKS).select(F.concat(F.lit("u"), number).alias("key"))


def main(quick: bool) -> list[Table]:
    """Measure N11."""
    from enrichkit_redis import RedisConfig

    count = ROWS // 20 if quick else ROWS
    columns = ("keys", "approach", "rows/s", "us CPU per row", "JVM", "server", "most keys sent")
    reuse = Table("N11", f"{count:,} rows, two tasks, Redis, no options", columns)
    journaled = Table("N11, journal", f"{count:,} distinct keys, Redis, a journal on the local disk", columns[1:])
    with local.redis() as server, local.spark() as spark, TemporaryDirectory(prefix="enrichkit-reuse-") as folder:
        seed(server.url, count)
        meter = Meter(server.pid)
        store = RedisConfig(url=server.url)

        def run(frame: DataFrame) -> Sample:
            calls(server.url)
            sample = meter.spark(frame)
            return sample.counting(sent=calls(server.url)[1])

        def checked(frame: DataFrame, column: Any) -> None:
            right = frame.withColumn("value", column).where("value <=> concat('value of ', key)").count()
            assert right == count, f"{count - right:,} values are wrong"

        samples: dict[str, list[Sample]] = {}
        # The last pair apart: a difference of 3 % would vanish in what the work before has left in the caches.
        for group in ((FEW, SOME), (count,)):
            runs: dict[str, Callable[[], Sample]] = {}
            for distinct in group:
                frame = rows_of(spark, count, distinct)
                checked(frame, enrich(store, "key"))
                for name, options in (("reuse", {}), ("reuse=False", {"reuse": False})):
                    column = enrich(store, "key", **options)
                    runs[f"{distinct:,} {name}"] = lambda frame=frame, column=column: run(frame.select(column))  # type: ignore[misc]
            rounds, warmup = (2, 1) if quick else (SHORT_PAIRS, WARMUP // len(runs))
            samples |= alternate(runs, rounds=rounds, warmup=warmup)
        _tell_reuse(reuse, samples, count)
        samples = _with_journals(spark, store, Path(folder), run, checked, count, quick=quick)
        _tell_journal(journaled, samples, count)
    for table in (reuse, journaled):
        table.notes.append(f"{server}; two tasks; each value was compared with what its key says, in a run of its own")
    return [reuse, journaled]


def _tell_reuse(table: Table, samples: dict[str, list[Sample]], count: int) -> None:
    for name, found in samples.items():
        keys, approach = name.split()
        sent = f"{max(int(sample.counts['sent']) for sample in found):,}"
        table.rows.append((keys, approach, spread(rates(found, count), digits=0), *per_item(found, count), sent))
    some = samples[f"{SOME:,} reuse"]
    sent = max(int(sample.counts["sent"]) for sample in some)
    table.goals.append((f"at most {SENT_MAX:,} keys sent for {SOME:,} distinct ones: {sent:,}", sent <= SENT_MAX))
    seconds = [[sample.seconds for sample in samples[f"{distinct:,} reuse"]] for distinct in (SOME, FEW)]
    reached = ratios(*seconds)[1] <= TIMES_MAX
    table.goals.append((f"at most {TIMES_MAX} x the time of {FEW} distinct keys: {times(*seconds)}", reached))
    name, other = f"{count:,} reuse", f"{count:,} reuse=False"
    rate = rates(samples[name], count), rates(samples[other], count)
    table.goals.append(at_least(1 - SLOWER_MAX, "reuse=False where no key repeats, the rate", *rate))
    for distinct in (FEW, SOME):
        on, off = (rates(samples[f"{distinct:,} {name}"], count) for name in ("reuse", "reuse=False"))
        table.notes.append(f"{distinct:,} distinct keys: {times(on, off)} x the rate of reuse=False")


def _with_journals(
    spark: SparkSession,
    store: Any,
    folder: Path,
    run: Callable[[DataFrame], Sample],
    checked: Callable[[DataFrame, Any], None],
    count: int,
    *,
    quick: bool,
) -> dict[str, list[Sample]]:
    """Measure distinct keys without a journal, with an empty one, and with one that holds them all."""
    frame = keys_of(spark, count, "u", TASKS)
    places = numbers_from()

    def column(place: Path) -> Any:
        return enrich(store, "key", journal=Journal(str(place), run_id="run"))

    full = folder / "full"
    for _ in range(2):  # with calls, and from the journal
        checked(frame, column(full))

    def empty() -> Sample:
        place = folder / str(next(places))
        sample = run(frame.select(column(place)))
        size = sum(file.stat().st_size for file in place.rglob("*.journal"))
        shutil.rmtree(place)
        return sample.counting(**sample.counts, bytes=size)

    plain = enrich(store, "key")
    for _ in range(1 if quick else WARMUP // 3):
        to_nowhere(frame.select(plain))
    return alternate(
        {
            "no journal": lambda: run(frame.select(plain)),
            "empty journal": empty,
            "full journal": lambda: run(frame.select(column(full))),
        },
        rounds=2 if quick else SHORT_PAIRS,
        warmup=1,
    )


def _tell_journal(table: Table, samples: dict[str, list[Sample]], count: int) -> None:
    for name, found in samples.items():
        sent = f"{max(int(sample.counts['sent']) for sample in found):,}"
        table.rows.append((name, spread(rates(found, count), digits=0), *per_item(found, count), sent))
    without = rates(samples["no journal"], count)
    rate = rates(samples["empty journal"], count)
    table.goals.append(at_least(JOURNAL_MIN, "the rate without a journal, with an empty one", rate, without))
    sent = max(int(sample.counts["sent"]) for sample in samples["full journal"])
    table.goals.append((f"a replay sends no key: {sent:,}", sent == 0))
    table.notes.append(f"the replay has {times(rates(samples['full journal'], count), without)} x the rate without one")
    size = median([sample.counts["bytes"] for sample in samples["empty journal"]])
    table.notes.append(f"the journal has {size / count:.0f} bytes per answer")
