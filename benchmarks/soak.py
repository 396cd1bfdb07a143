"""
The soak: half an hour of random faults and outages, in which nothing grows, no value is wrong, and the counters add up.

`./run soak` runs tasks on the engines of one worker process, one thread of tasks for each source, and writes
`benchmarks/results/soak.md`. Beside it another process runs the property tests and the simulation with random seeds
(`explore.py`). `./run soak 2 --seed 7` makes a short one, and writes nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.explore import Exploration
from benchmarks.harness import COLUMN, Table
from benchmarks.random_faults import SOURCES, Source, Tally, look_up
from benchmarks.report import fingerprint, save
from enrichkit.engine.loop import IDLE_AFTER, loop_thread
from enrichkit.testing.bench import wait_until
from enrichkit.testing.storm import FAULTS, storm
from enrichkit.worker import task as worker_task

if TYPE_CHECKING:
    from enrichkit.engine.bridge import Bridge

MINUTES = 30.0
CALM = 0.5
OUTAGE_MAX = 5.0
"""Most seconds of one fault, for example of a server that is away."""
EVERY = 5.0
"""Seconds between two samples."""
MEASURED = (
    *COLUMN,
    "enrichkit/sql",
    "enrichkit/testing/storm.py",
    *(f"plugins/enrichkit-{name}/enrichkit_{name}" for name in ("http", "redis", "postgres", "mariadb")),
    "benchmarks/explore.py",
    "benchmarks/random_faults.py",
    "benchmarks/soak.py",
)


@dataclass(frozen=True)
class Sample:
    """
    What the process holds at one moment.

    Attributes:
        memory: Resident memory in MiB.
        descriptors: Open files and sockets, those of the proxies included.
        threads: Threads.
        tasks: asyncio tasks on the loop of the engines.
        connections: Connections that the connectors have open.
    """

    memory: float
    descriptors: float
    threads: float
    tasks: float
    connections: float


GROWTH = Sample(memory=16.0, descriptors=64.0, threads=2.0, tasks=32.0, connections=32.0)
"""
How much more the median of the last third may be than that of the middle third.

The tasks have random capacities, up to 32 of each source, so all but the memory and the threads vary.
"""
LEFT = 16
"""Descriptors that may be open afterwards beyond those at first: files of libraries, and sockets of the proxies."""


@dataclass
class Job:
    """
    The tasks of one source.

    Attributes:
        source: The source.
        tally: What their rows said.
        tasks: Number of tasks that ended.
        unequal: The tasks whose statistics do not add up.
        failed: The errors of tasks that failed.
    """

    source: Source
    tally: Tally = field(default_factory=Tally)
    tasks: int = 0
    unequal: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def work(self, dice: random.Random, over: threading.Event) -> None:
        """Run one task after another until *over*."""
        while not over.is_set():
            seed = dice.randrange(2**32)
            try:
                tally = look_up(self.source, seed)
                stats = _here.bridge.run.stats
            except Exception as error:  # noqa: BLE001  # the soak goes on, and reports it
                self.failed.append(f"{self.source.name}, seed {seed}: {error!r}")
                continue
            self.tasks += 1
            self.tally.add(tally)
            if stats.rows > tally.rows or stats.keys - stats.shared != stats.done:
                self.unequal.append(f"{self.source.name}, seed {seed}: {stats.as_dict()}")


_here = threading.local()


def remember_bridges() -> None:
    """Keep the bridge of a thread's last task in `_here`, because a run's statistics have no other door."""
    make = worker_task._bridge

    def bridge(*arguments: Any, **settings: Any) -> Bridge:
        _here.bridge = make(*arguments, **settings)
        made: Bridge = _here.bridge
        return made

    worker_task._bridge = bridge


def sample(jobs: list[Job]) -> Sample:
    """Return what the process holds now."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    counted: Future[int] = Future()
    loop_thread().post(lambda: counted.set_result(len(asyncio.all_tasks())))
    return Sample(
        int(status["VmRSS"].split()[0]) / 1024,
        len(list(Path("/proc/self/fd").iterdir())),
        int(status["Threads"]),
        counted.result(30.0),
        sum(job.source.proxy.open for job in jobs),
    )


def soak(seconds: float, seed: int, names: list[str]) -> list[Table]:
    """Soak the sources *names* for *seconds*, and return the tables."""
    remember_bridges()
    dice, over, samples = random.Random(seed), threading.Event(), list[Sample]()
    exploration, explored = Exploration(), random.Random(dice.random())
    with ExitStack() as stack:
        jobs = [Job(stack.enter_context(SOURCES[name]())) for name in names]
        start = sample(jobs)
        with ExitStack() as storms:
            played = [
                storms.enter_context(storm(job.source.proxy, seed=dice.randrange(2**32), calm=CALM, longest=OUTAGE_MAX))
                for job in jobs
            ]
            threads = [threading.Thread(target=job.work, args=(random.Random(dice.random()), over)) for job in jobs]
            threads.append(threading.Thread(target=exploration.run, args=(explored, over)))
            for thread in threads:
                thread.start()
            try:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    time.sleep(min(EVERY, seconds / 30))
                    samples.append(sample(jobs))
            finally:
                over.set()
            for thread in threads:
                thread.join()
        # In a calm network: a storm would close the connections that a connector has forgotten.
        wait_until(lambda: sample(jobs).tasks == 0, IDLE_AFTER + 30.0)
        return [_rows(jobs, played, seed, seconds), _held(start, samples, sample(jobs)), exploration.table()]


def _rows(jobs: list[Job], played: list[Counter[str]], seed: int, seconds: float) -> Table:
    table = Table(
        "Rows",
        f"{seconds / 60:g} minutes of random faults and outages of up to {OUTAGE_MAX:g} s, seed {seed}",
        ("source", "faults", "connections", "tasks", "rows", "ok", "missing", "timeout", "error", "wrong"),
    )
    for job, faults in zip(jobs, played, strict=True):
        statuses = [f"{job.tally.statuses[status]:,}" for status in ("ok", "missing", "timeout", "error")]
        counts = (faults.total(), job.source.proxy.opened, job.tasks, job.tally.rows)
        row = (job.source.name, *(f"{count:,}" for count in counts), *statuses, str(len(job.tally.wrong)))
        table.rows.append(row)
        table.goals += [
            (
                f"{job.source.name}: half of the rows or more are ok",
                job.tally.statuses["ok"] > 0.5 * job.tally.statuses.total(),
            ),
            (f"{job.source.name}: every kind of fault happened", set(faults) == set(FAULTS)),
        ]
        for text, found in (
            ("no wrong value", job.tally.wrong),
            ("the counters of each task add up", job.unequal),
            ("no failed task", job.failed),
        ):
            table.goals.append((f"{job.source.name}: {text}" + "".join(f"\n  - {each}" for each in found), not found))
    table.notes.append("statuses are those of the rows of tasks that ask for details, a third of all tasks")
    return table


def _held(start: Sample, samples: list[Sample], after: Sample) -> Table:
    """Return the table of what the process held; the first third of the time is left out, because caches fill in it."""
    table = Table(
        "Held", "medians of what the process held", ("", "at first", "middle third", "last third", "most", "afterwards")
    )
    third = len(samples) // 3
    for number, what in enumerate(each.name for each in fields(Sample)):
        figures = [astuple(each)[number] for each in samples]
        middle, last = statistics.median(figures[third : 2 * third]), statistics.median(figures[2 * third :])
        allowed = astuple(GROWTH)[number]
        shown = (astuple(start)[number], middle, last, max(figures), astuple(after)[number])
        table.rows.append((what, *(f"{figure:.0f}" for figure in shown)))
        table.goals.append((f"{what} grow by at most {allowed:g} from the middle to the last third ({last - middle:+.0f})",
                            last <= middle + allowed))  # fmt: skip
    table.goals += [
        ("afterwards no task runs and no connection is open", after.connections == after.tasks == 0),
        (f"afterwards at most {LEFT} descriptors more than at first", after.descriptors <= start.descriptors + LEFT),
    ]
    return table


def main() -> int:
    """Run the command line; return 0 when every goal was reached."""
    parser = argparse.ArgumentParser(prog="./run soak", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=MINUTES)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--sources", nargs="+", choices=list(SOURCES), default=["http", "redis", "postgres"])
    asked = parser.parse_args()
    print(f"Soaking for {asked.minutes:g} minutes, --seed {asked.seed}.", flush=True)
    measured = fingerprint(MEASURED)
    tables = soak(60 * asked.minutes, asked.seed, asked.sources)
    for table in tables:
        print(table.text(), flush=True)
    if asked.minutes >= MINUTES:
        print(f"written to {save('soak', tables, MEASURED, measured).name}")
    return 0 if all(reached for table in tables for _, reached in table.goals) else 1


if __name__ == "__main__":
    sys.exit(main())
