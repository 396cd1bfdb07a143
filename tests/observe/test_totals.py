"""Totals of a micro-batch, read from the progress of a streaming query in each form in which Spark gives it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from enrichkit.errors import ConfigError
from enrichkit.observe.totals import Observed

METRICS = {"0_rows": 5, "0_ok": 3, "0_call": 3, "0_missing": 2, "0_tier": 0, "1_rows": 0, "1_ok": 0}
TOTALS = {"profile": {"rows": 5, "ok": 3, "call": 3, "missing": 2}, "score": {"rows": 0}}


def observed(name: str = "enrichkit") -> Observed:
    frame: Any = None  # totals need none
    return Observed(frame, name, ("profile", "score"))


def progress_of(metrics: Any, name: str = "enrichkit") -> Any:
    return {"observedMetrics": {name: metrics}}


@pytest.mark.parametrize(
    "progress",
    [
        progress_of(METRICS),
        SimpleNamespace(observedMetrics={"enrichkit": Row(**METRICS)}),
        progress_of({"values": list(METRICS.values()), "schema": {"fields": [{"name": name} for name in METRICS]}}),
    ],
    ids=["dict", "row", "Connect"],
)
def test_each_form_of_a_progress_gives_the_totals_of_each_column(progress: Any) -> None:
    assert TOTALS == observed().totals(progress)


def test_a_streaming_query_needs_a_progress() -> None:
    with pytest.raises(ConfigError) as raised:
        observed().totals()
    assert (
        "totals() of a streaming query needs the progress of a micro-batch, as in totals(query.lastProgress)."
        == str(raised.value)
    )


@pytest.mark.parametrize(
    ("progress", "there"), [(progress_of(METRICS, "mine"), "'mine'"), ({"observedMetrics": {}}, "none")]
)
def test_a_progress_without_the_metrics_names_those_that_it_has(progress: Any, there: str) -> None:
    with pytest.raises(ConfigError) as raised:
        observed().totals(progress)
    assert str(raised.value) == (
        f"The progress has no metrics 'enrichkit': they are there after a micro-batch with rows. It has: {there}."
    )
