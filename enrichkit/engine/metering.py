"""What one call costs: an estimate is reserved when the call is sent, and the answer corrects the estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .limits import Gate
    from .pacing import AverageCost

__all__ = ["CallMeter"]


class CallMeter:
    """
    The cost of one call: first the connector's estimate is reserved, then the cost that the answer reports corrects it.

    Args:
        gate: The gate of the engine, which holds calls back while a limit is reached.
        average: The average cost of a call. The gate counted this average when the call was sent, so the meter has to
            count only the difference. None: no rate limits the cost.
        cost: The connector's estimate of the cost, by unit.
        now: Function that returns the loop time.

    Attributes:
        reported: The whole cost of the call, as far as the connector has reported it, by unit.
        known: False if the connector has reported that the amount of a unit is unknown; otherwise True.
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
        """Record *units* as the whole cost of the call."""
        self.reported.update(
            (unit, amount) for unit, amount in units.items() if math.isfinite(amount) and amount >= 0.0
        )
        self.known = not any(map(math.isnan, units.values()))

    def allows(self, remaining: float, seconds: float, limit: float | None, unit: str) -> None:
        """Tell the gate how much of *unit* the source still allows; ignore numbers that are negative or not finite."""
        numbers = (remaining, seconds, 1.0 if limit is None else limit)
        if all(math.isfinite(number) and number >= 0.0 for number in numbers):
            self._gate.told(self._now(), remaining, seconds, limit, unit)

    def ended(self) -> None:
        """Correct the cost that was reserved, now that the call has ended."""
        if self._average is None:
            return
        cost = {unit: self.reported.get(unit, reserved) for unit, reserved in self._reserved.items()}
        if cost.get("tokens") == 0.0 and self.reported.get("requests"):
            # The request failed, or its answer was lost. The source's limits still count such a request by its length,
            # so the tokens that were reserved become its cost. Then `learn` sees an exact estimate, and leaves the
            # factor that corrects the estimates as it is.
            cost["tokens"] = self._reserved["tokens"]
        self._average.learn(self._reserved, cost)
        self._gate.correct(self._now(), {unit: amount - self._reserved[unit] for unit, amount in cost.items()})
