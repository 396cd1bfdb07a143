"""
The number of calls that may be in flight at a source that refuses some calls because it has too many of them.

This number is the allowance. After a round (20 calls or more) in which more than 5 % of the calls were refused, the
allowance is multiplied by the share of the calls that were answered. After a round in which less than 2 % of the calls
were refused, the allowance rises by one call or by a tenth, whichever is more, unless it fell less than a second ago. A
slot whose call was refused rests for a moment. Refused calls keep their places in the allowance, so that no other slot
sends a call instead. They lose these places when the source answers a call that was sent no earlier than the first of
them. So a source that refuses all calls gets one call from each slot, and then one call at a time.

A source may refuse calls for another reason, for example because one of the servers behind a load balancer is full.
Then a lower allowance does not lower the share of refusals, and the answers per second fall in proportion to the calls
in flight. In this case the allowance returns to its value before the fall, and for a while refusals do not change it.
"""

from __future__ import annotations

import bisect
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .records import InFlight

__all__ = ["Allowance"]


class Allowance:
    """
    The number of calls that may be in flight, between 1 and *capacity*. Lives on the loop thread.

    Args:
        capacity: Number of slots, i.e. of coroutines that make one call at a time.
    """

    REST = 0.05
    """Most seconds for which the slot of a refused call rests, but never longer than an answered call takes."""
    ROUND = 20
    """Fewest calls in a round; the allowance is adjusted at the end of each round."""
    TOLERATED, FEW = 0.05, 0.02
    """Shares of refused calls in a round: above the first share the allowance falls, below the second it rises."""
    SMOOTHING = 0.2
    CALM, STEP = 1.0, 1.1
    """Seconds after a fall before the allowance may rise, and the factor by which it rises in a round."""
    MOST = 0.5
    """Above this share of refused calls the allowance falls, however many calls the source answers per second."""
    USELESS, USELESS_MAX = 2.0, 60.0
    """
    After a fall that did not help, the allowance does not change for some seconds: 2 s after the first such fall, then
    each time twice as long, up to 60 s.
    """

    __slots__ = (
        "_answers",
        "_began",
        "_calls",
        "_capacity",
        "_fell_at",
        "_ignores",
        "_ignores_until",
        "_refusals",
        "_refused_since",
        "_rests",
        "_took",
        "_top",
        "_unanswered",
    )

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._calls: float | None = None  # the allowance; None: as many calls as there are slots
        self._rests: deque[float] = deque()  # loop times until which the slots of refused calls rest
        self._top: tuple[float, float] | None = None  # the allowance before it fell, and the answers per second then
        self._fell_at = 0.0
        self._ignores = self.USELESS
        self._ignores_until = 0.0
        self._took = 0.0  # average seconds that an answered call takes
        # Number of refusals; 0 again as soon as a call is answered that was sent no earlier than the first refused one.
        self._unanswered = 0
        self._refused_since = 0.0  # loop time at which the first call that `_unanswered` counts was sent
        # The current round: the calls that started since `_began`.
        self._began = 0.0
        self._answers = 0
        self._refusals: list[float] = []  # loop times at which calls were refused

    @property
    def holds(self) -> bool:
        """Whether calls may have to wait, because an allowance is set or a slot rests after a refusal."""
        return self._calls is not None or bool(self._rests)

    def delay(self, now: float, in_flight: int) -> float:
        """Return 0 when a call may be sent now beside *in_flight* others, else the seconds until the next check."""
        while self._rests and self._rests[0] <= now:
            self._rests.popleft()
        allowed = self._capacity if self._calls is None else int(self._calls)
        taken = in_flight + max(len(self._rests), self._unanswered)
        return 0.0 if taken < max(1, allowed) or not in_flight else self.REST

    def refused(self, call: InFlight, now: float) -> None:
        """Record that *call* was refused."""
        self._rests.append(now + min(self.REST, self._took or self.REST))
        if not self._unanswered:
            self._refused_since = call.started
        self._unanswered += 1
        if self._calls is None:
            self._calls = float(self._capacity)
            self._begin(call.started)
        self._count(call, now, refused=True)

    def away(self, now: float) -> None:
        """Forget the refusals of this round: while a source is away, nothing shows how many calls it can take."""
        self._unanswered = 0
        self._rests.clear()
        self._begin(now)
        if self._calls == self._capacity:
            self._calls = None

    def answered(self, call: InFlight, now: float) -> None:
        """Record that *call* was answered."""
        if call.started >= self._refused_since:  # an answer to an older call does not end the refusals
            self._unanswered = 0
        took = now - call.started
        self._took += (took - self._took) * (self.SMOOTHING if self._took else 1.0)
        if self._calls is not None:
            self._count(call, now, refused=False)

    def _begin(self, now: float) -> None:
        self._began, self._answers, self._refusals = now, 0, []

    def _count(self, call: InFlight, now: float, *, refused: bool) -> None:
        """Count *call* if it belongs to the current round, and set the allowance at the end of the round."""
        assert self._calls is not None
        if call.started < self._began:
            return
        if refused:
            self._refusals.append(now)
        else:
            self._answers += 1
        # An answer takes longer than a refusal. Of the calls sent after `begun`, some may have been refused by now, but
        # hardly any can have been answered. So the share of refused calls does not count refusals after `begun`.
        begun = now - self._took
        ended = self._answers + len(self._refusals)
        if ended < max(self.ROUND, self._calls) or not self._answers or begun - self._began <= self._took:
            return
        refusals = bisect.bisect_right(self._refusals, begun)
        share, per_second = refusals / (self._answers + refusals), self._answers / (begun - self._began)
        self._begin(now)
        if now >= self._ignores_until:
            self._adjust(share, per_second, now)

    def _adjust(self, share: float, per_second: float, now: float) -> None:
        """Set the allowance after a round with this *share* of refusals and this number of answers *per_second*."""
        calls = self._calls
        assert calls is not None
        if share < self.FEW:
            if now - self._fell_at < self.CALM:
                return
            self._top = None
            self._calls = min(float(self._capacity), max(calls + 1.0, self.STEP * calls))
            if self._calls == self._capacity and not share:
                self._calls, self._ignores = None, self.USELESS
        elif share > self.TOLERATED:
            if self._top is not None and share <= self.MOST:
                most, best = self._top
                # The answers per second fell about in proportion to the calls in flight: a lower allowance is no use.
                if per_second < best * (1.0 + calls / most) / 2:
                    self._calls, self._top = most, None
                    self._ignores_until, self._ignores = now + self._ignores, min(self.USELESS_MAX, 2 * self._ignores)
                    return
            if self._top is None and share <= self.MOST:
                self._top = calls, per_second
            self._calls, self._fell_at = max(1.0, (1.0 - share) * calls), now
