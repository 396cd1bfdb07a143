"""
Run the benchmarks named on the command line, or all of them, and write their results.

    ./run bench                     # all
    ./run bench redis_bulk scale    # some
    ./run bench --quick approaches  # few and short runs, to try the script: nothing is written
    ./run bench --compare FOLDER    # measures nothing: do the results here agree with those in FOLDER, of another run?

Each runs in a process of its own, so that none starts warmer than another.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import agreement, pictures
from benchmarks.report import RESULTS, fingerprint, save

ALL = (
    "engine",
    "redis_bulk",
    "postgres_bulk",
    "shapes",
    "cached",
    "http_cost",
    "http_floor",
    "approaches",
    "http_tail",
    "scale",
    "memory",
)


def one(name: str, *, quick: bool) -> int:
    """Run the benchmark *name*; return 0 when every goal was reached."""
    module = importlib.import_module(f"benchmarks.{name}")
    measured = fingerprint(module.SOURCES)
    tables = module.main(quick)
    for table in tables:
        print(table.text(), flush=True)
    if quick:
        print("A quick run: its figures mean nothing, whatever they reached, and nothing is written.")
        return 0
    print(f"written to {save(name, tables, module.SOURCES, measured).name}", *pictures.draw(name))
    return 0 if all(reached for table in tables for _, reached in table.goals) else 1


def compare(names: Sequence[str], folder: Path) -> int:
    """Compare the results *names* with those in *folder*, and write what agrees; return 0 when all does."""
    sources = sorted({source for name in names for source in importlib.import_module(f"benchmarks.{name}").SOURCES})
    table = agreement.compare(RESULTS, folder, names)
    print(table.text())
    print(f"written to {save(agreement.NAME, [table], sources, fingerprint(sources)).name}")
    return 0 if all(reached for _, reached in table.goals) else 1


def main() -> int:
    """Run what was asked for; return 0 when every benchmark ran and reached its goals."""
    parser = argparse.ArgumentParser(
        prog="./run bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(ALL)}")
    parser.add_argument("--quick", action="store_true", help="few and short runs, and no file")
    parser.add_argument("--compare", metavar="FOLDER", type=Path, help="results of another run of the same sources")
    asked = parser.parse_args()
    for name in asked.names:
        if name not in ALL:
            parser.error(f"there is no benchmark {name!r}; benchmarks: {', '.join(ALL)}")
    names = asked.names or ALL
    if asked.compare:
        return compare(names, asked.compare)
    if len(names) == 1:
        return one(names[0], quick=asked.quick)
    codes = {}
    for name in names:
        print(f"== {name}", flush=True)
        codes[name] = subprocess.run(
            [sys.executable, "-m", "benchmarks", name, *["--quick"] * asked.quick], check=False
        ).returncode
    failed = [name for name, code in codes.items() if code]
    print(f"Failed, or missed a goal: {', '.join(failed)}" if failed else "All ran, and reached their goals.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
