"""More than a hundred workers at one modelled source: the engine under virtual time, with a rate of the job."""

from __future__ import annotations

import logging

import pytest

from benchmarks import cluster_simulation as cluster
from enrichkit.leases import MANY
from enrichkit.limits import Rate

WORKERS = 120


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "enrichkit")  # each of the workers says that the source is away
    monkeypatch.setattr(cluster, "CAPACITY", 400.0)


@pytest.mark.slow
def test_a_source_that_returns_is_not_overrun_by_a_job_with_a_rate() -> None:
    assert WORKERS > MANY
    table = cluster.table_of(Rate(400, per="job", store="leases"), [WORKERS])
    assert len(table.goals) == 3
    assert [text for text, reached in table.goals if not reached] == []


@pytest.mark.slow
def test_without_a_rate_no_row_fails() -> None:
    """All wait for the source, which gets more than it can answer."""
    table = cluster.table_of(None, [WORKERS])
    assert table.goals == [(f"{WORKERS} workers: no row fails", True)]
