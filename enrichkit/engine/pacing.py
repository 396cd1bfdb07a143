"""
The cost of calls, and a rate for each unit of cost, such as tokens; the rates decide when the next call is sent.

The cost of a call is unknown until its keys are chosen. So the gate lets a call go as soon as each rate allows a call
of average cost, and counts the difference to the call's own cost afterwards. A costly call delays the next calls; no
call is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

__all__ = ["AverageCost", "Pace", "Rate", "UnitRates"]


class Pace(Protocol):
    """
    An object that spaces calls out: by a rate of this process alone, or by this process's share of the job's rate.
    """

    def delay(self, now: float) -> float:
        """Return 0 if a call can be sent now, else the seconds after which the gate asks again."""

    def spend(self, now: float) -> None:
        """Count one call of average cost as sent."""

    def correct(self, now: float, units: Mapping[str, float]) -> None:
        """Count *units* in addition to the sent calls; a negative amount takes back units that a call did not need."""


class Rate:
    """
    A limit on calls per second, by the generic cell rate algorithm (GCRA, ITU-T I.371).

    Calls that are due within 50 ms can be sent in one burst. Timers are accurate to about a millisecond only, so
    without the burst far fewer calls would be sent at a limit of 10,000 calls per second.
    """

    __slots__ = ("_interval", "_next", "_tolerance")

    BURST = 0.05

    def __init__(self, per_second: float) -> None:
        self._interval = 1.0 / per_second
        self._tolerance = max(0.0, self.BURST - self._interval)
        self._next = 0.0

    def delay(self, now: float) -> float:
        """Return 0 if a call can be sent now, else the seconds to wait."""
        return max(0.0, self._next - self._tolerance - now)

    def spend(self, now: float, cost: float = 1.0) -> None:
        """Count a call of *cost* as sent; a negative *cost* takes back what an earlier call did not need."""
        self._next = max(now, self._next) + cost * self._interval

    def correct(self, now: float, units: Mapping[str, float]) -> None:
        """Count the requests in *units* in addition to the calls that `spend` has counted."""
        self.spend(now, units.get("requests", 0.0))


class AverageCost:
    """
    The average cost of a call of the source, and the average error of the connector's estimates of the cost.

    Before the first call, the average of a unit is its rate divided by the rate of requests, or 1 if there is no rate
    of requests.

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
        self._real = dict.fromkeys(per_second, 1.0)  # by unit, the real cost of calls divided by the estimate

    def reserve(self, estimate: Mapping[str, float]) -> dict[str, float]:
        """Return the units to reserve for a call whose cost the connector estimates as *estimate*."""
        return {unit: max(0.0, float(estimate.get(unit, 0.0))) * real for unit, real in self._real.items()}

    def beyond(self, cost: Mapping[str, float]) -> dict[str, float]:
        """Return by how much *cost* exceeds the average; negative for a unit where it is less."""
        return {unit: cost[unit] - average for unit, average in self.units.items()}

    def learn(self, reserved: Mapping[str, float], cost: Mapping[str, float]) -> None:
        """
        Adjust both averages after a call that has cost *cost*, and for which the units *reserved* had been reserved.
        """
        for unit, average in self.units.items():
            self.units[unit] = average + self.WEIGHT * (cost[unit] - average)
            if reserved[unit] > 0.0:
                real = self._real[unit] * (1.0 + self.WEIGHT * (min(cost[unit] / reserved[unit], 10.0) - 1.0))
                self._real[unit] = min(max(real, 1.0 / self.MOST), self.MOST)


class UnitRates:
    """
    A rate for each unit; a call can be sent when all rates allow it.

    Args:
        per_second: The rates, by unit.
        average: What a call costs on average.
    """

    __slots__ = ("_average", "_rates")

    def __init__(self, per_second: Mapping[str, float], average: AverageCost) -> None:
        self._rates = {unit: Rate(amount) for unit, amount in per_second.items()}
        self._average = average

    def delay(self, now: float) -> float:
        """Return 0 if a call can be sent now, else the seconds to wait."""
        return max(rate.delay(now) for rate in self._rates.values())

    def spend(self, now: float) -> None:
        """Count one call of average cost as sent."""
        self.correct(now, self._average.units)

    def correct(self, now: float, units: Mapping[str, float]) -> None:
        """Count *units* in addition to the sent calls; a negative amount takes back units that a call did not need."""
        for unit, amount in units.items():
            if unit in self._rates:
                self._rates[unit].spend(now, amount)
