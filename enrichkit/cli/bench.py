"""
`bench`: how fast one source answers, by calls in flight.

Each row of the table is some seconds of lookups through the engine of a worker, in one process, without Spark, cache
and retries. The keys are asked for over and over, so the source's own caches are warm: what it prints is what the
source and the way to it can give at most, not what a job will see.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..config import find_source
from ..errors import ConfigError
from ..options import MOST_CAPACITY, Options
from ..outcome import STATUSES
from ..plan import limits_of
from ..report import plural
from .arguments import keys_of
from .output import Part, colour, columns, heading, indented
from .probe import Probe, describe, without_secrets

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Bench", "Measure", "bench"]

NUMBERS = ("capacity", "keys/s", "calls/s", "p50 ms", "p95 ms", "p99 ms", "in flight")
ENOUGH = 0.9
"""Share of the best throughput that is as good as the best."""


@dataclass(frozen=True)
class Measure:
    """
    One capacity.

    Attributes:
        capacity: Calls in flight at most.
        seconds: How long it was measured.
        calls: Calls that ended.
        keys: Keys that were asked for and have an outcome.
        keys_per_second: Of those.
        p50: Median of a call's seconds; likewise p95 and p99. None: no call has ended.
        in_flight: Calls in flight on average: calls per second x mean seconds of a call (Little's law).
        outcomes: How many keys ended how.
        error: The last error; None: there was none.
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
    What `bench` measured.

    Attributes:
        source: Name of the source.
        connector: Name of its connector.
        batch_size: Keys per call.
        distinct_keys: How many there were to ask for.
        measures: One for each capacity, in the order of the measurement.
        suggested: The least capacity whose throughput is near the best; None: no key had an answer.
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
        for said in dict.fromkeys(measure.error for measure in self.measures if measure.error is not None):
            yield indented(("Last error: ", "red"), said)
        most = max(measure.capacity for measure in self.measures) * self.batch_size
        if self.distinct_keys < 2 * most:
            yield indented(
                f"{plural(self.distinct_keys, 'distinct key')} given; with fewer than {2 * most:,} the larger "
                "capacities cannot be filled, because a key is asked for once at a time. Give more of them."
            )
        if self.suggested is not None and len(self.measures) > 1:
            yield indented(
                (f"capacity={self.suggested}", "bold"),
                f" is the least that comes within {1 - ENOUGH:.0%} of the best. It is for one worker process: divide "
                "it by the task slots that ask at the same time if the source is shared.",
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
    Look keys up for *seconds* with each of *capacities*; by default 1, 2, 4 ... up to twice the usual one.

    Args:
        name: Of the source.
        texts: Of the keys, see `keys_of`.
        types: Of the key columns, likewise.
        options: Of `enrich`; there are no retries unless `retry` is given.
        capacities: Calls in flight.
        seconds: For each of them.

    Raises:
        ConfigError: There is no such source, its config is wrong, or a text is no key.
        SourceError: It cannot be opened or asked.
    """
    name, connector, config = find_source(name)
    keys = keys_of(texts, types, config)
    if not keys:
        raise ConfigError("No key is given; bench needs some to ask for. Name them, or a file with --keys-from.")
    describe(connector, config)  # whether it opens at all
    options = {"retry": None, "cache": None, **options}
    usual, batch_size, _ = limits_of(name, connector(config), Options.of(options))
    doubled = (min(2**power, MOST_CAPACITY) for power in range((2 * usual).bit_length()))
    wanted = capacities or list(dict.fromkeys(doubled))
    measures = []
    for capacity in wanted:
        # What was admitted has to be answered when the time is up, so not much more than can be in flight; the rest
        # would wait for keys that are, and of few keys the time would go into that.
        window = {"window": 4 * min(capacity * batch_size, len(keys))}
        with Probe(name, connector, config, {**window, **options, "capacity": capacity}) as probe:
            measured = _measure(probe, keys, seconds)
        error = None if measured.error is None else without_secrets(measured.error, config)
        measures.append(replace(measured, error=error))
    # What is refused at once is no answer, or the capacity that a source cannot bear would be the fastest.
    rates = {each.capacity: _answered(each) / each.seconds for each in measures if _answered(each)}
    near = [capacity for capacity, rate in rates.items() if rate >= ENOUGH * max(rates.values())]
    return Bench(name, connector.name, batch_size, len(keys), tuple(measures), min(near, default=None))


def _answered(each: Measure) -> int:
    return each.outcomes.get("ok", 0) + each.outcomes.get("missing", 0)


def _measure(probe: Probe, keys: list[Any], seconds: float) -> Measure:
    outcomes: Counter[str] = Counter()
    error = None
    group = min(len(keys), probe.batch_size)
    for part in probe.outcomes([keys[:group]]):  # opens, and connects
        del part
    probe.seconds.clear()
    began = time.perf_counter()
    for part in probe.outcomes(_until(began + seconds, keys, group)):
        assert part.origins is not None
        asked = (origin != "shared" for origin in part.origins)  # the others waited for a key that was in flight
        outcomes.update(STATUSES[status] for status in itertools.compress(part.statuses, asked))
        error = next(reversed(part.errors.values()), error)
    spent = time.perf_counter() - began
    times = sorted(probe.seconds)
    at = statistics.quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    return Measure(
        capacity=probe.capacity,
        seconds=spent,
        calls=len(times),
        keys=outcomes.total(),
        keys_per_second=outcomes.total() / spent,
        p50=at[49] if at else None,
        p95=at[94] if at else None,
        p99=at[98] if at else None,
        in_flight=sum(times) / spent,
        outcomes=dict(outcomes),
        error=error,
    )


def _until(end: float, keys: list[Any], size: int) -> Iterator[list[Any]]:
    """Yield groups of *size* keys, going round and round, until `time.perf_counter()` is *end*."""
    round_and_round = itertools.cycle(keys)
    while time.perf_counter() < end:
        yield list(itertools.islice(round_and_round, size))


def _row(each: Measure) -> Sequence[Part]:
    percentiles = ("-" if value is None else f"{value * 1000:,.2f}" for value in (each.p50, each.p95, each.p99))
    others = {word: number for word, number in each.outcomes.items() if word != "ok"}
    return (
        f"{each.capacity:,}",
        f"{each.keys_per_second:,.0f}",
        f"{each.calls / each.seconds:,.0f}",
        *percentiles,
        f"{each.in_flight:,.1f}",
        (", ".join(f"{number:,} {word}" for word, number in others.items()), colour(*others)),
    )
