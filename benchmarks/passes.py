"""
The passes of a benchmark: processes that run one after the other and whose pairs of runs are evaluated together.

Each Spark session has its own speed, which depends on the code that its JVM has compiled and on the placement of its
processes, and a shared machine has phases of minutes. Seven pairs of one session are therefore more alike than pairs of
two sessions. For this reason the pairs of a result come from PASSES sessions, and if all benchmarks run, all other
benchmarks run between two passes of one.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

PASSES = 3
LEAST = 2  # the least number of rounds in a pass; quartiles need two values

Samples: TypeAlias = dict[str, list[Any]]
"""The result of one call of `alternate`: the samples of each run by the run's name."""


@dataclass
class Pass:
    """
    One of the passes of a benchmark.

    Attributes:
        number: Number of the pass, from 0.
        of: Number of passes.
        earlier: The samples of all earlier passes together, one entry for each call of `pool`, in order.
        found: The samples of this pass and all earlier ones, in the same form.
    """

    number: int = 0
    of: int = 1
    earlier: Sequence[Samples] = ()
    found: list[Samples] = field(default_factory=list)

    def share(self, rounds: int) -> int:
        """Return the number of rounds that this pass makes, its share of *rounds*."""
        return max(LEAST, rounds // self.of + (self.number < rounds % self.of)) if self.of > 1 else rounds

    def pool(self, samples: Mapping[str, Sequence[Any]]) -> Samples:
        """Return the samples of the same runs in earlier passes, followed by *samples*."""
        before = self.earlier[len(self.found)] if self.number else {name: [] for name in samples}
        pooled = {name: [*before[name], *found] for name, found in samples.items()}
        self.found.append(pooled)
        return pooled


current = Pass()
"""The pass that this process makes; `benchmarks.__main__` sets it."""


def read(file: Path, number: int, of: int, measured: str) -> Pass:
    """
    Return the pass *number* of *of*, with the samples of earlier passes from *file*.

    Raises:
        RuntimeError: The earlier pass measured other sources than those with the hash *measured*.
    """
    if number == 0:
        return Pass(number, of)
    before, found = pickle.loads(file.read_bytes())  # written by the previous pass of this run
    if before != measured:
        raise RuntimeError("The sources changed between two passes; nothing is written. Run it again.")
    return Pass(number, of, found)


def write(file: Path, measured: str) -> None:
    """Write all samples so far, and *measured*, the hash of the sources, into *file* for the next pass."""
    file.write_bytes(pickle.dumps((measured, current.found)))
