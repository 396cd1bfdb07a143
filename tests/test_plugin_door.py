"""The built-in connectors import only what is public and documented."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from enrichkit import plugin, sql

ROOT = Path(__file__).parent.parent
PUBLIC = ("enrichkit", "enrichkit.errors", "enrichkit.plugin", "enrichkit.sql")
MODULES = sorted(
    path
    for plugin in (ROOT / "plugins").iterdir()
    for path in plugin.rglob("*.py")
    if plugin.is_dir() and "tests" not in path.relative_to(plugin).parts
)


def test_a_name_has_one_door() -> None:
    assert set() == {*plugin.__all__} & {*sql.__all__}


def test_there_are_modules_to_read() -> None:
    assert len({path.parent.name for path in MODULES}) == 6


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_plugin_imports_public_names_only(path: Path) -> None:
    private = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            private += [
                name.name for name in node.names if name.name.startswith("enrichkit.") and name.name not in PUBLIC
            ]
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "enrichkit":
            assert node.module is not None
            public = importlib.import_module(node.module).__all__ if node.module in PUBLIC else []
            private += [f"line {node.lineno}: {node.module}.{n.name}" for n in node.names if n.name not in public]
    assert [] == private
