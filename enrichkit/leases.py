"""
The questions that the worker processes of a job ask the store of its limit or its budget, and the answers of the store.

Leases keep a job within its limit. A few times a second, each worker process asks the store for a share of the limit
for the next quarter of a second. If the process does not ask for its share again, other workers can get the share. The
function `grant` computes the shares; `docs/decisions/0051-limits-of-the-job.md` gives the reasons.

For a budget, a worker first reserves the most that a call can take, then sends the call, and afterwards reports what
the call has really taken. So the amounts spent and reserved together never exceed the budget, and the amount that a
call did not need goes to other workers. The function `draw` computes which calls may be sent;
`docs/decisions/0056-budget-of-a-job.md` gives the reasons.

A plugin whose store can hold limits returns a `LeaseStore` from `Connector.lease_store`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["ALIVE", "Ask", "Draw", "Drawn", "Grant", "LeaseStore", "draw", "grant"]

MANY = 64
"""
While a limit has at most this number of workers, `grant` computes the fair part, i.e. the most that one worker may get,
anew at each question.
"""
LEVEL_HOLDS = 0.25
"""Seconds for which a computed fair part is used when a limit has more than `MANY` workers."""
ALIVE = 30.0
"""
If no worker that has reserved amounts has asked the store for this number of seconds, these workers are taken for dead.
Then no worker waits any longer for amounts that they might give back.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """
    The question that a worker process sends to the store of a limit a few times a second. A share is a part of `total`.

    Attributes:
        limit: Name of the limit.
        worker: Id of the worker process that asks.
        total: What all workers have together: 1 for a rate, or a number of calls in flight.
        wanted: The share that the worker could use; 0: it needs none any more.
        held: The share that the worker has.
        least: The share that the worker cannot give back: its calls in flight.
        away: True if the store did not answer the worker's previous question, so that the worker has gone on with the
            share that it had.
        cost: For a rate: by unit, the seconds for which one call uses up the rate; 0.01 for a call at 100 calls per
            second. Empty if the limit is a number of calls in flight.
        settle: For a rate: by unit, how much more earlier calls have taken than the store had granted for them, in
            seconds as in `cost`; negative if they have taken less.
        period: Seconds for which the calls that the store grants have to last.
        lease: Seconds after which the share of a worker that has not asked again falls back to the other workers.
        ahead: The most seconds from now until the first granted call may be sent; if that is later, no call is granted.
        recovery: Seconds after an outage of the store during which no worker's share grows, because other workers may
            still use the shares that they had before the outage.
    """

    limit: str
    worker: str
    total: float
    wanted: float
    held: float = 0.0
    least: float = 0.0
    away: bool = False
    cost: Mapping[str, float] = field(default_factory=dict)
    settle: Mapping[str, float] = field(default_factory=dict)
    period: float = 0.25
    lease: float = 0.5
    ahead: float = 0.3
    recovery: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """
    The answer of a store to an `Ask`.

    Attributes:
        share: The share of the limit; a worker goes on with it while the store is away.
        calls: For a rate, the number of calls that are granted; it may have a fraction.
        start: Seconds from now until the first of these calls may be sent.
        wait: Seconds for which another question would bring no calls; 0: the worker may ask again at once.
    """

    share: float
    calls: float = 0.0
    start: float = 0.0
    wait: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """
    The report that a worker process sends to the store of a budget, together with its question for further calls. The
    store may get the same `Draw` twice. This does no harm, because the `Draw` holds totals and no changes.

    Attributes:
        budget: Name of the account.
        worker: Id of the worker process that asks.
        total: The whole budget of the job, by unit.
        spent: The total that the worker's calls have taken so far, by unit; this total never falls.
        held: The amounts that are reserved for the worker's calls in flight, by unit.
        calls: For each of the next calls, in the order in which they will be sent, the most that it can take, by unit.
    """

    budget: str
    worker: str
    total: Mapping[str, float]
    spent: Mapping[str, float]
    held: Mapping[str, float]
    calls: Sequence[Mapping[str, float]] = field(default=())

    @property
    def wanted(self) -> float:
        """The number of calls for which the worker asks the store to reserve amounts."""
        return float(len(self.calls))


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """
    The answer of the store to a `Draw`.

    Attributes:
        calls: How many of `Draw.calls` may be sent, counted from the first; the most that they can take is reserved for
            them.
        waits: Whether other workers have reserved amounts that they might give back, so that a later question may bring
            more calls.
        left: The amounts that are neither spent nor reserved, by unit.
    """

    calls: int
    waits: bool
    left: Mapping[str, float]


class LeaseStore(Protocol):
    """The connection of one worker process to a store that holds limits. The first question opens the connection."""

    async def lease(self, ask: Ask) -> Grant:
        """
        Answer *ask* by the rules of `grant`, in one atomic step, by the store's clock.

        Raises:
            TransientError: The store cannot be reached, or has no room for the data of the limit.
            FatalError: The store can hold no limits: it refuses the login, or a command that is needed to keep a limit.
        """

    async def draw(self, ask: Draw) -> Drawn:
        """
        Answer *ask* by the rules of the function `draw`, in one atomic step, by the store's clock. The exceptions are
        those of `lease`. What the store keeps about a budget, spent and reserved amounts, must survive its restart.
        """

    async def close(self) -> None:
        """Close the connection."""


def grant(state: dict[str, Any], ask: Ask, now: float) -> Grant:
    """
    Return the answer to *ask*, and change *state* to what the store holds afterwards.

    A share is at most the fair part, which follows from the demands of all workers. It is also at most what the shares
    of the other workers leave over. With more than `MANY` workers, a computed fair part is used for `LEVEL_HOLDS`
    seconds, and a worker that has ended keeps its share until the end of these seconds. Otherwise, the store would have
    to read the entries of all workers at each question, and thousands of workers ask a few times a second.

    Each unit of a rate has a time line, on which calls are granted one after the other, as in the generic cell rate
    algorithm (GCRA). The entry `until` of *state* holds, for each unit, the time up to which calls are granted.

    Args:
        state: What the store keeps about the limit; empty at first. It can be written as JSON.
        ask: The question.
        now: The time by the store's clock, in seconds.
    """
    workers: dict[str, list[float]] = state.setdefault("workers", {})
    many = state.get("many")
    ended = False
    if many is None or now >= many[0]:  # until many[0], the computed fair part is used, and no worker is removed
        many = None
        alive = {name: entry for name, entry in workers.items() if entry[2] > now}
        ended = bool(workers and not alive)
        workers = state["workers"] = alive
    own = workers.pop(ask.worker, None)
    # True if this worker, or all workers, could not reach the store, or if the store has lost its data. Then shares do
    # not grow for `ask.recovery` seconds.
    missed = ask.away or (ask.held > 0 and (own is None or own[2] <= now)) or ended
    if missed and now >= state.get("recovery", 0.0):
        state["recovery"] = now + ask.recovery
    recovering = now < state.get("recovery", 0.0)
    wanted = min(ask.wanted, ask.held) if recovering else ask.wanted
    if many is None:
        others = sum(entry[1] for entry in workers.values())
        level = _level(sorted([wanted, *(entry[0] for entry in workers.values())]), ask.total)
        many = [now + LEVEL_HOLDS, level, others]
    else:
        many[2] -= own[1] if own is not None else 0.0
        level, others = many[1:]
    share = max(0.0, min(wanted, level if ask.cost else math.ceil(level), ask.total - others))
    share = share if ask.cost else math.floor(share)
    if max(wanted, share, ask.least) > 0:
        workers[ask.worker] = [wanted, max(share, ask.least), now + ask.lease]
        many[2] += max(share, ask.least)
    state["many"] = many if len(workers) > MANY else None
    return _calls(state, ask, now, share, wanted > 0 and not recovering) if ask.cost else Grant(share=share)


def _level(wanted: list[float], total: float) -> float:
    """
    Return the cap of max-min fairness: *total* is enough if each worker gets what it wants, but at most the cap.

    *wanted* holds what the workers want, in ascending order.
    """
    level = before = 0.0
    for place, each in enumerate(wanted):
        level = max(level, (total - before) / (len(wanted) - place))
        before += each
    return level


def _calls(state: dict[str, Any], ask: Ask, now: float, share: float, whole: bool) -> Grant:
    """
    Grant as many calls as *share* allows. If that is less than one call and *whole* is True, grant one call.
    """
    until = state.setdefault("until", {})
    for unit in ask.cost:
        until[unit] = max(until.get(unit, 0.0) + ask.settle.get(unit, 0.0), now)
    start = max(until[unit] for unit in ask.cost) - now
    calls = share * ask.period / max(ask.cost.values())
    if calls < 1.0 and whole:
        calls = 1.0
    if calls == 0.0 or start > ask.ahead:
        return Grant(share=share, start=start, wait=max(start - ask.ahead, 0.0))
    for unit, seconds in ask.cost.items():
        until[unit] += calls * seconds
    return Grant(share=share, calls=calls, start=start)


def draw(state: dict[str, Any], ask: Draw, now: float) -> Drawn:
    """
    Return the answer to *ask*, and change *state* to what the store holds afterwards.

    The store keeps the sums of all workers, and what each worker has reported last, so that the cost of a question does
    not depend on the number of workers. The amounts that a killed worker had reserved stay reserved, because nobody
    knows whether its calls were paid for.

    Args:
        state: What the store keeps about the budget; empty at first. It can be written as JSON.
        ask: The question.
        now: The time by the store's clock, in seconds.
    """
    workers: dict[str, dict[str, list[float]]] = state.setdefault("workers", {})
    taken: dict[str, float] = state.setdefault("taken", {})
    held: dict[str, float] = state.setdefault("held", {})
    own = {unit: ask.held.get(unit, 0.0) for unit in ask.total}
    before = workers.get(ask.worker, {})
    for unit in ask.total:
        spent, reserved = before.get(unit, (0.0, 0.0))
        held[unit] = held.get(unit, 0.0) + own[unit] - reserved
        taken[unit] = taken.get(unit, 0.0) + ask.spent.get(unit, 0.0) + own[unit] - spent - reserved
    calls = 0
    for each in ask.calls:
        if any(taken[unit] + each.get(unit, 0.0) > total for unit, total in ask.total.items()):
            break
        calls += 1
        for unit in ask.total:
            for sums in (own, held, taken):
                sums[unit] += each.get(unit, 0.0)
    workers[ask.worker] = {unit: [ask.spent.get(unit, 0.0), own[unit]] for unit in ask.total}
    if any(amount > 0.0 for amount in own.values()):
        state["alive"] = now + ALIVE
    others = any(held[unit] - own[unit] > 1e-9 * total for unit, total in ask.total.items())
    return Drawn(
        calls=calls,
        waits=others and now < state.get("alive", 0.0),
        left={unit: max(0.0, total - taken[unit]) for unit, total in ask.total.items()},
    )
