"""The demo checks its values: one wrong value in a store makes the demo fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from enrichkit.observe.report import read

pytestmark = [pytest.mark.more, pytest.mark.service]  # the cold run of the gate runs the demo


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    report = str(folder / "report.html")
    command = [sys.executable, "-m", "enrichkit.local.demo", "--rows", "8000", "--report", report, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_demo_succeeds_when_every_value_is_right(tmp_path: Path) -> None:
    run = demo(tmp_path)
    assert "All 32,000 values are right. The report of the run is in " in run.stdout
    assert "in one query; watch it at http://127.0.0.1:" in run.stdout
    assert run.returncode == 0
    view = read(tmp_path / "report.html")
    assert (view["totals"]["rows"], view["progress"]["share"], len(view["sources"])) == (32_000, 1.0, 3)


def test_one_wrong_value_in_a_store_fails_the_demo(tmp_path: Path) -> None:
    run = demo(tmp_path, "--plant-wrong-value")
    assert "rows hold a wrong value." in run.stderr
    assert "values are right" not in run.stdout
    assert run.returncode == 1
