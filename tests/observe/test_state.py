"""What a monitor knows after pushes that come twice, late, out of order or not at all, and how it shows it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enrichkit.observe.present import TASKS_SHOWN, view_of
from enrichkit.observe.state import AWAY_MAX, GIVEN_UP_AFTER, LOST_AFTER, MOMENTS_MAX, TASKS_MAX, State
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


@pytest.mark.slow
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


def test_the_rows_of_failed_attempts_are_no_progress_and_do_not_hold_it_up() -> None:
    state = State(BEGAN - 3600)  # a notebook that has been open for an hour
    push(state, report(0, state="failed", emitted=40), report(0, state="ok", emitted=100, attempt=1))
    push(state, report(1, emitted=100))
    found = view_of(state, BEGAN + 10, rows=400)["progress"]
    assert found == {"rows": 240, "total": 400, "share": 0.5, "eta": 10.0}
    push(state, report(2, state="ok", emitted=200))
    assert view_of(state, BEGAN + 20, rows=400)["progress"]["share"] == 1.0


def test_the_progress_counts_tasks_that_were_added_up() -> None:
    state = State(BEGAN)
    many = TASKS_MAX + 100
    for number in range(many):
        push(state, report(number, state="failed" if number % 10 == 0 else "ok", emitted=30))
    progress = view_of(state, BEGAN + 1, rows=30 * many)["progress"]
    assert (progress["rows"], progress["share"]) == (30 * many, 0.9)


def test_a_report_that_comes_late_or_twice_of_a_task_that_was_added_up_is_not_counted() -> None:
    state = State(BEGAN)
    push(state, report(9_999))
    state.tick(BEGAN + LOST_AFTER + 1)
    for number in range(TASKS_MAX + 100):
        push(state, report(number, state="ok"), now=BEGAN + GIVEN_UP_AFTER + 1)
    calls = state.total().calls
    assert calls == 10 * (TASKS_MAX + 101)
    push(state, report(9_999, state="ok", calls=90), report(0, state="ok"), now=BEGAN + 100)
    assert (state.total().calls, len(state.tasks)) == (calls, TASKS_MAX)
    assert view_of(state, BEGAN + 100)["more_tasks"] == TASKS_MAX + 101 - TASKS_SHOWN


def test_workers_that_vanish_sources_that_flap_and_keys_without_end_take_no_more_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.modules[State.__module__], "TASKS_MAX", 20)
    state = State(BEGAN)
    for number in range(2 * AWAY_MAX + 10):
        now = BEGAN + number * 20
        keys = {"hot": {f"#{number}-{rank}": 10 + rank for rank in range(10)} | {"#same": 5}}
        one = report(number, away=1.0 if number % 2 else None)
        push(state, one | {"stats": one["stats"] | keys}, now=now)
        state.tick(now)
        state.tick(now + LOST_AFTER + 1)
    view = view_of(state, now + 20)
    assert (len(state.tasks), len(view["outages"]), view["totals"]["tasks"]) == (24, AWAY_MAX, 2 * AWAY_MAX + 10)
    assert len(state._ended["users"].stats.hot) <= 40  # the only way to see how much memory it takes
    assert "#same" in state._ended["users"].stats.hot, "what comes again and again is kept"


def test_a_second_copy_of_a_task_that_is_stopped_leaves_the_first_one_good() -> None:
    """Spark's speculation: the copy begins when the first one has nearly ended, and is killed."""
    state = State(BEGAN)
    push(state, report(0, state="ok", calls=10))
    push(state, report(0, attempt=1, calls=4))
    state.tick(BEGAN + 1)
    assert state.total(failed=True).calls == 10
    state.tick(BEGAN + LOST_AFTER + 2)
    assert state.total(failed=True).calls == 4
    push(state, report(0, attempt=2, calls=3))
    assert state.total(failed=True).calls == 14
    push(state, report(0, attempt=2, calls=5, state="failed"))
    assert state.total(failed=True).calls == 9
    push(state, report(0, attempt=3, calls=2))
    assert state.total(failed=True).calls == 19
    push(state, report(0, attempt=3, calls=2, state="stopped"))
    assert state.total(failed=True).calls == 9


def test_the_sentence_is_of_the_tasks_of_now() -> None:
    state = State(BEGAN)
    push(state, *(report(number, state="ok") for number in range(20)))
    view = view_of(state, BEGAN + 5)
    assert view["sentence"].startswith("Waiting for the source with few keys at a time"), "nothing runs: of all tasks"
    waits = report(30, capacity=400)
    waits["stats"] |= {"input_seconds": 3.0, "source_seconds": 0.0}
    push(state, waits, now=BEGAN + 6)
    view = view_of(state, BEGAN + 6)
    assert view["sentence"] == "Waiting for Spark's input: the source could answer more."
    assert view["totals"]["calls"] == 210


def test_keys_without_an_answer_are_counted_whatever_the_reason() -> None:
    state = State(BEGAN)
    one = report()
    push(state, one | {"stats": one["stats"] | {"timeouts": 3, "errors": 2, "rejected": 1, "over_budget": 4}})
    state.tick(BEGAN + 1)
    view = view_of(state, BEGAN + 1)
    assert view["totals"]["without_answer"] == view["tasks"][0]["errors"] == view["history"][0]["errors"] == 10


def test_what_held_calls_back_is_told_by_reason() -> None:
    state = State(BEGAN)
    one = report()
    held = {"limits": {"rate": 2.0, "outage": 0.5, "pause": 0.001}, "bytes_seconds": 1.5}
    push(state, one | {"stats": one["stats"] | held})
    assert view_of(state, BEGAN + 1)["sources"][0]["held_back"] == [
        {"reason": "outage", "seconds": 0.5},
        {"reason": "rate", "seconds": 2.0},
        {"reason": "window_bytes", "seconds": 1.5},
    ]


def test_a_worker_of_another_version_may_lack_a_fact() -> None:
    state = State(BEGAN)
    one = report(calls=10)
    del one["lag"], one["emitted"], one["in_flight"]
    push(state, one)
    assert (state.total().calls, view_of(state, BEGAN + 1)["in_flight"]) == (10, 0)


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
        (
            json.dumps(
                {"tasks": [report() | {"stats": {"calls_took": {"counts": [[80_000, 1]], "sum": 1, "unit": 1}}}]}
            ).encode(),
            "These are no statistics of enrichkit: there is no bucket 80000.",
        ),
    ],
)
def test_what_no_worker_pushes_is_refused_whole(body: bytes, text: str) -> None:
    state = State(BEGAN)
    with pytest.raises(ValueError, match=r"^Th(is|ese)") as caught:
        state.push(body, BEGAN)
    assert str(caught.value) == text
    assert state.of() == []
