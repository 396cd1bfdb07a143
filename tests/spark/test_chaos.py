"""Processes of Spark die, stand still, or are cancelled: each row has its value once, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import local
from enrichkit.testing.proxy import FaultProxy, fault_proxy

from ..test_local import alive, descendants, wait_until
from .test_streaming_replay import command_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enrichkit.local import HttpService

KEYS, CAPACITY, TASKS = 1_000, 10, 2
LATENCY = 0.12
CLUSTER = "local-cluster[2,1,1024]"

# Not `spark`: the tests share a Spark of their own.
pytestmark = [pytest.mark.slow, pytest.mark.service]


@dataclass
class Driver:
    """
    A job that runs in a process of its own, and its source behind a proxy.

    Attributes:
        process: The driver.
        service: The source.
        proxy: The network between workers and source.
        seen: All processes below the driver that were ever seen.
    """

    process: subprocess.Popen[str]
    service: HttpService
    proxy: FaultProxy
    seen: set[int] = field(default_factory=set)

    def after(self, calls: int) -> None:
        """Wait until the service has had so many *calls*."""
        wait_until(lambda: self.service.stats().calls >= calls)
        self.seen.update(descendants(self.process.pid))

    def started(self, *names: str) -> list[int]:
        """Return the process ids below the driver whose command has one of *names*, youngest last."""
        found = [pid for pid in descendants(self.process.pid) if any(name in command_of(pid) for name in names)]
        return sorted(found, key=lambda pid: Path(f"/proc/{pid}").stat().st_ctime)

    def worker(self) -> int:
        """Return the process id of a Python worker that runs a task: a child of a daemon."""
        daemons = self.started("pyspark.daemon", "pyspark/daemon")
        return next(pid for pid in daemons if _parent(pid) in daemons)

    def results(self) -> list[dict[str, Any]]:
        """Wait for the end of the driver, and return the lines that it printed."""
        output, errors = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, errors
        return [json.loads(line) for line in output.splitlines()]


@contextmanager
def started(script: str, asked: dict[str, Any], service: Any, proxy: Any = None) -> Iterator[Driver]:
    """Start *script*, which is beside this module, with what it is *asked*; at the end nothing of it goes on."""
    process = subprocess.Popen(
        [sys.executable, Path(__file__).with_name(script), json.dumps(asked)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    running = Driver(process, service, proxy)
    try:
        yield running
    finally:
        running.seen.update(descendants(process.pid))
        process.kill()
        process.communicate()
        for pid in filter(alive, running.seen):
            os.kill(pid, signal.SIGKILL)


@dataclass
class Jobs(Driver):
    """A driver that runs a job when it is told to, in a Spark that goes on after it."""

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def begin(self) -> None:
        """Start a job whose calls are the only ones that count, and wait until it is at a fifth of its keys."""
        wait_until(lambda: self.service.stats().in_flight == 0)
        self.service.reset_stats()
        self.say("job")
        self.after(KEYS // 5)

    def result(self) -> dict[str, Any]:
        """Wait for the end of a job, and return what it printed."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        self.seen.update(descendants(self.process.pid))
        result: dict[str, Any] = json.loads(line)
        return result


@pytest.fixture(scope="module")
def cluster() -> Iterator[Jobs]:
    """A driver and two executors; at the end no process may be left, and no connection."""
    with local.http() as service, fault_proxy("127.0.0.1", service.port) as proxy:
        service.script(latency=LATENCY)
        asked = {"master": CLUSTER, "url": proxy.url(service.url), "capacity": CAPACITY, "keys": KEYS}
        with started("chaos_driver.py", asked, service, proxy) as running:
            jobs = Jobs(running.process, service, proxy, running.seen)
            yield jobs
            jobs.process.communicate(timeout=300)  # closes its standard input, which ends it
            assert jobs.seen, "nobody looked"
            wait_until(lambda: proxy.open == 0 and not any(map(alive, jobs.seen)))
            assert service.stats().in_flight == 0


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


ALL_RIGHT = {"rows": KEYS, "right": KEYS}


def test_a_python_worker_is_killed(cluster: Jobs) -> None:
    """Spark runs its task again; the calls of the task that died are made again, and no other."""
    cluster.begin()
    os.kill(cluster.worker(), signal.SIGKILL)
    assert cluster.result() == ALL_RIGHT
    assert KEYS < cluster.service.stats().calls <= KEYS + KEYS // 4 + TASKS * CAPACITY


def test_a_python_worker_stands_still(cluster: Jobs) -> None:
    """For less than `timeout`: no key is asked for twice."""
    cluster.begin()
    worker = cluster.worker()
    os.kill(worker, signal.SIGSTOP)
    time.sleep(3.0)
    os.kill(worker, signal.SIGCONT)
    assert cluster.result() == ALL_RIGHT
    assert cluster.service.stats().calls <= KEYS + CAPACITY


def test_an_executor_is_killed(cluster: Jobs) -> None:
    """Its task, and what it had finished and nobody had fetched, run again on another executor."""
    cluster.begin()
    busy = _parent(_parent(cluster.worker()))  # the other one may have no task yet, on a busy machine
    os.kill(busy, signal.SIGKILL)
    assert cluster.result() == ALL_RIGHT
    assert KEYS < cluster.service.stats().calls <= KEYS + KEYS // 2 + TASKS * CAPACITY


def test_a_job_is_cancelled_and_the_next_one_is_right(cluster: Jobs) -> None:
    cluster.begin()
    cluster.say("cancel")
    assert "cancelled" in cluster.result()["error"]
    cluster.say("job")
    assert cluster.result() == ALL_RIGHT
    assert cluster.service.stats().calls <= 2 * KEYS


def test_the_driver_is_killed(cluster: Jobs) -> None:
    """The workers notice that nobody takes their rows, and end; the service gets no more calls. The last test here."""
    cluster.begin()
    cluster.process.kill()
    cluster.process.wait()
    wait_until(lambda: not any(map(alive, cluster.seen)))
    calls = cluster.service.stats().calls
    time.sleep(1.0)
    assert cluster.service.stats().calls == calls < KEYS
