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

from enrichkit.testing.proxy import FaultProxy, fault_proxy

from ..test_local import alive, descendants, wait_until
from .test_streaming_replay import command_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enrichkit.local import HttpService

KEYS, CAPACITY, TASKS = 4_000, 10, 2
LATENCY = 0.03
CLUSTER = "local-cluster[2,1,1024]"

# Not `spark`: each test has a Spark of its own.
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
        wait_until(lambda: self.service.stats().calls >= calls, timeout=90)
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
        output, errors = self.process.communicate(timeout=120)
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


@contextmanager
def driver(service: HttpService, master: str = CLUSTER, **conf: str) -> Iterator[Driver]:
    """Start a job; at its end no process may be left, and no connection 10 s later."""
    service.script(latency=LATENCY)
    service.reset_stats()
    with fault_proxy("127.0.0.1", service.port) as proxy:
        asked = {"master": master, "conf": conf, "url": proxy.url(service.url), "capacity": CAPACITY, "keys": KEYS}
        with started("chaos_driver.py", asked, service, proxy) as running:
            yield running
            assert running.seen, "nobody looked"
            wait_until(lambda: proxy.open == 0 and not any(map(alive, running.seen)), timeout=60)
            assert service.stats().in_flight == 0


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def assert_all_right(results: list[dict[str, Any]]) -> None:
    assert results == [{"rows": KEYS, "right": KEYS}]


def test_a_python_worker_is_killed(http_service: HttpService) -> None:
    """Spark runs its task again; the calls of the task that died are made again, and no other."""
    with driver(http_service) as job:
        job.after(800)
        os.kill(job.worker(), signal.SIGKILL)
        assert_all_right(job.results())
        assert KEYS < http_service.stats().calls <= KEYS + KEYS // 4 + TASKS * CAPACITY


def test_a_python_worker_stands_still(http_service: HttpService) -> None:
    """For less than `timeout`: no key is asked for twice."""
    with driver(http_service) as job:
        job.after(800)
        worker = job.worker()
        os.kill(worker, signal.SIGSTOP)
        time.sleep(3.0)
        os.kill(worker, signal.SIGCONT)
        assert_all_right(job.results())
        assert http_service.stats().calls <= KEYS + CAPACITY


def test_an_executor_is_killed(http_service: HttpService) -> None:
    """Its task, and what it had finished and nobody had fetched, run again on another executor."""
    with driver(http_service) as job:
        job.after(800)
        busy = _parent(_parent(job.worker()))  # the other one may have no task yet, on a busy machine
        os.kill(busy, signal.SIGKILL)
        assert_all_right(job.results())
        assert KEYS < http_service.stats().calls <= KEYS + KEYS // 2 + TASKS * CAPACITY


def test_a_job_is_cancelled_and_the_next_one_is_right(http_service: HttpService) -> None:
    with driver(http_service, master="local[2]") as job:
        job.after(800)
        assert job.process.stdin is not None
        job.process.stdin.write("cancel\n")
        job.process.stdin.flush()
        cancelled, after = job.results()
        assert "cancelled" in cancelled["error"]
        assert after == {"rows": KEYS, "right": KEYS}
        assert http_service.stats().calls <= 2 * KEYS


def test_the_driver_is_killed(http_service: HttpService) -> None:
    """The workers notice that nobody takes their rows, and end; the service gets no more calls."""
    with driver(http_service) as job:
        job.after(800)
        job.process.kill()
        job.process.wait()
        wait_until(lambda: not any(map(alive, job.seen)), timeout=60)
        calls = http_service.stats().calls
        time.sleep(1.0)
        assert http_service.stats().calls == calls < KEYS
