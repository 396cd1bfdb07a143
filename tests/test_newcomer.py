"""The code of the README and quickstart as a newcomer runs it: from a file, elsewhere, without Java on the PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT, blocks

README = [block for block in blocks(ROOT / "README.md") if block.language == "python"]
QUICKSTART = [block for block in blocks(ROOT / "docs" / "quickstart.md") if block.language == "python"]
PROGRAMS = ("sh", "env", "cat", "ls", "chmod", "mkdir", "rm", "python3")
"""All that the PATH has; its python3 has no enrichkit."""

pytestmark = pytest.mark.slow  # each starts a Spark of its own


def run(code: str, folder: Path) -> str:
    """Run *code* as a file in *folder* with the Python of this environment, and return what it printed."""
    (folder / "job.py").write_text(code)
    (folder / "bin").mkdir()
    for program in PROGRAMS:
        (folder / "bin" / program).symlink_to(f"/usr/bin/{program}")
    passed = {name: value for name, value in os.environ.items() if name.upper().endswith(("_INDEX_URL", "_PROXY"))}
    environment = {**passed, "HOME": os.environ.get("HOME", str(folder)), "PATH": str(folder / "bin")}
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("number", range(len(README)), ids=[str(block) for block in README])
def test_each_block_of_the_readme_runs_as_it_is_pasted(number: int, tmp_path: Path) -> None:
    printed = run(README[number].code, tmp_path)
    assert ("print(" in README[number].code or "show(" in README[number].code) == bool(printed)
    if number == 0:
        before, after = (float(line.split()[1]) for line in printed.splitlines()[:2])
        assert before > 10.0, "500 requests of 20 ms, one after the other, in each of two tasks"
        assert after < before / 2


def test_the_blocks_of_the_quickstart_run_one_after_the_other_in_one_file(tmp_path: Path) -> None:
    printed = run("\n".join(block.code for block in QUICKSTART), tmp_path).split()
    for block in QUICKSTART:
        if block.output is not None:
            expected = block.output.split()
            assert any(printed[at : at + len(expected)] == expected for at in range(len(printed)))
