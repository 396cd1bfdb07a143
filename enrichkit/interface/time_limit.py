"""A time limit that does not count the time in which the event loop stood still."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["time_limit"]

STEPS = 8


@asynccontextmanager
async def time_limit(seconds: float) -> AsyncIterator[None]:
    """
    Return an asynchronous context manager that raises `TimeoutError` after *seconds* in which the event loop ran.

    Use it for an operation of several round trips, such as a login. While the process is stopped, or other code blocks
    the loop, the replies of the server wait in the socket. `asyncio.timeout` would end the login as soon as the loop
    runs again, before the loop has read all replies. This function splits *seconds* into `STEPS` timers, one
    after the other, so that a pause of any length uses up only one timer.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle
    left = STEPS

    def step() -> None:
        nonlocal left, timer
        left -= 1
        if left:
            timer = loop.call_later(seconds / STEPS, step)
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        timer = loop.call_later(seconds / STEPS, step)
        try:
            yield
        finally:
            timer.cancel()
