"""What every benchmark shares: alternating runs, ratios with quartiles, a table, and a result file that can be trusted."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
MEASURED = (
    "enrichkit",
    "plugins/enrichkit-redis",
    "plugins/enrichkit-postgres",
    "plugins/enrichkit-http",
    "benchmarks",
)
PACKAGES = ("pyspark", "pyarrow", "pandas", "asyncpg", "redis", "hiredis", "pyreqwest", "uvloop", "msgspec")


@dataclass
class Table:
    """
    The outcome of one benchmark.

    Attributes:
        name: For example `N6`.
        title: The workload in one line.
        columns: Headings.
        rows: As many texts each.
        goals: What was to be reached, whether it was, as (text, reached).
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    goals: list[tuple[str, bool]] = field(default_factory=list)

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
        goals = [f"{'reached' if reached else 'MISSED'}: {goal}" for goal, reached in self.goals]
        return "\n".join(
            [f"### {self.name}: {self.title}", "", line(self.columns), rule, *map(line, self.rows), "", *goals, ""]
        )


@dataclass(frozen=True)
class Sample:
    """One run: *seconds* of wall time, and of CPU time of the process that does the work where that is known."""

    seconds: float
    cpu: float = 0.0


def alternate(runs: dict[str, Callable[[], Sample]], rounds: int = 7, warmup: int = 1) -> dict[str, list[Sample]]:
    """Run each of *runs* in turn, *rounds* times after *warmup* uncounted rounds; return the samples by name."""
    samples: dict[str, list[Sample]] = {name: [] for name in runs}
    for number in range(warmup + rounds):
        for name, run in runs.items():
            sample = run()
            if number >= warmup:
                samples[name].append(sample)
                print(f"    {name}: {sample.seconds:.3f} s, cpu {sample.cpu:.3f} s", flush=True)
    return samples


def timed(work: Callable[[], object]) -> Sample:
    """Run *work* in this process and return how long it took."""
    began, cpu = time.perf_counter(), time.process_time()
    work()
    return Sample(time.perf_counter() - began, time.process_time() - cpu)


def median(values: list[float]) -> float:
    """Return the median of *values*."""
    return statistics.median(values)


def ratios(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile of the pairwise ratios ours / theirs."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(ours, theirs, strict=True)], n=4)
    return low, middle, high


def spread(values: list[float], unit: str = "", digits: int = 2) -> str:
    """Return ``median (lower quartile .. upper quartile)`` of *values*."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:,.{digits}f}{unit} ({low:,.{digits}f} .. {high:,.{digits}f})"


def fingerprint(measured: Sequence[str] = MEASURED) -> str:
    """Return a hash of the sources that were *measured*, so that a result tells whether it is older than they."""
    digest = hashlib.sha256()
    for name in measured:
        for path in sorted((ROOT / name).rglob("*.py")) if (ROOT / name).is_dir() else [ROOT / name]:
            if "tests" not in path.relative_to(ROOT / name).parts and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(ROOT)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def save(
    name: str, tables: list[Table], packages: Sequence[str] = PACKAGES, measured: Sequence[str] = MEASURED
) -> Path:
    """
    Write *tables* to `benchmarks/results/NAME.md`, with date, machine, versions and the hash of the sources.

    *packages* are those whose versions here, in this environment, are those that were measured; *measured* are the
    folders and files that hold the sources.
    """
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    head = [
        f"# Benchmark: {name}",
        "",
        f"- date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        f"- load average at the end: {', '.join(f'{load:.1f}' for load in os.getloadavg())}",
        f"- versions: {versions}",
        f"- sources: {fingerprint(measured)}",
        "",
    ]
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    path.write_text("\n".join([*head, *(table.text() for table in tables)]), encoding="utf-8")
    return path
