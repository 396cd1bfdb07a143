"""The steps of a new user: the commands of the documentation lead to a connector that works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .test_wheels import environment, wheels

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["wheels"]  # a fixture

TESTS = Path(__file__).parent
SCRIPT = TESTS / "new_user.sh"
TRANSCRIPT = (TESTS / "new_user.txt").read_text()
PAGE = (TESTS.parent / "docs" / "new-connector.md").read_text()
OWN = "python fill.py"  # the user's own command, which fills the store and is not on the page


def commands(transcript: str) -> list[str]:
    return re.findall(r"^\$ (.*)$", transcript, re.MULTILINE)


def printed_by(command: str, transcript: str) -> str:
    """Return the output of the last run of *command*."""
    return transcript.rpartition(f"\n$ {command}\n")[2].partition("\n$ ")[0]


def code_of(lines: Iterable[str]) -> int:
    return sum(1 for line in lines if line.strip())


def test_the_new_user_and_the_page_have_the_same_commands() -> None:
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
    shown = re.findall(r"^(?:\.|enrichkit|pip|pytest|python|python3) .*$", blocks, re.MULTILINE)
    used = [command.replace("rocksdb", "acme") for command in commands(TRANSCRIPT)]
    assert shown == [command for command in used if command != OWN]


def test_no_page_mentions_the_store() -> None:
    pages = [*TESTS.parent.glob("*.md"), *TESTS.parent.glob("docs/**/*.md"), *TESTS.parent.glob("plugins/*/README.md")]
    assert not [page.name for page in pages if "rocks" in page.read_text().lower()]


def test_the_transcript_is_that_of_the_script() -> None:
    assert re.findall(r'^run "(.*)"', SCRIPT.read_text(), re.MULTILINE) == commands(TRANSCRIPT)
    for written in re.findall(r"<<'END'\n(.*?)^END$", SCRIPT.read_text(), re.DOTALL | re.MULTILINE):
        assert written in TRANSCRIPT


def test_the_connector_is_under_sixty_lines() -> None:
    module = re.search(r"^write \S*__init__\.py <<'END'\n(.*?)^END$", SCRIPT.read_text(), re.DOTALL | re.MULTILINE)
    assert module is not None
    assert code_of(module[1].splitlines()) < 60


@pytest.mark.more
@pytest.mark.service
@pytest.mark.timeout(1800)
def test_a_new_user_gets_a_connector_that_works(wheels: Path) -> None:
    env = environment()
    path = f"{Path(sys._base_executable).parent}{os.pathsep}{env['PATH']}"
    done = subprocess.run(["sh", SCRIPT, wheels], env={**env, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert commands(TRANSCRIPT) == commands(done.stdout)
    for command in ("enrichkit lint", "python job.py"):
        assert printed_by(command, TRANSCRIPT) == printed_by(command, done.stdout)
    assert re.search(r"^  rocksdb +enrichkit-rocksdb 0\.1\.0 ", printed_by("enrichkit connectors", done.stdout), re.M)
    checked = printed_by("enrichkit check people u1 nobody", done.stdout)
    assert re.search(r"^  'u1' +ok .* s  Ann$", checked, re.MULTILINE)
    assert re.search(r"^  'nobody' +missing ", checked, re.MULTILINE)
    contracts = re.findall(r"^(\d+) passed in ", done.stdout, re.MULTILINE)
    assert len(contracts) == 2
    assert contracts[0] == contracts[1]
    assert int(contracts[0]) >= 40
