"""`docs/flink-parity.md` is whole, and its tests exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "flink-parity.md").read_text()
ROWS = re.findall(r"^\| ([A-Z]\d+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)
CASES = {
    "Q": 12,
    "O": 9,
    "T": 20,
    "E": 12,
    "R": 17,
    "L": 9,
    "K": 11,
    "J": 15,
    "C": 28,
    "H": 19,
    "U": 19,
    "B": 9,
    "P": 7,
}
REASONS = ("only Flink has it: ", "superseded: ", "later work: ")


@cache
def file_tests(path: str) -> dict[str, str]:
    """The tests of a file and their docstrings."""
    return {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def named() -> set[tuple[str, str]]:
    """Every (case, test) of the table."""
    return {(case, test) for case, _, cell in ROWS for test in re.findall(r"`([^`]+::[^`]+)`", cell)}


def test_every_case_is_listed_once_and_in_order() -> None:
    assert [case for case, _, _ in ROWS] == [f"{part}{n}" for part, last in CASES.items() for n in range(1, last + 1)]
    assert len(ROWS) == 187


def test_every_case_has_tests_or_one_of_three_reasons() -> None:
    for case, words, cell in ROWS:
        assert words, case
        assert re.fullmatch(r"`[^`]+::test_\w+`(<br>`[^`]+::test_\w+`)*", cell) or cell.startswith(REASONS), case


def test_nearly_every_case_of_the_operator_has_a_test() -> None:
    untested = [case for case, _, cell in ROWS if case[0] in "QOTERL" and cell.startswith(REASONS)]
    assert len(untested) <= 25, untested


def test_every_test_that_is_named_exists() -> None:
    for case, test in named():
        path, name = test.split("::")
        assert name in file_tests(path), f"{case} names {test}, which does not exist"


def test_a_test_of_the_engine_that_names_a_case_is_named_by_it() -> None:
    engine = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "engine").glob("test_*.py")}
    says = {
        (case, f"{path}::{name}")
        for path in engine
        for name, text in file_tests(path).items()
        for case in re.findall(rf"\b([{''.join(CASES)}]\d{{1,2}})\b", text)
    }
    assert says <= named()
