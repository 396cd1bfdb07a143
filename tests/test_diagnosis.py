"""What the doctor concludes from what executors answered: clocks, failed tasks, memory; and the text of a diagnosis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import Cache
from enrichkit.options import Options
from enrichkit.reports.doctor import EVERY, PROCESS, Diagnosis, Finding, _bytes, _clock, _failure, _memory

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 2**20


def test_a_clock_is_compared_with_the_time_of_the_job() -> None:
    began, ended = 1000.0, 1010.0
    assert [] == [found for told in (971.0, 1005.0, 1039.0) for found in _clock(told, began, ended)]
    remedy = "Let NTP or chrony set the clock of that host; tokens and certificates depend on it"
    assert [("clock", "the clock is 60 s behind the driver's", remedy)] == list(_clock(940.0, began, ended))
    assert [("clock", "the clock is 1,800 s (30 min) ahead of the driver's", remedy)] == list(
        _clock(2810.0, began, ended)
    )


REFUSED = """\
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1835, in main
    raise PySparkRuntimeError(
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: \
3.10 than that in driver: 3.11, PySpark cannot run with different minor versions.
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:601)
"""
FAILED = """\
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "doctor.py", line 1, in look
ValueError: no such file redis://user:c0rrect-horse@host:6379/0

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:601)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""


@pytest.mark.parametrize(
    ("message", "kind", "what"),
    [
        (REFUSED, "python", "Python is 3.10, and that of the driver is 3.11"),
        (FAILED, "task", "a task failed: ValueError: no such file redis://***@host:6379/0"),
        ("ExecutorLostFailure (executor 3 exited)", "task", "a task failed: ExecutorLostFailure (executor 3 exited)"),
        ("OSError: " + "x" * 600, "task", f"a task failed: OSError: {'x' * 491}"),
    ],
    ids=["another python", "error", "lost", "long"],
)
def test_a_task_that_failed_is_told_by_its_last_error(message: str, kind: str, what: str) -> None:
    found = _failure("node7", "3", message)
    assert (kind, "node7", "3", what) == found[:4]


class Session:
    """What the doctor asks of a session: its settings."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.conf = self
        self._settings = settings

    def get(self, name: str, default: str | None) -> str | None:
        return self._settings.get(name, default)


def memory(cores: int | None = None, options: Options | None = None, **settings: str) -> list[Finding]:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    session: Any = Session({"spark.master": "yarn"} | named)
    return list(_memory(session, options or Options(), cores))


PLENTY = Options(cache=Cache(ttl=60.0, max_bytes=1024 * MIB))


@pytest.mark.parametrize(
    ("settings", "cores", "slots", "has"),
    [
        ({}, None, None, 0),  # 384 MiB for one process
        ({}, 4, 4, 384),
        ({"spark__executor__cores": "4"}, None, 4, 384),
        ({"spark__executor__memory": "10g"}, 8, 8, 1024),
        ({"spark__executor__memory": "10g", "spark__executor__memoryOverheadFactor": "0.4"}, 8, None, 0),
        ({"spark__executor__memoryOverhead": "100"}, 1, 1, 100),
        ({"spark__executor__memoryOverhead": "1g"}, 1, None, 0),
        ({"spark__executor__memoryOverhead": "100m", "spark__executor__pyspark__memory": "2g"}, 1, None, 0),
        ({"spark__executor__memoryOverhead": "1k", "spark__master": "local[8]"}, 8, None, 0),
    ],
)
def test_an_executor_needs_memory_for_its_worker_processes(
    settings: dict[str, str], cores: int | None, slots: int | None, has: int
) -> None:
    each = PROCESS + Options().window_bytes + Options().reuse_bytes
    found = memory(cores, **settings)
    if slots is None:
        assert [] == found
        return
    s = "s" * (slots != 1)
    assert found == [
        Finding(
            "memory",
            "",
            EVERY,
            f"spark.executor.memoryOverhead is {has:,} MiB; an executor has {slots} task slot{s}, and their worker "
            f"processes may take {each / MIB:,.0f} MiB each",
            f"Set spark.executor.memoryOverhead={slots * each // MIB + 1}m, or smaller window_bytes or cache",
        )
    ]


def test_a_cache_counts_as_memory_of_each_process() -> None:
    settings = {"spark__executor__memoryOverhead": "1g"}
    assert [] == memory(1, **settings)
    (found,) = memory(1, PLENTY, **settings)
    each = PROCESS + PLENTY.window_bytes + PLENTY.reuse_bytes + 1024 * MIB
    assert f"may take {each / MIB:,.0f} MiB each" in found.what


@pytest.mark.parametrize(
    ("text", "unit", "size"),
    [
        ("512", "m", 512 * MIB),
        ("2g", "m", 2**31),
        (" 1GB ", "b", 2**30),
        ("3kb", "m", 3072),
        ("1t", "b", 2**40),
        ("7b", "m", 7),
        ("many", "m", 0),
        (None, "m", 0),
    ],
)
def test_sizes_are_read_as_spark_reads_them(text: str | None, unit: str, size: int) -> None:
    assert size == _bytes(text, unit)


def test_the_text_names_each_executor_and_what_to_do() -> None:
    told = Diagnosis(
        reached=3,
        expected=4,
        sources=("users", "scores"),
        findings=(
            Finding("silent", "node4", "4", "no task has answered there", "Run the doctor again"),
            Finding("memory", "", EVERY, "spark.executor.memoryOverhead is 384 MiB", "Set it to 2048m"),
        ),
    )
    assert repr(told) == str(told)
    assert str(told).splitlines() == [
        "3 of 4 executors answered; tried: 'users', 'scores'; 2 findings",
        "",
        "executor 4 on node4: silent",
        "  no task has answered there",
        "  Run the doctor again",
        "",
        "every executor: memory",
        "  spark.executor.memoryOverhead is 384 MiB",
        "  Set it to 2048m",
    ]


def test_where_spark_does_not_tell_the_executors_the_text_has_no_number_of_them() -> None:
    assert "1 executors answered; tried: no source; 0 findings" == str(Diagnosis(1, None, (), ()))
