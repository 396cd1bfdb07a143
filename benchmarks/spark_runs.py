"""The tools of the Spark benchmarks: runs into the noop sink, and the CPU time of all processes that took part."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Sample, timed

WARMUP = 30
"""
The number of jobs of half a second before the first one that counts. A JVM compiles its code for so long: N3's job
takes 0.35 to 0.4 s of the JVM's CPU at first, 0.3 s after 15 jobs, and 0.22 to 0.25 s from the 30th to the 70th job.
"""

TICKS = os.sysconf("SC_CLK_TCK")


class Meter:
    """
    The CPU seconds that this process's Spark and the server have used; *servers* are the process ids of the server.

    Attributes:
        workers: The process ids of the Python workers at the last `read`.
    """

    def __init__(self, *servers: int) -> None:
        self.servers = servers
        self.workers: list[int] = []

    def read(self) -> tuple[float, float, float]:
        """Return the CPU seconds of the Python workers, the JVMs and the server, including ended child processes."""
        ticks: dict[int, tuple[int, int]] = {}
        parents: dict[int, int] = {}
        daemons, javas = set(), set()
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                name, _, rest = (folder / "stat").read_text().rpartition(")")
                command = (folder / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has just ended
            pid, fields = int(folder.name), rest.split()
            parents[pid] = int(fields[1])
            ticks[pid] = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
            if b"pyspark.daemon" in command:
                daemons.add(pid)
            elif name.endswith("(java"):
                javas.add(pid)

        def below(*roots: int) -> set[int]:
            return {pid for pid in parents if not set(roots).isdisjoint(_line(pid, parents))}

        ours, servers = below(os.getpid()), below(*self.servers)
        self.workers = [pid for pid in daemons & ours if parents[pid] in daemons]
        workers = sum(sum(ticks[pid]) for pid in daemons & ours)
        # The ended children of a JVM do not count for the JVM: they are Python daemons, or other servers.
        return (
            workers / TICKS,
            sum(ticks[pid][0] for pid in javas & ours) / TICKS,
            sum(sum(ticks[pid]) for pid in servers) / TICKS,
        )

    def peak(self) -> float:
        """Return the largest resident memory, in MiB, that one of the Python workers at the last `read` ever had."""
        found = []
        for pid in self.workers:
            status = Path(f"/proc/{pid}/status").read_text()
            found.append(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
        return max(found)

    def spark(self, frame: Any) -> Sample:
        """Run *frame* into the noop sink, and return its sample."""
        return self.run(lambda: to_nowhere(frame))

    def run(self, work: Callable[[], object]) -> Sample:
        """Run *work*, here or in Spark; the CPU of this process counts as that of a Python worker."""
        before = self.read()
        sample = timed(work)
        workers, jvm, server = (after - first for after, first in zip(self.read(), before, strict=True))
        return Sample(sample.seconds, sample.cpu + workers, jvm, server)


def to_nowhere(frame: Any) -> None:
    """Run *frame* into the noop sink."""
    frame.write.format("noop").mode("overwrite").save()


def warm_up(frame: Any, *, quick: bool = False) -> None:
    """Run *frame* into the noop sink WARMUP times."""
    for _ in range(1 if quick else WARMUP):
        to_nowhere(frame)


def _line(pid: int, parents: dict[int, int]) -> list[int]:
    """Return *pid* and the ids of its ancestor processes."""
    line = [pid]
    while (pid := parents.get(pid, 0)) and pid not in line:
        line.append(pid)
    return line


def keys_of(spark: Any, count: int, prefix: str, tasks: int = 2) -> Any:
    """Return a frame of *count* distinct text keys, each *prefix* and a number, in *tasks* partitions."""
    from pyspark.sql import functions as F

    return spark.range(0, count, 1, tasks).select(F.concat(F.lit(prefix), F.col("id").cast("string")).alias("key"))
