"""The tools of all benchmarks: alternating runs, pairs of runs, ratios with quartiles, and tables."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from benchmarks import passes

T = TypeVar("T")
ClientT = TypeVar("ClientT")

ROOT = Path(__file__).parent.parent
PAIRS = 7
SHORT_PAIRS = 3 * PAIRS  # for runs of half a second, whose time other work on the machine changes by a tenth
COLUMN = (
    "enrichkit/engine",
    "enrichkit/worker",
    *(f"enrichkit/observe/{name}.py" for name in ("stats", "clock", "task", "sender")),
    "enrichkit/interface",
    *(f"enrichkit/{name}.py" for name in ("columnar", "plan", "options", "outcome", "driver/udf")),
    *(f"enrichkit/values/{name}.py" for name in ("decode", "decode_columns", "scalars")),
    "benchmarks/harness.py",
    "benchmarks/passes.py",
)
"""The code through which the rows of every column pass, and the code that measures them."""


@dataclass
class Table:
    """
    A table with the figures of one benchmark.

    Attributes:
        name: Name of the table, for example `N6`.
        title: The workload in one line.
        columns: Headings of the columns.
        rows: The rows, each with one text per column.
        goals: The goals as pairs (text, whether the goal was reached).
        notes: Further facts, a sentence each.
        numbers: Data of a picture: for each of its lines, the points as x and the values measured at x.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    goals: list[tuple[str, bool]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    numbers: dict[str, list[tuple[float, list[float]]]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the table as Markdown that also reads well in a terminal."""
        widths = [max(len(row[i]) for row in [self.columns, *self.rows]) for i in range(len(self.columns))]

        def line(row: tuple[str, ...]) -> str:
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            return "| " + " | ".join(cells) + " |"

        rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
        below = [f"- {note}" for note in self.notes]
        below += [f"- {'reached' if reached else 'MISSED'}: {goal}" for goal, reached in self.goals]
        return "\n".join(
            [f"### {self.name}: {self.title}", "", line(self.columns), rule, *map(line, self.rows), "", *below, ""]
        )


@dataclass(frozen=True)
class Sample:
    """
    The measurements of one run, in seconds.

    Attributes:
        seconds: Wall time.
        cpu: CPU time of Python, in this process and in Spark's workers.
        jvm: CPU time of Spark's JVM.
        server: CPU time of the server.
        counts: Counts by name; calls and keys are counted by the server.
    """

    seconds: float
    cpu: float = 0.0
    jvm: float = 0.0
    server: float = 0.0
    counts: Mapping[str, float] = field(default_factory=dict)

    def counting(self, **counts: float) -> Sample:
        """Return the same run with *counts*."""
        return replace(self, counts=counts)


def alternate(
    runs: Mapping[str, Callable[[], Sample]], rounds: int = PAIRS, warmup: int = 1
) -> dict[str, list[Sample]]:
    """
    Run each of *runs* in turn, *rounds* times after *warmup* uncounted rounds; return the samples by name.

    If the benchmark runs in several passes, this pass makes its share of *rounds*, and the result also has the samples
    of earlier passes.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in runs}
    for number in range(warmup + passes.current.share(rounds)):
        for name, run in runs.items():
            sample = run()
            if number >= warmup:
                samples[name].append(sample)
                cpu = f"cpu {sample.cpu:.3f} s, JVM {sample.jvm:.3f} s, server {sample.server:.3f} s"
                print(f"    {name}: {sample.seconds:.3f} s, {cpu}", flush=True)
    return passes.current.pool(samples)


def timed(work: Callable[[], object]) -> Sample:
    """Run *work* in this process, and return its wall time and CPU time."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return Sample(time.perf_counter() - began, time.process_time() - cpu)


async def drain(
    items: Iterable[T],
    in_flight: int,
    connect: Callable[[], AbstractAsyncContextManager[ClientT]],
    fetch: Callable[[ClientT, T], Awaitable[None]],
) -> None:
    """Fetch *items* in *in_flight* coroutines, each with its own client; a free coroutine takes the next item."""
    waiting = iter(items)

    async def some() -> None:
        async with connect() as client:
            for item in waiting:
                await fetch(client, item)

    await asyncio.gather(*(some() for _ in range(in_flight)))


def rates(samples: Sequence[Sample], count: int) -> list[float]:
    """Return the rate of each of *samples*, in which *count* items were done, per second."""
    return [count / sample.seconds for sample in samples]


def per_item(samples: Sequence[Sample], count: int) -> tuple[str, str, str]:
    """Return the median CPU time per item of Python, the JVM and the server, in microseconds."""
    found = []
    for part in ("cpu", "jvm", "server"):
        micros = median([getattr(sample, part) for sample in samples]) / count * 1e6
        found.append(f"{micros:.1f}" if micros < 100 else f"{micros:,.0f}")
    return found[0], found[1], found[2]


def median(values: Sequence[float]) -> float:
    """Return the median of *values*."""
    return statistics.median(values)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile of the pairwise ratios ours / theirs."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4)
    return low, middle, high


def spread(values: Sequence[float], unit: str = "", digits: int = 2) -> str:
    """Return ``median (lower quartile .. upper quartile)`` of *values*."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:,.{digits}f}{unit} ({low:,.{digits}f} .. {high:,.{digits}f})"


def times(ours: Sequence[float], theirs: Sequence[float], digits: int = 2) -> str:
    """Return median and quartiles of the pairwise ratios ours / theirs, as `spread` does."""
    low, middle, high = ratios(ours, theirs)
    return f"{middle:.{digits}f} ({low:.{digits}f} .. {high:.{digits}f})"


def at_least(least: float, what: str, ours: Sequence[float], theirs: Sequence[float]) -> tuple[str, bool]:
    """Return the goal that the median ratio of *ours* and *theirs*, which *what* names, is at least *least*."""
    return f"at least {least:g} x {what}: {times(ours, theirs)}", ratios(ours, theirs)[1] >= least
