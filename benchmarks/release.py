"""
The packages of a release, built and tried; nothing is uploaded.

    ./run release --dry-run         # builds into dist/release and tries what it has built
    ./run release --version 0.2.0   # writes the version into all packages; commit that, then build

A release is a folder: wheels and sdists of all packages, a list of the components (SBOM, CycloneDX), the part of the
changelog, and the checksums. Each wheel is installed alone in a new environment of each Python that this machine has,
each sdist in one of the first, and `benchmarks/smoke.py` runs there. Why these tools:
docs/decisions/0061-the-tools-of-a-release.md.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
CONNECTORS = tuple(sorted(path.name.removeprefix("enrichkit-") for path in (ROOT / "plugins").glob("enrichkit-*")))
SMOKE = Path(__file__).with_name("smoke.py")
# Spark, pandas and what comes with them are those of the cluster, and no part of a release.
COMPONENTS = f"enrichkit[{','.join((*CONNECTORS, 'cli', 'monitor', 'otel'))}]"
TWINE, CONTENTS, CYCLONEDX = "twine>=6.1", "check-wheel-contents>=0.6.3", "cyclonedx-bom>=7.1"

_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+((a|b|rc)[0-9]+)?").fullmatch


def projects(root: Path) -> list[Path]:
    """Return the file pyproject.toml of each package, that of enrichkit first."""
    return [root / "pyproject.toml", *sorted(root.glob("plugins/enrichkit-*/pyproject.toml"))]


def version_of(root: Path) -> str:
    """Return the version, which `enrichkit/version.py` holds."""
    (version,) = re.findall(r'^VERSION = "(.+)"$', (root / "enrichkit/version.py").read_text(), re.MULTILINE)
    return str(version)


def range_of(version: str) -> str:
    """
    Return which versions of the other packages fit to *version*: before 1.0 those of one minor, then of one major.

    >>> range_of("0.2.3"), range_of("1.4.0")
    ('>=0.2,<0.3', '>=1.4,<2')
    """
    major, minor = map(int, version.split(".")[:2])
    return f">={major}.{minor},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def set_version(root: Path, version: str) -> None:
    """Write *version* into all packages, and what they need of each other."""
    if not _VERSION(version):
        raise SystemExit(f"The version is {version!r}; it must be three numbers, as in 0.2.0, or 0.2.0rc1.")
    held = root / "enrichkit/version.py"
    held.write_text(re.sub(r'^VERSION = ".+"$', f'VERSION = "{version}"', held.read_text(), flags=re.MULTILINE))
    for file in projects(root):
        text = re.sub(r'^version = ".+"$', f'version = "{version}"', file.read_text(), count=1, flags=re.MULTILINE)
        file.write_text(re.sub(r'"(enrichkit(?:-[a-z]+)?)>=[^"]+"', rf'"\1{range_of(version)}"', text))


def disagreements(root: Path) -> list[str]:
    """Return what differs from the version of `enrichkit/version.py`: packages, their needs, and the changelog."""
    version = version_of(root)
    found = []
    for file in projects(root):
        text = file.read_text()
        found += [
            f"{file.relative_to(root)}: version {other}" for other in _others(r'^version = "(.+)"$', text, version)
        ]
        needs = _others(r'"enrichkit(?:-[a-z]+)?(>=[^"]+)"', text, range_of(version))
        found += [f"{file.relative_to(root)}: needs {other}" for other in needs]
    if not changes_of(root, version):
        found.append(f"CHANGELOG.md: no part for {version}")
    return found


def _others(pattern: str, text: str, expected: str) -> list[str]:
    values = re.findall(pattern, text, re.MULTILINE)
    return [value for value in values or ["none"] if value != expected]


def changes_of(root: Path, version: str) -> str:
    """Return the part of the changelog for *version*, without its heading; empty if there is none."""
    text = (root / "CHANGELOG.md").read_text()
    match = re.search(rf"^## {re.escape(version)}(?:,[^\n]*)?\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return match[1].strip() if match else ""


def main() -> None:
    """Write the version, or build and try a release."""
    parser = argparse.ArgumentParser(prog="./run release", description="Nothing is uploaded.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--dry-run", action="store_true", help="build a release into dist/release and try it")
    what.add_argument("--version", help="write this version into all packages")
    arguments = parser.parse_args()
    if arguments.version:
        set_version(ROOT, arguments.version)
    if wrong := disagreements(ROOT):
        raise SystemExit("Not everything has the version of enrichkit/version.py:\n" + "\n".join(wrong))
    if arguments.dry_run:
        with tempfile.TemporaryDirectory(prefix="enrichkit-release-") as folder:
            Release(os.environ["UV"], ROOT / "dist/release", Path(folder)).make()


class Release:
    """
    A release in the making.

    Args:
        uv: Program.
        target: Folder of the release; what it held before is removed.
        scratch: Folder for environments, outside the checkout.
    """

    def __init__(self, uv: str, target: Path, scratch: Path) -> None:
        self._uv = uv if "/" not in uv else str((ROOT / uv).absolute())
        self._target = target
        self._scratch = scratch
        self._version = version_of(ROOT)
        self._environments = 0

    def make(self) -> None:
        """Build, check and try everything; ends with the first error."""
        shutil.rmtree(self._target, ignore_errors=True)
        self._step("wheels and sdists", self._build)
        self._step("their metadata and contents", self._check)
        missing = []
        for version in PYTHONS:
            python = self._python(version)
            if python is None:
                missing.append(version)
                continue
            wheels = self._target.glob("*.whl")
            self._step(f"each wheel on Python {version}", lambda p=python, w=wheels: self._try(p, w))
            if version == PYTHONS[0]:
                self._step(
                    f"each sdist on Python {version}", lambda p=python: self._try(p, self._target.glob("*.tar.gz"))
                )
        self._step("the list of components", self._components)
        (self._target / "changes.md").write_text(changes_of(ROOT, self._version) + "\n")
        files = sorted(path for path in self._target.iterdir() if path.is_file())
        sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
        (self._target / "SHA256SUMS").write_text("".join(sums))
        print(
            f"enrichkit {self._version} is in {self._target}: {len(files)} files and their checksums. Nothing was uploaded."
        )
        if missing:
            print(f"Not tried, because this machine has no such Python: {', '.join(missing)}.")

    def _step(self, name: str, work) -> None:
        began = time.monotonic()
        work()
        print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)

    def _run(self, *command: str | Path, **settings) -> str:
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        env["UV_PYTHON_DOWNLOADS"] = "never"  # it would come from elsewhere than the package index
        done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True, **settings)
        if done.returncode:
            raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def _tool(self, package: str, *command: str | Path) -> None:
        self._run(self._uv, "tool", "run", "--quiet", "--python", sys.executable, "--from", package, *command)

    def _build(self) -> None:
        self._run(self._uv, "build", "--quiet", "--all-packages", "--out-dir", self._target, cwd=ROOT)
        (self._target / ".gitignore").unlink(missing_ok=True)
        names = {path.name for path in self._target.iterdir()}
        packages = ["enrichkit", *(f"enrichkit_{name}" for name in CONNECTORS)]
        expected = {f"{name}-{self._version}{end}" for name in packages for end in ("-py3-none-any.whl", ".tar.gz")}
        if names != expected:
            raise SystemExit(f"Other files were built than {sorted(expected)}: {sorted(names ^ expected)}")

    def _check(self) -> None:
        self._tool(TWINE, "twine", "check", "--strict", *sorted(self._target.iterdir()))
        self._tool(CONTENTS, "check-wheel-contents", *sorted(self._target.glob("*.whl")))

    def _python(self, version: str) -> str | None:
        """Return the path of a Python of *version*; one of pyenv counts too, whose shims may not work."""
        folders = sorted(glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python")))
        for candidate in (
            sys.executable,
            f"/usr/bin/python{version}",
            *folders,
            shutil.which(f"python{version}") or "",
        ):
            probe = "import sys; print('%d.%d' % sys.version_info[:2])"
            try:
                done = subprocess.run([candidate, "-c", probe], capture_output=True, text=True)
            except OSError:
                continue
            if done.returncode == 0 and done.stdout.strip() == version:
                return candidate
        return None

    def _environment(self, python: str, *requirements: str | Path) -> Path:
        """Return the Python of a new environment that has *requirements*, enrichkit's packages from the release."""
        self._environments += 1
        folder = self._scratch / str(self._environments)
        self._run(self._uv, "venv", "--quiet", "--python", python, folder)
        found = folder / "bin/python"
        install = (self._uv, "pip", "install", "--quiet", "--python", found, "--find-links", self._target)
        own = [
            part
            for name in ("enrichkit", *(f"enrichkit-{each}" for each in CONNECTORS))
            for part in ("--refresh-package", name)
        ]
        self._run(*install, *own, *requirements, cwd=self._scratch)
        return found

    def _try(self, python: str, files) -> None:
        for file in sorted(files):
            package = file.name.partition("-")[0]
            connectors = [package.removeprefix("enrichkit_")] if package != "enrichkit" else []
            found = self._environment(python, file)
            self._run(found, "-I", SMOKE, self._version, *connectors, cwd=self._scratch)
            shutil.rmtree(found.parent.parent)

    def _components(self) -> None:
        """Write the SBOM of an environment with all extras, in the versions of the lock."""
        constraints = self._scratch / "constraints"
        locked = re.findall(
            r"^([\w.-]+==[^\s;\\]+(?: ; [^\\\n]+)?)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
        )
        constraints.write_text("\n".join(locked) + "\n")
        python = self._environment(sys.executable, "--constraint", constraints, f"{COMPONENTS}=={self._version}")
        file = self._target / f"enrichkit-{self._version}.cdx.json"
        self._tool(CYCLONEDX, "cyclonedx-py", "environment", "--output-reproducible", "--output-file", file, python)
        if str(ROOT) in file.read_text() or str(self._scratch) in file.read_text():
            raise SystemExit(f"{file} names a folder of this machine.")


if __name__ == "__main__":
    main()
