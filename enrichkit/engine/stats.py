"""What a run did: counters, and a histogram of latencies that can be merged."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import frexp
from typing import Any

__all__ = ["Histogram", "RunStats"]

EXACT_MAX = 1000  # different latencies kept as they are; more only from a loop with a finer clock


class Histogram:
    """
    Latencies in buckets of a quarter of an octave of microseconds (14 to 25 % wide); mergeable by addition.

    A latency is first counted as it is, because the clock of uvloop ticks in milliseconds: there are few different
    ones, and the logarithm is taken once for each.
    """

    __slots__ = ("_counts", "_exact")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._exact: dict[float, int] = {}

    def add(self, seconds: float, times: int = 1) -> None:
        """Count *seconds*, *times* times."""
        exact = self._exact
        if seconds in exact:
            exact[seconds] += times
        else:
            if len(exact) >= EXACT_MAX:
                self._fold()
            exact[seconds] = times

    @property
    def counts(self) -> dict[int, int]:
        """Number of the bucket to how many latencies fell into it."""
        self._fold()
        return self._counts

    def _fold(self) -> None:
        counts = self._counts
        for seconds, times in self._exact.items():
            mantissa, octave = frexp(seconds * 1e6)  # = mantissa * 2 ** octave microseconds, mantissa in [0.5, 1)
            bucket = 4 * octave + int(8 * mantissa) if octave > 0 else 0
            counts[bucket] = counts.get(bucket, 0) + times
        self._exact.clear()

    def quantile(self, share: float) -> float | None:
        """Return the upper bound, in seconds, of the bucket in which the quantile *share* (0..1) lies."""
        counts = self.counts
        wanted = share * sum(counts.values())
        seen = 0
        for bucket in sorted(counts):
            seen += counts[bucket]
            if seen >= wanted:
                octave, quarter = divmod(bucket - 4, 4)
                return float((quarter + 5) / 8 * 2.0**octave * 1e-6)
        return None


@dataclass(slots=True)
class RunStats:
    """
    Counters of one run; written on the loop thread only.

    Attributes:
        rows: Rows admitted.
        keys: Distinct keys admitted, per slice.
        shared: Keys that found a lookup of the same key in flight.
        cached: Keys answered by the cache.
        calls: Calls made.
        attempts: Keys sent, each once per call.
        retries: Keys sent again after a transient error, a miss or an attempt timeout.
        bisections: Calls made to find a poisoned key.
        ok: Keys that ended so; likewise missing, timeouts, errors and rejected.
        late: Answers that came after their key had its outcome.
        zombies: Calls that were cancelled and had not ended when they were counted.
        latency: From the first slot of a key to its outcome.
    """

    rows: int = 0
    keys: int = 0
    shared: int = 0
    cached: int = 0
    calls: int = 0
    attempts: int = 0
    retries: int = 0
    bisections: int = 0
    ok: int = 0
    missing: int = 0
    timeouts: int = 0
    errors: int = 0
    rejected: int = 0
    late: int = 0
    zombies: int = 0
    latency: Histogram = field(default_factory=Histogram)

    @property
    def done(self) -> int:
        """Keys that have an outcome."""
        return self.ok + self.missing + self.timeouts + self.errors + self.rejected

    def as_dict(self) -> dict[str, Any]:
        """Return the counters by name, and the latency's median and 99th percentile in seconds."""
        counters = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "latency"}
        return {**counters, "latency_p50": self.latency.quantile(0.5), "latency_p99": self.latency.quantile(0.99)}
