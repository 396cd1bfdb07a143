"""
The cost of calls, and a rate for each unit of cost, which decides when the next call may leave.

The cost of a call is unknown until its keys are chosen. So the gate lets a call leave when each rate would let an
average call leave, and counts the call's own cost afterwards. A costly call delays the next calls; no call is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from .limits import Rate

if TYPE_CHECKING:
    from .limits import Gate

__all__ = ["AverageCost", "CallMeter", "Pace", "UnitRates"]


class Pace(Protocol):
    """A rate that spaces calls: the rate of this process, or its share of the rate of the whole job."""

    def delay(self, now: float) -> float:
        """Return 0 when a call may leave now, else the seconds after which to ask again."""

    def spend(self, now: float) -> None:
        """Count one call of average cost as sent."""

    def correct(self, now: float, units: Mapping[str, float]) -> None:
        """Count *units* in addition; a negative amount takes back units that were counted before and not needed."""


class AverageCost:
    """
    What a call of the source costs on average, and by how much the connector's estimates are wrong on average.

    At first, a call is assumed to cost as much of each unit as the rates allow per request, or 1 if there is no rate of
    requests.

    Args:
        per_second: The rates, by unit.

    Attributes:
        units: The average, by unit.
    """

    WEIGHT = 0.1
    MOST = 100.0

    __slots__ = ("_real", "units")

    def __init__(self, per_second: Mapping[str, float]) -> None:
        requests = per_second.get("requests")
        self.units = {
            unit: amount / requests if requests and unit != "requests" else 1.0 for unit, amount in per_second.items()
        }
        self._real = dict.fromkeys(per_second, 1.0)  # the real cost of calls as a multiple of the estimate, by unit

    def reserve(self, estimate: Mapping[str, float]) -> dict[str, float]:
        """Return the units to reserve for a call whose cost the connector estimates as *estimate*."""
        return {unit: max(0.0, float(estimate.get(unit, 0.0))) * real for unit, real in self._real.items()}

    def beyond(self, cost: Mapping[str, float]) -> dict[str, float]:
        """Return by how much *cost* is more than the average; negative where it is less."""
        return {unit: cost[unit] - average for unit, average in self.units.items()}

    def learn(self, reserved: Mapping[str, float], cost: Mapping[str, float]) -> None:
        """Note that a call for which *reserved* was reserved had the *cost*."""
        for unit, average in self.units.items():
            self.units[unit] = average + self.WEIGHT * (cost[unit] - average)
            if reserved[unit] > 0.0:
                real = self._real[unit] * (1.0 + self.WEIGHT * (min(cost[unit] / reserved[unit], 10.0) - 1.0))
                self._real[unit] = min(max(real, 1.0 / self.MOST), self.MOST)


class UnitRates:
    """
    A rate for each unit; a call may leave when all rates allow it.

    Args:
        per_second: The rates, by unit.
        average: What a call costs on average.
    """

    __slots__ = ("_average", "_rates")

    def __init__(self, per_second: Mapping[str, float], average: AverageCost) -> None:
        self._rates = {unit: Rate(amount) for unit, amount in per_second.items()}
        self._average = average

    def delay(self, now: float) -> float:
        """Return 0 when a call may leave now, else the seconds to wait."""
        return max(rate.delay(now) for rate in self._rates.values())

    def spend(self, now: float) -> None:
        """Count one call of average cost as sent."""
        self.correct(now, self._average.units)

    def correct(self, now: float, units: Mapping[str, float]) -> None:
        """Count *units* in addition; a negative amount takes back units that were counted before and not needed."""
        for unit, amount in units.items():
            if unit in self._rates:
                self._rates[unit].spend(now, amount)


class CallMeter:
    """
    The cost of one call: first the connector's estimate is reserved, then the cost that the answer reports corrects it.

    Args:
        gate: The gate of the engine.
        average: What a call costs on average, which the gate counted when the call left; None: no cost is limited.
        cost: The connector's estimate of the cost, by unit.
        now: Returns the loop time.

    Attributes:
        reported: The whole cost of the call, as far as the connector has reported it, by unit.
        known: Whether the connector says that `reported` is the whole cost.
    """

    __slots__ = ("_average", "_gate", "_now", "_reserved", "known", "reported")

    def __init__(
        self, gate: Gate, average: AverageCost | None, cost: Mapping[str, float], now: Callable[[], float]
    ) -> None:
        self._gate = gate
        self._now = now
        self._average = average
        self.reported: dict[str, float] = {}
        self.known = True
        self._reserved: Mapping[str, float] = {}
        if average is not None:
            self._reserved = average.reserve(cost)
            gate.correct(now(), average.beyond(self._reserved))

    def spent(self, units: Mapping[str, float]) -> None:
        """Note *units* as the whole cost of the call."""
        self.reported.update(
            (unit, amount) for unit, amount in units.items() if math.isfinite(amount) and amount >= 0.0
        )
        self.known = not any(map(math.isnan, units.values()))

    def allows(self, remaining: float, seconds: float, limit: float | None, unit: str) -> None:
        """Note how much of *unit* the source still allows."""
        numbers = (remaining, seconds, 1.0 if limit is None else limit)
        if all(math.isfinite(number) and number >= 0.0 for number in numbers):
            self._gate.told(self._now(), remaining, seconds, limit, unit)

    def ended(self) -> None:
        """Correct the cost that was reserved, now that the call has ended."""
        if self._average is None:
            return
        cost = {unit: self.reported.get(unit, reserved) for unit, reserved in self._reserved.items()}
        if cost.get("tokens") == 0.0 and self.reported.get("requests"):
            # The request failed, or its answer was lost: the source's limits count the request by its length, so the
            # reserved tokens stay counted, and the call corrects no estimate.
            cost["tokens"] = self._reserved["tokens"]
        self._average.learn(self._reserved, cost)
        self._gate.correct(self._now(), {unit: amount - self._reserved[unit] for unit, amount in cost.items()})
