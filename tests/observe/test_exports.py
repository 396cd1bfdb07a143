"""What Prometheus and OpenTelemetry read of a monitor."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from enrichkit.observe import otel
from enrichkit.observe.prometheus import text
from enrichkit.observe.state import State

from .test_state import BEGAN, push, report


def state_of(*reports: dict[str, Any]) -> State:
    state = State(BEGAN)
    push(state, *reports)
    return state


def test_prometheus_reads_the_totals_of_each_source() -> None:
    hostile = 'us"ers\\\n'
    state = state_of(report(calls=10), report(1, state="failed", calls=7), report(2, source=hostile, calls=3))
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text(state))
        for sample in family.samples
    }
    users, other = ("source", "users"), ("source", hostile)
    assert found["enrichkit_calls_total", users] == 17
    assert found["enrichkit_calls_total", other] == 3
    assert found["enrichkit_keys_total", ("outcome", "ok"), users] == 17
    assert found["enrichkit_task_seconds_total", ("part", "source"), users] == 6.0
    assert found["enrichkit_in_flight", users] == 5
    assert found["enrichkit_call_seconds_count", users] == 17
    assert found["enrichkit_call_seconds_sum", users] == pytest.approx(0.34)
    buckets = [value for (name, *labels), value in found.items() if name.endswith("_bucket") and users in labels]
    bounds = sorted(
        float(bound)
        for (name, *labels), _ in found.items()
        for label, bound in labels
        if name.endswith("_bucket") and label == "le" and users in labels
    )
    assert bounds[0] == pytest.approx(128e-6)
    assert all(second == pytest.approx(2 * first) for first, second in itertools.pairwise(bounds[:-1]))
    assert set(buckets) == {17}


def with_costs(number: int, **facts: Any) -> dict[str, Any]:
    one = report(number, **facts)
    return one | {"stats": one["stats"] | {"spent": {"tokens": 900.0, "cost": 0.25}, "metered": 9}}


def test_prometheus_reads_costs_where_a_source_reports_them() -> None:
    state = state_of(report(), with_costs(1, source="model"), with_costs(2, source="model"))
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text(state))
        for sample in family.samples
        if sample.name.startswith(("enrichkit_spent", "enrichkit_metered"))
    }
    model = ("source", "model")
    assert found == {
        ("enrichkit_spent_total", model, ("unit", "tokens")): 1800.0,
        ("enrichkit_spent_total", model, ("unit", "cost")): 0.5,
        ("enrichkit_metered_total", model): 18,
    }
    assert "spent" not in text(state_of(report()))


def test_opentelemetry_reads_counters_and_a_span_for_each_task() -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    reader, spans, provider = InMemoryMetricReader(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    state = State(BEGAN)
    export = otel.Export(MeterProvider([reader]).get_meter("enrichkit"), provider.get_tracer("enrichkit"))
    export.watch(state)
    state.ended = export.ended
    push(state, report(calls=4))
    push(state, report(state="ok", calls=10))
    push(state, report(state="ok", calls=10))
    push(state, report(1, state="failed", calls=7, error="LookupFailedError: no"), with_costs(2, source="model"))
    data = reader.get_metrics_data()
    assert data is not None
    counted = {
        (metric.name, *point.attributes.values()): point.value
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
    }
    assert counted["enrichkit.calls", "users"] == 17
    assert counted["enrichkit.task_seconds", "users", "source"] == 6.0
    assert {
        ("enrichkit.spent", "model", "tokens"): 900.0,
        ("enrichkit.spent", "model", "cost"): 0.25,
    } == {name: value for name, value in counted.items() if name[0] == "enrichkit.spent"}
    assert counted["enrichkit.in_flight", "users"] == 0
    export.flush(10)
    good, bad = spans.get_finished_spans()
    assert good.name == "enrichkit users"
    assert good.attributes is not None
    assert good.attributes["enrichkit.calls"] == 10
    assert (good.start_time, good.end_time) == (int(BEGAN * 1e9), int((BEGAN + 4) * 1e9))
    assert bad.status.description == "LookupFailedError: no"


class Exporter:
    """A tracer whose spans take until *released*, or raise."""

    def __init__(self, *, broken: bool = False) -> None:
        self.released = threading.Event()
        self.begun: list[str] = []
        self.broken = broken

    def start_span(self, name: str, **_: Any) -> Any:
        self.begun.append(name)
        if self.broken:
            raise OSError("the exporter is broken")
        assert self.released.wait(60)
        return self

    def end(self, **_: Any) -> None:
        """Do nothing more."""


class Meter:
    """A meter that refuses a second counter of a name, as those of OpenTelemetry ignore it."""

    def __init__(self) -> None:
        self.read: dict[str, Any] = {}

    def create_observable_counter(self, name: str, callbacks: Any, **_: Any) -> None:
        assert name not in self.read
        [self.read[name]] = callbacks

    create_observable_gauge = create_observable_counter


def test_a_slow_exporter_holds_no_worker_up() -> None:
    state, slow = State(BEGAN), Exporter()
    export = otel.Export(Meter(), slow)
    export.watch(state)
    state.ended = export.ended
    push(state, report(state="ok"), report(1, state="ok"))
    assert state.total().tasks == 2, "both were taken while the exporter holds the first one"
    slow.released.set()
    export.flush(10)
    assert slow.begun == ["enrichkit users"] * 2


def test_an_exporter_that_raises_costs_its_own_spans(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    state, broken = State(BEGAN), Exporter(broken=True)
    export = otel.Export(Meter(), broken)
    state.ended = export.ended
    push(state, report(state="ok"), report(1, state="ok"))
    export.flush(10)
    assert (state.total().tasks, len(broken.begun)) == (2, 2)
    assert caplog.messages == ["OpenTelemetry did not take the span of a task; the job goes on."]


def test_the_counters_of_a_program_go_on_over_its_monitors() -> None:
    meter = Meter()
    export = otel.Export(meter, Exporter())
    for calls in (10, 3):
        state = State(BEGAN)
        export.watch(state)
        push(state, report(state="ok", calls=calls))
    [observation] = meter.read["enrichkit.calls"](None)
    assert (observation.value, observation.attributes) == (13, {"source": "users"})
