"""Asks a source one question on the driver: opens a connector, asks, and closes the connector, in bounded time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ..interface import Connector

__all__ = ["ask"]

T = TypeVar("T")


def ask(connector: Connector[Any], question: Callable[[], Awaitable[T]], timeout: float) -> T | BaseException:
    """
    Open *connector*, await *question* and close *connector*; return the answer, or the exception that ended one of
    these steps.

    All steps together may take *timeout* seconds; the thread then has one more second to end. The coroutine runs in a
    thread of its own, because an event loop already runs in the thread of a notebook.
    """
    result: list[T | BaseException] = []

    async def opened() -> T:
        try:
            await connector.open()
            return await question()
        finally:
            await connector.close()

    def run() -> None:
        try:
            result.append(asyncio.run(asyncio.wait_for(opened(), timeout)))
        except BaseException as error:  # noqa: BLE001  # the caller gets the error, and handles it in its own thread
            result.append(error)

    thread = threading.Thread(target=run, name="enrichkit-describe", daemon=True)
    thread.start()
    # The join has a timeout because asyncio.run waits without end for a connector that ignores its cancellation, or for
    # a name server that does not answer.
    thread.join(timeout + 1.0)
    return result[0] if result else TimeoutError()
