"""The opening of a connector at the first call: one slot (a task that makes calls) opens it, and other slots wait."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from ..errors import ConnectorError, FatalError, TransientError, UnavailableError
from ..functions import raised

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..interface import Connector

__all__ = ["Opening"]

_log = logging.getLogger("enrichkit")


class Opening:
    """
    The opening and closing of a connector.

    Args:
        connector: The connector, not opened yet.
        name: Name of the engine in messages.
        no_connection: Function to call when the connector cannot be opened because the server has no free connection.

    Attributes:
        done: Whether the connector is open.
        slot: The task of the slot that is opening the connector now; None: no slot opens it.
    """

    __slots__ = ("_connector", "_failure", "_failures", "_lock", "_name", "_no_connection", "done", "slot")

    def __init__(self, connector: Connector[Any], name: str, no_connection: Callable[[], None]) -> None:
        self.done = False
        self.slot: asyncio.Task[Any] | None = None
        self._connector = connector
        self._name = name
        self._no_connection = no_connection
        self._lock = asyncio.Lock()
        self._failures = 0
        self._failure: BaseException = TransientError("")

    async def open(self) -> None:
        """Open the connector, unless another slot has opened it; raise a `ConnectorError` if the opening fails."""
        times = self._failures
        async with self._lock:
            if self.done:
                return
            # Another slot tried to open the connector meanwhile and failed: take its error instead of trying again.
            if self._failures > times:
                raise self._failure.with_traceback(None)
            self.slot = asyncio.current_task()
            try:
                await self._connector.open()
            except BaseException as error:
                await self.close()  # an `open` that failed may have left connections open
                if isinstance(error, UnavailableError) and error.busy:
                    self._no_connection()
                if isinstance(error, TransientError):
                    self._failures, self._failure = self._failures + 1, error
                if isinstance(error, Exception) and not isinstance(error, ConnectorError):
                    raise FatalError(
                        f"{self._name}: its connector could not be opened: it raised {raised(error)}."
                    ) from None  # the error's text may hold secrets, and a traceback would show them
                raise
            finally:
                self.slot = None
            self.done = True

    async def close(self) -> None:
        """Close the connector; if the connector raises an exception, log it and do not raise it."""
        self.done = False
        try:
            await self._connector.close()
        except Exception as error:  # noqa: BLE001  # no lookup depends on `close`, but the log must show that it failed
            _log.warning("%s: close() raised %s", self._name, type(error).__name__)
