"""
An event loop that does nothing by itself: a test says which timer fires, when the clock moves, and what runs next.

Virtual time plays one order of events per seed; here every order can be played.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from enrichkit.interface import Connector, ConnectorConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from enrichkit.interface import Call

__all__ = ["HandLoop", "HandSource", "HeldCall"]

TURNS_MAX = 10_000  # callbacks in a row, after which the engine counts as spinning


class HandLoop(asyncio.AbstractEventLoop):
    """
    As much of an event loop as the engine needs.

    Attributes:
        now: The clock.
        ready: What runs next, in the order in which it became ready, as in every asyncio loop.
        timers: What waits for its time.
        errors: What callbacks raised.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: deque[asyncio.Handle] = deque()
        self.timers: list[asyncio.TimerHandle] = []
        self.errors: list[BaseException] = []

    def __enter__(self) -> HandLoop:
        asyncio._set_running_loop(self)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio._set_running_loop(None)

    # what the test does

    def run(self) -> None:
        """Run what is ready, and what becomes ready by it."""
        turns = 0
        while self.ready:
            handle = self.ready.popleft()
            if not handle.cancelled():
                handle._run()
            turns += 1
            assert turns < TURNS_MAX, "the engine spins"
        if self.errors:
            raise self.errors[0]

    def fire(self, timer: asyncio.TimerHandle) -> None:
        """Let *timer* be due now, whatever the clock says."""
        self.timers.remove(timer)
        self.ready.append(timer)

    def advance(self, seconds: float) -> None:
        """Move the clock, firing each timer at its time."""
        self.run()
        until = self.now + seconds
        while due := [timer for timer in self.timers if timer.when() <= until]:
            timer = min(due, key=asyncio.TimerHandle.when)
            self.now = max(self.now, timer.when())
            self.fire(timer)
            self.run()
        self.now = until

    def finish(self, main: Coroutine[Any, Any, Any]) -> None:
        """Run *main* to its end, moving the clock as it needs."""
        task = self.create_task(main)
        self.run()
        while not task.done():
            assert self.timers, "main waits for ever"
            self.advance(min(timer.when() for timer in self.timers) - self.now)
        task.result()

    # what asyncio and the engine do

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self.now + delay, callback, args, self, context)
        self.timers.append(timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle in self.timers:
            self.timers.remove(handle)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context.get("exception") or RuntimeError(context["message"]))


class HeldCall:
    """A call that waits until the test ends it: `answer` with a mapping or an exception."""

    __slots__ = ("call", "ended", "future", "keys")

    def __init__(self, keys: tuple[Any, ...], call: Call, future: asyncio.Future[Any]) -> None:
        self.keys = keys
        self.call = call
        self.future = future
        self.ended = False

    def answer(self, answer: Mapping[Any, Any] | BaseException) -> None:
        """Let the call end; what waits for it becomes ready."""
        self.ended = True
        if not self.future.done():
            self.future.set_result(answer)


class HandSource(Connector[ConnectorConfig]):
    """
    A source that answers when the test says so.

    Attributes:
        calls: All calls that were made.
    """

    name = "by hand"
    config_class = ConnectorConfig

    def __init__(self) -> None:
        super().__init__(ConnectorConfig())
        self.calls: list[HeldCall] = []

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        held = HeldCall(tuple(keys), call, asyncio.get_running_loop().create_future())
        self.calls.append(held)
        try:
            answer = await held.future
        finally:
            held.ended = True
        if isinstance(answer, BaseException):
            raise answer
        return answer
