"""
The limits on the calls of an engine: the gate, which may hold calls back even if a slot is free, and the retry budget.

The gate checks in turn: a pause that the source asked for, an outage, the allowance (fewer calls in flight if the
source refuses some), the limit and the budget of the job, the rate, the quotas that the source reports, and the circuit
breaker.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING

from ..errors import UnavailableError
from .allowance import Allowance
from .outage import Outage
from .quota import Quota

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..errors import TransientError
    from .account import Account
    from .pacing import Pace
    from .permits import LimitShare
    from .records import InFlight
    from .stats import RunStats

__all__ = ["RETRY_AFTER_MAX", "Breaker", "Gate", "RetryBudget", "asked_pause", "background_slots"]

RETRY_AFTER_MAX = 60.0
"""
If a source asks (by Retry-After) for a pause that is longer than the `stall_timeout` of a run, the pause lasts at most
this many seconds; botocore has its own bound.
"""
BACKGROUND_SHARE = 4
"""Background calls may take one in this many slots: at least one slot, but never the only one."""
TOGETHER = 0.01
"""Connections refused within this many seconds lead to one search for idle engines; a second would find no more."""


def asked_pause(retry_after: float | None, stall_timeout: float = RETRY_AFTER_MAX) -> float | None:
    """
    Return for how many seconds to pause: *retry_after*, but at most a minute if it is longer than *stall_timeout*.

    After the pause, the source is asked again. The result is None if the source asks for no pause, or for a
    pause of NaN seconds.
    """
    if retry_after is None or retry_after != retry_after:  # a NaN is not equal to itself
        return None
    seconds = max(retry_after, 0.0)
    return seconds if seconds <= stall_timeout else min(seconds, RETRY_AFTER_MAX)


def background_slots(capacity: int) -> int:
    """Return how many of the *capacity* slots may be taken by calls in the background."""
    return min(capacity - 1, max(1, capacity // BACKGROUND_SHARE))


class Breaker:
    """
    A throttle for calls to a failing source: the client-side throttle of "Site Reliability Engineering", chapter 21.

    The breaker holds a call back with the probability max(0, (requests - K x accepts) / (requests + 1)). Here, requests
    are the calls of the last 30 s, and accepts are those of them that the source answered in time. The probability is
    at most 0.9, so that some calls still test whether the source has recovered. A call that is held back is sent later;
    its rows never become null because of the breaker, since a batch job can wait. A call is not counted before it has
    ended or become late, because calls in flight would otherwise look like failures. After three good calls in a row
    the breaker forgets the history, because the formula alone would take as long to recover as the outage lasted.

    Attributes:
        accepts: Number of calls that the source answered in time, including those in `faults`.
        faults: Number of the calls in `accepts` that ended with an error that is not transient.
        held_since: Loop time since which calls have been held back; None: no call is held back.
    """

    K = 2.0
    PERIOD = 30.0
    FLOOR = 20  # if there were fewer requests in the last 30 s, the breaker holds no call back
    PROBABILITY_MAX = 0.9
    HOLD = 0.05
    RECOVERED = 3

    __slots__ = ("_good", "_refusals", "_rng", "_then", "accepts", "faults", "held_since")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        # Number of refused calls since the start. To count those of the last 30 s, `_recent` subtracts the number in
        # the oldest entry of `_then`.
        self._refusals = 0
        self.accepts = 0
        self.faults = 0
        self._then: deque[tuple[float, int, int]] = deque([(-1.0, 0, 0)])  # (time, refusals, accepts), one a second
        self._good = 0
        self.held_since: float | None = None

    def troubled(self) -> bool:
        """Whether so many calls have failed that the breaker holds some calls back."""
        requests, accepts = self._recent()
        return requests >= self.FLOOR and requests > self.K * accepts

    def delay(self, now: float) -> float:
        """Return 0 if a call can be sent now, else the seconds until the next check."""
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
        self.accepts += 1
        if self._good < self.RECOVERED:
            self._good += 1
            self.held_since = None
            if self._good == self.RECOVERED:
                self._then = deque([(self._then[-1][0], self._refusals, self.accepts)])

    def faulted(self) -> None:
        """Count a call that failed with an error that is not transient; it is an answer, because the source works."""
        self.faults += 1
        self.accepted()

    def refused(self) -> None:
        """Count a call that failed with a transient error, or became late."""
        self._refusals += 1
        self._good = 0

    def tick(self, now: float) -> None:
        """Forget calls older than 30 s; the sweeper calls this often, so that `accepted` need not look at the clock."""
        then = self._then
        if now - then[-1][0] >= 1.0:
            then.append((now, self._refusals, self.accepts))
        while len(then) > 1 and then[1][0] <= now - self.PERIOD:
            then.popleft()

    def _recent(self) -> tuple[int, int]:
        """Return the number of requests and the number of accepts in the last 30 s; see the formula of the class."""
        _, refusals, accepts = self._then[0]
        answered = self.accepts - accepts
        return self._refusals - refusals + answered, answered


class Gate:
    """
    The gate of an engine, which holds calls back because of an outage, the rate, a pause the source asked for, etc.

    Args:
        name: Name of the source in messages.
        capacity: Number of slots.
        rate: The object that spaces the calls; None: there is no rate.
        limit: This process's share of the job's limit on calls in flight; None: there is no limit.
        account: The account of the job's budget; None: there is no budget.
        rng: The random numbers that decide which calls the breaker holds back, and how long to wait between probes.

    Attributes:
        outage: The object that knows whether the source is away.
        allowance: The number of calls that may be in flight if the source refuses some calls.
        breaker: The circuit breaker, which holds back calls to a failing source.
        accepted: Function that counts a call that the source answered in time; the engine calls it.
        make_room: Function that closes idle engines with connectors of the same class; the gate calls it when a server
            had no free connection.
        asked: Two loop times: when the source last asked for a pause, and when that pause ends.
        may_hold: Whether `delay` has to be asked before a call; False while nothing holds calls back.
        patience: The longest `stall_timeout` of the runs, in seconds.
    """

    __slots__ = (
        "_account",
        "_limit",
        "_mean",
        "_paused_until",
        "_quotas",
        "_rate",
        "_room_at",
        "accepted",
        "allowance",
        "asked",
        "breaker",
        "make_room",
        "may_hold",
        "outage",
        "patience",
    )

    def __init__(
        self,
        name: str,
        capacity: int,
        rate: Pace | None,
        rng: random.Random,
        limit: LimitShare | None = None,
        account: Account | None = None,
    ) -> None:
        self.outage = Outage(name, capacity, rng)
        self.allowance = Allowance(capacity)
        self.breaker = Breaker(rng)
        self.make_room: Callable[[], None] = _no_engines
        self.patience = RETRY_AFTER_MAX
        self.accepted = self.breaker.accepted  # bound here: a method that calls it would take 1 % of a lookup's time
        self.may_hold = rate is not None or limit is not None or account is not None
        self._rate = rate
        self._limit = limit
        self._account = account
        self._quotas: dict[str, Quota] = {}
        self._mean: dict[str, float] = {"requests": 1.0}  # how much of each unit a call takes on average
        self._paused_until = 0.0
        self.asked = (0.0, 0.0)
        self._room_at = 0.0  # before this loop time, no further refused connection makes idle engines close

    def delay(self, now: float, in_flight: int) -> float:
        """Return 0 if a call can be sent now beside *in_flight* others, else the seconds until the next check."""
        wait = self._paused_until - now
        if wait <= 0:
            wait = self.outage.delay(now, in_flight)
        if wait <= 0 and self.outage.since is None:
            wait = self.allowance.delay(now, in_flight)
        if wait <= 0 and self._limit is not None:
            wait = self._limit.delay(now, in_flight)
        if wait <= 0 and self._account is not None:
            wait = self._account.delay(now)
        if wait <= 0 and self._rate is not None:
            wait = self._rate.delay(now)
        if wait <= 0 and self._quotas:
            wait = max(quota.delay(now) for quota in self._quotas.values())
        # In an outage, each call is a probe, and the breaker must not hold probes back.
        if wait <= 0 and self.outage.since is None and self.breaker.troubled():
            wait = self.breaker.delay(now)
            self._paused_until = now + wait  # a pause for all slots: else each slot would draw its own random number
        if wait > 0:
            return wait
        always = self._rate is not None or self._limit is not None or self._account is not None
        spaced = any(quota.holds for quota in self._quotas.values())
        held = self.outage.holds or self.allowance.holds
        self.may_hold = always or spaced or held or self.breaker.troubled()
        return 0.0

    def reason(self, now: float) -> str:
        """
        Return what holds calls back, one of `outage`, `refusals`, `breaker`, `pause`, `budget`, `limit` and `rate`.
        """
        if self.outage.holds:
            return "outage"
        if self.allowance.holds:
            return "refusals"
        if self.breaker.held_since is not None:
            return "breaker"
        if self._paused_until > now:
            return "pause"
        if self._account is not None and self._account.waiting:
            return "budget"
        return "limit" if self._limit is not None and self._limit.waiting else "rate"

    def sent(self, call: InFlight) -> None:
        """Count *call* as sent."""
        self.outage.sent(call)
        if self._rate is not None:
            self._rate.spend(call.started)
        for quota in self._quotas.values():
            quota.sent(call.started)

    def correct(self, now: float, units: Mapping[str, float]) -> None:
        """Count *units* in addition to the units of the sent calls; a negative number takes back units not needed."""
        if self._rate is not None:
            self._rate.correct(now, units)

    def took(self, units: Mapping[str, float]) -> None:
        """Learn how much of each unit a call takes, so that `told` can convert the units that are left into calls."""
        for unit, amount in units.items():
            if unit != "requests":
                before = self._mean.get(unit, amount)
                self._mean[unit] = before + 0.1 * (amount - before)

    def told(self, now: float, remaining: float, seconds: float, limit: float | None, unit: str) -> None:
        """
        Record the source's report that *remaining* units of *unit*, out of *limit*, may be used in the next *seconds*.
        """
        each = self._mean.get(unit, 0.0)
        if each > 0.0:
            remaining, limit = remaining / each, None if limit is None else limit / each
        elif remaining > 0.0:
            return  # how many calls these units allow is not known before the first call has reported its units
        if remaining < 1.0:
            self.pause(now, seconds)
        quota = self._quotas.setdefault(unit, Quota())
        quota.told(now, remaining, seconds, limit)
        self.may_hold = self.may_hold or quota.holds

    def unavailable(self, call: InFlight, error: TransientError, in_flight: int, now: float) -> bool:
        """
        Record that *call* failed as a whole with *error* while *in_flight* others go on; return whether the source is
        away.
        """
        answers = self._answers_others(call, error, in_flight)
        away = self.outage.unavailable(call, error, answers, now, doubt=not _busy(error))
        if away:
            self.allowance.away(now)
        elif _busy(error):
            self.allowance.refused(call, now)
        self.may_hold = self.may_hold or self.outage.holds or self.allowance.holds
        return away

    def _answers_others(self, call: InFlight, error: TransientError, in_flight: int) -> bool:
        """Whether the source answers calls other than *call*; a busy source is assumed to answer those in flight."""
        return call.accepts != self.breaker.accepts or (_busy(error) and in_flight > 0)

    def pause(self, now: float, seconds: float) -> None:
        """Hold back all calls for *seconds*, as the source asked; if that exceeds `patience`, for a minute at most."""
        if (pause := asked_pause(seconds, self.patience)) is not None:
            self.asked = now, now + pause
            if pause >= Breaker.PERIOD:
                # When the pause is over, the breaker has forgotten all requests, so it holds no call back.
                self.breaker.held_since = None
            self._paused_until = max(self._paused_until, now + pause)
            self.may_hold = True

    def pause_left(self, now: float) -> float:
        """Return for how many more seconds the source or the breaker pauses all calls; 0 or less: there is no pause."""
        return self._paused_until - now

    def stood_still(self, gap: float) -> None:
        """Move the times of the outage and the breaker on by the *gap* seconds for which the process stood still."""
        self.outage.stood_still(gap)
        if self.breaker.held_since is not None:
            self.breaker.held_since += gap

    def heed(self, call: InFlight, error: TransientError, in_flight: int, now: float) -> None:
        """
        Pause all calls if the *error* of *call* says that the source asks for a pause; *in_flight* other calls go on.

        If one node of several asks for the pause, the pause concerns only the keys of this node. If the source refuses
        *call* while it answers others, the pause concerns only the keys of *call*. Neither pause holds other calls
        back. If *call* got no connection because the server had no free one, idle engines close their connections.
        """
        if isinstance(error, UnavailableError) and error.busy and not error.sent:
            self.no_connection(now)
        if isinstance(error, UnavailableError) and (
            error.node is not None or self._answers_others(call, error, in_flight)
        ):
            return
        if error.retry_after is not None:
            self.pause(now, error.retry_after)

    def no_connection(self, now: float) -> None:
        """Record that a server had no free connection; close idle engines, at most once per `TOGETHER` seconds."""
        if now >= self._room_at:  # all slots, and many keys, may report the same refusal
            self._room_at = now + TOGETHER
            self.make_room()

    def refused(self) -> None:
        """Count a call that failed with a transient error, or became late."""
        self.breaker.refused()
        self.may_hold = True


def _busy(error: TransientError) -> bool:
    """Whether *error* says that the source has as many calls as it can take."""
    return isinstance(error, UnavailableError) and error.busy and error.node is None


def _no_engines() -> None:
    """Do nothing; this is the default of `Gate.make_room`, until a loop thread, which knows all engines, sets it."""


class RetryBudget:
    """
    A token bucket that bounds the share of retries among the calls of an engine.

    The ratios are those of the AWS SDKs' standard mode: a retry costs 5 tokens, a retry after a timeout costs 10, a
    call that is answered in time and without a failure gives 1 back, and a retry that succeeds gives 5 back. So in the
    long run, failing retries add at most 20 % to the calls (10 % after timeouts). The bucket is smaller than in the
    SDKs, because every Spark worker process has a bucket of its own.
    """

    SIZE = 100
    TRICKLE = 5.0  # tokens added per second while a retry waits: enough for one retry a second, even if all calls fail
    RETRY = 5
    RETRY_AFTER_TIMEOUT = 10

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens: float = self.SIZE

    def trickle(self, seconds: float) -> None:
        """Add `TRICKLE` tokens for each of the *seconds* for which a retry has waited."""
        self.tokens = min(self.SIZE, self.tokens + seconds * self.TRICKLE)

    def spend(self, cost: int, stats: RunStats) -> bool:
        """Take *cost* tokens, and count them in *stats*; if there are fewer tokens, take none and return False."""
        if self.tokens < cost:
            return False
        self.tokens -= cost
        stats.retry_tokens += cost
        return True

    def earn(self, tokens: int) -> None:
        """Put *tokens* back into the bucket after a call that was answered in time and without a failure."""
        self.tokens = min(self.SIZE, self.tokens + tokens)
