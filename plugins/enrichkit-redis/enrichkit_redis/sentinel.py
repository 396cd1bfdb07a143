"""
The address of the current master, from Redis Sentinel. See
https://redis.io/docs/latest/develop/reference/sentinel-clients/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from hiredis import ReplyError

from enrichkit.errors import ConfigError, ConnectorError, FatalError, TransientError, UnavailableError
from enrichkit.plugin import refuse, revealed

from .config import sentinel_address
from .replies import translate

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from .config import Address, RedisConfig
    from .wire import Connection

    Greeting: TypeAlias = list[tuple[str, ...]]
    """The commands that the client sends as soon as a connection is made."""
    Greeted: TypeAlias = tuple[asyncio.Transport, Connection, list[Any] | ConnectorError]
    """
    The transport, the connection, and as third element the replies to the greeting, or the error if the connection was
    lost.
    """
    Greet: TypeAlias = Callable[[Address, str, Greeting, float], Awaitable[Greeted]]

__all__ = ["SentinelError", "Sentinels"]

ASK_TIMEOUT = 1.0  # most seconds to wait for one sentinel; then the next sentinel is asked


class SentinelError(FatalError):
    """No sentinel gives the master's address, and waiting does not help: a password or the master's name is wrong."""


class Sentinels:
    """
    The sentinels of one master. They are asked one after the other; the sentinel that last gave the master's address
    comes first.

    Each query uses a connection of its own, which is closed after the reply. A worker process asks a sentinel only when
    it connects to the master, and thousands of processes would otherwise keep connections to the sentinels open.
    """

    def __init__(self, config: RedisConfig, greet: Greet) -> None:
        self._config = config
        self._greet = greet
        self._order = [address for address in map(sentinel_address, config.sentinel) if address is not None]
        self._ever_told = False

    async def master(self) -> tuple[str, int]:
        """
        Return host and port of the master.

        Raises:
            UnavailableError: No sentinel gives the master's address now, and either a sentinel is unavailable, or a
                sentinel has given the address before.
            TransientError: No sentinel is unavailable, but the host name of a sentinel has no address, or a sentinel
                answers in an unknown form.
            SentinelError: Waiting does not help: each sentinel refuses the query, or knows no such master. If TLS with
                a sentinel fails, another `FatalError` may be raised.
        """
        errors: list[ConnectorError] = []
        for sentinel in tuple(self._order):
            try:
                told = await self._told(sentinel)
            except ConnectorError as error:
                errors.append(error)
                continue
            self._order.remove(sentinel)
            self._order.insert(0, sentinel)
            self._ever_told = True
            return told
        # Of several errors, raise one that may pass with time rather than a fatal one.
        worst = min(errors, key=lambda error: (not isinstance(error, UnavailableError), isinstance(error, FatalError)))
        if self._ever_told or isinstance(worst, UnavailableError):
            raise UnavailableError(str(worst), sent=False)
        raise worst

    async def _told(self, sentinel: Address, *, again: bool = True) -> tuple[str, int]:
        source = "The Redis sentinel at {}:{}".format(*sentinel)
        secret = self._config.sentinel_password
        try:
            password = await revealed(secret)
        except ConfigError as error:
            raise SentinelError(str(error)) from None
        commands: Greeting = []
        if password is not None:
            username = self._config.sentinel_username
            commands.append(("AUTH", password) if username is None else ("AUTH", username, password))
        commands.append(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._config.master or ""))
        transport, _, replies = await self._greet(sentinel, source, commands, ASK_TIMEOUT)
        transport.abort()
        if isinstance(replies, ConnectorError):
            raise replies
        for reply in replies:
            if not isinstance(reply, ReplyError):
                continue
            meant = translate(reply, source)
            if isinstance(meant, FatalError):
                if again and refuse(secret, password):
                    return await self._told(sentinel, again=False)
                raise SentinelError(
                    f"{source} refused the login or the question ({str(reply).split(' ', 1)[0][:32]}). "
                    "Check RedisConfig.sentinel_username and RedisConfig.sentinel_password."
                )
            # The reply is, for example, IDONTKNOW, which a sentinel sends when it has just started.
            raise UnavailableError(str(meant), sent=False)
        return self._address(replies[-1], source)

    def _address(self, reply: Any, source: str) -> tuple[str, int]:
        if reply is None:
            raise SentinelError(
                f"{source} knows no master named {self._config.master!r}. Check RedisConfig.master; "
                "the command SENTINEL MASTERS lists the names."
            )
        try:
            host, port = reply
            return host.decode(), int(port)
        except (TypeError, ValueError, AttributeError):
            raise TransientError(f"{source} answered in an unknown form; it must be a sentinel.") from None
