"""OpenTelemetry metrics and spans of a monitor, where the package opentelemetry-api is installed and configured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .state import State, Task
    from .stats import Stats

__all__ = ["Export", "export"]

_COUNTERS = (
    *("rows", "calls", "sent", "ok", "missing", "errors", "timeouts", "rejected", "over_budget"),
    *("preloaded", "reused", "journaled", "cached", "stale", "tiered", "skipped", "shared", "bytes"),
)


def export(state: State) -> Export | None:
    """Return the export of *state* to the providers that the program has set; None without the package."""
    try:
        from opentelemetry import metrics, trace
    except ImportError:
        return None
    return Export(state, metrics.get_meter("enrichkit"), trace.get_tracer("enrichkit"))


class Export:
    """
    Observable counters of the totals by source, and a span for each task that has ended.

    Args:
        state: What the workers have pushed.
        meter: Of OpenTelemetry.
        tracer: Of OpenTelemetry.
    """

    def __init__(self, state: State, meter: Any, tracer: Any) -> None:
        self._state = state
        self._tracer = tracer
        for name in _COUNTERS:
            meter.create_observable_counter(f"enrichkit.{name}", [self._observer(name)])
        meter.create_observable_counter("enrichkit.task_seconds", [self._seconds], unit="s")
        meter.create_observable_counter("enrichkit.spent", [self._spent])
        meter.create_observable_gauge("enrichkit.in_flight", [self._in_flight])

    def ended(self, task: Task) -> None:
        """Export the span of *task*, which has ended."""
        facts, stats = task.facts, task.stats
        begin = int(facts["began"] * 1e9)
        span = self._tracer.start_span(
            f"enrichkit {facts['source']}",
            start_time=begin,
            attributes={
                "enrichkit.source": facts["source"],
                "enrichkit.connector": facts["connector"],
                "enrichkit.state": task.state,
                "enrichkit.rows": stats.rows,
                "enrichkit.calls": stats.calls,
                "enrichkit.errors": stats.errors,
                "spark.stage": facts["stage"],
                "spark.partition": facts["partition"],
                "spark.attempt": facts["attempt"],
            },
        )
        if task.failed:
            from opentelemetry.trace import Status, StatusCode

            span.set_status(Status(StatusCode.ERROR, facts["error"] or task.state))
        span.end(end_time=begin + int(stats.seconds * 1e9))

    def _observer(self, name: str) -> Callable[[Any], Iterable[Any]]:
        return lambda _: self._observations(lambda stats: getattr(stats, name))

    def _observations(self, value: Callable[[Stats], float], **attributes: str) -> list[Any]:
        from opentelemetry.metrics import Observation

        return [
            Observation(value(self._state.total(source)), {"source": source, **attributes})
            for source in self._state.sources()
        ]

    def _seconds(self, _: Any) -> Iterable[Any]:
        parts = ("source", "limit", "input", "output", "cpu")
        return [
            one
            for part in parts
            for one in self._observations(lambda stats, part=part: getattr(stats, f"{part}_seconds"), part=part)  # type: ignore[misc]
        ]

    def _spent(self, _: Any) -> Iterable[Any]:
        from opentelemetry.metrics import Observation

        return [
            Observation(amount, {"source": source, "unit": unit})
            for source in self._state.sources()
            for unit, amount in self._state.total(source).spent.items()
        ]

    def _in_flight(self, _: Any) -> Iterable[Any]:
        from opentelemetry.metrics import Observation

        return [
            Observation(
                sum(t.facts["in_flight"] for t in self._state.of(source) if t.state == "running"), {"source": source}
            )
            for source in self._state.sources()
        ]
