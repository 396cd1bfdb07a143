"""The sending of one request: the client and its renewal, the permits, and the errors of failed requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from enrichkit.errors import ConnectorError, ContractError, FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.plugin import file_stamp

from .addresses import named_address
from .client import IDLE_TIMEOUT, AmbiguousLengthError, Reply, make_client, own_headers, receive
from .credentials import Credentials
from .excerpt import beginning_of
from .faults import SUCCESS, client_error, header, status_error
from .gil_yield import GilYield
from .permits import Permits
from .rate_headers import limit_of, report_allowed
from .raw import RAW_STATUSES, RawReceiver
from .redirects import REDIRECTS, RedirectError
from .sealed import Sealed, sealed
from .signing import Signer
from .tokens import UnauthorizedError

if TYPE_CHECKING:
    from pyreqwest.client import Client
    from pyreqwest.exceptions import PyreqwestError
    from pyreqwest.request import StreamRequest
    from pyreqwest.response import Response

    from .asking import Asking
    from .config import HttpConfig

__all__ = ["Sender"]

# Seconds that an abandoned request may take, after its own time limit, to release its connection.
LINGER = 0.05
# Seconds, +/- 20 %, after which a new client with new connections replaces the old one, because the host name may point
# to another server by then.
LIFETIME = 300.0
# If more than this number of consecutive responses have the status 403, the connector assumes that the service refuses
# all keys, and not single keys.
FORBIDDEN_MAX = 20
# Seconds after which a renewal of the client is tried again, when a file or secret of the config could not be read.
RENEW_AGAIN = 5.0
# Least number of seconds between two checks whether a file of the config has changed.
LOOK = 1.0


class Sender:
    """
    The sender of a connector's requests. It has an HTTP client between `open` and `close`.

    The cancellation of a call does not abort its request: the client aborts a request only at the request's time limit.
    So the time limit of each request is the time that its call has left. The request of a cancelled call keeps its
    permit until this time limit.

    Args:
        config: Config of the source.
        text: True when a value is text, so that the charset of a response matters.

    Attributes:
        repeatable: True when a request may be sent again even if the service may have carried it out already.
        limited: Class of the error for a 429.
        allows: Function that the sender calls with the rate limits in response headers; None: these headers are
            ignored.
        credentials: The secrets of the config.
    """

    def __init__(self, config: HttpConfig, *, text: bool) -> None:
        self._config = config
        self._text = text
        # The check of the config has replaced a None in `missing` and `max_bytes` by a default; each `or` is for the
        # type checker only.
        self._missing = frozenset(config.missing or ()) | ({204} if config.missing_when else set())
        self._max_bytes = config.max_bytes or 0
        self._values = RAW_STATUSES if config.raw else frozenset(SUCCESS)
        if config.redirects:
            self._values -= frozenset(REDIRECTS)
        self.credentials = Credentials(config)
        self._renews = config.oauth is not None or bool(self.credentials)
        if config.oauth is not None:
            self._values -= {401}
        self._signer = Signer(config, own_headers(config)) if config.sign is not None else None
        self._receive = RawReceiver(str(config.returns)).receive if config.raw else receive
        self._method = config.method
        self._gets = config.method == "GET"
        self.repeatable = self._gets or config.bulk or config.idempotent or config.idempotency_key
        address = urlsplit(config.url)
        self._origin = f"{address.scheme}://{address.netloc}"
        self._client: Client | None = None
        self._unpooled: Client | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._after_refusal = asyncio.Lock()
        self._sealed: Sealed | None = None
        self._expires = self._pause = 0.0
        named = (secret.name for secret in self.credentials.secrets if secret.kind == "file")
        self._tls_files = tuple(filter(None, (config.tls_ca, config.tls_cert, config.tls_key)))
        self._files = (*self._tls_files, *map(str, named))
        self._looked = 0.0
        self._read: tuple[object, ...] = ()
        self._limit = (0.0, timedelta())
        self.limited: type[UnavailableError] = UnavailableError
        self.allows: Callable[..., None] | None = None
        self._gil_yield = GilYield()
        self._last_answer = 0.0  # monotonic time of the last value or miss; 0: there was none yet
        self._forbidden = 0  # number of responses with the status 403 since the last value or miss

    async def open(self, capacity: int) -> None:
        """Make the client without connecting it. Raises `FatalError` for a secret or file that cannot be read."""
        from pyreqwest.exceptions import PyreqwestError

        self._client_error: type[PyreqwestError] = PyreqwestError
        self._permits = Permits(capacity)
        if self._signer is not None:
            self._signer.load()
        await self.credentials.read()
        self._renew_client()

    async def close(self) -> None:
        """Close idle connections; the connection of a request that still runs closes at the end of the request."""
        clients, self._client, self._unpooled = (self._client, self._unpooled), None, None
        if self._renewing is not None:
            self._renewing.cancel()
        for client in clients:
            if client is not None:
                await client.close()

    def current_client(self) -> Client | None:
        """
        Return the client. If it has reached its `LIFETIME`, or if one of its files has changed, replace it first.

        If a secret is due to be read again, start a renewal in the background and return the old client. Clients have a
        lifetime because a client closes only idle connections itself, and would use a busy connection forever. The
        connections of a replaced client close after its last request.
        """
        if self._client is not None:
            if self.credentials.due():
                if self._renewing is None and monotonic() > self._pause:
                    renewal = self._renew()
                    self._renewing = asyncio.get_running_loop().create_task(renewal, name="enrichkit-http-renewal")
            elif monotonic() > self._expires or (self._files and self._files_changed()):
                self._renew_or_pause()
        return self._client

    def _renew_or_pause(self) -> None:
        try:
            self._renew_client()
        except FatalError:
            # A secret or file cannot be read, probably because it is being replaced. The old client stays in use until
            # the next try.
            self._expires = self._looked = monotonic() + RENEW_AGAIN

    def _files_changed(self) -> bool:
        """
        Return whether a file of the config may have changed since the client was made; look at most once in `LOOK`
        seconds.
        """
        now = monotonic()
        if now < self._looked + LOOK:
            return False
        self._looked = now
        return file_stamp(*self._files) != self._read

    async def _renew(self) -> None:
        """Read the secrets that are due, and then make a new client; requests use the old client until then."""
        try:
            await self.credentials.read()
        except FatalError:
            self._pause = monotonic() + RENEW_AGAIN
        else:
            if self._client is not None:
                self._renew_or_pause()
        finally:
            self._renewing = None

    async def renewed_after_refusal(self, client: Client | None) -> bool:
        """Renew *client* after a 401 if its secrets may have changed; return whether a new client has replaced it."""
        async with self._after_refusal:  # the first caller renews the client, and the callers that wait find it renewed
            if self._client is client and self.credentials.refuse():
                await self.credentials.read()
                self._renew_client()
            return self._client is not client

    async def request(self, asking: Asking) -> Reply | None:
        """Send one request and return the reply, or None for a miss; raises the errors that `fetch_many` may raise."""
        client, timeout = asking.client, asking.timeout
        if client is None:
            raise ContractError(
                "The http connector is not open; it must be opened before a lookup. Await open() first."
            )
        permits = self._permits
        deadline = monotonic() + timeout
        if permits.busy >= permits.limit:
            await self._wait_for_permit(timeout)
            timeout = deadline - monotonic()
        permits.acquire()
        unread: StreamRequest | None = None
        request: StreamRequest | None = None
        try:
            request = await self._built(client, asking, timeout)
            try:
                response = await request.__aenter__()
            except self._client_error as error:
                request, response = await self._once_more(error, asking, timeout, deadline)
            unread = request
            report_allowed(response, self.allows)
            if response.status not in self._values:
                await self._check_miss(response, asking, deadline)
                self._answered()
                return None
            reply = await self._receive(
                response, self._max_bytes if asking.limit is None else asking.limit, text=self._text
            )
            unread = None  # the response was read to its end: there is nothing to close, and closing costs time
            self._gil_yield.count_response()
            self._answered()
            return reply
        except asyncio.CancelledError:
            if request is not None and unread is None:  # the request goes on to its time limit and needs a permit
                permits.keep(deadline + LINGER - monotonic())
            raise
        except AmbiguousLengthError:
            self.replace_client(client)
            raise
        except self._client_error as error:
            raise self._translated(error, timeout) from None
        finally:
            permits.release()
            if unread is not None:
                await unread.__aexit__(None, None, None)

    def _translated(self, error: PyreqwestError, timeout: float) -> ConnectorError:
        """Return the `ConnectorError` for *error*, which ended a request that had *timeout* seconds."""
        translated, unsent = client_error(error, self._origin, timeout)
        if self._last_answer and self._tls_files and isinstance(translated, FatalError):
            # A certificate that worked before is probably being replaced, so the keys wait for the new one, as they
            # wait for the end of an outage.
            translated = UnavailableError(f"{translated} Connections have worked before.", sent=False)
        return self.checked_for_repeat(translated, executed=not unsent)

    async def _once_more(
        self, error: PyreqwestError, asking: Asking, timeout: float, deadline: float
    ) -> tuple[StreamRequest, Response]:
        """
        Send a request again on a new connection if the service may just have closed the old one; else raise *error*.

        A connection that was used before may end before the response begins, because the service closes idle
        connections (RFC 9112, section 9.3.1). This is not a failure of the service, and does not count as an attempt.
        If the last answer is older than `IDLE_TIMEOUT`, the client has closed all used connections itself, so *error*
        has another cause.
        """
        translated, unsent = client_error(error, self._origin, timeout)
        used = self._last_answer and monotonic() - self._last_answer < IDLE_TIMEOUT.total_seconds()
        if unsent or not used or not self.repeatable or not isinstance(translated, UnavailableError):
            raise error
        request = await self._built(self._without_pool(), asking, deadline - monotonic())
        return request, await request.__aenter__()

    def _without_pool(self) -> Client:
        """Return a client that opens a new connection for each request."""
        if self._unpooled is None:
            self._unpooled = make_client(self._config, 0)
        return self._unpooled

    async def _wait_for_permit(self, timeout: float) -> None:
        if not await self._permits.wait(timeout):
            raise TransientError(
                f"No request was free within {timeout:.3g} s: {self._permits.limit} belong to calls that were "
                "cancelled, and have not ended yet."
            )

    async def _built(self, client: Client, asking: Asking, timeout: float) -> StreamRequest:
        url, body, token = asking.url, asking.body, asking.token
        builder = client.get(url) if self._gets else client.request(asking.method or self._method, url)
        for name, value in asking.headers:
            builder = builder.header(name, value)
        if token is not None:
            builder = builder.header("authorization", token.header(), is_sensitive=True)
        if self._sealed is not None:
            builder = self._sealed.add_query(builder, url)
        if body is not None:
            builder = builder.body_bytes(body) if self._sealed is None else self._sealed.add_body(builder, body)
        if self._limit[0] != timeout:  # reuse the timedelta: nearly all requests have the same timeout
            self._limit = (timeout, timedelta(seconds=timeout))
        request = builder.timeout(self._limit[1]).build_streamed()
        if self._signer is not None:
            await self._signer.sign(request, asking.headers, body, timeout)
        return request

    async def _check_forbidden(self, response: Response, deadline: float) -> None:
        """
        Raise the error for a 403 by which the service reports a rate limit, or refuses a single key.

        Do nothing if a 403 means a miss. Do nothing either if the service refuses all keys: `_check_status` raises the
        error for that.

        If every response so far was a 403, wait for the other requests in flight: if one of them gets another answer,
        the service does not refuse all keys.
        """
        if 403 in self._missing:
            return
        limit = limit_of(response)
        if limit is not None:
            text = "The service answered 403, with the marks of a rate limit."
            raise self.limited(text, retry_after=limit.wait, busy=True)
        self._forbidden += 1
        end = deadline - 0.1
        # The loop polls, because an answer or a further 403 ends the wait, and no single event signals both.
        while not self._last_answer and self._forbidden < self._permits.busy and monotonic() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if self._last_answer and self._forbidden <= FORBIDDEN_MAX:
            raise PermanentError(
                "The service answered 403, and other keys with a value: it refuses this one. If 403 says that the "
                "service does not hold the key, add it to HttpConfig.missing."
            )

    def _answered(self) -> None:
        self._forbidden = 0
        self._last_answer = monotonic()

    async def _check_miss(self, response: Response, asking: Asking, deadline: float) -> None:
        """Raise the error of an unsuccessful *response* to the request *asking*, unless its status means a miss."""
        try:
            if response.status == 403:
                await self._check_forbidden(response, deadline)
            self._check_status(response, asking.url)
        except (ConnectorError, UnauthorizedError) as error:
            error.said = await beginning_of(response, self._config, asking.token)
            raise

    def _check_status(self, response: Response, url: str) -> None:
        status = response.status
        if status in self._missing:
            return
        if status == 401 and self._renews:
            raise UnauthorizedError
        if status in REDIRECTS and self._config.redirects:
            named = named_address(url, header(response, "location"), self._config.secret_params)
            if isinstance(named, str):
                raise RedirectError(named)
            raise PermanentError(
                f"The service answered {status}, a redirect, which is not followed: {named}. Write the final address "
                "into HttpConfig.url."
            )
        # With a 429 the service refused the request before it did anything, so even a POST or PUT may be repeated.
        raise self.checked_for_repeat(status_error(status, response, self.limited), executed=status != 429)

    def checked_for_repeat(self, error: ConnectorError, *, executed: bool) -> ConnectorError:
        """
        Return *error*, or a permanent error if a retry could repeat a POST or PUT that must not be repeated.

        Args:
            error: The error of a request.
            executed: True when the service may have carried out the request.
        """
        if isinstance(error, TransientError) and not self.repeatable and executed:
            return PermanentError(
                f"{error} The {self._method} may have been carried out, so it is not repeated. Say idempotent=True if "
                f"it {'only reads' if self._method == 'POST' else 'may be carried out twice'}."
            )
        return error

    def replace_client(self, client: Client | None) -> None:
        """Replace *client*, because one of its connections may deliver responses that belong to other requests."""
        if self._client is client:
            self._renew_client()

    def _renew_client(self) -> None:
        self._read = file_stamp(*self._files)
        self.credentials.note()
        self._sealed = sealed(self._config)
        self._client, self._unpooled = make_client(self._config, self._permits.capacity), None
        # The lifetime is random, so that workers do not all connect at the same time.
        self._expires = monotonic() + LIFETIME * random.uniform(0.8, 1.2)  # noqa: S311
