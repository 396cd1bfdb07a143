"""The demo proves its values: a wrong one in a store makes it fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.service]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enrichkit.local.demo", "--rows", "8000", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_demo_ends_well_when_every_value_is_right() -> None:
    run = demo()
    assert "All 32,000 values are right." in run.stdout
    assert run.returncode == 0


def test_one_wrong_value_in_a_store_fails_the_demo() -> None:
    run = demo("--plant-wrong-value")
    assert "rows hold a wrong value." in run.stderr
    assert "values are right" not in run.stdout
    assert run.returncode == 1
