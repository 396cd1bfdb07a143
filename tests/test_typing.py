"""What mypy and pyright tell users of the public names."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import enrichkit
from enrichkit import errors, plugin, sql, testing

API = Path(__file__).parent / "typing" / "api.py"
CHECKERS = {
    "mypy": ["-m", "mypy", "--strict", "--no-error-summary", str(API)],
    "pyright": ["-m", "basedpyright", "--project", str(API.parent), "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_checker_accepts_what_is_right_and_refuses_what_is_wrong(checker: str) -> None:
    done = subprocess.run([sys.executable, *CHECKERS[checker]], capture_output=True, text=True)
    assert 0 == done.returncode, done.stdout


@pytest.mark.parametrize("module", [enrichkit, errors, plugin, sql, testing], ids=lambda module: module.__name__)
def test_every_public_name_is_used(module: object) -> None:
    nodes = list(ast.walk(ast.parse(API.read_text())))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert [] == sorted(set(vars(module)["__all__"]) - names - attributes)
