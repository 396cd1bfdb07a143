"""
The tests, as `./run test` and the gate run them: in parts side by side, with a second look at what failed.

`python -m tests.suite [--gate] [pytest arguments]` runs one pytest process for each part. Without arguments it leaves
out what takes long; arguments select tests, slow ones too. Tests that failed are run once more when all parts are
through, on a machine that has nothing else to do. What came out is in `.results/`, and `tests/summary.py` tells it. The
exit code is 0 (all is well), 1 (something failed), 2 (interrupted) or 5 (no test was selected).
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from tests import summary

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / ".results"

PARTS = {
    "rest": ("--part", "rest"),
    "spark": ("--part", "spark"),
    "connect": ("--connect",),
    "plugins": ("--part", "plugins"),
    "drivers": ("--part", "drivers"),
    "waits": ("--part", "waits"),
    "engine": ("--part", "engine"),
}
AFTER = {"connect": "spark", "drivers": "plugins", "engine": "plugins"}
"""
The part after which others of `PARTS` begin. So there are four processes: three, one of them `rest`, that need about as
much CPU time as each other, and `waits`, which needs little. Classic Spark and Spark Connect cannot share a process.
"""

GATE = "not more and not cluster"
HERE = f"{GATE} and not apt and not browser"
"""The tests that need no program from apt."""
QUICK = f"{HERE} and not slow and not waits"
QUICK_PARTS = {name: options for name, options in PARTS.items() if name != "waits"}

SILENCE = 900.0
"""Seconds after which a part that prints nothing hangs: servers may take 300 to start, and then a test as long."""

AGAIN_AT_MOST = 40
"""So many failed tests get a second look; more of them have one cause that does not go away."""

OK, FAILED, INTERRUPTED, NONE_SELECTED = 0, 1, 2, 5


@dataclass
class Suite:
    """
    One run of the tests.

    Attributes:
        arguments: What every pytest process gets.
        parts: What the process of each part gets besides.
        root: Where pytest runs.
        results: Folder for logs, JUnit files and the caches of pytest.
        silence: Seconds after which a process that prints nothing is ended.
        may_be_empty: Whether a part without any test is right, as where the user selects tests.
        temporary: Folder for temporary files of all processes, which is removed at the end.
        running: Processes of pytest that have not ended.
        interrupted: Whether the run is to end.
    """

    arguments: list[str]
    parts: dict[str, tuple[str, ...]] = field(default_factory=lambda: dict(PARTS))
    root: Path = ROOT
    results: Path = RESULTS
    silence: float = SILENCE
    may_be_empty: bool = False
    temporary: str = ""
    running: set[subprocess.Popen[bytes]] = field(default_factory=set)
    interrupted: bool = False

    def run(self) -> int:
        """Run all parts, give what failed a second look, and return the exit code."""
        self.results.mkdir(exist_ok=True)
        for old in [path for name in {*PARTS, *self.parts} for path in self.results.glob(f"{name}.*")]:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        # A process that is killed leaves its folders behind, so all of them are in one that ends with the run.
        with tempfile.TemporaryDirectory(prefix="enrichkit-", ignore_cleanup_errors=True) as self.temporary:
            Path(self.temporary).chmod(0o711)  # PostgreSQL runs as another user than root
            return self._run()

    def _run(self) -> int:
        lanes: dict[str, list[str]] = {}
        for name in self.parts:
            lanes.setdefault(AFTER.get(name, name), []).append(name)
        with ThreadPoolExecutor(len(lanes)) as pool:
            codes = list(chain.from_iterable(pool.map(lambda lane: [*map(self._part, lane)], lanes.values())))
        if self.interrupted:
            return INTERRUPTED
        if set(codes) == {NONE_SELECTED}:
            return NONE_SELECTED
        failed = {name: summary.failed_in(self.results / f"{name}.xml") for name in self.parts}
        if 0 < sum(map(len, failed.values())) <= AGAIN_AT_MOST:
            for name in (name for name, tests in failed.items() if tests):
                self._pytest(name, f"{name}.again", "--last-failed", "--last-failed-no-failures=none")
        return INTERRUPTED if self.interrupted else OK if summary.Summary.of(self.results).green else FAILED

    def _part(self, name: str) -> int:
        began = time.monotonic()
        code, said = self._pytest(name, name)
        fine = (OK, FAILED, NONE_SELECTED) if self.may_be_empty else (OK, FAILED)
        summary.write_part(self.results, name, time.monotonic() - began, OK if code in fine else code, said)
        return code

    def _pytest(self, part: str, result: str, *more: str) -> tuple[int, str]:
        """Run pytest; return its exit code, negative for a signal, and why it was ended, if it was."""
        if self.interrupted:
            return INTERRUPTED, "interrupted"
        command = [
            *(sys.executable, "-m", "pytest", *self.parts[part], "--junit-xml", self.results / f"{result}.xml"),
            *("-o", "junit_family=xunit1", "-o", f"cache_dir={self.results / part}.cache", *more, *self.arguments),
        ]
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env={**os.environ, "TMPDIR": self.temporary},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        self.running.add(process)
        hung = self._copy(process, result)
        if hung:
            process.send_signal(signal.SIGABRT)  # pytest's fault handler prints where each thread stands
            self._copy(process, result, 10.0)
            process.kill()
        code = process.wait()
        process.stdout.close()
        self.running.discard(process)
        return code, f"TIME-OUT: it printed nothing for {self.silence:.0f} s" if hung else ""

    def _copy(self, process: subprocess.Popen[bytes], result: str, silence: float | None = None) -> bool:
        """Copy what *process* prints to its log, and line by line to the terminal; return whether it fell silent."""
        assert process.stdout is not None
        line = b""
        with (self.results / f"{result}.log").open("ab") as log, selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(silence or self.silence):
                printed = os.read(process.stdout.fileno(), 65536)
                log.write(printed)
                log.flush()
                *lines, line = (line + printed).split(b"\n")
                for whole in lines:
                    print(f"{result:>13} | {whole.decode(errors='replace')}", flush=True)  # noqa: T201
                if not printed:
                    return False
        return True

    def interrupt(self, *_: object) -> None:
        """End all processes as Ctrl-C does, so that their fixtures stop the servers and remove the folders."""
        self.interrupted = True
        for process in [*self.running]:
            process.send_signal(signal.SIGINT)


def suite_of(arguments: list[str]) -> Suite:
    """Return the run that the *arguments* of the command ask for."""
    rest = [argument for argument in arguments if argument != "--gate"]
    marks, parts = (GATE, PARTS) if "--gate" in arguments else (HERE, PARTS) if rest else (QUICK, QUICK_PARTS)
    return Suite(["-m", marks, *rest], parts, may_be_empty=bool(rest))


def main(arguments: list[str]) -> int:
    """Run the tests that *arguments* select, tell what came out, and return the exit code."""
    suite = suite_of(arguments)
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, suite.interrupt)
    code = suite.run()
    if "--gate" not in arguments:  # .ci/run tells it, with its other parts
        print(summary.Summary.of(RESULTS).text())  # noqa: T201
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
