"""
An asyncio event loop with virtual time: a test with timeouts of an hour takes milliseconds and is deterministic.

The clock stands still while any task can run, and then jumps to the next timer. Times are therefore exact, and no test
has to sleep until other tasks have run. When no task can run and no timer is set, a real loop would wait for ever; this
loop raises an error that names the waiting tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import selectors
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

__all__ = ["DeadlockError", "VirtualTimeLoop", "run", "settle"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

RESOLUTION = 1e-9
"""The least delay of a timer, in seconds. It equals asyncio's clock resolution: asyncio may run a timer this early."""


class DeadlockError(RuntimeError):
    """Under virtual time, every task waits for an event that cannot happen, or the run has passed its time limit."""


class _Selector(selectors.DefaultSelector):
    """A selector that never waits: instead, it makes the clock of its loop jump to the next timer."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout != 0:
            self.loop._jump(timeout)
        return events


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """
    An event loop with a virtual clock, which starts at 0.

    Threads and sockets have no virtual time: a task that waits for a thread or a socket looks like a deadlock.

    Args:
        seed: Seed of the random order of timers that are due at the same time; None means the order of asyncio's heap.
        limit: Virtual seconds after which the run fails with a `DeadlockError`. Without a limit, a timer that re-arms
            itself would keep the run going for ever.

    Attributes:
        errors: Exceptions of callbacks and of tasks that nobody awaited, which asyncio would only log.
    """

    def __init__(self, seed: int | None = None, limit: float = 3600.0) -> None:
        self._virtual_now = 0.0
        self._limit = limit
        self._rng = random.Random(seed) if seed is not None else None  # noqa: S311  # not for cryptography
        self.errors: list[BaseException] = []
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self.set_exception_handler(lambda _, context: self._note(context))

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._virtual_now

    @property
    def timers(self) -> int:
        """Number of timers that are set."""
        # asyncio has no public API for its timers.
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return sum(not timer.cancelled() for timer in scheduled)

    def advance(self, seconds: float) -> None:
        """Advance the clock by *seconds* and let no task run meanwhile, as if code blocked the loop for that long."""
        self._virtual_now += seconds

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """
        Call *callback* at *when*, or `RESOLUTION` from now if that is later.

        Without this least delay, a timer that re-arms itself without a delay would keep the clock from advancing.
        """
        if self._rng is not None:
            when += self._rng.random() * RESOLUTION / 10
        return super().call_at(max(when, self._virtual_now + RESOLUTION), callback, *args, context=context)

    def _jump(self, seconds: float | None) -> None:
        if seconds is None:
            raise DeadlockError(
                f"At {self._virtual_now:g} s of virtual time no task can run and no timer is set, so these tasks would "
                f"wait for ever:{self._waiting()}\nLet the test complete the events that they wait for. Threads and "
                "sockets have no virtual time."
            )
        self._virtual_now += seconds
        if self._virtual_now > self._limit:
            raise DeadlockError(
                f"{self._limit:g} s of virtual time have passed, the limit of this run. These tasks still wait:"
                f"{self._waiting()}\nLet the test complete the events that they wait for, or raise limit."
            )

    def _waiting(self) -> str:
        return "".join(sorted(f"\n  {task.get_name()} at {_where(task)}" for task in asyncio.all_tasks(self)))

    def _note(self, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or RuntimeError(context["message"]))


def run(main: Coroutine[Any, Any, T], *, seed: int | None = None, limit: float = 3600.0) -> T:
    """
    Run *main* under virtual time and return its result.

    Args:
        main: A coroutine that uses neither threads nor sockets.
        seed: As for `VirtualTimeLoop`.
        limit: As for `VirtualTimeLoop`.

    Raises:
        DeadlockError: *main* cannot end any more, or did not end within *limit* virtual seconds.
        BaseException: The exception that *main* raised. If *main* raised none, the first exception of a callback or of
            a task that nobody awaited.

    >>> async def nap() -> float:
    ...     await asyncio.sleep(900.0)
    ...     return asyncio.get_running_loop().time()
    >>> run(nap())
    900.0
    """
    loop = VirtualTimeLoop(seed, limit)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main)
    if loop.errors:
        raise loop.errors[0]
    return result


async def settle() -> None:
    """Wait until all tasks that can run now have run. The clock advances by two nanoseconds."""
    await asyncio.sleep(2 * RESOLUTION)


def _where(task: asyncio.Task[Any]) -> str:
    """Return the line on which *task* waits: the current line of its innermost coroutine."""
    coroutine: Any = task.get_coro()
    while inspect.iscoroutine(coroutine) and inspect.iscoroutine(coroutine.cr_await):
        coroutine = coroutine.cr_await
    frame = getattr(coroutine, "cr_frame", None)
    if frame is None:
        return "an unknown line"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
