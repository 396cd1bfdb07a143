"""
The comparison of two checkouts of enrichkit on one machine: how long the same runs took, before and now.

`./run bench --against FOLDER` measures this checkout and the one in FOLDER, which has been set up (`./run setup`). The
two checkouts take turns, run by run (`turns.py`), and each run is compared with its counterpart: the two meet the
machine in the same phase. The figures of two results differ by far more, because each is a median over all phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.harness import Table, ratios, times

NAME = "against"
WORSE = 0.03
OTHERS = ("gather", "bare slots", "redis-py", "asyncpg")
"""How the names of runs begin that execute the same code in both checkouts. They show how much is chance."""

Runs = Mapping[str, Sequence[tuple[float, float]]]
"""For the name of each run its repetitions in order, each as wall time and CPU time of Python and the JVM, in seconds."""


def compare(measured: Mapping[str, tuple[Runs, Runs]]) -> Table:
    """
    Return a table that compares, for each benchmark of *measured*, its runs before and now.

    Raises:
        ValueError: The two checkouts made different runs of a benchmark.
    """
    title = "this checkout and another one, in turns: before / now, run by run"
    table = Table(NAME, title, ("benchmark", "run", "repetitions", "wall time", "CPU time"))
    for name, (before, now) in measured.items():
        if {run: len(found) for run, found in before.items()} != {run: len(found) for run, found in now.items()}:
            raise ValueError(f"The two checkouts made different runs of {name}. Run the same benchmark in both.")
        for run in now:
            (wall, cpu), (wall_now, cpu_now) = (list(zip(*found[run], strict=True)) for found in (before, now))
            busy = times(cpu, cpu_now, 3) if min(cpu_now) else "-"
            table.rows.append((name, run, str(len(wall)), times(wall, wall_now, 3), busy))
            if not run.startswith(OTHERS):
                middle = ratios(wall, wall_now)[1]
                table.goals.append((f"{name}, {run}: at most {WORSE:.0%} slower ({middle:.3f})", middle >= 1 - WORSE))
    table.notes.append(f"runs of {', '.join(OTHERS)} execute the same code in both checkouts, and show what is chance")
    return table
