"""Only a version of PySpark with a committed run of `./run matrix` is called supported."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def rows(page: str) -> list[list[str]]:
    """The cells of the one table on *page*, without its heading."""
    lines = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def claimed() -> dict[tuple[str, str], bool]:
    """What docs/versions.md says of each version, classic and Connect."""
    return {
        (version, mode): {"yes": True, "not run": False}[cell]
        for versions, classic, connect, *_ in rows("docs/versions.md")
        for version in versions.split(", ")
        for mode, cell in (("classic", classic), ("connect", connect))
    }


def measured() -> dict[tuple[str, str], bool]:
    """Whether each version passed all tests, and they were twenty or more, in the committed run."""
    found = {}
    for version, mode, *_, passed, _ in rows("benchmarks/results/matrix.md"):
        counts = re.fullmatch(r"(\d+) of (\d+)", passed)
        whole = counts is not None and int(counts[1]) == int(counts[2]) >= 20
        found[version.rpartition(".")[0], mode] = whole
    return found


def test_what_is_called_supported_has_a_run_in_which_every_test_passed() -> None:
    assert claimed() == measured()


def test_the_extras_ask_for_the_oldest_supported_version() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for mode, package in (("classic", "pyspark"), ("connect", "pyspark[connect]")):
        oldest = min((version for (version, kind), works in claimed().items() if works and kind == mode), key=float)
        assert f"{package}>={oldest}" in extras["spark"] + extras["connect"]


def test_the_readme_names_the_versions() -> None:
    assert "PySpark 3.5 (classic) and 4.0 to 4.3 (classic and Connect)" in (ROOT / "README.md").read_text()
    assert {"3.5", "4.0", "4.1", "4.2", "4.3"} == {version for version, _ in claimed()}


# The newest version of each client package that has a known flaw, and the flaw.
FLAWED = {
    "asyncmy": ("0.2.17", "hands the reply of a cancelled statement to the next one; up to 0.2.11 also CVE-2025-65896"),
    "asyncpg": ("0.20.1", "CVE-2020-17446"),
    "hiredis": ("2.0.0", "CVE-2021-32765"),
    "pyarrow": ("14.0.0", "CVE-2023-47248"),
}


def test_no_package_of_a_version_with_a_known_flaw_can_be_installed() -> None:
    bounds = {}
    for file in (ROOT / "pyproject.toml", *(ROOT / "plugins").glob("*/pyproject.toml")):
        for line in tomllib.loads(file.read_text())["project"]["dependencies"]:
            requirement = Requirement(line)
            if not requirement.name.startswith("enrichkit"):
                bounds[requirement.name] = requirement.specifier
    assert {"asyncmy", "asyncpg", "hiredis", "msgspec", "pluggy", "pyarrow", "pyreqwest"} == set(bounds)
    for name, specifier in bounds.items():
        assert any(each.operator == ">=" for each in specifier), f"{name} has no lower bound"
    for name, (version, flaw) in FLAWED.items():
        assert not bounds[name].contains(version), f"{name} {version} {flaw}"
