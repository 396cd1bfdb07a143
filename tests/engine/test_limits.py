"""What holds calls back: the rate, a pause that the source asked for, the breaker, and the bound on bytes."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.limits import Breaker, RetryBudget
from enrichkit.engine.pacing import Rate
from enrichkit.engine.sizes import BytesEach
from enrichkit.engine.stats import RunStats
from enrichkit.errors import PermanentError, SourceStalledError, TransientError, UnavailableError
from enrichkit.options import Retry
from enrichkit.testing.scripted import ScriptedConnector, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enrichkit.engine.run import EnginePort
    from enrichkit.interface import Call

    from .bench import Lab

DOWN = Step(after=0.01, error=TransientError("down"))


def throttled(seconds: float) -> TransientError:
    return TransientError("throttled", retry_after=seconds)


# the rate


async def test_calls_keep_to_the_rate(lab: Lab) -> None:
    server, task = lab.start(rate=10.0, capacity=4)
    task.admit_each(*range(20))
    await task.end()
    assert [seen.started for seen in server.calls] == pytest.approx([n / 10 for n in range(20)])


@pytest.mark.parametrize("rate", [30.0, 400.0])
async def test_a_fast_rate_is_met_and_hardly_exceeded(lab: Lab, rate: float) -> None:
    """A burst of 50 ms' worth of calls is tolerated."""
    server, task = lab.start(rate=rate, capacity=20)
    count = int(3 * rate)
    task.admit_each(*range(count))
    await task.end()
    starts = [seen.started for seen in server.calls]
    assert 2.9 <= starts[-1] <= 3.0
    for first in range(0, count, 7):
        assert sum(starts[first] <= start < starts[first] + 1.0 for start in starts) <= rate * 1.05 + 1


async def test_an_idle_time_saves_nothing_up(lab: Lab) -> None:
    server, task = lab.start(rate=10.0)
    task.admit("first")
    await lab.at(20.0)
    task.admit_each(*range(5))
    await task.end()
    assert [seen.started for seen in server.calls[1:]] == pytest.approx([20.0, 20.1, 20.2, 20.3, 20.4], abs=1e-6)


async def test_tasks_on_one_engine_share_its_rate_and_retries_count(lab: Lab) -> None:
    server = lab.server({0: [DOWN, Step()]})
    engine = lab.engine(server, rate=10.0)
    tasks = [lab.task(engine, retry=Retry(wait=0.0)) for _ in range(2)]
    tasks[0].admit_each(*range(5))
    tasks[1].admit_each(*range(10, 15))
    await asyncio.gather(*(task.end() for task in tasks))
    starts = sorted(seen.started for seen in server.calls)
    assert starts == pytest.approx([n / 10 for n in range(11)])


def test_a_rate_asks_to_wait_for_as_long_as_it_takes() -> None:
    rate = Rate(2.0)
    assert rate.delay(100.0) == 0.0
    rate.spend(100.0)
    assert rate.delay(100.0) == pytest.approx(0.5)
    assert rate.delay(100.4) == pytest.approx(0.1)
    assert rate.delay(100.5) == 0.0


def test_a_rate_counts_the_requests_of_a_call_that_made_more_than_one() -> None:
    rate = Rate(2.0)
    rate.spend(100.0)
    rate.correct(100.0, {"tokens": 700.0})
    assert rate.delay(100.0) == pytest.approx(0.5)
    rate.correct(100.0, {"requests": 2.0, "tokens": 700.0})
    assert rate.delay(100.0) == pytest.approx(1.5)


async def test_an_engine_says_what_holds_its_calls_back_only_while_keys_wait_for_that(lab: Lab) -> None:
    _, task = lab.start(capacity=1, rate=1.0)
    engine = lab.engines[0]
    assert engine.held_by() is None
    task.admit_each("a", "b", "c")
    await lab.at(0.5)
    assert engine.held_by() == "rate"
    await lab.at(2.5)
    assert task.values == ["va", "vb", "vc"]
    assert engine.held_by() is None


# a pause that the source asked for


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_a_retry_after_pauses_the_whole_source(lab: Lab, how: str) -> None:
    """F10: no request earlier than the source asked for, whatever its key."""
    step = Step(error=throttled(2.0)) if how == "raised" else Step(failure=throttled(2.0))
    server, task = lab.start({"a": [step, Step()]}, capacity=1)
    task.admit_each("a", "b", "c")
    await task.end()
    assert task.values == ["va", "vb", "vc"]
    assert server.calls[0].started == 0.0
    assert all(2.0 <= seen.started <= 2.1 for seen in server.calls[1:])


async def test_a_pause_is_never_longer_than_a_minute(lab: Lab) -> None:
    server, task = lab.start({"a": Step(error=throttled(99_999_999_999.0))}, capacity=1, on_error="null", timeout=100.0)
    task.admit_each("a", "b")
    await task.end()
    assert server.calls[1].started == pytest.approx(60.0)


async def test_a_pause_is_as_long_as_the_source_asks_for_within_a_longer_stall_timeout(lab: Lab) -> None:
    server, task = lab.start(
        {"a": Step(error=throttled(120.0))}, capacity=1, on_error="null", timeout=500.0, stall_timeout=300.0
    )
    task.admit_each("a", "b")
    await task.end()
    assert [call.started for call in server.calls[:2]] == pytest.approx([0.0, 120.0])


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, 0.0])
async def test_a_pause_that_makes_no_sense_is_none(lab: Lab, seconds: float) -> None:
    server, task = lab.start({"a": Step(error=throttled(seconds))}, capacity=1, on_error="null", retry=None)
    task.admit_each("a", "b")
    await task.end()
    assert server.calls[1].started == 0.0


async def test_a_shorter_pause_does_not_cut_a_longer_one(lab: Lab) -> None:
    script = {"a": Step(error=throttled(5.0)), "b": Step(after=0.1, error=throttled(1.0))}
    server, task = lab.start(script, capacity=2, on_error="null", retry=None)
    task.admit_each("a", "b", "c")
    await task.end()
    assert server.calls[2].started == pytest.approx(5.0)


def asks_for_room(lab: Lab, engine: EnginePort) -> list[float]:
    """Return a list that gets the times at which *engine* has idle engines make room."""
    times: list[float] = []
    engine.gate.make_room = lambda: times.append(lab.now)
    return times


@pytest.mark.parametrize("how", ["raised", "returned", "of a node", "of open"])
async def test_a_server_without_a_free_connection_has_idle_engines_make_room_once(lab: Lab, how: str) -> None:
    """The refusals of two calls with three keys each are one."""
    full = UnavailableError("full", sent=how == "of open", busy=True, node="a node" if how == "of a node" else None)
    refusal = Step(failure=full) if how == "returned" else Step(error=full)

    def step(key: Any, times: int) -> Step:
        return refusal if lab.now == 0.0 and how != "of open" else Step()

    server = lab.server(step, opening=[refusal, Step()] if how == "of open" else ())
    engine = lab.engine(server, batch_size=3)
    room = asks_for_room(lab, engine)
    task = lab.task(engine, details=True)
    task.admit(*"abcdef")
    await task.end()
    assert [(row.value, row.attempts) for row in task.left] == [(f"v{key}", 1) for key in "abcdef"]
    assert room == [0.0]


async def test_a_server_that_still_has_no_free_connection_has_idle_engines_make_room_again(lab: Lab) -> None:
    full = Step(error=UnavailableError("full", sent=False, busy=True))
    server, task = lab.start({"a": [full, full, full, Step()]})
    room = asks_for_room(lab, task.run.engine)
    task.admit("a")
    await task.end()
    assert task.values == ["va"]
    assert room == [seen.started for seen in server.calls[:-1]]


@pytest.mark.parametrize(
    "error",
    [TransientError("later"), UnavailableError("away", sent=False), UnavailableError("429", busy=True)],
    ids=["transient", "away", "too many calls"],
)
async def test_what_is_no_lack_of_connections_has_no_engine_make_room(lab: Lab, error: TransientError) -> None:
    _, task = lab.start({"a": [Step(error=error), Step()]})
    room = asks_for_room(lab, task.run.engine)
    task.admit("a")
    await task.end()
    assert (task.values, room) == (["va"], [])


@pytest.mark.parametrize("seconds", [0.5, 2.0])
async def test_a_source_with_a_rate_may_pause_as_well(lab: Lab, seconds: float) -> None:
    script = {"a": Step(error=throttled(seconds))}
    server, task = lab.start(script, capacity=1, rate=1000.0, on_error="null", retry=None)
    task.admit_each("a", "b")
    await task.end()
    assert server.calls[1].started == pytest.approx(seconds)


# the breaker


def test_a_few_failures_do_not_open_the_breaker() -> None:
    breaker = Breaker(random.Random(0))
    for _ in range(19):
        breaker.refused()
    assert not breaker.troubled()
    breaker.refused()
    assert breaker.troubled()


def test_a_source_that_answers_half_of_the_calls_is_not_held_back() -> None:
    breaker = Breaker(random.Random(0))
    for _ in range(500):
        breaker.refused()
        breaker.accepted()
    assert not breaker.troubled()
    assert [breaker.delay(1.0) for _ in range(100)] == [0.0] * 100


def test_a_dead_source_is_still_probed() -> None:
    breaker = Breaker(random.Random(0))
    for _ in range(1000):
        breaker.refused()
    let_through = sum(breaker.delay(1.0) == 0.0 for _ in range(1000))
    assert 60 <= let_through <= 140, "one in ten"


def test_three_good_calls_in_a_row_close_the_breaker() -> None:
    breaker = Breaker(random.Random(0))
    for _ in range(1000):
        breaker.refused()
    for good in (True, True, False, True, True):
        breaker.accepted() if good else breaker.refused()
    assert breaker.troubled()
    breaker.accepted()
    assert not breaker.troubled()


def test_the_breaker_forgets_what_is_half_a_minute_old() -> None:
    breaker = Breaker(random.Random(0))
    for second in range(10):
        breaker.tick(float(second))
        for _ in range(10):
            breaker.refused()
    breaker.tick(29.0)
    assert breaker.troubled()
    breaker.tick(41.0)
    assert not breaker.troubled()


@pytest.mark.parametrize("moment", [0.5, 1.5, 7.25])
def test_a_refusal_counts_for_half_a_minute_and_a_second_more_at_most(moment: float) -> None:
    breaker = Breaker(random.Random(0))
    noticed = []
    for second in range(60):
        if second - 1 < moment < second:
            for _ in range(20):
                breaker.refused()
        breaker.tick(float(second))
        if breaker.troubled():
            noticed.append(second)
    assert noticed == [second for second in range(60) if 0 < second - moment < 30.0]


def test_the_breaker_forgets_in_time_also_after_good_calls() -> None:
    breaker = Breaker(random.Random(0))
    for _ in range(1000):
        breaker.refused()
    breaker.tick(5.0)
    for _ in range(3):
        breaker.accepted()
    for second in range(6, 40):
        breaker.tick(float(second))
        if second == 6:
            for _ in range(20):
                breaker.refused()
        assert breaker.troubled() == (second < 37)


def test_answers_older_than_half_a_minute_are_no_answers_any_more() -> None:
    breaker = Breaker(random.Random(0))
    for second in range(50):
        breaker.tick(float(second))
        for _ in range(10 if second < 5 else 0):
            breaker.accepted()
    for _ in range(4):
        breaker.accepted()
        for _ in range(4):
            breaker.refused()
    assert breaker.troubled(), "4 of 20 calls were answered"


def test_good_calls_before_the_first_failure_are_three_as_after_it() -> None:
    breaker = Breaker(random.Random(0))
    for _ in range(3):
        breaker.accepted()
    for _ in range(19):
        breaker.refused()
    assert not breaker.troubled(), "of the failures alone there are fewer than 20"


class _Drawn(random.Random):
    """Draws the same number each time."""

    def __init__(self, drawn: float) -> None:
        super().__init__(0)
        self.drawn = drawn

    def random(self) -> float:
        return self.drawn


@pytest.mark.parametrize(("accepts", "probability"), [(10, 0.0), (9, 2 / 21), (5, 10 / 21), (1, 18 / 21), (0, 0.9)])
def test_a_call_is_held_back_with_the_probability_of_the_book(accepts: int, probability: float) -> None:
    """(requests - 2 x accepts) / (requests + 1), and 0.9 at most."""
    for drawn, held in ((probability - 0.001, True), (probability + 0.001, False)):
        breaker = Breaker(_Drawn(drawn))
        for n in range(20):
            breaker.accepted() if n % 2 and n < 2 * accepts else breaker.refused()
        assert breaker.troubled() == (accepts < 10), "20 requests in all"
        assert (breaker.delay(0.5) > 0.0) == (held and accepts < 10)


def test_a_retry_that_waits_gets_five_tokens_a_second() -> None:
    budget = RetryBudget()
    assert budget.spend(RetryBudget.SIZE, RunStats())
    budget.trickle(2.0)
    assert budget.tokens == 2 * RetryBudget.RETRY


async def test_while_the_source_fails_rows_wait_instead_of_failing(lab: Lab) -> None:
    """F11: ten seconds of failures cost the keys that probed, and five seconds after them all is as before."""

    def script(key: int, times: int) -> Step:
        return DOWN if asyncio.get_running_loop().time() < 10.0 else Step(after=0.01)

    server, task = lab.start(script, capacity=8, on_error="null", max_fallback_ratio=1.0)
    task.admit_each(*range(4000))
    await task.end()
    failed = [row for row in task.left if row.status != "ok"]
    assert len(failed) <= 80
    assert all(row.value == f"v{row.key}" for row in task.left if row.status == "ok")
    tries = [seen.started for seen in server.calls if seen.started < 10.0]
    assert len(tries) <= 20 + 8 + 3 * 20, "the floor, what was in flight, and two probes a second"
    assert lab.now <= 10.0 + 5.0 + 4000 * 0.01 / 8


@pytest.mark.parametrize(
    "step", [Step(after=0.01, error=PermanentError("no")), Step(after=0.01, missing=True), Step(after=0.01)]
)
async def test_a_source_that_answers_is_not_held_back_whatever_it_says(lab: Lab, step: Step) -> None:
    server, task = lab.start(otherwise=step, capacity=4, on_error="null", max_fallback_ratio=1.0)
    task.admit_each(*range(400))
    await task.end()
    assert lab.now == pytest.approx(1.0)
    assert len(server.calls) == 400


async def test_calls_that_are_late_count_as_failures(lab: Lab) -> None:
    server, task = lab.start(
        otherwise=Step(after=0.2), capacity=30, timeout=0.1, on_timeout="null", max_fallback_ratio=1.0
    )
    task.admit_each(*range(600))
    await lab.at(3.0)
    assert len(server.calls) < 120, "without the breaker it would be 450"
    task.close()


@pytest.mark.parametrize("step", [Step(after=0.01, failure=TransientError("busy")), DOWN], ids=["returned", "raised"])
async def test_calls_that_bring_transient_failures_alone_are_failed_calls(lab: Lab, step: Step) -> None:
    _, task = lab.start(otherwise=step, capacity=4, on_error="null", max_fallback_ratio=1.0, retry=None)
    task.admit_each(*range(19))
    await lab.at(1.0)
    assert not lab.engines[0].gate.breaker.troubled()
    task.admit(19)
    await lab.at(2.0)
    assert lab.engines[0].gate.breaker.troubled()


async def test_one_answer_among_transient_failures_is_the_answer_of_a_source_that_works(lab: Lab) -> None:
    bad = {key: Step(failure=TransientError("busy")) for key in range(1, 80, 2)}
    _, task = lab.start(bad, batch_size=2, capacity=1, on_error="null", max_fallback_ratio=1.0, retry=None)
    task.admit(*range(80))
    await task.end()
    assert not lab.engines[0].gate.breaker.troubled()
    assert task.statuses == ["ok", "error"] * 40


@pytest.mark.parametrize(
    "options", [{"attempt_timeout": 0.1, "retry": None}, {"timeout": 0.1, "on_timeout": "null"}], ids=["call", "lookup"]
)
async def test_each_late_call_is_one_failed_call_and_its_end_is_none(lab: Lab, options: dict[str, Any]) -> None:
    step = Step(after=0.5, error=TransientError("busy"))
    _, task = lab.start(otherwise=step, capacity=30, on_error="null", max_fallback_ratio=1.0, **options)
    task.admit_each(*range(19))
    await lab.at(2.0)
    assert not lab.engines[0].gate.breaker.troubled()
    task.admit(19)
    await lab.at(2.2)
    assert lab.engines[0].gate.breaker.troubled()


STALLED = (
    r"^scripted: the source has failed for 5 s and calls were held back all that time\. Mend the source, or raise "
    r"stall_timeout\.$"
)


async def test_a_source_that_stays_down_fails_the_task_after_the_stall_timeout(lab: Lab) -> None:
    _, task = lab.start(otherwise=DOWN, on_error="null", max_fallback_ratio=1.0, stall_timeout=5.0, retry=None)
    task.admit_each(*range(1000))
    with pytest.raises(SourceStalledError, match=STALLED):
        await task.end()
    assert 5.0 <= lab.now <= 6.0


async def test_a_source_that_fails_later_has_failed_since_then(lab: Lab) -> None:
    _, task = lab.start(otherwise=DOWN, on_error="null", max_fallback_ratio=1.0, stall_timeout=5.0, retry=None)
    await lab.at(100.0)
    task.admit_each(*range(1000))
    with pytest.raises(SourceStalledError, match=STALLED):
        await task.end()
    assert 105.0 <= lab.now <= 107.0


async def test_the_next_task_has_the_whole_stall_timeout_for_itself(lab: Lab) -> None:
    """Spark tries a failed task again at once; if that failed at once, its attempts would be gone in no time."""
    server, first = lab.start(otherwise=DOWN, on_error="null", max_fallback_ratio=1.0, stall_timeout=5.0, retry=None)
    first.admit_each(*range(1000))
    with pytest.raises(SourceStalledError):
        await first.end()
    failed_at = lab.now
    second = lab.task(lab.engines[0], on_error="null", max_fallback_ratio=1.0, stall_timeout=5.0)
    second.admit_each(*range(1000))
    await lab.at(failed_at + 3.0)
    server.otherwise = Step(after=0.01)
    await second.end()
    assert second.statuses.count("ok") > 900


async def test_an_old_outage_does_not_fail_a_task_that_comes_much_later(lab: Lab) -> None:
    server, task = lab.start(otherwise=DOWN, on_error="null", max_fallback_ratio=1.0, stall_timeout=60.0, retry=None)
    task.admit_each(*range(40))
    await task.end()
    await lab.at(200.0)
    server.otherwise = Step(after=0.5)
    later = lab.task(lab.engines[0])
    later.admit_each(*range(40))
    await later.end()
    assert later.statuses == ["ok"] * 40


async def test_an_old_outage_does_not_fail_a_task_that_goes_on_much_later(lab: Lab) -> None:
    server, task = lab.start(otherwise=DOWN, on_error="null", max_fallback_ratio=1.0, stall_timeout=60.0, retry=None)
    task.admit_each(*range(40))
    await task.until(lambda: len(task.left) == 40)
    await lab.at(200.0)
    server.otherwise = Step(after=0.5)
    task.admit_each(*range(100, 140))
    await task.end()
    assert task.statuses[40:] == ["ok"] * 40


# the bound on bytes


class Telling(ScriptedConnector):
    """A source whose calls take 100 tokens, and that says each time how many it allows, of 10,000."""

    reports = True

    def __init__(self, remaining: float, spends: bool = True) -> None:
        super().__init__(otherwise=Step(after=0.01))
        self._remaining = remaining
        self._spends = spends

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        answers = await super().fetch_many(keys, call)
        if self._spends:
            call.spent(tokens=100.0)
        call.allows(50, 0.6, 60)
        call.allows(self._remaining, 0.6, 10_000, unit="tokens")
        return answers


@pytest.mark.parametrize(("remaining", "seconds"), [(300.0, 0.2), (3_000.0, 0.0), (60.0, 0.6)])
async def test_tokens_that_a_source_still_allows_spread_the_calls(lab: Lab, remaining: float, seconds: float) -> None:
    """300 tokens for 0.6 s are three calls; 3,000 of 10,000 are no reason to wait; with 60 none is left."""
    server = Telling(remaining)
    task = lab.task(lab.engine(server, capacity=1))
    task.admit_each(*range(10))
    await task.end()
    # The first call tells what a call takes, and the second what is left.
    starts = [seen.started for seen in server.calls][2:]
    assert min(later - earlier for earlier, later in pairwise(starts)) >= seconds - 1e-6, starts
    assert starts[-1] - starts[0] <= 7 * (seconds + 0.02)


async def test_tokens_do_not_count_where_nobody_knows_what_a_call_takes(lab: Lab) -> None:
    server = Telling(60.0, spends=False)
    task = lab.task(lab.engine(server, capacity=1))
    task.admit_each(*range(10))
    await task.end()
    assert max(seen.started for seen in server.calls) < 0.2


async def test_above_the_bound_on_bytes_only_the_head_is_looked_up(lab: Lab) -> None:
    """The Spark thread takes nothing, so settled values pile up; what must leave first is still looked up."""
    server, task = lab.start(
        {0: Step(after=5.0)}, otherwise=Step(after=0.1, value="x" * 1000), capacity=2, window_bytes=4096
    )
    task.takes = False
    task.admit(0, 1, 2)
    for start in range(10, 100, 10):
        task.admit(*range(start, start + 10))
    await lab.at(4.0)
    assert len(server.calls) <= 3 + 6, "three of the head, and values of 4 KiB with those in flight"
    task.takes = True
    await task.end()
    assert len(task.left) == 93
    assert len(server.calls) == 93


@pytest.mark.parametrize("ordered", [True, False])
async def test_nobody_starves_above_the_bound_on_bytes(lab: Lab, ordered: bool) -> None:
    server, task = lab.start(
        otherwise=Step(after=0.1, value="x" * 3000), capacity=3, window_bytes=1024, ordered=ordered
    )
    for start in range(0, 60, 6):
        task.admit(*range(start, start + 6))
    await task.end()
    assert sorted(task.keys) == list(range(60))
    assert len(server.calls) == 60


async def test_a_source_is_not_throttled_because_its_values_are_large(lab: Lab) -> None:
    _, task = lab.start(otherwise=Step(after=0.01, value="x" * 3000), capacity=4, window_bytes=1024)
    for start in range(0, 400, 4):
        task.admit(*range(start, start + 4))
    await task.end()
    assert lab.now <= 400 * 0.01 + 0.1


async def test_calls_of_large_answers_have_fewer_keys(lab: Lab) -> None:
    """The answers of the four calls in flight fit into half of `window_bytes`: seven of about 1,000 bytes each."""
    server, task = lab.start(
        otherwise=Step(after=0.1, value="x" * 1000), capacity=4, batch_size=50, window_bytes=8 * 7 * 1060
    )
    for start in range(0, 1000, 5):
        task.admit(*range(start, start + 5))
    await task.end()
    sizes = [len(seen.keys) for seen in server.calls]
    assert max(sizes[:4]) == 50, "of the first answers nothing is known"
    assert {*sizes[4:-4]} == {7}
    assert server.peak == 4, "smaller calls have all the slots"
    assert task.keys == [*range(1000)]
    assert task.values == ["x" * 1000] * 1000


async def test_the_first_calls_to_a_source_of_large_batches_are_small(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(after=0.1), capacity=2, batch_size=1000)
    for start in range(0, 5000, 500):
        task.admit(*range(start, start + 500))
    await task.end()
    assert [len(seen.keys) for seen in server.calls] == [10, 10, 1000, 1000, 1000, 1000, 980]


async def test_one_large_answer_does_not_make_calls_small_for_ever(lab: Lab) -> None:
    server, task = lab.start(
        {0: Step(value="x" * 100_000)}, otherwise=Step(after=0.1), capacity=1, batch_size=10, window_bytes=40_000
    )
    for start in range(0, 600, 10):
        task.admit(*range(start, start + 10))
    await task.end()
    sizes = [len(seen.keys) for seen in server.calls]
    assert sizes[1] == 1
    assert sizes[-2] == 10


def test_a_call_has_a_key_however_large_the_answers_are() -> None:
    answers = BytesEach()
    assert answers.saw(10**9, 1)
    assert answers.most(1000, 2**20) == 1


def test_a_call_without_a_value_says_that_answers_are_small() -> None:
    answers = BytesEach()
    assert answers.saw(0, 100)
    assert answers.most(1000, 2**20) == 1000
