"""Limits of the whole job: leases from a store, shares by demand, joins, kills, and a store that is away."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.errors import FatalError, SourceStalledError, UnavailableError
from enrichkit.leases import MANY, Ask, grant
from enrichkit.limits import Limit, Rate

from .job import Job, Memory, Metered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .bench import Lab

HUNDRED = Rate(100, per="job", store="memory")


@pytest.mark.slow
async def test_four_workers_share_a_rate(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    for _ in range(4):
        job.join()
    await lab.at(62.0)
    assert 95 * 60 <= job.calls(2.0, 62.0) <= 100 * 60
    assert job.most() <= 105
    assert [23, 26] <= sorted(len(server.calls) / 62 for server in job.servers)[::3] <= [26, 26]


async def test_a_single_worker_gets_the_whole_rate_at_once(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    job.join()
    await lab.at(2.0)
    assert 95 <= job.calls(0.0, 1.0) <= 100


@pytest.mark.slow
async def test_workers_may_join_and_be_killed(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    for _ in range(4):
        job.join()
    for moment in range(3, 60, 3):
        await lab.at(moment)
        if moment % 2:
            await job.kill()
        else:
            job.join()
    await lab.at(62.0)
    assert 95 * 60 <= job.calls(2.0, 62.0) <= 100 * 60
    assert job.most() <= 105


async def test_the_share_of_a_killed_worker_returns_within_two_leases(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    job.join()
    job.join()
    await lab.at(10.0)
    await job.kill()
    await lab.at(20.0)
    assert 95 <= job.calls(11.0, 12.0)


async def test_a_worker_that_needs_nothing_gets_nothing(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    job.join(rows=30)
    job.join()
    await lab.at(10.0)
    assert len(job.servers[0].calls) == 30
    assert 95 <= job.calls(5.0, 10.0) / 5 <= 100
    asked = {ask.worker for at, ask in job.store.asked if at > 4.0}
    assert len(asked) == 1


async def test_a_worker_that_needs_little_leaves_the_rest_to_the_others(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED, capacity=1)
    for _ in range(2):
        job.join(after=0.1)  # at most ten calls a second
    job._capacity = 20
    job.join()
    await lab.at(20.0)
    slow = [sum(10.0 <= seen.started < 20.0 for seen in server.calls) for server in job.servers]
    assert min(slow[:2]) >= 85
    assert slow[2] >= 650
    assert job.most() <= 105


@pytest.mark.parametrize("workers", [1, 4, 40])
async def test_the_store_is_asked_a_few_times_a_second_and_worker(lab: Lab, workers: int) -> None:
    job = Job(lab, rate=HUNDRED)
    for _ in range(workers):
        job.join(rows=500)
    await lab.at(5.0)
    asked = sum(1.0 <= at < 5.0 for at, _ in job.store.asked)
    assert asked <= 5 * 4 * workers
    assert job.most() <= 105


@pytest.mark.slow
async def test_more_workers_than_calls_share_a_rate(lab: Lab) -> None:
    job = Job(lab, rate=Rate(10, per="job", store="memory"))
    for _ in range(40):
        job.join(rows=100)
    await lab.at(32.0)
    assert 9.5 * 30 <= job.calls(2.0, 32.0) <= 10 * 30
    assert job.most() <= 11


@pytest.mark.slow
async def test_a_rate_of_an_hour_is_not_multiplied_by_workers_that_come_and_go(lab: Lab) -> None:
    job = Job(lab, rate=Rate(60, unit="hour", per="job", store="memory"))
    for minute in range(20):
        await lab.at(60.0 * minute)
        for _ in range(3):
            job.join(rows=100)
        if minute:
            for _ in range(3):
                await job.kill()
    await lab.at(1200.0)
    assert 17 <= job.calls(0.0, 1200.0) <= 20


# the store is away


async def test_workers_go_on_with_their_shares_while_the_store_is_away(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "enrichkit")
    job = Job(lab, rate=HUNDRED)
    for _ in range(4):
        job.join()
    await lab.at(10.0)
    job.store.go_away()
    await lab.at(15.0)
    job.store.come_back()
    await lab.at(30.0)
    assert 90 <= job.calls(10.0, 15.0) / 5 <= 100
    assert job.most() <= 105
    assert 95 * 28 <= job.calls(2.0, 30.0) <= 100 * 28
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == (
        "scripted: the store memory of its limit is away. It got: The store is away. Calls go on with the last share "
        "of this process, 25 calls/s, and not above it."
    )
    assert len(lines) == 8
    assert lines[-1].startswith("scripted: the store memory of its limit is back after ")


@pytest.mark.parametrize("lost", [False, True], ids=["kept", "lost"])
async def test_nothing_is_exceeded_when_the_store_comes_back_to_each_worker_at_another_time(
    lab: Lab, lost: bool
) -> None:
    """The first to return must not get the shares of those that still go on without the store."""
    stores = [Memory() for _ in range(4)]
    jobs = [Job(lab, rate=HUNDRED, store=store) for store in stores]
    for store in stores[1:]:
        store.state = stores[0].state
    names = {f"rate:{store.config.number}": f"rate:{stores[0].config.number}" for store in stores}
    for job in jobs:
        job.join()
        for share in job.engines[0].job:
            share.lessee._name = names[share.lessee._name]
    await lab.at(10.0)
    for store in stores:
        store.go_away()
    await lab.at(15.0)
    if lost:
        stores[0].state.clear()
    for number, store in enumerate(stores):
        store.come_back()
        await lab.at(15.0 + 0.3 * (number + 1))
    await lab.at(25.0)
    together = Job(lab)
    together.servers = [job.servers[0] for job in jobs]
    assert together.most() <= 105
    assert 95 <= together.calls(18.0, 25.0) / 7 <= 100


async def test_a_worker_that_joins_while_the_store_is_away_waits_for_it(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    job.join()
    await lab.at(5.0)
    job.store.go_away()
    job.join()
    await lab.at(9.0)
    assert job.servers[1].calls == []
    job.store.come_back()
    await lab.at(15.0)
    assert 40 <= sum(13.0 <= seen.started < 14.0 for seen in job.servers[1].calls) <= 60
    assert job.most() <= 105


async def test_a_store_that_hangs_holds_calls_up_for_half_a_second(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    for _ in range(4):
        job.join()
    await lab.at(10.0)
    job.store.latency = 1000.0
    await lab.at(15.0)
    job.store.latency = 0.001
    await lab.at(20.0)
    assert 80 <= job.calls(10.0, 15.0) / 5 <= 100
    assert job.most() <= 105


async def test_a_store_that_loses_its_data_gives_nothing_twice(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    for _ in range(4):
        job.join()
    await lab.at(10.0)
    job.store.state.clear()
    await lab.at(20.0)
    assert job.most() <= 112  # the calls that were granted in advance
    assert job.most(begin=11.0) <= 105


async def test_a_store_that_can_hold_no_limits_fails_the_task(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    job.store.error = FatalError("Redis refused the username or the password.")
    task = job.join()
    with pytest.raises(FatalError) as caught:
        await task.end()
    assert str(caught.value) == (
        "scripted: the store memory cannot hold the limit of the job: Redis refused the username or the password."
    )
    job.store.error = None  # the next attempt of the task asks anew
    other = lab.task(job.engines[0], timeout=100.0)
    other.admit_each(1, 2)
    await other.end()


async def test_a_store_that_refuses_later_is_one_that_is_away(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    job.join()
    await lab.at(2.0)
    job.store.error = FatalError("Redis refused the username or the password.")
    await lab.at(6.0)
    assert 95 <= job.calls(4.0, 5.0) <= 100


async def test_a_store_that_never_answers_fails_the_task_after_stall_timeout(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    job.store.error = UnavailableError("Redis cannot be reached.")
    task = job.join(stall_timeout=20.0)
    with pytest.raises(SourceStalledError) as caught:
        await task.end()
    assert str(caught.value) == (
        "scripted: the store memory of the limit of the job has been away for 20 s, and this process has no share to "
        "go on with. It got: Redis cannot be reached. Mend the store, or raise stall_timeout (20 s)."
    )


async def test_a_plugin_that_breaks_does_not_hang_the_task(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED)
    job.store.error = KeyError("oops")
    task = job.join()
    with pytest.raises(
        FatalError, match="scripted: the store memory cannot hold the limit of the job: Its plugin raised"
    ):
        await task.end()


async def test_a_process_has_one_connection_to_a_store_and_closes_it_with_its_last_engine(lab: Lab) -> None:
    job = Job(lab, rate=HUNDRED, limit=Limit(50, store="memory"))
    job.join(rows=10)
    job.join(rows=10)
    await lab.at(0.6)
    assert (job.store.opened, job.store.closed) == (1, 0)
    for engine in job.engines:
        await engine.close()
    assert (job.store.opened, job.store.closed) == (1, 1)
    assert [state["workers"] for state in job.store.state.values()] == [{}, {}]


# calls in flight of the job


async def test_workers_share_the_calls_in_flight(lab: Lab) -> None:
    job = Job(lab, limit=Limit(10, store="memory"))
    for _ in range(4):
        job.join(after=0.1)
    await lab.at(20.0)
    assert most_in_flight(job) <= 10
    assert job.calls(10.0, 20.0) >= 950


async def test_permits_move_to_those_that_need_them(lab: Lab) -> None:
    job = Job(lab, limit=Limit(10, store="memory"))
    job.join(after=0.1)
    await lab.at(5.0)
    job.join(after=0.1)
    await lab.at(10.0)
    assert 40 <= sum(9.0 <= seen.started < 10.0 for seen in job.servers[1].calls) <= 60
    await job.kill()
    await lab.at(20.0)
    assert 95 <= job.calls(12.0, 13.0) <= 100
    assert most_in_flight(job) <= 10


async def test_permits_are_kept_while_the_store_is_away(lab: Lab) -> None:
    job = Job(lab, limit=Limit(10, store="memory"))
    for _ in range(2):
        job.join(after=0.1)
    await lab.at(5.0)
    job.store.go_away()
    await lab.at(10.0)
    job.store.come_back()
    await lab.at(15.0)
    assert job.calls(5.0, 10.0) >= 450
    assert most_in_flight(job) <= 10


def most_in_flight(job: Job) -> int:
    """Return the most calls in flight at a time of all engines."""
    ends = [(seen.ended, -1) for server in job.servers for seen in server.calls if seen.ended is not None]
    in_flight = most = 0
    for _, step in sorted([*((start, 1) for start in job.starts), *ends]):
        in_flight += step
        most = max(most, in_flight)
    return most


# what calls cost


@pytest.mark.parametrize("per", ["process", "job"])
@pytest.mark.parametrize(("estimate", "real"), [(400.0, 400.0), (1000.0, 250.0), (100.0, 800.0)])
async def test_calls_cost_what_their_answers_report(lab: Lab, per: str, estimate: float, real: float) -> None:
    store = "memory" if per == "job" else None
    rate = Rate(6000, tokens=600_000, unit="minute", per=per, store=store)
    job = Job(lab, rate=rate)
    server = Metered(estimate, real)
    job.join(server=server)
    await lab.at(64.0)
    spent = sum(tokens for at, tokens in server.spent if 4.0 <= at < 64.0)
    calls = sum(4.0 <= at < 64.0 for at, _ in server.spent)
    allowed = min(600_000.0, 6000 * real)
    assert calls <= 6000
    assert 0.94 * allowed <= spent <= 1.001 * allowed + 20 * real  # and what is in flight


class Lengths(Metered):
    """Every second key costs ten times the tokens of the others, and the estimate is right."""

    def cost(self, keys: Sequence[Any]) -> Mapping[str, float]:
        self.estimate = 400.0 if keys[0] % 2 else 40.0
        return super().cost(keys)

    async def fetch_many(self, keys: Sequence[Any], call: Any) -> Mapping[Any, Any]:
        self.real = 400.0 if keys[0] % 2 else 40.0
        return await super().fetch_many(keys, call)


@pytest.mark.slow
async def test_calls_of_ten_times_different_costs_use_the_quota(lab: Lab) -> None:
    """Two workers, limits in requests and tokens, of which the job uses up both about as fast."""
    most = 6000 * 220.0 * 0.95
    job = Job(lab, rate=Rate(6000, tokens=most, unit="minute", per="job", store="memory"))
    servers = [Lengths(0.0, 0.0) for _ in range(2)]
    for server in servers:
        job.join(4_000, server=server)
    await lab.at(64.0)
    spent = [tokens for server in servers for at, tokens in server.spent if 4.0 <= at < 64.0]
    requests, tokens = len(spent) / 6000, sum(spent) / most
    assert 0.95 <= max(requests, tokens)
    assert max(requests, tokens) <= 1.01


async def test_without_an_estimate_a_call_costs_one_request(lab: Lab) -> None:
    job = Job(lab, rate=Rate(600, unit="minute"))
    job.join()
    await lab.at(20.0)
    assert job.calls(10.0, 20.0) == 100
    assert all(seen.call.meter is None for seen in job.servers[0].calls)


# many workers


def crowd(workers: int, wanted: float, state: dict[str, Any], now: float) -> list[float]:
    """Let as many *workers* ask one after the other, within a tenth of a second; return their shares."""
    base = Ask(limit="l", worker="", total=1.0, wanted=wanted, cost={"requests": 1e-4}, recovery=0.0)
    shares = []
    for number in range(workers):
        ask = replace(base, worker=f"w{number}", held=state.get("workers", {}).get(f"w{number}", (0, 0.0))[1])
        shares.append(grant(state, ask, now + 0.1 * number / workers).share)
        entries = state["workers"].values()
        assert sum(entry[1] for entry in entries) <= 1.0 + 1e-9, "never more than there is"
    return shares


def test_many_workers_get_fair_shares_within_a_second() -> None:
    state: dict[str, Any] = {}
    for turn in range(8):
        shares = crowd(4 * MANY, 1.0, state, 100.0 + 0.25 * turn)
    assert [1.0 / (4 * MANY)] * 4 * MANY == pytest.approx(shares)


def test_the_shares_of_many_that_have_ended_go_to_the_others() -> None:
    state: dict[str, Any] = {}
    for turn in range(8):
        crowd(4 * MANY, 1.0, state, 100.0 + 0.25 * turn)
    for turn in range(8, 14):
        shares = crowd(2 * MANY, 1.0, state, 100.0 + 0.25 * turn)
    assert [1.0 / (2 * MANY)] * 2 * MANY == pytest.approx(shares)
    for turn in range(14, 20):
        shares = crowd(4, 1.0, state, 100.0 + 0.25 * turn)
    assert [0.25] * 4 == pytest.approx(shares)
    assert state["many"] is None


def test_many_workers_that_want_little_leave_the_rest() -> None:
    state: dict[str, Any] = {}
    for turn in range(8):
        now = 100.0 + 0.25 * turn
        crowd(2 * MANY, 0.001, state, now)
        held = state["workers"].get("big", (0, 0.0))[1]
        ask = Ask(limit="l", worker="big", total=1.0, wanted=1.0, held=held, cost={"requests": 1e-4}, recovery=0.0)
        share = grant(state, ask, now + 0.1).share
    assert share == pytest.approx(1.0 - 0.001 * 2 * MANY)
