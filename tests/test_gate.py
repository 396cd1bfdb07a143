"""What `.ci/run` makes of its parts that are no tests: of each that fails, and of the cold run beside the tests."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from .pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def gate(folder: Path, disk: int = 0, **parts: str) -> tuple[int, list[str]]:
    """Run the gate with *parts* instead of its programs, which else do nothing; return its code and what it prints."""
    for file in (".ci/run", ".ci/parts.sh", "tests/summary.py"):
        (folder / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    script = (folder / ".ci" / "run").read_text()
    assert "disk=5000\n" in script
    (folder / ".ci" / "run").write_text(script.replace("disk=5000\n", f"disk={disk}\n"))
    for file, name in (("run", "run"), (".ci/apt", "apt"), (".ci/cold", "cold")):
        (folder / file).write_text(f"#!/bin/sh\n{parts.get(name, 'true')}\n")
        (folder / file).chmod(0o755)
    done = subprocess.run([folder / ".ci" / "run"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout.splitlines()


def test_it_is_green_when_all_parts_are(tmp_path: Path) -> None:
    code, lines = gate(tmp_path)
    assert (0, "0 passed, 0 failed") == (code, lines[-1])
    assert {"disk", "setup", "check", "apt", "cold"} == {line.split()[2] for line in lines if line.endswith(" ok")}


@pytest.mark.parametrize(
    ("parts", "name", "ended"),
    [
        ({"run": '[ "$1" != setup ] || { echo why; exit 4; }'}, "setup", "FAILED 4"),
        ({"run": '[ "$1" != check ] || { echo why; exit 4; }'}, "check", "FAILED 4"),
        ({"run": '[ "$1" != test ] || { echo why; exit 5; }'}, "tests", "FAILED 5"),
        ({"apt": "echo why; exit 100"}, "apt", "FAILED 100"),
        ({"cold": "echo why; exit 3"}, "cold", "FAILED 3"),
        # It ends after the tests, and is waited for.
        ({"cold": "sleep 1; echo why; exit 3"}, "cold", "FAILED 3"),
    ],
)
def test_a_part_that_fails_is_named_with_what_it_said(
    tmp_path: Path, parts: dict[str, str], name: str, ended: str
) -> None:
    code, lines = gate(tmp_path, **parts)
    assert (1, "0 passed, 1 failed") == (code, lines[-1])
    assert [[name, *ended.split()]] == [line.split()[2:] for line in lines if "FAILED" in line and " s  " in line]
    end = next(number for number, line in enumerate(lines) if line.startswith("=== in all"))
    assert "why" in map(str.strip, lines[end:])


def test_a_cold_run_that_something_kills_is_a_failure(tmp_path: Path) -> None:
    code, lines = gate(tmp_path, cold="kill -KILL $PPID")  # the shell that would have recorded its end
    assert (1, "0 passed, 1 failed") == (code, lines[-1])
    assert ["cold", "FAILED", "1"] in [line.split()[2:] for line in lines]


def test_a_full_disk_ends_it_before_anything_else_fails(tmp_path: Path) -> None:
    code, lines = gate(tmp_path, disk=10**9, run="echo not reached")
    assert (1, "0 passed, 1 failed") == (code, lines[-1])
    assert any(line.startswith("The gate needs 1000000000 MB of disk; here or in ") for line in lines)
    assert "not reached" not in "\n".join(lines)
