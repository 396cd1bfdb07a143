"""Each example prints the output that its docstring shows."""

from __future__ import annotations

import ast
import contextlib
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from enrichkit import local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))

# Without the mark `spark`: the examples would do the same on Spark Connect.
pytestmark = pytest.mark.service


def printed(text: str) -> list[str]:
    """Return the lines of *text* that are not blank; a docstring cannot show how many blank lines end a table."""
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def documented(example: Path) -> list[str]:
    """Return the lines that the docstring of *example* shows as its output, after the first paragraph."""
    text = (ast.get_docstring(ast.parse(example.read_text())) or "").partition("\n\n")[2]
    assert text, "the docstring must show the example's output after the first paragraph"
    return printed(textwrap.dedent(text))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_example_prints_what_its_docstring_says(
    example: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    fresh_registry: None,
) -> None:
    """In the session of the tests: each example starts one of its own, which takes half a minute."""
    monkeypatch.setattr(local, "spark", lambda: contextlib.nullcontext(spark))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    assert documented(example) == printed(capsys.readouterr().out)


@pytest.mark.more
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_example_is_a_script(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, cwd=tmp_path)
    assert 0 == done.returncode, done.stderr
    assert documented(example) == printed(done.stdout)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_example_is_shorter_than_sixty_lines(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 60


def test_the_examples_are_numbered_without_a_gap() -> None:
    assert list(range(1, len(EXAMPLES) + 1)) == [int(example.name[:2]) for example in EXAMPLES]
