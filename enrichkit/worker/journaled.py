"""
The journal of a task as a stage before the source: keys whose answers the journal holds are not looked up in the
source, and new answers are written to the journal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..engine.cache import ABSENT, MISS, Stage
from ..errors import JournalError, TaskFailedError
from ..journal.opening import index_of, writer_of
from ..journal.stores import is_remote
from ..journal.table import Table
from .keys import encode

if TYPE_CHECKING:
    import pyarrow as pa

    from ..interface import TaskInfo
    from ..journal.config import Journal
    from ..plan import Plan

__all__ = ["JournalStage", "journal_stage"]

_log = logging.getLogger("enrichkit")
_told: set[str] = set()
"""The paths of the journals about whose failure this process has already logged a warning."""


def journal_stage(plan: Plan, key_columns: Sequence[pa.Array[Any]], info: TaskInfo) -> JournalStage | None:
    """
    Return the journal of a task, opened and indexed; None: the task has no journal, or the journal cannot be read and
    its `on_error` is not `"fail"`.

    Args:
        plan: The enrichment.
        key_columns: Key columns of the first batch.
        info: The Spark task.

    Raises:
        ConfigError: The journal of a batch job has no `run_id` and is not `shared`.
        TaskFailedError: The journal cannot be read, and its `on_error` is `"fail"`.
    """
    journal = plan.options.journal
    if journal is None:
        return None
    scope = journal.scope(info.query_id, info.batch_id)
    stage = JournalStage(plan.source, journal)
    try:
        keys, _ = encode([column.slice(0, 0) for column in key_columns])
        types = tuple(column.type for column in keys.columns)
        table = Table(plan.source, plan.content_key, types, plan.value_type)
        stage.open(
            index_of(journal, table, scope), writer_of(journal, table, scope, task=f"{info.partition}-{info.attempt}")
        )
    except JournalError as error:
        failure = stage.off(error)
        if failure is not None:
            raise failure from None
        return None
    stage.scope = scope
    return stage


class JournalStage(Stage):
    """
    The journal as a stage of a run. It is used on the loop thread, but opened on Spark's thread.

    Args:
        source: Name of the source in messages.
        journal: The user's settings for the journal.

    Attributes:
        active: Whether the journal is in use; False when it cannot be used any more.
        scope: The part of the journal that the run writes, and whose answers take precedence when the run reads.
        fail: Function that fails the task with an error: `Run.fail`, as soon as the run is made.
    """

    origin = "journal"

    def __init__(self, source: str, journal: Journal) -> None:
        self.active = True
        self.scope: Any = None
        self.fail: Callable[[BaseException], None] = lambda error: None
        self._source = source
        self._journal = journal
        self._index: Any = None
        self._writer: Any = None
        # An upload to an object store takes long, so it runs on a thread of its own and the event loop does not wait.
        self._uploads = ThreadPoolExecutor(1, "enrichkit-journal") if is_remote(journal.path) else None

    def open(self, index: Any, writer: Any) -> None:
        """Use *index* and *writer* from now on."""
        self._index, self._writer = index, writer

    def get_many(self, keys: Sequence[Any], now: float) -> list[Any]:
        """Return for each of *keys* its value, `MISS` (the source held none) or `ABSENT` (not in the journal)."""
        found: list[Any] = [ABSENT] * len(keys)
        try:
            hits = self._index.lookup(keys, self.scope)
        except JournalError as error:
            self._cannot(error)
            return found
        for place, value, is_value in zip(
            hits.places.to_pylist(), hits.values.to_pylist(), hits.found.to_pylist(), strict=True
        ):
            found[place] = value if is_value else MISS
        return found

    def put_many(self, keys: Iterable[Any], values: Iterable[Any], now: float, *, late: bool = False) -> None:
        """
        Hand answers to the journal's writer.

        *late* makes no difference, because a journal returns the first answer that was written for a key, even if
        another answer is written later.
        """
        answers = list(values)
        flags = [value is not MISS for value in answers]
        if not all(flags):
            answers = [value if flag else None for value, flag in zip(answers, flags, strict=True)]
        self._try(lambda: self._writer.append(list(keys), answers, flags))

    def flush(self) -> None:
        """
        Write the waiting answers to the folder of the journal, where they survive the end of this process.

        If the journal is in an object store, do nothing: uploads run on another thread, and rows do not wait for them.
        """
        if self.active and self._writer.waiting and self._uploads is None:
            self._try(self._writer.flush)

    def close(self) -> None:
        """Write the answers that are left, and close the file."""
        if self.active:
            self._try(self._writer.close)
            self.active = False
        if self._uploads is not None:
            self._uploads.shutdown()

    def off(self, error: JournalError) -> TaskFailedError | None:
        """
        Stop using the journal because of *error*; return the error that fails the task, or None if the task goes on.
        """
        self.active = False
        if self._journal.on_error == "fail":
            return TaskFailedError(
                f"{self._source}: {error} The task fails because Journal.on_error is 'fail'; 'warn' goes on without "
                "the journal."
            )
        if self._journal.path not in _told:
            _told.add(self._journal.path)
            _log.warning("%s: the job goes on without its journal: %s", self._source, error)
        return None

    def _try(self, step: Callable[[], None]) -> None:
        if self._uploads is None:
            self._guarded(step, self._cannot)
            return
        loop = asyncio.get_running_loop()
        self._uploads.submit(self._guarded, step, lambda error: loop.call_soon_threadsafe(self._cannot, error))

    def _guarded(self, step: Callable[[], None], failed: Callable[[JournalError], Any]) -> None:
        try:
            step()
        except JournalError as error:
            failed(error)

    def _cannot(self, error: JournalError) -> None:
        failure = self.off(error)
        if failure is not None:
            self.fail(failure)
