"""
The exploration of `./run soak`: property tests and stories of the simulation that no gate has drawn.

The gate draws the same examples each time. Here each round of the tests has a random seed, which is printed, and which
repeats it: `./run test --hypothesis-seed=SEED`.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import ROOT, Table

MARKS = "not more and not cluster and not apt and not browser and not spark"
LINES = 60
"""So many of the last lines of a round that failed are printed."""


def properties() -> list[Path]:
    """Return the modules that draw examples, and the simulation."""
    modules = [path for folder in ("tests", "plugins") for path in sorted((ROOT / folder).rglob("test_*.py"))]
    return [path for path in modules if "hypothesis" in path.read_text(encoding="utf-8")]


@dataclass
class Exploration:
    """
    Rounds of tests, one after the other.

    Attributes:
        tests: What each round runs: modules, or names of tests.
        root: Where pytest runs.
        rounds: How many rounds have ended.
        failed: Of each round that failed, how to repeat it.
    """

    tests: Sequence[Path | str] = field(default_factory=properties)
    root: Path = ROOT
    rounds: int = 0
    failed: list[str] = field(default_factory=list)

    def run(self, dice: random.Random, over: threading.Event) -> None:
        """Run one round after another until *over*; the last one is cut off."""
        while not over.is_set():
            seed = dice.randrange(1_000_000)
            print(f"Exploring with --hypothesis-seed={seed}.", flush=True)
            command = [sys.executable, "-m", "pytest", "-q", "-m", MARKS, f"--hypothesis-seed={seed}", *self.tests]
            with tempfile.TemporaryFile("w+", errors="replace") as log:
                process = subprocess.Popen(
                    command, cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
                while process.poll() is None:
                    if over.wait(0.2):
                        process.send_signal(signal.SIGINT)  # so that the fixtures stop their servers
                        process.wait()
                        return
                self.rounds += 1
                if process.returncode:
                    self.failed.append(f"./run test --hypothesis-seed={seed}")
                    log.seek(0)
                    print("".join(log.readlines()[-LINES:]), flush=True)

    def table(self) -> Table:
        """Return what came out."""
        table = Table(
            "Explored", "property tests and stories of the simulation with random seeds", ("rounds", "failed")
        )
        table.rows.append((str(self.rounds), str(len(self.failed))))
        repeat = "".join(f"\n  - {each}" for each in self.failed)
        table.goals.append((f"no property test and no story fails{repeat}", not self.failed))
        return table
