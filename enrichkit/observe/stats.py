"""The statistics of tasks: immutable, with a version number, and merged by addition in any order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["LARGEST", "VERSION", "Distribution", "Stats"]

VERSION = 1
LARGEST = 10
"""Most keys in `Stats.slow`, and most keys in `Stats.hot` of one run; a sum of several runs may have more hot keys."""


BUCKET_MAX = 1_000
"""Highest bucket number that `Stats.read` accepts. This bucket begins at 2**124 units, which no real value reaches."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """
    Measured values, counted in logarithmic buckets. Each octave, i.e. the range from a value to its double, has eight
    buckets, each 6 to 12 % wide. Adding two distributions merges them.

    Attributes:
        counts: The number of values in each bucket, by the number of the bucket; `bounds` returns the limits of a
            bucket.
        sum: Sum of the values, exact.
        unit: The smallest value that the buckets resolve: 1e-6 (a microsecond) for durations, 1 for counts. All values
            below it are in bucket 0.

    >>> both = Distribution({8: 1}, 1.0, 1.0) + Distribution({8: 2, 16: 1}, 4.0, 1.0)
    >>> both.total, both.mean
    (4, 1.25)
    """

    counts: Mapping[int, int] = field(default_factory=dict)
    sum: float = 0.0
    unit: float = 1e-6

    def __add__(self, other: Distribution) -> Distribution:
        counts = dict(self.counts)
        for bucket, times in other.counts.items():
            counts[bucket] = counts.get(bucket, 0) + times
        return Distribution(counts, self.sum + other.sum, self.unit)

    def __sub__(self, earlier: Distribution) -> Distribution:
        counts = {bucket: times - earlier.counts.get(bucket, 0) for bucket, times in self.counts.items()}
        return Distribution({b: times for b, times in counts.items() if times > 0}, self.sum - earlier.sum, self.unit)

    @property
    def total(self) -> int:
        """The number of values."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float | None:
        """The mean of the values; None if there are no values."""
        return self.sum / self.total if self.counts else None

    def quantile(self, share: float) -> float | None:
        """Return an estimate of the quantile *share* (0..1), interpolated inside its bucket; None without values."""
        wanted, seen = share * self.total, 0
        for bucket in sorted(self.counts):
            count = self.counts[bucket]
            if seen + count >= wanted:
                low, high = self.bounds(bucket)
                return low + (high - low) * (wanted - seen) / count
            seen += count
        return None

    def bounds(self, bucket: int) -> tuple[float, float]:
        """Return the lowest value of *bucket* and the lowest value above the bucket."""
        return (self._lowest(bucket) if bucket > 0 else 0.0), self._lowest(max(bucket, 7) + 1)

    def bars(self) -> Iterator[tuple[float, float, int]]:
        """Yield, in order, the bounds of each bucket that holds values, and the number of its values."""
        for bucket in sorted(self.counts):
            yield *self.bounds(bucket), self.counts[bucket]

    def _lowest(self, bucket: int) -> float:
        octave, eighth = divmod(bucket, 8)
        return float((eighth + 8) / 16 * 2.0**octave * self.unit)


def _durations() -> Distribution:
    return Distribution()


def _numbers() -> Distribution:
    return Distribution(unit=1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """
    What one or more tasks did. The sum of two `Stats` is what the tasks of both did; the order of additions does not
    matter.

    Durations are seconds. The five parts of a task's time, `source_seconds` to `cpu_seconds`, add up to `seconds`.
    `calls` counts a call when it begins, not when it ends.

    Attributes:
        version: Version of the format. A newer enrichkit reads statistics of older versions, too; fields that older
            versions lack are then 0 or empty.
        tasks: Number of runs: one for each enrichment in each attempt of a Spark task.
        seconds: Seconds from the first batch of a run to the end of the run.
        rows: Rows that came in.
        null_keys: Rows among `rows` whose key is null, so that they are not looked up.
        keys: Number of distinct keys in each slice (a piece of a batch of rows), summed over all slices.
        shared: Keys among `keys` that joined a lookup which was already under way.
        preloaded: Keys among `keys` that were answered from a copy of the whole source, which `preload` had loaded,
            misses included.
        reused: Keys among `keys` that the task had looked up before, misses included.
        journaled: Keys among `keys` that the journal answered, misses included.
        cached: Keys among `keys` that the cache answered, misses included.
        tiered: Keys among `keys` that a tier, i.e. a source that is asked before the main source, answered.
        skipped: Keys that went on to the next source because a tier failed, timed out or was unavailable; a key counts
            once for each such tier.
        stale: Keys among `ok` that got an expired value of the cache, because the source failed or was unavailable.
        calls: Calls of the connector's method `fetch_many`.
        sent: Keys sent; a key counts once for each call that sends it.
        retries: Keys sent again, by reason: the class of the error, `missing`, `attempt_timeout`, or `p95` for hedged
            reads.
        retry_tokens: Tokens that retries have taken from the retry budget, a token bucket: 5 for each retry, or 10 for
            a retry after a timeout.
        bisections: Calls made to find out which keys make a call of several keys fail.
        returned: Keys that went back into the queue because the source was unavailable. The failed call does not count
            as an attempt of its keys.
        ok: Keys with the outcome `ok`.
        missing: Keys with the outcome `missing`.
        timeouts: Keys with the outcome `timeout`.
        errors: Keys with the outcome `error`.
        rejected: Keys with the outcome `rejected`.
        over_budget: Keys with the outcome `over_budget`.
        failures: Keys with the outcome `timeout`, `error`, `rejected` or `over_budget`, by the class of the last error.
        late: Answers that were dropped, because their key already had an outcome, such as a timeout.
        zombies: Calls that did not end although they were cancelled, counted when the task fails because of them.
        abandoned: Calls among `calls` that were cancelled because their task ended, so that the source may not have
            received them. Each other call has reached the source, or has failed because the source was unreachable.
        spent: What calls have cost, by unit such as `tokens` or `cost`, as the source has reported it.
        metered: Calls among `calls` whose cost is known. If the source reports costs, the cost of a call is unknown
            only while the call is in flight, or because its answer was lost.
        bytes: Approximate size of the received values, in bytes.
        outages: Outages of the source that are over: the source was unavailable, and came back.
        away: Total seconds of the outages that `outages` counts.
        source_seconds: Seconds that the task waited for answers of the source.
        limit_seconds: Seconds that the task waited while calls were held back, for one of the reasons in `limits`.
        input_seconds: Seconds that the task waited for rows from Spark.
        output_seconds: Seconds that the task waited for Spark to take rows.
        cpu_seconds: Seconds in which the task's thread computed, or the loop thread computed for the task.
        limits: `limit_seconds`, split by what held the calls back: `rate`, `limit`, `budget`, `outage`, `refusals`,
            `pause` or `breaker`.
        bytes_seconds: Seconds in which `window_bytes` held calls back, because Spark took rows more slowly than answers
            came.
        slot_seconds: `capacity` x `seconds`, summed over time if the capacity changes. `calls_took.sum / slot_seconds`
            is the share of the call slots in use.
        in_flight_max: Most calls in flight at the same time in one task, according to samples. The sum of two `Stats`
            has the larger of their two values.
        lag_max: Longest delay of the event loop, measured every 50 ms. The sum of two `Stats` has the larger of their
            two values.
        calls_took: Durations of calls.
        lookups_took: Durations of lookups: from the time at which a key first gets a call slot until its outcome.
        queued: Times from the arrival of a slice to the first call for its keys. One call in eight is measured, and
            counts as eight.
        fill: Keys per call.
        slow: The slowest keys, at most `LARGEST`, each as a pair of its seconds and the key as messages show it.
        hot: Keys with the most rows, as messages show them, and about how many rows each has; at most `LARGEST` of each
            run.
    """

    version: int = VERSION
    tasks: int = 0
    seconds: float = 0.0
    rows: int = 0
    null_keys: int = 0
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
    sent: int = 0
    retries: Mapping[str, int] = field(default_factory=dict)
    retry_tokens: int = 0
    bisections: int = 0
    returned: int = 0
    ok: int = 0
    missing: int = 0
    timeouts: int = 0
    errors: int = 0
    rejected: int = 0
    over_budget: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    late: int = 0
    zombies: int = 0
    abandoned: int = 0
    spent: Mapping[str, float] = field(default_factory=dict)
    metered: int = 0
    bytes: int = 0
    outages: int = 0
    away: float = 0.0
    source_seconds: float = 0.0
    limit_seconds: float = 0.0
    input_seconds: float = 0.0
    output_seconds: float = 0.0
    cpu_seconds: float = 0.0
    limits: Mapping[str, float] = field(default_factory=dict)
    bytes_seconds: float = 0.0
    slot_seconds: float = 0.0
    in_flight_max: int = 0
    lag_max: float = 0.0
    calls_took: Distribution = field(default_factory=_durations)
    lookups_took: Distribution = field(default_factory=_durations)
    queued: Distribution = field(default_factory=_durations)
    fill: Distribution = field(default_factory=_numbers)
    slow: tuple[tuple[float, str], ...] = ()
    hot: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Stats) -> Stats:
        return Stats(
            **{f.name: _ADDED.get(f.name, _added)(getattr(self, f.name), getattr(other, f.name)) for f in _ALL}
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics as values that JSON can express; `Stats.read` reads them."""
        return {f.name: _plain(getattr(self, f.name)) for f in _ALL}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Stats:
        """
        Read what `as_dict` of this or another version returned. Unknown fields are ignored.

        A field that *data* lacks is 0 or empty.

        Raises:
            ValueError: A field has a value of a wrong type or out of range.
        """
        empty = cls()
        try:
            return cls(**{f.name: _read(getattr(empty, f.name), data[f.name]) for f in _ALL if f.name in data})
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"These are no statistics of enrichkit: {error}.") from None

    @property
    def done(self) -> int:
        """The number of keys that have an outcome."""
        return self.ok + self.missing + self.without_answer

    @property
    def without_answer(self) -> int:
        """The number of keys for which it is not known whether the source holds them."""
        return self.timeouts + self.errors + self.rejected + self.over_budget


_ALL = fields(Stats)


def _added(first: Any, second: Any) -> Any:
    if not isinstance(first, Mapping):
        return first + second
    sums = dict(first)
    for name, number in second.items():
        sums[name] = sums.get(name, 0) + number
    return sums


def _slowest(
    first: tuple[tuple[float, str], ...], second: tuple[tuple[float, str], ...]
) -> tuple[tuple[float, str], ...]:
    return tuple(sorted({*first, *second}, reverse=True)[:LARGEST])


_ADDED: dict[str, Any] = {
    "version": min,
    "in_flight_max": max,
    "lag_max": max,
    "slow": _slowest,
}


def _plain(value: Any) -> Any:
    if isinstance(value, Distribution):
        return {"counts": sorted(value.counts.items()), "sum": value.sum, "unit": value.unit}
    return dict(value) if isinstance(value, Mapping) else value


def _read(empty: Any, value: Any) -> Any:
    """Return *value* as the type of *empty*, the value that the field has in empty statistics."""
    if isinstance(empty, Distribution):
        counts = {int(_number(b)): int(_number(n)) for b, n in value["counts"]}
        if counts and max(counts) > BUCKET_MAX:
            raise ValueError(f"These are no statistics of enrichkit: there is no bucket {max(counts)}.")
        return Distribution(counts, float(_number(value["sum"])), float(_number(value["unit"])))
    if isinstance(empty, Mapping):
        return {str(name): _number(number) for name, number in value.items()}
    if isinstance(empty, tuple):
        return tuple((float(seconds), str(key)) for seconds, key in value)
    return type(empty)(_number(value))


def _number(value: Any) -> float | int:
    if type(value) not in (int, float) or value != value or value < 0:
        raise ValueError(f"These are no statistics of enrichkit: {value!r} is no number from 0 on.")
    return value  # type: ignore[no-any-return]
