"""The connections to one server: made when needed, a few at a time, and given back only after a clean exchange."""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import TYPE_CHECKING, Any

import hiredis

from enrichkit.errors import ConfigError, ConnectorError, FatalError, TransientError
from enrichkit.secrets import reveal

from .commands import pack
from .config import Address, RedisConfig, parse_url
from .replies import translate
from .wire import Connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .template import Name

__all__ = ["Dialler", "Pool"]

NAME = "enrichkit"
CONNECT_TIMEOUT = 2.0  # TCP, TLS and login together
CHECK_AFTER = 15.0  # a connection that was idle for longer is asked for a sign of life first
CHECK_TIMEOUT = 1.0
LIFETIME = 300.0  # +/- 20 %; so that a name that moved to another server is followed
PAUSE = 1.0  # +/- 25 %; between attempts to connect while the server is away
FATAL_PAUSE = 10.0  # with the same refused login; a locked account helps nobody


class Dialler:
    """How to connect and log in; shared by all servers of a cluster."""

    def __init__(self, config: RedisConfig) -> None:
        self.endpoint = parse_url(config.url)
        self._config = config
        self._context: ssl.SSLContext | None = None

    def login(self) -> tuple[str | None, str | None]:
        """Return username and password. Asked for each connection, so a secret that was rotated is picked up."""
        try:
            password = reveal(self._config.password)
        except ConfigError as error:
            raise FatalError(str(error)) from None
        return (
            self._config.username or self.endpoint.username,
            self.endpoint.password if password is None else password,
        )

    async def dial(self, address: Address, source: str, login: tuple[str | None, str | None]) -> Connection:
        """Return a connection to *address*, logged in and in the right database; raises `ConnectorError`."""
        username, password = login
        commands: list[tuple[str, ...]] = []
        if password is not None:
            commands.append(("AUTH", password) if username is None else ("AUTH", username, password))
        if self.endpoint.db:
            commands.append(("SELECT", str(self.endpoint.db)))
        # The name is for CLIENT LIST. The echo tells whether the server is ready: one that loads its data takes logins.
        commands += [("CLIENT", "SETNAME", NAME), ("ECHO", NAME)]
        greeting = b"".join(map(pack, commands))
        loop = asyncio.get_running_loop()

        def connection() -> Connection:
            return Connection(source, self._config.max_bytes, greeting, len(commands))

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                if isinstance(address, str):
                    transport, made = await loop.create_unix_connection(connection, address)
                else:
                    transport, made = await loop.create_connection(connection, *address, ssl=self._tls())
                try:
                    replies = await made.hello
                except BaseException:
                    transport.abort()
                    raise
        except TimeoutError:
            raise TransientError(f"{source} did not accept a connection within {CONNECT_TIMEOUT:g} s.") from None
        except ssl.SSLCertVerificationError as error:
            raise FatalError(
                f"The certificate of {source} is not trusted: {error.verify_message.rstrip('.')}. "
                "Name the authority's file in RedisConfig.tls_ca."
            ) from None
        except ssl.SSLError as error:
            if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # hung up in the middle, as on a restart
                raise TransientError(f"{source} closed the connection during the TLS handshake.") from None
            raise FatalError(
                f"{source} does not speak TLS 1.2 or later with us ({error.reason}). See RedisConfig.url."
            ) from None
        except OSError as error:
            raise TransientError(f"{source} cannot be reached ({type(error).__name__}).") from None
        try:
            _check_hello(replies, source)
        except ConnectorError:
            transport.abort()
            raise
        made.expires = loop.time() + LIFETIME * random.uniform(0.8, 1.2)  # noqa: S311  # jitter
        return made

    def _tls(self) -> ssl.SSLContext | None:
        if not self.endpoint.tls:
            return None
        if self._context is None:
            config = self._config
            try:
                context = ssl.create_default_context(cafile=config.tls_ca)
                if config.tls_cert is not None:
                    context.load_cert_chain(config.tls_cert, config.tls_key)
            except OSError as error:  # an SSLError is one
                raise FatalError(
                    "A file that RedisConfig.tls_ca, tls_cert or tls_key names cannot be used on this worker "
                    f"({error.strerror}); it must be a PEM file. Put it there, or correct the path."
                ) from None
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if config.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            self._context = context
        return self._context


def _check_hello(replies: list[Any] | ConnectorError, source: str) -> None:
    if isinstance(replies, ConnectorError):
        raise replies
    *login, named, echo = replies
    if isinstance(named, hiredis.ReplyError) and (str(named).startswith("NOPERM") or "unknown" in str(named)):
        named = b"OK"  # an old or a restricted server need not know our name
    for reply, expected in zip((*login, named, echo), (*[b"OK"] * (len(login) + 1), NAME.encode()), strict=True):
        if isinstance(reply, hiredis.ReplyError):
            raise translate(reply, source)
        if reply != expected:
            raise TransientError(f"{source} did not answer the login as Redis does; the connection was dropped.")


class Pool:
    """
    At most *capacity* connections to *address*, the last used first, so that the others can grow old and go.

    After a failed attempt to connect, the next is made about a second later and by one caller only; until then
    everybody is told to come back. An engine with a hundred slots must not greet a restarting server with a hundred
    handshakes.
    """

    def __init__(self, dialler: Dialler, address: Address, capacity: int) -> None:
        self._dialler = dialler
        self._address = address
        self._source = f"Redis at {address if isinstance(address, str) else '{}:{}'.format(*address)}"
        self._free: list[Connection] = []
        self._busy: set[Connection] = set()
        self._slots = asyncio.Semaphore(capacity)
        self._connecting = asyncio.Semaphore(max(2, capacity // 4))
        self._probing = asyncio.Lock()
        self._failed: ConnectorError | None = None
        self._failed_login: tuple[str | None, str | None] | None = None
        self._closed_until = 0.0
        self._closed = False

    async def ask(self, frames: bytes, replies: int) -> list[Any]:
        """Send the commands *frames* and return their *replies*; raises `ConnectorError`."""
        async with self._slots:
            connection = await self._take()
            if self._closed:
                connection.abort()
                raise TransientError(f"The connection to {self._source} was closed.")
            self._busy.add(connection)
            try:
                answers = await connection.ask(frames, replies)
            except BaseException:
                # Also when cancelled: the answer is still on its way and must not meet the next question.
                connection.abort()
                raise
            finally:
                self._busy.discard(connection)
            if self._closed:
                connection.abort()
            else:
                connection.used = asyncio.get_running_loop().time()
                self._free.append(connection)
            return answers

    async def each(self, names: Sequence[Name], frames: Sequence[bytes], width: int = 1) -> list[Any]:
        """Send one frame of *width* commands per key; see `Cluster.each` for what comes back."""
        replies = await self.ask(b"".join(frames), len(frames) * width)
        if width == 1:
            return replies
        # A command that is refused inside MULTI says why; EXEC then says only EXECABORT.
        return [
            next((reply for reply in frame if isinstance(reply, hiredis.ReplyError)), frame[-1])
            for frame in (replies[at : at + width] for at in range(0, len(replies), width))
        ]

    def forget(self) -> None:
        """Drop the idle connections; the next ones look the name up again."""
        for connection in self._free:
            connection.abort()
        self._free.clear()

    def close(self) -> None:
        """Close all connections, those in use too."""
        self._closed = True
        self.forget()
        for connection in tuple(self._busy):
            connection.abort()

    async def _take(self) -> Connection:
        now = asyncio.get_running_loop().time()
        while self._free:
            connection = self._free.pop()
            if connection.closed or now > connection.expires:
                connection.abort()
            elif now - connection.used <= CHECK_AFTER or await self._alive(connection):
                return connection
        return await self._connect()

    async def _alive(self, connection: Connection) -> bool:
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                await connection.ask(b"", 0)
        except (ConnectorError, TimeoutError):
            connection.abort()
            # The others have been idle for longer; to wait for each in turn would use up the deadlines.
            self.forget()
            return False
        except BaseException:
            connection.abort()
            raise
        return True

    async def _connect(self) -> Connection:
        async with self._probing if self._failed else self._connecting:
            loop = asyncio.get_running_loop()
            login = self._dialler.login()
            wait = self._closed_until - loop.time()
            if self._failed is not None and wait > 0:  # it failed a moment ago, or while we queued here
                if isinstance(self._failed, TransientError):
                    raise TransientError(str(self._failed), retry_after=wait)
                if login == self._failed_login:
                    raise FatalError(str(self._failed))
            try:
                connection = await self._dialler.dial(self._address, self._source, login)
            except ConnectorError as error:
                pause = FATAL_PAUSE if isinstance(error, FatalError) else PAUSE * random.uniform(0.75, 1.25)  # noqa: S311  # jitter
                self._failed, self._failed_login, self._closed_until = error, login, loop.time() + pause
                if isinstance(error, TransientError):
                    raise TransientError(str(error), retry_after=pause) from None
                raise
            self._failed = None
            return connection
