"""What the engine counts: tokens, calls of a bisection, bytes, timers; and what it says of itself."""

from __future__ import annotations

import asyncio
from collections import UserDict
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine import watchdog
from enrichkit.engine.cache import AnswerCache
from enrichkit.engine.deadlines import TICKS_PER_TIMEOUT, Deadlines, Sweeper
from enrichkit.engine.limits import Gate, RetryBudget
from enrichkit.engine.pending import Pending
from enrichkit.engine.records import InFlight, Lookup, State
from enrichkit.engine.retries import PLACES_MAX, _log_place, put_off
from enrichkit.engine.search import Search
from enrichkit.engine.sizes import size_of
from enrichkit.engine.stats import RunStats
from enrichkit.errors import ContractError, PermanentError, TaskFailedError, TransientError, UnavailableError
from enrichkit.interface import Absent
from enrichkit.options import Retry
from enrichkit.outcome import Outcomes
from enrichkit.testing.clock import VirtualTimeLoop
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from enrichkit.engine.run import Run

    from .bench import Lab, Task

POISON = Step(error=PermanentError("poison"))


def test_a_budget_takes_what_is_spent_and_gives_back_one_token_for_each_call() -> None:
    budget, stats = RetryBudget(), RunStats()
    assert budget.spend(5, stats)
    assert budget.tokens == 95
    budget.earn(1)
    assert budget.tokens == 96
    assert not budget.spend(97, stats)
    assert budget.tokens == 96
    assert budget.spend(96, stats)
    assert budget.tokens == 0
    assert stats.retry_tokens == 5 + 96


@pytest.mark.parametrize("batch_size", [1, 2])
async def test_a_clean_call_gives_one_token_back_and_a_late_one_none(lab: Lab, batch_size: int) -> None:
    _, task = lab.start({"late": Step(after=0.5)}, batch_size=batch_size, timeout=0.2, on_timeout="null")
    budget = lab.engines[0].retry_budget
    budget.tokens = 50
    task.admit("a", "b")
    await lab.at(0.1)
    assert budget.tokens == 50 + 2 // batch_size
    task.admit("late")
    await lab.at(1.0)
    assert task.statuses == ["ok", "ok", "timeout"]
    assert budget.tokens == 50 + 2 // batch_size


@pytest.mark.parametrize("batch_size", [1, 2])
async def test_an_answer_after_the_attempt_timeout_is_taken_but_gives_no_token_back(lab: Lab, batch_size: int) -> None:
    _, task = lab.start(otherwise=Step(after=0.3), batch_size=batch_size, attempt_timeout=0.1, retry=None)
    lab.engines[0].retry_budget.tokens = 50
    task.admit("a", "b")
    await task.end()
    assert task.values == ["va", "vb"]
    assert lab.engines[0].retry_budget.tokens == 50


async def test_a_call_with_a_miss_gives_a_token_back_and_one_with_a_failure_none(lab: Lab) -> None:
    script = {"none": Step(missing=True), "bad": Step(failure=PermanentError("no"))}
    _, task = lab.start(script, batch_size=2, on_error="null")
    lab.engines[0].retry_budget.tokens = 50
    task.admit("a", "none", "b", "bad")
    await task.end()
    assert lab.engines[0].retry_budget.tokens == 51


@pytest.mark.parametrize(("on_missing", "tokens"), [(False, 50 - 5 + 5), (True, 50 - 5 + 1)])
async def test_a_retry_that_succeeds_gives_its_tokens_back_unless_misses_are_asked_again(
    lab: Lab, on_missing: bool, tokens: int
) -> None:
    retry = Retry(attempts=2, wait=0.01, on_missing=on_missing)
    _, task = lab.start({"a": [Step(error=TransientError("busy")), Step()]}, retry=retry)
    lab.engines[0].retry_budget.tokens = 50
    task.admit("a")
    await task.end()
    assert task.values == ["va"]
    assert lab.engines[0].retry_budget.tokens == tokens


async def test_a_full_bucket_does_not_overflow(lab: Lab) -> None:
    _, task = lab.start(batch_size=2)
    task.admit(*range(10))
    await task.end()
    assert lab.engines[0].retry_budget.tokens == RetryBudget.SIZE


async def test_the_search_for_a_bad_key_costs_no_token_and_its_calls_are_counted(lab: Lab) -> None:
    """Nine keys, one of them bad: four parts, of which three answer, then the three keys of the other part."""
    server, task = lab.start({0: POISON}, batch_size=9, capacity=1, on_error="null")
    task.admit(*range(9))
    await task.end()
    assert task.statuses == ["error"] + ["ok"] * 8
    assert server.keys == [tuple(range(9)), (0, 1, 2), (3, 4), (5, 6), (7, 8), (0,), (1,), (2,)]
    assert task.run.stats.bisections == 7
    assert lab.engines[0].retry_budget.tokens == RetryBudget.SIZE


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ([7], 64),
        ([7, None, 0.5, True], 4 * 64),
        (["ab", "cde"], 50 + 2 + 50 + 3),
        ([b"ab", "cde", ""], 150 + 5),
        (["abc"], size_of("abc")),
        ([7, "abc"], size_of(7) + size_of("abc")),
        ([[1, "a"], {"b": 2}], size_of([1, "a"]) + size_of({"b": 2})),
    ],
    ids=str,
)
async def test_answers_count_by_about_how_many_bytes_they_take(lab: Lab, values: list[Any], size: int) -> None:
    _, task = lab.start({key: Step(value=value) for key, value in enumerate(values)}, batch_size=len(values))
    task.admit(*range(len(values)))
    await task.end()
    assert task.values == values
    assert task.run.settled_bytes == size // len(values) * len(values)


async def test_an_answer_to_one_key_under_another_fails_the_task(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(returns={"b": 1}), on_error="null")
    task.admit("a")
    text = (
        r"^scripted: fetch_many returned 1 key\(s\) that it was not asked for; it must answer under the very keys it "
        r"was given \(1 in this call\)\. Map the source's answers back to those keys\.$"
    )
    with pytest.raises(ContractError, match=text):
        await task.end()
    assert task.left == []


@pytest.mark.parametrize("kind", [UserDict, MappingProxyType])
async def test_an_answer_may_be_any_mapping(lab: Lab, kind: Any) -> None:
    _, task = lab.start(otherwise=Step(returns=kind({"a": 1, "b": 2})), batch_size=2)
    task.admit("a", "b")
    await task.end()
    assert task.values == [1, 2]


async def test_keys_that_are_asked_again_are_looked_at_a_few_times_each(lab: Lab) -> None:
    """A group may have a million, and the loop stands still meanwhile."""

    class Watched(Lookup):
        __slots__ = ()
        looks = 0

        def __getattribute__(self, name: str) -> Any:
            Watched.looks += 1
            return super().__getattribute__(name)

    _, task = lab.start()
    group: list[Lookup] = [Watched(n, Outcomes([n], 1), 0) for n in range(500)]
    for lookup in group[1:]:
        lookup.started = 1.0
    call = InFlight(group, None, 2.0, None)
    task.run.deadlines.start(call.record, 2.0)
    assert Watched.looks < 10 * 500
    assert [2.0, *[1.0] * 499] == [lookup.started for lookup in group]
    assert group[:1] == call.record


def test_a_deadline_has_passed_at_its_very_moment_and_is_told_once() -> None:
    outcomes = Outcomes(["a", "b"], 2)
    lookups = [Lookup(key, outcomes, index) for index, key in enumerate("ab")]
    deadlines = Deadlines(2.0)
    deadlines.start(lookups, 1.0)
    assert [deadlines.of(lookup) for lookup in lookups] == [3.0, 3.0]
    lookups[0].state = State.SETTLED
    assert list(deadlines.expired(2.999)) == []
    assert list(deadlines.expired(3.0)) == [lookups[1]]
    assert list(deadlines.expired(4.0)) == []


@pytest.mark.parametrize(
    ("timeouts", "tick"), [((), 0.05), ((10.0, 1.0), 0.05), ((0.1, 2.0), 0.005), ((2.0, 0.1), 0.005)]
)
async def test_the_sweeper_comes_by_twenty_times_in_the_shortest_timeout_and_in_a_second(
    lab: Lab, timeouts: tuple[float, ...], tick: float
) -> None:
    moments: list[float] = []

    def sweep(now: float) -> bool:
        moments.append(now)
        return len(moments) < 3

    sweeper = Sweeper(asyncio.get_running_loop(), sweep, lambda since, until: None)
    for timeout in timeouts:
        sweeper.watch(timeout / TICKS_PER_TIMEOUT)
    sweeper.wake()
    sweeper.wake()
    await lab.at(1.0)
    assert moments == pytest.approx([tick, 2 * tick, 3 * tick])
    sweeper.wake()
    sweeper.stop()
    await lab.at(2.0)
    assert len(moments) == 3


DEFECT_HERE = (
    r"^scripted: a step of the engine raised ZeroDivisionError \(test_bookkeeping\.py, line \d+\)\. This is a defect; "
    r"please report it\.$"
)


async def both_fail_by_the_defect(lab: Lab, *tasks: Task) -> None:
    for task in tasks:
        task.admit("a")
    for task in tasks:
        with pytest.raises(TaskFailedError, match=DEFECT_HERE):
            await task.end()
    assert lab.now < 1.0


async def test_a_defect_in_the_sweeper_fails_every_task_instead_of_hanging_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(run: Run, now: float) -> bool:
        raise ZeroDivisionError

    server, task = lab.start(otherwise=Step(never=True), timeout=1.0)
    other = lab.task(lab.engines[0], timeout=1.0)
    monkeypatch.setattr(watchdog, "expire", defect)
    await both_fail_by_the_defect(lab, task, other)
    await lab.settle()
    assert server.in_flight == 0


async def test_a_defect_in_the_gate_fails_every_task_instead_of_ending_slot_after_slot(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(gate: Gate, now: float, in_flight: int) -> float:
        raise ZeroDivisionError

    server, task = lab.start(rate=10.0)
    other = lab.task(lab.engines[0])
    monkeypatch.setattr(Gate, "delay", defect)
    await both_fail_by_the_defect(lab, task, other)
    assert server.calls == []


async def test_the_answer_of_a_call_that_outlives_its_task_is_remembered(lab: Lab) -> None:
    cache = AnswerCache(60.0, 1_000_000, None)
    _, task = lab.start(otherwise=Step(after=0.5, stubborn=1), cache=cache)
    task.admit("a")
    await lab.at(0.1)
    task.close()
    await lab.at(1.0)
    assert cache.get_many(["a"], lab.now) == ["va"]
    assert task.left == []


@pytest.mark.parametrize("batch_size", [1, 5])
async def test_an_empty_list_of_matches_is_a_miss_and_every_other_value_is_not(lab: Lab, batch_size: int) -> None:
    given: dict[str, Any] = {"none": [], "one": [1], "null": None, "zero": 0, "empty": {}}
    script = {key: Step(value=value) for key, value in given.items()}
    _, task = lab.start(script, batch_size=batch_size, many=True)
    task.admit(*given)
    await task.end()
    assert task.statuses == ["missing", "ok", "ok", "ok", "ok"]
    assert task.values == [None, [1], None, 0, {}]


async def test_where_an_answer_is_one_value_an_empty_list_is_a_value(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(value=[]))
    task.admit("a")
    await task.end()
    assert (task.statuses, task.values) == (["ok"], [[]])


async def test_with_many_matches_an_answer_that_is_no_mapping_is_refused_as_ever(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(returns=[1, 2]), many=True)
    task.admit("a")
    with pytest.raises(ContractError, match=r"^scripted: fetch_many returned a list; it must return a mapping"):
        await task.end()


async def test_an_engine_with_nothing_to_do_sets_no_timer(lab: Lab) -> None:
    """Neither after retries, nor after a pause, nor after a late call."""
    script = {"a": [Step(error=TransientError("busy", retry_after=0.1)), Step()], "b": Step(after=0.4)}
    _, task = lab.start(script, timeout=0.3, on_timeout="null", retry=Retry(wait=0.01))
    task.admit_each("a", "b")
    await lab.at(5.0)
    assert task.statuses == ["ok", "timeout"]
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    assert loop.timers == 0


async def test_an_engine_says_how_much_it_has_to_do(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(after=1.0), capacity=2)
    assert repr(lab.engines[0]) == "<Engine scripted: 0 in flight, 0 runs waiting, 2 capacity>"
    task.admit(*"abc")
    await lab.settle()
    assert repr(lab.engines[0]) == "<Engine scripted: 2 in flight, 1 runs waiting, 2 capacity>"


async def test_an_engine_is_idle_when_the_last_tier_has_released_it(lab: Lab) -> None:
    lab.start()
    engine = lab.engines[0]
    engine.runs.clear()
    for _ in range(2):
        engine.keep_open()
        assert engine.idle_since is None
    engine.release()
    assert engine.idle_since is None
    engine.release()
    assert engine.idle_since == engine.now()


def test_the_breaker_holds_calls_no_longer_for_the_time_in_which_the_process_stood_still() -> None:
    gate = Gate("source", 1, None, Random(0))
    gate.stood_still(3.0)
    assert gate.breaker.held_since is None
    gate.breaker.held_since = 5.0
    gate.stood_still(3.0)
    assert gate.breaker.held_since == 8.0


def test_a_retry_for_which_no_call_may_be_made_stays_a_retry() -> None:
    pending, lookup, search = Pending(), Lookup("a", Outcomes(["a"], 1), 0), Search(4)
    lookup.state = State.WAITING
    pending.put_back([lookup], search)
    assert pending.take_urgent() == [([lookup], search)]
    lookup.state = State.PENDING
    pending.put_back([lookup], None)
    assert pending.take_urgent() == []
    assert pending.take(1, None) == ([lookup], None)


def test_keys_whose_clock_runs_are_counted_while_they_wait_again() -> None:
    pending, outcomes = Pending(), Outcomes(["a", "b", "c"], 3)
    lookups = [Lookup(key, outcomes, place) for place, key in enumerate("abc")]
    lookups[0].started = lookups[1].started = 1.0
    for lookup in lookups:
        pending.put_back([lookup], None)
    assert pending.clocked == 2
    assert pending.take(3, None) == (lookups[::-1], None)
    assert pending.clocked == 0


def test_a_pause_holds_although_each_limit_has_room() -> None:
    room: Any = SimpleNamespace(delay=lambda *_: 0.0)
    gate = Gate("source", 1, room, Random(0), room, room)
    gate.pause(0.0, 0.5)
    assert gate.delay(0.0, 0) == 0.5
    assert gate.delay(0.5, 0) == 0.0


def test_a_quota_of_requests_is_not_divided_by_what_a_call_takes() -> None:
    gate = Gate("source", 1, None, Random(0))
    gate.took({"requests": 2.0, "tokens": 100.0})
    gate.told(0.0, 1.0, 10.0, None, "requests")
    assert gate.delay(0.0, 0) == 0.0
    gate.told(0.0, 99.0, 10.0, None, "tokens")
    assert gate.delay(0.0, 0) == 10.0, "less than one call is left"


async def test_a_call_with_an_absent_part_gives_a_token_back(lab: Lab) -> None:
    """A call whose keys are handled one by one has no failure all the same."""
    _, task = lab.start({"a": Step(value=Absent("path", lambda: None))}, batch_size=2)
    lab.engines[0].retry_budget.tokens = 50
    task.admit("a", "b")
    await task.end()
    assert task.statuses == ["missing", "ok"]
    assert lab.engines[0].retry_budget.tokens == 51


def test_a_blamed_key_has_one_attempt_and_one_failure_more() -> None:
    lookup = Lookup("a", Outcomes(["a"], 1), 0)
    lookup.attempts, lookup.failures = 2, 1
    lookup.blamed()
    assert (lookup.attempts, lookup.failures, lookup.routes) == (3, 2, 0)


@pytest.mark.parametrize(
    ("state", "routes", "dispensable"),
    [
        (State.IN_FLIGHT, 1, False),
        (State.IN_FLIGHT, 2, True),
        (State.DRAINING, 1, True),
        (State.SETTLED, 1, True),
    ],
)
def test_a_call_is_dispensable_if_no_key_needs_its_answer(state: State, routes: int, dispensable: bool) -> None:
    lookup = Lookup("a", Outcomes(["a"], 1), 0)
    call = InFlight([lookup], None, 0.0, None)
    lookup.state, lookup.routes = state, routes
    assert call.dispensable() is dispensable


def test_a_quota_of_tokens_counts_in_calls_and_a_single_dear_call_does_not_change_what_a_call_takes() -> None:
    gate = Gate("source", 1, None, Random(0))
    gate.took({"tokens": 100.0})
    gate.took({"tokens": 200.0})
    call = InFlight([Lookup("a", Outcomes(["a"], 1), 0)], None, 0.0, None)
    gate.told(0.0, 330.0, 10.0, 1_100.0, "tokens")  # three of ten calls, at 110 tokens each
    gate.sent(call)
    assert gate.delay(0.0, 0) == 0.0
    gate.told(0.0, 220.0, 10.0, 1_100.0, "tokens")  # two of ten calls: a fifth is left
    gate.sent(call)
    assert gate.delay(0.0, 0) == pytest.approx(5.0)


async def test_calls_of_a_task_that_nobody_waits_for_are_counted_as_abandoned(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(never=True))
    task.admit("a", "b")
    await lab.at(0.1)
    task.close()
    await lab.settle()
    assert task.run.stats.abandoned == 2


async def test_keys_that_are_sent_again_are_counted_by_the_reason(lab: Lab) -> None:
    script = {
        "late": [Step(never=True), Step(value="v")],
        "failed": [Step(error=TransientError("busy")), Step(value="v")],
    }
    _, task = lab.start(script, attempt_timeout=0.5, timeout=10.0)
    task.admit("late", "failed")
    await task.end()
    assert task.statuses == ["ok", "ok"]
    assert task.run.stats.retried_for == {"attempt_timeout": 1, "TransientError": 1}


async def test_each_call_that_is_divided_counts_once(lab: Lab) -> None:
    poison = Step(error=PermanentError("poison"), after=0.1)
    _, task = lab.start(otherwise=poison, batch_size=2, capacity=3, on_error="null", max_fallback_ratio=1.0)
    task.admit(*"abcdef")
    await lab.at(0.15)
    assert (task.run.stats.bisections, task.run.failed_in_a_row) == (6, 3)
    await task.end()
    assert task.statuses == ["error"] * 6


async def test_a_refused_key_fails_if_it_cannot_be_asked_again_in_time(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(held=True), timeout=1.0, on_timeout="null")
    task.admit("a")
    await lab.at(0.999)
    [lookup] = task.run.table.values()
    assert put_off(task.run, [(lookup, UnavailableError("busy", busy=True))], None) == {lookup: None}
    server.release()


async def test_a_task_that_waits_on_hides_no_other_that_has_waited_too_long(lab: Lab) -> None:
    """Each of them is asked in the same sweep."""
    _, patient = lab.start(otherwise=Step(error=UnavailableError("away")), on_error="null", max_fallback_ratio=1.0)
    strict = lab.task(lab.engines[0])
    patient.admit("a")
    strict.admit("b")
    await lab.at(0.5)
    assert lab.engines[0].gate.outage.since is not None
    watchdog._fail_on_outage(lab.engines[0], 1e6)
    assert (patient.run.closed, strict.run.closed) == (False, True)
    patient.close()


async def test_a_defect_without_a_place_is_logged_once(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """An extension in C may raise an error that has no traceback."""
    _, task = lab.start()
    for _ in range(2):
        _log_place(task.run, ValueError("secret"))
    assert caplog.messages == ["scripted: the connector raised ValueError at: (unknown)."]


async def test_no_more_than_twenty_places_of_defects_are_logged(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    def defect(number: int) -> Exception:
        try:
            exec(compile("1 / 0", f"connector_{number}.py", "exec"))
        except ZeroDivisionError as error:
            return error
        raise AssertionError

    keys = [str(number) for number in range(PLACES_MAX + 5)]
    _, task = lab.start({key: Step(error=defect(int(key))) for key in keys}, on_error="null", max_fallback_ratio=1.0)
    task.admit(*keys)
    await task.end()
    assert sum("the connector raised" in record.getMessage() for record in caplog.records) == PLACES_MAX
