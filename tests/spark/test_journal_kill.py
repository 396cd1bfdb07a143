"""A Python worker is killed in the middle of a job: what a journal saves, and what the monitor counts of it."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..test_local import alive, wait_until
from .test_chaos import Driver, started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enrichkit.local import HttpService

KEYS, CAPACITY, BATCH_SIZE, TASKS = 20_000, 50, 1, 2
LATENCY = 0.02
MASTER = "local[2,4]"
"""Two tasks at a time, and each of them up to four times."""

# Not `spark`: each test has a Spark of its own.
pytestmark = [pytest.mark.slow, pytest.mark.service]


@contextmanager
def driver(service: HttpService, journal: Path | None = None, *, monitor: bool = False) -> Iterator[Driver]:
    """Start a job; at its end no process may be left."""
    service.script(latency=LATENCY, log=True)
    service.reset_stats()
    asked = {"master": MASTER, "url": service.url, "capacity": CAPACITY, "keys": KEYS, "monitor": monitor}
    asked |= {"tasks": TASKS, "journal": str(journal) if journal else None}
    with started("journal_kill_driver.py", asked, service) as running:
        yield running
        wait_until(lambda: not any(map(alive, running.seen)), timeout=60)


def with_a_kill(job: Driver) -> dict[str, Any]:
    """Kill a worker when half of the keys have been asked for; return what the driver printed."""
    job.after(KEYS // 2)
    os.kill(job.worker(), signal.SIGKILL)
    [result] = job.results()
    assert (result["rows"], result["right"]) == (KEYS, KEYS)
    return result


def asked_for(service: HttpService) -> dict[str, int]:
    """How often the service was asked for each key."""
    return {key: count for key, count in service.stats().per_key.items() if count}


@pytest.mark.parametrize("journaled", [False, True])
def test_the_calls_of_failed_attempts_are_a_number_of_their_own(
    http_service: HttpService, tmp_path: Path, journaled: bool
) -> None:
    """And without a journal a task asks anew for a part of its rows, which is much more than what was in flight."""
    with driver(http_service, tmp_path / "journal" if journaled else None, monitor=True) as job:
        result = with_a_kill(job)
    asked, totals = asked_for(http_service), result["totals"]
    assert len(asked) == KEYS
    seen = sum(asked.values())
    assert seen == http_service.stats().calls
    if not journaled:
        assert seen - KEYS > 2 * CAPACITY * BATCH_SIZE * TASKS
    assert totals["failed_tasks"] == 1
    # The good attempts asked for each key once, less those that they found in the journal.
    good = totals["calls"] - totals["failed_calls"]
    found = totals["journaled"] if journaled else 0
    assert good == KEYS - found
    # The service has had the calls of the good attempts, and all of the other one; the monitor lacks its last second.
    assert totals["failed_calls"] <= seen - good
    assert seen - good - totals["failed_calls"] <= 2 * CAPACITY / LATENCY, "two seconds of one worker"
    assert totals["failed_calls"] > 0


def test_a_replay_repeats_at_most_what_was_in_flight(http_service: HttpService, tmp_path: Path) -> None:
    with driver(http_service, tmp_path / "journal") as job:
        with_a_kill(job)
    asked = asked_for(http_service)
    assert len(asked) == KEYS
    assert sum(asked.values()) == http_service.stats().calls
    repeated = sum(asked.values()) - KEYS
    assert 0 < repeated <= CAPACITY * BATCH_SIZE * TASKS
    with driver(http_service, tmp_path / "journal") as job:
        [result] = job.results()
    assert (result["rows"], result["right"]) == (KEYS, KEYS)
    assert http_service.stats().calls == 0, "the second run finds all answers"
