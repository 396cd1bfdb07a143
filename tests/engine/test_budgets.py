"""The budget of a job: never exceeded, used up to the last call, and what becomes of the keys beyond it."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.engine.account import Account
from enrichkit.engine.leases import Lessee
from enrichkit.errors import FatalError, LookupFailedError, PermanentError, SourceStalledError, TransientError
from enrichkit.leases import ALIVE, Draw, Drawn, draw
from enrichkit.limits import Budget
from enrichkit.testing.scripted import ScriptedConnector, Step

from .job import Job, Memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .bench import Lab


class Paid(ScriptedConnector):
    """
    A model: a call takes at most *most* tokens, and really a part of it that its key decides.

    Attributes:
        paid: What its calls have taken in all, as the bill of the service says.
    """

    def __init__(self, most: float = 100.0, least: float = 0.1, **script: Any) -> None:
        super().__init__(**{"otherwise": Step(after=0.5), **script})
        self._most = most
        self._least = least
        self.paid = 0.0

    def most(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return {"tokens": self._most * len(keys), "cost": 0.001 * self._most * len(keys)}

    async def fetch_many(self, keys: Sequence[Any], call: Any) -> Mapping[Any, Any]:
        real = self._most * (self._least + (1.0 - self._least) * random.Random(f"{keys}").random())
        self.paid += real
        answers = await super().fetch_many(keys, call)
        call.spent(tokens=real, cost=0.001 * real)
        return answers


def budget(**units: float) -> Budget:
    return Budget(**units, store="memory")


OVER = {"on_error": "null"}


async def test_four_workers_use_a_budget_up_and_never_exceed_it(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=100_000), capacity=64)
    servers = [Paid() for _ in range(4)]
    for server in servers:
        job.join(rows=2_000, server=server, **OVER)
    for second in range(300):
        await lab.at(second)
        assert sum(server.paid for server in servers) <= 100_000
    assert 98_000 <= sum(server.paid for server in servers)
    rows = [row for task in job.tasks for row in task.left]
    assert len(rows) == 8_000
    calls = sum(len(server.calls) for server in servers)
    assert sum(row.status == "ok" for row in rows) == calls
    over = [row for row in rows if row.status != "ok"]
    assert {row.status for row in over} == {"over_budget"}
    assert {row.value for row in over} == {None}
    assert sum(task.run.stats.over_budget for task in job.tasks) == len(over)
    assert all(task.run.stats.calls == len(server.calls) for task, server in zip(job.tasks, servers, strict=True))


async def test_money_is_a_budget_too_and_the_tighter_one_counts(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=1_000_000, cost=5.0), capacity=8)
    server = Paid()
    task = job.join(rows=1_000, server=server, **OVER)
    await lab.at(100.0)
    assert 4.9 <= 0.001 * server.paid <= 5.0
    [text] = {row.error for row in task.left if row.error is not None and "5 cost" in row.error} or {""}
    assert text.startswith("OverBudgetError: the budget of the job is spent, ")
    assert text.endswith(" of 5 cost; no call was made for the key")


async def test_a_budget_that_suffices_costs_no_time(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=1_000_000), capacity=64)
    task = job.join(rows=640, server=Paid())
    await lab.at(10.0)
    assert len(task.left) == 640
    assert max(row.at for row in task.left) <= 10 * 0.5 + 0.1
    assert len(job.store.drawn) <= 5 * 10, "a few questions a second"


async def test_without_a_policy_the_task_fails_and_says_why(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=250))
    task = job.join(rows=10, server=Paid(least=1.0), show_keys=True)
    await lab.at(5.0)
    assert isinstance(task.error, LookupFailedError)
    assert str(task.error) == (
        "scripted: the lookup of key 2 was not made at all: OverBudgetError: the budget of the job is spent, 200 of "
        "250 tokens; no call was made for the key. The task fails because on_error is 'fail'; on_error='null' or "
        "on_error=default(value) keeps the row."
    )


async def test_keys_that_wait_for_the_others_do_not_time_out(lab: Lab) -> None:
    """Two calls fit at a time, and each takes little of what it may take: no key is refused, and none is late."""
    job = Job(lab, budget=budget(tokens=2_000), capacity=20)
    server = Paid(most=900.0, least=0.0, otherwise=Step(after=0.5))
    server.fetch_many = _cheap(server)  # type: ignore[method-assign]
    task = job.join(rows=40, server=server, **OVER | {"timeout": 2.0})
    await lab.at(60.0)
    assert {row.status for row in task.left} == {"ok"}
    assert max(row.at for row in task.left) > 5.0, "far beyond the timeout of a key"


def _cheap(server: Paid) -> Any:
    async def fetch_many(keys: Sequence[Any], call: Any) -> Mapping[Any, Any]:
        answers = await ScriptedConnector.fetch_many(server, keys, call)
        call.spent(tokens=10.0, cost=0.01)
        return answers

    return fetch_many


async def test_a_call_whose_answer_was_lost_counts_with_the_most(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=1_000), capacity=1)
    server = Paid(script={0: [Step(error=TransientError("lost")), Step(after=0.1)]}, otherwise=Step(after=0.1))
    task = job.join(rows=100, server=server, **OVER)
    await lab.at(60.0)
    state = job.store.state[f"budget:{job.store.config.number}"]
    assert 900 <= state["taken"]["tokens"] <= 1_000
    assert server.paid <= state["taken"]["tokens"]
    assert task.left[0].status == "ok"


async def test_a_killed_worker_keeps_what_it_had_reserved_and_the_others_go_on_without_it(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=20_000), capacity=16)
    servers = [Paid() for _ in range(3)]
    for server in servers:
        job.join(rows=1_000, server=server, **OVER)
    await lab.at(1.2)
    await job.kill()
    await lab.at(1.2 + ALIVE + 60.0)
    assert all(len(task.left) == 1_000 for task in job.tasks)
    paid = sum(server.paid for server in servers)
    assert paid <= 20_000
    assert paid >= 20_000 - 2 * 16 * 100 - 100, "what the killed one had reserved is lost, and no more"


async def test_answers_of_the_store_that_are_lost_change_nothing(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=10_000), capacity=16)
    server = Paid()
    task = job.join(rows=1_000, server=server, **OVER)
    for second in range(1, 20):
        await lab.at(second)
        job.store.deaf = 1
    await lab.at(60.0)
    assert len(task.left) == 1_000
    assert 9_800 <= server.paid <= 10_000


async def test_a_store_that_is_away_holds_calls_back_and_fails_no_row(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=100_000), capacity=4)
    server = Paid()
    task = job.join(rows=200, server=server)
    await lab.at(2.0)
    job.store.go_away()
    await lab.at(12.0)
    left = len(server.calls)
    job.store.come_back()
    await lab.at(60.0)
    assert left < 60
    assert {row.status for row in task.left} == {"ok"}
    assert len(task.left) == 200


async def test_a_store_that_never_answers_fails_the_task_with_its_reason(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=100_000))
    job.store.go_away()
    task = job.join(rows=10, server=Paid(), stall_timeout=5.0)
    await lab.at(20.0)
    assert isinstance(task.error, SourceStalledError)
    assert "the store memory of the limit of the job has been away for" in str(task.error)


async def test_a_store_that_can_keep_no_account_fails_the_task(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=100_000))
    job.store.error = FatalError("It is read-only.")
    task = job.join(rows=10, server=Paid())
    await lab.at(5.0)
    assert isinstance(task.error, FatalError)
    assert str(task.error) == "scripted: the store memory cannot hold the limit of the job: It is read-only."


async def test_a_connector_whose_bound_fails_fails_the_task(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=100_000))
    server = Paid()
    server.most = lambda keys: {"tokens": keys[0]["no such"]}  # type: ignore[method-assign]
    task = job.join(rows=10, server=server)
    await lab.at(5.0)
    assert "most() raised TypeError" in str(task.error)


async def test_parts_of_a_search_that_wait_for_a_grant_are_searched_as_without_a_budget(lab: Lab) -> None:
    poison = {key: Step(error=PermanentError("poison")) for key in (0, 17, 34, 51)}
    calls = []
    for limit in (budget(tokens=1_000_000), None):
        job = Job(lab, budget=limit, capacity=1, batch_size=64)
        server = Paid(script=poison)
        server.most = lambda keys: {"tokens": 10_000 / len(keys)}  # type: ignore[method-assign]  # more for each part
        task = job.join(rows=64, server=server, on_error="null")
        await task.end()
        assert [row.key for row in task.left if row.status != "ok"] == [*poison]
        calls.append(server.keys)
    assert calls[0] == calls[1]


async def test_a_late_first_call_may_still_answer_when_nothing_is_left_for_a_second(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=100), capacity=4)
    server = Paid(least=1.0, otherwise=Step(after=3.0))
    task = job.join(rows=1, server=server, attempt_timeout=1.0, **OVER)
    await lab.at(10.0)
    assert [row.status for row in task.left] == ["ok"]


async def test_a_call_that_needs_a_grant_just_as_the_questions_end_is_granted_one() -> None:
    """The task of the questions has ended, and the event loop has not called its callback yet."""

    class Gated(Memory):
        async def draw(self, ask: Draw) -> Drawn:
            self.drawn.append((0.0, ask))
            await gate
            return draw(self.state, ask, 1e9)

    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    store: Any = SimpleNamespace(store=Gated())
    store.release = store.store.close
    lessee = Lessee("source", "memory", "b", lambda: store, lambda: None)
    account = Account(budget(tokens=1_000.0), lambda: 1, lessee)
    lessee.wake(account)
    await asyncio.sleep(0)  # the first question is on its way
    gate.set_result(None)
    await asyncio.sleep(0)  # the answer comes; no call needs a grant, so the task ends in this turn of the loop
    assert not account.take({"tokens": 10.0}, asyncio.get_running_loop().time())
    await asyncio.sleep(0.1)
    assert len(store.store.drawn) == 2
    assert account.take({"tokens": 10.0}, asyncio.get_running_loop().time())
    await lessee.close(account)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_order_of_questions_takes_more_than_there_is(data: st.DataObject) -> None:
    """Workers that ask, lose answers, end and die, in any order: what all calls may take stays within the budget."""
    total = {"tokens": 1_000.0}
    state: dict[str, Any] = {}
    spent = dict.fromkeys("abc", 0.0)
    calls: dict[str, list[float]] = {name: [] for name in "abc"}
    now = 0.0
    for _ in range(data.draw(st.integers(1, 40))):
        now += data.draw(st.sampled_from([0.0, 0.2, 31.0]))
        name = data.draw(st.sampled_from("abc"))
        for most in [each for each in calls[name] if data.draw(st.booleans())]:
            calls[name].remove(most)
            spent[name] += most * data.draw(st.floats(0.0, 1.0))
        wanted = data.draw(st.lists(st.floats(1.0, 400.0), max_size=4))
        ask = Draw(
            budget="b",
            worker=name,
            total=total,
            spent={"tokens": spent[name]},
            held={"tokens": sum(calls[name])},
            calls=[{"tokens": most} for most in wanted],
        )
        drawn = draw(state, ask, now)
        if data.draw(st.booleans()):  # else the answer is lost, and its calls do not leave
            calls[name] += wanted[: drawn.calls]
        assert sum(spent.values()) + sum(map(sum, calls.values())) <= 1_000.0 + 1e-6
        assert drawn.left["tokens"] == pytest.approx(max(0.0, 1_000.0 - state["taken"]["tokens"]))


async def test_nothing_is_left_of_a_task_that_ends_early(lab: Lab) -> None:
    job = Job(lab, budget=budget(tokens=100_000), capacity=8)
    task = job.join(rows=100, server=Paid())
    await lab.at(0.7)
    task.close()
    await asyncio.sleep(2.0)
    state = job.store.state[f"budget:{job.store.config.number}"]
    assert state["held"]["tokens"] == pytest.approx(0.0)
