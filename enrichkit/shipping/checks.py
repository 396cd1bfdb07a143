"""
Checks an archive as an executor would use it, before a job is submitted with it. Each fault has its own message.

If the archive is for this machine's Python and platform, the check also starts Python with the unpacked archive, but
without the environment variables of this process. Each module that is imported must come from the archive.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import ConfigError, did_you_mean
from ..version import VERSION
from .archive import MANIFEST, SCRIPT, SITE, Manifest
from .collect import CLUSTER, SPARK, normalized
from .target import PLATFORMS, Target

__all__ = ["check_archive"]

MACHINES = {"linux-x86_64": 62, "linux-aarch64": 183}
"""The number of each platform's processor in ELF files (`e_machine`)."""
TAG = re.compile(r"\.(?:cpython|cp)-?(\d)(\d+)[-.\w]*\.so$")
LIBRARY = re.compile(r"\.so(\.\d+)*$")
START_SECONDS = 60.0
LOOK = """
import importlib, json, sys
root, names = sys.argv[1], sys.argv[2:]
failed = {}
for name in names:
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        failed[name] = f"{type(error).__name__}: {error}"
    else:
        if not (module.__file__ or "").startswith(root):
            failed[name] = f"it comes from {module.__file__}"
print(json.dumps(failed))
"""


def check_archive(
    path: str | Path, *, target: Target | None = None, plugins: Iterable[str] = (), start: bool = True
) -> Manifest:
    """
    Return the manifest of the archive *path* if executors could use the archive.

    Args:
        path: Path of the archive.
        target: Python and platform of the executors; None: those of this process.
        plugins: Connectors that the archive must have.
        start: Whether to start Python with the archive if *target* is the Python and platform of this process.

    Raises:
        ConfigError: The archive is damaged, unsafe, incomplete, or made for other executors; the message says what to
            do.
    """
    name = Path(path).name
    target = target or Target.here()
    try:
        with tempfile.TemporaryDirectory(prefix="enrichkit-check-") as place:
            folder = Path(place).resolve()
            manifest = _unpack(Path(path), folder)
            _check_said(manifest, target, tuple(plugins))
            _check_files(folder, manifest)
            _check_native(folder, target)
            _check_needs(folder, manifest)
            if start and target == Target.here():
                _start(folder, manifest)
            return manifest
    except ConfigError as error:
        raise ConfigError(f"The archive {name} cannot be used: {error}") from None


def _unpack(path: Path, folder: Path) -> Manifest:
    """Unpack *path* into *folder*, and return its manifest."""
    try:
        with tarfile.open(path, "r:gz") as tar:
            members = tar.getmembers()
            for member in members:
                _check_member(member)
            if MANIFEST not in {member.name for member in members}:
                raise ConfigError(
                    f"it has no {MANIFEST}, so enrichkit pack has not made it. Make one with: enrichkit pack"
                )
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # None: Python is older than 3.11.4
            tar.extractall(folder)  # noqa: S202  # `_check_member` has checked each member
    except FileNotFoundError:
        raise ConfigError("there is no such file. Make one with: enrichkit pack") from None
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise ConfigError(
            f"it is no gzipped tar file, or it is cut ({type(error).__name__}). Copy it again, or make a new one with: "
            "enrichkit pack"
        ) from None
    return Manifest.read((folder / MANIFEST).read_bytes())


def _check_member(member: tarfile.TarInfo) -> None:
    if member.issym() or member.islnk():
        raise ConfigError(
            f"{member.name} is a link to {member.linkname}, which executors do not have; packed virtual environments "
            "have such links to the Python of the machine that made them. Make an archive without: enrichkit pack"
        )
    if member.name.startswith("/") or ".." in Path(member.name).parts or not (member.isfile() or member.isdir()):
        raise ConfigError(f"{member.name} is no file inside the archive's own folder. Make a new one: enrichkit pack")


def _check_said(manifest: Manifest, target: Target, plugins: tuple[str, ...]) -> None:
    if manifest.enrichkit != VERSION:
        raise ConfigError(
            f"it has enrichkit {manifest.enrichkit}, and this driver has {VERSION}; the two must be the same. Pack "
            "it again on this machine."
        )
    if manifest.python != target.python:
        raise ConfigError(
            f"it is for Python {manifest.python}, and the executors run {target.python}. Pack it with --python "
            f"{target.python}."
        )
    if manifest.platform != target.platform:
        raise ConfigError(
            f"it is for {manifest.platform}, and the executors are {target.platform}. Pack it with --platform "
            f"{target.platform}."
        )
    for plugin in plugins:
        if plugin not in manifest.plugins:
            raise ConfigError(
                f"it has no connector {plugin!r}.{did_you_mean(plugin, manifest.plugins)} It has: "
                f"{', '.join(manifest.plugins) or 'none'}. Pack it with: enrichkit pack "
                f"{' '.join((*manifest.plugins, plugin))}"
            )


def _check_files(folder: Path, manifest: Manifest) -> None:
    """Check that *folder* holds exactly the files of the manifest, with the same hashes."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
    for name, digest in manifest.files.items():
        if name not in found:
            raise ConfigError(f"{name} is missing, which its manifest names. Make a new one with: enrichkit pack")
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise ConfigError(
                f"{name} is not what was packed: its bytes have changed. Make a new one with: enrichkit pack"
            )
    if added := sorted(found - manifest.files.keys()):
        raise ConfigError(f"{added[0]} was added after it was packed. Make a new one with: enrichkit pack")
    if SCRIPT not in manifest.files:
        raise ConfigError(f"it has no {SCRIPT}, which starts Python. Make a new one with: enrichkit pack")


def _check_native(folder: Path, target: Target) -> None:
    """Check that each native library was compiled for the processor and the Python of *target*."""
    for path in filter(lambda path: LIBRARY.search(path.name), (folder / SITE).rglob("*.so*")):
        with path.open("rb") as file:
            head = file.read(20)
        shown = path.relative_to(folder)
        if head[:4] != b"\x7fELF" or int.from_bytes(head[18:20], "little") != MACHINES[target.platform]:
            others = [name for name in PLATFORMS if head[:4] == b"\x7fELF" and head[18] == MACHINES[name]]
            raise ConfigError(
                f"{shown} is compiled for {others[0] if others else 'another system'}, not for {target.platform}. Pack "
                f"it with --platform {target.platform}."
            )
        tag = TAG.search(path.name)
        if tag is not None and f"{tag[1]}.{tag[2]}" != target.python:
            raise ConfigError(
                f"{shown} is compiled for Python {tag[1]}.{tag[2]}, not for {target.python}. Pack it with --python "
                f"{target.python}."
            )


def _check_needs(folder: Path, manifest: Manifest) -> None:
    """Check that each dependency of a package in the archive is there, too, or comes with Spark or the cluster."""
    there = {name.lower() for name in manifest.packages} | SPARK | (CLUSTER if manifest.bare else set())
    for distribution in importlib.metadata.distributions(path=[str(folder / SITE)]):
        for line in distribution.requires or ():
            match = re.match(r"[A-Za-z0-9._-]+", line)
            if match is None or ";" in line:
                continue  # not checked: uv or pip has evaluated the marker of this requirement for the target
            needed = normalized(match[0])
            if needed not in there:
                raise ConfigError(
                    f"{distribution.name} needs {needed}, which is not in it. Pack it again with enrichkit pack, or "
                    f"add it: enrichkit pack --with {needed}"
                )


def _start(folder: Path, manifest: Manifest) -> None:
    """
    Start Python as an executor would, and check that it can import modules of the archive.

    The started Python does not get the environment variables of this process.
    """
    modules = sorted({"enrichkit", "enrichkit.worker.entry", *_modules(folder / SITE)})
    environment = {"PATH": os.defpath, "ENRICHKIT_PYTHON": _outside(), "PYTHONNOUSERSITE": "1", "HOME": str(folder)}
    if manifest.bare:
        environment["PYTHONPATH"] = os.pathsep.join(_folders_of(CLUSTER))
    command = ["/bin/sh", str(folder / SCRIPT), "-B", "-c", LOOK, str(folder), *modules]
    try:
        done = subprocess.run(  # noqa: S603  # the user has packed this archive, or is about to run it
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=START_SECONDS
        )
        failed: Mapping[str, str] = json.loads(done.stdout) if not done.returncode else {"Python": done.stderr.strip()}
    except (subprocess.TimeoutExpired, ValueError) as error:
        failed = {"Python": type(error).__name__}
    for module, problem in failed.items():
        raise ConfigError(f"it does not start: {module}: {problem[-500:]}. Make a new one with: enrichkit pack")


def _modules(site: Path) -> list[str]:
    """Return the modules that `_start` imports: those of the connectors, and the packages with native code."""
    points = [p for d in importlib.metadata.distributions(path=[str(site)]) for p in d.entry_points]
    named = [point.module for point in points if point.group == "enrichkit"]
    native = {path.relative_to(site).parts[0] for path in site.rglob("*.so")}
    return [*named, *(name for name in native if (site / name / "__init__.py").exists())]


def _outside() -> str:
    """Return the path of the Python behind this virtual environment, which does not see the environment's packages."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _folders_of(names: Iterable[str]) -> list[str]:
    """Return the folders in which the packages *names* are installed on this machine."""
    found = []
    for name in names:
        try:
            found.append(str(importlib.metadata.distribution(name).locate_file("")))
        except importlib.metadata.PackageNotFoundError:
            continue
    return sorted(set(found))
