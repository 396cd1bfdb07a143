"""What the modules of this folder share: kept inputs, random inputs of a property, and mutation of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

CORPUS = Path(__file__).parent / "corpus"

effort = pytest.mark.parametrize(
    "effort",
    [
        pytest.param(1, id="quick"),
        pytest.param(5, id="thorough", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
"""Runs a test twice: with a number of examples that takes seconds, and, marked `slow`, with five times as many."""


def kept(name: str, **names: Any) -> list[Any]:
    """
    Return the inputs that `corpus/NAME.txt` keeps, as parameters of a test.

    Each line is a Python expression, in which *names* are known, so that a long input may be written as ``b"[" * 9999``
    and an input that Hypothesis has printed can be pasted. Blank lines and lines that begin with `#` are skipped.
    """
    lines = enumerate((CORPUS / f"{name}.txt").read_text(encoding="utf-8").splitlines(), 1)
    return [
        pytest.param(eval(line, dict(names)), id=f"line {number}")  # our own file, not an input from elsewhere
        for number, line in lines
        if line.strip() and not line.startswith("#")
    ]


def explore(check: Callable[[T], None], inputs: st.SearchStrategy[T], examples: int) -> None:
    """Call *check* with *examples* random *inputs*; if it fails, Hypothesis prints the smallest input that fails."""

    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(inputs)
    def example(value: T) -> None:
        check(value)

    example()


@st.composite
def mutants(draw: st.DrawFn, seeds: st.SearchStrategy[bytes], tokens: Sequence[bytes]) -> bytes:
    """One of *seeds* after one to four changes: a part is lost, repeated or replaced, or one of *tokens* is put in."""
    data = draw(seeds)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(1, 12)))
        token = draw(st.sampled_from(tokens))
        change = draw(st.sampled_from(["lose", "cut", "repeat", "insert", "replace", "byte"]))
        if change == "lose":
            data = data[:start] + data[end:]
        elif change == "cut":
            data = data[:start]
        elif change == "repeat":
            data = data[:end] + data[start:]
        elif change == "insert":
            data = data[:start] + token + data[start:]
        elif change == "replace":
            data = data[:start] + token + data[end:]
        else:
            data = data[:start] + bytes([draw(st.integers(0, 255))]) + data[start + 1 :]
    return data
