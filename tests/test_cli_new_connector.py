"""`enrichkit new-connector`: the plugin that it creates passes the contract tests without a change."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from enrichkit.cli.commands import enrichkit as commands

from .test_new_user import code_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("fresh_registry")

ROOT = Path(__file__).parent.parent


def make(name: str, into: Path) -> Path:
    result = CliRunner().invoke(commands, ["new-connector", name, "--into", str(into)])
    assert result.exit_code == 0, result.output
    return Path(result.stdout.partition("Made ")[2].partition(". Now:\n")[0])


def refusal(name: str, into: Path) -> str:
    result = CliRunner().invoke(commands, ["new-connector", name, "--into", str(into)])
    assert (1, "") == (result.exit_code, result.stdout)
    return " ".join(result.stderr.removeprefix("Error:").split())


def contract_of(folder: Path, *arguments: str) -> str:
    """Run the tests of the package in *folder* as its author does, and return pytest's output."""
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", *arguments, str(folder)]
    env = {**os.environ, "PYTHONPATH": str(folder)}  # in place of `pip install --editable`
    done = subprocess.run(command, cwd=folder.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_makes_a_package_under_the_name(tmp_path: Path) -> None:
    folder = make("my-store", tmp_path / "plugins")
    assert folder == tmp_path / "plugins" / "enrichkit-my-store"
    assert ["README.md", "enrichkit_my_store/__init__.py", "pyproject.toml", "tests/test_contract.py"] == sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()
    )
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert ("enrichkit-my-store", {"enrichkit": {"my-store": "enrichkit_my_store"}}) == (
        project["name"],
        project["entry-points"],
    )
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert "acme" not in path.read_text().lower(), path
    assert (
        "class MyStoreConnector(Connector[MyStoreConfig]):" in (folder / "enrichkit_my_store/__init__.py").read_text()
    )


def test_a_name_that_contains_the_name_of_the_template_is_replaced_once(tmp_path: Path) -> None:
    """The message for a name that another connector has suggests such a name: my-acme."""
    folder = make("my-acme", tmp_path)
    assert {"enrichkit-my-acme"} == set(re.findall(r"enrichkit-[\w-]*acme", (folder / "README.md").read_text()))
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert ("enrichkit-my-acme", {"my-acme": "enrichkit_my_acme"}) == (
        project["name"],
        project["entry-points"]["enrichkit"],
    )
    assert "from enrichkit_my_acme import MyAcmeConfig" in (folder / "tests/test_contract.py").read_text()


def test_it_prints_the_next_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(commands, ["new-connector", "acme"]).stdout == (
        "Made enrichkit-acme. Now:\n"
        "  pip install --editable 'enrichkit-acme[test]'\n"
        "  pytest enrichkit-acme\n"
        "  enrichkit connectors\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["acme", "my_store2"])
def test_it_passes_the_contract_tests_that_need_no_spark(name: str, tmp_path: Path) -> None:
    assert " passed" in contract_of(make(name, tmp_path), "-m", "not spark")


@pytest.mark.slow
def test_it_passes_the_whole_contract(tmp_path: Path) -> None:
    printed = contract_of(make("acme", tmp_path))
    assert " passed" in printed
    assert "skipped" not in printed
    assert "deselected" not in printed


def test_it_is_under_sixty_lines_and_passes_the_linter(tmp_path: Path) -> None:
    folder = make("my-store", tmp_path)
    assert code_of((folder / "enrichkit_my_store/__init__.py").read_text().splitlines()) < 60
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "."]
        done = subprocess.run(ruff, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_name_of_a_wrong_form_is_refused(tmp_path: Path) -> None:
    for name in ("", "Acme", "1st", "a b", "a--b", "-a", "ä", "a/../b"):
        result = CliRunner().invoke(commands, ["new-connector", "--into", str(tmp_path), "--", name])
        assert " ".join(result.stderr.split()) == (
            f"Error: The name of the connector is {name!r}; it must begin with a letter and consist of lower-case "
            "letters, digits, '-' and '_'. For example enrichkit new-connector acme."
        )
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_taken_is_refused(tmp_path: Path, install: Callable[..., None]) -> None:
    install("fake")
    for name in ("redis", "fake"):
        assert refusal(name, tmp_path / "new") == (
            f"There is already a connector named {name!r}, and two connectors cannot share a name. Choose another "
            f"name, for example my-{name}."
        )
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make("acme", tmp_path)
    (folder / "README.md").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert refusal("acme", Path(".")) == (
        "The folder enrichkit-acme exists already, and nothing is overwritten. Remove it, or name another parent "
        "folder with --into."
    )
    assert (folder / "README.md").read_text() == "mine"
