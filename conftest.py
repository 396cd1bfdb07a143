"""Fixtures for `tests/` and `plugins/*/tests/`, and the parts that `./run test` runs at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    import pytest

pytest_plugins = ["enrichkit.testing.fixtures", "tests.certificates", "tests.limits"]

# No wall-clock judgements: a busy machine draws examples slowly, and that says nothing about the code. And the same
# examples each time: a change is judged by what it changes, not by a draw.
settings.register_profile(
    "enrichkit", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None
)
settings.load_profile("enrichkit")

# Spark's JVM runs for minutes here: to compile less and to collect in one thread halves its CPU time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=["spark", "rest"], help="run the tests that have a Spark session, or the others")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    marked = {item for item in items if item.get_closest_marker("spark")}
    # Some use a session and are not marked: there is nothing to repeat on Spark Connect. Others start a Spark of their
    # own, and belong there because at most one Spark runs beside the rest.
    own = {item for item in items if item.path.parent.name == "spark"}
    using = marked | own | {item for item in items if "spark" in getattr(item, "fixturenames", ())}
    part = "connect" if config.getoption("--connect") else config.getoption("--part")
    chosen = {"connect": marked, "spark": using, "rest": set(items) - using, None: set(items)}[part]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]
