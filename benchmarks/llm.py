"""
A language model asked for each row: enrichkit, a UDF with the vendor's client, Daft and Ray Data, on the same service.

Each engine is a process of its own and takes its turns. At the end a worker of each is killed when half of the rows are
answered, and the job goes on or is started again until its values are right: what was paid again is counted.
The first call downloads about 0.6 GB into `.matrix/`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import COLUMN, Table, median, spread, times
from benchmarks.llm_jobs import JOBS, MARK
from benchmarks.peers import PACKAGES_OF, Peer, PeerError, Turn, environment
from enrichkit import local
from enrichkit.local.process import stop

ROWS, IN_FLIGHT = 4_000, 200
FASTEST, SLOWEST = 0.05, 2.0
OPENAI = "openai==2.38.0"
PACKAGES = {
    "Daft prompt": (PACKAGES_OF["Daft"][0].replace("daft", "daft[openai]"), OPENAI),
    "Ray Data actors": (*PACKAGES_OF["Ray Data"], OPENAI),
}
UNMETERED = ("Ray Data actors",)  # its workers end with their job, so their CPU time cannot be read
SOURCES = (
    *COLUMN,
    "enrichkit/journal",
    "plugins/enrichkit-http/enrichkit_http",
    "plugins/enrichkit-llm/enrichkit_llm",
    "benchmarks/llm.py",
    "benchmarks/llm_jobs.py",
    "benchmarks/peers.py",
)


def starter(name: str, url: str, journal: str) -> Callable[[], Peer]:
    """Install what the engine *name* needs, and return the function that starts it."""
    uv = os.environ.get("UV")
    if uv is None and name != "enrichkit":
        raise PeerError("UV does not name the program uv, which installs it; ./run bench sets it")
    python, path = Path(sys.executable), []
    if name in PACKAGES:
        python = environment(str(uv), f"llm {name.partition(' ')[0]}", PACKAGES[name])
    elif name != "enrichkit":  # Spark has the packages of this environment, and the client besides
        path = [*environment(str(uv), "llm openai", (OPENAI,)).parent.parent.glob("lib/python*/site-packages")]
    return lambda: Peer(python, "benchmarks.llm_jobs", name, url, str(IN_FLIGHT), journal, mark=MARK, path=path)


def main(quick: bool) -> list[Table]:
    """Measure all engines."""
    rows, rounds = (400, 2) if quick else (ROWS, 5)
    table = Table(
        "models",
        f"a model that takes {FASTEST:g} to {SLOWEST:g} s, {rows:,} texts, {IN_FLIGHT} calls in flight",
        (
            "engine",
            "rows/s",
            "us CPU per row",
            "in flight",
            "calls of a job",
            "paid again after a kill",
            "ours is faster by",
        ),
    )
    with local.llm_service() as service, TemporaryDirectory() as journal, contextlib.ExitStack() as stack:
        service.script(latency=FASTEST, slowest=SLOWEST)
        peers: dict[str, Peer] = {}
        starters: dict[str, Callable[[], Peer]] = {}
        failed: dict[str, str] = {}
        stack.callback(lambda: [stop(peer.process) for peer in peers.values()])
        for name in JOBS:
            try:
                starters[name] = starter(name, service.url, journal)
                peers[name] = starters[name]()
                peers[name].job(20, "warm")
            except PeerError as error:
                failed[name] = str(error)
                if name in peers:
                    stop(peers.pop(name).process)
        turns: dict[str, list[Turn]] = {name: [] for name in peers}
        seen: dict[str, tuple[int, int]] = {}
        for number in range(rounds):
            for name, peer in list(peers.items()):
                service.reset_stats()
                try:
                    turns[name].append(peer.job(rows, f"run-{number}"))
                except PeerError as error:
                    failed[name] = str(error)
                    stop(peers.pop(name).process)
                    continue
                stats = service.stats()
                seen[name] = stats.peak, stats.answered
                print(f"    {name}: {turns[name][-1].seconds:.2f} s", flush=True)
        paid = {}
        for name in peers:
            service.reset_stats()
            peers[name] = with_a_kill(peers[name], starters[name], rows, service)
            paid[name] = service.stats().answered - rows
            print(f"    {name}: {paid[name]:,} calls paid again", flush=True)
    ours = [rows / turn.seconds for turn in turns["enrichkit"]]
    for name, found in ((name, turns[name]) for name in peers):
        rate = [rows / turn.seconds for turn in found]
        cpu = "-" if name in UNMETERED else f"{median([turn.cpu for turn in found]) / rows * 1e6:,.0f}"
        peak, calls = seen[name]
        faster = "-" if name == "enrichkit" else times(ours, rate)
        table.rows.append((name, spread(rate, digits=0), cpu, f"{peak:,}", f"{calls:,}", f"{paid[name]:,}", faster))
    table.rows += [(name, "not run", *["-"] * 5) for name in failed]
    table.notes += [
        "the CPU is that of all processes of an engine, JVM and workers included; those of Ray end unmeasured",
        "killed at half: a Python worker of Spark, an actor of Ray, and the process of Daft, which is started again",
        "enrichkit writes a journal, in each run; each value of each run was compared with what its text says",
        *(f"{name}: {why}" for name, why in failed.items()),
    ]
    table.goals.append(
        (f"enrichkit pays again for at most {IN_FLIGHT} calls: {paid['enrichkit']}", paid["enrichkit"] <= IN_FLIGHT)
    )
    return [table]


def with_a_kill(peer: Peer, start: Callable[[], Peer], rows: int, service: local.LlmService) -> Peer:
    """Do a job of which a worker is killed at half, until its values are right; return the engine that did it."""
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(peer.job, rows, "killed")
        while service.stats().answered < rows // 2:
            time.sleep(0.01)
        os.kill(worker_of(peer.process.pid), signal.SIGKILL)
        try:
            job.result()
            return peer
        except (PeerError, OSError):
            stop(peer.process)
    again = start()
    again.job(rows, "killed")
    return again


def worker_of(root: int) -> int:
    """Return the process that does the work of an engine below *root*: a worker of Spark or Ray, else *root* itself."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(folder.name)
            commands[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])

    def is_below(pid: int) -> bool:
        while pid not in (0, root):
            pid = parents.get(pid, 0)
        return pid == root

    for pid, command in sorted(commands.items(), reverse=True):
        is_spark = "pyspark.daemon" in command and "pyspark.daemon" in commands.get(parents.get(pid, 0), "")
        if (is_spark or command.startswith("ray::MapWorker")) and is_below(pid):
            return pid
    return root
