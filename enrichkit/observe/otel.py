"""Exports the statistics of a monitor as OpenTelemetry metrics and spans, if opentelemetry-api is installed."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .stats import Stats

if TYPE_CHECKING:
    from .state import State, Task

__all__ = ["Export", "export"]

_log = logging.getLogger("enrichkit")

_COUNTERS = (
    *("rows", "calls", "sent", "ok", "missing", "errors", "timeouts", "rejected", "over_budget"),
    *("preloaded", "reused", "journaled", "cached", "stale", "tiered", "skipped", "shared", "bytes"),
)


_export: Export | None = None


def export(state: State) -> Export | None:
    """
    Return the one `Export` of this program, which from now on exports the statistics in *state*.

    Return None if the package opentelemetry-api is not installed.
    """
    global _export
    try:
        from opentelemetry import metrics, trace
    except ImportError:
        return None
    if _export is None:
        _export = Export(metrics.get_meter("enrichkit"), trace.get_tracer("enrichkit"))
    _export.watch(state)
    return _export


class Export:
    """
    Observable counters for the totals of each source, and a span for each task that has ended.

    A program has one export, because a meter accepts the name of a counter only once. When a new monitor follows an
    earlier one, the counters continue from their present values. A separate thread hands the spans to OpenTelemetry,
    because an exporter that takes seconds, or raises, would otherwise disturb the server to which workers push.

    Args:
        meter: OpenTelemetry meter that makes the counters.
        tracer: OpenTelemetry tracer that makes the spans.
    """

    def __init__(self, meter: Any, tracer: Any) -> None:
        self._state: State | None = None
        self._past: dict[str, Stats] = {}  # the totals of earlier monitors, by source
        self._tracer = tracer
        self._tasks: queue.SimpleQueue[Task | threading.Event] = queue.SimpleQueue()
        for name in _COUNTERS:
            meter.create_observable_counter(f"enrichkit.{name}", [self._observer(name)])
        meter.create_observable_counter("enrichkit.task_seconds", [self._seconds], unit="s")
        meter.create_observable_counter("enrichkit.spent", [self._spent])
        meter.create_observable_gauge("enrichkit.in_flight", [self._in_flight])
        threading.Thread(target=self._work, name="enrichkit-spans", daemon=True).start()

    def watch(self, state: State) -> None:
        """Export the totals of *state* from now on, added to the totals of earlier monitors."""
        self._past = self._totals()
        self._state = state

    def ended(self, task: Task) -> None:
        """Queue *task*, which has ended, so that its span is exported soon; return at once."""
        self._tasks.put(task)

    def flush(self, seconds: float) -> None:
        """Wait, at most *seconds*, until all spans queued so far are exported."""
        done = threading.Event()
        self._tasks.put(done)
        done.wait(seconds)

    def _work(self) -> None:
        told = False
        while True:
            task = self._tasks.get()
            if isinstance(task, threading.Event):
                task.set()
                continue
            try:
                self._span(task)
            except Exception:  # noqa: BLE001  # an exporter that raises must not end the export of later tasks
                if not told:
                    told = True
                    _log.exception("OpenTelemetry did not take the span of a task; the job goes on.")

    def _totals(self) -> dict[str, Stats]:
        """Return the totals of all monitors of this program, by source."""
        state = self._state
        totals = dict(self._past)
        if state is not None:
            for source in state.sources():
                totals[source] = totals.get(source, Stats()) + state.total(source)
        return totals

    def _span(self, task: Task) -> None:
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

        return [Observation(value(stats), {"source": source, **attributes}) for source, stats in self._totals().items()]

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
            for source, stats in self._totals().items()
            for unit, amount in stats.spent.items()
        ]

    def _in_flight(self, _: Any) -> Iterable[Any]:
        from opentelemetry.metrics import Observation

        flights = dict.fromkeys(self._past, 0)
        for task in () if self._state is None else self._state.of():
            flight = task.facts["in_flight"] if task.state == "running" else 0
            flights[task.facts["source"]] = flights.get(task.facts["source"], 0) + flight
        return [Observation(flight, {"source": source}) for source, flight in flights.items()]
