"""
Pending keys -> calls: one engine per source and worker process, with its connector, slots and limits.

`capacity` long-lived slot coroutines take groups from the runs and await `fetch_many` themselves: no task, timer or
semaphore per key. A slot is held until its call has really ended, late and cancelled calls included, so the number of
calls in flight is bounded by construction. Between tasks the engine stays open, because Spark reuses its workers.

Longer than other modules because opening, calling, retrying late and stalling are steps of one life.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import TYPE_CHECKING, Any

from ..errors import ConnectorError, FatalError, SourceStalledError, TransientError
from .again import retry_late
from .at_once import answered_one
from .calls import InFlight
from .conclude import conclude
from .deadlines import Sweeper
from .limits import Breaker, Rate
from .retry import RETRY_AFTER_MAX, Budget

if TYPE_CHECKING:
    from ..connector import Connector
    from .lookup import Lookup
    from .run import Run

__all__ = ["Engine"]

_log = logging.getLogger("enrichkit")

TURNS_WITHOUT_BREATH = 32  # calls that a slot may make without letting the loop go round, if they never suspend


class Engine:
    """
    One source in one worker process. Lives on the loop thread.

    Args:
        connector: Not opened yet; opened by the first call.
        capacity: Number of slots.
        batch_size: Most keys per call.
        rate: Calls per second; None: no limit.
        seed: For the breaker; tests give one.
    """

    def __init__(
        self,
        connector: Connector[Any],
        capacity: int,
        batch_size: int,
        *,
        name: str = "",
        rate: float | None = None,
        seed: int | None = None,
    ) -> None:
        self.name = name or connector.name
        self.connector = connector
        self.capacity = capacity
        self.batch_size = batch_size
        self.budget = Budget()
        self.breaker = Breaker(random.Random(seed))  # noqa: S311  # a throttle needs no cryptography
        self.runs: deque[Run] = deque()
        self.calls: dict[InFlight, None] = {}
        self.idle_since: float | None = None
        self._rate = Rate(rate) if rate is not None else None
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._sweeper = Sweeper(self._loop, self._sweep_safely)
        self._slots: set[asyncio.Task[None]] = set()
        self._parked: deque[asyncio.Future[None]] = deque()
        self._paused_until = 0.0
        self._limited = rate is not None  # whether the limits have to be asked before a call
        self._silent = False  # no call has ended in time since one became late
        self._resume: asyncio.TimerHandle | None = None
        self._opening = asyncio.Lock()
        self._open = False
        self._closing = False

    def __repr__(self) -> str:
        waiting = sum(bool(run.pending) for run in self.runs)
        return f"<Engine {self.name}: {len(self.calls)} in flight, {waiting} runs waiting, {self.capacity} capacity>"

    # runs

    def attach(self, run: Run) -> None:
        """Serve *run* until it closes."""
        run.engine = self
        self.runs.append(run)
        self.idle_since = None
        for timeout in (run.options.timeout, run.options.attempt_timeout):
            if timeout is not None:
                self._sweeper.watch(timeout)

    def detach(self, run: Run) -> None:
        """Stop serving *run*, and close its calls: all its rows have their outcome, or nobody waits for them."""
        if run in self.runs:
            self.runs.remove(run)
        for call in self.calls:
            if call.run is run:
                call.late = True  # nobody waits for it any more, and how it ends says nothing of the source
                call.cancel(self.now())
        if not self.runs:
            self.idle_since = self.now()

    def wake(self) -> None:
        """Let slots look for groups: parked ones first, new ones while there are fewer than `capacity`."""
        groups = sum(run.pending.groups(self.batch_size) for run in self.runs)
        while groups > 0 and self._parked:
            future = self._parked.popleft()
            if not future.done():
                future.set_result(None)
                groups -= 1
        while groups > 0 and len(self._slots) < self.capacity:
            slot = self._loop.create_task(self._slot(), name=f"enrichkit-slot-{self.name}")
            self._slots.add(slot)
            slot.add_done_callback(self._ended)
            groups -= 1

    def _ended(self, slot: asyncio.Task[None]) -> None:
        """Forget *slot*, and let another take its place: a connector may leave a cancellation behind."""
        self._slots.discard(slot)
        if not self._closing:
            self.wake()

    def later(self, run: Run, wait: float, group: list[Lookup]) -> None:
        """Put *group* at the head of the pending queue of *run* in *wait* seconds; it holds no slot meanwhile."""

        def due() -> None:
            run.timers.discard(handle)
            run.put_first(group)

        handle = self._loop.call_later(wait, due)
        run.timers.add(handle)
        self._sweeper.wake()

    def pause(self, seconds: float) -> None:
        """Make no call for *seconds*, because the source asked for it; clamped to 0..60."""
        if seconds == seconds:  # not a NaN
            self._paused_until = max(self._paused_until, self.now() + min(max(seconds, 0.0), RETRY_AFTER_MAX))
            self._limited = True

    async def close(self) -> None:
        """End the slots and close the connector."""
        self._closing = True
        self._sweeper.stop()
        if self._resume is not None:
            self._resume.cancel()
        for slot in list(self._slots):
            slot.cancel()
        if self._slots:
            await asyncio.wait(list(self._slots), timeout=1.0)
        await self._close_connector()

    # slots

    async def _slot(self) -> None:
        """Take groups and make calls, one after another, until the engine closes."""
        task = asyncio.current_task()
        connector, calls = self.connector, self.calls
        turns = 0
        while not self._closing:
            call = self._next(task)
            if call is None:
                parked = self._loop.create_future()
                self._parked.append(parked)
                await parked
                continue
            run = call.run
            stats = run.stats
            stats.calls += 1  # now and not at its end, which the run may not live to see
            stats.attempts += len(call.keys)
            calls[call] = None
            if self._sweeper.idle:
                self._sweeper.wake()
            answers: Any = None
            failure: BaseException | None = None
            try:
                if not self._open:
                    await self._open_connector()
                about = run.first_call if call.attempt == 1 else run.call(call.attempt)
                answers = await connector.fetch_many(call.keys, about)
            except BaseException as error:  # the border to a plugin: any error is a key's or the task's
                failure = error
                if self._closing and isinstance(error, asyncio.CancelledError):
                    raise
                if isinstance(error, GeneratorExit) and (task is None or asyncio.current_task(self._loop) is not task):
                    raise  # not the connector: this coroutine is thrown away, in a forked child for example
            self._end(call, answers, failure)
            answers = None  # a parked slot need not keep them
            turns += 1
            if turns % TURNS_WITHOUT_BREATH == 0:
                await asyncio.sleep(0)

    def _end(self, call: InFlight, answers: Any, failure: BaseException | None) -> None:
        """Take note of how *call* ended, and let its keys have their outcomes."""
        del self.calls[call]
        if failure is not None or call.cancelled_at is not None:
            # Either the engine cancelled the call, or the connector its own task: a key's error, never our shutdown.
            while call.task is not None and call.task.cancelling() and not self._closing:
                call.task.uncancel()  # also when the connector swallowed the cancellation and answered
            if isinstance(failure, asyncio.CancelledError) and call.cancelled_at is not None:
                failure = TransientError(f"no answer within {call.run.hard_limit:g} s; the call was cancelled")
            if isinstance(failure, TransientError) and failure.retry_after is not None:
                self.pause(failure.retry_after)  # also when nobody waits for this call any more
        try:
            answered = (failure is None and answered_one(call, answers)) or conclude(call, answers, failure)
        except Exception as error:  # noqa: BLE001  # a defect of a decoder or of ours must fail the task, not hang it
            call.run.broken(error)
            return
        if call.late:
            return  # counted when it became late
        self._silent = False
        if answered:
            self.breaker.accepted()
        else:
            self._refused()

    def _next(self, task: asyncio.Task[None] | None) -> InFlight | None:
        """Take the next group, for a call that *task* makes, if the limits allow one now; the runs take turns."""
        runs = self.runs
        if self._limited and any(run.pending for run in runs) and self._held_back():
            return None
        for _ in range(len(runs)):
            run = runs[0]
            runs.rotate(-1)
            try:
                group, bisection = run.take(self.batch_size)
                call = InFlight(run, group, bisection, self.now(), task) if group else None
            except Exception as error:  # noqa: BLE001  # keys that left `pending` for no call would wait for ever
                run.broken(error)
                return self._next(task)
            if call is not None:
                if self._rate is not None:
                    self._rate.spend(call.started)
                return call
        return None

    def _held_back(self) -> bool:
        """Whether a limit forbids a call now; if so, the slots are woken when it ends."""
        now = self.now()
        wait = self._paused_until - now
        if wait <= 0 and self._rate is not None:
            wait = self._rate.delay(now)
        if wait <= 0 and self.breaker.troubled():
            wait = self.breaker.delay(now)
            self._paused_until = now + wait  # for all slots: each of them would draw again
        if wait > 0:
            self._resume_in(wait)
            return True
        self._limited = self._rate is not None or self.breaker.troubled()
        return False

    def _resume_in(self, wait: float) -> None:
        self._sweeper.wake()
        if self._resume is None:

            def resume() -> None:
                self._resume = None
                self.wake()

            self._resume = self._loop.call_later(wait, resume)

    def _refused(self) -> None:
        self.breaker.refused()
        self._limited = True

    async def _open_connector(self) -> None:
        async with self._opening:
            if self._open:
                return
            try:
                await self.connector.open()
            except BaseException as error:
                await self._close_connector()  # what a failed open left behind
                if isinstance(error, Exception) and not isinstance(error, ConnectorError):
                    raise FatalError(
                        f"{self.name}: its connector could not be opened: it raised {type(error).__qualname__}."
                    ) from None  # its text may hold secrets, and a traceback would show them
                raise
            self._open = True

    async def _close_connector(self) -> None:
        self._open = False
        try:
            await self.connector.close()
        except Exception as error:  # noqa: BLE001  # nothing depends on it any more, but it must be seen
            _log.warning("%s: close() raised %s", self.name, type(error).__name__)

    # deadlines

    def _sweep_safely(self, now: float) -> bool:
        try:
            return self._sweep(now)
        except Exception as error:  # noqa: BLE001  # without the sweeper no deadline holds any more
            for run in list(self.runs):
                run.broken(error)
            return bool(self.calls)

    def _sweep(self, now: float) -> bool:
        """Expire lookups and calls; return whether there is anything left to watch."""
        self.breaker.tick(now)
        for run in list(self.runs):
            expired = run.expire(now)
            if expired:
                for call in self.calls:
                    if not call.late and not call.wanted():
                        call.late = self._silent = True
                        self._refused()
        zombies = 0
        for call in list(self.calls):
            run, age = call.run, now - call.started
            attempt_timeout = run.options.attempt_timeout
            if attempt_timeout is not None and not call.overdue and age >= attempt_timeout and not run.closed:
                if not call.late:
                    self._refused()
                retry_late(call)
            if age >= run.hard_limit:
                call.cancel(now)
            if call.cancelled_at is not None and now - call.cancelled_at > 2 * (
                run.options.timeout or attempt_timeout or age
            ):
                zombies += 1
        if zombies and zombies * 2 >= self.capacity:
            for run in list(self.runs):
                run.stats.zombies = zombies
                run.fail(_zombies(self.name, zombies, self.capacity))
        full = len(self.calls) == self.capacity and all(call.late for call in self.calls)
        # Rows held back by a source that refuses in time have no clock, since they can wait; one that says nothing
        # would freeze the task once its calls are cancelled.
        if full or (self._silent and self.breaker.held_since is not None):
            for run in self.runs:
                run.start_clocks(self.capacity * self.batch_size, now)
        held_since = self.breaker.held_since
        for run in list(self.runs):
            if held_since is not None and run.pending and now - held_since > run.options.stall_timeout:
                run.fail(_stalled(self.name, now - held_since))
        pending = any(run.pending for run in self.runs)
        if not pending:
            self.breaker.held_since = None  # nothing is held back, so the next task's stall_timeout begins anew
        return bool(self.calls or pending or any(run.timers for run in self.runs))


def _zombies(name: str, zombies: int, capacity: int) -> FatalError:
    return FatalError(
        f"{name}: {zombies} of {capacity} calls did not end although they were cancelled; a connector must not "
        "swallow asyncio.CancelledError. Look for 'except BaseException' or blocking code in its fetch_many."
    )


def _stalled(name: str, seconds: float) -> SourceStalledError:
    return SourceStalledError(
        f"{name}: the source has failed for {seconds:.0f} s and calls were held back all that time. Mend the source, "
        "or raise stall_timeout."
    )
