"""
Clusters of this machine: ways of shipping, processes that go and come, the doctor, and the tests of all versions.

    ./run cluster            # all of it; writes benchmarks/results/cluster.md
    ./run cluster doctor     # one part; writes nothing

The executors have PySpark, pandas and pyarrow only, in `.tools/executor`; enrichkit comes to them by an archive.
Most of their tests are marked `cluster`, and run here only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET  # safe here: our own pytest wrote the file
from pathlib import Path

from benchmarks.harness import ROOT, Table
from benchmarks.report import fingerprint, save

VERSIONS = "tests/spark/test_versions.py"
STREAMS = "not stream"  # Spark 4.3 starts the workers of a stream on Connect elsewhere than it has unpacked
PARTS = {
    "standalone": ("shipping, and executors and workers that go and come", ["tests/test_cluster.py"]),
    "page": ("the commands of the page, from a clone to right rows", ["tests/test_clean_machine.py"]),
    "archives": ("archives, good and broken", ["tests/test_pack.py"]),
    "doctor": ("faults planted on one executor of two", ["tests/spark/test_doctor.py"]),
    "kubernetes": ("manifests, pods and image, without Kubernetes", ["tests/test_kubernetes.py"]),
    "classic": ("the tests of all versions on a standalone cluster", [VERSIONS, "--cluster", "standalone"]),
    "local-cluster": ("the same on local-cluster", [VERSIONS, "--cluster", "local-cluster"]),
    "connect": (
        "the same by Spark Connect, without streams",
        [VERSIONS, "--cluster", "standalone", "--connect", "-k", STREAMS],
    ),
}
MEASURED = (
    "enrichkit/shipping",
    "enrichkit/reports/doctor.py",
    "enrichkit/reports/examination.py",
    "enrichkit/reports/executors.py",
    "enrichkit/local/cluster.py",
    "benchmarks/cluster.py",
    "tests/test_cluster.py",
    "tests/test_pack.py",
    "tests/test_kubernetes.py",
    VERSIONS,
)
TIME_LIMIT = 2400.0


def run(part: str) -> Table:
    """Run one part, and return its tests and how long they took."""
    what, arguments = PARTS[part]
    table = Table(part, what, ("test", "passed", "seconds"))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = ["-q", "-p", "no:cacheprovider", "-m", "", f"--junitxml={report}"]
        command = [sys.executable, "-m", "pytest", *options, *arguments]
        done = subprocess.run(command, cwd=ROOT, timeout=TIME_LIMIT, capture_output=True, text=True)
        if not report.exists():
            raise RuntimeError(f"pytest ended with {done.returncode} and without a report:\n{done.stdout}{done.stderr}")
        cases = list(ET.parse(report).getroot()[0].iter("testcase"))
    if done.returncode:
        print(done.stdout)
    for case in cases:
        passed = not [child for child in case if child.tag in ("failure", "error", "skipped")]
        table.rows.append((case.get("name", "?"), "yes" if passed else "NO", f"{float(case.get('time', 'nan')):.0f}"))
    failed = [name for name, passed, _ in table.rows if passed == "NO"]
    table.goals.append((f"{part}: all {len(cases)} tests pass" + "".join(f"; not {n}" for n in failed), not failed))
    return table


def main(chosen: list[str]) -> int:
    """Run the *chosen* parts, or all; return 0 when every test passed."""
    for part in chosen:
        if part not in PARTS:
            print(f"There is no part {part!r} here. Parts: {', '.join(PARTS)}", file=sys.stderr)
            return 2
    sources, tables = fingerprint(MEASURED), []
    for part in chosen or PARTS:
        tables.append(run(part))
        print(tables[-1].text(), flush=True)
    if not chosen:
        packages = ("pyspark", "pyarrow", "pandas", "redis", "hiredis", "pyreqwest")
        print(f"written to {save('cluster', tables, MEASURED, sources, packages).relative_to(ROOT)}")
    return 0 if all(reached for table in tables for _, reached in table.goals) else 1


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main(sys.argv[1:]))
