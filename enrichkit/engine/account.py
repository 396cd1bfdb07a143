"""
This process's account of the job's budget: it reserves the most that a call can take, and counts what the call took.

A call is sent only when the most that it can take (tokens, cost ...) is reserved in the store, which all processes
share. The process reserves for a few calls ahead, so that calls do not wait for the store, and gives back reservations
that no call needs. When the budget has no room for a further call, calls wait as long as a process may still give a
reservation back. Once no process has a reservation that it can give back, the account treats the budget as spent, and
the waiting calls are not made.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..leases import Draw, Drawn
from .leases import AGAIN, HOLD, IDLE
from .records import Bundle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..interface import Connector
    from ..limits import Budget
    from .leases import Lessee
    from .records import Group, InFlight

__all__ = ["Account"]


class Account:
    """
    This process's share of the job's budget, with the interface of a `leases.Share`.

    Args:
        budget: The budget of all worker processes.
        free_slots: Function that returns how many more calls this process may have in flight.
        lessee: The client that asks the store for reservations.

    Attributes:
        lessee: The client that asks the store for reservations.
        away, held: As in `leases.Share`. `held` is always 0, because a budget must never be exceeded: while the store
            is away, only calls that have a reservation are sent.
        total: The budget: the most that the job may take, by unit.
        calls: What is reserved for each call in flight, by unit.
        waiting: Whether a call waits for an answer from the store.
        spent_up: Whether the budget is spent: the store granted none of the reservations in the last question, and no
            process, this one included, has a reservation that it could give back.
    """

    AHEAD = 1.5
    """For how many calls the process reserves ahead: this multiple of the calls sent since it last asked the store."""

    __slots__ = (
        "_average",
        "_first",
        "_free_slots",
        "_left",
        "_question",
        "_ready",
        "_sent",
        "_spent",
        "_told",
        "_wanted_at",
        "away",
        "calls",
        "held",
        "lessee",
        "spent_up",
        "total",
        "waiting",
    )

    def __init__(self, budget: Budget, free_slots: Callable[[], int], lessee: Lessee) -> None:
        self.total = budget.units
        self._free_slots = free_slots
        self.lessee = lessee
        self.held = 0.0
        self.away = False
        self.calls: dict[InFlight, Mapping[str, float]] = {}
        self.waiting = False
        self.spent_up = False
        self._ready = dict.fromkeys(self.total, 0.0)  # amounts reserved for calls that have not been sent
        self._spent = dict.fromkeys(self.total, 0.0)
        self._told = dict(self._spent)  # the part of `_spent` that the store knows of
        self._left = dict(self.total)
        self._first: Mapping[str, float] = {}  # the most that the waiting call may take
        self._average = dict.fromkeys(self.total, 0.0)
        self._sent = 0  # calls sent since the last question to the store
        self._question: Draw | None = None  # the last question to the store
        self._wanted_at = float("-inf")

    def most_of(self, connector: Connector[Any], group: Group) -> dict[str, float]:
        """Return the most that a call for *group* may use up, by unit; raises what `connector.most()` raises."""
        keys: tuple[Any, ...] = tuple(
            chain.from_iterable(held.keys if isinstance(held, Bundle) else (held.key,) for held in group)
        )
        found = connector.most(keys) or {}
        return {unit: float(found[unit]) for unit in self.total}

    def take(self, most: Mapping[str, float], now: float) -> bool:
        """Reserve *most* for a call; return False when the call has to wait, or can never be sent (see `over`)."""
        self._wanted_at = now
        self.lessee.wake(self)
        for unit, average in self._average.items():
            self._average[unit] = most[unit] if average == 0.0 else average + 0.1 * (most[unit] - average)
        if all(most[unit] <= ready for unit, ready in self._ready.items()):
            for unit in self._ready:
                self._ready[unit] -= most[unit]
            self._sent += 1
            return True
        self._first = most
        self.waiting = not self.over(most)
        return False

    def over(self, most: Mapping[str, float]) -> bool:
        """Whether a call that may take up to *most* can never be sent, because too little of the budget is left."""
        return self.spent_up and not self.calls and any(most[unit] > left for unit, left in self._left.items())

    def delay(self, now: float) -> float:
        """Return 0 when a call may try to `take` its reservation, else the seconds until the next check."""
        return HOLD if self.waiting else 0.0

    def ended(self, call: InFlight, reported: Mapping[str, float] | None) -> None:
        """
        Count what *call* took: for each unit the *reported* amount, or the reservation if the report lacks the unit.

        If *reported* is None, the call was not sent, and nothing is counted.
        """
        for unit, most in self.calls.pop(call).items():
            if unit in self._spent and reported is not None:
                self._spent[unit] += reported.get(unit, most)
        self.lessee.wake(self)

    def describe(self) -> str:
        """Return the error text of a key that gets no call: how much of the budget is spent."""
        parts = [f"{total - self._left[unit]:,.6g} of {total:,.6g} {unit}" for unit, total in self.total.items()]
        return f"the budget of the job is spent, {' and '.join(parts)}; no call was made for the key"

    # the methods that the lessee calls when it talks to the store; see `leases.Share`

    def idle(self, now: float) -> bool:
        """Whether no call is in flight, none has asked for a reservation lately, and the store knows what was spent."""
        return now - self._wanted_at >= IDLE and not self.calls and self._told == self._spent

    def ask(self, now: float, name: str, worker: str, *, away: bool = False, last: bool = False) -> Draw:
        """
        Return the question that the lessee sends to the store.

        The *last* question, asked when the lessee ends, reports the reservations of calls in flight as spent, because
        nothing can report the real cost of these calls later.
        """
        in_flight = {unit: sum(most[unit] for most in self.calls.values()) for unit in self.total}
        spent, calls = dict(self._spent), []
        if last:
            spent = {unit: amount + in_flight[unit] for unit, amount in spent.items()}
            in_flight = dict.fromkeys(self.total, 0.0)
        elif self.waiting:
            # Give the reservations that no call has taken back, because they are too small for the waiting call.
            self._ready = dict.fromkeys(self.total, 0.0)
            further = max(self._free_slots() - 1, 0)
            calls = [self._first, *[dict(self._average)] * further]
        elif now - self._wanted_at < IDLE:
            average = max(self._average.values())
            ahead = 0 if average == 0.0 else min(self._ready[u] / max(self._average[u], 1e-12) for u in self.total)
            calls = [dict(self._average)] * max(0, math.ceil(self.AHEAD * self._sent - ahead))
        else:
            self._ready = dict.fromkeys(self.total, 0.0)
        self._sent = 0
        held = {unit: amount + (0.0 if last else self._ready[unit]) for unit, amount in in_flight.items()}
        self._question = Draw(budget=name, worker=worker, total=self.total, spent=spent, held=held, calls=tuple(calls))
        return self._question

    def unanswered(self, ask: Draw) -> None:
        """
        Do nothing if *ask* gets no answer.

        The store may have reserved amounts for *ask*; the next question does not list them and so gives them back.
        """

    def granted(self, drawn: Drawn, asked: float, now: float, *, back: bool) -> None:
        """Take over the reservations in *drawn*, the answer to the last question."""
        ask = self._question
        assert ask is not None
        self._told, self._left = dict(ask.spent), dict(drawn.left)
        for call in ask.calls[: drawn.calls]:
            for unit in self._ready:
                self._ready[unit] += call[unit]
        alone = not any(ask.held.values()) and not drawn.waits
        self.spent_up = alone and drawn.calls == 0 and bool(ask.calls)
        self.waiting = False

    def next_ask(self, now: float) -> float:
        """Return the loop time at which the lessee asks the store again for this account."""
        return now + AGAIN

    def told(self) -> str:
        """Return, as messages show it, the share of the budget that calls may use while the store is away: nothing."""
        return "nothing"
