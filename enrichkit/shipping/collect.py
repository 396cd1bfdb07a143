"""
Fills a folder with the packages that executors need.

enrichkit and its plugins are copied from the driver's environment, however they are installed there, because the driver
and its workers must have the same versions. uv or pip installs the dependencies of enrichkit and the plugins, as wheels
for the target and in the versions that the driver has.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlparse

from ..errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from .target import Target

__all__ = ["CLUSTER", "SPARK", "Collected", "collect", "normalized"]

GROUP = "enrichkit"
CLUSTER = frozenset(("pyarrow", "pandas", "numpy"))
"""Packages that are installed on most clusters; an archive that is packed with `bare=True` leaves them out."""
SPARK = frozenset(("pyspark", "pyspark-client", "py4j"))
"""Packages that Spark itself brings; no archive has them."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LEFT_OUT = (
    *("__pycache__", ".ruff_cache", ".mypy_cache", "*.pyc"),
    *("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"),
)
NOT_RUN = ("pyarrow/include", "pyarrow/src", "pyarrow/tests", "pyarrow/*flight*", "bin")
"""
Files that executors do not need: Arrow Flight alone takes 10 MB, and the scripts in `bin` name paths of this machine.
"""
ENDS_WITH = 2000
"""A message quotes this number of characters from the end of an installer's output."""


class Collected:
    """
    The connectors and packages that `collect` has put into a folder.

    Attributes:
        plugins: Names of the connectors.
        packages: Versions of the packages, by name.
    """

    def __init__(self, plugins: Iterable[str], packages: dict[str, str]) -> None:
        self.plugins = tuple(sorted(plugins))
        self.packages = packages


def collect(names: Sequence[str], extra: Sequence[str], target: Target, site: Path, *, bare: bool) -> Collected:
    """
    Fill the folder *site* with the packages that executors need, and return what it holds.

    Args:
        names: Names of connectors, such as `redis`; empty: all connectors that the driver has.
        extra: Further code: the folder of a package, the file of a module, or a requirement that uv and pip accept,
            such as the path of a project or `boto3`.
        target: Python and platform that the wheels must fit.
        site: An empty folder, to which the function writes.
        bare: Whether to leave out the packages in `CLUSTER`, because the executors have them.

    Raises:
        ConfigError: A connector is unknown, or a package cannot be resolved as a wheel.
    """
    plugins = _plugins(names)
    own = {"enrichkit": importlib.metadata.distribution("enrichkit")}
    own |= {normalized(found.name): found for found in plugins.values()}
    for distribution in own.values():
        _copy(distribution, site)
    wanted = [text for found in own.values() for text in found.requires or () if _is_wanted(text, own, bare=bare)]
    wanted += ["uvloop"] * _has("uvloop")
    for each in extra:
        path = Path(each)
        if path.is_dir() and not (path / "pyproject.toml").exists() and not (path / "setup.py").exists():
            shutil.copytree(path, site / path.resolve().name, ignore=shutil.ignore_patterns(*LEFT_OUT))
        elif path.suffix == ".py" and path.is_file():
            shutil.copy(path, site)
        else:
            wanted.append(str(path.resolve()) if path.exists() else each)
    _install(wanted, target, site)
    _tidy(site, bare=bare)
    packages = {normalized(d.name): d.version for d in importlib.metadata.distributions(path=[str(site)])}
    return Collected(plugins, dict(sorted(packages.items())))


def _plugins(names: Sequence[str]) -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions of the connectors *names*, or of all installed connectors if *names* is empty."""
    found = {point.name: point.dist for point in importlib.metadata.entry_points(group=GROUP) if point.dist is not None}
    for name in names:
        if name not in found:
            raise ConfigError(
                f"There is no connector {name!r} on this machine.{did_you_mean(name, found)} Connectors: "
                f"{', '.join(sorted(found)) or 'none'}. Install its package here first, as on the executors."
            )
    return {name: found[name] for name in names or found}


def _is_wanted(requirement: str, own: Iterable[str], *, bare: bool) -> bool:
    """Return whether uv or pip must resolve *requirement*, a line from the metadata of a package."""
    match = NAME.match(requirement)
    name = normalized(match[0]) if match else ""
    return not (
        "extra ==" in requirement or name in own or name in SPARK or (bare and name in CLUSTER) or name == "enrichkit"
    )


def _copy(distribution: importlib.metadata.Distribution, site: Path) -> None:
    """Copy the files of *distribution* from this environment to *site*, even if it is installed in editable mode."""
    folder = Path(str(distribution.locate_file("")))
    info = next(file for file in distribution.files or () if file.name == "METADATA").parent
    shutil.copytree(folder / info, site / info.name, ignore=shutil.ignore_patterns(*LEFT_OUT))
    source = _editable_folder(distribution)
    if source is None:
        for file in distribution.files or ():
            if ".." in file.parts or file.suffix == ".pyc" or file.parts[0] == info.name:
                continue
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / file, site / file)
        return
    tops = {point.module.partition(".")[0] for point in distribution.entry_points} | {_module(distribution.name)}
    for top in sorted(tops):
        for place in (source, source / "src"):
            if (place / top / "__init__.py").exists() and not (site / top).exists():
                shutil.copytree(place / top, site / top, ignore=shutil.ignore_patterns(*LEFT_OUT))


def _editable_folder(distribution: importlib.metadata.Distribution) -> Path | None:
    """Return the source folder of *distribution* if it is installed in editable mode, otherwise None."""
    text = distribution.read_text("direct_url.json")
    where = json.loads(text) if text else {}
    if not where.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlparse(where["url"]).path))


def _install(wanted: Sequence[str], target: Target, site: Path) -> None:
    """Let uv or pip install wheels for *wanted* into *site*, in the driver's versions if the driver has them."""
    if not wanted:
        return
    pins = site.parent / "constraints.txt"
    here = {normalized(d.name): d for d in importlib.metadata.distributions()}
    pins.write_text("".join(f"{name}=={d.version}\n" for name, d in sorted(here.items()) if not _editable_folder(d)))
    command = [*_installer(target), "--target", str(site), "--constraint", str(pins), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # the user chose *wanted*
    if done.returncode:
        raise ConfigError(
            f"The packages could not be resolved as wheels for {target}: {done.stderr.strip()[-ENDS_WITH:]}"
        )


def _installer(target: Target) -> list[str]:
    """
    Return the install command of uv, or of pip if there is no uv; the caller adds the folder and the requirements.
    """
    uv = shutil.which("uv") or next((str(p) for p in [Path(sys.executable).with_name("uv")] if p.exists()), None)
    if uv is not None:
        quiet = ["--quiet", "--link-mode", "copy", "--only-binary", ":all:", "--python", sys.executable]
        python = ["--python-platform", target.uv_platform, "--python-version", target.python]
        return [uv, "pip", "install", *quiet, *python]
    if not _has("pip"):
        raise ConfigError("There is neither uv nor pip on this machine. Install pip with: python -m ensurepip")
    quiet = ["--quiet", "--no-compile", "--disable-pip-version-check", "--only-binary", ":all:"]
    platforms = [part for name in target.pip_platforms for part in ("--platform", name)]
    python = ["--implementation", "cp", "--python-version", target.python]
    return [sys.executable, "-m", "pip", "install", *quiet, *python, *platforms]


def _tidy(site: Path, *, bare: bool) -> None:
    """Remove files that differ from machine to machine, and packages that Spark or the cluster brings."""
    for distribution in list(importlib.metadata.distributions(path=[str(site)])):
        name = normalized(distribution.name)
        if name in SPARK or (bare and name in CLUSTER):
            folders = {site / file.parts[0] for file in distribution.files or () if len(file.parts) > 1}
            for file in distribution.files or ():
                (site / file).unlink(missing_ok=True)
            for top in folders:
                shutil.rmtree(top, ignore_errors=True)
    patterns = [*(f"**/{name}" for name in (*LEFT_OUT, ".lock")), *NOT_RUN]
    for pattern in patterns:
        for path in list(site.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _has(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def normalized(name: str) -> str:
    """Return the *name* of a package in the form in which package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _module(name: str) -> str:
    return normalized(name).replace("-", "_")
