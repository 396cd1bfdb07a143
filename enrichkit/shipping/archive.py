"""
The archive: a folder `site` of packages, a script `bin/python`, and a manifest with the hash of each file.

The archive holds no interpreter. `bin/python` starts the executor's own Python, which searches `site` before its own
packages. So the archive can replace a virtual environment wherever Spark expects one. A virtual environment has links
to the Python of the machine on which it was built, which executors do not have; the archive has no links.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MANIFEST", "SCRIPT", "SITE", "Manifest", "write"]

MANIFEST, SITE, SCRIPT = "manifest.json", "site", "bin/python"
TIME = 315_532_800
"""Modification time of all files in an archive, 1980-01-01 UTC, so that equal packages make archives of equal bytes."""
FORMAT = 1
START = """\
#!/bin/sh
# Starts this machine's own Python {python} with the packages of this archive before its own.
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
for python in "${{ENRICHKIT_PYTHON:-}}" {given} python{python} python3 python; do
    case $python in '' | */environment/bin/python) continue ;; esac
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    [ "$version" = {python} ] || continue
    PYTHONPATH="$here/site${{PYTHONPATH:+:$PYTHONPATH}}"
    export PYTHONPATH
    exec "$python" "$@"
done
echo "enrichkit: this machine has no Python {python}, for which the archive was packed. Pack it for another one with" \\
    "enrichkit pack --python, or name its path with spark.executorEnv.ENRICHKIT_PYTHON." >&2
exit 1
"""


@dataclass(frozen=True)
class Manifest:
    """
    The description of an archive, stored as one of the archive's files.

    Attributes:
        enrichkit: Version of enrichkit in the archive.
        python: Version of Python on the executors, for example `3.12`.
        platform: Platform of the executors, for example `linux-x86_64`.
        bare: Whether pyarrow, pandas and NumPy are left out, because the executors have them.
        plugins: Names of the connectors in the archive.
        packages: Versions of the packages in the archive, by name.
        files: SHA-256 of the files in the archive, by path.
    """

    enrichkit: str
    python: str
    platform: str
    bare: bool
    plugins: tuple[str, ...]
    packages: Mapping[str, str]
    files: Mapping[str, str]

    @classmethod
    def read(cls, text: bytes) -> Manifest:
        """Return the manifest that *text* holds; raises `ConfigError` if *text* holds none."""
        try:
            found: dict[str, Any] = json.loads(text)
            if found.pop("format") != FORMAT:
                raise ValueError
            return cls(**{**found, "plugins": tuple(found["plugins"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(
                f"its {MANIFEST} is not one that this version of enrichkit writes. Pack it again with enrichkit pack."
            ) from None

    def text(self) -> bytes:
        """Return the bytes of the manifest as they are written to the archive."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True).encode()


def write(folder: Path, target: Path, manifest: Manifest, executor_python: str | None) -> None:
    """
    Write the packages in *folder* as the archive *target*.

    Args:
        folder: Folder with the packages.
        target: Path of the archive; a file that exists there is replaced.
        manifest: Manifest of the archive, without the hashes of files; this function adds them.
        executor_python: Path of the Python on the executors; None: `bin/python` looks for one on the executor.
    """
    start = START.format(python=manifest.python, given=f"'{executor_python}'" if executor_python else "")
    contents = {SCRIPT: start.encode()}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            contents[f"{SITE}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    contents[MANIFEST] = Manifest(**{**asdict(manifest), "files": hashes}).text()
    # The manifest comes first, so that a program that reads only the beginning of the archive finds it.
    order = sorted(contents, key=lambda name: (name != MANIFEST, name))
    partial = target.with_name(target.name + ".partial")
    with (
        partial.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in order:
            tar.addfile(_entry(name, len(contents[name])), io.BytesIO(contents[name]))
    partial.replace(target)


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = size, TIME
    entry.mode = 0o755 if name == SCRIPT or ".so" in Path(name).suffixes else 0o644
    return entry
