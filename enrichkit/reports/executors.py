"""Runs one function on every executor of a session, and says which executors there are and which tasks failed."""

from __future__ import annotations

import pickle
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Run", "run_everywhere"]

_LOST = re.compile(r"\(TID \d+\) \((\S+) executor (\S+)\): (.*)", re.DOTALL)
"""Matches the words by which Spark names the executor of a failed task, on the driver and on Spark Connect."""


@dataclass(frozen=True)
class Run:
    """
    The answers and the failures of the tasks of a run.

    Attributes:
        answers: For each task, host and id of its executor (None if Spark does not tell them) and the result of the
            function.
        failures: For each failed task, host and id of its executor, and Spark's message about the failure.
        expected: Hosts of the session's executors, by id: of those before the job, and of those that came during the
            job and ran a task of it. None if Spark does not tell them, as on Spark Connect.
        cores: Number of task slots of the executor with the fewest; None if Spark does not tell.
    """

    answers: list[tuple[str | None, str | None, str]]
    failures: list[tuple[str, str, str]]
    expected: dict[str, str] | None
    cores: int | None


def run_everywhere(spark: SparkSession, function: bytes, asked: Any, tasks: int | None) -> Run:
    """
    Run *tasks* tasks (None: twice as many as there are task slots). Each task calls the pickled *function* with
    *asked*.

    The job is a plain Python UDF, so that the executors need neither pandas nor pyarrow.
    """
    from pyspark.sql import functions as F

    jvm = _jvm_of(spark)
    expected, cores = _executors(jvm) if jvm is not None else (None, None)
    slots = (
        len(expected) * cores if expected and cores else spark.range(0, 4096).select(_partition()).distinct().count()
    )
    count = tasks or 2 * slots
    look = F.udf(_closure(function, asked), "string", useArrow=False).asNondeterministic()
    frame = spark.range(0, count, 1, count).select(_partition(), look("id").alias("said"))
    failures: list[tuple[str, str, str]] = []
    rows: list[Any] = []
    failed: Exception | None = None
    tag = f"enrichkit-doctor-{uuid.uuid4().hex}"
    with _tagged(spark, tag, jvm):
        try:
            rows = frame.collect()
        except Exception as error:  # noqa: BLE001  # raised below, unless `failures` holds its cause
            failed = error
            lost = _LOST.search(str(error)) if jvm is None else None
            if lost is not None:
                failures.append((lost[1], lost[2], lost[3]))
    places = dict(_tasks(jvm, tag, failures)) if jvm is not None else {}
    if failed is not None and not failures:
        raise failed
    if expected is not None:  # with dynamic allocation, a session that is idle has no executors until a job wants them
        came = {executor: host for host, executor, *_ in (*places.values(), *failures)}
        expected, cores = {**came, **expected}, cores or _executors(jvm)[1]
    answers = [(*places.get(row["partition"], (None, None)), row["said"]) for row in rows]
    return Run(answers, failures, expected, cores)


def _partition() -> Any:
    from pyspark.sql import functions as F

    return F.spark_partition_id().alias("partition")


def _closure(function: bytes, asked: Any) -> Callable[[Any], str]:
    """Return the closure that Spark pickles by value. It uses nothing of enrichkit, which the executors may lack."""

    def look(_: Any) -> str:
        text: str = pickle.loads(function)(asked)  # noqa: S301  # the driver made it
        return text

    look.__name__ = look.__qualname__ = "enrichkit_doctor"
    return look


def _jvm_of(spark: SparkSession) -> Any:
    """Return Spark's context in the JVM; None on Spark Connect, whose client has no JVM."""
    from pyspark.sql.utils import is_remote

    return None if is_remote() else spark.sparkContext._jsc.sc()


def _executors(jvm: Any) -> tuple[dict[str, str], int | None]:
    """Return the hosts of all executors by id, and the number of task slots of the executor with the fewest, if any."""
    listed = [*_each(jvm.statusStore().executorList(True))]
    # With a local master, the driver runs the tasks and is the only entry of the list.
    found = [each for each in listed if jvm.isLocal() or each.id() != "driver"]
    hosts = {each.id(): each.hostPort().rpartition(":")[0] for each in found}
    return hosts, min((each.maxTasks() for each in found), default=None)


@contextmanager
def _tagged(spark: SparkSession, tag: str, jvm: Any) -> Iterator[None]:
    if jvm is None:
        yield
        return
    spark.sparkContext.addJobTag(tag)
    try:
        yield
    finally:
        spark.sparkContext.removeJobTag(tag)


def _tasks(jvm: Any, tag: str, failures: list[tuple[str, str, str]]) -> Iterator[tuple[int, tuple[str, str]]]:
    """
    Yield, for each task that succeeded, its partition and the host and id of its executor.

    The failed tasks are added to *failures*.
    """
    jvm.listenerBus().waitUntilEmpty()
    store = jvm.statusStore()
    for job in jvm.statusTracker().getJobIdsForTag(tag):
        for stage in _each(store.job(job).stageIds()):
            for task in _each(store.taskList(stage, 0, 1 << 20)):
                host = task.host()
                if task.status() == "SUCCESS":
                    yield task.index(), (host, task.executorId())
                elif task.status() == "FAILED" and task.errorMessage().isDefined():
                    failures.append((host, task.executorId(), task.errorMessage().get()))


def _each(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a Scala sequence."""
    for index in range(sequence.size()):
        yield sequence.apply(index)
