"""Run the benchmarks named on the command line, or all of them, and write their results."""

from __future__ import annotations

import importlib
import sys

from benchmarks.harness import save

ALL = ("engine", "http_tail", "http_floor", "memory")


def main(names: list[str]) -> int:
    """Run *names*, or all; return 0 when every goal was reached."""
    missed = []
    for name in names or ALL:
        if name not in ALL:
            print(f"There is no benchmark {name!r}. Benchmarks: {', '.join(ALL)}", file=sys.stderr)
            return 2
        print(f"== {name}", flush=True)
        tables = importlib.import_module(f"benchmarks.{name}").main()
        for table in tables:
            print(table.text(), flush=True)
            missed += [f"{table.name}: {goal}" for goal, reached in table.goals if not reached]
        print(f"written to {save(name, tables).name}")
    for goal in missed:
        print(f"MISSED {goal}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
