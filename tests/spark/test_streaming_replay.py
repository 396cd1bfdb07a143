"""The driver dies in the middle of streaming queries, and they go on from their checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.local import Fault, HttpService, value_of
from enrichkit.local.log_source import append
from enrichkit.local.process import start, stop, tail

from ..test_local import alive, descendants, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FORMS = ("column", "frame", "batch")
RECORDS = 120
"""By which the log grows before each start, half of them in each of two partitions: two micro-batches."""

# Not `spark`: the sessions are in the processes that are killed.
pytestmark = [pytest.mark.slow, pytest.mark.service, pytest.mark.timeout(800)]  # Spark starts twice


def key_of(partition: int, offset: int) -> str | None:
    """The key of a record: a null, a user that is met everywhere, one that is not there, or one of its own."""
    if offset % 10 == 3:
        return None
    if offset % 10 == 5:
        return "hot"
    return f"{'missing-' if offset % 10 == 7 else 'u'}{partition}.{offset}."


def grow(folder: Path) -> None:
    for partition in (0, 1):
        file = folder / "log" / "users" / f"{partition}.log"
        end = len(file.read_bytes().splitlines()) if file.exists() else 0
        keys = [key_of(partition, offset) for offset in range(end, end + RECORDS // 2)]
        append(folder / "log", "users", [(key and key.encode(), None) for key in keys], partition=partition)


@contextlib.contextmanager
def driver(folder: Path, service: HttpService, connect: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Start the driver program in a process of its own; at the end SIGKILL it and wait until all it started is gone."""
    arguments = json.dumps({"folder": str(folder), "url": service.url, "connect": connect})
    program = Path(__file__).with_name("replay_driver.py")
    process = start([sys.executable, program, arguments], log=folder / "driver.log")
    try:
        yield process
    finally:
        started = {pid: command_of(pid) for pid in descendants(process.pid)}
        # On Connect the queries run in the server, and our process is only looking on. Spark leaves the process behind
        # that runs foreachBatch, which looks for its server for minutes.
        for name in ("SparkConnectServer", "foreach_batch_worker"):
            for pid in (pid for pid, command in started.items() if name in command):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        stop(process, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in started))


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has just ended
        return ""


def killed_when(
    folder: Path, service: HttpService, connect: bool, seen: Callable[[subprocess.Popen[bytes]], bool]
) -> None:
    """Start the driver, and SIGKILL it when *seen* is true."""
    with driver(folder, service, connect) as process:

        def reached() -> bool:
            assert process.poll() is None, tail(folder / "driver.log")
            return seen(process)

        wait_until(reached, 400)


def last_commit(folder: Path, form: str) -> Path:
    return max((folder / "checkpoint" / form / "commits").glob("[0-9]*"), key=lambda commit: int(commit.name))


@pytest.mark.parametrize(
    "connect",
    [
        pytest.param(False, id="the driver"),
        # The server of Spark Connect is a driver, too, and what dies with it is the same; it takes two minutes.
        pytest.param(True, id="the server of Spark Connect", marks=pytest.mark.more),
    ],
)
def test_every_row_is_there_once_after_a_kill(http_service: HttpService, tmp_path: Path, connect: bool) -> None:
    def all_wait(process: subprocess.Popen[bytes]) -> bool:
        """Each query waits for the answer that it will not get, and for nothing else."""
        stats = http_service.stats()
        return stats.faults_used == len(FORMS) == stats.in_flight

    # In the second micro-batch of each query, where the service keeps the answer for one record to itself.
    grow(tmp_path)
    http_service.script(Fault(match="-u0.44.", hang=True))
    killed_when(tmp_path, http_service, connect, all_wait)
    first = http_service.stats().per_key
    assert {f"{form}-u0.44." for form in FORMS} <= set(first)
    assert {1} == {count for key, count in first.items() if not key.endswith("-hot")}

    # As if it had been a moment before that: the sink has the first micro-batch, and the checkpoint does not say so.
    for form in FORMS:
        commit = last_commit(tmp_path, form)
        commit.unlink()
        commit.with_name(f".{commit.name}.crc").unlink()

    http_service.script()
    grow(tmp_path)
    with driver(tmp_path, http_service, connect) as process:
        assert 0 == process.wait(400), tail(tmp_path / "driver.log")

    result: dict[str, list[list[Any]]] = json.loads((tmp_path / "result.json").read_text())
    places = [(partition, offset) for partition in (0, 1) for offset in range(RECORDS)]
    for form in FORMS:
        assert Counter(places) == Counter((partition, offset) for partition, offset, *_ in result[form])
        for partition, offset, key, value in result[form]:
            assert key_of(partition, offset) == key
            known = key is not None and "missing" not in key
            assert (value_of(f"{form}-{key}") if known else None) == value

    asked = http_service.stats().per_key
    keys = {key for place in places if (key := key_of(*place)) is not None}
    assert {f"{form}-{key}" for form in FORMS for key in keys} == set(asked)
    # A call for each run of its micro-batch: at least one, and no more than there were drivers.
    own = {key: count for key, count in asked.items() if not re.search("-hot$", key)}
    assert {1, 2} == set(own.values())
