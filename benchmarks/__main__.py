"""
Run the benchmarks named on the command line, or all of them, and write their results.

    ./run bench                     # all
    ./run bench redis_bulk scale    # some
    ./run bench --quick approaches  # few and short runs, to try the script: nothing is written
    ./run bench --twice             # two results of each, whose passes take turns, and whether they agree
    ./run bench --compare FOLDER    # measures nothing: do the results here agree with those in FOLDER, of another run?

Each runs in processes of its own, so that none starts warmer than another, and in several passes.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import agreement, passes, pictures
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
ONCE = ("http_floor", "http_tail", "memory")
"""What one pass is enough for: it waits more than it computes, which is alike in all sessions, or has no pairs."""


def one(name: str, file: Path, number: int, of: int, folder: Path, *, quick: bool) -> int:
    """
    Make one pass of the benchmark *name*; return 0 when every goal was reached.

    The last one writes the result into *folder*; *file* takes what was found from pass to pass.
    """
    module = importlib.import_module(f"benchmarks.{name}")
    measured = fingerprint(module.SOURCES)
    passes.current = passes.read(file, number, of, measured)
    tables = module.main(quick)
    if number + 1 < of:
        passes.write(file, measured)
        return 0
    for table in tables:
        print(table.text(), flush=True)
    if quick:
        print("A quick run: its figures mean nothing, whatever they reached, and nothing is written.")
        return 0
    print(f"written to {save(name, tables, module.SOURCES, measured, folder=folder).name}")
    if folder == RESULTS:
        print(*pictures.draw(name))
    return 0 if all(reached for table in tables for _, reached in table.goals) else 1


def run(names: Sequence[str], folders: Sequence[Path], *, quick: bool) -> list[str]:
    """
    Run the benchmarks *names*, one pass of all after the other; return those that failed or missed a goal.

    There is a result in each of *folders*. They have no pass in common, and make each of theirs beside each other.
    """
    failed: dict[tuple[str, Path], None] = {}
    with TemporaryDirectory(prefix="enrichkit-bench-") as place:
        of = 1 if quick else passes.PASSES
        for number in range(of):
            # Which of two comes first changes: it meets the machine as another benchmark has left it.
            order = list(enumerate(folders))[:: -1 if number % 2 else 1]
            for name, (index, folder) in product(names, order):
                if (name, folder) in failed or (name in ONCE and number + 1 < of):
                    continue
                table = f", table {index + 1} of {len(folders)}" * (len(folders) > 1)
                print(f"== {name}" + f", pass {number + 1} of {of}" * (of > 1) + table, flush=True)
                which = ["0", "1"] if name in ONCE else [str(number), str(of)]
                between = str(Path(place, f"{name}-{index}"))
                arguments = [name, *["--quick"] * quick, "--pass", *which, between, str(folder)]
                if subprocess.run([sys.executable, "-m", "benchmarks", *arguments], check=False).returncode:
                    failed[name, folder] = None
    return list(dict.fromkeys(name for name, _ in failed))


def compare(names: Sequence[str], folder: Path) -> int:
    """Compare the results *names* with those in *folder*, and write what agrees; return 0 when all does."""
    sources = sorted({source for name in names for source in importlib.import_module(f"benchmarks.{name}").SOURCES})
    table = agreement.compare(RESULTS, folder, names)
    print(table.text())
    kept = agreement.NAME if set(names) == set(ALL) else "-".join((agreement.NAME, *names))
    print(f"written to {save(kept, [table], sources, fingerprint(sources)).name}")
    return 0 if all(reached for _, reached in table.goals) else 1


def main() -> int:
    """Run what was asked for; return 0 when every benchmark ran and reached its goals."""
    parser = argparse.ArgumentParser(
        prog="./run bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(ALL)}")
    parser.add_argument("--quick", action="store_true", help="few and short runs, and no file")
    parser.add_argument("--twice", action="store_true", help="two results of each, and whether they agree")
    parser.add_argument("--compare", metavar="FOLDER", type=Path, help="results of another run of the same sources")
    # which pass, of how many, the file between them, and the folder of the result
    parser.add_argument("--pass", dest="place", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    for name in asked.names:
        if name not in ALL:
            parser.error(f"there is no benchmark {name!r}; benchmarks: {', '.join(ALL)}")
    names = asked.names or ALL
    if asked.compare:
        return compare(names, asked.compare)
    if asked.place:
        number, of, file, folder = asked.place
        return one(names[0], Path(file), int(number), int(of), Path(folder), quick=asked.quick)
    with TemporaryDirectory(prefix="enrichkit-bench-other-") as other:
        failed = run(names, [RESULTS, Path(other)] if asked.twice else [RESULTS], quick=asked.quick)
        print(f"Failed, or missed a goal: {', '.join(failed)}" if failed else "All ran, and reached their goals.")
        both = [name for name in names if Path(other, f"{name}.md").exists()]
        differ = compare(both, Path(other)) if both else 0
    return 1 if failed else differ


if __name__ == "__main__":
    sys.exit(main())
