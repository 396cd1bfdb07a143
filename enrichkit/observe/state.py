"""
All that workers have pushed to a monitor, and its history second by second.

A task is known by the id of its run. A push replaces the one before of the same task, so pushes that come twice or not
at all change no total. Tasks that ended long ago are added up, so that a stream of a million tasks takes no more
memory.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .stats import Distribution, Stats

__all__ = ["Moment", "State", "Task"]

TASKS_MAX = 500
"""Ended tasks that are kept one by one."""
MOMENTS_MAX = 1_200
"""Moments of the history that are kept; beyond that, two neighbours become one."""
LOST_AFTER = 10.0
"""Seconds without a push after which a running task counts as lost; it pushes once a second."""


@dataclass
class Task:
    """
    One run, as its last push tells it.

    Attributes:
        facts: What was pushed, without the statistics.
        stats: The statistics so far.
        seen: Time of the last push.
        state: `running`, `ok`, `failed`, `stopped` or `lost`.
    """

    facts: dict[str, Any]
    stats: Stats
    seen: float
    state: str

    @property
    def failed(self) -> bool:
        """Whether the attempt did not end well, so that Spark does its work again, or has done it elsewhere."""
        return self.state in ("failed", "lost")


@dataclass(frozen=True)
class Moment:
    """
    The change of all statistics in one step of the history.

    Attributes:
        at: Time of its end, in seconds since 1970.
        seconds: Its length.
        stats: What was done in it.
        in_flight: Calls in flight at its end.
        capacity: Slots of the tasks that ran at its end.
    """

    at: float
    seconds: float
    stats: Stats
    in_flight: int
    capacity: int


@dataclass
class Away:
    """A time in which a source was away; *until* is None while it is."""

    source: str
    since: float
    until: float | None = None


@dataclass
class _Ended:
    """Tasks of a source that were added up: the facts of one, the statistics of all and of those that failed."""

    facts: dict[str, Any]
    stats: Stats = field(default_factory=Stats)
    failed: Stats = field(default_factory=Stats)


class State:
    """
    What a monitor knows. Each method may be called from any thread.

    Args:
        now: Time at which the monitor began, in seconds since 1970.

    Attributes:
        began: That time.
        tasks: By the id of the run, in the order of the first push.
        history: The moments so far.
        away: Times in which a source was away.
        ended: Called with each task when it ends, by the thread that pushes; None: nobody asks.
    """

    def __init__(self, now: float) -> None:
        self.began = now
        self.tasks: dict[str, Task] = {}
        self.history: deque[Moment] = deque()
        self.away: list[Away] = []
        self.ended: Callable[[Task], None] | None = None
        self._ended: dict[str, _Ended] = {}
        self._before = Stats()
        self._ticked = now
        self._lock = threading.RLock()

    def push(self, body: bytes, now: float) -> None:
        """
        Take what a worker has pushed.

        Raises:
            ValueError: *body* is nothing that a worker pushes. Nothing of it was taken.
        """
        read = [_read(task, now) for task in _tasks_of(body)]
        with self._lock:
            for task in read:
                before = self.tasks.get(task.facts["id"])
                if before is None:
                    self._note_repeated(task)
                if before is None or before.state in ("running", "lost"):
                    self.tasks[task.facts["id"]] = task
                    if self.ended is not None and task.state != "running":
                        self.ended(task)
            self._fold()

    def tick(self, now: float) -> None:
        """End the current moment of the history: once a second."""
        with self._lock:
            for task in self.tasks.values():
                if task.state == "running" and now - task.seen > LOST_AFTER:
                    task.state = "lost"
            self._note_outages(now)
            total = self.total()
            running = [task for task in self.tasks.values() if task.state == "running"]
            self.history.append(
                Moment(
                    now,
                    now - self._ticked,
                    difference(total, self._before),
                    sum(task.facts["in_flight"] for task in running),
                    sum(task.facts["capacity"] for task in running),
                )
            )
            self._before, self._ticked = total, now
            if len(self.history) > MOMENTS_MAX:
                self._halve()

    def sources(self) -> list[str]:
        """Return the names of the sources, in the order in which they came."""
        with self._lock:
            return list(dict.fromkeys([*self._ended, *(task.facts["source"] for task in self.tasks.values())]))

    def total(self, source: str | None = None, *, failed: bool = False) -> Stats:
        """Return the statistics of all tasks of *source* or of all sources; *failed*: of those that ended badly."""
        with self._lock:
            parts = [
                ended.failed if failed else ended.stats for name, ended in self._ended.items() if source in (None, name)
            ]
            parts += [task.stats for task in self.of(source) if task.failed or not failed]
            return sum(parts, Stats())

    def of(self, source: str | None = None) -> list[Task]:
        """Return the tasks of *source*, or of all sources, that were not added up."""
        with self._lock:
            return [task for task in self.tasks.values() if source in (None, task.facts["source"])]

    def facts(self, source: str) -> dict[str, Any]:
        """Return the facts of one task of *source*, the last one if it was not added up."""
        with self._lock:
            tasks = self.of(source)
            return tasks[-1].facts if tasks else self._ended[source].facts

    def _note_repeated(self, task: Task) -> None:
        """Note that Spark makes the work of earlier attempts again, of which *task* is a later one."""
        who = ("source", "stage", "partition", "query", "batch")
        for other in self.tasks.values() if task.facts["attempt"] else ():
            same = all(other.facts[name] == task.facts[name] for name in who)
            if same and other.facts["attempt"] < task.facts["attempt"]:
                other.state = "lost" if other.state == "running" else "failed" if other.state == "ok" else other.state

    def _fold(self) -> None:
        """Add up the oldest ended tasks when there are too many."""
        ended = [key for key, task in self.tasks.items() if task.state not in ("running", "lost")]
        for key in ended[: max(0, len(ended) - TASKS_MAX)]:
            task = self.tasks.pop(key)
            into = self._ended.setdefault(task.facts["source"], _Ended(task.facts))
            into.stats += task.stats
            if task.failed:
                into.failed += task.stats

    def _note_outages(self, now: float) -> None:
        """Note which sources are away now, as the running tasks tell."""
        away: dict[str, float] = {}
        for task in self.tasks.values():
            if task.state == "running" and task.facts["away"] is not None:
                away[task.facts["source"]] = max(task.facts["away"], away.get(task.facts["source"], 0.0))
        open_now = {entry.source: entry for entry in self.away if entry.until is None}
        for source, seconds in away.items():
            if source not in open_now:
                self.away.append(Away(source, now - seconds))
        for source, entry in open_now.items():
            if source not in away:
                entry.until = now

    def _halve(self) -> None:
        pairs = list(self.history)
        odd = pairs[len(pairs) // 2 * 2 :]
        self.history = deque(
            Moment(
                second.at,
                first.seconds + second.seconds,
                first.stats + second.stats,
                max(first.in_flight, second.in_flight),
                max(first.capacity, second.capacity),
            )
            for first, second in zip(pairs[::2], pairs[1::2], strict=False)
        )
        self.history.extend(odd)


_CHANGES = (
    *(
        "tasks",
        "seconds",
        "rows",
        "null_keys",
        "keys",
        "shared",
        "preloaded",
        "reused",
        "journaled",
        "cached",
        "stale",
        "tiered",
        "skipped",
        "calls",
        "sent",
        "returned",
        "bytes",
        "late",
        "metered",
    ),
    *("ok", "missing", "timeouts", "errors", "rejected", "over_budget", "slot_seconds"),
    *("source_seconds", "limit_seconds", "input_seconds", "output_seconds", "cpu_seconds"),
)


def difference(total: Stats, before: Stats) -> Stats:
    """Return what was done between *before* and *total*, as far as a subtraction can tell it."""
    parts: dict[str, Any] = {}
    for name in _CHANGES:
        parts[name] = max(type(getattr(total, name))(0), getattr(total, name) - getattr(before, name))
    for name in ("retries", "failures", "spent"):
        earlier = getattr(before, name)
        parts[name] = {key: max(0, count - earlier.get(key, 0)) for key, count in getattr(total, name).items()}
    took: Distribution = total.calls_took - before.calls_took
    return Stats(calls_took=took, **parts)


def _tasks_of(body: bytes) -> Iterator[dict[str, Any]]:
    try:
        pushed = json.loads(body)
        tasks = pushed["tasks"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"This is no push of a worker: {type(error).__name__}.") from None
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise ValueError("This is no push of a worker: `tasks` is no list of tasks.")
    yield from tasks


_FACTS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "source": (str,),
    "plan": (str,),
    "connector": (str,),
    "stage": (int,),
    "partition": (int,),
    "attempt": (int,),
    "host": (str,),
    "pid": (int,),
    "began": (int, float),
    "state": (str,),
    "capacity": (int,),
    "batch_size": (int,),
    "batch_size_max": (int,),
    "emitted": (int,),
    "in_flight": (int,),
    "lag": (int, float),
}
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "query": (str,),
    "batch": (int,),
    "error": (str,),
    "rate": (int, float),
    "away": (int, float),
    "held": (str,),
    "cache": (bool,),
    "capacity_max": (int,),
}


def _read(task: dict[str, Any], now: float) -> Task:
    """Return *task*, checked field by field: what comes from the network is not trusted."""
    facts: dict[str, Any] = {}
    for name, types in _FACTS.items():
        if not isinstance(task.get(name), types):
            raise ValueError(f"This is no push of a worker: the field {name!r} of a task is {task.get(name)!r}.")
        facts[name] = task[name]
    for name, types in _OPTIONAL.items():
        facts[name] = task.get(name) if isinstance(task.get(name), types) else None
    return Task(facts, Stats.read(task.get("stats") or {}), now, facts["state"])
