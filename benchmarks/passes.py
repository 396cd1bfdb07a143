"""
The passes of a benchmark: its pairs come from several processes, one after the other, and are judged together.

A Spark session has a speed of its own, by what its JVM compiled and where its processes came to lie, and a machine that
others share has phases of minutes. So seven pairs of one session are more alike than those of two runs of it are: the
pairs of a result are of PASSES sessions, and where all benchmarks run, all others run between two passes of one.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

PASSES = 3
LEAST = 2  # as a quartile needs

Samples: TypeAlias = dict[str, list[Any]]
"""What one call of `alternate` found: the samples of each run by its name."""


@dataclass
class Pass:
    """
    One of the passes of a benchmark.

    Attributes:
        number: Which, from 0.
        of: How many there are.
        earlier: What those before this one found together, in the order in which it was asked for.
        found: The same with this one.
    """

    number: int = 0
    of: int = 1
    earlier: Sequence[Samples] = ()
    found: list[Samples] = field(default_factory=list)

    def share(self, rounds: int) -> int:
        """Return how many of *rounds* this pass makes."""
        return max(LEAST, rounds // self.of + (self.number < rounds % self.of)) if self.of > 1 else rounds

    def pool(self, samples: Mapping[str, Sequence[Any]]) -> Samples:
        """Return *samples* behind those of the same runs in the passes before."""
        before = self.earlier[len(self.found)] if self.number else {name: [] for name in samples}
        pooled = {name: [*before[name], *found] for name, found in samples.items()}
        self.found.append(pooled)
        return pooled


current = Pass()
"""That of this process; `benchmarks.__main__` sets it."""


def read(file: Path, number: int, of: int, measured: str) -> Pass:
    """
    Return the pass *number* of *of*, which *file* hands on what was found before.

    Raises:
        RuntimeError: The sources were not those of the hash *measured* then.
    """
    if number == 0:
        return Pass(number, of)
    before, found = pickle.loads(file.read_bytes())  # written by the pass before, a moment ago
    if before != measured:
        raise RuntimeError("The sources changed between two passes; nothing is written. Run it again.")
    return Pass(number, of, found)


def write(file: Path, measured: str) -> None:
    """Hand what was found until now on to the next pass, in *file*, with the hash *measured* of the sources."""
    file.write_bytes(pickle.dumps((measured, current.found)))
