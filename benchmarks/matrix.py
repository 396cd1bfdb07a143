"""
The supported versions of PySpark: runs `tests/spark/test_versions.py` in an environment of each version.

    ./run matrix            # all versions; writes benchmarks/results/matrix.md
    ./run matrix 4.0 4.1    # some versions; writes nothing

The environments are in `.matrix/` and take about 3 GB; the first call downloads most of that.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET  # safe here: our own pytest wrote the file
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT, Table
from benchmarks.report import fingerprint, save

TESTS = "tests/spark/test_versions.py"
# The packages of each environment, besides pandas 2. PySpark 3.5 needs NumPy 1, with which the newest pyarrow does not
# work, so its environment has the oldest pyarrow that enrichkit allows.
VERSIONS = {
    "3.5": ["pyspark==3.5.*", "numpy<2", "pyarrow==18.*"],
    "4.0": ["pyspark[connect]==4.0.*"],
    "4.1": ["pyspark[connect]==4.1.*"],
    "4.2": ["pyspark[connect]==4.2.*"],
    "4.3": ["pyspark[connect]==4.3.*"],
}
NOT_RUN = {("3.5", "connect"): "the package of PySpark 3.5 does not hold the Connect server"}
# setuptools, because PySpark 3.5 uses distutils.
EVERYWHERE = ["pandas>=2.2,<3", "hypothesis", "pytest-timeout", "setuptools"]
PLUGINS = ("redis", "postgres", "http")
CHOSEN_BY_PYSPARK = {"pyspark", "py4j", "pandas", "numpy", "pyarrow", "python-dateutil", "pytz", "six", "tzdata"}
CHOSEN_BY_PYSPARK |= {"grpcio", "grpcio-status", "googleapis-common-protos", "protobuf", "zstandard"}
SHOWN = ("pyspark", "pandas", "numpy", "pyarrow")
MEASURED = ("enrichkit", *(f"plugins/enrichkit-{name}" for name in PLUGINS), "benchmarks/matrix.py", TESTS)
SHARED = ("asyncpg", "redis", "hiredis", "pyreqwest", "uvloop", "msgspec")
TIME_LIMIT = 1800.0

PROBE = f"""
import importlib.metadata, json, platform
from pyspark.sql import functions
carrier = "arrow" if hasattr(functions, "arrow_udf") else "pandas"
versions = [importlib.metadata.version(name) for name in {SHOWN}]
print(json.dumps([versions[0], carrier, platform.python_version(), *versions[1:]]))
"""


@dataclass(frozen=True)
class Outcome:
    """Whether each test passed, by its name, and the seconds that all tests took."""

    passed: dict[str, bool]
    seconds: float


def environment(uv: str, version: str) -> Path:
    """Return the Python of the environment of *version*; create the environment again if its packages have changed."""
    folder = ROOT / ".matrix" / version
    python = folder / "bin" / "python"
    locked = re.findall(r"^([\w.-]+)==([^ ;\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    constraints = "".join(f"{name}=={number}\n" for name, number in locked if name not in CHOSEN_BY_PYSPARK)
    projects = [f".[{','.join(PLUGINS)},testing]", *(f"plugins/enrichkit-{name}" for name in PLUGINS)]
    wanted = [*VERSIONS[version], *EVERYWHERE, *(part for project in projects for part in ("-e", project))]
    stamp = hashlib.sha256("\0".join([str(ROOT), constraints, *wanted]).encode()).hexdigest()
    if (folder / "stamp").exists() and (folder / "stamp").read_text() == stamp:
        return python
    print(f"Installing {VERSIONS[version][0]} into .matrix/{version}", flush=True)
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", "3.11", folder], check=True)
    (folder / "constraints").write_text(constraints)
    install = [uv, "pip", "install", "--quiet", "--python", python, "--constraint", folder / "constraints"]
    subprocess.run([*install, *wanted], check=True, cwd=ROOT)
    (folder / "stamp").write_text(stamp)
    return python


def run(python: Path, mode: str) -> Outcome:
    """Run the tests in the environment of *python*."""
    report = python.parent.parent / f"{mode}.xml"
    report.unlink(missing_ok=True)
    # Warnings are not errors here: each PySpark causes warnings of libraries that are newer than it.
    options = ["-q", "-o", "filterwarnings=default", "--disable-warnings", "-p", "no:cacheprovider"]
    command = [python, "-m", "pytest", *options, f"--junitxml={report}", *["--connect"] * (mode == "connect"), TESTS]
    done = subprocess.run(command, cwd=ROOT, timeout=TIME_LIMIT, capture_output=True, text=True)
    if not report.exists():
        raise RuntimeError(f"pytest ended with {done.returncode} and without a report:\n{done.stdout}{done.stderr}")
    suite = ET.parse(report).getroot()[0]
    passed = {case.get("name", "?"): len(case) == 0 for case in suite.iter("testcase")}
    if not all(passed.values()):
        print(done.stdout)
    return Outcome(passed, float(suite.get("time", "nan")))


def main(uv: str, chosen: list[str]) -> int:
    """Run *chosen* versions, or all; return 0 when every test passed."""
    for version in chosen:
        if version not in VERSIONS:
            print(f"There is no version {version!r} here. Versions: {', '.join(VERSIONS)}", file=sys.stderr)
            return 2
    sources = fingerprint(MEASURED)
    columns = ("PySpark", "mode", "carrier", "Python", "pandas", "NumPy", "pyarrow", "passed", "seconds")
    table = Table("versions", "tests/spark/test_versions.py in an environment of each PySpark", columns)
    for version in chosen or VERSIONS:
        python = environment(uv, version)
        shown = json.loads(subprocess.run([python, "-c", PROBE], check=True, capture_output=True, text=True).stdout)
        for mode in ("classic", "connect"):
            if reason := NOT_RUN.get((version, mode)):
                table.rows.append((shown[0], mode, *shown[1:], f"not run: {reason}", "-"))
                continue
            outcome = run(python, mode)
            failed = [name for name, passed in outcome.passed.items() if not passed]
            count = f"{len(outcome.passed) - len(failed)} of {len(outcome.passed)}"
            table.rows.append((shown[0], mode, *shown[1:], count, f"{outcome.seconds:.0f}"))
            what = f"PySpark {shown[0]}, {mode}: every test passes"
            table.goals.append(
                (what + "".join(f"; not {name}" for name in failed), not failed and bool(outcome.passed))
            )
            print(f"PySpark {shown[0]}, {mode}: {count}", flush=True)
    print(table.text())
    if not chosen:
        print(f"written to {save('matrix', [table], MEASURED, sources, SHARED).relative_to(ROOT)}")
    return 0 if all(reached for _, reached in table.goals) else 1


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main(os.environ["UV"], sys.argv[1:]))
