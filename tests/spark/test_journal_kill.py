"""A Python worker is killed in the middle of a job: what a journal saves, and what the monitor counts of it."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from ..test_local import alive, wait_until
from .test_chaos import Driver, started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from enrichkit.local import HttpService

KEYS, CAPACITY, BATCH_SIZE, TASKS = 5_000, 25, 1, 2
LATENCY = 0.04
MASTER = "local[2,4]"
"""Two tasks at a time, and each of them up to four times."""

# Not `spark`: each job has a Spark of its own.
pytestmark = [pytest.mark.slow, pytest.mark.service]


@contextmanager
def driver(service: HttpService, journal: Path | None) -> Iterator[Driver]:
    """Start a job; at its end no process may be left."""
    service.script(latency=LATENCY, log=True)
    service.reset_stats()
    asked = {"master": MASTER, "url": service.url, "capacity": CAPACITY, "keys": KEYS}
    asked |= {"tasks": TASKS, "journal": str(journal) if journal else None}
    with started("journal_kill_driver.py", asked, service) as running:
        yield running
        wait_until(lambda: not any(map(alive, running.seen)))


@dataclass(frozen=True)
class Killed:
    """What came out of a job of which a worker was killed: how often each key was asked for, and what it printed."""

    asked: dict[str, int]
    totals: dict[str, int]
    journal: Path | None

    @property
    def calls(self) -> int:
        return sum(self.asked.values())


def killed(service: HttpService, journal: Path | None) -> Killed:
    """Kill a worker when half of the keys have been asked for."""
    with driver(service, journal) as job:
        job.after(KEYS // 2)
        os.kill(job.worker(), signal.SIGKILL)
        [result] = job.results()
    assert (result["rows"], result["right"]) == (KEYS, KEYS)
    asked = {key: count for key, count in service.stats().per_key.items() if count}
    assert len(asked) == KEYS
    assert sum(asked.values()) == service.stats().calls
    return Killed(asked, result["totals"], journal)


@pytest.fixture(scope="module")
def journaled(http_server: HttpService, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    http_server.reset()
    return killed(http_server, tmp_path_factory.mktemp("journal"))


def assert_failed_calls_count_apart(job: Killed, found: int) -> None:
    totals = job.totals
    assert totals["failed_tasks"] == 1
    # The good attempts asked for each key once, less those that they found in the journal.
    good = totals["calls"] - totals["failed_calls"]
    assert good == KEYS - found
    # The service has had the calls of the good attempts, and all of the other one; the monitor lacks its last second.
    assert totals["failed_calls"] <= job.calls - good
    assert job.calls - good - totals["failed_calls"] <= 2 * CAPACITY / LATENCY, "two seconds of one worker"
    assert totals["failed_calls"] > 0


def test_the_calls_of_failed_attempts_are_a_number_of_their_own(http_service: HttpService, journaled: Killed) -> None:
    """And without a journal a task asks anew for a part of its rows, which is much more than what was in flight."""
    assert_failed_calls_count_apart(journaled, journaled.totals["journaled"])
    job = killed(http_service, None)
    assert job.calls - KEYS > 2 * CAPACITY * BATCH_SIZE * TASKS
    assert_failed_calls_count_apart(job, 0)


def test_a_replay_repeats_at_most_what_was_in_flight(http_service: HttpService, journaled: Killed) -> None:
    assert 0 < journaled.calls - KEYS <= CAPACITY * BATCH_SIZE * TASKS
    with driver(http_service, journaled.journal) as job:
        [result] = job.results()
    assert (result["rows"], result["right"]) == (KEYS, KEYS)
    assert http_service.stats().calls == 0, "the second run finds all answers"
