"""
Where the seconds of a task went: into computing, or into waiting for the source, a limit, or Spark's input or output.

Spark's thread, which runs the Python function of the task, is always in one phase, so the phases add up to the time of
the task. The CPU time of this thread in a phase counts as computing, and the rest of the phase as waiting. While
Spark's thread waits for finished rows, the loop thread, which runs the event loop, works for the task. Samples that the
loop thread takes tell how long it computed during this wait, and how long calls were held back, e.g. by a rate limit.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["Phase", "TaskClock"]

T = TypeVar("T")


class Phase(enum.Enum):
    """What Spark's thread does: take rows from Spark, wait for finished rows (`PARTS`), or hand rows to Spark."""

    INPUT = enum.auto()
    PARTS = enum.auto()
    OUTPUT = enum.auto()


class TaskClock:
    """
    A clock that measures how many seconds one task spends in each phase.

    Attributes:
        phase: What Spark's thread does now. Spark's thread writes this attribute, and other threads read it.

    The loop thread calls `sample`, any thread may call `read`, and Spark's thread calls all other methods.
    """

    def __init__(self) -> None:
        self.phase = Phase.INPUT
        self._wall = dict.fromkeys(Phase, 0.0)
        self._cpu = dict.fromkeys(Phase, 0.0)
        self._since = time.perf_counter()
        self._cpu_since = time.thread_time()
        self._loop_cpu = 0.0
        self._held: dict[str, float] = {}

    def enter(self, phase: Phase) -> None:
        """Begin *phase*, and add the time since the last call of `enter` to the previous phase."""
        now, cpu = time.perf_counter(), time.thread_time()
        self._wall[self.phase] += now - self._since
        self._cpu[self.phase] += cpu - self._cpu_since
        self.phase, self._since, self._cpu_since = phase, now, cpu

    def input_of(self, items: Iterable[T]) -> Iterator[T]:
        """Yield *items*, and count the time spent waiting for each item as time of the phase `INPUT`."""
        iterator = iter(items)
        while True:
            self.enter(Phase.INPUT)
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.enter(Phase.PARTS)
            yield item
            del item  # the item may be large, so its memory is freed before the wait for the next item

    def sample(self, seconds: float, cpu: float, held: str | None) -> None:
        """
        Record a sample of the loop thread.

        Args:
            seconds: Seconds since the previous sample.
            cpu: CPU seconds of the loop thread since the previous sample.
            held: Name, as in `Stats.limits`, of what holds calls back now; None: no calls are held back.
        """
        if self.phase is Phase.PARTS:
            cpu = min(cpu, seconds)
            self._loop_cpu += cpu
            if held is not None:
                self._held[held] = self._held.get(held, 0.0) + seconds - cpu

    def read(self) -> dict[str, float | dict[str, float]]:
        """Return the seconds so far, their five parts and `limits`, each by the name of its field in `Stats`."""
        wall, cpu = dict(self._wall), dict(self._cpu)
        wall[self.phase] += max(0.0, time.perf_counter() - self._since)
        waited = max(0.0, wall[Phase.PARTS] - cpu[Phase.PARTS])
        computed = min(self._loop_cpu, waited)
        held = dict(self._held)
        limit = min(sum(held.values()), waited - computed)
        share = limit / sum(held.values()) if held else 0.0
        return {
            "seconds": sum(wall.values()),
            "source_seconds": waited - computed - limit,
            "limit_seconds": limit,
            "input_seconds": max(0.0, wall[Phase.INPUT] - cpu[Phase.INPUT]),
            "output_seconds": max(0.0, wall[Phase.OUTPUT] - cpu[Phase.OUTPUT]),
            "cpu_seconds": computed + sum(min(cpu[phase], wall[phase]) for phase in Phase),
            "limits": {name: seconds * share for name, seconds in held.items()},
        }
