"""
The view of a monitor: what the page, the terminal and the report show, as values that JSON can express.

`present.py` computes all figures of the view; the code that shows the view computes none. Durations are seconds, times
are seconds since 1970, sizes are bytes, shares are from 0 to 1; None stands for a figure that is not known.
"""

from __future__ import annotations

from typing import Literal, TypedDict

__all__ = [
    "VERSION",
    "Advice",
    "Bar",
    "HeldBack",
    "Hot",
    "Outage",
    "Point",
    "Progress",
    "Reason",
    "Saved",
    "Slow",
    "SourceView",
    "Spending",
    "TaskView",
    "TimeShare",
    "Totals",
    "View",
    "WorkerView",
]

VERSION = 1

TimeName = Literal["source", "limit", "input", "output", "cpu"]
"""The parts of a task's time; `limit` is the time in which calls were held back, see `Stats.limits`."""


class TimeShare(TypedDict):
    """One part of the bar "where each second of the workers went"; the shares of all parts add up to 1."""

    name: TimeName
    label: str
    seconds: float
    share: float


class Progress(TypedDict):
    """
    Rows that the tasks have emitted. `eta` is the estimated number of seconds until all rows are done.

    Without `monitor(rows=...)`, `total`, `share` and `eta` are None.
    """

    rows: int
    total: int | None
    share: float | None
    eta: float | None


class Totals(TypedDict):
    """
    Counters since the start. Most of them are defined by `Stats`.

    `keys` is the number of rows whose key is not null, `distinct` is `Stats.keys`, and `retries` is the sum over all
    reasons. `failed_tasks` counts the tasks that failed or were lost, and `failed_calls` counts their calls.
    """

    rows: int
    keys: int
    distinct: int
    calls: int
    sent: int
    ok: int
    missing: int
    errors: int
    timeouts: int
    rejected: int
    over_budget: int
    without_answer: int
    retries: int
    returned: int
    preloaded: int
    reused: int
    journaled: int
    cached: int
    stale: int
    tiered: int
    skipped: int
    shared: int
    late: int
    zombies: int
    abandoned: int
    bytes: int
    tasks: int
    failed_tasks: int
    failed_calls: int


class Reason(TypedDict):
    """A number of errors or retries with one reason, such as the class of the error."""

    reason: str
    count: int


class HeldBack(TypedDict):
    """Seconds of the tasks in which `reason`, a name of `Stats.limits` or `window_bytes`, held calls back."""

    reason: str
    seconds: float


class Point(TypedDict):
    """One step of the history, mostly a second: rates per second, and latencies of the calls that ended in the step."""

    at: float
    rows: float
    calls: float
    in_flight: float
    capacity: int
    p50: float | None
    p99: float | None
    errors: float
    retries: float
    source: float
    limit: float
    input: float
    output: float
    cpu: float


class Bar(TypedDict):
    """One bar of a histogram: `count` is the number of values from `low` to `high`."""

    low: float
    high: float
    count: int


class Outage(TypedDict):
    """A time during which a source was unavailable; `until` is None while the outage lasts."""

    source: str
    since: float
    until: float | None


class Slow(TypedDict):
    """One of the slowest keys, as messages show it: as a hash, unless `show_keys` is set."""

    key: str
    seconds: float
    source: str


class Hot(TypedDict):
    """
    One of the keys with the most rows, as messages show it: as a hash, unless `show_keys` is set.

    `share` is the key's share of the rows of the source.
    """

    key: str
    share: float
    source: str


class Advice(TypedDict):
    """A change that would make the job faster or cheaper. A `gain` of 1.9 means 1.9 times as fast; None: not known."""

    text: str
    option: str
    value: str
    gain: float | None


class TaskView(TypedDict):
    """
    One enrichment in one attempt of a Spark task.

    `state` is `running`, `ok`, `failed`, `stopped` (by Spark) or `lost` (the task did not end, but no longer pushes).
    """

    id: str
    source: str
    stage: int
    partition: int
    attempt: int
    batch: int | None
    worker: str
    state: str
    seconds: float
    rows: int
    calls: int
    in_flight: int
    capacity: int
    p50: float | None
    p99: float | None
    errors: int
    retries: int
    time: list[TimeShare]
    error: str | None


class WorkerView(TypedDict):
    """One Python worker process; `seen` is the time of its last push."""

    id: str
    host: str
    pid: int
    seen: float
    running: int
    rows: int
    calls: int
    in_flight: int
    cpu: float
    lag: float


class Saved(TypedDict):
    """Rows that the stage `by` answered without a call; `spent` estimates what calls for them would have cost."""

    by: str
    rows: int
    spent: dict[str, float]


class Spending(TypedDict):
    """What calls have cost, by unit. `unknown` is the number of calls of unknown cost, and `saved` is an estimate."""

    spent: dict[str, float]
    per_second: dict[str, float]
    unknown: int
    saved: list[Saved]


class SourceView(TypedDict):
    """
    One source with all its tasks.

    `sentence` says what limits the tasks. `arithmetic` compares the time of the tasks with the least time that their
    calls need.
    """

    name: str
    connector: str
    sentence: str
    arithmetic: str
    advice: list[Advice]
    progress: Progress
    time: list[TimeShare]
    totals: Totals
    spending: Spending | None
    running: int
    in_flight: int
    capacity: int
    batch_size: int
    rate: float | None
    away_since: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    latency: list[Bar]
    queue_wait: list[Bar]
    batch_fill: list[Bar]
    errors: list[Reason]
    retries: list[Reason]
    held_back: list[HeldBack]
    slow: list[Slow]
    hot: list[Hot]


class View(TypedDict):
    """The whole view; `state`: `waiting` (no task yet), `running`, `idle` (all tasks so far have ended) or `closed`."""

    version: int
    at: float
    started: float
    state: str
    sentence: str
    advice: list[Advice]
    progress: Progress
    time: list[TimeShare]
    totals: Totals
    in_flight: int
    capacity: int
    rows_per_second: float
    calls_per_second: float
    p50: float | None
    p90: float | None
    p99: float | None
    history: list[Point]
    outages: list[Outage]
    sources: list[SourceView]
    workers: list[WorkerView]
    tasks: list[TaskView]
    more_tasks: int
