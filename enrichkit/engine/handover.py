"""
The Spark thread's half of a run.

It admits slices while the window has room, yields what is finished, and waits in steps of a second, so that it notices
a loop that is dead or blocked. It prefers a yield over a pull: what is finished leaves before more is read.
"""

from __future__ import annotations

import enum
import logging
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..connector import Keys
from ..errors import ConnectorBlockedError
from ..outcome import Outcomes
from .apart import Apart
from .lookup import Part
from .queues import Window

if TYPE_CHECKING:
    from .dispatch import Engine
    from .loop import LoopThread
    from .run import Run

__all__ = ["NOTHING", "Handover", "Mark"]

_log = logging.getLogger("enrichkit")

STEP = 1.0
LAG_WARN = 1.0
LAG_FAIL = 30.0
LAG_FAIL_TIMEOUTS = 3.0
FROZEN = 4.0
SLICES_PER_WINDOW = 8
SLICES_PER_WINDOW_BYTES = 4
ROW_BYTES_KEPT = 0.9  # from part to part: wide rows are remembered for a while, and one of them not for ever

NOTHING = Part(Outcomes([], 0), None, 0, 0)
"""Yielded when nothing left, but the taker may want to go on with what it has."""


class Mark(enum.Enum):
    """
    What may stand between slices.

    Attributes:
        BARRIER: No row leaves before an earlier one of the other side; for unordered runs.
        PAUSE: The next slice may be long in coming.
    """

    BARRIER = enum.auto()
    PAUSE = enum.auto()


class Handover:
    """
    One run, seen from the thread that Spark calls.

    Attributes:
        run: The run.
        wake_at: `time.monotonic()` at which a wait ends with `NOTHING`, set between two parts; None: when parts come.

    Args:
        loop: The loop thread of this process.
        window: Most rows admitted and not yet emitted.
        start: Rows of the window at first: two rounds of calls.
        build: Makes the run, given where to emit to.
        meet: See `Apart`; for ordered runs.
    """

    def __init__(
        self,
        loop: LoopThread,
        window: int,
        start: int,
        build: Callable[[Callable[[Any], None]], Run],
        meet: Callable[[Any, Sequence[Any]], bool] | None = None,
    ) -> None:
        self._loop = loop
        self._window = Window(window, start)
        self._start = start
        self._ready: queue.SimpleQueue[list[Part] | BaseException] = queue.SimpleQueue()
        self.run = build(self._ready.put)
        self.wake_at: float | None = None
        self._row_bytes = 1.0  # of values, in the last slices
        self._warned = False
        self._apart = Apart(meet)

    @property
    def slice_rows(self) -> int:
        """
        How many rows the next slice may hold: an eighth of the window, or up to half of it for four rounds of calls.

        Rows of a larger slice share more keys and cost less, those of a smaller one leave earlier; and the window grows
        only when some leave, so that a slow row in the first slice would hold all others up. With values as wide as the
        last slices had them it holds a quarter of `window_bytes`, which lets the oldest slice pass whatever it holds.
        """
        window = self._window
        few = max(1, window.size // SLICES_PER_WINDOW)
        rows = few if window.size < window.limit else max(few, min(2 * self._start, window.size // 2))
        return max(1, min(rows, int(self.run.options.window_bytes / SLICES_PER_WINDOW_BYTES / self._row_bytes)))

    def process(self, slices: Iterable[Outcomes | Mark], key: str, build: Callable[[], Engine]) -> Iterator[Part]:
        """
        Admit *slices* and yield their parts as they leave the run's queue; a barrier leaves as a part without rows.

        Args:
            slices: Pulled only while the window has room; a slice should have at most `slice_rows` rows.
            key: Of the engine in this process.
            build: Makes the engine when there is none; called on the loop thread.

        Raises:
            TaskFailedError: A lookup failed and its policy is ``"fail"``, or a limit was passed.
            FatalError: The connector cannot work at all.
        """
        run, window, loop = self.run, self._window, self._loop
        loop.post(loop.start, run, key, build)
        try:
            for outcomes in slices:
                if outcomes is Mark.BARRIER:
                    loop.post(run.admit_barrier)
                    continue
                if outcomes is Mark.PAUSE:
                    yield NOTHING
                    continue
                while not window.admits(outcomes.rows):
                    yield from self._take()
                window.enter(outcomes.rows)
                outcomes.apart = self._apart.enter(outcomes.column)
                if not outcomes.apart and isinstance(outcomes.keys, Keys):
                    outcomes.keys.objects()  # for the table; made here, where the loop does not wait for them
                loop.post(run.admit, outcomes)
                while not self._ready.empty():
                    yield from self._take()
            loop.post(run.end_input)
            while window.held:
                yield from self._take()
        finally:
            loop.post(run.close)

    def _take(self) -> Iterator[Part]:
        """Wait for parts and yield them; raise what failed the run."""
        parts = self._wait()
        if isinstance(parts, BaseException):
            raise parts
        if not parts:
            yield NOTHING
        for part in parts:
            self._window.leave(part.rows)
            if part.outcomes.column is not None:
                self._apart.leave()
            self.run.taken_bytes += part.bytes
            if part.rows:
                self._row_bytes = max(1.0, ROW_BYTES_KEPT * self._row_bytes, part.bytes / part.rows)
            yield part
        if self.run.held_back:
            self._loop.post(self.run.resume)

    def _wait(self) -> list[Part] | BaseException:
        started = time.monotonic()
        while True:
            asked = time.monotonic()
            step = STEP if self.wake_at is None else min(STEP, max(0.0, self.wake_at - asked))
            try:
                return self._ready.get(timeout=step)
            except queue.Empty:
                now = time.monotonic()
                if self.wake_at is not None and now >= self.wake_at:
                    return []
                if now - asked < step + FROZEN:  # else all of the process stood still: the loop is not to blame
                    self._watch(now - started)

    def _watch(self, waited: float) -> None:
        """Warn when the loop has not gone round for a while; give up when it is dead or blocked for too long."""
        run = self.run
        if not self._loop.alive():
            raise ConnectorBlockedError(
                f"{run.source}: the event loop of this worker has ended, so no answer can come. A connector raised "
                "SystemExit or KeyboardInterrupt in a task of its own; see the worker's log."
            )
        lag = self._loop.lag()
        if lag < LAG_WARN:
            self._warned = False
            return
        limit = max(LAG_FAIL, LAG_FAIL_TIMEOUTS * (run.options.timeout or 0.0))
        if lag > limit:
            raise ConnectorBlockedError(
                f"{run.source}: a connector has blocked the event loop for {lag:.0f} s; at most {limit:.0f} s are "
                f"allowed. Await instead of blocking, or use asyncio.to_thread. It is here:\n{self._loop.stack()}"
            )
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s: a connector blocks the event loop since %.1f s; lookups wait. It is here:\n%s",
                run.source,
                lag,
                self._loop.stack(),
            )
