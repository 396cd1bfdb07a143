"""What the Spark benchmarks share: a run to the noop sink, and the CPU of all that took part in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Sample, timed

WARMUP = 30
"""
Jobs of half a second before the first that counts. A JVM compiles what it runs for so long: N3's job takes 0.35 to
0.4 s of its CPU at first, 0.3 after 15 jobs, and 0.22 to 0.25 from the 30th to the 70th.
"""

TICKS = os.sysconf("SC_CLK_TCK")


class Meter:
    """
    The CPU seconds that Spark below this process and the server with the processes *servers* have used.

    Attributes:
        workers: The Python workers that there were at the last look.
    """

    def __init__(self, *servers: int) -> None:
        self.servers = servers
        self.workers: list[int] = []

    def read(self) -> tuple[float, float, float]:
        """Return the CPU seconds of the Python workers, of the JVMs, and of the server, ended children included."""
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
                continue  # it has just ended
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
        # Not the children of a JVM that have ended: they are Python daemons, or servers of others.
        return (
            workers / TICKS,
            sum(ticks[pid][0] for pid in javas & ours) / TICKS,
            sum(sum(ticks[pid]) for pid in servers) / TICKS,
        )

    def peak(self) -> float:
        """Return the most memory, in MiB, that a Python worker ever had resident; of those at the last look."""
        found = []
        for pid in self.workers:
            status = Path(f"/proc/{pid}/status").read_text()
            found.append(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
        return max(found)

    def spark(self, frame: Any) -> Sample:
        """Run *frame* into the noop sink."""
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
    """Return *pid* and the processes above it."""
    line = [pid]
    while (pid := parents.get(pid, 0)) and pid not in line:
        line.append(pid)
    return line


def keys_of(spark: Any, count: int, prefix: str, tasks: int = 2) -> Any:
    """Return a frame of *count* distinct text keys, *prefix* and a number, in *tasks* partitions."""
    from pyspark.sql import functions as F

    return spark.range(0, count, 1, tasks).select(F.concat(F.lit(prefix), F.col("id").cast("string")).alias("key"))
