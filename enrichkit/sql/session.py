"""One connection of a pool, with its age, a limit on the size of replies, and the kernel's TCP keep-alive."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

from .meter import Meter

__all__ = ["Session"]

# Seconds, +/- 20 %, after which a connection is replaced. After a failover or a change of DNS, only a new connection
# finds the new server.
LIFETIME = 300.0
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}


class Session:
    """
    One connection, used by one call at a time. A session must be created on the running event loop.

    Attributes:
        connection: Connection object of the client package.
        transport: The asyncio transport of the connection.
        meter: The counter of the bytes that the server sends.
        ends: Loop time after which the connection is not lent again.
        idle_since: Loop time at which the last call gave the connection back.
    """

    __slots__ = ("connection", "ends", "idle_since", "meter", "transport")

    def __init__(self, connection: Any, transport: Any) -> None:
        self.connection = connection
        self.transport = transport
        self.meter = Meter(transport)
        now = asyncio.get_running_loop().time()
        self.ends = now + LIFETIME * random.uniform(0.8, 1.2)  # noqa: S311 - spreads the ends over time
        self.idle_since = now
        _keep_alive(transport.get_extra_info("socket"))

    @property
    def closed(self) -> bool:
        """Whether the connection is known to have ended."""
        # `is_closing` alone is not enough: after the server has closed its side, the transport stays open if the
        # protocol of the client package asks for that.
        ended: bool = self.transport.is_closing() or self.meter.ended
        return ended

    def end(self) -> None:
        """Close the connection now, without waiting for the server."""
        self.transport.abort()


def _keep_alive(sock: socket.socket | None) -> None:
    """Make the kernel notice within 45 s that the server is gone; by default the kernel takes about 15 minutes."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):  # a Unix socket needs no keep-alive
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has all keep-alive options, other systems only some
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
