"""Fixtures for `tests/` and `plugins/*/tests/`, the choice of the kind of Spark, and the time limit of its tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["enrichkit.testing.fixtures"]

# No wall-clock judgements: a busy machine draws examples slowly, and that says nothing about the code.
settings.register_profile("enrichkit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("enrichkit")

SPARK_TIMEOUT = 120  # seconds; the first test of a run starts the session, 20 s and more on a busy machine


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    spark = [item for item in items if item.get_closest_marker("spark")]
    for item in spark:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT))
    if config.getoption("--connect"):
        # The others have run, or will, without the option: they have nothing to do with Spark.
        config.hook.pytest_deselected(items=[item for item in items if item not in spark])
        items[:] = spark
