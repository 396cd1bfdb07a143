"""The books of one simulated engine: what its source sees, whichever task it is for."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from enrichkit.engine.hedging import Hedges
from enrichkit.engine.limits import RETRY_AFTER_MAX, RetryBudget
from enrichkit.engine.pacing import Rate
from enrichkit.engine.records import Bundle
from enrichkit.engine.watchdog import GRACE
from enrichkit.errors import TransientError, UnavailableError
from enrichkit.interface import Failure, Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from enrichkit.engine.engine import Engine
    from enrichkit.interface import Call

    from .invariants import RunWatch
    from .story import Plan

__all__ = ["EPSILON", "Flight", "Watch"]

EPSILON = 1e-6


@dataclass(eq=False)
class Flight:
    """One call as the source sees it."""

    keys: tuple[Any, ...]
    number: int  # of the run
    attempt: int
    started: float
    cancelled: int = 0
    stubborn: bool = False
    answers: Any = None
    error: BaseException | None = None


class Watch:
    """The books of one simulated engine and of its runs."""

    def __init__(self, plan: Plan, clock: Callable[[], float]) -> None:
        self.plan = plan
        self.clock = clock
        self.runs: list[RunWatch] = []
        self.flights: dict[Flight, None] = {}
        self.engine: Engine | None = None
        self.flags: set[str] = set()
        self.broken: list[BaseException] = []
        self.calls = self.repeats = self.earned = self.second_calls = 0
        self.opened_at = -1.0 if plan.weather.opens_at_once else math.inf
        self.paused_until = self._answered_at = -1.0
        self.closed = False
        self.stood: list[tuple[float, float]] = []  # when the process stood still, and for how many seconds
        self._late_since = math.inf  # since when all slots have been held by late calls
        self._away_since: float | None = None
        self._probes: list[Flight] = []  # of the outage that began then
        self._rate = Rate(plan.rate) if plan.rate is not None else None

    @property
    def now(self) -> float:
        """The virtual time."""
        return self.clock()

    def stands_still(self) -> float:
        """Return the seconds for which the process stands still from now on, once for each time of the story."""
        moments = self.plan.weather.stands_still
        if len(self.stood) == len(moments) or self.now < moments[len(self.stood)][0]:
            return 0.0
        self.flags.add("stood still")
        self.stood.append((self.now, moments[len(self.stood)][1]))
        return self.stood[-1][1]

    def stood_since(self, moment: float) -> float:
        """Return the seconds since *moment* in which the process stood still."""
        return sum(seconds for began, seconds in self.stood if began >= moment)

    def times_stood_since(self, moment: float) -> int:
        """Return how often the process has stood still since *moment*."""
        return sum(began >= moment for began, _ in self.stood)

    def called(self, keys: Sequence[Any], call: Call) -> Flight:
        """The source is asked for *keys*."""
        assert not self.closed, "a call was made after the engine was closed"
        assert self.engine is not None
        if isinstance(keys, Keys):
            assert self.engine.connector.key_columns
            assert [column.to_pylist() for column in keys.columns] == [[*keys]]
            self.flags.add("keys in columns")
        else:
            assert type(keys) is tuple
        # A call that had to open the connector comes later than it was decided upon.
        started = next(call.started for call in self.engine.calls if call.task is asyncio.current_task())
        flight = Flight(tuple(keys), call.task.partition, call.attempt, started)
        if started > self.opened_at:
            assert self.now >= self.paused_until - EPSILON, "a call was made while the source asked for a pause"
        self._probed(flight)
        if self._rate is not None and self.plan.weather.opens_at_once:
            assert self._rate.delay(self.now) <= EPSILON, "calls came faster than the rate"
            self._rate.spend(self.now)
        asked = set(keys)
        self.runs[flight.number].asked(flight, [other for other in self.flights if not asked.isdisjoint(other.keys)])
        self.flights[flight] = None
        self.calls += 1
        self.repeats += flight.attempt > 1
        assert len(self.flights) <= self.plan.capacity, "more calls in flight than capacity"
        if self.plan.batch_size == 1:
            most = (
                RetryBudget.SIZE + self.earned + RetryBudget.TRICKLE * self.now
            )  # a little comes back while retries wait
            assert RetryBudget.RETRY * self.repeats <= most, "more retries than the budget allows"
        return flight

    def _probed(self, flight: Flight) -> None:
        """While the source is away, it is asked seldom, and once at a time unless a probe hangs for a second."""
        assert self.engine is not None
        since = self.engine.gate.outage.since
        if since != self._away_since:
            self._away_since, self._probes = since, []
        if since is None or flight.started < since:
            return
        hanging = [probe for probe in self._probes if probe in self.flights]
        assert all(flight.started >= probe.started + 1.0 - EPSILON for probe in hanging), "two probes at a time"
        self._probes.append(flight)
        assert len(self._probes) <= 2 * (flight.started - since) + 6, "more probes than two a second"
        self.flags.add("probed")

    def hedged(self) -> None:
        """A second call is made for keys whose first one goes on."""
        self.second_calls += 1
        self.flags.add("hedged")
        assert self.second_calls <= Hedges.SHARE * self.calls + Hedges.SAVED_MAX, "more second calls than their budget"

    def ended(self, flight: Flight) -> None:
        """A call is over."""
        del self.flights[flight]
        watched = self.runs[flight.number]
        errors = [flight.error]
        if isinstance(flight.answers, dict) and (not watched.closed or watched.run.cache is not None):
            errors += [answer.error for answer in flight.answers.values() if isinstance(answer, Failure)]
        for error in errors:
            wish = error.retry_after if isinstance(error, TransientError) else None
            # The wish of a source that answers others, or works for them, concerns the keys of this call alone.
            alone = not isinstance(error, UnavailableError) or self._answered_at < flight.started - EPSILON
            alone = alone and not (isinstance(error, UnavailableError) and error.busy and self.flights)
            if wish is not None and wish == wish and alone:
                self.paused_until = max(self.paused_until, self.now + min(max(wish, 0.0), RETRY_AFTER_MAX))
        if flight.error is None or not (isinstance(flight.error, TransientError) or flight.cancelled):
            self._answered_at = self.now
        if isinstance(flight.answers, dict):
            clean = not any(isinstance(answer, Failure) for answer in flight.answers.values())
            self.earned += clean * (RetryBudget.RETRY if flight.attempt > 1 and not watched.asks_after_misses else 1)
        watched.ended(flight)

    def quiet(self, now: float) -> None:
        """Nothing can run before the clock moves."""
        for watched in self.runs:
            watched.quiet(now)
        engine = self.engine
        self._clocks_run(now)
        # A timer is set for the end of what holds calls back.
        if engine is not None and engine._resume is None and len(engine.calls) < self.plan.capacity:
            for watched in self.runs:
                run = watched.run
                idle = run.pending and not (run.closed or run.held_back)
                assert not idle, f"a slot is idle while keys wait: {engine!r}"

    def _clocks_run(self, now: float) -> None:
        """While nobody waits for the calls in all slots, one is freed, and then the clock of the next keys runs."""
        engine = self.engine
        if engine is None:
            return
        calls = engine.calls
        waits = engine.gate.outage.since is not None or engine.gate.pause_left(now) > 0  # then clocks stand still
        if waits or len(calls) < self.plan.capacity or not all(call.late or run.closed for call, run in calls.items()):
            self._late_since = math.inf
            return
        self._late_since = min(self._late_since, now)
        for watched in self.runs:
            fresh = watched.run.pending._fresh
            held = watched.run.held_back
            if fresh and not (watched.closed or held) and watched.options.timeout is not None:
                key = fresh[0].keys[0] if isinstance(fresh[0], Bundle) else fresh[0].key
                since = max(self._late_since, watched.current[key].came)
                limits = [run.options.timeout or run.attempt_timeout or 0.0 for run in calls.values()]
                patience = 0.1 + GRACE * max(limits)
                waited = now - since - self.stood_since(since)
                assert fresh[0].started is not None or waited <= patience, "a key waits without a clock"

    def closes(self, number: int) -> None:
        """The run ends, early or not."""
        self.runs[number].closed = True
