"""
The most that a job may spend in all, and what its worker processes say to the store that keeps the account.

A worker reserves the most that a call may take before the call leaves, and tells what it has really taken afterwards.
So what is spent and reserved together never exceeds the budget, and what was reserved and not needed goes to others.
`draw` is the arithmetic; `docs/decisions/0056-budget-of-a-job.md` says why it is so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import ConfigError
from .limits import check_amount, check_store

if TYPE_CHECKING:
    from .interface import ConnectorConfig

__all__ = ["ALIVE", "Budget", "Draw", "Drawn", "draw"]

MOST = {"tokens": 1e15, "cost": 1e9}
ALIVE = 30.0
"""Seconds after the last question of all workers with calls in flight, from which these calls count as lost."""


@dataclass(frozen=True, slots=True)
class Budget:
    """
    The most that the calls of a job may take in all. When it is spent, no call is made.

    Rows whose key is not asked for then have the status `over_budget`, and get what `on_error` says. A call leaves when
    the most that it may take still fits beside what the others have taken and may take; else it waits for them. Calls
    whose answer was lost count with the most that they may have taken.

    Attributes:
        tokens: Tokens, those that a model reads and those that it writes; 0.001 to 1e15. None: they are not limited.
        cost: Money, in the currency of the prices in the config of the source; 0.001 to 1e9. None: it is not limited.
        per: `"job"`; all worker processes share the budget, by `store`.
        store: Where the account is kept: the name or the config of a source that can, such as `redis` (Valkey too) or
            `postgres`.
        name: Name of the account in the store. Jobs with the same name share the budget, and a job that is started
            again goes on with what is left. None: the driver program has one account for each source.

    >>> Budget(tokens=2_000_000, store="redis", name="reviews-2026-11").tokens
    2000000
    """

    _: KW_ONLY
    tokens: float | None = None
    cost: float | None = None
    per: str = "job"
    store: str | ConnectorConfig | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for unit, most in MOST.items():
            check_amount(f"Budget.{unit}", getattr(self, unit), most)
        if not self.units:
            raise ConfigError(
                "Budget has neither tokens nor cost; it must have one of them, for example Budget(tokens=2_000_000, "
                "store='redis')."
            )
        if self.per != "job":
            raise ConfigError(
                f"Budget.per is {self.per!r}; it must be 'job', since nobody knows how many worker processes there "
                "will be. Leave per out."
            )
        check_store("Budget", self.per, self.store, self.name, "Budget(tokens=2_000_000, store='redis')")

    @property
    def units(self) -> dict[str, float]:
        """What is limited, by unit."""
        given = {"tokens": self.tokens, "cost": self.cost}
        return {unit: float(amount) for unit, amount in given.items() if amount is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """
    What a worker process tells the store of a budget, and what it asks for. It may be told twice.

    Attributes:
        budget: Name of the account.
        worker: Id of the one that asks.
        total: The budget, by unit.
        spent: What the worker has taken in all, by unit; it never falls.
        held: What is reserved for its calls in flight, by unit.
        calls: What the next calls may take at most, each by unit, in the order in which they will leave.
    """

    budget: str
    worker: str
    total: Mapping[str, float]
    spent: Mapping[str, float]
    held: Mapping[str, float]
    calls: Sequence[Mapping[str, float]] = field(default=())

    @property
    def wanted(self) -> float:
        """The number of calls for which something is to be reserved."""
        return float(len(self.calls))


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """
    The answer of the store to a `Draw`.

    Attributes:
        calls: For how many of the calls what they may take is reserved, from the first one on.
        waits: Whether other workers have something reserved which they may give back.
        left: By unit, what is neither spent nor reserved.
    """

    calls: int
    waits: bool
    left: Mapping[str, float]


def draw(state: dict[str, Any], ask: Draw, now: float) -> Drawn:
    """
    Return the answer to *ask*, and change *state* to what the store holds afterwards.

    The store keeps the sums of all workers, and what each worker has told last, so that a question costs the same
    whatever many workers there are. What a worker that was killed had reserved stays reserved: nobody knows whether its
    calls were paid for.

    Args:
        state: What the store holds of the budget; empty at first. It can be written as JSON.
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
