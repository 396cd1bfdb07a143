"""The arithmetic of `explain`: when the attempts of a key start, and what a job costs its source."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .engine.retry import backoff

if TYPE_CHECKING:
    from .options import Options, Retry

__all__ = ["Attempt", "Estimate", "attempts", "estimate"]


@dataclass(frozen=True)
class Attempt:
    """When an attempt starts, in seconds after the first, if every call fails at once; jitter draws one between."""

    number: int
    earliest: float
    latest: float


@dataclass(frozen=True)
class Estimate:
    """
    What a job costs the source.

    Attributes:
        keys: Distinct keys.
        rows: Rows; None: not known.
        lookups: Fewest and most keys that are asked for; None: no bound is known.
        calls: Fewest and most calls when groups are full, without retries; None likewise.
        rounds: Calls that each slot makes one after the other, at least.
        per_second: Calls per second that `rate` allows in all worker processes; None: no limit.
    """

    keys: int
    rows: int | None
    lookups: tuple[int, int | None]
    calls: tuple[int, int | None]
    rounds: int
    per_second: float | None

    def floor(self, latency: float) -> float:
        """Return the seconds that the job takes at least when a call takes *latency* seconds."""
        return max(self.rounds * latency, self.calls[0] / self.per_second if self.per_second else 0.0)


def attempts(retry: Retry | None) -> Iterator[Attempt]:
    """
    Return the attempts that *retry* allows, whatever the timeout says.

    >>> from enrichkit import Retry
    >>> [attempt.latest for attempt in attempts(Retry(attempts=4, wait=0.5, wait_max=1.5))]
    [0.0, 0.5, 1.5, 3.0]
    """
    yield Attempt(1, 0.0, 0.0)
    if retry is None:
        return
    latest = 0.0
    for failures in range(1, retry.attempts):
        latest += backoff(replace(retry, jitter="none"), failures, None, random.Random())  # noqa: S311  # draws nothing
        yield Attempt(failures + 1, latest if retry.jitter == "none" else 0.0, latest)


def estimate(
    keys: int, rows: int | None, task_slots: int | None, options: Options, capacity: int, batch_size: int
) -> Estimate:
    """
    Return what it costs to look *keys* distinct keys on *rows* rows up.

    At the least each key is asked for once. At the most it is once per row, or, while a cache keeps what it has, once
    per worker process: a task does not know what other tasks asked, nor, without a cache, what it asked some window
    ago.

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
    return Estimate(
        keys=keys,
        rows=rows,
        lookups=(keys, most),
        calls=(calls, None if most is None else _groups(most, batch_size)),
        rounds=_groups(calls, capacity * slots),
        per_second=None if options.rate is None else options.rate * slots,
    )


def _groups(number: int, size: int) -> int:
    return -(-number // size)
