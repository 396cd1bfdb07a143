"""What calls have cost: the sums of a run, and the rows whose calls they were."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from enrichkit.errors import TransientError
from enrichkit.observe.stats import Stats
from enrichkit.options import Retry
from enrichkit.testing.scripted import ScriptedConnector, Step
from enrichkit.worker.assemble import columns_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enrichkit.interface import Call, Failure, Key, Value
    from enrichkit.outcome import Outcomes

    from .bench import Lab, Task

FAST = Retry(attempts=3, wait=0.0, jitter="none")


class Paid(ScriptedConnector):
    """Reports 10 tokens for each key before it answers, and for a key `lost` besides that more is not known."""

    reports = True
    units = ("tokens", "cost")

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        call.spent(tokens=10.0 * len(keys), cost=0.5)
        if "lost" in keys:
            call.spent(tokens=math.nan)
        return await super().fetch_many(keys, call)


def paid(lab: Lab, script: Any = None, *, batch_size: int = 1, **options: Any) -> tuple[Paid, Task]:
    server = Paid(script)
    return server, lab.task(lab.engine(server, batch_size=batch_size), **options)


def spent_on(outcomes: Outcomes, codes: Sequence[int | None]) -> list[Any]:
    """What the details of rows with the keys of *codes* show."""
    columns = list(columns_of(outcomes, pa.array(codes, pa.int32()), pa.string(), Paid.units))
    return [row["spent"] for column in columns for row in column.to_pylist()]


async def test_the_sums_are_those_of_all_calls_failed_ones_included(lab: Lab) -> None:
    steps = [Step(error=TransientError("busy")), Step()]
    _, task = paid(lab, {"a": steps, "gone": Step(missing=True)}, retry=FAST)
    task.admit("a", "b", "gone", "lost")
    await task.end()
    assert {"tokens": 50.0, "cost": 2.5} == task.run.stats.spent
    stats = Stats(**task.run.stats.counted(str))
    assert (5, 4, {"tokens": 50.0, "cost": 2.5}) == (stats.calls, stats.metered, stats.spent)


async def test_a_cancelled_call_counts_among_those_of_unknown_cost(lab: Lab) -> None:
    _, task = paid(lab, {"b": Step(never=True)}, timeout=1.0, on_timeout="null", max_fallback_ratio=1.0)
    task.admit("a", "b")
    await task.end()
    assert (2, 1, {"tokens": 10.0, "cost": 0.5}) == (
        task.run.stats.calls,
        task.run.stats.metered,
        task.run.stats.spent,
    )
    await lab.at(10.0)
    assert (1, {"tokens": 20.0, "cost": 1.0}) == (task.run.stats.metered, task.run.stats.spent)


async def test_a_row_shows_what_all_calls_of_its_key_have_cost_and_no_other_row_of_the_key_does(lab: Lab) -> None:
    _, task = paid(lab, {"a": [Step(error=TransientError("busy")), Step()]}, retry=FAST, details=True)
    outcomes = task.admit("a", "b")
    later = task.admit("a")
    await task.end()
    one = {"tokens": 10.0, "cost": 0.5}
    assert [None, {"tokens": 20.0, "cost": 1.0}, None, one, None] == spent_on(outcomes, [None, 0, 0, 1, 1])
    assert [None] == spent_on(later, [0]), "it waited for the lookup of another row"


@pytest.mark.parametrize("together", [True, False])
async def test_the_keys_of_a_call_pay_equal_parts(lab: Lab, together: bool) -> None:
    script = {} if together else {"c": Step(failure=TransientError("busy"))}
    _, task = paid(
        lab, script, batch_size=4, retry=None, on_error="null", max_fallback_ratio=1.0, details=True, ordered=together
    )
    outcomes = task.admit("a", "b", "c", "d")
    await task.end()
    assert [{"tokens": 10.0, "cost": 0.125}] * 4 == spent_on(outcomes, [0, 1, 2, 3])


async def test_a_source_that_reports_nothing_has_no_costs(lab: Lab) -> None:
    _, task = lab.start(details=True)
    outcomes = task.admit("a")
    await task.end()
    assert ({}, 0) == (task.run.stats.spent, task.run.stats.metered)
    assert [None] == spent_on(outcomes, [0])
    [column] = columns_of(outcomes, pa.array([0], pa.int32()), pa.string())
    assert "spent" not in column.to_pylist()[0]
