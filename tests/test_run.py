"""`./run`, and the lock file from which it installs packages."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCK = (ROOT / "requirements.lock").read_text()


@pytest.mark.parametrize("script", ["run"])
def test_the_script_is_posix_sh(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert (ROOT / script).read_text().startswith("#!/bin/sh\n")
    subprocess.run(["sh", "-n", ROOT / script], check=True)


@pytest.mark.parametrize("script", [".ci/run", ".ci/more", ".ci/apt", ".ci/cold"])
def test_the_script_is_bash(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)


@pytest.mark.parametrize(
    ("arguments", "said"), [((), "Usage: ./run "), (("dmeo",), "There is no ./run dmeo. Usage: ./run ")]
)
def test_the_message_for_an_unknown_command_names_all_commands(arguments: tuple[str, ...], said: str) -> None:
    done = subprocess.run([ROOT / "run", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(said)
    for command in ("setup", "demo", "test", "bench", "check", "wheels", "lock"):
        assert command in done.stderr


def test_the_lock_names_no_host_and_no_path() -> None:
    """The package index belongs to the machine that installs, not to the project."""
    assert "./run lock" in LOCK.splitlines()[1]
    rest = LOCK.replace("./run lock", "")
    assert not re.findall(r"\S*(?:://|/|--(?:index|extra-index|find-links))\S*", rest)


def test_every_line_of_the_lock_is_pinned_and_hashed() -> None:
    requirements = re.sub(r" \\\n\s+", " ", LOCK).splitlines()
    for requirement in requirements:
        if not requirement.startswith("#"):
            assert re.match(r"[a-z0-9-]+(\[[a-z,]+\])?==[^ ]+ .*--hash=sha256:[0-9a-f]{64}", requirement), requirement


@pytest.mark.parametrize("member", ["enrichkit", "enrichkit-redis", "enrichkit-postgres", "enrichkit-http"])
def test_the_project_itself_is_not_in_the_lock(member: str) -> None:
    assert f"\n{member}==" not in LOCK
