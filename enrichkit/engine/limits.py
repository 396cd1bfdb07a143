"""What holds a call back although a slot is free: the rate, a pause that the source asked for, and the breaker."""

from __future__ import annotations

import random
from collections import deque

__all__ = ["Breaker", "Rate"]


class Rate:
    """
    Calls per second, by the generic cell rate algorithm (GCRA, ITU-T I.371).

    A burst of 50 ms' worth of calls is tolerated: timers are about a millisecond coarse, and without it a limit of
    10,000 per second would be missed by far.
    """

    __slots__ = ("_interval", "_next", "_tolerance")

    BURST = 0.05

    def __init__(self, per_second: float) -> None:
        self._interval = 1.0 / per_second
        self._tolerance = max(0.0, self.BURST - self._interval)
        self._next = 0.0

    def delay(self, now: float) -> float:
        """Return 0 when a call may leave now, else the seconds to wait."""
        return max(0.0, self._next - self._tolerance - now)

    def spend(self, now: float) -> None:
        """Count one call as sent."""
        self._next = max(now, self._next) + self._interval


class Breaker:
    """
    Slows calls down while the source fails, by the client-side throttle of "Site Reliability Engineering", chapter 21.

    Over the last 30 s a call is held back with probability max(0, (requests - K x accepts) / (requests + 1)), at most
    0.9 so that probes flow. Held back means later, never a null: a batch job can wait. A request counts when it ended
    or became late, so that a slow start of many calls is no failure. After three good calls in a row the history is
    forgotten, because the formula alone would take as long to recover as the outage lasted.
    """

    K = 2.0
    PERIOD = 30.0
    FLOOR = 20  # too few calls say nothing
    PROBABILITY_MAX = 0.9
    HOLD = 0.05
    RECOVERED = 3

    __slots__ = ("_accepts", "_good", "_requests", "_rng", "_then", "held_since")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._requests = 0  # ever; what counts is the difference to the oldest entry of _then
        self._accepts = 0
        self._then: deque[tuple[float, int, int]] = deque([(-1.0, 0, 0)])  # (time, requests, accepts), one a second
        self._good = 0
        self.held_since: float | None = None

    def troubled(self) -> bool:
        """Whether calls may have to be held back at all."""
        requests, accepts = self._recent()
        return requests >= self.FLOOR and requests > self.K * accepts

    def delay(self, now: float) -> float:
        """Return 0 when a call may leave now, else the seconds after which to ask again."""
        self.tick(now)
        requests, accepts = self._recent()
        probability = min(self.PROBABILITY_MAX, (requests - self.K * accepts) / (requests + 1))
        if not self.troubled() or self._rng.random() >= probability:
            return 0.0
        if self.held_since is None:
            self.held_since = now
        return self.HOLD

    def accepted(self) -> None:
        """Count a call that the source answered in time."""
        self._requests += 1
        self._accepts += 1
        if self._good < self.RECOVERED:
            self._good += 1
            self.held_since = None
            if self._good == self.RECOVERED:
                self._then = deque([(self._then[-1][0], self._requests, self._accepts)])

    def refused(self) -> None:
        """Count a call that failed with a transient error, or became late."""
        self._requests += 1
        self._good = 0

    def tick(self, now: float) -> None:
        """Forget what is older than 30 s; called often, so that no call has to look at the clock."""
        then = self._then
        if now - then[-1][0] >= 1.0:
            then.append((now, self._requests, self._accepts))
        while len(then) > 1 and then[1][0] <= now - self.PERIOD:
            then.popleft()

    def _recent(self) -> tuple[int, int]:
        _, requests, accepts = self._then[0]
        return self._requests - requests, self._accepts - accepts
