"""One observed task: its identity, its statistics so far, and the reports about it while it runs and at its end."""

from __future__ import annotations

import functools
import json
import logging
import os
import socket
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .clock import TaskClock
from .hooks import tell_observers
from .sender import Sender, sender
from .stats import LARGEST, Stats

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from ..engine.engine import Engine
    from ..engine.loop import LoopThread
    from ..engine.run import Run
    from ..interface import Key, TaskInfo
    from ..plan import Plan

__all__ = ["ObservedTask"]

_log = logging.getLogger("enrichkit.tasks")

SAMPLE = 0.05
"""Seconds between two samples that the loop thread takes of a task."""
PUSH = 1.0
"""Seconds between two pushes of the statistics of a running task to the monitor."""
HOT_MAX = 64
"""
Most keys whose rows are counted; when there are more, only the half with the most rows is kept. In each slice of rows,
only the rows of the `LARGEST` most frequent keys are counted.
"""
SAMPLE_ROWS = 1_000
"""
Most rows of a slice in which the most frequent keys are counted; these rows are spread over the slice. To count in all
rows would slow jobs down: when a cache answers the keys, it would take a tenth of the whole time of the rows.
"""
ERROR_MAX = 2_000
"""Most characters of an error message that are sent to the monitor; a message may quote a page of text of a source."""
PATIENCE = 0.5
"""`ObservedTask.end` waits this many seconds at most for the final statistics, and as many for their push."""


F = TypeVar("F", bound="Callable[..., None]")


def _harmless(method: F) -> F:
    """Wrap *method* so that its exceptions cannot end the task; log only the first exception of a task."""

    @functools.wraps(method)
    def watched(self: ObservedTask, *args: Any) -> None:
        try:
            method(self, *args)
        except Exception:  # noqa: BLE001  # no exception may end the task
            if not self.broken:
                self.broken = True
                _log.exception("The statistics of a task are incomplete; the task does not change by that.")

    return cast("F", watched)


class ObservedTask:
    """
    One enrichment in one Spark task, with its statistics and the reports about it.

    Args:
        plan: The plan of the enrichment.
        info: What identifies the Spark task: its stage, partition, attempt and so on.

    Attributes:
        clock: The clock that measures where the seconds of the task go. Spark's thread calls its method `enter` when
            the phase changes.
        broken: Whether a method of this object has raised an exception; if so, the statistics are incomplete.
    """

    def __init__(self, plan: Plan, info: TaskInfo) -> None:
        self.clock = TaskClock()
        self.broken = False
        self._plan = plan
        self._info = info
        self._id = uuid.uuid4().hex
        self._run: Run | None = None
        self._began = time.time()
        self._handle: asyncio.TimerHandle | None = None
        self._sampled = self._pushed = 0.0
        self._cpu = 0.0
        self._in_flight_max = 0
        self._bytes_seconds = 0.0
        self._allowed_seconds = 0.0  # sum of (calls allowed in flight x seconds), for capacity="auto"
        self._lag = self._lag_max = 0.0
        self._held: str | None = None
        self._null_keys = 0
        self._hot: dict[Any, int] = {}
        self._sender: Sender | None = None
        self._connect()

    @_harmless
    def _connect(self) -> None:
        if self._plan.monitor is not None:
            self._sender = sender(self._plan.monitor)

    # methods for Spark's thread

    @_harmless
    def saw(self, keys: Sequence[Key], codes: pa.Int32Array) -> None:
        """
        Count the rows with a null key in a slice of rows, and the rows of the most frequent keys of the slice.

        `worker.task.KeySlice` describes *keys* and *codes*.
        """
        self._null_keys += codes.null_count
        if len(keys) == len(codes) - codes.null_count:
            return  # each key has one row, so no key is frequent
        import pyarrow.compute as pc

        sample = codes if len(codes) <= SAMPLE_ROWS else codes.take(_sampled(len(codes), SAMPLE_ROWS))
        for most in pc.mode(sample, LARGEST).to_pylist():
            if most["count"] > 1:
                key = keys[most["mode"]]
                self._hot[key] = self._hot.get(key, 0) + most["count"] * len(codes) // len(sample)
        if len(self._hot) > HOT_MAX:
            self._hot = dict(sorted(self._hot.items(), key=lambda entry: -entry[1])[: HOT_MAX // 2])

    # methods for the loop thread

    @_harmless
    def begin(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        """Take samples of *run* and push reports about it from now on, until the run is closed."""
        self._run = run
        self._sampled = self._pushed = loop.time()
        self._cpu = time.thread_time()
        self._push("running")
        self._handle = loop.call_later(SAMPLE, self._sample, run, loop)

    @_harmless
    def _sample(self, run: Run, loop: asyncio.AbstractEventLoop) -> None:
        now, cpu = loop.time(), time.thread_time()
        seconds = now - self._sampled
        engine = _engine_of(run)
        self._held = engine.held_by()
        self.clock.sample(seconds, cpu - self._cpu, self._held)
        self._lag = max(0.0, seconds - SAMPLE)
        self._lag_max = max(self._lag_max, self._lag)
        self._in_flight_max = max(self._in_flight_max, len(engine.calls))
        self._allowed_seconds += engine.allowed * seconds
        if run.held_back:
            self._bytes_seconds += seconds
        self._sampled, self._cpu = now, cpu
        if now - self._pushed >= PUSH:
            self._pushed = now
            self._push("running")
        if not run.closed:
            self._handle = loop.call_later(SAMPLE, self._sample, run, loop)

    def _push(self, state: str) -> None:
        if self._sender is not None:
            self._sender.put([self.report(state), *self._of_fallbacks(state)])

    # the end of the task

    @_harmless
    def end(self, loop: LoopThread, error: BaseException | None) -> None:
        """
        Tell the monitor, the log and the observers that the task has ended. Called on Spark's thread.

        *error* is the exception that ended the task; None: the task has ended well.

        Before this call, close the run, or post to the loop thread a function that closes the run, because the
        statistics are final only when the run is closed.
        """
        state = "ok" if error is None else "stopped" if isinstance(error, GeneratorExit | BrokenPipeError) else "failed"
        final = threading.Event()
        loop.post(self._finish, final)
        final.wait(PATIENCE)
        report = self.report(state, error)
        if self._sender is not None:
            self._sender.put_last([report, *self._of_fallbacks(state)], PATIENCE)
        stats = self.stats()
        _tell_log(self._plan.source, self._info, state, stats, report)
        if self._plan.observers:
            tell_observers(self._plan.observers, stats, self._plan.source, self._info)

    def _finish(self, final: threading.Event) -> None:
        if self._handle is not None:
            self._handle.cancel()
        final.set()

    # methods for any thread

    def stats(self) -> Stats:
        """Return the statistics so far."""
        clock: dict[str, Any] = self.clock.read()
        run = self._run
        counted: dict[str, Any] = {}
        if run is not None:
            hottest = sorted(dict(self._hot).items(), key=lambda entry: -entry[1])[:LARGEST]
            counted = run.stats.counted(run.policies.show)
            counted["bytes"] = run.settled_bytes
            counted["hot"] = {run.policies.show(key): rows for key, rows in hottest}
        return Stats(
            tasks=1,
            null_keys=self._null_keys,
            slot_seconds=self._allowed_seconds if self._plan.options.tuned else self._plan.capacity * clock["seconds"],
            in_flight_max=self._in_flight_max,
            lag_max=self._lag_max,
            bytes_seconds=self._bytes_seconds,
            **clock,
            **counted,
        )

    def report(self, state: str, error: BaseException | None = None) -> dict[str, Any]:
        """Return the report that the monitor gets: identity of the task, *state* and statistics."""
        plan, run = self._plan, self._run
        outage = None if run is None else run.engine.gate.outage.since
        return {
            "id": self._id,
            "source": plan.source,
            "plan": plan.cache_key,
            "connector": plan.connector.name,
            "stage": self._info.stage,
            "partition": self._info.partition,
            "attempt": self._info.attempt,
            "query": self._info.query_id,
            "batch": self._info.batch_id,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "began": self._began,
            "state": state,
            "error": None if state != "failed" or error is None else f"{type(error).__name__}: {error}"[:ERROR_MAX],
            "capacity": plan.capacity if run is None else _engine_of(run).allowed,
            "capacity_max": plan.capacity if plan.options.tuned else None,
            "batch_size": plan.batch_size,
            "batch_size_max": plan.connector.max_batch_size,
            "rate": plan.options.calls_per_second,
            "cache": plan.options.cache is not None,
            "emitted": 0 if run is None else run.emitted_rows,
            "in_flight": 0 if run is None or state != "running" else len(run.engine.calls),
            "away": None if run is None or outage is None else max(0.0, run.engine.now() - outage),
            "held": self._held if state == "running" else None,
            "lag": self._lag,
            "stats": self.stats().as_dict(),
        }

    def _of_fallbacks(self, state: str) -> Iterator[dict[str, Any]]:
        """
        Yield a report for each fallback, tier and background refresh that has made calls.

        The report of the task itself does not contain these calls, and the totals of each source must count them.
        """
        for number, run in enumerate(self._run.behind() if self._run is not None else ()):
            if not run.stats.calls:
                continue
            counted = run.stats.counted(run.policies.show) | {"rows": 0, "bytes": run.settled_bytes}
            engine = _engine_of(run)
            outage = engine.gate.outage.since
            yield {
                **self.report(state),
                "id": f"{self._id}-{number}",
                "source": run.source,
                "connector": engine.connector.name,
                "capacity": engine.allowed,
                "capacity_max": None,
                "batch_size": run.batch_size,
                "batch_size_max": engine.connector.max_batch_size,
                "rate": run.options.calls_per_second,
                "cache": False,
                "emitted": 0,
                "in_flight": len(engine.calls) if state == "running" else 0,
                "away": None if outage is None else max(0.0, engine.now() - outage),
                "held": None,
                "stats": Stats(**counted).as_dict(),  # `tasks` stays 0, because the report of the task counts the task
            }


def _engine_of(run: Run) -> Engine:
    """Return the engine of *run* as an `Engine`; `Run` declares its engine as a protocol with fewer members."""
    return cast("Engine", run.engine)


def _sampled(rows: int, wanted: int) -> npt.NDArray[np.int64]:
    """
    Return *wanted* row numbers below *rows*, a random one from each of *wanted* equal ranges.

    Such a sample is not distorted if the rows are sorted, or if their keys repeat in a cycle.
    """
    import numpy as np

    return np.arange(wanted) * rows // wanted + np.random.default_rng(rows).integers(0, rows // wanted, wanted)


def _tell_log(source: str, info: TaskInfo, state: str, stats: Stats, report: dict[str, Any]) -> None:
    """
    Log one line about the task at the level INFO.

    If the logger does not log INFO, but the environment variable ENRICHKIT_LOG is `text` or `json`, the logger is first
    set to log INFO to stderr. With `json`, the line is *report* as JSON.
    """
    form = os.environ.get("ENRICHKIT_LOG")
    if form in ("text", "json") and not _log.isEnabledFor(logging.INFO):
        _log.setLevel(logging.INFO)
        _log.addHandler(logging.StreamHandler())
    if not _log.isEnabledFor(logging.INFO):
        return
    if form == "json":
        _log.info("%s", json.dumps(report))
        return
    median = stats.calls_took.quantile(0.5)
    _log.info(
        "%s: task %d.%d of stage %d %s in %.1f s: %s rows, %s calls with %s keys, median %s; %s ok, %s missing, "
        "%s without an answer, %s retries; waited %.1f s for the source, %.1f s for a limit, %.1f s for input, "
        "%.1f s for output; %.1f s CPU",
        source,
        info.partition,
        info.attempt,
        info.stage,
        {"ok": "ended"}.get(state, state),
        stats.seconds,
        f"{stats.rows:,}",
        f"{stats.calls:,}",
        f"{stats.sent:,}",
        "-" if median is None else f"{median * 1000:.3g} ms",
        f"{stats.ok:,}",
        f"{stats.missing:,}",
        f"{stats.without_answer:,}",
        f"{sum(stats.retries.values()):,}",
        stats.source_seconds,
        stats.limit_seconds,
        stats.input_seconds,
        stats.output_seconds,
        stats.cpu_seconds,
    )
