"""A worker process without Spark: all that happens there between the Arrow keys and the Arrow column, in this one."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.engine.loop import LoopThread
from enrichkit.worker import entry, task

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest
    from pyspark.sql.types import DataType

    from enrichkit.engine.run import Run
    from enrichkit.interface import ConnectorConfig

Row = dict[str, Any]
"""One outcome: value, status, error, attempts, latency and origin."""


class Worker:
    """
    Runs tasks on a loop thread of its own, one after another or from several threads.

    Attributes:
        thread: The loop thread.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.thread = LoopThread()
        self._here = threading.local()
        make_bridge: Any = task._bridge

        def bridge(*args: Any, **settings: Any) -> Any:
            made = make_bridge(*args, **settings)
            self._here.bridge = made
            return made

        monkeypatch.setattr(task, "_bridge", bridge)
        monkeypatch.setattr(task, "loop_thread", lambda: self.thread)

    @property
    def run(self) -> Run:
        """The engine's side of the last task of this thread."""
        run: Run = self._here.bridge.run
        return run

    def outcomes(
        self, config: ConnectorConfig, returns: DataType, *keys: Sequence[Any] | pa.Array[Any], **options: Any
    ) -> list[Row]:
        """
        Look *keys* up, a batch and a task of them, and return the outcome of each row.

        Args:
            config: Of the source.
            returns: Type of a value; an object, because only a Spark session could parse a text.
            keys: One column, or several that form one key.
            options: Of `enrich`.
        """
        settings = {"details": True, "max_fallback_ratio": 1.0, **options}
        plan, _ = make_plan(config, len(keys), returns, settings)
        columns = tuple(column if isinstance(column, pa.Array) else pa.array(column) for column in keys)
        rows = [row for array in entry.arrow_batches(pack(plan), [columns]) for row in array.to_pylist()]
        assert len(columns[0]) == len(rows)
        assert_nothing_silent(rows)
        stats = self.run.stats
        asked = stats.keys - stats.shared
        assert asked == stats.ok + stats.missing + stats.timeouts + stats.errors + stats.rejected
        assert len(rows) == stats.rows
        return rows

    def outcomes_of_two(
        self, config: ConnectorConfig, returns: DataType, keys: Sequence[Any], **options: Any
    ) -> tuple[list[Row], Counter[str]]:
        """
        Look *keys* up in two tasks at a time, each with a half of them; the arguments are those of `outcomes`.

        Returns:
            The outcomes in the order of *keys*, and the sums of both tasks' counters `calls` and `outages`.
        """

        def task(half: Sequence[Any]) -> tuple[list[Row], Counter[str]]:
            rows, stats = self.outcomes(config, returns, half, **options), self.run.stats
            return rows, Counter(calls=stats.calls, outages=stats.outages)

        middle = len(keys) // 2
        with ThreadPoolExecutor(2) as threads:
            (first, of_first), (second, of_second) = threads.map(task, (keys[:middle], keys[middle:]))
        of_first.update(of_second)
        return first + second, of_first


def assert_nothing_silent(rows: Sequence[Row]) -> None:
    """Each row has one of the statuses, and says why its value is not one of the source's."""
    statuses = Counter(row["status"] for row in rows)
    assert statuses.total() == len(rows)
    assert statuses.keys() <= {"ok", "missing", "timeout", "error", "rejected", "null_key"}
    for row in rows:
        assert (row["error"] is not None) == (row["status"] in ("timeout", "error", "rejected")), row
        assert (row["origin"] == "fallback") <= (row["status"] not in ("ok", "null_key")), row
