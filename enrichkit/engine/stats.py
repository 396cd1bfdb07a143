"""The statistics of a run while it goes on: counters and histograms; `observe/stats.py` says what each of them is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from math import frexp
from typing import Any

from ..observe.stats import LARGEST, Distribution

__all__ = ["Histogram", "RunStats"]

# The most different values that a histogram keeps before it counts them in buckets. With uvloop's clock, which ticks in
# milliseconds, durations rarely have so many different values.
EXACT_MAX = 1000


class Histogram:
    """
    Durations, or other numbers, in the buckets of a `Distribution`.

    `add` counts how often each exact value occurs; few durations differ, because the clock of uvloop ticks in
    milliseconds. The logarithm that gives the bucket of a duration is taken once for each different duration, when the
    counts are read.

    Args:
        unit: See `Distribution`.

    Attributes:
        note: Function that keeps a value to be counted later, in a fifth of the time of `add`. A caller that notes many
            values has to call `tidy`.
    """

    __slots__ = ("_counts", "_exact", "_noted", "_sum", "_unit", "note")

    def __init__(self, unit: float = 1e-6) -> None:
        self._counts: dict[int, int] = {}
        self._exact: dict[float, int] = {}
        self._noted: list[float] = []
        self.note = self._noted.append
        self._sum = 0.0
        self._unit = unit

    def add(self, value: float, times: int = 1) -> None:
        """Count *value*, *times* times."""
        exact = self._exact
        if value in exact:
            exact[value] += times
        else:
            if len(exact) >= EXACT_MAX:
                self._fold()
            exact[value] = times

    def tidy(self) -> None:
        """Count the values that were noted, if there are many."""
        if len(self._noted) >= EXACT_MAX:
            self._fold()

    @property
    def counts(self) -> dict[int, int]:
        """How many values fell into each bucket, by the number of the bucket."""
        self._fold()
        return self._counts

    def _fold(self) -> None:
        counts = self._counts
        noted = Counter(self._noted)
        self._noted.clear()  # before `add`, which may call `_fold` again
        for value, times in noted.items():
            self.add(value, times)
        for value, times in self._exact.items():
            mantissa, octave = frexp(value / self._unit)  # = mantissa * 2 ** octave units, mantissa in [0.5, 1)
            bucket = 8 * octave + int(16 * mantissa) - 8 if octave > 0 else 0
            counts[bucket] = counts.get(bucket, 0) + times
            self._sum += value * times
        self._exact.clear()

    def distribution(self) -> Distribution:
        """Return the distribution of the values that were counted or noted so far."""
        counts = dict(self.counts)
        return Distribution(counts, self._sum, self._unit)

    def quantile(self, share: float) -> float | None:
        """Return about the quantile *share* (0..1); None if there is no value."""
        return self.distribution().quantile(share)


@dataclass(slots=True)
class RunStats:
    """
    Counters of one run; written on the loop thread only. Most of them are fields of `Stats`, too, and described there.

    Attributes:
        alone: Durations of the calls whose only key `fast_paths.py` has settled; each is also that of a lookup.
        latency: Durations of all other lookups.
        calls_took: Durations of all other calls.
        further: Number of keys that were sent, without the first key of each call.
        fill: Number of keys per call, for calls with several keys.
        slow: A heap of the slowest keys, with the duration of each; the quickest of these keys comes first.
        slow_from: A key that takes more than this many seconds is among the slowest.
        noted: How many keys have been put on `slow`, including those that slower keys have displaced.
        metered: Calls whose cost is known.
    """

    rows: int = 0
    keys: int = 0
    shared: int = 0
    preloaded: int = 0
    reused: int = 0
    journaled: int = 0
    cached: int = 0
    stale: int = 0
    tiered: int = 0
    skipped: int = 0
    calls: int = 0
    further: int = 0
    retries: int = 0
    retried_for: dict[str, int] = field(default_factory=dict)
    retry_tokens: int = 0
    bisections: int = 0
    ok: int = 0
    missing: int = 0
    timeouts: int = 0
    errors: int = 0
    rejected: int = 0
    over_budget: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    late: int = 0
    returned: int = 0
    outages: int = 0
    away: float = 0.0
    zombies: int = 0
    abandoned: int = 0
    spent: dict[str, float] = field(default_factory=dict)
    metered: int = 0
    alone: Histogram = field(default_factory=Histogram)
    latency: Histogram = field(default_factory=Histogram)
    calls_took: Histogram = field(default_factory=Histogram)
    queued: Histogram = field(default_factory=Histogram)
    fill: Histogram = field(default_factory=lambda: Histogram(1.0))
    slow: list[tuple[float, int, Any]] = field(default_factory=list)
    slow_from: float = 0.0
    noted: int = 0

    @property
    def attempts(self) -> int:
        """Number of keys sent; a key that several calls have sent is counted once for each of them."""
        return self.calls + self.further

    @property
    def done(self) -> int:
        """Number of keys that have an outcome, except keys for which the budget allowed no call."""
        return self.ok + self.missing + self.timeouts + self.errors + self.rejected

    def lookups_took(self) -> Distribution:
        """Return the durations of all lookups."""
        return self.alone.distribution() + self.latency.distribution()

    def took_long(self, seconds: float, key: Any) -> None:
        """Record that the lookup of *key* took *seconds*, which is more than `slow_from`."""
        self.noted += 1
        entry = (seconds, self.noted, key)  # the number is unique, so that keys need not be comparable
        if len(self.slow) < LARGEST:
            heappush(self.slow, entry)
        else:
            heappushpop(self.slow, entry)
            self.slow_from = self.slow[0][0]

    def retried(self, reason: str, times: int) -> None:
        """Count *times* keys that are sent again for *reason*."""
        self.retries += times
        self.retried_for[reason] = self.retried_for.get(reason, 0) + times

    def paid(self, units: Mapping[str, float], *, known: bool) -> None:
        """Count what a call has cost, in *units*; *known* says whether that is its whole cost."""
        for unit, amount in units.items():
            self.spent[unit] = self.spent.get(unit, 0.0) + amount
        self.metered += known

    def failed(self, name: str) -> None:
        """Count a key whose last error is of the class *name*."""
        self.failures[name] = self.failures.get(name, 0) + 1

    def counted(self, shown: Callable[[Any], str]) -> dict[str, Any]:
        """
        Return the fields of `Stats` that a run counts. *shown* is a function that returns a key as messages show it.
        """
        return {
            **{name: getattr(self, name) for name in _SAME},
            "sent": self.attempts,
            "retries": dict(self.retried_for),
            "failures": dict(self.failures),
            "spent": dict(self.spent),
            "lookups_took": self.lookups_took(),
            "calls_took": self.alone.distribution() + self.calls_took.distribution(),
            "queued": self.queued.distribution(),
            "fill": self.fill.distribution() + _of_one(self.calls - self.fill.distribution().total),
            "slow": tuple(sorted(((seconds, shown(key)) for seconds, _, key in list(self.slow)), reverse=True)),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the counters by name, and the latency's median and 99th percentile in seconds."""
        took = self.lookups_took()
        counters = {name: getattr(self, name) for name in _COUNTERS}
        return {**counters, "latency_p50": took.quantile(0.5), "latency_p99": took.quantile(0.99)}


_SAME = (
    *(
        "rows",
        "keys",
        "shared",
        "preloaded",
        "reused",
        "journaled",
        "cached",
        "stale",
        "tiered",
        "skipped",
        "calls",
        "retry_tokens",
        "bisections",
        "ok",
        "missing",
        "timeouts",
        "errors",
        "rejected",
        "over_budget",
    ),
    *("late", "returned", "outages", "away", "zombies", "abandoned", "metered"),
)
"""Counters that `Stats` has under the same name."""
_COUNTERS = (*_SAME, "attempts", "retries")


def _of_one(calls: int) -> Distribution:
    """Return the distribution of keys per call for *calls* calls with one key each."""
    keys = Histogram(1.0)
    if calls > 0:
        keys.add(1.0, calls)
    return keys.distribution()
