"""The calls that the source says it still allows, as in the headers `RateLimit` and `X-RateLimit-Remaining`."""

from __future__ import annotations

__all__ = ["Quota"]


class Quota:
    """
    The calls that the source still allows, as its last answer said.

    Calls are sent as they come while more than a fifth of the limit remains. After that, calls are spread evenly over
    the seconds until the limit is reset. Other processes may use the same limit. Each process learns from its answers
    how much of the limit remains, so the calls of all processes slow down together, and no call is refused.
    """

    RESERVE = 0.2

    __slots__ = ("_interval", "_limit", "_next", "_until")

    def __init__(self) -> None:
        self._limit = 0.0
        self._interval = 0.0
        self._next = 0.0
        self._until = 0.0

    @property
    def holds(self) -> bool:
        """Whether calls are spread evenly over time."""
        return self._interval > 0.0

    def told(self, now: float, remaining: float, seconds: float, limit: float | None) -> None:
        """
        Record that *remaining* calls of *limit* may be sent within *seconds*.

        If *limit* is None, the previous limit stays, or rises to *remaining* if that is more.
        """
        self._limit = limit if limit is not None else max(self._limit, remaining)
        self._until = now + seconds
        self._interval = seconds / remaining if 0 < remaining <= self.RESERVE * self._limit else 0.0

    def delay(self, now: float) -> float:
        """Return 0 if a call can be sent now, else the seconds until the next call may be sent."""
        if now >= self._until:
            self._interval = 0.0
        return max(0.0, min(self._next, self._until) - now) if self._interval else 0.0

    def sent(self, now: float) -> None:
        """Count one call as sent."""
        self._next = max(now, self._next) + self._interval
