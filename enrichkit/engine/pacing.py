"""
When a rate for each unit lets the next call leave, and what calls cost.

What a call costs is not known before its keys are: the gate lets a call leave when each rate would let an average call
leave, and then counts what this call costs. So a costly call delays the next ones, and none is refused.
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
    """A rate that spaces calls: one of this process, or a part of the rate of the whole job."""

    def delay(self, now: float) -> float:
        """Return 0 when a call may leave now, else the seconds after which to ask again."""

    def spend(self, now: float) -> None:
        """Count one call of average cost as sent."""

    def correct(self, now: float, units: Mapping[str, float]) -> None:
        """Count *units* in addition; negative amounts were counted before, and were not needed."""


class AverageCost:
    """
    What a call of the source costs on average, and by how much the connector's estimates are wrong on average.

    At first a call counts as much of each unit as the rates allow for one request; 1 if there is no rate of requests.

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
        self._real = dict.fromkeys(per_second, 1.0)  # what calls have cost, as a multiple of the estimate

    def reserve(self, estimate: Mapping[str, float]) -> dict[str, float]:
        """Return what to reserve for a call of the cost *estimate*."""
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
    A rate for each unit; a call leaves when all of them let it.

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
        """Count *units* in addition; negative amounts were counted before, and were not needed."""
        for unit, amount in units.items():
            if unit in self._rates:
                self._rates[unit].spend(now, amount)


class CallMeter:
    """
    The cost of one call: reserved as the connector estimates it, and corrected by what the answer reports.

    Args:
        gate: The gate of the engine.
        average: What a call costs on average, which the gate counted when the call left; None: no cost is limited.
        cost: The estimate.
        now: Returns the loop time.

    Attributes:
        reported: The whole cost of the call, as far as the connector has reported it, by unit.
        known: Whether `reported` is the whole cost, as the connector says.
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
        """Correct what was reserved: the call has ended."""
        if self._average is None:
            return
        cost = {unit: self.reported.get(unit, reserved) for unit, reserved in self._reserved.items()}
        if cost.get("tokens") == 0.0 and self.reported.get("requests"):
            # The request failed, or its answer was lost: the source's limits count the request by its length, so the
            # reserved tokens stay counted, and the call corrects no estimate.
            cost["tokens"] = self._reserved["tokens"]
        self._average.learn(self._reserved, cost)
        self._gate.correct(self._now(), {unit: amount - self._reserved[unit] for unit, amount in cost.items()})
