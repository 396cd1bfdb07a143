"""
`capacity="auto"`: how many calls may be in flight, found from the latency of the calls that end.

The algorithm is based on Gradient2 of concurrency-limits, a library of Netflix. In addition, the number grows by an
additive term, and falls by a factor for each refusal. Gradient2 compares the latency with its long-term average, which
keeps rising in a job that always has work. Here the latency is compared with that of an idle source, which is measured
from time to time with few calls in flight, as in TCP BBR.

After a time in which all calls failed, the allowed number doubles again and again, as in the slow start of TCP (RFC
5681), up to half of the number before that time.
"""

from __future__ import annotations

import math
from statistics import median

__all__ = ["Tuner"]


class Tuner:
    """
    The number of calls that may be in flight, between 1 and *most*. Lives on the loop thread.

    Args:
        most: Upper bound of the calls in flight.

    Attributes:
        allowed: Number of calls that may be in flight now.
    """

    START = 20
    TOLERANCE = 1.5  # up to this multiple of the latency of an idle source, there is no sign of a queue
    SMOOTHING = 0.2
    GRADIENT_MIN = 0.5
    DECREASE = 0.9
    WINDOW = 0.1  # seconds over which latencies are collected; longer if a call takes longer
    WINDOW_CALLS = 5
    MEMORY = 4.0  # seconds for which a number of calls that was refused is not tried again
    IDLE_PERIOD = 10.0  # seconds between two measurements of an idle source
    IDLE_SHARE = 0.05  # the measurements of an idle source take at most this share of the time
    STEEP = 5  # windows in a row at the smallest gradient, after which the idle source is measured at once
    IDLE_CALLS = 3

    __slots__ = (
        "_began",
        "_busiest",
        "_ceiling",
        "_cut_at",
        "_doubles_to",
        "_has_answered",
        "_idle",
        "_idle_at",
        "_limit",
        "_measuring_from",
        "_most",
        "_samples",
        "_steep",
        "allowed",
    )

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(self.START, most))
        self.allowed = int(self._limit)
        self._idle: float | None = None  # latency of the source without a queue
        self._idle_at = 0.0
        self._samples: list[float] = []
        self._began = 0.0
        self._busiest = 0
        self._steep = 0
        self._measuring_from: float | None = None  # loop time; calls that start later measure the idle source
        self._cut_at = -math.inf
        self._ceiling = float(most)
        self._has_answered = True  # whether a call that was sent after the last decrease was answered
        self._doubles_to = 0.0

    def answered(self, started: float, now: float, in_flight: int) -> bool:
        """Record that one of *in_flight* calls was answered; return whether more calls may be in flight than before."""
        before = self.allowed
        self._has_answered = self._has_answered or started >= self._cut_at
        if self._measuring_from is not None:
            if started >= self._measuring_from:
                self._samples.append(now - started)
                if len(self._samples) >= self.IDLE_CALLS:
                    self._measured(now)
            return self.allowed > before
        if not self._samples:
            self._began, self._busiest = now, 0
        self._samples.append(now - started)
        self._busiest = max(self._busiest, in_flight)
        if len(self._samples) >= self.WINDOW_CALLS and now - self._began >= max(self.WINDOW, self._idle or 0.0):
            self._window(now)
        return self.allowed > before

    def refused(self, started: float, now: float) -> None:
        """Record a call that was refused, failed, or became late; ignore a call sent before the last decrease."""
        if started < self._cut_at:
            return
        if self._has_answered:
            self._has_answered, self._doubles_to = False, self._limit / 2
        self._cut_at = now
        self._limit = max(1.0, self._limit * self.DECREASE)
        self._ceiling = self._limit
        if self._measuring_from is None:
            self._allow()

    def _window(self, now: float) -> None:
        """Adjust the limit to the median latency of the window that has ended."""
        latency, self._samples = median(self._samples), []
        if self._idle is None or latency < self._idle:
            self._idle, self._idle_at = latency, now
        gradient = min(1.0, max(self.GRADIENT_MIN, self.TOLERANCE * self._idle / max(latency, 1e-9)))
        self._steep = self._steep + 1 if gradient == self.GRADIENT_MIN else 0
        limit = self._limit * gradient + math.sqrt(self._limit)
        limit = self._limit + self.SMOOTHING * (limit - self._limit)
        if gradient < 1.0:
            self._doubles_to = 0.0
        elif self._limit < self._doubles_to:
            limit, self._ceiling = min(2.0 * self._limit, self._doubles_to), float(self._most)
        if limit > self._limit and self._busiest < self._limit / 2:
            limit = self._limit  # no increase: too few calls were in flight to show whether the source can take more
        if now - self._cut_at < self.MEMORY:
            limit = min(limit, self._ceiling)
        self._limit = min(float(self._most), max(1.0, limit))
        self._allow()
        period = max(self.IDLE_PERIOD, (latency + self._idle) / self.IDLE_SHARE)
        if self._steep >= self.STEEP or (now - self._idle_at >= period and gradient < 1.0):
            self._measure(now, latency)

    def _measure(self, now: float, latency: float) -> None:
        """Let few calls be in flight, so that the queue of the source, if it has one, becomes empty."""
        assert self._idle is not None
        self._steep = 0
        self._measuring_from = now + latency
        self.allowed = max(1, int(self._limit * self._idle / latency / 2))

    def _measured(self, now: float) -> None:
        """End the measurement, and take the median of its samples as the latency of the idle source."""
        self._idle, self._idle_at, self._samples = median(self._samples), now, []
        self._measuring_from = None
        self._allow()

    def _allow(self) -> None:
        self.allowed = max(1, round(self._limit))
