"""Only a version of PySpark with a committed run of `./run matrix` is called supported."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

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
