"""
What `doctor` finds: each fault is planted in the Python of one executor of two, by a `sitecustomize` that Python runs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_redis import RedisConfig

from enrichkit import ConfigError, Secret, doctor, local

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from enrichkit.local import HttpService, RedisServer

CLUSTER = "local-cluster[2,1,1024]"
FAULTY = "1"
PASSWORD = "c0rrect-horse"  # of a server of this test

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""

PYTHON = """
import collections, sys

Version = collections.namedtuple("Version", "major minor micro releaselevel serial")
sys.version_info = Version(3, 99, *sys.version_info[2:])
"""
"""What PySpark compares, and all else that a program asks of the version; the interpreter stays the same."""


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the doctor on a cluster of two executors; the code is run by the Python of the executor 1 only."""

    def look(fault: str, *sources: str, healthy: str = "", conf: dict[str, str] | None = None, **asked: Any) -> Any:
        site = tmp_path / "site"
        site.mkdir(exist_ok=True)
        plan = f"import os\nif os.getcwd().endswith('/{FAULTY}'):\n{textwrap.indent(fault, '    ')}\n"
        other = f"elif os.getcwd().endswith('/0'):\n{textwrap.indent(healthy or 'pass', '    ')}\n"
        (site / "sitecustomize.py").write_text(plan + other)
        settings = {"spark.executorEnv.PYTHONPATH": str(site), **(conf or {})}
        given = {"master": CLUSTER, "conf": settings, "sources": sources, "secrets": {}, "options": {}, **asked}
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("doctor_driver.py"), json.dumps(given)],
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        sys.stdout.write(found["text"])  # which pytest shows when the test fails
        return found

    return look


def kinds(found: dict[str, Any]) -> list[tuple[str, str]]:
    return sorted((each["executor"], each["kind"]) for each in found["findings"])


def what(found: dict[str, Any], kind: str) -> str:
    return "\n".join(each["what"] for each in found["findings"] if each["kind"] == kind)


@pytest.mark.cluster
def test_a_session_whose_executors_come_with_a_job(look: Callable[..., dict[str, Any]]) -> None:
    """With dynamic allocation, an idle session has no executor; the driver is none."""
    dynamic = {"enabled": "true", "minExecutors": "0", "initialExecutors": "0", "schedulerBacklogTimeout": "1s"}
    found = look("", conf={f"spark.dynamicAllocation.{name}": value for name, value in dynamic.items()})
    assert found["findings"] == []
    assert (found["reached"], found["expected"]) in [(1, 1), (2, 2)]


@pytest.mark.service
class TestOneExecutorOfTwo:
    @pytest.mark.cluster
    def test_a_package_is_missing(self, look: Callable[..., dict[str, Any]]) -> None:
        found = look(BLOCK.format(names={"enrichkit"}))
        assert kinds(found) == [(FAULTY, "package")]
        assert what(found, "package") == "enrichkit cannot be imported: No module named 'enrichkit'"
        assert "enrichkit pack" in found["findings"][0]["remedy"]
        assert (found["reached"], found["expected"]) == (2, 2)

    @pytest.mark.cluster
    def test_another_version(self, look: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
        old = tmp_path / "old" / "enrichkit"
        old.mkdir(parents=True)
        (old / "__init__.py").write_text("__version__ = '0.0.9'\n")
        info = old.parent / "enrichkit_redis-0.0.8.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: enrichkit-redis\nVersion: 0.0.8\n")
        with local.redis() as server:
            asked = {"open": server.url, "closed": server.url, "service": "http://127.0.0.1:1/{}"}
            found = look(f"import sys\nsys.path.insert(0, {str(old.parent)!r})", "open", **asked)
        assert kinds(found) == [(FAULTY, "version")] * 2
        assert "enrichkit is 0.0.9, and the driver has 0.1.0" in what(found, "version")
        assert "the plugin enrichkit-redis is 0.0.8, and the driver has 0.1.0" in what(found, "version")

    @pytest.mark.cluster
    def test_another_python(self, look: Callable[..., dict[str, Any]]) -> None:
        """Spark itself refuses it; what PySpark compares is replaced before PySpark is imported."""
        found = look(PYTHON)
        assert (FAULTY, "python") in kinds(found)
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        assert what(found, "python") == f"Python is 3.99, and that of the driver is {here}"
        assert {each["executor"] for each in found["findings"] if each["kind"] == "python"} == {FAULTY}

    @pytest.mark.slow
    def test_what_a_source_needs(self, look: Callable[..., dict[str, Any]], http_service: HttpService) -> None:
        """Secret, password, certificate, route, client package, clock and memory, each at one source or executor."""
        fault = BLOCK.format(names={"pyreqwest"}) + textwrap.dedent(
            """
            import errno, socket, time
            del os.environ["DOCTOR_TOKEN"]
            os.environ["CLOSED_PASSWORD"] = "wr0ng-horse"
            now, connect = time.time, socket.socket.connect
            time.time = lambda: now() - 3600

            def unreachable(self, address):
                if address[1] == OPEN_PORT:
                    raise OSError(errno.EHOSTUNREACH, "No route to host")
                return connect(self, address)

            socket.socket.connect = unreachable
            """
        )
        with local.redis() as open_, local.redis() as closed, redis.Redis.from_url(closed.url) as client:
            client.config_set("requirepass", PASSWORD)
            port = open_.url.rpartition(":")[2].partition("/")[0]
            found = look(
                fault.replace("OPEN_PORT", port),
                "open", "closed", "tokens", "private", "service",
                open=open_.url,
                closed=closed.url,
                service=http_service.url + "/profile/{}",
                secrets={"CLOSED_PASSWORD": PASSWORD, "DOCTOR_TOKEN": PASSWORD},
                healthy="open('ca.pem', 'w').close()",
                conf={"spark.executor.memoryOverhead": "150m"},
                options={"timeout": 5.0},
            )  # fmt: skip
        at_faulty = [kind for executor, kind in kinds(found) if executor == FAULTY]
        assert at_faulty == ["certificate", "client", "clock", "refused", "route", "secret"]
        assert ("every", "memory") in kinds(found)
        assert "is 150 MiB; an executor has 1 task slot, and their worker processes may take 228 MiB each" in what(
            found, "memory"
        )
        # An hour, less the time that the question took on its way.
        minutes = re.search(r"\((\d+) min\) behind the driver's", what(found, "clock"))
        assert minutes is not None
        assert int(minutes[1]) in range(50, 61)
        assert "the source 'open' cannot be reached" in what(found, "route")
        assert "the source 'tokens' lacks Secret.env('DOCTOR_TOKEN')" in what(found, "secret")
        assert "tls_ca of the source 'private' is ca.pem" in what(found, "certificate")
        assert "the client package pyreqwest of the source 'service'" in what(found, "client")
        for secret in (PASSWORD, "wr0ng-horse"):
            assert secret not in found["text"]


@pytest.mark.spark
def test_a_healthy_executor_has_no_finding(spark: SparkSession, redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        before = client.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"]
        found = doctor(spark, RedisConfig(url=redis_server.url), tasks=2)
        after = client.info("commandstats").get("cmdstat_mget", {"calls": 0})["calls"]
    assert (found.reached, found.findings) == (1, ())
    assert found.sources == ("redis",)
    assert after - before == 2


@pytest.mark.spark
def test_a_source_that_is_away_is_found_once_for_an_executor(spark: SparkSession) -> None:
    found = doctor(spark, RedisConfig(url="redis://127.0.0.1:1/0"), tasks=3)
    assert [each.kind for each in found.findings] == ["route"]
    assert "Redis at 127.0.0.1:1 cannot be reached" in str(found).replace("\n ", "")


@pytest.mark.spark
def test_a_secret_that_is_absent_is_named_and_no_source_is_asked(
    spark: SparkSession, redis_server: RedisServer
) -> None:
    found = doctor(spark, RedisConfig(url=redis_server.url, password=Secret.env("DOCTOR_ABSENT")), tasks=1)
    assert [each.kind for each in found.findings] == ["secret"]
    assert "Secret.env('DOCTOR_ABSENT')" in found.findings[0].what


@pytest.mark.parametrize("tasks", [0, 100_001, 1.5, "2"])
def test_a_wrong_number_of_tasks_is_refused(tasks: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        doctor(None, tasks=tasks)  # type: ignore[arg-type]  # no session is needed to refuse it
    assert str(raised.value) == f"tasks is {tasks!r}; it must be a whole number from 1 to 100,000, or None."
