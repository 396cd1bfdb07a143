"""
A limit on the size of a reply. The client packages of databases have no such limit, and keep a reply of any length in
memory.

A meter stands between the transport of a connection and the protocol of the client package, and counts the bytes of
each read before the client package gets them. This costs one function call per read, and nothing per row. The meter
also ends a connection when the client package raises an exception for the received bytes, for example for a reply that
nobody has asked for.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

__all__ = ["Meter"]

_log = logging.getLogger("enrichkit")


class Meter:
    """
    A counter of the bytes that the server sends on one connection; it ends the connection after too many bytes.

    Attributes:
        exceeded: Whether the connection was ended because the server sent too many bytes.
        ended: Whether the server has ended its side of the connection.
    """

    def __init__(self, transport: Any) -> None:
        self.exceeded = self.ended = False
        self._transport = transport
        self._left = math.inf
        driver = transport.get_protocol()
        kind = _Buffered if isinstance(driver, asyncio.BufferedProtocol) else _Streamed
        transport.set_protocol(kind(driver, self))

    def start(self, limit: int | None) -> None:
        """Allow the server to send *limit* bytes from now on, or any number if *limit* is None."""
        self._left = math.inf if limit is None else limit

    def unreadable(self, error: Exception) -> None:
        """End the connection, because the client package cannot read what the server has sent."""
        _log.warning("A database sent what its driver cannot read (%s); the connection ends.", type(error).__name__)
        self._transport.abort()

    def takes(self, size: int) -> bool:
        """Count *size* bytes, and return whether the client package may have them."""
        self._left -= size
        if self._left < 0 and not self.exceeded:
            self.exceeded = True
            self._transport.abort()
        return not self.exceeded


class _Metered:
    """A protocol that passes all events of a connection on to the protocol of the client package."""

    def __init__(self, driver: Any, meter: Meter) -> None:
        self._driver = driver
        self._meter = meter

    def connection_lost(self, exc: Exception | None) -> None:
        self._driver.connection_lost(exc)

    def eof_received(self) -> bool | None:
        self._meter.ended = True
        stays_open: bool | None = self._driver.eof_received()
        return stays_open

    def pause_writing(self) -> None:
        self._driver.pause_writing()

    def resume_writing(self) -> None:
        self._driver.resume_writing()


class _Streamed(_Metered, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        if self._meter.takes(len(data)):
            try:
                self._driver.data_received(data)
            except Exception as error:  # noqa: BLE001  # not raised: the event loop would log a traceback for it
                self._meter.unreadable(error)


class _Buffered(_Metered, asyncio.BufferedProtocol):
    def get_buffer(self, sizehint: int) -> Any:
        return self._driver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        if self._meter.takes(nbytes):
            try:
                self._driver.buffer_updated(nbytes)
            except Exception as error:  # noqa: BLE001  # not raised: the event loop would log a traceback for it
                self._meter.unreadable(error)
