"""How many requests may be under way, those included that nobody waits for any more."""

from __future__ import annotations

import asyncio

__all__ = ["Places"]


class Places:
    """
    The places of one open client.

    The engine never makes more calls than `capacity`, so taking a place is counting, until requests linger whose calls
    were cancelled.

    Attributes:
        capacity: Number of places.
        busy: Places taken.
    """

    __slots__ = ("_waiting", "busy", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.busy = 0
        self._waiting: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        return f"<Places: {self.busy} of {self.capacity} busy>"

    async def wait(self, seconds: float) -> bool:
        """Return True when a place is free, not taken yet, or False after *seconds* without one."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.busy >= self.capacity:
            turn = loop.create_future()
            self._waiting.append(turn)
            # Not wait_for: before Python 3.12 it loses a cancel that comes together with the end.
            await asyncio.wait((turn,), timeout=end - loop.time())
            if not turn.done():
                self._waiting.remove(turn)
                return False
        return True

    def leave(self) -> None:
        """Give a place back."""
        self.busy -= 1
        # All are woken and all but one sleep again: that is rare, and no wake-up can be lost to one who was cancelled.
        for turn in self._waiting:
            turn.set_result(None)
        self._waiting.clear()

    def leave_in(self, seconds: float) -> None:
        """Give a place back after *seconds*."""
        asyncio.get_running_loop().call_later(seconds, self.leave)
