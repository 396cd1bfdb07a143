"""Each example runs in a process of its own and prints the output that its docstring shows."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))

# Without the mark `spark`: each example starts its own session, so a run on Spark Connect would repeat the same test.
pytestmark = pytest.mark.service

# Every run of the tests includes the first example. The others are slow: each starts Spark again, in all for minutes.
RUN = [pytest.param(path, marks=() if path == EXAMPLES[0] else pytest.mark.slow) for path in EXAMPLES]


def printed(text: str) -> list[str]:
    """Return the lines of *text* that are not blank; a docstring cannot show how many blank lines end a table."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("example", RUN, ids=lambda example: example.stem)
def test_the_example_prints_what_its_docstring_says(example: Path, tmp_path: Path) -> None:
    documented = (ast.get_docstring(ast.parse(example.read_text())) or "").partition("\n\n")[2]
    assert documented, "the docstring must show the example's output after the first paragraph"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, cwd=tmp_path)
    assert 0 == done.returncode, done.stderr
    assert printed(textwrap.dedent(documented)) == printed(done.stdout)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_example_is_shorter_than_sixty_lines(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 60


def test_the_examples_are_numbered_without_a_gap() -> None:
    assert list(range(1, len(EXAMPLES) + 1)) == [int(example.name[:2]) for example in EXAMPLES]
