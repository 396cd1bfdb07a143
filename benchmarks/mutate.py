"""
Mutation testing: finds small changes to the core of the engine that the engine's tests do not notice.

`./run mutate` tries every mutant and writes `benchmarks/results/mutate.md`. `./run mutate --sample 60` tries 60
mutants, chosen with a random seed, which is printed. mutmut creates the mutants in a copy of the tree, and forks a
process for each mutant. `benchmarks/tolerated.toml` gives the reason why the tests need not notice a surviving mutant.
docs/decisions/0023 gives the reasons for mutmut.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT, Table
from benchmarks.report import fingerprint, save

FOLDER = "enrichkit/engine"
LEFT_OUT = (
    "account", "admission", "allowance", "bridge", "cache", "consumer", "eviction", "fallback", "hedging", "job",
    "leases", "loop", "metering", "names", "overlap", "permits", "policies", "preload", "quota", "refresh", "reuse",
    "run", "settlement", "shares", "sizes", "stats", "tiers", "tuning", "write_back",
)  # fmt: skip
"""
Modules of the engine that are not mutated: those of threads and of real time, whose tests `TESTS` leaves out, and those
whose surviving mutants nobody has explained yet in `tolerated.toml`. All others are, a new one too, until its name is
here.
"""
MODULES = tuple(sorted({path.stem for path in (ROOT / FOLDER).glob("[a-z]*.py")} - {*LEFT_OUT}))
SOURCES = [f"{FOLDER}/{module}.py" for module in MODULES]
TOLERATED = ROOT / "benchmarks" / "tolerated.toml"
GOAL = 0.9
GOAL_OF_SAMPLE = 0.8
PROCESSES = 2
RUN = ("run", "--max-children", str(PROCESSES))
KILLED = ("killed", "timeout")
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CANARY = "enrichkit.engine.limits.xǁRetryBudgetǁspend__mutmut_1"
"""A mutant that the tests kill quickly. It runs before a sample is drawn: mutmut lists all mutants only after a run."""

# The tests of the engine under virtual time. The list leaves out slow tests (the simulation, the state machine, and
# others that together took three quarters of the time of all), tests of threads and real time, which test other
# modules, and one of the cache alone. A test that takes longer than its time limit hangs, and ends its process: the
# loop would catch an exception, and a mutant that hangs would take as long as four runs of all tests.
TESTS = """\
[mutmut]
source_paths=enrichkit
only_mutate=
{modules}
pytest_add_cli_args_test_selection=
    tests/engine
pytest_add_cli_args=
    --ignore=tests/engine/test_race.py
    --ignore=tests/engine/test_simulation.py
    --ignore=tests/engine/test_state_machine.py
    --ignore=tests/engine/test_loop.py
    --ignore=tests/engine/test_window.py
    --deselect=tests/engine/test_fallbacks.py::test_every_row_leaves_once_with_what_its_sources_and_policies_say
    --deselect=tests/engine/test_fallbacks.py::test_no_row_is_lost_whatever_the_sources_do_and_whenever_the_task_ends
    --deselect=tests/engine/test_fallbacks.py::test_a_function_that_blocks_for_ever_costs_its_row_and_its_thread
    --deselect=tests/engine/test_cache.py::test_a_cache_never_gives_a_wrong_or_an_old_answer_and_keeps_to_its_bounds
    --deselect=tests/engine/test_bundles.py::test_bundles_give_what_single_lookups_give
    --deselect=tests/engine/test_deadlines.py::test_a_lookup_that_takes_long_keeps_no_clocks_of_those_that_have_left
    --deselect=tests/engine/test_overlap.py::test_a_slice_is_known_to_be_apart_when_no_slice_that_is_held_has_one_of_its_keys
    --deselect=tests/engine/test_outages.py::test_breaks_that_follow_each_other_cost_few_tokens
    --deselect=tests/engine/test_outages.py::test_a_source_that_breaks_every_second_does_not_fill_the_log
    --deselect=tests/engine/test_limits.py::test_a_fast_rate_is_met_and_hardly_exceeded[400.0]
    -pno:cacheprovider
    -pquick_tests_first
    -knot uvloop
    --timeout=600
    --timeout-method=thread
process_isolation=forkserver
debug=true
timeout_multiplier=4.0
timeout_constant=5.0
"""


QUICK_TESTS_FIRST = """\
import json
import resource
from pathlib import Path

# A mutant that loops without end may fill the memory long before its time limit ends it.
resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, resource.RLIM_INFINITY))


def pytest_collection_modifyitems(items):
    measured = Path("mutmut-stats.json")
    if measured.exists():
        seconds = json.loads(measured.read_text())["duration_by_test"]
        items.sort(key=lambda item: seconds.get(item.nodeid, 0.0))
"""
"""A pytest plugin: mutmut has measured the tests, and names them in the order of a set."""


@dataclass(frozen=True)
class Mutant:
    """
    One changed version of the code, and the outcome of its tests.

    Attributes:
        name: mutmut's name of the mutant: module, class, function, number.
        status: `killed`, `timeout`, `survived`, or another word of mutmut for a mutant that was not killed.
    """

    name: str
    status: str

    @property
    def module(self) -> str:
        return self.name.split(".")[2]

    @property
    def function(self) -> str:
        """The name of the changed function, after the class of a method: `backoff`, `Budget.spend`."""
        mangled = self.name.rpartition(".")[2].rpartition("__mutmut_")[0]
        return mangled.removeprefix("x_") if "ǁ" not in mangled else mangled.removeprefix("xǁ").replace("ǁ", ".")


@dataclass(frozen=True)
class Change:
    """The change of a surviving mutant: in *line* of *function* in *module*, *becomes* replaces the text *was*."""

    module: str
    function: str
    line: int
    was: str
    becomes: str


def copy_tree(to: Path) -> None:
    """Copy the files that mutmut and the tests need into *to*, so that the checkout does not change."""
    for name in ("enrichkit", "tests"):
        shutil.rmtree(to / name, ignore_errors=True)
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"), copy_function=shutil.copy)
    shutil.copy(ROOT / "pyproject.toml", to)
    modules = "\n".join(f"    {FOLDER}/{module}.py" for module in MODULES)
    (to / "setup.cfg").write_text(TESTS.format(modules=modules))
    (to / "plugin").mkdir(exist_ok=True)
    (to / "plugin" / "quick_tests_first.py").write_text(QUICK_TESTS_FIRST)


def mutmut(tree: Path, *arguments: str) -> str:
    """Run mutmut in *tree*, and return its output."""
    command = [sys.executable, "-m", "mutmut", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree.absolute() / "plugin"), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = re.sub(r".*[\r⠀-⣿]", "", done.stdout)  # removes mutmut's spinner, which is made of Braille characters
        sys.exit(f"mutmut {arguments[0]} failed:\n{said[-8000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def results(tree: Path) -> list[Mutant]:
    """Return all mutants, in the order of their names."""
    lines = mutmut(tree, "results", "--all", "true").splitlines()
    return sorted((Mutant(*line.strip().split(": ")) for line in lines if line.strip()), key=lambda mutant: mutant.name)


def everything(tree: Path) -> list[Mutant]:
    """
    Try all mutants, or, if *tree* holds an earlier run, only its survivors and the mutants of changed functions.

    After a change of the tests all mutants are tried: mutmut would believe that the new tests kill what the old ones
    have killed.
    """
    files = [ROOT / "tests" / "conftest.py", *sorted((ROOT / "tests" / "engine").glob("*.py"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files) + TESTS.encode()).hexdigest()
    stamp = tree / "tests.sha256"
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(tree / "mutants", ignore_errors=True)
    again = (tree / "mutants").exists()
    copy_tree(tree)
    stamp.write_text(digest)
    print("Trying every mutant; this takes hours.", flush=True)
    alive = {mutant.name for mutant in results(tree) if mutant.status == "survived"} if again else set()
    mutmut(tree, *RUN)
    if alive := alive & {mutant.name for mutant in results(tree)}:
        mutmut(tree, *RUN, *sorted(alive))
    return results(tree)


def sample(tree: Path, size: int, seed: int) -> list[Mutant]:
    """Try *size* mutants, chosen with the random *seed*."""
    copy_tree(tree)
    mutmut(tree, *RUN, CANARY)
    names = [mutant.name for mutant in results(tree)]
    chosen = set(random.Random(seed).sample(names, min(size, len(names))))
    print(f"Trying {len(chosen)} of {len(names):,} mutants, chosen by --seed {seed}.", flush=True)
    mutmut(tree, *RUN, *sorted(chosen))
    return [mutant for mutant in results(tree) if mutant.name in chosen]


def change(tree: Path, mutant: Mutant) -> Change:
    """Return the change that *mutant* makes."""
    diff = mutmut(tree, "show", mutant.name).split("@@ -", 1)[1].splitlines()
    offset = int(re.split(r"\D", diff[0])[0])
    removed = [(number, line[1:]) for number, line in enumerate(line for line in diff[1:] if line[:1] != "+")
               if line[:1] == "-"]  # fmt: skip
    added = [line[1:] for line in diff[1:] if line[:1] == "+"]
    source = (ROOT / FOLDER / f"{mutant.module}.py").read_text()
    expected = _first_line(ast.parse(source), mutant) + offset - 1 + (removed[0][0] if removed else 0)
    was = " ".join(line.strip() for _, line in removed)
    lines = source.splitlines()
    same = [number for number, line in enumerate(lines, 1) if removed and line.strip() == removed[0][1].strip()]
    line = min(same, key=lambda number: abs(number - expected), default=expected)
    return Change(mutant.module, mutant.function, line, was, " ".join(line.strip() for line in added))


def _first_line(module: ast.Module, mutant: Mutant) -> int:
    """Return the first line of the function that *mutant* changes."""
    scope, _, name = mutant.function.rpartition(".")
    body: list[ast.stmt] = module.body
    if scope:
        [body] = [node.body for node in body if isinstance(node, ast.ClassDef) and node.name == scope]
    return next(
        node.lineno for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    )


def reasons() -> dict[tuple[str, str, str, str], str]:
    """Return the reasons why survivors are tolerable, by module, function, and old and new text of the line."""
    modules = tomllib.loads(TOLERATED.read_text())
    return {
        (module, entry["function"], was, becomes): entry["why"]
        for module, entries in modules.items()
        for entry in entries
        for was, becomes in entry["changes"]
    }


def matchless() -> list[tuple[str, str, str]]:
    """Return each tolerated change whose line is not in its function: module, function, and the text of the line."""
    return [
        (module, function, was)
        for module, function, was, _ in reasons()
        if was not in _text_of((ROOT / FOLDER / f"{module}.py").read_text(), function)
    ]


def _text_of(source: str, function: str) -> str:
    """Return the lines of *function* in *source*, joined as `change` joins them; empty if there is none."""
    body: list[ast.stmt] = ast.parse(source).body
    for name in function.split("."):
        named = [node for node in body if isinstance(node, _DEFINITIONS) and node.name == name]
        if not named:
            return ""
        body = named[0].body
    lines = source.splitlines()[named[0].lineno - 1 : named[0].end_lineno]
    return " ".join(line.strip() for line in lines)


def tables(mutants: list[Mutant], survivors: list[Change], goal: float, seconds: float) -> list[Table]:
    """Return the table of the numbers of killed mutants, and the table of the survivors."""
    counts = Table(
        "Mutants",
        f"of {', '.join(f'{module}.py' for module in MODULES)}, tried in {seconds / 60:.0f} min",
        ("module", "mutants", "killed", "of which by time limit", "survived", "share killed"),
    )
    for module in (*MODULES, "all"):
        found = Counter(mutant.status for mutant in mutants if module in (mutant.module, "all"))
        dead, number = sum(found[status] for status in KILLED), found.total()
        if number:
            texts = (number, dead, found["timeout"], number - dead)
            counts.rows.append((module, *map(str, texts), f"{dead / number:.1%}"))
    killed = sum(mutant.status in KILLED for mutant in mutants) / len(mutants)
    counts.goals.append((f"at least {goal:.0%} killed ({killed:.1%})", killed >= goal))
    known = reasons()
    alive = Table("Survivors", "why each is tolerable", ("line", "was", "becomes", "why"))
    unexplained = 0
    for found_change in sorted(survivors, key=lambda each: (MODULES.index(each.module), each.line, each.becomes)):
        why = known.get((found_change.module, found_change.function, found_change.was, found_change.becomes))
        unexplained += why is None
        cells = (f"`{found_change.was}`", f"`{found_change.becomes}`", why or "NOT EXPLAINED in tolerated.toml")
        alive.rows.append(
            (f"{found_change.module}.py:{found_change.line}", *(cell.replace("|", "\\|") for cell in cells))
        )
    alive.goals.append((f"a reason for each survivor ({unexplained} have none)", not unexplained))
    return [counts, alive]


def main() -> int:
    """Try all mutants, or a sample; return 0 when enough mutants were killed."""
    parser = argparse.ArgumentParser(prog="./run mutate", description=__doc__)
    parser.add_argument("--sample", type=int, metavar="N", help="try N mutants only, and write no result")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000), help="of the sample")
    parser.add_argument(
        "--folder", type=Path, help="work there and keep it; a second run tries survivors and changed functions alone"
    )
    asked = parser.parse_args()
    began, measured = time.monotonic(), fingerprint(SOURCES)
    with tempfile.TemporaryDirectory(prefix="enrichkit-mutate-") as temporary:
        tree = asked.folder or Path(temporary)
        tried = sample(tree, asked.sample, asked.seed) if asked.sample else everything(tree)
        with ThreadPoolExecutor(PROCESSES) as pool:
            alive = [mutant for mutant in tried if mutant.status not in KILLED]
            survivors = list(pool.map(lambda mutant: change(tree, mutant), alive))
    goal = GOAL if asked.sample is None else GOAL_OF_SAMPLE
    counts, listed = tables(tried, survivors, goal, time.monotonic() - began)
    print(counts.text(), listed.text(), sep="\n", flush=True)
    if asked.sample is not None:
        return 0 if counts.goals[0][1] else 1
    print(f"written to {save('mutate', [counts, listed], SOURCES, measured, ('mutmut', 'pytest', 'hypothesis')).name}")
    return 0 if all(reached for table in (counts, listed) for _, reached in table.goals) else 1


if __name__ == "__main__":
    sys.exit(main())
