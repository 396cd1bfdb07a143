"""The statistics of tasks: frozen, versioned, and merged by addition in any order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["LARGEST", "VERSION", "Distribution", "Stats"]

VERSION = 1
LARGEST = 10
"""Number of slowest keys that statistics keep, and of keys with the most rows that a run keeps."""


BUCKET_MAX = 1_000
"""The highest bucket that is read: 2**125 units."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """
    Measured values in logarithmic buckets, eight to an octave (6 to 12 % wide), merged by addition.

    Attributes:
        counts: How many values fell into a bucket, by the number of the bucket; see `bounds`.
        sum: Sum of the values, exact.
        unit: What one unit is: one microsecond for durations, 1 for numbers. Values below one unit are in bucket 0.

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
        """The mean; None without a value."""
        return self.sum / self.total if self.counts else None

    def quantile(self, share: float) -> float | None:
        """Return an estimate of the quantile *share* (0..1), interpolated inside its bucket; None without a value."""
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
    What one or more tasks did. `first + second` is what both did; the order of additions does not matter.

    Durations are seconds. The five `..._seconds` of the bar, from `source_seconds` to `cpu_seconds`, add up to
    `seconds`. Counters count what the task began: a call counts when it is made.

    Attributes:
        version: Version of this class. A newer enrichkit reads older statistics: fields that they lack are 0.
        tasks: Runs: one for each attempt of a Spark task and enrichment.
        seconds: From the first batch of a run to its end.
        rows: Rows that came in.
        null_keys: Rows among them without a key, for which nothing is asked.
        keys: Distinct keys, counted anew in each slice of rows.
        shared: Keys among `keys` that joined a lookup which was under way.
        preloaded: Keys among `keys` that were answered from a source that was loaded as a whole, misses included.
        reused: Keys among `keys` that the task had found out before, misses included.
        journaled: Keys among `keys` that the journal answered, misses included.
        cached: Keys among `keys` that the cache answered, misses included.
        tiered: Keys among `keys` that a tier answered.
        skipped: Keys that went on from a tier because it did not answer: once for each such tier.
        stale: Keys among `ok` whose value was beyond its time, because the source failed or was away.
        calls: Calls made, each of `fetch_many`.
        sent: Keys sent, each once for each call.
        retries: Keys sent again, by reason: the class of the error, `missing`, `attempt_timeout`, or `p95` for hedged
            reads.
        retry_tokens: Tokens that retries have taken from the retry budget: 5 for each, 10 after a timeout.
        bisections: Calls made to find a key that makes a call of several keys fail.
        returned: Keys whose call met a source that was away; they are sent again, and no attempt is counted.
        ok: Keys with the outcome `ok`.
        missing: Keys with the outcome `missing`.
        timeouts: Keys with the outcome `timeout`.
        errors: Keys with the outcome `error`.
        rejected: Keys with the outcome `rejected`.
        over_budget: Keys with the outcome `over_budget`.
        failures: Keys with one of the last four outcomes, by the class of the last error.
        late: Answers that came after their key had its outcome.
        zombies: Calls that were cancelled and had not ended when the task failed because of them.
        abandoned: Calls among `calls` that were cancelled because their task ended: the source may have seen them or
            not. All other calls it has seen, or could not be reached.
        spent: What calls have cost, by unit such as `tokens` or `cost`, as the source has reported it.
        metered: Calls among `calls` whose cost is known. Where the source reports costs, the others are in flight, or
            their answers were lost.
        bytes: About how many bytes the values took that came in.
        outages: Times that the source was away and came back.
        away: Seconds of these outages.
        source_seconds: Seconds of the task in which it waited for answers of the source.
        limit_seconds: ... in which it waited for a rate limit, an outage, a pause that the source asked for, or the
            breaker.
        input_seconds: ... in which it waited for rows from Spark.
        output_seconds: ... in which it waited for Spark to take rows.
        cpu_seconds: ... in which its thread, or the loop thread on its behalf, computed.
        limits: `limit_seconds` by what held the calls back: `rate`, `limit`, `budget`, `outage`, `refusals`,
            `pause` or `breaker`.
        bytes_seconds: Seconds in which `window_bytes` held calls back, because Spark took rows more slowly than they
            came.
        slot_seconds: `capacity` x `seconds`, with the capacity of each moment: `calls_took.sum / slot_seconds` is the
            share of the slots in use.
        in_flight_max: Most calls in flight at the same time in one task, as far as samples tell; added by maximum.
        lag_max: Longest time that the event loop answered late, of samples each 50 ms; added by maximum.
        calls_took: Durations of calls.
        lookups_took: From the first slot of a key to its outcome.
        queued: From the arrival of a slice to the first call for a key of it; of one call in eight, counted eightfold.
        fill: Keys per call.
        slow: The slowest keys: (seconds, key as messages show it), at most `LARGEST`.
        hot: Keys with the most rows, as messages show them, and about how many rows; at most `LARGEST` of each run.
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
        Read what `as_dict` of this or another version returned; unknown and absent fields are left out.

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
