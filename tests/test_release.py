"""A release: all packages have one version, and what is built is whole, alone in its environment, and listed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import enrichkit
from benchmarks import release

ROOT = release.ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that hold the version."""
    for path in (ROOT / "enrichkit/version.py", ROOT / "CHANGELOG.md", *release.projects(ROOT)):
        target = tmp_path / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_path


def test_all_packages_have_the_version_of_enrichkit() -> None:
    assert release.version_of(ROOT) == enrichkit.__version__
    assert release.disagreements(ROOT) == []
    assert len(release.projects(ROOT)) == 1 + len(release.CONNECTORS)


def test_a_version_is_written_everywhere(copy: Path) -> None:
    release.set_version(copy, "0.2.0")
    assert release.version_of(copy) == "0.2.0"
    assert release.disagreements(copy) == ["CHANGELOG.md: no part for 0.2.0"]
    core, *plugins = (path.read_text() for path in release.projects(copy))
    assert core.count('>=0.2,<0.3"]') == len(release.CONNECTORS)
    assert all('"enrichkit>=0.2,<0.3"' in text and 'version = "0.2.0"' in text for text in plugins)
    assert 'build-backend = "uv_build"' in core
    assert '"uv_build==' in core, "the versions of others stay"


@pytest.mark.parametrize(
    ("file", "before", "after", "found"),
    [
        ("pyproject.toml", 'version = "0.1.0"', 'version = "0.1.1"', "version 0.1.1"),
        ("plugins/enrichkit-http/pyproject.toml", 'version = "0.1.0"', "", "version none"),
        ("plugins/enrichkit-http/pyproject.toml", ">=0.1,<0.2", ">=0.1", "needs >=0.1"),
        ("pyproject.toml", "enrichkit-redis>=0.1,<0.2", "enrichkit-redis>=0.2,<0.3", "needs >=0.2,<0.3"),
        ("CHANGELOG.md", "## 0.1.0", "## 0.0.9", "no part for 0.1.0"),
    ],
)
def test_another_version_is_found(copy: Path, file: str, before: str, after: str, found: str) -> None:
    path = copy / file
    text = path.read_text()
    assert before in text, "the version has changed; change the cases of this test with it"
    path.write_text(text.replace(before, after))
    assert release.disagreements(copy) == [f"{file}: {found}"]


@pytest.mark.parametrize("version", ["1", "0.2", "v0.2.0", "0.2.0-rc1", ""])
def test_a_version_that_is_refused(copy: Path, version: str) -> None:
    with pytest.raises(SystemExit) as caught:
        release.set_version(copy, version)
    assert str(caught.value) == f"The version is {version!r}; it must be three numbers, as in 0.2.0, or 0.2.0rc1."


def test_the_part_of_the_changelog(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text("# C\n\n## 0.2.0, unreleased\n\n- b\n\n## 0.1.0\n\n**Added**\n\n- a\n")
    assert release.changes_of(tmp_path, "0.2.0") == "- b"
    assert release.changes_of(tmp_path, "0.1.0") == "**Added**\n\n- a"
    assert release.changes_of(tmp_path, "0.1") == ""


def test_nothing_is_done_without_being_told() -> None:
    done = subprocess.run([ROOT / "run", "release"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "one of the arguments --dry-run --version is required" in done.stderr


@pytest.mark.more
@pytest.mark.timeout(600)
def test_a_release_is_built_and_tried() -> None:
    """It needs the package index, or uv's cache of an earlier run."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run([ROOT / "run", "release", "--dry-run"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each wheel on Python 3.11" in done.stdout
    target = ROOT / "dist/release"
    sums = dict(line.split("  ")[::-1] for line in (target / "SHA256SUMS").read_text().splitlines())
    assert len(sums) == 2 * len(release.projects(ROOT)) + 2
    assert sums == {name: hashlib.sha256((target / name).read_bytes()).hexdigest() for name in sums}
    listed = json.loads((target / f"enrichkit-{enrichkit.__version__}.cdx.json").read_text())
    components = {each["name"].lower().replace("_", "-"): each["version"] for each in listed["components"]}
    assert {"enrichkit", "pyarrow", "hiredis", "pyreqwest", "asyncpg", "asyncmy", "click"} <= components.keys()
    assert not {"pyspark", "pandas", "pytest"} & components.keys()
    locked = (ROOT / "requirements.lock").read_text()
    for name, version in components.items():
        own = name == "enrichkit" or name.startswith("enrichkit-")
        assert version == enrichkit.__version__ if own else f"\n{name}=={version} " in f"\n{locked}", name
