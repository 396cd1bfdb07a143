"""
Jobs on a standalone cluster whose executors have Python, PySpark, pandas and pyarrow only.

Each way of shipping that docs/cluster.md says is run here; every value is checked; and nothing is left behind.
`./run cluster` runs them. The page's own commands, in `test_clean_machine.py`, ship by `spark-submit --archives`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from enrichkit import local
from enrichkit.shipping import pack
from enrichkit.testing.bench import wait_until

from .environments import ROOT, TOOLS, environment, version_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.service, pytest.mark.cluster, pytest.mark.timeout(1200)]

DRIVER = ROOT / "tests" / "cluster_driver.py"
SERVER = ROOT / "tests" / "connect_server.py"
KEYS = 1_000_000
TASKS = 8
CHUNK = 50_000


@pytest.fixture(scope="session")
def python() -> str:
    """A Python with what executors have."""
    found = environment("executor", *map(version_of, ("pyspark", "pandas", "pyarrow")))
    done = subprocess.run([found, "-c", "import enrichkit"], capture_output=True, check=False, cwd=TOOLS)
    assert b"No module named 'enrichkit'" in done.stderr
    return found


@pytest.fixture(scope="session")
def thin_client() -> str:
    """A Python with enrichkit, and of Spark the client of Spark Connect only, which is all Python."""
    ours = [part for name in ("redis", "http") for part in ("-e", f"plugins/enrichkit-{name}")]
    return environment("client", "pyspark-client>=4.0", *map(version_of, ("pandas", "pyarrow")), "-e", ".", *ours)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory, python: str) -> Path:
    path = tmp_path_factory.mktemp("packed") / "enrichkit-env.tar.gz"
    pack(["redis", "http"], output=path, bare=True)
    return path


@pytest.fixture(scope="session")
def running() -> Iterator[local.Cluster]:
    with local.cluster(workers=2, cores=2, memory="2g") as started:
        yield started


@pytest.fixture(scope="session")
def server() -> Iterator[local.RedisServer]:
    """A Redis with `v<n>` under `k<n>` for a million numbers."""
    with local.redis() as started:
        with redis.Redis.from_url(started.url) as client:
            for begin in range(0, KEYS, CHUNK):
                client.mset({f"k{n}": f"v{n}" for n in range(begin, begin + CHUNK)})
        yield started


@pytest.fixture
def job(
    running: local.Cluster, server: local.RedisServer, python: str, archive: Path, tmp_path: Path
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the driver program, which ships the archive in the given way; `cluster_driver.py` lists what it is told."""

    def start(how: str, program: str = sys.executable, env: dict[str, str] | None = None, **more: Any) -> Any:
        given = {"how": how, "master": running.master, "python": python, "archive": str(archive), "url": server.url}
        given |= {"keys": KEYS, "folder": str(tmp_path / "checkpoint"), **more}
        process = subprocess.Popen(
            [program, DRIVER, json.dumps(given)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=env,
        )  # fmt: skip
        started.append(process)
        return process

    started: list[subprocess.Popen[str]] = []
    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def asked(server: local.RedisServer) -> Iterator[Callable[[], int]]:
    """A function that returns for how many keys the server was asked since the test began."""
    with redis.Redis.from_url(server.url) as client:

        def hits() -> int:
            return int(client.info("stats")["keyspace_hits"])

        before = hits()
        yield lambda: hits() - before


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait at most *seconds* for *condition*; to look is not free, so it is looked at ten times a second."""

    def looked_at() -> bool:
        found = condition()
        if not found:
            time.sleep(0.1)
        return found

    return wait_until(looked_at, seconds)


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=800)
    assert process.returncode == 0, err[-3000:]
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def workers_of(python: str) -> list[int]:
    """Return the ids of the Python workers of executors."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if command[0].decode() == python and b"pyspark.daemon" in command:
                found.append(int(folder.name))
    return found


def assert_right(found: dict[str, Any], rows: int = KEYS) -> None:
    assert "error" not in found, found["error"]
    assert (found["rows"], found["right"]) == (rows, rows)
    if "streamed" in found:
        assert found["stream_error"] == ""
        assert found["streamed"] == found["stream_right"] >= 3000


def assert_in_the_middle(process: subprocess.Popen[str], asked: Callable[[], int], share: float = 0.25) -> None:
    """Wait until the job has asked for this share of the keys; it must still run then."""
    assert until(lambda: process.poll() is not None or asked() > KEYS * share, 400.0)
    assert process.poll() is None


def assert_nothing_is_left(running: local.Cluster, server: local.RedisServer, python: str) -> None:
    """After ten seconds no executor, no Python worker and no connection is left."""

    def connections() -> int:
        with redis.Redis.from_url(server.url) as client:
            return sum(entry["name"] == "enrichkit" for entry in client.client_list())

    assert until(lambda: not (running.executors() or workers_of(python) or connections()), 10.0)


def test_without_the_archive_the_message_names_the_command(job: Callable[..., Any]) -> None:
    error = told(job("not"))["error"]
    assert (
        "enrichkit cannot be imported on this Spark worker (No module named 'enrichkit'). Ship it with its plugins: "
        "enrichkit pack prints the lines that do." in error
    )


@pytest.mark.parametrize("how", ["ship", "archives", "connect-ship"])
def test_a_million_rows_and_a_stream_are_right(
    job: Callable[..., Any],
    asked: Callable[[], int],
    running: local.Cluster,
    server: local.RedisServer,
    python: str,
    how: str,
) -> None:
    found = told(job(how))
    assert_right(found)
    assert asked() >= KEYS + found.get("streamed", 0)
    if how == "connect-ship":
        assert asked() == KEYS
    assert_nothing_is_left(running, server, python)


def test_a_client_without_java_and_jars_is_enough_for_spark_connect(
    job: Callable[..., Any],
    asked: Callable[[], int],
    running: local.Cluster,
    server: local.RedisServer,
    python: str,
    thin_client: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "dirname"):  # with which the check of the archive starts it
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or "")
    env = {"PATH": f"{tmp_path / 'bin'}:{Path(thin_client).parent}", "HOME": str(tmp_path)}
    conf = {"spark.executor.memory": "768m", "spark.executorEnv.ENRICHKIT_PYTHON": python}
    given = json.dumps({"master": running.master, "python": python, "conf": conf})
    with subprocess.Popen(
        [sys.executable, SERVER, given], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as connect:
        assert connect.stdout is not None
        remote = connect.stdout.readline().strip()
        found = told(job("connect-ship", thin_client, env, remote=remote))
        connect.communicate()  # its input ends, and so does the server
    assert (found["packages"], found["jars"], found["java"]) == (["pyspark-client"], 0, None)
    assert_right(found)
    assert asked() == KEYS
    assert_nothing_is_left(running, server, python)


@pytest.mark.parametrize("what", ["executor", "worker"])
def test_a_process_that_is_killed_in_the_middle_costs_no_row(
    job: Callable[..., Any],
    asked: Callable[[], int],
    running: local.Cluster,
    server: local.RedisServer,
    python: str,
    what: str,
) -> None:
    process = job("ship", stream=False)
    assert_in_the_middle(process, asked)
    victims = running.executors() if what == "executor" else workers_of(python)
    os.kill(victims[-1], signal.SIGKILL)
    assert_right(told(process))
    assert KEYS <= asked() <= 2 * KEYS
    assert_nothing_is_left(running, server, python)


def test_an_executor_that_is_decommissioned_ends_its_tasks_and_costs_no_call(
    job: Callable[..., Any], asked: Callable[[], int], running: local.Cluster, server: local.RedisServer, python: str
) -> None:
    names = ("spark.decommission.enabled", "spark.storage.decommission.enabled")
    process = job("ship", stream=False, conf=dict.fromkeys(names, "true"))
    assert_in_the_middle(process, asked)
    victim = running.executors()[-1]
    os.kill(victim, signal.SIGPWR)  # as the machine's own service would, before it takes the machine away
    assert until(lambda: victim not in running.executors(), 120.0)
    assert_right(told(process))
    assert asked() == KEYS
    assert_nothing_is_left(running, server, python)


def test_executors_come_and_go_with_the_work(
    job: Callable[..., Any], asked: Callable[[], int], running: local.Cluster, server: local.RedisServer, python: str
) -> None:
    conf = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
    }
    process = job("ship", stream=False, conf=conf, jobs=2, pause=20.0)
    counts = [0]

    def ended() -> bool:
        count = len(running.executors())
        if count != counts[-1]:
            counts.append(count)
        return process.poll() is not None

    assert until(ended, 800.0)
    assert_right(told(process), 2 * KEYS)
    most = counts.index(max(counts))
    assert max(counts) >= 3, counts
    assert min(counts[most:-1]) == 1, counts
    assert max(counts[counts.index(1, most) :]) >= 2, counts
    # An executor that goes before its output was read takes it along, and Spark repeats its tasks.
    assert 2 * KEYS <= asked() <= 4 * KEYS
    assert_nothing_is_left(running, server, python)


def test_a_worker_that_stands_still_is_overtaken_by_a_second_attempt(
    job: Callable[..., Any], asked: Callable[[], int], running: local.Cluster, server: local.RedisServer, python: str
) -> None:
    """Speculation: the first attempt is killed when the second has ended, and its rows do not come twice."""
    conf = {"spark.speculation": "true", "spark.speculation.quantile": "0.5"}
    process = job("ship", stream=False, conf=conf)
    assert_in_the_middle(process, asked)
    busy = workers_of(python)
    os.kill(busy[-1], signal.SIGSTOP)
    assert_right(told(process))
    assert busy[-1] not in workers_of(python)
    assert KEYS <= asked() <= KEYS + 2 * KEYS // TASKS
    assert_nothing_is_left(running, server, python)


def test_the_doctor_as_a_command_ships_the_archive_and_looks_at_every_executor(
    running: local.Cluster, server: local.RedisServer, python: str, archive: Path, tmp_path: Path
) -> None:
    settings = {"pyspark.python": python, "executorEnv.ENRICHKIT_PYTHON": python, "executor.memory": "768m"}
    settings |= {"executor.cores": "1", "ui.enabled": "false"}
    sources = f'[sources.users]\ntype = "redis"\nurl = "{server.url}"\n'
    sources += '[sources.away]\ntype = "redis"\nurl = "redis://127.0.0.1:1/0"\n'
    (tmp_path / "enrichkit.toml").write_text(sources)
    conf = [part for name, value in settings.items() for part in ("--conf", f"spark.{name}={value}")]
    where = ["--master", running.master, "--archive", str(archive), *conf, "--json"]
    done = subprocess.run(
        [Path(sys.executable).with_name("enrichkit"), "doctor", "users", "away", *where],
        cwd=tmp_path, env={**os.environ, **running.environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["reached"] == found["expected"] >= 2
    assert found["sources"] == ["users", "away"]
    assert {(each["kind"], each["executor"]) for each in found["findings"]} == {
        ("route", str(number)) for number in range(found["expected"])
    }
    assert all("the source 'away' cannot be reached" in each["what"] for each in found["findings"])
    assert_nothing_is_left(running, server, python)
