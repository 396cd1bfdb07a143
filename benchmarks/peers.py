"""
The workload of N1 in other engines, compared with enrichkit: PyFlink's `AsyncDataStream`, Daft, Pathway and Ray Data.

    ./run peers             # all engines; writes benchmarks/results/peers.md
    ./run peers Daft        # some engines; writes nothing

Each engine has its own environment in `.matrix/`; the first call downloads about 3 GB. All processes stay alive and
take turns. Each job is paired with a job of a single key, which separates the cost of a row from the cost of a job.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness import COLUMN, PAIRS, ROOT, Table, median, spread, times
from benchmarks.peer_jobs import MARK
from benchmarks.report import PACKAGES, fingerprint, save
from benchmarks.spark_runs import Meter, keys_of, to_nowhere
from enrichkit import enrich, local
from enrichkit.local.java import java_home
from enrichkit.local.process import start, stop

KEYS, LATENCY, CAPACITY, TASKS = 20_000, 0.050, 100, 2
TIME_LIMIT = 180.0
PACKAGES_OF = {
    "PyFlink": ("apache-flink==2.3.0", "setuptools<80"),
    "Daft": ("daft==0.7.26",),
    "Pathway": ("pathway==0.33.0", "aiohttp==3.14.5"),
    "Ray Data": ("ray[data]==2.60.0",),
}
UNMETERED = ("Ray Data",)  # the workers of Ray end with their job, so their CPU time cannot be read
SOURCES = (
    *COLUMN,
    "plugins/enrichkit-http/enrichkit_http",
    "benchmarks/peers.py",
    "benchmarks/peer_jobs.py",
)


@dataclass(frozen=True)
class Turn:
    """The wall time of one job, and the CPU time of all its processes except the service's, in seconds."""

    seconds: float
    cpu: float


class PeerError(Exception):
    """An engine could not be installed, or its job failed; the table shows the message."""


def environment(uv: str, name: str, wanted: Sequence[str]) -> Path:
    """Return the Python of the environment of *name*; create the environment again if its packages have changed."""
    folder = ROOT / ".matrix" / f"peer-{name.replace(' ', '-').lower()}"
    stamp = hashlib.sha256("\0".join(wanted).encode()).hexdigest()
    if (folder / "stamp").exists() and (folder / "stamp").read_text() == stamp:
        return folder / "bin" / "python"
    print(f"Installing {wanted[0]}", flush=True)
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", "3.11", folder], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", folder / "bin" / "python", *wanted]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(f"cannot be installed: {' '.join(done.stderr.split())[:200]}")
    (folder / "stamp").write_text(stamp)
    return folder / "bin" / "python"


class Peer:
    """
    A process that runs jobs in another engine.

    Args:
        python: Its Python.
        module: What it runs, with *arguments*.
        mark: What its lines begin with that are for us.
        path: Folders from which it imports, besides this checkout.
    """

    def __init__(self, python: Path, module: str, *arguments: str, mark: str = MARK, path: Sequence[Path] = ()) -> None:
        self.log, self.mark = python.parent.parent / "log", mark
        self.log.unlink(missing_ok=True)
        paths = f"{python.parent}:{os.environ['PATH']}"  # PyFlink finds the Python of its workers on the PATH
        quiet = {"DO_NOT_TRACK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        self.process = start(
            [python, "-m", module, *arguments],
            log=self.log,
            env={
                **os.environ,
                **quiet,
                "PATH": paths,
                "PYTHONPATH": ":".join(map(str, [ROOT, *path])),
                "JAVA_HOME": str(java_home()),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        self.meter = Meter(self.process.pid)
        self._answer()

    def job(self, *line: object) -> Turn:
        """Run the job that *line* describes: the number of its keys, and what else the process wants to know."""
        before = self.meter.read()[2]
        assert self.process.stdin is not None
        self.process.stdin.write(f"{' '.join(map(str, line))}\n".encode())
        self.process.stdin.flush()
        answer = json.loads(self._answer())
        if not answer["right"]:
            raise PeerError("its values are wrong")
        return Turn(answer["seconds"], self.meter.read()[2] - before)

    def _answer(self) -> str:
        assert self.process.stdout is not None
        limit = threading.Timer(TIME_LIMIT, self.process.kill)
        limit.start()
        try:
            for line in self.process.stdout:  # the engine itself prints lines, too
                text = line.decode(errors="replace")
                if text.startswith(self.mark):
                    return text.removeprefix(self.mark)
        finally:
            limit.cancel()
        last = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
        raise PeerError(f"ended with {self.process.wait()}, or took over {TIME_LIMIT:g} s: {last[:200]}")


@contextlib.contextmanager
def ours(url: str) -> Iterator[Callable[[int], Turn]]:
    """Check the values of enrichkit's job, and yield the job."""
    from enrichkit_http import HttpConfig

    with local.spark() as spark:
        meter = Meter()
        checked = enrich(HttpConfig(url=url + "/{}"), "key", capacity=CAPACITY, returns="key string, name string")
        frame = keys_of(spark, KEYS, "k", TASKS).withColumn("value", checked)
        assert frame.where("value.key <=> key AND value.name <=> concat('name of ', key)").count() == KEYS
        column = enrich(HttpConfig(url=url + "/{}"), "key", capacity=CAPACITY)

        def job(keys: int) -> Turn:
            sample = meter.run(lambda: to_nowhere(keys_of(spark, keys, "k", TASKS).select(column)))
            return Turn(sample.seconds, sample.cpu + sample.jvm)

        yield job


def main(uv: str, chosen: list[str]) -> int:
    """Measure the engines *chosen*, or all of them, together with enrichkit."""
    for name in chosen:
        if name not in PACKAGES_OF:
            print(f"There is no peer {name!r} here. Peers: {', '.join(PACKAGES_OF)}", file=sys.stderr)
            return 2
    measured = fingerprint(SOURCES)
    columns = (
        "engine",
        "seconds",
        "of one key",
        "rows/s beyond it",
        "share of the floor",
        "us CPU per row",
        "in flight",
    )
    table = Table(
        "peers",
        f"HTTP {LATENCY * 1000:g} ms, {KEYS:,} distinct keys, {CAPACITY} calls in flight x {TASKS} tasks",
        (*columns, "enrichkit is faster by"),
    )
    with local.http() as service, ours(service.url) as job, contextlib.ExitStack() as stack:
        service.script(latency=LATENCY)
        jobs: dict[str, Callable[[int], Turn]] = {f"enrichkit {version('enrichkit')}": job}
        failed: dict[str, str] = {}
        for name in chosen or PACKAGES_OF:
            label = f"{name} {PACKAGES_OF[name][0].rpartition('=')[2]}"
            try:
                python = environment(uv, name, [*PACKAGES_OF[name], f"pyreqwest=={version('pyreqwest')}"])
                peer = Peer(python, "benchmarks.peer_jobs", name, service.url, str(CAPACITY * TASKS))
                stack.callback(stop, peer.process)
                peer.job(KEYS)  # warms the engine up
                jobs[label] = peer.job
            except PeerError as error:
                failed[label] = str(error)
        turns: dict[str, list[tuple[Turn, Turn]]] = {name: [] for name in jobs}
        seen: dict[str, int] = {}
        for _ in range(2 if chosen else PAIRS):
            for name, work in list(jobs.items()):
                try:
                    one = work(1)
                    service.reset_stats()
                    all_of_them = work(KEYS)
                except PeerError as error:
                    failed[name] = str(error)
                    del jobs[name]
                    continue
                stats = service.stats()
                assert stats.keys >= KEYS, f"{name}: the service counted {stats.keys:,} keys, not {KEYS:,}"
                seen[name] = stats.peak
                turns[name].append((one, all_of_them))
                print(f"    {name}: {one.seconds:.2f} s, {all_of_them.seconds:.2f} s", flush=True)
    first: list[float] = []
    for name in jobs:
        ones, whole = ([pair[part] for pair in turns[name]] for part in (0, 1))
        start_up = median([turn.seconds for turn in ones])
        rate = [KEYS / (turn.seconds - start_up) for turn in whole]
        first = first or rate
        cpu = (median([turn.cpu for turn in whole]) - median([turn.cpu for turn in ones])) / KEYS * 1e6
        row = (name, spread([turn.seconds for turn in whole]), f"{start_up:.2f}", spread(rate, digits=0))
        shares = spread([found * LATENCY / (CAPACITY * TASKS) for found in rate])
        known = "-" if name.startswith(UNMETERED) else f"{cpu:,.0f}"
        table.rows.append((*row, shares, known, str(seen[name]), "-" if rate is first else times(first, rate)))
    table.rows += [(name, "not run", *["-"] * 6) for name in failed]
    table.notes += [
        "a job of one key is what it takes to start; rows/s, share and CPU are of what a job takes beyond that",
        f"in flight is the most that the service counted; {CAPACITY * TASKS} were allowed, in Daft by a semaphore",
        "the CPU is that of all processes of an engine, JVM and workers included; those of Ray end unmeasured",
        "all have the HTTP client of enrichkit, but Pathway, which has aiohttp",
        "each value of each run was compared with what its key says; enrichkit's in a run of its own",
        *(f"{name}: {why}" for name, why in failed.items()),
    ]
    print(table.text())
    if not chosen:
        print(f"written to {save('peers', [table], SOURCES, measured, PACKAGES).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ["UV"], sys.argv[1:]))
