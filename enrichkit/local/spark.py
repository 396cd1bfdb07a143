"""
A throw-away Spark session, classic or Spark Connect, whose JVM ends with the session or with us.

PySpark starts its JVM through two bash scripts. This module does what they do: it asks Spark's own launcher for the
command line and runs that. So bash need not be there, and the JVM can ask for the signal at our death.
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

from .java import java_home, java_version
from .process import LocalServerError, announce, start, start_on_free_port, stop, temp_dir, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

# Only errors, and on stderr. Spark's default is INFO until a session lowers it.
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
def spark(connect: bool = False, master: str = "local[2]", **conf: str) -> Iterator[SparkSession]:
    """
    Run Spark and yield a session; needs the packages of `enrichkit[spark]`, for Connect those of `enrichkit[connect]`.

    Args:
        connect: A Spark Connect session, its server in a process of its own, instead of a classic one. One process
            cannot have both kinds.
        master: Where tasks run; `local-cluster[2,1,512]` gives two executors in JVMs of their own.
        conf: Spark settings, `**{"spark.sql.ansi.enabled": "false"}`, or with `__` for a dot,
            `spark__sql__ansi__enabled="false"`.

    Raises:
        LocalServerError: No Java was found, or Spark did not start.

    >>> with spark() as session:  # doctest: +SKIP
    ...     session.range(3).count()
    3
    """
    began = time.monotonic()
    with temp_dir("spark") as folder, _environment(folder, master) as env:
        settings = {
            **_defaults(folder),
            "spark.master": master,
            **{name.replace("__", "."): value for name, value in conf.items()},
        }
        start_session = _connect if connect else _classic
        with start_session(settings, env, folder) as session:
            kind = "Spark Connect" if connect else "Spark"
            java = java_version(Path(env["JAVA_HOME"]))
            announce(f"{kind} {session.version} ({master}) on Java {java}, ready in {time.monotonic() - began:.1f} s")
            yield session


def _defaults(folder: Path) -> dict[str, str]:
    (folder / "log4j2.properties").write_text(LOG4J)
    java_options = f"-Djava.io.tmpdir={folder} -Dlog4j2.configurationFile={folder}/log4j2.properties -XX:-UsePerfData"
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
def _environment(folder: Path, master: str) -> Iterator[dict[str, str]]:
    """Set for the life of the session what PySpark reads from the environment; yield the JVM's environment."""
    ours = {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    # What would lead PySpark to a session of the other kind or to another server.
    theirs = ["SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE", "SPARK_TESTING"]
    gone = [
        *theirs,
        "PYSPARK_GATEWAY_PORT",
        "PYSPARK_GATEWAY_SECRET",
        "PYSPARK_SUBMIT_ARGS",
        "SPARK_CONNECT_AUTHENTICATE_TOKEN",
    ]
    before = {name: os.environ.get(name) for name in (*ours, *gone)}
    for name in gone:
        os.environ.pop(name, None)
    os.environ.update(ours)
    try:
        home = _spark_home()
        if master.startswith("local-cluster"):
            # Its executors run in $SPARK_HOME/work, whatever SPARK_WORKER_DIR says: not in the installed package.
            (folder / "home").mkdir()
            for entry in home.iterdir():
                if entry.name != "work":
                    (folder / "home" / entry.name).symlink_to(entry)
            home = folder / "home"
        yield {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_SCALA_VERSION": _scala_version(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONHASHSEED": "0",  # as bin/spark-submit: the workers must agree on hashes
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
    # The JVM also ends when its standard input does.
    process = start(command, log=log, env={**env, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(hello)}, stdin=subprocess.PIPE)

    def ready() -> bytes | None:
        # Written aside and renamed by Spark, so it is whole once it exists.
        return hello.read_bytes() if hello.exists() else None

    try:
        port, length = struct.unpack(">ii", (answer := wait_until_ready("Spark's JVM", process, ready, log))[:8])
        os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
        os.environ["PYSPARK_GATEWAY_SECRET"] = answer[8 : 8 + length].decode()
        session = SparkSession.builder.config(map=dict(settings)).getOrCreate()
        try:
            yield session
        except PySparkException as error:
            error.add_note(str(error))  # PySpark asks the JVM for the text, and that is gone when it is printed
            raise
        finally:
            session.stop()
    finally:
        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.shutdown()
        # PySpark keeps the gateway for the next session; ours ends here.
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
    """Ask Spark's launcher for the command line of `spark-submit`, as `bin/spark-class` does."""
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    java = [f"{env['JAVA_HOME']}/bin/java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{env['SPARK_HOME']}/jars/*"]
    classes = ["org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit"]
    answer = subprocess.run([*java, *classes, *options, *main], env=dict(env), capture_output=True)
    if answer.returncode:
        raise LocalServerError(
            f"Spark's launcher failed with code {answer.returncode}: {answer.stderr.decode(errors='replace')}"
        )
    # It begins with an empty line as a mark and separates the parts by NUL.
    return [part.decode() for part in answer.stdout.lstrip(b"\0\n").rstrip(b"\0").split(b"\0")]


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LocalServerError("The package pyspark is not installed. Run: pip install 'enrichkit[spark]'")
    return Path(os.environ.get("SPARK_HOME") or Path(spec.origin).parent)


def _scala_version(home: Path) -> str:
    for jar in (home / "jars").glob("spark-core_*.jar"):
        if found := re.match(r"spark-core_([\d.]+)-", jar.name):
            return found[1]
    raise LocalServerError(f"{home} holds no Spark: there is no jars/spark-core_*.jar.")
