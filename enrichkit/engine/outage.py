"""
Outages: the source answers nobody, so a call that fails says nothing about its keys.

The source is *away* from the first call that finds it unavailable, if no other call has ended well since that call
started. The outage ends when a call ends well that was sent no earlier than the last failed call. Meanwhile one call at
a time goes out as a probe, with keys that have not failed if there are any. When a probe hangs, the next one is sent a
second after it: the probe may have met the one server of several that is still gone. After the outage, the number of
calls in flight ramps up by doubling, so that a source that has just come back is not called by all slots at once.

In two cases the source was not away, and the failures are put down to the failed keys. In the first case, the call
that is answered started before the first failure came, but no earlier than the last call that failed. In the second
case, only the keys of one call have failed, and the probe is answered. In neither case is there a ramp: a source
that refuses some calls immediately must not lose its throughput.

When calls start at different times, the first calls that fail in an outage started before other calls ended well. So
after each such failure the source is in *doubt*, until a call ends well that started no earlier than the failed one: an
answer to an older call says nothing about the time after that call. Meanwhile one call is sent every 50 ms. Otherwise a
slot that an old answer sets free would send its next call into the same outage.

The log has a line at the beginning of an outage and one at its end. For a minute after the log has reported
the end of an outage, another outage is logged only when it has lasted five seconds; the next line about a beginning
gives the number of outages that were not logged. Otherwise a source whose connections break every second would fill
each worker's log.
"""

from __future__ import annotations

import logging
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..errors import TransientError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .records import InFlight, Lookup

__all__ = ["Outage"]

_log = logging.getLogger("enrichkit")

OWN = 4
"""If each key of a call was refused this often while other calls were answered, a further refusal begins no outage."""


class Outage:
    """
    Whether the source is away, and which calls can be sent during an outage and just after it.

    Args:
        name: Name of the source in messages.
        capacity: Calls in flight at which the ramp ends.
        rng: Draws the waits between probes.

    Attributes:
        since: Loop time since which the source is away; None: it is not.
        alone: The lookups of the call that began this outage, as long as each failed call had at least one of these
            lookups: their keys may be the reason for the failures. Empty when other calls have failed, too, or a call
            has failed before it was sent. The dict serves as a set that keeps its order.
        suspects: The lookups of all calls that have failed in this outage.
        last: The error of the last failed call.
        probes: Probes of this outage.
        repeated: Calls of this outage whose keys go out again.
        seconds: Total seconds of the outages that are over.
    """

    PROBE_FIRST = 0.05
    PROBE_MAX = 1.0
    HOLD = 0.05
    """Seconds after which a slot that has to wait for the end of another call looks again."""
    QUIET = 60.0
    """For this many seconds after the log has reported the end of an outage, short outages are counted, not logged."""
    SHORT = 5.0
    """Seconds after which an outage is no longer short."""

    __slots__ = (
        "_allowed",
        "_capacity",
        "_clock",
        "_doubt",
        "_failing_since",
        "_last_failed",
        "_logged",
        "_name",
        "_next_in_doubt",
        "_next_probe",
        "_probe",
        "_quiet_until",
        "_rng",
        "_untold",
        "_wait",
        "alone",
        "last",
        "probes",
        "repeated",
        "seconds",
        "since",
        "suspects",
    )

    def __init__(self, name: str, capacity: int, rng: random.Random) -> None:
        self._name = name
        self._capacity = capacity
        self._rng = rng
        self.since: float | None = None
        self.alone: dict[Lookup, None] = {}
        self.suspects: dict[Lookup, None] = {}
        self.last: TransientError | None = None
        self.probes = self.repeated = 0
        self.seconds = 0.0
        self._logged = False
        self._quiet_until = 0.0  # loop time until which short outages are not logged
        self._untold = 0  # short outages since the last line in the log
        self._clock = ""  # time of day at which the outage began, for the message
        self._probe: InFlight | None = None
        self._wait = self._next_probe = 0.0
        self._doubt: float | None = None  # the latest start of a call that failed while others were answered
        self._next_in_doubt = 0.0
        self._failing_since = 0.0  # when the first failure of this doubt or outage came
        self._last_failed = 0.0  # the latest start of a call that failed in this outage
        self._allowed: int | None = None  # calls in flight during the ramp; None: there is no ramp

    @property
    def holds(self) -> bool:
        """Whether calls may have to wait: the source is away or in doubt, or the calls still ramp up."""
        return self.since is not None or self._allowed is not None or self._doubt is not None

    def delay(self, now: float, in_flight: int) -> float:
        """Return 0 if a call can be sent now beside *in_flight* others, else the seconds after which to ask again."""
        if self.since is not None:
            wait = max(0.0, self._next_probe - now)
            return wait if self._probe is None else min(wait, self.HOLD)  # the probe may fail before that
        if self._allowed is not None and in_flight >= self._allowed:
            return self.HOLD
        return 0.0 if self._doubt is None else max(0.0, self._next_in_doubt - now)

    def sent(self, call: InFlight) -> None:
        """Record that *call* is sent; while the source is away, the call is the probe."""
        self._next_in_doubt = call.started + self.HOLD
        if self.since is not None:
            self._probe = call
            self._next_probe = call.started + self.PROBE_MAX  # unless the probe fails before that
            self.probes += 1
            # Log nothing at the first probe if only one group has failed: its keys may be the reason.
            known = not self.alone or self.probes > 1
            if known and not self._logged and call.started >= min(self._quiet_until, self.since + self.SHORT):
                self._logged = True
                _log.warning(
                    "%s: the source is away. The last call got: %s Keys wait for at most stall_timeout, and one call "
                    "at a time asks whether the source is back.%s",
                    self._name,
                    _sentence(self.last),
                    self._tell_others(),
                )

    def asks_with(self, call: InFlight) -> bool:
        """Whether *call* is the probe that asks whether the source is back."""
        return call is self._probe

    def unavailable(
        self, call: InFlight, error: TransientError, answered: bool, now: float, *, doubt: bool = True
    ) -> bool:
        """
        Record that *call* as a whole ended with *error*.

        Args:
            call: The call; its keys go out again when the source is away.
            error: An `UnavailableError` of the whole source may begin an outage; any `TransientError` continues one.
            answered: Whether another call has ended well since *call* started.
            now: Loop time.
            doubt: Whether the error puts the source in doubt if another call has ended well.

        Returns:
            Whether the source is away.
        """
        if self.since is None:
            if not isinstance(error, UnavailableError) or error.node is not None:
                return False
            if self._doubt is None:
                self._failing_since = now
            if answered and not doubt:
                return False
            if answered or _refused_beside_answers(call):
                self._doubt = max(call.started, self._doubt or 0.0)
                self._next_in_doubt = now + self.HOLD
                return False
            self._begin(now)
            self.alone = _waiting(call)
        if not getattr(error, "sent", True) or self.alone.keys().isdisjoint(call.held()):
            self.alone = {}
        self.suspects |= _waiting(call)
        self._last_failed = max(self._last_failed, call.started)
        self.last = error
        self.repeated += 1
        return True

    def gave_up(self, call: InFlight, now: float) -> None:
        """Record that *call* ended without an answer; if it was the last probe, another one goes out later."""
        if call is self._probe:
            self._probe = None
            self._schedule(now)

    def answered(self, call: InFlight, now: float, in_flight: int) -> list[Lookup] | None:
        """
        Record that *call* ended well, after which *in_flight* others are in flight.

        Returns:
            None unless *call* ends an outage. Otherwise the lookups that failed through their own fault; an empty list
            if the source was indeed away.
        """
        if self._doubt is not None and call.started >= self._doubt:
            self._doubt = None
        if self.since is None:
            if self._allowed is not None:
                self._allowed += 1  # one more for each answer: so each round of calls doubles the number
                if self._allowed > self._capacity:
                    self._allowed = None
            return None
        if call.started < self._last_failed:
            return None  # the source may have answered an older call before it went away
        suspects = self.suspects if call.started <= self._failing_since else self.alone
        blamed = [lookup for lookup in suspects if not lookup.settled]
        lasted = now - self.since
        self.since = self._probe = self.last = None
        self.alone, self.suspects = {}, {}  # to free memory: lookups, like errors, keep many objects alive
        self._last_failed = 0.0
        self.seconds += lasted
        self._allowed = None if blamed else max(2, in_flight + 1)
        if self._logged:
            self._quiet_until = now + self.QUIET
            _log.warning(
                "%s: the source is back after %.1f s. Calls to repeat: %d, of which %d asked whether it was back.",
                self._name,
                lasted,
                self.repeated,
                self.probes - 1,
            )
        else:
            self._untold += self.probes > 0 and not blamed  # the outages that the statistics count
        return blamed

    def forget(self, lookups: Iterable[Any]) -> None:
        """Forget *lookups*, whose run ends early: it no longer matters whether they failed through their own fault."""
        if self.suspects:
            for lookup in lookups:
                self.suspects.pop(lookup, None)
                self.alone.pop(lookup, None)

    def stood_still(self, gap: float) -> None:
        """Move all recorded times by *gap* seconds, as the starts of the calls are moved: their order stays."""
        if self.since is not None:
            self.since += gap
            self._last_failed += gap
        if self._doubt is not None:
            self._doubt += gap
        self._failing_since += gap

    def describe(self, now: float) -> str:
        """Return for how long the source has been away, since when, and what the last call got."""
        assert self.since is not None
        calls = f"The last of {self.probes} calls that asked whether it is back" if self.probes else "The last call"
        asked = getattr(self.last, "retry_after", None) or 0.0
        pause = f" It asked to be left alone for {asked:.3g} s." if asked > 0 else ""
        return (
            f"the source has been away for {now - self.since:.0f} s, since {self._clock} UTC. "
            f"{calls} got: {_sentence(self.last)}{pause}"
        )

    def _tell_others(self) -> str:
        """Return a sentence with the number of outages that were not logged, "" if there are none; count from 0."""
        count, self._untold = self._untold, 0
        return f" Shorter outages since the last one that was logged: {count:,}." if count else ""

    def _begin(self, now: float) -> None:
        self.since = now
        self._doubt = None
        self.probes = self.repeated = 0
        self._clock = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
        self._allowed = None
        self._logged = False
        self._wait = self.PROBE_FIRST / 2
        self._schedule(now)

    def _schedule(self, now: float) -> None:
        """
        Set the time of the next probe: after twice the last wait, at most `PROBE_MAX`, with jitter.

        The jitter takes at most half of the wait. With the full jitter of a back-off, two probes per second would be
        sent on average, and often three.
        """
        self._wait = min(self.PROBE_MAX, 2 * self._wait)
        self._next_probe = now + self._wait * self._rng.uniform(0.5, 1.0)


def _refused_beside_answers(call: InFlight) -> bool:
    """Whether each key of *call* was refused so often, while others were answered, that the key may be the reason."""
    waiting = _waiting(call)
    return bool(waiting) and all(getattr(lookup, "refusals", 0) >= OWN for lookup in waiting)


def _waiting(call: InFlight) -> dict[Lookup, None]:
    """Return the lookups that wait for *call* alone, in order."""
    return dict.fromkeys(lookup for lookup in call.held() if lookup.waits_for(call))


def _sentence(error: BaseException | None) -> str:
    return f"{str(error).rstrip('.')}."
