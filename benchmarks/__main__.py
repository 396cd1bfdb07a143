"""
Run the benchmarks named on the command line, or all of them, and write their results.

    ./run bench                     # all benchmarks
    ./run bench redis_bulk scale    # some benchmarks
    ./run bench --quick approaches  # few and short runs, to try the script; writes nothing
    ./run bench --twice             # measures each benchmark twice, with alternating passes, and compares the results
    ./run bench --compare FOLDER    # measures nothing; compares the results with those in FOLDER, from another run
    ./run bench --against FOLDER    # compares this checkout with that in FOLDER, run by run, and writes nothing else

Each benchmark runs in several passes. Each pass is a process of its own, so that no benchmark starts with a warmer
process than another one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import against, agreement, passes, pictures, turns
from benchmarks.harness import ROOT
from benchmarks.report import RESULTS, fingerprint, save

ALL = (
    "engine",
    "redis_bulk",
    "postgres_bulk",
    "shapes",
    "cached",
    "reuse",
    "shuffle",
    "http_cost",
    "http_floor",
    "approaches",
    "http_tail",
    "scale",
    "memory",
    "outages",
    "few_rows",
    "advice",
    "watched",
    "job_rate",
    "cache_policy",
    "auto_capacity",
    "hedged",
    "tiers",
)
ONCE = (
    "http_floor",
    "http_tail",
    "memory",
    "outages",
    "few_rows",
    "advice",
    "watched",
    "job_rate",
    "cache_policy",
    "auto_capacity",
    "hedged",
    "tiers",
)
"""
The benchmarks for which one pass is enough.

They wait more than they compute, which does not differ between Spark sessions, or they have no pairs of runs.
"""


def one(name: str, file: Path, number: int, of: int, folder: Path, *, quick: bool) -> int:
    """
    Make one pass of the benchmark *name*; return 0 when every goal was reached.

    The last pass writes the result into *folder*. The file *file* hands the samples of a pass on to the next pass.
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


def run(names: Sequence[str], folders: Sequence[Path], *, quick: bool, other: Path | None = None) -> list[str]:
    """
    Run the first pass of all benchmarks *names*, then the second pass of all, and so on.

    Each of *folders* gets a result of each benchmark. The results share no pass, and their passes alternate. If *other*
    is given, the second result measures that checkout, the two results alternate run by run, and each folder gets the
    times of all runs, too, as `NAME.json`.

    Returns:
        The names of the benchmarks that failed or missed a goal.
    """
    failed: dict[tuple[str, Path], None] = {}
    with TemporaryDirectory(prefix="enrichkit-bench-") as place:
        of = 1 if quick else passes.PASSES
        for number in range(of):
            # The order alternates, because the first of two runs meets the machine as the previous benchmark left it.
            order = list(enumerate(folders))[:: -1 if number % 2 else 1]
            for name in names:
                if name in ONCE and number + 1 < of:
                    continue
                which = ["0", "1"] if name in ONCE else [str(number), str(of)]
                commands: dict[Path, tuple[Path, list[str]]] = {}
                for index, folder in order:
                    between = str(Path(place, f"{name}-{index}"))
                    arguments = [name, *["--quick"] * quick, "--pass", *which, between, str(folder)]
                    if (name, folder) not in failed:
                        commands[folder] = other if other and index else ROOT, arguments
                if not commands:
                    continue
                print(f"== {name}" + f", pass {number + 1} of {of}" * (of > 1), flush=True)
                if other is not None and len(commands) == 2:
                    ended = turns.run([*commands.values()], [folder / f"{name}.json" for folder in commands])
                else:
                    ended = _one_by_one([*commands.values()])
                for folder, reached in zip(commands, ended, strict=True):
                    if not reached:
                        failed[name, folder] = None
    return list(dict.fromkeys(name for name, _ in failed))


def _one_by_one(commands: Sequence[tuple[Path, Sequence[str]]]) -> list[bool]:
    """Run the benchmarks of each of *commands*, as `turns.run` does, but one after the other."""
    ended = []
    for checkout, arguments in commands:
        python = sys.executable if checkout == ROOT else turns.python_of(checkout)
        ended.append(subprocess.run([python, "-m", "benchmarks", *arguments], cwd=checkout, check=False))
    return [process.returncode == 0 for process in ended]


def compare(names: Sequence[str], folder: Path) -> int:
    """Compare the results *names* with those in *folder*, and write the comparison; return 0 when all figures agree."""
    sources = sorted({source for name in names for source in importlib.import_module(f"benchmarks.{name}").SOURCES})
    table = agreement.compare(RESULTS, folder, names)
    print(table.text())
    kept = agreement.NAME if set(names) == set(ALL) else "-".join((agreement.NAME, *names))
    print(f"written to {save(kept, [table], sources, fingerprint(sources)).name}")
    return 0 if all(reached for _, reached in table.goals) else 1


def compare_with(other: Path, names: Sequence[str], *, quick: bool) -> int:
    """Compare this checkout with *other*, run by run, and write that; return 0 when no run of enrichkit is slower."""
    sources = sorted({source for name in names for source in importlib.import_module(f"benchmarks.{name}").SOURCES})
    with TemporaryDirectory(prefix="enrichkit-bench-against-") as place:
        folders = [Path(place, which) for which in ("now", "before")]
        for folder in folders:
            folder.mkdir()
        failed = run(names, folders, quick=quick, other=other)
        if quick:
            return 1 if failed else 0
        # A benchmark that only missed a goal has written its result.
        broken = [name for name in names if not all((folder / f"{name}.md").exists() for folder in folders)]
        if broken:
            print(f"Failed: {', '.join(broken)}. Nothing is compared, and nothing is written.")
            return 1
        now, before = (
            {name: json.loads((folder / f"{name}.json").read_text()) for name in names} for folder in folders
        )
    table = against.compare({name: (before[name], now[name]) for name in names})
    print(table.text())
    print(f"written to {save(against.NAME, [table], sources, fingerprint(sources)).name}")
    return 0 if all(reached for _, reached in table.goals) else 1


def main() -> int:
    """Run the command line; return 0 when every benchmark ran and reached its goals."""
    parser = argparse.ArgumentParser(
        prog="./run bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(ALL)}")
    parser.add_argument("--quick", action="store_true", help="few and short runs, and no file")
    parser.add_argument("--twice", action="store_true", help="two results of each, and whether they agree")
    parser.add_argument("--compare", metavar="FOLDER", type=Path, help="results of another run of the same sources")
    parser.add_argument("--against", metavar="FOLDER", type=Path, help="another checkout, measured in turns with this")
    # The four values are: number of the pass, number of passes, file between the passes, folder of the result.
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
    if asked.against:
        return compare_with(asked.against.resolve(), names, quick=asked.quick)
    with TemporaryDirectory(prefix="enrichkit-bench-other-") as other:
        folders = [RESULTS, Path(other)] if asked.twice else [RESULTS]
        failed = run(names, folders, quick=asked.quick)
        print(f"Failed, or missed a goal: {', '.join(failed)}" if failed else "All ran, and reached their goals.")
        both = [name for name in names if Path(other, f"{name}.md").exists()]
        differ = compare(both, Path(other)) if both else 0
    return 1 if failed else differ


if __name__ == "__main__":
    sys.exit(main())
