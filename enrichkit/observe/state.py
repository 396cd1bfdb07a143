"""
Everything that workers have pushed to a monitor, and the history of the totals, second by second.

A task is identified by the id of its run. A push replaces the previous push of the same task, so the totals stay right
when a push arrives twice or is lost. Tasks that ended long ago are added up to one sum per source, so that the memory
does not grow in a stream of a million tasks.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .stats import LARGEST, Distribution, Stats

__all__ = ["Moment", "State", "Task"]

TASKS_MAX = 500
"""Most ended tasks that are kept one by one; older ones are added to the sums of their sources."""
MOMENTS_MAX = 1_200
"""Most steps of the history, each a `Moment`; when there are more, each two successive steps are merged into one."""
LOST_AFTER = 10.0
"""Seconds without a push after which a running task, which pushes once a second, counts as lost."""
GIVEN_UP_AFTER = 60.0
"""Seconds without a push after which a lost task counts as ended, because no further push of it is expected."""
AWAY_MAX = 200
"""Most outages that are kept; the oldest are dropped."""
IDS_MAX = 20_000
"""Most ids of added-up tasks that are kept, so that a late push of such a task is not counted a second time."""


@dataclass
class Task:
    """
    One run of a task, as its last push describes it.

    Attributes:
        facts: The fields of the last push, without the statistics.
        stats: The statistics so far.
        seen: Time of the last push, in seconds since 1970.
        state: `running`, `ok`, `failed`, `stopped` or `lost`.
        repeated: Whether the task counts as failed, although it ended well, because a later attempt has begun.
    """

    facts: dict[str, Any]
    stats: Stats
    seen: float
    state: str
    repeated: bool = False

    @property
    def failed(self) -> bool:
        """Whether the task counts as failed or lost; Spark usually repeats the work of such a task in a new attempt."""
        return self.state in ("failed", "lost")

    def ended(self, now: float) -> bool:
        """Return whether no further push of the task is expected."""
        return self.state != "running" and (self.state != "lost" or now - self.seen > GIVEN_UP_AFTER)


@dataclass(frozen=True)
class Moment:
    """
    The change of all statistics in one step of the history.

    Attributes:
        at: Time of the end of the step, in seconds since 1970.
        seconds: Length of the step.
        stats: Statistics of what the tasks did in the step.
        in_flight: Calls in flight at the end of the step.
        capacity: Most calls that all running tasks together might have in flight at the end of the step.
    """

    at: float
    seconds: float
    stats: Stats
    in_flight: int
    capacity: int


@dataclass
class Away:
    """A time in which a source was away, i.e. unavailable; *until* is None while the source is still away."""

    source: str
    since: float
    until: float | None = None


@dataclass
class _Ended:
    """
    The sums of those ended tasks of a source that are no longer kept one by one.

    There is one sum over all these tasks and one over the failed ones. `facts` are the `Task.facts` of the task that
    was added first.
    """

    facts: dict[str, Any]
    stats: Stats = field(default_factory=Stats)
    failed: Stats = field(default_factory=Stats)
    emitted: int = 0
    emitted_by_failed: int = 0

    def add(self, task: Task) -> None:
        self.stats = _with_hottest(self.stats + task.stats)
        self.emitted += task.facts["emitted"]
        if task.failed:
            self.failed = _with_hottest(self.failed + task.stats)
            self.emitted_by_failed += task.facts["emitted"]


class State:
    """
    What a monitor knows. Each method may be called from any thread.

    Args:
        now: Time at which the monitor began, in seconds since 1970.

    Attributes:
        began: Time at which the monitor began.
        added: Number of ended tasks that were added to the sums of their sources, and are no longer in `tasks`.
        first: Time at which the first task began; None: no task has begun yet.
        tasks: The tasks that are kept one by one, by the id of the run, in the order of their first pushes.
        history: The steps of the history so far, one `Moment` each.
        away: The latest outages of all sources.
        ended: Function that is called with each task when the task ends; None: there is no such function. `push` calls
            the function, so the function must return at once.
    """

    def __init__(self, now: float) -> None:
        self.began = now
        self.added = 0
        self.first: float | None = None
        self.tasks: dict[str, Task] = {}
        self.history: deque[Moment] = deque()
        self.away: deque[Away] = deque(maxlen=AWAY_MAX)
        self.ended: Callable[[Task], None] | None = None
        self._ended: dict[str, _Ended] = {}
        self._added: dict[str, None] = {}  # the ids of tasks that were added up, the oldest first
        self._before = Stats()
        self._ticked = now
        self._lock = threading.RLock()

    def push(self, body: bytes, now: float) -> None:
        """
        Take what a worker has pushed.

        Raises:
            ValueError: *body* is not a push of a worker; then nothing of *body* has been recorded.
        """
        read = [_read(task, now) for task in _tasks_of(body)]
        with self._lock:
            for task in read:
                if task.facts["id"] in self._added:
                    continue
                self.first = task.facts["began"] if self.first is None else min(self.first, task.facts["began"])
                before = self.tasks.get(task.facts["id"])
                if before is None:
                    self._note_repeated(task)
                if before is None or before.state in ("running", "lost"):
                    self.tasks[task.facts["id"]] = task
                    if task.failed or task.state == "stopped":
                        self._note_in_vain(task)
                    if self.ended is not None and task.state != "running":
                        self.ended(task)
            self._fold(now)

    def tick(self, now: float) -> None:
        """End the current step of the history. Called once a second."""
        with self._lock:
            for task in self.tasks.values():
                if task.state == "running" and now - task.seen > LOST_AFTER:
                    task.state = "lost"
                    self._note_in_vain(task)
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
        """Return the names of the sources, in the order in which they first appeared."""
        with self._lock:
            return list(dict.fromkeys([*self._ended, *(task.facts["source"] for task in self.tasks.values())]))

    def total(self, source: str | None = None, *, failed: bool = False) -> Stats:
        """Return the sum of the statistics of *source*, or of all sources. With *failed*, add up failed tasks only."""
        with self._lock:
            parts = [
                ended.failed if failed else ended.stats for name, ended in self._ended.items() if source in (None, name)
            ]
            parts += [task.stats for task in self.of(source) if task.failed or not failed]
            return sum(parts, Stats())

    def emitted(self, source: str | None = None) -> tuple[int, int]:
        """
        Return how many rows all tasks have emitted, and how many of these rows failed tasks have emitted.

        If *source* is given, only the tasks of this source count.
        """
        with self._lock:
            ended, tasks = [one for name, one in self._ended.items() if source in (None, name)], self.of(source)
            every = sum(one.emitted for one in ended) + sum(task.facts["emitted"] for task in tasks)
            failed = sum(one.emitted_by_failed for one in ended)
            return every, failed + sum(task.facts["emitted"] for task in tasks if task.failed)

    def of(self, source: str | None = None) -> list[Task]:
        """Return the tasks of *source* that are kept one by one; *source* None: the tasks of all sources."""
        with self._lock:
            return [task for task in self.tasks.values() if source in (None, task.facts["source"])]

    def facts(self, source: str) -> dict[str, Any]:
        """
        Return the `Task.facts` of the latest task of *source*.

        If no task of *source* is kept one by one, return the facts of the task that was added to its sum first.
        """
        with self._lock:
            tasks = self.of(source)
            return tasks[-1].facts if tasks else self._ended[source].facts

    def _note_repeated(self, task: Task) -> None:
        """Count earlier attempts at the work of *task* as failed or lost, because Spark repeats this work in *task*."""
        for other in self._before_it(task):
            other.repeated = other.state == "ok"
            other.state = "lost" if other.state == "running" else "failed" if other.state == "ok" else other.state

    def _note_in_vain(self, task: Task) -> None:
        """
        Set each earlier attempt at the work of *task* back to `ok` if that attempt had ended well.

        The attempt *task* repeated the work in vain: it failed or was stopped, so Spark keeps the rows of the earlier
        attempt.
        """
        for other in self._before_it(task):
            if other.repeated:
                other.state, other.repeated = "ok", False

    def _before_it(self, task: Task) -> list[Task]:
        """
        Return the earlier attempts at the work of *task*.

        They have the same source, stage, partition, streaming query and micro-batch, but a lower number of the attempt.
        """
        who, attempt = ("source", "stage", "partition", "query", "batch"), task.facts["attempt"]
        return [
            other
            for other in (self.tasks.values() if attempt else ())
            if other.facts["attempt"] < attempt and all(other.facts[name] == task.facts[name] for name in who)
        ]

    def _fold(self, now: float) -> None:
        """If more than `TASKS_MAX` ended tasks are kept one by one, add the oldest to the sums of their sources."""
        if len(self.tasks) <= TASKS_MAX:
            return
        ended = [key for key, task in self.tasks.items() if task.ended(now)]
        for key in ended[: max(0, len(ended) - TASKS_MAX)]:
            task = self.tasks.pop(key)
            self._ended.setdefault(task.facts["source"], _Ended(task.facts)).add(task)
            self.added += 1
            self._added[key] = None
            if len(self._added) > IDS_MAX:
                del self._added[next(iter(self._added))]

    def _note_outages(self, now: float) -> None:
        """Record which sources are away now, according to the running tasks."""
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
    """
    Return the statistics of what happened between *before* and *total*.

    Fields that cannot be subtracted, such as `slow`, have their default values.
    """
    parts: dict[str, Any] = {}
    for name in _CHANGES:
        parts[name] = max(type(getattr(total, name))(0), getattr(total, name) - getattr(before, name))
    for name in ("retries", "failures", "spent"):
        earlier = getattr(before, name)
        parts[name] = {key: max(0, count - earlier.get(key, 0)) for key, count in getattr(total, name).items()}
    took: Distribution = total.calls_took - before.calls_took
    return Stats(calls_took=took, **parts)


def _with_hottest(stats: Stats) -> Stats:
    """Return *stats*; if its field `hot` has many keys, keep only those with the most rows."""
    if len(stats.hot) <= 4 * LARGEST:
        return stats
    hottest = sorted(stats.hot.items(), key=lambda entry: -entry[1])[: 2 * LARGEST]
    return replace(stats, hot=dict(hottest))


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
_COUNTED: dict[str, tuple[type, ...]] = {"emitted": (int,), "in_flight": (int,), "lag": (int, float)}
"""Facts that a push of another version may lack; an absent fact is 0."""


def _read(task: dict[str, Any], now: float) -> Task:
    """Return *task* as a `Task`, with each field checked, because data from the network is not trusted."""
    facts: dict[str, Any] = {}
    for name, types in _FACTS.items():
        if not isinstance(task.get(name), types):
            raise ValueError(f"This is no push of a worker: the field {name!r} of a task is {task.get(name)!r}.")
        facts[name] = task[name]
    for name, types in _OPTIONAL.items():
        facts[name] = task.get(name) if isinstance(task.get(name), types) else None
    for name, types in _COUNTED.items():
        facts[name] = task[name] if isinstance(task.get(name), types) else 0
    return Task(facts, Stats.read(task.get("stats") or {}), now, facts["state"])
