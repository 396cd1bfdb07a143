"""
What limits the tasks of a source, in one sentence, and what would make them faster, with the predicted gain.

The rules look at where the seconds went (`clock.py`) and at how many of the call slots were in use. The rules that find
a fault of the source are tried first. The other rules look for what took the largest part of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..reports.model import Model, distinct_behind

if TYPE_CHECKING:
    from .stats import Stats
    from .view import Advice

__all__ = ["Situation", "advice", "arithmetic", "sentence"]

BUSY = 0.7
"""If at least this share of the call slots is in use, the number of slots limits the tasks."""
REFUSED = 0.05
"""If more than this share of the keys was sent again or failed, the sentence says that the source refuses keys."""
LARGE = 0.25
"""The sentence names a limit that took more than this share of the time, even if something else took more."""
SPARED = ("pause", "breaker", "refusals")
"""Reasons for which calls are held back to protect the source."""
HOT = 0.2
"""If a key has at least this share of the rows, the sentence names the key."""
WIDE = 16 * 1024
"""If values have more bytes than this, on average, and often fill `window_bytes`, the sentence names their size."""
WORTH = 1.15
"""A change is not advised if its predicted gain is smaller than this; 1.15 means 1.15 times as fast."""
SHUFFLE_WORTH = 1.5
"""A shuffle is advised if, as estimated, tasks have sent each distinct key at least this many times on average."""
MANY_KEYS = 1_000
"""If fewer keys than this were sent, no shuffle is advised."""
ENOUGH_CALLS = 20
"""If fewer calls than this were made, neither a larger batch_size nor a larger capacity is advised."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """
    What is known about the tasks of one source.

    Attributes:
        source: Name of the source.
        stats: Statistics of all tasks of the source, or of its tasks in the last minute.
        capacity: Most calls in flight per task.
        capacity_max: Upper bound of the capacity, if the engine tunes the capacity; None: the capacity is fixed.
        batch_size: Keys per call.
        batch_size_max: Most keys per call that the connector takes.
        rate: Calls per second and process; None: no limit.
        cached: Whether the option `cache` is set.
        running: Number of tasks that run now; if no task runs now, the average number that ran at the same time.
        slots: Number of tasks that can run at the same time; None: not known.
        in_flight: Calls in flight now, per running task; None: the tasks have ended.
        away: Seconds for which the source has been unavailable; None: the source is available.
    """

    source: str
    stats: Stats
    capacity: int
    batch_size: int
    batch_size_max: int
    rate: float | None = None
    cached: bool = False
    running: float = 1
    slots: int | None = None
    in_flight: int | None = None
    capacity_max: int | None = None
    away: float | None = None

    @property
    def busy(self) -> float:
        """The share of the call slots that were in use."""
        return self.stats.calls_took.sum / self.stats.slot_seconds if self.stats.slot_seconds else 0.0

    @property
    def mean_capacity(self) -> float:
        """The number of calls that were allowed in flight, on average."""
        found = self.capacity_max is not None and self.stats.seconds
        return self.stats.slot_seconds / self.stats.seconds if found else self.capacity

    @property
    def fill(self) -> float:
        """The number of keys per call, on average."""
        return self.stats.fill.mean or (self.stats.sent / self.stats.calls if self.stats.calls else 1.0)

    @property
    def refused(self) -> float:
        """The share of the sent keys that were sent again or failed; keys sent again after an outage are left out."""
        again = sum(count for reason, count in self.stats.retries.items() if reason != "missing")
        return (again + self.stats.errors + self.stats.timeouts) / self.stats.sent if self.stats.sent else 0.0

    @property
    def value_bytes(self) -> float:
        """Bytes of a value, on average."""
        return self.stats.bytes / self.stats.ok if self.stats.ok else 0.0

    def share(self, seconds: float) -> float:
        """Return *seconds* as a share of the tasks' time."""
        return seconds / self.stats.seconds if self.stats.seconds else 0.0

    def held(self, reason: str) -> float:
        """Return the share of the time in which *reason* held calls back."""
        return self.share(self.stats.limits.get(reason, 0.0))

    @property
    def room_below_rate(self) -> float:
        """The calls that the rate limit allows, divided by the calls made; infinite if there is no limit or no call."""
        if self.rate is None or not self.stats.calls:
            return math.inf
        return self.rate * self.stats.seconds / self.stats.calls

    def gain(self, **seconds: float) -> float:
        """
        Return how many times as fast the tasks would be if some parts of their time took the given *seconds* instead.

        The parts are `source`, `limit`, `input` and `output`; parts that are not given keep their seconds.
        """
        stats = self.stats
        now = {name: getattr(stats, f"{name}_seconds") for name in ("source", "limit", "input", "output")}
        then = sum({**now, **seconds}.values()) + stats.cpu_seconds
        return stats.seconds / then if then > 0 else 1.0


def limiting(it: Situation) -> str:
    """Return the name of what limits the tasks; `sentence` has a text for each name."""
    stats = it.stats
    if it.away is not None:
        return "away"
    if stats.seconds == 0:
        return "nothing"
    if it.held("outage") > LARGE:
        return "outage"
    if it.refused > REFUSED:
        return "refused"
    if sum(map(it.held, SPARED)) > LARGE:
        return max(SPARED, key=it.held)
    shares = {name: getattr(stats, f"{name}_seconds") for name in ("source", "limit", "input", "output", "cpu")}
    most = max(shares, key=lambda name: shares[name])
    if it.share(stats.bytes_seconds) > LARGE and it.value_bytes > WIDE:
        return "wide"
    if most == "limit":
        return max(stats.limits, key=lambda name: stats.limits[name], default="rate")
    if most == "source" and it.busy < BUSY:
        return "few keys"
    return most


def sentence(it: Situation) -> str:
    """Return one plain sentence on what limits the tasks now."""
    stats, kind = it.stats, limiting(it)
    median = stats.calls_took.quantile(0.5)
    took = "" if median is None else f", median {_seconds(median)}"
    if kind == "nothing":
        asked = f"Asked as a fallback: {stats.calls:,} calls{took}."
        return asked if stats.calls else "No task has run yet."
    in_flight = round(it.busy * it.capacity) if it.in_flight is None else it.in_flight
    flight = f"{in_flight:,} of {it.capacity:,} calls in flight"
    would = _would(next(iter(advice(it)), None))
    texts = {
        "away": f"Source away for {_seconds(it.away or 0.0)}; its rows wait",
        "outage": f"Source was away for {_seconds(stats.limits.get('outage', 0.0))} of {_seconds(stats.seconds)}",
        "refused": f"The source refuses {it.refused:.0%} of the keys{_most(stats)}",
        "wide": f"Values of {_bytes(it.value_bytes)} fill window_bytes before Spark takes them{would}",
        "rate": f"Rate limit{'' if it.rate is None else f' of {it.rate:g}/s'} reached{would}",
        "limit": "Limit on the calls in flight of the whole job reached",
        "budget": "The budget of the job is nearly spent: calls wait for what others have reserved",
        "pause": f"The source has asked for pauses, {it.held('pause'):.0%} of the time",
        "refusals": f"The source refuses some calls, so fewer leave, {it.held('refusals'):.0%} of the time",
        "breaker": f"Calls were held back {it.held('breaker'):.0%} of the time, because most of them failed",
        "source": f"Waiting for the source: {flight}{took}{would}",
        "few keys": f"Waiting for the source with few keys at a time: {it.busy:.0%} of the slots in use{took}{would}",
        "input": f"Waiting for Spark's input: the source could answer more{would}",
        "output": f"Waiting for Spark to take rows: it is slower than the source{would}",
        "cpu": f"The workers compute: {it.share(stats.cpu_seconds):.0%} of their time{would}",
    }
    text = texts.get(kind, texts["source"])
    hot = _hot(it)
    return f"{text}.{hot and ' '}{hot}"


def arithmetic(it: Situation) -> str:
    """Return a sentence that compares the tasks' time with the least time needed at this capacity and rate."""
    stats = it.stats
    if not (stats.calls and stats.seconds):
        return ""
    calls = round(stats.calls / max(1, stats.tasks))
    latency = stats.calls_took.mean or 0.0
    each = Model(capacity=it.mean_capacity, batch_size=1, latency=latency, rate=it.rate).seconds(calls)
    least = min(stats.seconds, stats.tasks * each)
    by_rate = "" if it.rate is None else f" at {it.rate:g} calls per second"
    return (
        f"{stats.tasks:,} tasks took {_seconds(stats.seconds)} in all; {calls:,} calls each, of "
        f"{_seconds(latency)}, {it.mean_capacity:,.0f} at a time{by_rate}, need at least {_seconds(least)}: "
        f"{least / stats.seconds:.0%} of it."
    )


def advice(it: Situation) -> Iterator[Advice]:
    """
    Yield the changes that would make the tasks faster.

    The advice to use idle task slots comes first. The other changes follow, those with the largest gain first.
    """
    found = [each for each in _advice(it, limiting(it)) if each["gain"] is None or each["gain"] >= WORTH]
    yield from sorted(found, key=lambda each: (each["option"] != "repartition", -(each["gain"] or 0.0)))


def _advice(it: Situation, kind: str) -> Iterator[Advice]:
    stats = it.stats
    enough = stats.calls >= ENOUGH_CALLS
    if kind in ("refused", *SPARED):
        good = stats.ok + stats.missing
        per_second = good / max(1.0, it.fill) / stats.seconds if stats.seconds else 0.0
        yield _told(
            f"The source takes about {_number(per_second)} calls per second of a task: a rate= below that"
            f"{', or a smaller capacity=' if it.capacity_max is None else ''}, spares it the calls that it refuses.",
            "rate",
            _number(per_second).replace(",", "_"),
        )
    elif kind == "rate" and it.rate is not None:
        gain = it.gain(limit=stats.limit_seconds / 2)
        yield _told("If the source allows it, raise rate=.", "rate", f"{2 * it.rate:g}", gain)
        if not it.cached and stats.keys > stats.ok:
            yield _told("A cache= spares the calls for keys that come again.", "cache", "Cache(ttl=600)")
    elif kind == "wide":
        yield _told("Ask for fewer fields, or raise window_bytes=.", "window_bytes", "2**28")
    elif kind == "source" and enough and it.batch_size_max > it.batch_size and it.fill >= 0.8 * it.batch_size:
        size = min(it.batch_size_max, 8 * it.batch_size if it.batch_size > 1 else 100)
        gain = it.gain(source=stats.source_seconds * it.batch_size / size)
        yield _told("More keys per call need fewer calls.", "batch_size", f"{size}", gain)
    elif kind == "source" and enough and it.capacity >= (it.capacity_max or 0):
        # With capacity="auto", a higher maximum is advised only if the present capacity has reached its maximum.
        factor = 4 if it.share(stats.source_seconds) > 0.75 else 2
        gain = min(it.gain(source=stats.source_seconds / factor), it.room_below_rate)
        yield _told(
            "More calls in flight, if the source can serve them as quickly.",
            "capacity" if it.capacity_max is None else "max_capacity",
            f"{factor * it.capacity}",
            gain,
        )
    yield from _shuffle(it, kind)
    # Tasks that wait for input would also wait for input after a repartition, so it is not advised to them.
    if it.slots is not None and kind in ("source", "few keys", "output", "cpu") and it.running <= it.slots / 1.5:
        gain = it.slots / max(1.0, it.running)
        yield _told(
            f"{it.running:.2g} of {it.slots} task slots have work: df.repartition({it.slots}) before enrich.",
            "repartition",
            f"{it.slots}",
            gain,
        )


def _shuffle(it: Situation, kind: str) -> Iterator[Advice]:
    """
    Yield the advice to shuffle if several tasks have probably sent the same keys.

    A shuffle brings all rows with the same key to one task, which sends this key only once.
    """
    stats = it.stats
    if stats.tasks < 2 or stats.sent < MANY_KEYS or kind not in ("source", "rate", "limit", "refused", "pause"):
        return
    behind = distinct_behind(stats.rows / stats.tasks, stats.sent / stats.tasks)
    if stats.sent >= SHUFFLE_WORTH * behind:
        yield _told(
            f"{stats.tasks:,} tasks have sent {stats.sent:,} keys. If they have the same keys, enrich_frame(..., "
            f"shuffle=True) sends about {_about(behind)}.",
            "shuffle",
            "True",
        )


def _about(number: float) -> str:
    """Return *number* with two significant digits."""
    size = 10 ** max(0, len(str(round(number))) - 2)
    return f"{round(number / size) * size:,}"


def _would(best: Advice | None) -> str:
    """Return the end of the text of `sentence`: what the *best* change would gain; empty if the gain is not known."""
    if best is None or best["gain"] is None:
        return ""
    change = "{value} tasks at the same time" if best["option"] == "repartition" else "{option}={value}"
    return f"; {change.format(**best)} would be {best['gain']:.2g} x as fast"


def _told(text: str, option: str, value: str, gain: float | None = None) -> Advice:
    return {"text": text, "option": option, "value": value, "gain": gain}


def _most(stats: Stats) -> str:
    reasons = {**stats.retries}
    for name, count in stats.failures.items():
        reasons[name] = reasons.get(name, 0) + count
    reasons.pop("missing", None)
    return f", mostly with {max(reasons, key=lambda name: reasons[name])}" if reasons else ""


def _hot(it: Situation) -> str:
    key, rows = max(it.stats.hot.items(), key=lambda entry: entry[1], default=("", 0))
    if not it.stats.rows or rows / it.stats.rows < HOT:
        return ""
    return f"One key takes {rows / it.stats.rows:.0%} of the rows ({key})."


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{_number(seconds / 60)} min" if seconds < 36_000 else f"{_number(seconds / 3600)} h"


def _number(number: float) -> str:
    """
    Return *number* with three significant digits, or rounded to a whole number from 100 on.

    Only numbers below 0.0001 get an exponent.
    """
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def _bytes(size: float) -> str:
    return f"{_number(size / 2**20)} MiB" if size >= 2**20 else f"{_number(size / 1024)} KiB"
