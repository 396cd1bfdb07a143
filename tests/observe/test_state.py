"""What a monitor knows after pushes that come twice, late, out of order or not at all, and how it shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enrichkit.observe.present import view_of
from enrichkit.observe.state import LOST_AFTER, MOMENTS_MAX, TASKS_MAX, State
from enrichkit.observe.stats import Distribution, Stats

BEGAN = 1_000.0


def report(
    number: int = 0, *, state: str = "running", calls: int = 10, attempt: int = 0, **facts: Any
) -> dict[str, Any]:
    stats = Stats(
        tasks=1,
        seconds=4.0,
        rows=100,
        keys=50,
        calls=calls,
        sent=calls,
        ok=calls,
        source_seconds=3.0,
        cpu_seconds=1.0,
        slot_seconds=40.0,
        calls_took=Distribution({60: calls}, 0.02 * calls),
    )
    return {
        "id": f"{number}-{attempt}",
        "source": "users",
        "plan": "users",
        "connector": "http",
        "stage": 1,
        "partition": number,
        "attempt": attempt,
        "query": None,
        "batch": None,
        "host": "w1",
        "pid": 7,
        "began": BEGAN,
        "state": state,
        "error": None,
        "capacity": 10,
        "batch_size": 1,
        "batch_size_max": 1,
        "rate": None,
        "cache": False,
        "emitted": 100,
        "in_flight": 5 if state == "running" else 0,
        "away": None,
        "held": None,
        "lag": 0.0,
        "stats": stats.as_dict(),
    } | facts


def push(state: State, *reports: dict[str, Any], now: float = BEGAN) -> None:
    state.push(json.dumps({"version": 1, "tasks": reports}).encode(), now)


def test_a_push_replaces_the_one_before_of_the_same_task() -> None:
    state = State(BEGAN)
    for calls in (3, 7, 7, 10):
        push(state, report(calls=calls))
    push(state, report(1, state="ok", calls=5))
    assert (state.total().calls, state.total().tasks) == (15, 2)


def test_what_comes_after_the_end_of_a_task_changes_nothing() -> None:
    state = State(BEGAN)
    push(state, report(state="ok", calls=10))
    push(state, report(calls=7))
    assert (state.total().calls, state.of()[0].state) == (10, "ok")


@given(st.permutations(range(12)))
def test_the_order_of_tasks_does_not_matter(order: list[int]) -> None:
    state = State(BEGAN)
    for number in order:
        push(state, report(number, state="ok" if number % 2 else "failed", calls=number))
    assert (state.total().calls, state.total(failed=True).calls) == (66, 30)


def test_a_task_that_is_not_heard_of_is_lost_until_it_pushes_again() -> None:
    state = State(BEGAN)
    push(state, report())
    state.tick(BEGAN + LOST_AFTER - 1)
    assert state.of()[0].state == "running"
    state.tick(BEGAN + LOST_AFTER + 1)
    assert view_of(state, BEGAN + 12)["totals"]["failed_calls"] == 10
    push(state, report(state="ok"), now=BEGAN + 13)
    assert view_of(state, BEGAN + 14)["totals"]["failed_calls"] == 0


@pytest.mark.parametrize("before", ["running", "ok", "failed"])
def test_the_calls_of_an_attempt_that_spark_repeats_are_told_apart(before: str) -> None:
    state = State(BEGAN)
    push(state, report(state=before, calls=4))
    push(state, report(1, state="ok", calls=100))  # another partition
    push(state, report(state="running", calls=6, attempt=1))
    push(state, report(state="ok", calls=9, attempt=1))
    totals = view_of(state, BEGAN + 1)["totals"]
    assert (totals["calls"], totals["failed_calls"], totals["failed_tasks"]) == (113, 4, 1)


def test_a_stream_of_many_tasks_takes_no_more_memory_and_loses_no_figure() -> None:
    state = State(BEGAN)
    many = TASKS_MAX + 300
    for number in range(many):
        push(state, report(number, state="failed" if number % 10 == 0 else "ok", calls=2))
        if number % 3 == 0:
            state.tick(BEGAN + number)
    assert len(state.tasks) == TASKS_MAX
    assert (state.total().calls, state.total("users").tasks) == (2 * many, many)
    assert state.total(failed=True).tasks == many // 10
    assert sum(moment.stats.calls for moment in state.history) <= 2 * many


def test_a_long_history_becomes_coarser_and_keeps_its_sums() -> None:
    state = State(BEGAN)
    for second in range(1, 2 * MOMENTS_MAX):
        push(state, report(calls=second))
        state.tick(BEGAN + second)
    assert len(state.history) <= MOMENTS_MAX
    assert sum(moment.stats.calls for moment in state.history) == 2 * MOMENTS_MAX - 1
    assert sum(moment.seconds for moment in state.history) == pytest.approx(2 * MOMENTS_MAX - 1, abs=2)


def test_a_source_that_is_away_is_a_span_of_time() -> None:
    state = State(BEGAN)
    push(state, report(away=2.0), now=BEGAN + 5)
    state.tick(BEGAN + 5)
    view = view_of(state, BEGAN + 5)
    assert view["outages"] == [{"source": "users", "since": BEGAN + 3, "until": None}]
    assert view["sources"][0]["away_since"] == BEGAN + 3
    assert view["sentence"] == "Source away for 2 s; its rows wait."
    push(state, report(), now=BEGAN + 6)
    state.tick(BEGAN + 6)
    assert view_of(state, BEGAN + 6)["outages"] == [{"source": "users", "since": BEGAN + 3, "until": BEGAN + 6}]


def test_rows_that_are_known_give_a_progress_and_an_eta() -> None:
    state = State(BEGAN)
    push(state, report())
    assert view_of(state, BEGAN + 10)["progress"] == {"rows": 100, "total": None, "share": None, "eta": None}
    assert view_of(state, BEGAN + 10, rows=400)["progress"] == {"rows": 100, "total": 400, "share": 0.25, "eta": 30.0}


def test_the_parts_of_the_time_are_all_of_it_and_the_view_is_json() -> None:
    state = State(BEGAN)
    push(state, report(), report(1, state="failed", error="LookupFailedError: users: no"))
    state.tick(BEGAN + 1)
    view = view_of(state, BEGAN + 1, slots=2)
    assert sum(part["share"] for part in view["time"]) == pytest.approx(1.0)
    assert view == json.loads(json.dumps(view))
    assert [task["state"] for task in view["tasks"]] == ["running", "failed"]
    assert view["tasks"][1]["error"] == "LookupFailedError: users: no"


def test_nothing_yet() -> None:
    view = view_of(State(BEGAN), BEGAN)
    assert (view["state"], view["sentence"], view["totals"]["calls"]) == ("waiting", "Waiting for the first task.", 0)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "This is no push of a worker: JSONDecodeError."),
        (b"[]", "This is no push of a worker: TypeError."),
        (b'{"tasks": 3}', "This is no push of a worker: `tasks` is no list of tasks."),
        (b'{"tasks": [{}]}', "This is no push of a worker: the field 'id' of a task is None."),
        (
            json.dumps({"tasks": [report() | {"pid": "7"}]}).encode(),
            "This is no push of a worker: the field 'pid' of a task is '7'.",
        ),
        (
            json.dumps({"tasks": [report(), report(1) | {"stats": {"rows": -1}}]}).encode(),
            "These are no statistics of enrichkit: -1 is no number from 0 on.",
        ),
    ],
)
def test_what_no_worker_pushes_is_refused_whole(body: bytes, text: str) -> None:
    state = State(BEGAN)
    with pytest.raises(ValueError, match=r"^Th(is|ese)") as caught:
        state.push(body, BEGAN)
    assert str(caught.value) == text
    assert state.of() == []
