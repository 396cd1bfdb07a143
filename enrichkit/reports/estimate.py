"""The arithmetic of `explain`: the start times of a key's attempts, and the calls of a job."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..engine.retries import backoff
from ..limits import requests_per_second
from .model import Model

if TYPE_CHECKING:
    from ..options import Options, Retry

__all__ = ["Attempt", "Estimate", "attempts", "estimate"]


@dataclass(frozen=True)
class Attempt:
    """
    The time when an attempt starts, in seconds after the first attempt, if all earlier calls fail immediately.

    Attributes:
        number: Number of the attempt, from 1.
        earliest: Earliest start; jitter draws a start between *earliest* and *latest*.
        latest: Latest start.
    """

    number: int
    earliest: float
    latest: float


@dataclass(frozen=True)
class Estimate:
    """
    The load of a job on its source.

    Attributes:
        keys: Number of distinct keys.
        rows: Number of rows; None: not known.
        lookups: Fewest and most keys that are asked for; the most is None if it is not known.
        calls: Fewest and most calls, if every call has `batch_size` keys and none is retried; the most is None if it is
            not known.
        model: A model of the engine, which computes how long the job takes.
    """

    keys: int
    rows: int | None
    lookups: tuple[int, int | None]
    calls: tuple[int, int | None]
    model: Model

    def floor(self, latency: float) -> float:
        """Return the fewest seconds that the job takes when a call takes *latency* seconds."""
        return replace(self.model, latency=latency).seconds(self.keys)

    @property
    def rounds(self) -> int:
        """Calls that the busiest slot (a place for a call in flight) makes, if each key is asked for once."""
        return self.model.rounds(self.keys)

    @property
    def per_second(self) -> float | None:
        """Calls per second that `rate` allows in all worker processes; None: no limit."""
        return None if self.model.rate is None else self.model.rate * self.model.tasks


def attempts(retry: Retry | None) -> Iterator[Attempt]:
    """
    Yield the attempts that *retry* allows (None: one), also those that would start after the timeout.

    >>> from enrichkit import Retry
    >>> [attempt.latest for attempt in attempts(Retry(attempts=4, wait=0.5, wait_max=1.5))]
    [0.0, 0.5, 1.5, 3.0]
    """
    yield Attempt(1, 0.0, 0.0)
    if retry is None:
        return
    latest = 0.0
    for failures in range(1, retry.attempts):
        latest += backoff(replace(retry, jitter="none"), failures, None, random.Random())  # noqa: S311  # never drawn
        yield Attempt(failures + 1, latest if retry.jitter == "none" else 0.0, latest)


def estimate(
    keys: int, rows: int | None, task_slots: int | None, options: Options, capacity: int, batch_size: int
) -> Estimate:
    """
    Estimate the load of a job.

    At best, each key is asked for once. At worst, a key is asked for once per row, because a task does not know the
    keys of other tasks. A cache that keeps all answers lowers the worst case to once per worker process. With
    ``reuse=False``, a task also forgets the keys whose rows it has returned, and asks for them again when they come
    again.

    Args:
        keys: Number of distinct keys.
        rows: Number of rows; None: not known.
        task_slots: Tasks that run at the same time; None: not known.
        options: Options of `enrich`, already checked.
        capacity: Calls in flight per worker process.
        batch_size: Keys per call.

    >>> from enrichkit import Options
    >>> estimate(1000, 5000, 2, Options(), 8, 500).calls
    (2, 10)
    """
    bounds = [rows] if rows is not None else []
    if options.cache is not None and task_slots is not None:
        bounds.append(keys * task_slots)
    most = min(bounds, default=None)
    slots = task_slots or 1
    calls = _groups(keys, batch_size)
    rate = requests_per_second(options.rate, processes=slots)
    return Estimate(
        keys=keys,
        rows=rows,
        lookups=(keys, most),
        calls=(calls, None if most is None else _groups(most, batch_size)),
        model=Model(capacity=capacity, batch_size=batch_size, tasks=slots, latency=0.0, rate=rate),
    )


def _groups(number: int, size: int) -> int:
    return -(-number // size)
