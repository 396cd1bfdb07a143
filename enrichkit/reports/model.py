"""A model of the engine, which tells `explain` and the monitor's advice how long lookups take, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Model", "asked_by_tasks", "distinct_behind", "keys_of_equal_cost"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """
    Tasks that look keys up in one source at the same time.

    Each task has *capacity* slots, i.e. places for a call in flight. A slot makes one call after the other, and all
    slots make their n-th call at the same time: the n-th round. The keys per second are limited by the slots, the rate
    or the processor, whichever is the slowest.

    Attributes:
        capacity: Calls in flight per task.
        batch_size: Keys per call.
        tasks: Number of tasks that run at the same time.
        latency: Seconds of one call.
        rate: Calls per second of one task; None: no limit.
        cpu: Processor time that a task takes for a key, in seconds; 0: not taken into account.

    >>> Model(capacity=100, batch_size=1, latency=0.2).keys_per_second
    500.0
    >>> Model(capacity=100, batch_size=1, latency=0.2).seconds(1_050)  # eleven rounds
    2.2
    """

    capacity: float
    batch_size: float
    latency: float
    tasks: float = 1
    rate: float | None = None
    cpu: float = 0.0

    @property
    def keys_per_second(self) -> float:
        """Most keys per second, when there are enough keys to keep all slots busy."""
        bounds = []
        if self.latency > 0:
            bounds.append(self.capacity * self.batch_size / self.latency)
        if self.rate is not None:
            bounds.append(self.rate * self.batch_size)
        if self.cpu > 0:
            bounds.append(1 / self.cpu)
        return self.tasks * min(bounds, default=math.inf)

    def rounds(self, keys: int) -> int:
        """
        Return the number of rounds, i.e. of calls that the busiest slot makes, when the slots share *keys* lookups
        evenly.
        """
        return math.ceil(math.ceil(keys / self.batch_size) / (self.capacity * self.tasks))

    def seconds(self, keys: int) -> float:
        """Return the fewest seconds that *keys* lookups take when the tasks share them evenly."""
        calls = math.ceil(keys / self.batch_size)
        by_rate = calls / (self.rate * self.tasks) if self.rate is not None else 0.0
        return max(self.rounds(keys) * self.latency, by_rate, keys * self.cpu / self.tasks)


def asked_by_tasks(keys: int, rows: int, tasks: int) -> float:
    """
    Return how many keys *tasks* tasks together ask for when *keys* distinct keys are spread over *rows* at random.

    Each task asks for all of its own keys, even if another task asks for the same keys.

    https://en.wikipedia.org/wiki/Birthday_problem derives the expected number of distinct keys in a sample.

    >>> round(asked_by_tasks(10_000, 1_000_000, 2)), round(asked_by_tasks(1_000_000, 1_000_000, 2))
    (20000, 786939)
    """
    return tasks * _different(keys, rows / tasks) if keys > 1 else float(min(tasks, rows))


def keys_of_equal_cost(asked: int, readers: int) -> int:
    """
    Return the most keys that a source may hold so that *readers* processes, each of which reads all keys, together read
    at most *asked* keys.

    If *asked* is the number of keys that lookups ask for, preloads of a source with at most this many keys cost no more
    than the lookups. A key costs the source about as much in a preload as in lookups with many keys per call, because a
    preload lists all keys and looks them up in pages.

    >>> keys_of_equal_cost(50_000, 16)
    3125
    """
    return asked // readers


def distinct_behind(rows: float, seen: float) -> float:
    """
    Return how many distinct keys there are if *seen* different keys were found in *rows* keys that were drawn at
    random.

    The result is infinite when no key repeats.

    >>> round(distinct_behind(500_000, 393_469) / 1_000_000, 4)
    1.0
    """
    if seen >= rows:
        return math.inf
    low, high = max(1.0, seen), max(2.0, rows * rows)  # `high`: with more keys, hardly any key would repeat
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _different(middle, rows) < seen else (low, middle)
    return high


def _different(keys: float, rows: float) -> float:
    """Return the expected number of different keys in *rows* rows that are drawn from *keys* equally likely keys."""
    return -keys * math.expm1(rows * math.log1p(-1 / keys)) if keys > 1 else 1.0
