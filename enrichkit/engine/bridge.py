"""
The bridge between two threads: on one, Spark asks for rows; on the other, an event loop runs the lookups of the task.

On Spark's thread, the bridge admits slices (groups of rows of the input) while the window has room. The window limits
the rows that are admitted and not yet returned to Spark. The bridge yields parts (a slice, or some of its rows) as soon
as they are finished, so finished rows are returned to Spark before more rows are read. While the bridge waits, it
checks every second whether the loop is dead or blocked.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ConnectorBlockedError
from ..interface import Keys
from ..observe.clock import Phase, TaskClock
from ..outcome import Outcomes
from . import admission
from .consumer import BEAT, LOOK, FirstRows
from .overlap import OverlapCheck
from .queues import Window
from .records import Part
from .run import FEW
from .sizes import BytesEach

if TYPE_CHECKING:
    from ..interface import Key
    from ..options import Options
    from .consumer import Consumer
    from .loop import LoopThread
    from .run import Run

__all__ = ["NOTHING", "Bridge", "Mark"]

_log = logging.getLogger("enrichkit")

STEP = 1.0
LAG_WARN = 1.0
LAG_FAIL = 30.0
LAG_FAIL_TIMEOUTS = 3.0
FROZEN = 4.0
SLICES_PER_WINDOW = 8
SLICES_PER_WINDOW_BYTES = 16
DOUBTED = 1000  # rows that `_when_sure` holds back at most

NOTHING = Part(Outcomes([], 0), None, 0, 0)
"""The part that a bridge yields when no other is ready, so that its caller can flush rows, or yield an empty batch."""


class Mark(enum.Enum):
    """
    A mark that may stand between two slices of the input.

    Attributes:
        BARRIER: In an unordered run, all rows before the barrier are returned before the rows after it.
        PAUSE: The next slice may take long to arrive, so the bridge yields `NOTHING`, and its caller can flush rows.
    """

    BARRIER = enum.auto()
    PAUSE = enum.auto()


class Observer(Protocol):
    """
    The interface of an object that is told about a run; see `observe/task.py`.

    Attributes:
        clock: The clock that counts the seconds of the task by phase.
        saw: Method that takes note of the distinct keys of a slice, and of the key of each row of the slice.
        begin: Method that takes note of the run; the bridge calls it on the loop thread before the first slice.
        end: Method that takes note that the task has ended, with an error or without one.
    """

    clock: TaskClock

    def saw(self, keys: Sequence[Key], codes: Any) -> None: ...
    def begin(self, run: Run, loop: asyncio.AbstractEventLoop) -> None: ...
    def end(self, loop: LoopThread, error: BaseException | None) -> None: ...


class Bridge:
    """
    One run (the lookups of a task), as seen from the thread that Spark calls.

    Attributes:
        wake_at: The `time.monotonic()` at which the next wait ends, even if only `NOTHING` can be yielded; the caller
            sets this time between two parts. None: the wait lasts until parts are ready, or until the consumer has to
            get an empty batch (`BEAT`).
        observed: The observer of the run; None: there is none.

    Args:
        loop: The loop thread of this process.
        window: Most rows that may be admitted and not yet returned to Spark.
        start: Rows that fill two calls of each slot: 2 x capacity x batch size.
        source: Name of the source in messages.
        options: The options of the enrichment; the bridge uses `window_bytes` and `timeout`.
        make_run: Function that makes the run, called on the loop thread. Its argument is the function to which the run
            hands finished parts.
        intersects: Function that tells whether slices have keys in common, for `OverlapCheck`; None for unordered runs,
            whose slices are not compared.
        consumer: The receiver of the rows; None: the receiver is not known.
        observed: The observer of the run; None: there is none.
        first: Size of the window at first, in rows; None: *start*.
        row_bytes: The bytes that the values of a row take on average, learned from earlier tasks; None: not known.
    """

    def __init__(
        self,
        loop: LoopThread,
        window: int,
        start: int,
        source: str,
        options: Options,
        make_run: Callable[[Callable[[Any], None]], Run],
        intersects: Callable[[Any, Sequence[Any]], bool] | None = None,
        consumer: Consumer | None = None,
        observed: Observer | None = None,
        first: int | None = None,
        row_bytes: BytesEach | None = None,
    ) -> None:
        self._loop = loop
        self._window = Window(window, start if first is None else first)
        self._start = start
        self._source = source
        self._options = options
        self._make_run = make_run
        self._run: Run | None = None
        self._ready: queue.SimpleQueue[list[Part] | BaseException] = queue.SimpleQueue()
        self._emit = self._ready.put
        self.wake_at: float | None = None
        self._row_bytes = BytesEach() if row_bytes is None else row_bytes
        self._warned = False
        self._overlap = OverlapCheck(intersects)
        self._consumer = consumer
        self.observed = observed
        self._clock = TaskClock() if observed is None else observed.clock
        self._first_rows: FirstRows | None = None
        if consumer is not None and not consumer.steady:
            self._first_rows = FirstRows(start * 3 // 2, consumer)

    @property
    def run(self) -> Run:
        """The run, which the loop thread makes before the first part arrives."""
        assert self._run is not None, "the loop thread has not made the run"
        return self._run

    @property
    def slice_rows(self) -> int:
        """
        Most rows of the next slice.

        The number is an eighth of the window. Once the window has its full size, the number is at least the rows that
        fill four calls of each slot, but at most half of the window. The rows of a larger slice share more keys and
        cost less; the rows of a smaller slice are returned earlier. The window grows only when rows are returned, so in
        a small window a slow row in a large first slice would hold up all other rows.

        The number is also so small that the values of the slice, if they are as large as the last values were, fill at
        most a sixteenth of `window_bytes`. The reason: the keys of the oldest slice are looked up even when the answers
        in memory exceed `window_bytes`, so the answers to one slice may be held beyond that limit.
        """
        window = self._window
        few = max(1, window.size // SLICES_PER_WINDOW)
        rows = few if window.size < window.limit else max(few, min(2 * self._start, window.size // 2))
        return self._row_bytes.most(rows, self._options.window_bytes / SLICES_PER_WINDOW_BYTES)

    def process(self, slices: Iterable[Outcomes | Mark]) -> Iterator[Part]:
        """
        Admit *slices* and yield their parts as the run emits them; a barrier is yielded as a part without rows.

        Args:
            slices: The slices and marks of the input, taken only while the window has room. A slice should have at most
                `slice_rows` rows.

        Raises:
            TaskFailedError: A lookup failed and its policy is ``"fail"``, or a limit was exceeded.
            FatalError: The connector cannot work at all.
        """
        ended: BaseException | None = None
        try:
            for part in self._when_sure(self._parts(slices)):
                self._clock.enter(Phase.OUTPUT)
                yield part
                del part  # free its values: the next part may take long to come
                self._clock.enter(Phase.PARTS)
        except BaseException as error:
            ended = error
            raise
        finally:
            self._loop.post(self._close)
            if self.observed is not None:
                self.observed.end(self._loop, ended)

    def _when_sure(self, parts: Iterator[Part]) -> Iterator[Part]:
        """
        Yield *parts*, but hold them back as long as a declared field is absent from all answers so far.

        A job that wants a few rows, such as `show(5)`, would otherwise show nulls, and would end before there are
        enough answers to tell that the name of the field is wrong. In some jobs most rows have no answer that could
        show the field, so only the first `DOUBTED` rows are held back.
        """
        kept: deque[Part] = deque()
        rows = 0
        for part in parts:
            if part is NOTHING:
                yield part
            else:
                rows += part.rows
                kept.append(part)
            del part
            while kept and (rows > DOUBTED or not self.run.doubtful):
                yield kept.popleft()
        yield from kept

    def _parts(self, slices: Iterable[Outcomes | Mark]) -> Iterator[Part]:
        window, loop = self._window, self._loop
        loop.post(self._start_run)
        for outcomes in self._clock.input_of(slices):
            if outcomes is Mark.BARRIER:
                loop.post(self.admit_barrier)
                continue
            if outcomes is Mark.PAUSE:
                yield NOTHING
                continue
            yield from self._make_room(outcomes.rows)
            outcomes.apart = self._overlap.enter(outcomes.key_array)
            remembers = self._run is None or self._run.remembers
            if isinstance(outcomes.keys, Keys) and (remembers or not outcomes.apart):
                outcomes.keys.objects()  # the loop thread needs Python objects; making them here does not delay it
            loop.post(self._admit, outcomes)
            while not self._ready.empty():
                yield from self._take()
        while window.held:
            yield from self._take()
        self._look_back()
        yield from self._drain()
        if self._consumer is not None:
            self._consumer.took_all()

    def _drain(self) -> Iterator[Part]:
        """Wait for the writes to the tiers to end; meanwhile yield `NOTHING`, so that Spark can cancel the task."""
        if self._run is None or not self._run.writers:
            return
        drained = threading.Event()
        self._loop.post(self._drain_run, drained)
        while not drained.wait(BEAT):
            self._watch()
            yield NOTHING

    def _look_back(self) -> None:
        """After the last row, warn if the source held none of the keys; raise if a declared field was in no answer."""
        run = self._run
        if run is None:
            return
        if run.found_none:
            run.tell_of_misses(FEW)
        looked_at = run.first_answers  # read once: a late answer may set it to None on the loop thread
        if looked_at is not None and (error := looked_at.verdict()) is not None:
            raise error

    def _make_room(self, rows: int) -> Iterator[Part]:
        """Yield parts until *rows* more rows may be admitted; then count these rows as admitted."""
        if self._first_rows is not None:
            while not self._first_rows.admits(rows):
                yield from self._take(self._first_rows.until())
            self._first_rows.enter(rows)
        while not self._window.admits(rows):
            yield from self._take()
        self._window.enter(rows)

    # mails: functions that Spark's thread posts to the loop thread, where they run

    def _start_run(self) -> None:
        try:
            self._run = self._make_run(self._emit)
        except Exception as error:  # noqa: BLE001  # an error of the connector's constructor fails the task
            self._emit(error)
        else:
            if self.observed is not None:
                self.observed.begin(self._run, asyncio.get_running_loop())
            if self._consumer is not None:
                self._look(self._run, self._consumer)

    def _look(self, run: Run, consumer: Consumer) -> None:
        """Fail *run* as soon as *consumer* is gone, because nobody would take the rows of further calls."""
        if consumer.gone():
            run.fail(BrokenPipeError(f"{self._source}: Spark takes no more rows of this task."))
        if not run.closed:
            asyncio.get_running_loop().call_later(LOOK, self._look, run, consumer)

    def _admit(self, outcomes: Outcomes) -> None:
        if self._run is not None:
            admission.admit(self._run, outcomes)

    def admit_barrier(self, tag: Any = None) -> None:
        """Admit a barrier into the run, see `Run.admit_barrier`. Called on the loop thread only."""
        if self._run is not None:
            self._run.admit_barrier(tag)

    def _drain_run(self, drained: threading.Event) -> None:
        if self._run is not None and not self._run.closed:
            self._draining = asyncio.get_running_loop().create_task(self._run.drain(), name="enrichkit-drain")
            self._draining.add_done_callback(lambda _: drained.set())
        else:
            drained.set()

    def _close(self) -> None:
        if self._run is not None:
            self._run.close()

    def broken(self, error: BaseException) -> None:
        """Fail the task because a function posted to the loop thread raised *error*. Loop thread only."""
        if self._run is not None:
            self._run.broken(error)

    # waiting for parts: these methods run on Spark's thread

    def _take(self, until: float | None = None) -> Iterator[Part]:
        """
        Wait for parts until *until*, until `wake_at`, or for `BEAT` seconds, whichever ends first.

        Yield the parts, or `NOTHING` if none came; raise the error of the run if it failed.
        """
        beat = None if self._consumer is None else time.monotonic() + BEAT
        parts = self._wait(min((moment for moment in (until, self.wake_at, beat) if moment is not None), default=None))
        if isinstance(parts, BaseException):
            raise parts
        if not parts:
            yield NOTHING
        parts.reverse()
        while parts:
            part = parts.pop()
            self._window.leave(part.rows)
            if part.outcomes.key_array is not None:
                self._overlap.leave()
            if part.rows:
                self._row_bytes.saw(part.bytes, part.rows)
            yield part
            if self._first_rows is not None and part.rows:
                self._first_rows.leave()
            self.run.taken_bytes += part.bytes  # added only now: until now, Spark used the column made of the part
            del part  # free its values: the next part may take long to come
        if self._run is not None and self._run.held_back:  # None until the loop thread has made the run
            self._loop.post(self._run.resume)

    def _wait(self, until: float | None) -> list[Part] | BaseException:
        if self._consumer is not None and self._ready.empty():
            self._consumer.flush()
        while True:
            asked = time.monotonic()
            step = STEP if until is None else min(STEP, max(0.0, until - asked))
            try:
                return self._ready.get(timeout=step)
            except queue.Empty:
                now = time.monotonic()
                if now - asked < step + FROZEN:  # after a longer wait, the whole process stood still, not only the loop
                    self._watch()
                if until is not None and now >= until:
                    return []

    def _watch(self) -> None:
        """Warn when the event loop is blocked; raise when it is dead, or blocked for too long."""
        if not self._loop.alive():
            raise ConnectorBlockedError(
                f"{self._source}: the event loop of this worker has ended, so no answer can come. A connector raised "
                "SystemExit or KeyboardInterrupt in a task of its own; see the worker's log."
            )
        lag = self._loop.lag()
        if lag < LAG_WARN:
            self._warned = False
            return
        limit = max(LAG_FAIL, LAG_FAIL_TIMEOUTS * (self._options.timeout or 0.0))
        if lag > limit:
            raise ConnectorBlockedError(
                f"{self._source}: a connector has blocked the event loop for {lag:.0f} s; at most {limit:.0f} s are "
                f"allowed. Await instead of blocking, or use asyncio.to_thread. It is here:\n{self._loop.stack()}"
            )
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s: a connector blocks the event loop since %.1f s; lookups wait. It is here:\n%s",
                self._source,
                lag,
                self._loop.stack(),
            )
