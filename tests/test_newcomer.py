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


def pasted(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run *code* as a file in *folder* with the Python of this environment."""
    (folder / "job.py").write_text(code)
    (folder / "bin").mkdir()
    for program in PROGRAMS:
        (folder / "bin" / program).symlink_to(f"/usr/bin/{program}")
    ends = ("_INDEX_URL", "_PROXY", "JDK_JAVA_OPTIONS")  # the last one halves the CPU time of Spark
    passed = {name: value for name, value in os.environ.items() if name.upper().endswith(ends)}
    environment = {**passed, "HOME": os.environ.get("HOME", str(folder)), "PATH": str(folder / "bin")}
    return subprocess.run(
        [sys.executable, "job.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def run(code: str, folder: Path) -> str:
    """Run *code* likewise, and return what it printed."""
    done = pasted(code, folder)
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


MISTAKES = """
from enrichkit import enrich, local
from enrichkit_http import HttpConfig

with local.spark() as spark, local.http() as service:
    users = spark.range(40).selectExpr("concat('missing', id) AS user_id")
    users.select(enrich(HttpConfig(url=service.url + "/users/{}"), "user_id")).collect()
    service.script(local.Fault(status=410))
    users.select(enrich(HttpConfig(url=service.url + "/{}"), "user_id")).collect()
"""


def test_a_newcomer_sees_the_warnings_of_workers_and_the_message_of_an_error(tmp_path: Path) -> None:
    done = pasted(MISTAKES, tmp_path)
    assert done.returncode == 1
    assert "http: the source holds none of the " in done.stderr
    error = done.stderr.rpartition("PythonException: ")[2]
    assert error.strip(), done.stderr
    assert "The service answered 410" in error
    assert "str() failed" not in done.stderr
