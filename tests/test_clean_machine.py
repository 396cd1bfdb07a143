"""From a clone to right rows on a cluster: the commands of the page, in a copy of the checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import ROOT, blocks
from .test_wheels import environment

PAGE = ROOT / "docs" / "cluster.md"
(BLOCK,) = (block for block in blocks(PAGE) if block.heading == "Try it on one machine" and block.language == "sh")


def test_the_page_has_fewer_than_twenty_commands() -> None:
    code = re.sub(r"<<'END'\n.*?^END$", "", BLOCK.code, flags=re.DOTALL | re.MULTILINE).replace("\\\n", "")
    assert 8 < len(code.splitlines()) < 20


@pytest.mark.more
@pytest.mark.service
@pytest.mark.timeout(900)
def test_the_commands_of_the_page_lead_to_right_rows(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    if (ROOT / ".tools").exists():  # so that `./run` need not install uv again
        (clone / ".tools").symlink_to(ROOT / ".tools")
    unwanted = ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "MASTER")
    env = {name: value for name, value in environment().items() if name not in unwanted}
    env |= {"TMPDIR": str(tmp_path), "PATH": f"{Path(sys._base_executable).parent}:{env['PATH']}"}  # type: ignore[attr-defined]  # of CPython
    done = subprocess.run(["sh", "-eu", "-c", BLOCK.code], cwd=clone, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.splitlines()[-1:] == (BLOCK.output or "").splitlines(), done.stderr[-5000:]
