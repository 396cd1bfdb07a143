"""
Outages, in which the source answers no call, so that a failed call says nothing about its keys.

The source counts as *away* once a call finds it unavailable, if no other call has been answered since that call
started. The outage ends when the source answers a call that was sent no earlier than the last of the failed calls.
Until then, only one call at a time is sent, as a probe, if possible with keys that have not failed. If a probe hangs,
the next probe is sent a second later, because the source may have several servers, and the first probe may have reached
a server that is still down. After the outage, the number of calls in flight is doubled step by step, so that a source
that has just come back is not called by all slots at once.

In two cases it turns out that the source was not away, and the failed keys are blamed for the failures. In the first
case, the call whose answer ends the outage was sent before the first failure came in, but no earlier than the last of
the failed calls. In the second case, only the keys of one call have failed, and a probe is answered. In both cases all
slots may send calls again at once: if the number of calls were doubled step by step, a source that refuses some calls
immediately would lose throughput.

Calls overlap, so the first call that fails in an outage may have been sent before another call was answered. After each
such failure the source is in *doubt* until it answers a call that was sent no earlier than the failed one. An answer to
an older call does not show that the source still works. While the source is in doubt, one call is sent every 50 ms.
Without this limit, each slot whose older call is answered would send its next call into the same outage.

The beginning and the end of an outage are logged. For a minute after the log has reported the end of an outage, another
outage is logged only once it has lasted five seconds. The next log line about the beginning of an outage gives the
number of outages that were not logged. If all outages were logged, a source whose connections break every second would
fill each worker's log.
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
"""
If each key of a call was refused this often while other calls were answered, the keys may be the reason for the
refusals, so a further refusal of the call begins no outage.
"""


class Outage:
    """
    The state of the source (away or not), and of the calls that may be sent during an outage and just after it.

    Args:
        name: Name of the source in messages.
        capacity: Number of calls in flight at which the doubling after an outage ends.
        rng: Draws the waits between probes.

    Attributes:
        since: Loop time since which the source has been away; None: the source is not away.
        alone: The lookups of the call that began this outage, as long as their keys may be the reason for the failures.
            If a call without these lookups fails, or if a call could not even be sent, the keys are not the reason, and
            the dict becomes empty. The dict serves as an ordered set.
        suspects: The lookups of all calls that have failed in this outage.
        last: The error of the last failed call.
        probes: Number of probes sent in this outage.
        repeated: Number of failed calls of this outage whose keys are sent again.
        seconds: Total seconds of the outages that are over.
    """

    PROBE_FIRST = 0.05
    PROBE_MAX = 1.0
    HOLD = 0.05
    """Seconds after which a slot that waits asks `delay` again, and between two calls while the source is in doubt."""
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
        self._untold = 0  # number of short outages that the log has not mentioned yet
        self._clock = ""  # time of day at which the outage began, for the message
        self._probe: InFlight | None = None
        self._wait = self._next_probe = 0.0
        # The latest start of a call that failed while others were answered; None: the source is not in doubt.
        self._doubt: float | None = None
        self._next_in_doubt = 0.0
        self._failing_since = 0.0  # loop time of the failure with which this doubt or outage began
        self._last_failed = 0.0  # the latest start of a call that failed in this outage
        self._allowed: int | None = None  # calls allowed in flight after an outage; None: as many as there are slots

    @property
    def holds(self) -> bool:
        """Whether calls may have to wait: the source is away or in doubt, or has just come back."""
        return self.since is not None or self._allowed is not None or self._doubt is not None

    def delay(self, now: float, in_flight: int) -> float:
        """
        Return 0 if a call can be sent now beside *in_flight* others, else the seconds after which the gate asks again.
        """
        if self.since is not None:
            wait = max(0.0, self._next_probe - now)
            # If the probe in flight fails, the time of the next probe changes, so the gate has to ask again soon.
            return wait if self._probe is None else min(wait, self.HOLD)
        if self._allowed is not None and in_flight >= self._allowed:
            return self.HOLD
        return 0.0 if self._doubt is None else max(0.0, self._next_in_doubt - now)

    def sent(self, call: InFlight) -> None:
        """Record that *call* is sent; while the source is away, the call is the probe."""
        self._next_in_doubt = call.started + self.HOLD
        if self.since is not None:
            self._probe = call
            self._next_probe = call.started + self.PROBE_MAX  # if the probe fails sooner, `gave_up` sets another time
            self.probes += 1
            # Log nothing at the first probe if only the keys of one call have failed, because these keys may be the
            # reason.
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
            call: The call; its keys are sent again if the source is away.
            error: An `UnavailableError` of the whole source may begin an outage; any `TransientError` continues one.
            answered: Whether another call has been answered since *call* started.
            now: Loop time.
            doubt: Whether the error may put the source in doubt, which slows calls down. This is used only if
                *answered* is True.

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
        """Record that *call* ended without an answer; if it was the current probe, schedule the next one."""
        if call is self._probe:
            self._probe = None
            self._schedule(now)

    def answered(self, call: InFlight, now: float, in_flight: int) -> list[Lookup] | None:
        """
        Record that *call* was answered; *in_flight* other calls are still in flight.

        Returns:
            None if *call* ends no outage. If it ends one: the lookups that failed through their own fault, or an empty
            list if the source was indeed away.
        """
        if self._doubt is not None and call.started >= self._doubt:
            self._doubt = None
        if self.since is None:
            if self._allowed is not None:
                self._allowed += 1  # one more for each answer, so each round of calls doubles the number
                if self._allowed > self._capacity:
                    self._allowed = None
            return None
        if call.started < self._last_failed:
            return None  # *call* is older than a failed call, so its answer may come from before the outage
        suspects = self.suspects if call.started <= self._failing_since else self.alone
        blamed = [lookup for lookup in suspects if not lookup.settled]
        lasted = now - self.since
        self.since = self._probe = self.last = None
        self.alone, self.suspects = {}, {}  # frees memory: the lookups and their errors keep many objects alive
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
            self._untold += self.probes > 0 and not blamed  # the statistics count the same outages
        return blamed

    def forget(self, lookups: Iterable[Any]) -> None:
        """Forget *lookups*, whose run ends early: it no longer matters whether they failed through their own fault."""
        if self.suspects:
            for lookup in lookups:
                self.suspects.pop(lookup, None)
                self.alone.pop(lookup, None)

    def stood_still(self, gap: float) -> None:
        """
        Add to all recorded times the *gap* seconds in which the process stood still.

        The watchdog also moves the start of each call, so that all these times keep their order.
        """
        if self.since is not None:
            self.since += gap
            self._last_failed += gap
        if self._doubt is not None:
            self._doubt += gap
        self._failing_since += gap

    def describe(self, now: float) -> str:
        """
        Return a text that says for how long the source has been away, since when, and what error the last call got.
        """
        assert self.since is not None
        calls = f"The last of {self.probes} calls that asked whether it is back" if self.probes else "The last call"
        asked = getattr(self.last, "retry_after", None) or 0.0
        pause = f" It asked to be left alone for {asked:.3g} s." if asked > 0 else ""
        return (
            f"the source has been away for {now - self.since:.0f} s, since {self._clock} UTC. "
            f"{calls} got: {_sentence(self.last)}{pause}"
        )

    def _tell_others(self) -> str:
        """Return a sentence with the number of outages that were not logged, or "" for none; reset the number to 0."""
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

        The jitter shortens the wait by at most half. If it could shorten the wait to 0, like the full jitter of a
        back-off, two probes per second would be sent on average, and often three.
        """
        self._wait = min(self.PROBE_MAX, 2 * self._wait)
        self._next_probe = now + self._wait * self._rng.uniform(0.5, 1.0)


def _refused_beside_answers(call: InFlight) -> bool:
    """Whether each key of *call* was refused at least `OWN` times while other calls were answered."""
    waiting = _waiting(call)
    return bool(waiting) and all(getattr(lookup, "refusals", 0) >= OWN for lookup in waiting)


def _waiting(call: InFlight) -> dict[Lookup, None]:
    """Return, in order, the lookups of *call* that wait for it, i.e. not for a retry or for a newer call."""
    return dict.fromkeys(lookup for lookup in call.held() if lookup.waits_for(call))


def _sentence(error: BaseException | None) -> str:
    return f"{str(error).rstrip('.')}."
