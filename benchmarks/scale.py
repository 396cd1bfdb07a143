"""
The cost of a row by the number of rows, distinct keys and workers, and by the size of keys and values.

Each table gives the wall time and CPU time of a row, and the ratio to one line of the table, as medians of the rounds.
If a line costs over a quarter more than the cheapest line, a note says which part of the cost has grown: wall time x
cores is the sum of the CPU time of Python, JVM and server, and of the time of idle cores.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.harness import COLUMN, PAIRS, SHORT_PAIRS, Sample, Table, alternate, median, per_item, spread, times
from benchmarks.postgres_bulk import STEP
from benchmarks.redis_bulk import calls, seed
from benchmarks.spark_runs import Meter, warm_up
from enrichkit import enrich, local

ROWS = (10_000, 100_000, 1_000_000, 5_000_000)
MANY = 1_000_000
DISTINCT = (100, 10_000, 100_000, 1_000_000)
MASTERS = ("local[1]", "local[2]", "local-cluster[2,1,2048]")
WARM_ROWS = 100_000
SHORT_ROWS = 200_000  # a job of these rows takes half a second
SIZED_ROWS = 200_000
KEY_SIZES = (10, 100, 1_000)
VALUE_SIZES = (20, 100, 1_000, 5_000)
BESIDE = "x that of "
SOURCES = (*COLUMN, "plugins/enrichkit-redis/enrichkit_redis", "benchmarks/scale.py")

Measured: TypeAlias = Mapping[str, tuple[int, list[Sample]]]
"""For each line of a table, its number of rows and its runs."""


def headings(first: str, *beside: str) -> tuple[str, ...]:
    """Return the headings of a table whose first column is *first*, with a column of ratios to each line *beside*."""
    ratios = (f"{BESIDE}{name}" for name in beside)
    return (first, "rows", "us per row", *ratios, "Python CPU", "JVM", "server", "keys sent")


@dataclass(frozen=True)
class Line:
    """
    One line of a table.

    Attributes:
        rows: Number of rows.
        frame: Frame with the columns `value` and `expected`, which must be equal.
    """

    rows: int
    frame: Any


class Bench:
    """A Redis, a Spark session, and methods to measure jobs; with *quick*, there are few rounds of few rows."""

    def __init__(self, server: local.RedisServer, spark: Any, *, quick: bool) -> None:
        self.server = server
        self.spark = spark
        self.meter = Meter(server.pid)
        self.quick = quick
        self.share = 50 if quick else 1

    def warm_up(self) -> None:
        """Run a job of a tenth of a second until the JVM has compiled its code."""
        warm_up(self.line(WARM_ROWS // self.share).frame.select("value"), quick=self.quick)

    def line(
        self, rows: int, *, distinct: int = 0, before: str = "u", after: str = "", padding: int = 0, tasks: int = 2
    ) -> Line:
        """Return *rows* rows that cycle through *distinct* keys; with 0, all keys are distinct."""
        from enrichkit_redis import RedisConfig
        from pyspark.sql import functions as F

        number = F.expr(f"cast(id * {STEP} % {distinct or rows} AS string)")
        frame = self.spark.range(0, rows, 1, tasks).select(number.alias("number"))
        key = F.concat(F.lit("u"), "number", F.lit(after))
        value = enrich(RedisConfig(url=self.server.url, key=before.removesuffix("u") + "{}"), key)
        expected = F.concat(F.lit("value of u"), "number", F.lit("v" * padding))
        return Line(rows, frame.select(value.alias("value"), expected.alias("expected")))

    def measure(self, table: Table, lines: Mapping[str, Line], *, peak: bool = False) -> Measured:
        """
        Check the values of *lines*, then run them in turn and fill *table*.

        A column `x that of LINE` gets the ratio of the cost of a row to that of LINE in the same round. With *peak* the
        table also gets the memory of a worker.
        """
        memory: dict[str, str] = {}
        for name, line in lines.items():
            right = line.frame.where("value <=> expected").count()
            assert right == line.rows, f"{name}: {line.rows - right:,} values are wrong"
            self.meter.read()
            memory[name] = f"{self.meter.peak():,.0f}"

        def run(name: str) -> Sample:
            calls(self.server.url)
            sample = self.meter.spark(lines[name].frame.select("value"))
            return sample.counting(sent=calls(self.server.url)[1])

        pairs = SHORT_PAIRS if all(line.rows <= SHORT_ROWS for line in lines.values()) else PAIRS
        samples = alternate({name: lambda n=name: run(n) for name in lines}, 2 if self.quick else pairs)
        micros = {
            name: [sample.seconds / lines[name].rows * 1e6 for sample in found] for name, found in samples.items()
        }
        beside = [title.removeprefix(BESIDE) for title in table.columns if title.startswith(BESIDE)]
        for name, found in samples.items():
            rows = lines[name].rows
            ratios = ("1" if other == name else times(micros[name], micros[other]) for other in beside)
            sent = median([sample.counts["sent"] for sample in found])
            row = (name, f"{rows:,}", spread(micros[name]), *ratios, *per_item(found, rows), f"{sent:,.0f}")
            table.rows.append((*row, memory[name]) if peak else row)
            points = table.numbers.setdefault(table.columns[0], [])
            points.append((len(points), micros[name]))
        return {name: (lines[name].rows, found) for name, found in samples.items()}


def bends(measured: Measured) -> list[str]:
    """Return a note for each line that costs over a quarter more per row than the cheapest: which part has grown."""
    cores = os.cpu_count() or 1

    def parts(rows: int, samples: list[Sample]) -> dict[str, float]:
        found = {
            "Python": median([sample.cpu for sample in samples]),
            "the JVM": median([sample.jvm for sample in samples]),
            "the server": median([sample.server for sample in samples]),
        }
        found["idle cores"] = max(0.0, median([sample.seconds for sample in samples]) * cores - sum(found.values()))
        return {name: seconds / rows * 1e6 for name, seconds in found.items()}

    costs = {name: parts(rows, samples) for name, (rows, samples) in measured.items()}
    least = min(costs, key=lambda name: sum(costs[name].values()))
    notes = []
    for name, cost in costs.items():
        factor = sum(cost.values()) / sum(costs[least].values())
        if factor > 1.25:
            grown = {part: more for part in cost if (more := cost[part] - costs[least][part]) > 0}
            shares = sorted(grown.items(), key=lambda item: -item[1])
            why = ", ".join(f"{part} {more / sum(grown.values()):.0%}" for part, more in shares)
            notes.append(f"{name}: {factor:.1f} x the cost of {least}; of what was added: {why}")
    return notes


def fixed(measured: Measured) -> list[str]:
    """Return a note on the fixed cost of a job: the time of the smallest job as a share of the times of the others."""
    (_, smallest), *others = measured.values()
    least = median([sample.seconds for sample in smallest])
    shares = [f"{least / median([s.seconds for s in samples]):.0%} of {rows:,} rows" for rows, samples in others]
    return [f"a job of one row takes {least:.2f} s, which is of the time of the others: {', '.join(shares)}"]


def main(quick: bool) -> list[Table]:
    """Measure all five tables."""
    tables = []
    with local.redis() as server:
        with local.spark() as spark:
            bench = Bench(server, spark, quick=quick)
            seed(server.url, ROWS[-1] // bench.share)
            bench.warm_up()

            jobs = {f"{rows:,} rows": bench.line(rows) for rows in (rows // bench.share for rows in ROWS)}
            columns = (*headings("job", f"{MANY // bench.share:,} rows"), "peak MiB of a worker")
            table = Table("scale, rows", "distinct keys in Redis, two tasks", columns)
            by_rows = bench.measure(table, {"1 row": bench.line(1), **jobs}, peak=True)
            table.notes += fixed(by_rows)
            tables.append(table)

            table = Table("scale, distinct keys", "two tasks, no cache", headings("distinct keys", f"{MANY:,}"))
            rows = MANY // bench.share
            counts = {f"{count:,}": bench.line(rows, distinct=min(count, rows)) for count in DISTINCT}
            table.notes += bends(bench.measure(table, counts))
            tables.append(table)

            rows = SIZED_ROWS // bench.share
            table = Table("scale, key size", "distinct keys, two tasks", headings("bytes in a key, about", "10"))
            lines = {}
            for size in KEY_SIZES:
                after = "k" * (size - 6)
                seed(server.url, rows, before=f"k{size}:u", after=after)
                lines[f"{size:,}"] = bench.line(rows, before=f"k{size}:u", after=after)
            table.notes += bends(bench.measure(table, lines))
            tables.append(table)

            table = Table("scale, value size", "distinct keys, two tasks", headings("bytes in a value, about", "20"))
            lines = {}
            for size in VALUE_SIZES:
                seed(server.url, rows, before=f"v{size}:u", padding=size - 15)
                lines[f"{size:,}"] = bench.line(rows, before=f"v{size}:u", padding=size - 15)
            table.notes += bends(bench.measure(table, lines))
            tables.append(table)

        table = Table("scale, workers", "distinct keys, as many tasks as workers", headings("master"))
        measured: dict[str, tuple[int, list[Sample]]] = {}
        for master in MASTERS:
            with local.spark(master=master) as spark:
                bench = Bench(server, spark, quick=quick)
                bench.warm_up()
                tasks = 1 if master == "local[1]" else 2
                measured |= bench.measure(table, {master: bench.line(MANY // bench.share, tasks=tasks)})
        table.notes += [*bends(measured), "one session after the other, not in turns: a process has one"]
        tables.append(table)
    tables[0].notes.append("each value was compared with what its key says, in a run of its own")
    return tables
