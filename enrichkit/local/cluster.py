"""A throw-away Spark standalone cluster: a master, and workers that start executors as processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .java import NO_COUNTERS, java_home
from .process import announce, start, start_on_free_port, stop, temp_dir, wait_until_ready
from .spark import launched, scala_version, spark_home

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping

__all__ = ["Cluster", "cluster"]

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"


@dataclass
class Cluster:
    """
    A running cluster.

    Attributes:
        master: URL of the master, for `enrichkit.local.spark(master=...)`.
        environment: Environment variables with which a program, such as `spark-submit`, finds Spark, a Java and the
            master.
        workers: Process ids of the workers; each worker stands for a machine and starts the executors of that machine.
    """

    master: str
    environment: Mapping[str, str] = field(default_factory=dict)
    workers: list[int] = field(default_factory=list)

    def executors(self) -> list[int]:
        """Return the process ids of the executors that run now."""
        found = []
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                if parent in self.workers:
                    found.append(int(folder.name))
        return found


@contextlib.contextmanager
def cluster(workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[Cluster]:
    """
    Run a standalone cluster. Each worker has its own address in 127.0.0.0/8, as if the workers ran on different
    machines.

    The cluster needs the package pyspark and a Java, as `spark` does. The session that uses the cluster chooses the
    Python of the executors: `spark(master=cluster.master, python="/path/to/python")`.

    Args:
        workers: Number of workers; each of them stands for a machine.
        cores: Task slots of each worker.
        memory: Memory that the executors of each worker may take.

    Raises:
        LocalServerError: No Java was found, or Spark did not start.
    """
    began = time.monotonic()
    with temp_dir("cluster") as folder, contextlib.ExitStack() as stack:
        home = spark_home()
        where_spark_is = {
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": scala_version(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        env = {**os.environ, **where_spark_is, "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": NO_COUNTERS}
        log = folder / "master"

        def launch(port: int) -> subprocess.Popen[bytes]:
            place = ["--host", "127.0.0.1", "--webui-port", "0", "--port", str(port)]
            return start(launched(env, MASTER, *place), log=log, env=env)

        def ready(_: subprocess.Popen[bytes], port: int) -> bool:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return True

        master, port, _ = start_on_free_port("The master of the cluster", launch, ready, log)
        stack.callback(stop, master, signal.SIGKILL)
        url = f"spark://127.0.0.1:{port}"
        running = Cluster(url, {**where_spark_is, "MASTER": url})
        limits = ["--cores", str(cores), "--memory", memory]
        for number in range(workers):
            host, log = f"127.0.0.{number + 1}", folder / f"worker{number}"
            place = ["--host", host, "--webui-port", "0", "--work-dir", str(folder / f"work{number}")]
            command = launched(env, WORKER, *limits, *place, running.master)
            worker = start(command, log=log, env={**env, "SPARK_LOCAL_IP": host})
            stack.callback(stop, worker, signal.SIGTERM)  # a worker that gets SIGTERM also ends its executors
            running.workers.append(worker.pid)
            wait_until_ready("A worker of the cluster", worker, lambda log=log: _registered(log), log)  # type: ignore[misc]
        announce(f"a cluster of {workers} workers at {running.master}, ready in {time.monotonic() - began:.1f} s")
        yield running


def _registered(log: Path) -> bool | None:
    return True if "Successfully registered with master" in log.read_text(errors="replace") else None
