"""
The connection pool of one server: it connects when needed, and uses a connection again only if all replies of the last
exchange have arrived.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from typing import TYPE_CHECKING, Any

import hiredis

from enrichkit.errors import ConfigError, ConnectorError, FatalError, TransientError, UnavailableError
from enrichkit.plugin import (
    RefusedLogin,
    RenewedContext,
    Secret,
    files_exhausted,
    refuse,
    revealed,
    time_limit,
    tls_context,
)

from .commands import pack
from .config import Address, RedisConfig, parse_url
from .replies import translate
from .sentinel import SentinelError, Sentinels
from .wire import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .sentinel import Greeted, Greeting
    from .template import Name

    Login = tuple[tuple[str | None, str | None], tuple[object, ...]]  # the result of `Dialler.login`

__all__ = ["Dialler", "Pool"]

NAME = "enrichkit"
CONNECT_TIMEOUT = 2.0  # seconds, for TCP, TLS and login together
# A connection that was idle for more seconds must answer two `ECHO` commands before it is used.
CHECK_AFTER = 15.0
CHECK_TIMEOUT = 1.0
# Seconds, +/- 20 %, that a connection is used; then it is replaced, because the host name may lead to another server.
LIFETIME = 300.0
PAUSE = 1.0  # seconds, +/- 25 %, between two attempts to connect to a node of a cluster that is away

_BAD_FILE = (
    "A file that RedisConfig.tls_ca, tls_cert or tls_key names cannot be used on this worker ({reason}); it must be a "
    "PEM file. Put it there, or correct the path."
)


class Dialler:
    """The maker of connections that are logged in; all servers of a cluster share one dialler."""

    def __init__(self, config: RedisConfig) -> None:
        self.endpoint = parse_url(config.url)
        self.name = "Redis" if config.master is None else f"The Redis master {config.master!r}"
        self._config = config
        self._sentinels = Sentinels(config, self._greeted) if config.sentinel else None
        verify, message = not config.insecure, _BAD_FILE
        self._context = RenewedContext(
            lambda: tls_context(config, self.endpoint.password, verify=verify, message=message), config
        )
        self._ever_logged_in = False

    async def login(self) -> Login:
        """
        Return username and password, and the stamp of the TLS files (see `RenewedContext.stamp`). This method is called
        for each new connection, because secrets and certificates may have been replaced.
        """
        try:
            password = await revealed(self._config.password)
        except ConfigError as error:
            raise FatalError(str(error)) from None
        username = self._config.username or self.endpoint.username
        return (username, self.endpoint.password if password is None else password), self._context.stamp()

    def refused(self, error: ConnectorError, login: Login) -> tuple[ConnectorError, bool]:
        """
        Return the error to raise after *login* failed with *error*, and whether to read the password again at once and
        retry the login with it.
        """
        password = self._config.password
        if not isinstance(error, FatalError) or isinstance(error, SentinelError):
            return error, False
        if isinstance(password, Secret) and refuse(password, login[0][1]):
            return error, True
        # If logins have worked before, the password or certificate is probably being replaced. So the error is an
        # `UnavailableError`, and the engine lets the keys wait, as in an outage.
        replaced = self._ever_logged_in and (isinstance(password, Secret) or self._context.has_files)
        return (UnavailableError(f"{error} Logins have worked before.", sent=False) if replaced else error), False

    async def dial(self, address: Address | None, login: Login) -> Connection:
        """
        Return a connection to *address*, logged in and in the right database; raises `ConnectorError`.

        If *address* is None, the sentinels are asked for the address of the master, once for each connection. The
        server then has to confirm that it is the master, because a sentinel may not know yet that another server has
        become the master.
        """
        if address is None:
            assert self._sentinels is not None
            address = await self._sentinels.master()
        source = f"{self.name} at {address if isinstance(address, str) else '{}:{}'.format(*address)}"
        transport, connection, replies = await self._greeted(address, source, self._greeting(login), CONNECT_TIMEOUT)
        try:
            _check_hello(replies, source, role=self._sentinels is not None)
        except ConnectorError:
            transport.abort()
            raise
        self._ever_logged_in = True
        connection.address = address
        now = asyncio.get_running_loop().time()
        connection.expires = now + LIFETIME * random.uniform(0.8, 1.2)  # noqa: S311  # jitter
        return connection

    async def _greeted(self, address: Address, source: str, commands: Greeting, timeout: float) -> Greeted:
        """Connect to *address*, send *commands*, and wait at most *timeout* seconds for the replies."""
        greeting = b"".join(map(pack, commands))
        loop = asyncio.get_running_loop()

        def protocol() -> Connection:
            return Connection(source, self._config.max_bytes, greeting, len(commands))

        try:
            async with time_limit(timeout):
                if isinstance(address, str):
                    transport, connection = await loop.create_unix_connection(protocol, address)
                else:
                    transport, connection = await loop.create_connection(protocol, *address, ssl=self._tls())
                try:
                    return transport, connection, await connection.hello
                except BaseException:
                    transport.abort()
                    raise
        except OSError as error:
            raise _connect_error(error, source, timeout) from None

    def _greeting(self, login: Login) -> list[tuple[str, ...]]:
        (username, password), _ = login
        commands: list[tuple[str, ...]] = []
        if password is not None:
            commands.append(("AUTH", password) if username is None else ("AUTH", username, password))
        if self.endpoint.db:
            commands.append(("SELECT", str(self.endpoint.db)))
        if self._sentinels is not None:
            # The reply to HELLO tells the role of the server. ROLE is not sent, because many users lack the permission.
            commands.append(("HELLO", "2"))
        # SETNAME gives the connection a name, which CLIENT LIST shows. The reply to ECHO shows whether the server is
        # ready. The reply to AUTH does not, because a server that is still loading its data accepts a login.
        return [*commands, ("CLIENT", "SETNAME", NAME), ("ECHO", NAME)]

    def _tls(self) -> ssl.SSLContext | None:
        return self._context() if self.endpoint.tls else None


def _connect_error(error: OSError, source: str, timeout: float) -> ConnectorError:
    if isinstance(error, TimeoutError):
        return UnavailableError(f"{source} did not accept a connection within {timeout:g} s.")
    if isinstance(error, ssl.SSLCertVerificationError):
        return FatalError(
            f"The certificate of {source} is not trusted: {error.verify_message.rstrip('.')}. "
            "Name the authority's file in RedisConfig.tls_ca."
        )
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # the server closed the connection, as in a restart
        return UnavailableError(f"{source} closed the connection during the TLS handshake.")
    if isinstance(error, ssl.SSLError):
        return FatalError(f"{source} does not speak TLS 1.2 or later with us ({error.reason}). See RedisConfig.url.")
    # The host name may be misspelled. Then it would not help to wait for the server, as after an `UnavailableError`.
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
        return TransientError(f"{source} cannot be reached: its name has no address.")
    if (exhausted := files_exhausted(error)) is not None:
        return UnavailableError(f"{source} cannot be reached: {exhausted}.")
    return UnavailableError(f"{source} cannot be reached ({type(error).__name__}).")


def _check_hello(replies: list[Any] | ConnectorError, source: str, *, role: bool) -> None:
    if isinstance(replies, ConnectorError):
        raise replies
    told = replies.pop(-3) if role else None
    *login, named, echo = replies
    if isinstance(named, hiredis.ReplyError) and (str(named).startswith("NOPERM") or "unknown" in str(named)):
        named = b"OK"  # this error is ignored: old servers, or users with few permissions, cannot set the name
    for reply, expected in zip((*login, named, echo), (*[b"OK"] * (len(login) + 1), NAME.encode()), strict=True):
        if isinstance(reply, hiredis.ReplyError):
            raise translate(reply, source)
        if reply != expected:
            raise TransientError(f"{source} did not answer the login as Redis does; the connection was dropped.")
    if role:
        _check_role(told, source)


def _check_role(told: Any, source: str) -> None:
    """Raise an error unless *told*, the names and values in the reply to HELLO, says that the server is a master."""
    if not isinstance(told, list):
        raise FatalError(f"{source} does not tell its role; RedisConfig.sentinel needs Redis 6 or later, or Valkey.")
    found = dict(zip(told[::2], told[1::2], strict=False)).get(b"role")
    if found != b"master":
        raise UnavailableError(f"{source} is no master now; a fail-over is under way.")


class Pool:
    """
    The connections to one server, at most *capacity*. The connection that was used last is taken first (LIFO), so that
    superfluous connections stay idle and expire.

    When an attempt to connect fails, all callers that are waiting for a connection get its error; otherwise, a hundred
    callers would make a hundred handshakes with a server that is restarting. After such a failure, only one caller at a
    time tries to connect, until an attempt succeeds.

    After a failed attempt, the pool of a single server lets the next caller try at once. While this server is away, the
    engine makes only one call at a time, to probe the server. When a node of a cluster is away, the engine does not
    probe the node, because the other nodes go on answering. So the pool of this node makes its next attempt about a
    second later; until then its callers get an `UnavailableError` with the time to wait. After a refused login, a pool
    of either kind waits longer, see `RefusedLogin`.

    Args:
        dialler: The maker of connections that are logged in.
        address: Address of the server; None: the sentinels tell it.
        capacity: Most connections.
        node: Whether the server is a node of a cluster, so that a failure concerns only the keys of this node.
    """

    def __init__(self, dialler: Dialler, address: Address | None, capacity: int, *, node: bool = False) -> None:
        self._pause = PAUSE if node else 0.0
        self._node = node
        self._attempts = 0  # number of failed attempts to connect; refused logins are not included
        self._dialler = dialler
        self._address = address
        # Address of the newest connection; a connection to another address, that of a former master, is dropped.
        self._current = address
        self._source = dialler.name
        if address is not None:
            self._source += f" at {address if isinstance(address, str) else '{}:{}'.format(*address)}"
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._permits = asyncio.Semaphore(capacity)
        self._connecting = asyncio.Semaphore(max(2, capacity // 4))
        self._recovering = asyncio.Lock()
        self._failed: ConnectorError | None = None
        self._refused = RefusedLogin()
        self._paused_until = 0.0
        self._closed = False

    async def ask(self, frames: bytes, replies: int) -> list[Any]:
        """
        Send *frames*, the bytes of *replies* commands, and return the reply to each command; raises `ConnectorError`.
        """
        attempts = self._attempts
        async with self._permits:
            connection = await self._idle_or_new(attempts)
            if self._closed:
                connection.abort()
                raise TransientError(f"The connection to {self._source} was closed.")
            self._busy.add(connection)
            try:
                answers = await connection.ask(frames, replies)
            except BaseException:
                # Close the connection even after a cancellation: the reply is still on its way, and the next request
                # must not get it.
                connection.abort()
                raise
            finally:
                self._busy.discard(connection)
            if self._closed or connection.address != self._current:
                connection.abort()
            else:
                connection.used = asyncio.get_running_loop().time()
                self._idle.append(connection)
            return answers

    async def ask_each(self, names: Sequence[Name], frames: Sequence[bytes], width: int = 1) -> list[Any]:
        """
        Send *frames*, each with the bytes of *width* commands. Return a list with one element for each frame: the last
        reply to the frame, or the first `ReplyError` if a command was refused. *names* is used only by
        `Cluster.ask_each`.
        """
        replies = await self.ask(b"".join(frames), len(frames) * width)
        if width == 1:
            return replies
        # If a command is refused inside MULTI, the reply to this command gives the reason; the reply to EXEC is only
        # EXECABORT.
        return [
            next((reply for reply in frame if isinstance(reply, hiredis.ReplyError)), frame[-1])
            for frame in (replies[at : at + width] for at in range(0, len(replies), width))
        ]

    def forget(self) -> None:
        """Drop the idle connections; new connections resolve the host name again."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def close(self) -> None:
        """Close all connections, including those in use."""
        self._closed = True
        self.forget()
        for connection in tuple(self._busy):
            connection.abort()

    async def _idle_or_new(self, attempts: int) -> Connection:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.closed or now > connection.expires or connection.address != self._current:
                connection.abort()
            elif now - connection.used <= CHECK_AFTER or await self._alive(connection):
                return connection
        return await self._connect(attempts)

    async def _alive(self, connection: Connection) -> bool:
        try:
            async with time_limit(CHECK_TIMEOUT):
                await connection.ask(b"", 0)
        except (ConnectorError, TimeoutError):
            connection.abort()
            # All other idle connections have been idle for even longer, so they are dropped, too. To check them one by
            # one could take longer than the timeout of the call.
            self.forget()
            return False
        except BaseException:
            connection.abort()
            raise
        return True

    async def _connect(self, attempts: int) -> Connection:
        """
        Return a new connection; *attempts* is the value that `_attempts` had when the caller began to wait for a
        connection.
        """
        async with self._recovering if self._failed else self._connecting:
            login = await self._dialler.login()
            now = asyncio.get_running_loop().time()
            wait = max(self._paused_until - now, self._refused.wait(*login, now))
            # If an attempt failed a moment ago, or while this caller waited, another attempt would fail, too. So this
            # caller gets the error of that attempt.
            if self._failed is not None and (wait > 0 or self._attempts > attempts):
                raise self._anew(self._failed, wait)
            connection = await self._dialled(login)
            self._failed = None
            self._refused.accepted()
            self._current = connection.address
            return connection

    async def _dialled(self, login: Login, *, again: bool = True) -> Connection:
        """
        Return a new connection. If *again* is True and the server refuses a password that may have been replaced, try
        once more.
        """
        try:
            return await self._dialler.dial(self._address, login)
        except ConnectorError as error:
            meant, another = self._dialler.refused(error, login)
            if not (again and another):
                now = asyncio.get_running_loop().time()
                self._failed = meant
                if isinstance(error, FatalError):
                    self._refused.refused(*login, now)
                    raise self._anew(meant, self._refused.wait(*login, now)) from None
                pause = self._pause * random.uniform(0.75, 1.25)  # noqa: S311  # jitter
                self._attempts += 1
                self._paused_until = now + pause
                raise self._anew(meant, pause) from None
        return await self._dialled(await self._dialler.login(), again=False)

    def _anew(self, error: ConnectorError, wait: float) -> ConnectorError:
        """
        Return a copy of *error* for one more caller. *wait* is the number of seconds until the next attempt to connect.
        """
        if isinstance(error, TransientError):
            # The caller waits at most 1.25 s, even if the pause after a refused login lasts longer, because the
            # password or a certificate may be replaced before that pause ends.
            return self._unavailable(error, min(wait, 1.25 * PAUSE))
        return FatalError(str(error))

    def _unavailable(self, error: TransientError, wait: float) -> TransientError:
        """
        Return a copy of *error* for one caller, with the seconds to *wait* as `retry_after`.

        The `UnavailableError` of a single server has no `retry_after`, because the engine probes whether the server is
        back.
        """
        if not isinstance(error, UnavailableError):
            return TransientError(str(error), retry_after=wait if wait > 0 else None)
        if self._node:
            wait = max(wait, 0.0)
            return UnavailableError(str(error), retry_after=wait, node=self._source, sent=False, busy=error.busy)
        return UnavailableError(str(error), sent=False, busy=error.busy)
