"""Environments of Python beside that of the tests, made once for a checkout, in `.tools`."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = ROOT / ".tools"


def version_of(package: str) -> str:
    """Return *package* as a requirement, in the version that the tests have."""
    return f"{package}=={importlib.metadata.version(package)}"


def environment(name: str, *wanted: str) -> str:
    """Return the Python of an environment with the packages *wanted*; the uv of `./run` is on the PATH from then on."""
    os.environ["PATH"] = f"{os.environ['PATH']}{os.pathsep}{TOOLS / 'bin'}"
    folder, stamp = TOOLS / name, "\n".join(wanted)
    if not (folder / "stamp").exists() or (folder / "stamp").read_text() != stamp:
        subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        install = ["uv", "pip", "install", "--quiet", "--python", folder / "bin/python"]
        subprocess.run([*install, *wanted], check=True, cwd=ROOT)
        (folder / "stamp").write_text(stamp)
    return str(folder / "bin/python")
