"""Tests draw the same examples each time, but for a seed on the command line, which the exploration changes."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from benchmarks.explore import Exploration, properties
from enrichkit.testing.bench import wait_until

from .pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # processes of pytest

DRAWS = "tests/test_bulk.py::test_keys_and_their_slices_are_the_list_of_their_objects"


def drawn(*options: str) -> list[str]:
    """Return the examples that Hypothesis draws for a test of this project."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--hypothesis-verbosity=verbose"]
    ended = subprocess.run([*command, *options, DRAWS], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
    examples = [line for line in ended.stdout.splitlines() if "=" in line and not line.startswith("=")]
    assert len(examples) > 50
    return examples


def test_a_seed_draws_other_examples_and_the_same_ones_again() -> None:
    always, seventh = drawn(), drawn("--hypothesis-seed=7")
    assert always == drawn()
    assert seventh == drawn("--hypothesis-seed=7")
    assert always != seventh


def test_all_that_draws_is_explored() -> None:
    names = {path.stem for path in properties()}
    assert {"test_simulation", "test_state_machine", "test_json", "test_commands", "test_bulk"} <= names


def test_a_round_that_fails_is_told_with_its_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    toy = tmp_path / "test_toy.py"
    toy.write_text("def test_it():\n    assert False, 'what is wrong'\n")
    exploration, over = Exploration([toy], tmp_path), threading.Event()
    rounds = threading.Thread(target=exploration.run, args=(random.Random(7), over))
    rounds.start()
    assert wait_until(lambda: exploration.rounds > 0)
    over.set()
    rounds.join()
    seed = random.Random(7).randrange(1_000_000)
    assert exploration.failed[0] == f"./run test --hypothesis-seed={seed}"
    assert "what is wrong" in capsys.readouterr().out
    ((goal, reached),) = exploration.table().goals
    assert goal.startswith(f"no property test and no story fails\n  - ./run test --hypothesis-seed={seed}")
    assert not reached
