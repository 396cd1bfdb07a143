"""
The connections of one connector: at most `capacity`, made when a call needs one. A connection that may still hold an
unread reply is never lent again.

The pools of the client packages are not used, because they connect, cancel and close without a time limit, and so would
wait for ever for a frozen server. The engine makes at most `capacity` calls at a time, so no queue of callers is
needed: a list of idle connections is enough.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ..errors import ConfigError, ConnectorError, FatalError, PermanentError, TransientError, UnavailableError
from ..secrets import RefusedLogin, Secret, fresh, refuse, reveal, revealed
from ..tls import RenewedContext
from .session import Session

if TYPE_CHECKING:
    from .config import SqlServerConfig

__all__ = ["Pool"]

T = TypeVar("T")

IDLE = 60.0  # seconds; a connection idle for longer is not lent, because a firewall may silently have dropped it

SessionT = TypeVar("SessionT", bound=Session)


class Pool(Generic[SessionT]):
    """
    The connections to one server. A plugin implements `connect` and `translate`, and may override `survives`.

    After a failure, only one caller at a time logs in, until a login works. When `connect` raises a `FatalError`, for
    example for a refused login, the pause of `RefusedLogin` begins. During the pause, callers with the same password
    get the same error without another attempt.

    Args:
        config: Config with the address of the server and the login.
        size: Most connections at a time.

    Attributes:
        product: Name of the database in messages, for example `PostgreSQL`.
        config: The *config*.
        address: Address of the server.
        loop: Event loop on which the pool was made.
        secrets: Secrets that no message may hold.
        context: Callable that returns the TLS context for the next connection.
    """

    product: ClassVar[str]

    def __init__(self, config: SqlServerConfig, size: int) -> None:
        self.config = config
        self.address = config.address
        self._size = size
        self.loop = asyncio.get_running_loop()
        self._permits = asyncio.Semaphore(size)
        self._connect_permits = asyncio.Semaphore(max(2, size // 4))
        self._first_login = asyncio.Lock()
        self._logins_work = False  # True: a login has succeeded, and no connection or login has failed since
        self._ever_logged_in = False
        self._failures = 0  # number of connects that found the server unavailable
        self._full = False  # whether the server, when it was last unavailable, only lacked a free connection
        self._refused = RefusedLogin()
        self._refusal = ""  # the error text of the last refused login
        self._idle: list[SessionT] = []
        self._busy: set[SessionT] = set()
        self._closed = False
        self.secrets: tuple[str | None, ...] = (self.address.password,)
        self.context = RenewedContext(self.new_context, config)

    def __repr__(self) -> str:
        return f"<Pool {self.address}: {len(self._busy)} busy, {len(self._idle)} idle, {self._size} at most>"

    def new_context(self) -> ssl.SSLContext:
        """Return a TLS context from the files of the config as they are now; raises `FatalError`."""
        raise NotImplementedError

    async def connect(self, timeout: float) -> SessionT:
        """Return a new session for a call that has *timeout* seconds left."""
        raise NotImplementedError

    async def lend(self, session: SessionT, use: Callable[[Any, float], Awaitable[T]], ends: float) -> T:
        """
        Call *use* with two arguments, *session* and the remaining seconds, and return its result.

        Raises:
            TimeoutError: *use* has not returned by the loop time *ends*.
        """
        async with asyncio.timeout_at(ends):
            return await use(session, self.left(ends))

    def survives(self, session: SessionT, error: BaseException) -> bool:
        """
        Return whether *session* can be lent again after *error*. It cannot if a reply may be left in the connection,
        because the next call would read that reply.
        """
        return False

    def translate(self, error: Exception) -> ConnectorError:
        """
        Return the `ConnectorError` for *error*. Its message holds no keys and none of `secrets`.

        A `ConnectorError` is returned as it is.
        """
        raise NotImplementedError

    def password(self) -> str | None:
        """Return the password of the config or of its URL. Each call reads the secret, which may have been rotated."""
        try:
            password = reveal(self.config.password) or self.address.password
        except ConfigError as error:
            raise FatalError(str(error)) from None
        self.secrets = (password, self.address.password)
        return password

    def left(self, ends: float) -> float:
        """Return the seconds until the loop time *ends*, at least a millisecond."""
        return max(ends - self.loop.time(), 0.001)

    async def run(self, use: Callable[[Any, float], Awaitable[T]], timeout: float, max_bytes: int | None = None) -> T:
        """
        Call *use* with a session that no other call uses and with the remaining seconds (see `lend`), and return its
        result.

        Args:
            use: Makes the call; it takes a session and the remaining seconds.
            timeout: Most seconds that waiting for a session and the call may take together.
            max_bytes: Most bytes that the server may send; None: any number.

        Raises:
            ConnectorError: Any failure of the client package or the server, as `translate` returns it. After *timeout*
                seconds, it is a `TransientError`, or an `UnavailableError` if no connection was made in that time.
                After more than *max_bytes*, it is a `PermanentError`.
        """
        ends = self.loop.time() + timeout
        try:
            session = await self._acquire(timeout)
            session.meter.start(max_bytes)
            try:
                result = await self.lend(session, use, ends)
            except BaseException as error:
                if self.survives(session, error):
                    self._keep(session)
                else:
                    self._logins_work = False
                    self.discard(session)
                if session.meter.exceeded and isinstance(error, Exception):
                    raise self._too_large(max_bytes) from None
                raise
            self._keep(session)
            return result
        except Exception as error:  # noqa: BLE001 - every exception is translated and raised
            raise self.translate(error) from None

    def close(self) -> None:
        """Drop all connections at once, without waiting for the server; a call in flight fails."""
        self._closed = True
        for session in (*self._idle, *self._busy):
            session.end()
        self._idle.clear()

    def discard(self, session: SessionT) -> None:
        """End *session*, whose call has failed, and release its permit."""
        session.end()
        self.release(session)

    def release(self, session: SessionT) -> None:
        """Release the permit of *session*, so that another session can take its place."""
        self._busy.discard(session)
        self._permits.release()

    def _keep(self, session: SessionT) -> None:
        session.idle_since = self.loop.time()
        self._idle.append(session)
        self.release(session)

    async def _acquire(self, timeout: float) -> SessionT:
        if self._idle and not self._permits.locked():
            await self._permits.acquire()  # a permit is free, so this returns at once and needs no timer
            session = self._take_idle()
            if session is not None:
                self._busy.add(session)
                return session
            self._permits.release()
        connecting = False
        try:
            async with asyncio.timeout(timeout):
                await self._permits.acquire()
                try:
                    session = self._take_idle()
                    if session is None:
                        connecting = True
                        session = await self._open_session(timeout)
                except BaseException:
                    self._permits.release()
                    raise
        except TimeoutError as error:
            if connecting:  # no connection in time, for example because the client package tried several hosts
                raise UnavailableError(str(self.translate(error)), sent=False) from None
            raise
        self._busy.add(session)
        return session

    def _take_idle(self) -> SessionT | None:
        now = self.loop.time()
        while self._idle:
            session = self._idle.pop()
            if now < session.ends and now - session.idle_since < IDLE and not session.closed:
                return session
            self._logins_work = self._logins_work and not session.closed
            session.end()
        return None

    async def _open_session(self, timeout: float) -> SessionT:
        """
        Return a new session. Until a login works, one caller at a time logs in, so a wrong password is tried once.
        """
        failures = self._failures
        async with self._connect_permits:
            if not self._logins_work:
                async with self._first_login:
                    if not self._logins_work:
                        return await self._log_in(timeout, failures)
            return await self._log_in(timeout, failures)

    async def _log_in(self, timeout: float, failures: int) -> SessionT:
        """
        Return a new session for a caller that began to wait when `_failures` was *failures*. If the number has grown
        since, the caller gets an `UnavailableError` without another attempt.
        """
        server = f"{self.product} at {self.address}"
        if self._failures > failures:  # callers that waited while a connect failed would fail in the same way
            found = "had no free connection" if self._full else "could not be reached"
            raise UnavailableError(f"{server} {found} a moment ago.", sent=False, busy=self._full)
        try:
            session = await self._connected(timeout)
        except FatalError as error:
            # If logins have worked before, the password or certificate is probably being replaced. The error is then an
            # `UnavailableError`, so that the engine keeps the keys, as in an outage, until the replacement works.
            renewable = isinstance(self.config.password, Secret) or self.context.has_files
            if self._ever_logged_in and renewable:
                raise UnavailableError(f"{error} Logins have worked before.", sent=False) from None
            raise
        self._refused.accepted()
        self._logins_work = self._ever_logged_in = True
        if self._closed:  # `close` was called during the connect, and has not ended this session
            session.end()
            raise TransientError(f"The connections to {server} were closed.")
        return session

    async def _connected(self, timeout: float, *, again: bool = True) -> SessionT:
        """Return a new session. With *again*, try once more if the password is refused and may have changed."""
        if not fresh(self.config.password):
            try:
                await revealed(self.config.password)  # gets the secret on a thread, so that `password` does not block
            except ConfigError as error:
                raise FatalError(str(error)) from None
        password = self.password()
        files = self.context.stamp()
        if self._refused.wait(password, files, self.loop.time()):
            raise FatalError(self._refusal)
        try:
            return await self.connect(timeout)
        except Exception as error:  # noqa: BLE001 - every exception is translated and raised
            self._logins_work = False
            translated = self.translate(error)
            if isinstance(translated, FatalError):
                if again and refuse(self.config.password, password):
                    return await self._connected(timeout, again=False)
                self._refused.refused(password, files, self.loop.time())
                self._refusal = str(translated)
            elif isinstance(translated, UnavailableError) or isinstance(error, TimeoutError):
                self._failures += 1
                self._full = isinstance(translated, UnavailableError) and translated.busy
                translated = UnavailableError(str(translated), sent=False, busy=self._full)
            raise translated from None

    def _too_large(self, max_bytes: int | None) -> PermanentError:
        return PermanentError(
            f"{self.product} at {self.address} sent a reply of more than {type(self.config).__name__}.max_bytes, "
            f"{max_bytes} bytes. Lower batch_size, or raise max_bytes."
        )
