"""A limit on the requests in flight, including the requests of cancelled calls."""

from __future__ import annotations

import asyncio

__all__ = ["Permits"]


class Permits:
    """
    A semaphore for the requests of one open client: each request in flight holds a permit.

    The engine never makes more calls at a time than `capacity`. But the requests of cancelled calls still run for a
    while. Up to `capacity` of these requests add a permit each, so that the engine's next calls need not wait for them.
    So a caller waits for a permit only while more than `capacity` cancelled calls still have a request in flight.

    Attributes:
        capacity: The most calls that the engine makes at a time.
        limit: Present number of permits.
        busy: Number of permits that are acquired.
    """

    __slots__ = ("_waiters", "busy", "capacity", "limit")

    def __init__(self, capacity: int) -> None:
        self.capacity = self.limit = capacity
        self.busy = 0
        self._waiters: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        return f"<Permits: {self.busy} of {self.limit} busy>"

    async def wait(self, seconds: float) -> bool:
        """
        Return True as soon as a permit is free, without acquiring it, or False if none becomes free within *seconds*.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.busy >= self.limit:
            waiter = loop.create_future()
            self._waiters.append(waiter)
            # `asyncio.wait_for` is not used, because before Python 3.12 it loses a cancellation that comes together
            # with the result.
            await asyncio.wait((waiter,), timeout=end - loop.time())
            if not waiter.done():
                self._waiters.remove(waiter)
                return False
        return True

    def acquire(self) -> None:
        """Acquire a permit without waiting: the caller has checked before that a permit is free."""
        self.busy += 1

    def release(self) -> None:
        """Release a permit."""
        self.busy -= 1
        # All waiters are woken, and all but one then wait again. This is cheap enough, because waiting is rare. If only
        # one waiter were woken, and its call were cancelled, the others would not learn of the free permit.
        for waiter in self._waiters:
            waiter.set_result(None)
        self._waiters.clear()

    def keep(self, seconds: float) -> None:
        """Acquire a permit for *seconds*, for the request of a cancelled call."""
        further = int(self.limit < 2 * self.capacity)
        self.busy += 1
        self.limit += further

        def end() -> None:
            self.limit -= further
            self.release()

        asyncio.get_running_loop().call_later(seconds, end)
