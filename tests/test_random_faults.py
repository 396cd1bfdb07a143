"""Every row has its own value or none, whatever the network does to the connections: random faults, from a seed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.random_faults import SOURCES, TASK_ROWS, Tally, look_up
from enrichkit.testing.storm import FAULTS, storm

pytestmark = [pytest.mark.more, pytest.mark.timeout(3600)]

TASKS = 6  # at a time, in one worker process; most of them wait for the network
ROWS = int(os.environ.get("ENRICHKIT_RANDOM_ROWS", "100000"))
SEED = int(os.environ.get("ENRICHKIT_RANDOM_SEED", "20261124"))


@pytest.mark.parametrize("name", SOURCES)
def test_no_row_has_a_wrong_value_under_random_faults(name: str) -> None:
    """`ENRICHKIT_RANDOM_ROWS=1000000 ./run test -m more -k random_faults` looks a million rows up."""
    tally = Tally()
    with SOURCES[name]() as source, storm(source.proxy, seed=SEED) as played, ThreadPoolExecutor(TASKS) as threads:
        for counted in threads.map(lambda task: look_up(source, SEED + task), range(ROWS // TASK_ROWS)):
            tally.add(counted)
        connections = source.proxy.opened
    seen = f"seed {SEED}, {dict(tally.statuses)}, {dict(played)}, {connections} connections"
    assert not tally.wrong, f"{seen}\n" + "\n".join(tally.wrong)
    assert tally.rows == ROWS
    statuses = tally.statuses
    assert statuses["ok"] > 0.5 * statuses.total(), seen  # else the storm was so strong that little was compared
    assert set(played) == set(FAULTS), seen
    assert connections > played["cut"], seen
