"""How much longer things take here than on a usual machine: time limits that a test cannot do without grow with it."""

from __future__ import annotations

import functools

from benchmarks.report import fixed_loop

USUAL = 0.1
"""Seconds of the loop where most results of the benchmarks are from."""


@functools.cache
def pace() -> float:
    """Return how many times as long as usual a fixed loop takes now, beside all else that runs; at least 1."""
    return max(1.0, fixed_loop() / USUAL)


def at_pace(seconds: float) -> float:
    """Return *seconds* of a usual machine as seconds of this one, rounded to hundredths."""
    return round(seconds * pace(), 2)
