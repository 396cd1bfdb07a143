"""
A throw-away Spark session, classic or Spark Connect, whose JVM ends with the session or with this process.

PySpark starts its JVM through two bash scripts. This module does the work of those scripts: it gets the command line of
the JVM from Spark's own launcher and runs it. Bash is therefore not needed, and the kernel can be told to kill the JVM
when this process dies.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..worker.log import LOG_FILE
from .copied import copied_to_stderr
from .java import NO_COUNTERS, java_home, java_version
from .process import LocalServerError, announce, start, start_on_free_port, stop, temp_dir, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

# Log only errors, on stderr. Without this setting Spark logs at INFO until a session sets a higher level.
LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


@contextlib.contextmanager
def spark(
    connect: bool = False, master: str = "local[2]", python: str = sys.executable, **conf: str
) -> Iterator[SparkSession]:
    """
    Run Spark and yield a session. Warnings of enrichkit on the workers appear on stderr.

    A classic session needs the packages of `enrichkit[spark]`, and a Spark Connect session needs those of
    `enrichkit[connect]`.

    Args:
        connect: Yield a Spark Connect session, whose server is a process of its own, instead of a classic session. One
            process cannot have sessions of both kinds.
        master: Spark's master; `local-cluster[2,1,512]` starts two executors in JVMs of their own.
        python: Path of the Python that runs the workers.
        conf: Spark settings, as `**{"spark.sql.ansi.enabled": "false"}`, or with `__` in place of each dot, as
            `spark__sql__ansi__enabled="false"`.

    Raises:
        LocalServerError: No Java was found, or Spark did not start.

    >>> with spark() as session:  # doctest: +SKIP
    ...     session.range(3).count()
    3
    """
    began = time.monotonic()
    with temp_dir("spark") as folder, _environment(folder, master, python) as env:
        settings = {
            **_defaults(folder),
            "spark.master": master,
            **{name.replace("__", "."): value for name, value in conf.items()},
        }
        start_session = _connect if connect else _classic
        log = folder / "workers.log"  # a separate file, because the log of the JVM also holds other messages
        with copied_to_stderr(log), start_session(settings, {**env, LOG_FILE: str(log)}, folder) as session:
            kind = "Spark Connect" if connect else "Spark"
            java = java_version(Path(env["JAVA_HOME"]))
            announce(f"{kind} {session.version} ({master}) on Java {java}, ready in {time.monotonic() - began:.1f} s")
            yield session


def _defaults(folder: Path) -> dict[str, str]:
    (folder / "log4j2.properties").write_text(LOG4J)
    java_options = f"-Djava.io.tmpdir={folder} -Dlog4j2.configurationFile={folder}/log4j2.properties {NO_COUNTERS}"
    return {
        "spark.app.name": "enrichkit",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.executor.extraJavaOptions": java_options,
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextlib.contextmanager
def _environment(folder: Path, master: str, python: str) -> Iterator[dict[str, str]]:
    """Set PySpark's environment variables until the session ends, and yield the environment of the JVM."""
    ours = {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    # If one of these variables is set, PySpark may start a Connect session instead of a classic one or the reverse, or
    # connect to another server.
    unwanted = [
        "SPARK_REMOTE",
        "SPARK_LOCAL_REMOTE",
        "SPARK_CONNECT_MODE_ENABLED",
        "SPARK_API_MODE",
        "SPARK_TESTING",
        "PYSPARK_GATEWAY_PORT",
        "PYSPARK_GATEWAY_SECRET",
        "PYSPARK_SUBMIT_ARGS",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    ]
    before = {name: os.environ.get(name) for name in (*ours, *unwanted)}
    for name in unwanted:
        os.environ.pop(name, None)
    os.environ.update(ours)
    try:
        home = spark_home()
        if master.startswith("local-cluster"):
            # The executors of a local cluster run in $SPARK_HOME/work, even if SPARK_WORKER_DIR names another folder.
            # SPARK_HOME is therefore a temporary folder of links, so that the executors write no files into the
            # installed package.
            (folder / "home").mkdir()
            for entry in home.iterdir():
                if entry.name != "work":
                    (folder / "home" / entry.name).symlink_to(entry)
            home = folder / "home"
        yield {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": scala_version(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONHASHSEED": "0",  # as in bin/spark-submit: all workers must compute the same hashes
        }
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _classic(settings: Mapping[str, str], env: Mapping[str, str], folder: Path) -> Iterator[SparkSession]:
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None or SparkContext._gateway is not None:
        raise LocalServerError(
            "This process already runs Spark. Stop that session, or start this one in a process of its own."
        )
    hello, log = folder / "gateway", folder / "log"
    command = _command(settings, env, "pyspark-shell")
    # The JVM also ends when the pipe to its standard input is closed, for example because this process has died.
    process = start(command, log=log, env={**env, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(hello)}, stdin=subprocess.PIPE)

    def ready() -> bytes | None:
        # Spark writes a temporary file and renames it, so the file is complete when it exists.
        return hello.read_bytes() if hello.exists() else None

    try:
        port, length = struct.unpack(">ii", (answer := wait_until_ready("Spark's JVM", process, ready, log))[:8])
        os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = answer[8 : 8 + length].decode()
        session = SparkSession.builder.config(map=dict(settings)).getOrCreate()
        try:
            yield session
        except PySparkException as error:
            # PySpark asks the JVM for the error's message, and the JVM has ended by the time the error is printed, so
            # the message is kept here.
            kind, said = type(error), str(error)
            error.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, "__str__": lambda _: said})
            raise
        finally:
            session.stop()
    finally:
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
        # PySpark would use this gateway for the next session, but the gateway's JVM ends here.
        SparkContext._gateway = None
        SparkContext._jvm = None
        stop(process, signal.SIGKILL)


@contextlib.contextmanager
def _connect(settings: Mapping[str, str], env: Mapping[str, str], folder: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    log = folder / "log"

    def launch(port: int) -> subprocess.Popen[bytes]:
        server = {"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port)}
        main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        return start(_command({**settings, **server}, env, *main), log=log, env=env)

    def ready(_: subprocess.Popen[bytes], port: int) -> bool:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return True

    process, port, _ = start_on_free_port("The Spark Connect server", launch, ready, log)
    try:
        session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        try:
            yield session
        finally:
            session.stop()
    finally:
        stop(process, signal.SIGKILL)


def _command(settings: Mapping[str, str], env: Mapping[str, str], *main: str) -> list[str]:
    """Return the command line of the JVM that `spark-submit` starts for *main* with *settings*."""
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    return launched(env, "org.apache.spark.deploy.SparkSubmit", *options, *main)


def launched(env: Mapping[str, str], *main: str) -> list[str]:
    """Return the command line that runs a class of Spark, as Spark's launcher computes it for `bin/spark-class`."""
    java = [f"{env['JAVA_HOME']}/bin/java", "-Xmx128m", "-XX:TieredStopAtLevel=1", NO_COUNTERS]
    launcher = ["-cp", f"{env['SPARK_HOME']}/jars/*", "org.apache.spark.launcher.Main"]
    answer = subprocess.run([*java, *launcher, *main], env=dict(env), capture_output=True)
    if answer.returncode:
        raise LocalServerError(
            f"Spark's launcher failed with code {answer.returncode}: {answer.stderr.decode(errors='replace')}"
        )
    # The launcher prints an empty line first and then the parts of the command line, separated by NUL characters.
    return [part.decode() for part in answer.stdout.lstrip(b"\0\n").rstrip(b"\0").split(b"\0")]


def spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LocalServerError("The package pyspark is not installed. Run: pip install 'enrichkit[spark]'")
    return Path(os.environ.get("SPARK_HOME") or Path(spec.origin).parent)


def scala_version(home: Path) -> str:
    for jar in (home / "jars").glob("spark-core_*.jar"):
        if found := re.match(r"spark-core_([\d.]+)-", jar.name):
            return found[1]
    raise LocalServerError(f"{home} holds no Spark: there is no jars/spark-core_*.jar.")
