"""By how much the memory of this process grows, for benchmarks and tests of what a worker holds at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def peak_growth(work: Callable[[], object]) -> int:
    """Run *work*; return by how many bytes the peak of the resident memory exceeds what was resident before (Linux)."""
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is resident
    work()
    return _memory("VmHWM") - before


def _memory(field: str) -> int:
    """Return a field of the kernel's status of this process, in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields[field].split()[0]) * 1024
