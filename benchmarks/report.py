"""
The result files of a benchmark: `benchmarks/results/NAME.md`, and `NAME.json` with the numbers of its picture.

A result names the sources that it measured and their hash. `python -m benchmarks.report`, which `./run check` calls,
compares this hash with the code and lists the results that are older than the code.
"""

from __future__ import annotations

import ast
import datetime
import functools
import hashlib
import io
import json
import math
import mmap
import os
import platform
import re
import sys
import time
import tokenize
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness import ROOT, Table

RESULTS = ROOT / "benchmarks" / "results"
SUMMARY = "README.md"
PACKAGES = ("pyspark", "pyarrow", "pandas", "asyncpg", "redis", "hiredis", "pyreqwest", "uvloop", "msgspec")
_SOURCES = re.compile(r"^- sources: ([0-9a-f]{16})(?: of (.+))?$", re.MULTILINE)


def fingerprint(sources: Sequence[str]) -> str:
    """
    Return a hash of the code in the files and folders *sources*, without comments, docstrings and tests.

    Raises:
        FileNotFoundError: One of *sources* does not exist any more.
    """
    digest = hashlib.sha256()
    for name in sources:
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if "tests" not in file.relative_to(ROOT).parts or file == path:
                digest.update(f"{file.relative_to(ROOT)}\0{_code(file.read_text(encoding='utf-8'))}\0".encode())
    return digest.hexdigest()[:16]


@functools.cache  # most benchmarks measure the same files
def _code(text: str) -> str:
    """Return Python source without comments, docstrings, blank lines and the indentation of continuation lines."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            docstrings.add((node.body[0].lineno, node.body[0].col_offset))
    kept = []
    after_docstring = False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.start in docstrings
        ends_docstring = after_docstring and token.type == tokenize.NEWLINE
        if not (is_docstring or ends_docstring or token.type in (tokenize.COMMENT, tokenize.NL)):
            kept.append(token.string)
        after_docstring = is_docstring
    return " ".join(kept)


def save(
    name: str,
    tables: Sequence[Table],
    sources: Sequence[str],
    measured: str,
    packages: Sequence[str] = PACKAGES,
    folder: Path | None = None,
) -> Path:
    """
    Write *tables* to `NAME.md` in *folder*, and their numbers, if they have any, to `NAME.json`.

    Args:
        name: Name of the benchmark.
        tables: Tables of the benchmark.
        sources: Folders and files whose code the benchmark measured.
        measured: Fingerprint of *sources* from before the run.
        packages: Packages of this environment whose versions the result names.
        folder: Folder of the result; `benchmarks/results` by default.

    Raises:
        RuntimeError: The sources changed during the run, so it is not known which code the benchmark measured.
    """
    if fingerprint(sources) != measured:
        raise RuntimeError(f"The sources of {name} changed during the run; nothing is written. Run it again.")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    head = [
        f"# Benchmark: {name}",
        "",
        f"- date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        f"- machine: {os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}",
        f"- load average at the end: {', '.join(f'{load:.1f}' for load in os.getloadavg())}",
        f"- pace at the end: {pace():.3f} s for a million steps of a fixed loop",
        f"- memory at the end: {first_touch():.2f} us for the first touch of a page of 4 KiB",
        f"- versions: {versions}",
        f"- sources: {measured} of {', '.join(sources)}",
        "",
    ]
    RESULTS.mkdir(exist_ok=True)
    path = (folder or RESULTS) / f"{name}.md"
    path.write_text("\n".join([*head, *(table.text() for table in tables)]), encoding="utf-8")
    numbers = {table.name: table.numbers for table in tables if table.numbers}
    if numbers:
        path.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    (RESULTS / SUMMARY).write_text(summary(), encoding="utf-8")
    return path


def pace() -> float:
    """Return the seconds of a fixed loop, the best of five runs, as a measure of this machine's present speed."""
    return min(fixed_loop() for _ in range(5))


def fixed_loop() -> float:
    """Return the seconds of one run of a loop of a million steps: 0.1 on the machine that most results are from."""
    found, began = {}, time.perf_counter()
    for number in range(1_000_000):
        found[number * 7919 % 1_000_003] = str(number)
    return time.perf_counter() - began


def first_touch() -> float:
    """
    Return the microseconds of the first access to a page of memory, the best of five runs.

    A virtual machine that returns unused memory to its host must get each page from the host again, which takes several
    microseconds. All new memory in a job has this cost: Arrow's buffers, a server's reply, a fork, the dict of `pace`.
    """
    pages = 16_384
    best = math.inf
    for _ in range(5):
        with mmap.mmap(-1, pages * 4096) as memory:
            began = time.perf_counter()
            memory[::4096] = bytes(pages)
            best = min(best, time.perf_counter() - began)
    return best / pages * 1e6


def summary() -> str:
    """Return a page with the goals of all results, in their own words, and a list of the results without a goal."""
    lines = ["# Goals", "", "What each result was to reach, and reached; written whenever one of them is."]
    others = []
    for path in sorted(RESULTS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        goals = [line for line in text.splitlines() if line.removeprefix("- ").startswith(("reached: ", "MISSED: "))]
        if path.name != SUMMARY and goals:
            date = text.partition("- date: ")[2].partition("\n")[0]
            lines += [
                "",
                f"## [{path.stem}]({path.name}), {date}",
                "",
                *(f"- {goal.removeprefix('- ')}" for goal in goals),
            ]
        elif path.name != SUMMARY:
            others.append(f"[{path.stem}]({path.name})")
    if others:
        lines += ["", f"Results without a goal: {', '.join(others)}."]
    return "\n".join([*lines, ""])


def stale() -> dict[str, str]:
    """Return the names of the results that are older than the code, with the reasons."""
    found = {}
    for path in sorted(RESULTS.glob("*.md")):
        if path.name == SUMMARY:
            continue
        written = _SOURCES.search(path.read_text(encoding="utf-8"))
        if written is None or written[2] is None:
            found[path.stem] = "it does not name its sources"
            continue
        try:
            if fingerprint(written[2].split(", ")) != written[1]:
                found[path.stem] = "the code that it measured has changed"
        except FileNotFoundError as error:
            found[path.stem] = f"{Path(error.filename).relative_to(ROOT)} is no more"
    return found


if __name__ == "__main__":
    for stem, reason in stale().items():
        print(f"warning: benchmarks/results/{stem}.md is older than the code: {reason}", file=sys.stderr)
