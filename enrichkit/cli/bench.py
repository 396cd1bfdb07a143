"""
`bench`: measures how fast one source answers at several numbers of calls in flight.

Each row of the table is the result of some seconds of lookups through a worker's engine, in one process, without Spark,
without a cache and without retries. The same keys are looked up again and again, so the source's own caches are warm.
Therefore, the figures are the most that the source and the network can deliver, and a job will usually be slower.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..driver.planner import limits_of
from ..errors import ConfigError
from ..options import MOST_CAPACITY, Options
from ..outcome import STATUSES
from ..reports.text import plural
from ..sources.config import find_source
from .arguments import keys_of
from .output import Part, colour, columns, heading, indented
from .probe import Probe, describe, without_secrets

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Bench", "Measure", "bench"]

NUMBERS = ("capacity", "keys/s", "calls/s", "p50 ms", "p95 ms", "p99 ms", "in flight")
NEAR_BEST = 0.9
"""A capacity counts as near the best if it has at least this share of the best throughput."""


@dataclass(frozen=True)
class Measure:
    """
    The figures that were measured with one capacity.

    Attributes:
        capacity: Most calls in flight at the same time.
        seconds: Duration of the measurement, in seconds.
        calls: Number of calls that ended.
        keys: Number of keys that were looked up and got an outcome.
        keys_per_second: *keys* divided by *seconds*.
        p50: Median duration of a call in seconds; None when no call ended.
        p95: 95th percentile of the duration of a call in seconds; None when no call ended.
        p99: 99th percentile of the duration of a call in seconds; None when no call ended.
        in_flight: Mean number of calls in flight: calls per second x mean seconds of a call (Little's law).
        outcomes: Number of keys for each status.
        error: The last error; None when no key failed.
    """

    capacity: int
    seconds: float
    calls: int
    keys: int
    keys_per_second: float
    p50: float | None
    p95: float | None
    p99: float | None
    in_flight: float
    outcomes: dict[str, int]
    error: str | None


@dataclass(frozen=True)
class Bench:
    """
    The result of `bench`.

    Attributes:
        source: Name of the source.
        connector: Name of the source's connector.
        batch_size: Keys per call.
        distinct_keys: Number of distinct keys that the user gave.
        measures: The figures of each capacity, in the order of the measurement.
        suggested: The smallest capacity whose throughput is near the best; None when no key had an answer.
    """

    source: str
    connector: str
    batch_size: int
    distinct_keys: int
    measures: tuple[Measure, ...]
    suggested: int | None

    def __rich_console__(self, *_: Any) -> Iterator[RenderableType]:
        yield heading(f"The source {self.source!r}, connector {self.connector!r}, {self.batch_size:,} keys per call")
        yield columns([_row(each) for each in self.measures], [*NUMBERS, "not ok"], numbers=NUMBERS)
        for error in dict.fromkeys(measure.error for measure in self.measures if measure.error is not None):
            yield indented(("Last error: ", "red"), error)
        most = max(measure.capacity for measure in self.measures) * self.batch_size
        if self.distinct_keys < 2 * most:
            yield indented(
                f"{plural(self.distinct_keys, 'distinct key')} given. Fewer than {2 * most:,} distinct keys cannot "
                "fill the larger capacities, because a key is never in two calls at a time. Give more keys."
            )
        if self.suggested is not None and len(self.measures) > 1:
            yield indented(
                (f"capacity={self.suggested}", "bold"),
                f" is the smallest capacity whose throughput is within {1 - NEAR_BEST:.0%} of the best. It holds for "
                "one worker process: if several task slots call the source at the same time, divide it by their "
                "number.",
            )


def bench(
    name: str,
    texts: Sequence[str],
    types: str | None,
    options: dict[str, Any],
    *,
    capacities: Sequence[int] = (),
    seconds: float = 2.0,
) -> Bench:
    """
    Measure, for each of *capacities*, how fast the source answers when keys are looked up for *seconds* seconds.

    Args:
        name: Name of the source.
        texts: Texts of the keys, see `keys_of`.
        types: Spark types of the key columns, see `keys_of`.
        options: Options of `enrich`. Without the option `retry` there are no retries.
        capacities: Numbers of calls in flight; when empty, 1, 2, 4 ... up to twice the capacity that a job would use.
        seconds: Duration of the measurement of each capacity.

    Raises:
        ConfigError: No source has this name, its config is wrong, or a text is not a key.
        SourceError: The source cannot be opened, or lookups cannot work at all.
    """
    name, connector, config = find_source(name)
    keys = keys_of(texts, types, config)
    if not keys:
        raise ConfigError(
            "No key is given, and bench needs keys to look up. Name keys, or a file of keys with --keys-from."
        )
    describe(connector, config)  # raises when the source cannot be opened
    options = {"retry": None, "cache": None, **options}
    usual, batch_size, _ = limits_of(name, connector(config), Options.of(options))
    powers_of_two = (min(2**power, MOST_CAPACITY) for power in range((2 * usual).bit_length()))
    measures = []
    for capacity in capacities or dict.fromkeys(powers_of_two):
        # The window is the largest number of keys that may wait for an answer. When the time is up, these keys still
        # have to be answered, so the window is not much larger than the number of keys that can be in flight. With few
        # distinct keys, a larger window would mostly hold repeated keys, which only wait for a call with the same key,
        # and the figures would mostly measure that waiting.
        window = {"window": 4 * min(capacity * batch_size, len(keys))}
        with Probe(name, connector, config, {**window, **options, "capacity": capacity}) as probe:
            measured = _measure(probe, keys, seconds)
        error = None if measured.error is None else without_secrets(measured.error, config)
        measures.append(replace(measured, error=error))
    # A refusal does not count as an answer. Refusals are fast, so otherwise a capacity at which the source refuses most
    # keys would look like the best.
    rates = {each.capacity: _answered(each) / each.seconds for each in measures if _answered(each)}
    near = [capacity for capacity, rate in rates.items() if rate >= NEAR_BEST * max(rates.values())]
    return Bench(name, connector.name, batch_size, len(keys), tuple(measures), min(near, default=None))


def _answered(each: Measure) -> int:
    return each.outcomes.get("ok", 0) + each.outcomes.get("missing", 0)


def _measure(probe: Probe, keys: list[Any], seconds: float) -> Measure:
    outcomes: Counter[str] = Counter()
    error = None
    group = min(len(keys), probe.batch_size)
    for part in probe.outcomes([keys[:group]]):  # opens the connector and its connections before the clock starts
        del part
    probe.seconds.clear()
    began = time.perf_counter()
    for part in probe.outcomes(_groups_until(began + seconds, keys, group)):
        assert part.details is not None
        # A key whose origin is "shared" was not looked up: it got the answer of a call in flight with the same key.
        looked_up = (origin != "shared" for origin in part.details.origins)
        outcomes.update(STATUSES[status] for status in itertools.compress(part.statuses, looked_up))
        error = next(reversed(part.errors.values()), error)
    spent = time.perf_counter() - began
    times = sorted(probe.seconds)
    percentiles = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return Measure(
        capacity=probe.capacity,
        seconds=spent,
        calls=len(times),
        keys=outcomes.total(),
        keys_per_second=outcomes.total() / spent,
        p50=percentiles[49] if percentiles else None,
        p95=percentiles[94] if percentiles else None,
        p99=percentiles[98] if percentiles else None,
        in_flight=sum(times) / spent,
        outcomes=dict(outcomes),
        error=error,
    )


def _groups_until(end: float, keys: list[Any], size: int) -> Iterator[list[Any]]:
    """Yield groups of *size* keys, cycling through *keys*, until `time.perf_counter()` reaches *end*."""
    cycle = itertools.cycle(keys)
    while time.perf_counter() < end:
        yield list(itertools.islice(cycle, size))


def _row(each: Measure) -> Sequence[Part]:
    percentiles = ("-" if value is None else f"{value * 1000:,.2f}" for value in (each.p50, each.p95, each.p99))
    others = {status: number for status, number in each.outcomes.items() if status != "ok"}
    return (
        f"{each.capacity:,}",
        f"{each.keys_per_second:,.0f}",
        f"{each.calls / each.seconds:,.0f}",
        *percentiles,
        f"{each.in_flight:,.1f}",
        (", ".join(f"{number:,} {status}" for status, number in others.items()), colour(*others)),
    )
