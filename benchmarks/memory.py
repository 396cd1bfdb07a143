"""N7: the memory of a worker, which must stay flat: five million rows in one task, in a process without Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Table

ROWS = 5_000_000
STEP = 500_000
BATCH = 10_000
SOURCES = (
    "enrichkit/engine",
    "enrichkit/worker/keys.py",
    "enrichkit/worker/assemble.py",
    "enrichkit/outcome.py",
    "benchmarks/memory.py",
)


def child(rows: int) -> None:
    """Enrich *rows* rows of distinct keys and print the resident memory, in KiB, after each STEP."""
    import pyarrow as pa

    from benchmarks.engine import Noop, identity
    from enrichkit.engine.bridge import Bridge
    from enrichkit.engine.engine import Engine
    from enrichkit.engine.loop import loop_thread
    from enrichkit.engine.run import Run
    from enrichkit.interface import ConnectorConfig
    from enrichkit.options import Options
    from enrichkit.outcome import Outcomes
    from enrichkit.worker.assemble import assemble
    from enrichkit.worker.keys import encode

    loop = loop_thread()

    def run(emit: Callable[[Any], None]) -> Run:
        engine = loop.engine("n7", lambda: Engine(Noop(ConnectorConfig()), 8))
        return Run(engine, "noop", Options(), identity, emit, batch_size=500)

    bridge = Bridge(loop, 40_000, 8_000, "noop", Options(), run)

    def slices() -> Iterator[Outcomes]:
        for start in range(0, rows, BATCH):
            batch = pa.array(range(start, start + BATCH), pa.int64())
            for offset in range(0, BATCH, 2_500):
                keys, codes = encode([batch.slice(offset, 2_500)])
                yield Outcomes(keys.objects(), 2_500, codes)

    done = 0
    for part in bridge.process(slices()):
        values = assemble(part.outcomes.values, part.outcomes.tag, pa.int64())
        assert values.equals(pa.array(range(done, done + part.rows), pa.int64()))
        done += part.rows
        if done % STEP == 0:
            fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            print(done, fields["VmRSS"].split()[0], flush=True)


def main(quick: bool) -> list[Table]:
    """Measure N7."""
    asked = ROWS // 5 if quick else ROWS
    code = f"from benchmarks.memory import child; child({asked})"
    lines = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split("\n")
    resident = {int(rows): int(size) for rows, size in (line.split() for line in lines if line)}
    assert list(resident) == list(range(STEP, asked + 1, STEP)), "not every row came back"
    table = Table("N7", f"resident memory of a worker, {asked:,} rows of distinct keys", ("rows", "MiB"))
    table.rows = [(f"{rows:,}", f"{size / 1024:.1f}") for rows, size in resident.items()]
    growth = max(resident.values()) / resident[STEP] - 1
    table.goals.append((f"flat within 5 % after the first {STEP:,} rows: at most {growth:+.1%}", growth <= 0.05))
    return [table]
