"""The statistics of a monitor in Prometheus' text format, written with the package prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .state import State
    from .stats import Distribution, Stats

__all__ = ["text"]

_COUNTERS = {
    "rows": "Rows that came in.",
    "calls": "Calls made.",
    "sent": "Keys sent, each once for each call.",
    "preloaded": "Keys that were answered from a source that was loaded as a whole.",
    "reused": "Keys that their task had found out before.",
    "journaled": "Keys that the journal answered.",
    "cached": "Keys that the cache answered.",
    "tiered": "Keys that a tier answered.",
    "skipped": "Keys that went on from a tier because it did not answer.",
    "stale": "Keys that got a value beyond its time, as the source failed or was away.",
    "shared": "Keys that joined a lookup which was under way.",
    "returned": "Keys sent again because the source was away.",
    "late": "Answers that came after their key had its outcome.",
    "bytes": "About how many bytes the values took.",
    "outages": "Times that the source was away and came back.",
    "tasks": "Runs of tasks.",
}
_GAUGES = {"in_flight": "Calls in flight.", "capacity": "Most calls in flight that the running tasks allow."}
_OUTCOMES = {
    "ok": "ok",
    "missing": "missing",
    "timeouts": "timeout",
    "errors": "error",
    "rejected": "rejected",
    "over_budget": "over_budget",
}
_OCTAVES = range(8, 30)
"""
The octaves of `Distribution` whose lower bounds, 128 microseconds to 268 seconds, are the bounds of the histogram's
buckets in Prometheus.
"""
_TIME = ("source", "limit", "input", "output", "cpu")


def text(state: State) -> str:
    """Return the statistics of *state* by source, in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(state))
    return generate_latest(registry).decode()


class _Collector:
    """The metric families of a state, in the form in which prometheus-client collects them."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        stats = {source: self._state.total(source) for source in self._state.sources()}
        for name, what in _COUNTERS.items():
            family = CounterMetricFamily(f"enrichkit_{name}", what, labels=["source"])
            for source, one in stats.items():
                family.add_metric([source], getattr(one, name))
            yield family
        outcomes = CounterMetricFamily("enrichkit_keys", "Keys by outcome.", labels=["source", "outcome"])
        retries = CounterMetricFamily("enrichkit_retries", "Keys sent again, by reason.", labels=["source", "reason"])
        failures = CounterMetricFamily("enrichkit_failures", "Keys without an answer.", labels=["source", "error"])
        seconds = CounterMetricFamily(
            "enrichkit_task_seconds", "Seconds of the tasks, by what they waited for.", labels=["source", "part"]
        )
        for source, one in stats.items():
            for field, outcome in _OUTCOMES.items():
                outcomes.add_metric([source, outcome], getattr(one, field))
            for reason, count in one.retries.items():
                retries.add_metric([source, reason], count)
            for error, count in one.failures.items():
                failures.add_metric([source, error], count)
            for part in _TIME:
                seconds.add_metric([source, part], getattr(one, f"{part}_seconds"))
        yield from (outcomes, retries, failures, seconds)
        yield from self._costs(stats)
        yield from self._gauges(list(stats))
        took = HistogramMetricFamily("enrichkit_call_seconds", "Durations of calls.", labels=["source"])
        for source, one in stats.items():
            took.add_metric([source], _buckets(one.calls_took), one.calls_took.sum)
        yield took

    def _costs(self, stats: Mapping[str, Stats]) -> Iterator[Any]:
        """Yield the metrics of what the calls have cost, if at least one source reports costs."""
        from prometheus_client.core import CounterMetricFamily

        spent = CounterMetricFamily("enrichkit_spent", "What calls have cost, by unit.", labels=["source", "unit"])
        metered = CounterMetricFamily("enrichkit_metered", "Calls whose cost is known.", labels=["source"])
        for source, one in stats.items():
            for unit, amount in one.spent.items():
                spent.add_metric([source, unit], amount)
            if one.spent:
                metered.add_metric([source], one.metered)
        if spent.samples:
            yield from (spent, metered)

    def _gauges(self, sources: Iterable[str]) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        for name, what in _GAUGES.items():
            gauge = GaugeMetricFamily(f"enrichkit_{name}", what, labels=["source"])
            for source in sources:
                running = [task for task in self._state.of(source) if task.state == "running"]
                gauge.add_metric([source], sum(task.facts[name] for task in running))
            yield gauge


def _buckets(values: Distribution) -> list[tuple[str, float]]:
    """
    Return the buckets as Prometheus wants them: each upper bound with the number of values below it.

    The bounds are always the same, because Prometheus' `rate` and `histogram_quantile` match buckets by their bounds.
    """
    below = {number: sum(n for bucket, n in values.counts.items() if bucket < 8 * number) for number in _OCTAVES}
    bounds = ((f"{values.bounds(8 * number)[0]:.9g}", float(count)) for number, count in below.items())
    return [*bounds, ("+Inf", float(values.total))]
