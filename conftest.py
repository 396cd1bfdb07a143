"""Fixtures for `tests/` and `plugins/*/tests/`, the parts that `./run test` runs at once, and Spark's time limit."""

from __future__ import annotations

import functools
import gc
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from enrichkit import local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytest_plugins = ["enrichkit.testing.fixtures", "tests.certificates", "tests.limits"]

# No wall-clock judgements: a busy machine draws examples slowly, and that says nothing about the code. And the same
# examples each time, because a change is judged by what it changes; only a seed on the command line draws others.
settings.register_profile(
    "enrichkit", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)
settings.register_profile("exploring", settings.get_profile("enrichkit"), derandomize=False)

# A Spark of the tests runs each plan once: to compile less and to collect in one thread halves the CPU time of its JVM.
# Its start takes a quarter less without the verification of Spark's classes, with room for them, so that they are no
# reason to collect, and with a table for their hundreds of thousands of names. And no JVM makes a folder in /tmp for
# its performance counters, which TMPDIR does not move.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    "-XX:MetaspaceSize=256m -XX:+UnlockExperimentalVMOptions -XX:SymbolTableSize=524288 -XX:-UsePerfData",
)
os.environ.setdefault("JDK_JAVA_OPTIONS", " ".join(JAVA_OPTIONS))

# Each process that imports numpy starts threads that spin for a tenth of a second; the tests multiply no matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

PLUGINS = Path(__file__).parent / "plugins"


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """The only session of this process; its workers start with what `tests/daemon.py` has imported."""
    with local.spark(connect=request.config.getoption("--connect"), spark__python__daemon__module="tests.daemon") as it:
        yield it


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("enrichkit" if config.getoption("--hypothesis-seed") is None else "exploring")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cluster", choices=["standalone", "local-cluster"], help="run tests/spark on a cluster")
    tests = (
        "run the tests that have a Spark session, or the others: those of tests/spark that start drivers of their own, "
        "those that mostly wait, those of plugins, those of tests/engine, the rest"
    )
    parser.addoption("--part", choices=["spark", "drivers", "waits", "plugins", "engine", "rest"], help=tests)


# To collect all modules takes 20 s of CPU time in each process, so a run that wants only the tests with one of these
# marks, those with a Spark session, or those of plugins, leaves out the modules whose text or place says that they hold
# none.
SAYS = {
    "spark": re.compile(r"mark\.spark|\bspark[:,)]|Contract\)"),
    "slow": re.compile(r"mark\.slow|\beffort\b"),
    "apt": re.compile(r"mark\.apt"),
    "browser": re.compile(r"mark\.browser"),
    "smoke": re.compile(r"mark\.smoke"),
    "more": re.compile(r"mark\.more"),
    "waits": re.compile(r"mark\.waits"),
}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not collection_path.match("test_*.py"):
        return None
    wanted, part = {config.getoption("markexpr")} & SAYS.keys(), _part(config)
    if part in ("spark", "connect"):
        # On Spark Connect most tests get `more` or `slow` only when they are there.
        wanted = (wanted - {"more", "slow"} if part == "connect" else wanted) | {"spark"}
    elif part == "waits":
        wanted.add("waits")
    elif part is not None and part != _place(collection_path):
        return True
    return None if all(_may_hold(collection_path, mark) for mark in wanted) else True


def _part(config: pytest.Config) -> str | None:
    return "connect" if config.getoption("--connect") else config.getoption("--part")


def _is_of_plugin(path: Path) -> bool:
    return path.is_relative_to(PLUGINS)


def _is_of_spark(path: Path, modules: tuple[str, ...] = ()) -> bool:
    """Whether the module at *path* is one of `tests/spark`, and of *modules*, if there are any."""
    return path.parent.name == "spark" and (not modules or path.stem.removeprefix("test_") in modules)


def _place(path: Path) -> str:
    """The part of a module's tests that have no Spark session and do not wait."""
    return "plugins" if _is_of_plugin(path) else {"spark": "drivers", "engine": "engine"}.get(path.parent.name, "rest")


@functools.cache
def _may_hold(path: Path, mark: str) -> bool:
    return (mark == "spark" and _is_of_spark(path)) or SAYS[mark].search(path.read_text(encoding="utf-8")) is not None


def _assert_nothing_is_left_out(items: list[pytest.Item]) -> None:
    """No run leaves out a test that it wants."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()} | {*getattr(item, "fixturenames", ())} & {"spark"}
        for mark in marks & SAYS.keys():
            assert _may_hold(item.path, mark), (
                f"{item.nodeid} is for {mark!r}, but its module does not say so as in SAYS"
            )


OF_WORKERS = ("details", "faults", "first_answers", "keys", "peers", "preload", "reuse", "same_data", "stale", "tiers")
"""The modules of `tests/spark`, without `test_`, that tell what happens in a worker."""


FIRST_ON_CONNECT = ("carriers", "column", "driver_checks", "session", "sql", "streaming")
"""
The modules of `tests/spark`, without `test_`, that `./run test` alone runs on Spark Connect, too: plans, types, errors,
streams. The gate runs all but what repeats.
"""


def _repeats(item: pytest.Item) -> bool:
    """
    Whether *item* repeats on Spark Connect what it tells on classic Spark.

    A worker gets the same rows from classic Spark and from the server of Spark Connect, so tests of what happens in a
    worker repeat it: those of `OF_WORKERS`, of the contracts of connectors, and of the pandas carrier. That an
    expression of each carrier travels from the client is what `test_carriers.py` tells, and of all forms
    `test_versions.py`.
    """
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    of_pandas = "pandas" in [v for v in values if isinstance(v, str)]
    of_contract = not _is_of_spark(item.path) and item.path.stem == "test_contract"
    of_carriers = _is_of_spark(item.path, ("carriers", "versions"))
    return (of_pandas and not of_carriers) or of_contract or _is_of_spark(item.path, OF_WORKERS)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After each module, spare later garbage collections the objects that stay: after some thousand tests, most."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _assert_nothing_is_left_out(items)
    marked = {item for item in items if item.get_closest_marker("spark")}
    # Some use a session and are not marked: there is nothing to repeat on Spark Connect.
    using = marked | {item for item in items if "spark" in getattr(item, "fixturenames", ())}
    waits = {item for item in set(items) - using if item.get_closest_marker("waits")}
    special = {None: set(items), "connect": marked, "spark": using, "waits": waits}
    part = _part(config)
    chosen = special.get(part) or {item for item in set(items) - using - waits if _place(item.path) == part}
    if part == "connect":
        for item in chosen:
            if not _is_of_spark(item.path, FIRST_ON_CONNECT):
                item.add_marker("slow")
            if _repeats(item) and not item.get_closest_marker("apt"):  # ./run test -m more has no servers from apt
                item.add_marker("more")
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
