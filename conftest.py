"""Fixtures for `tests/` and `plugins/*/tests/`, the parts that `./run test` runs at once, and Spark's time limit."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["enrichkit.testing.fixtures", "tests.certificates"]

# No wall-clock judgements: a busy machine draws examples slowly, and that says nothing about the code.
settings.register_profile("enrichkit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("enrichkit")

SPARK_TIMEOUT = 120  # seconds; the first test of a run starts the session, 20 s and more on a busy machine

# Spark's JVM runs for minutes here: to compile less and to collect in one thread halves its CPU time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=["spark", "rest"], help="run the tests that have a Spark session, or the others")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = {item for item in items if item.get_closest_marker("spark")}
    for item in marked:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT))
    # Some use a session and are not marked: there is nothing to repeat on Spark Connect.
    using = marked | {item for item in items if "spark" in getattr(item, "fixturenames", ())}
    part = "connect" if config.getoption("--connect") else config.getoption("--part")
    chosen = {"connect": marked, "spark": using, "rest": set(items) - using, None: set(items)}[part]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
