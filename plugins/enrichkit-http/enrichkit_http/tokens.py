"""
The OAuth token that all calls of an open connector share. A new token replaces it before it expires, and after a
response with the status 401.
"""

from __future__ import annotations

import asyncio
import copy
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from enrichkit.errors import ConnectorError, FatalError, TransientError, UnavailableError

from .client import make_token_client, receive
from .faults import client_error, status_error
from .oauth import OAuth, refusal, token_in, token_request

if TYPE_CHECKING:
    from pyreqwest.client import Client
    from pyreqwest.request import StreamRequest

    from .asking import Asking, Send
    from .client import Reply
    from .config import HttpConfig

__all__ = ["Authorized", "Token", "Tokens", "UnauthorizedError"]

# Seconds within which the token endpoint must answer.
TIMEOUT = 10.0
# A token is renewed this many seconds before it expires. A token that lives less than five times as long is renewed
# when four fifths of its lifetime have passed.
EARLY = 30.0
# Seconds after which a failed renewal is tried again, while the old token is still valid. If the service refuses a
# token, and also refuses the next one within these seconds, no third token is fetched, because it would be refused,
# too.
AGAIN = 5.0
MAX_BYTES = 2**16


class UnauthorizedError(Exception):
    """
    The service answered 401 to a request with a token, or with a secret.

    Attributes:
        said: The beginning of the response, see `ConnectorError`.
    """

    said = ""


class Token:
    """
    A bearer token. Its `repr` hides the text, because a traceback may show the variables of its frames. Moments are
    times of `time.monotonic`.

    Attributes:
        renews: Moment from which a new token is fetched. Calls use this token until the new one has arrived.
        expires: Moment from which the token is no longer used.
        born: Moment at which the token was requested.
        after_refusal: Whether the token replaced a token that the service had refused.
    """

    __slots__ = ("_text", "after_refusal", "born", "expires", "renews")

    def __init__(self, text: str, born: float, life: float, *, after_refusal: bool) -> None:
        self._text = text
        self.born = born
        self.expires = born + life
        self.renews = self.expires - min(EARLY, life / 5)
        self.after_refusal = after_refusal

    def __repr__(self) -> str:
        return "<Token: ***>"

    def header(self) -> str:
        """Return the value of the header Authorization."""
        return f"Bearer {self._text}"


class Tokens:
    """The tokens of a source. All calls share one token, and at most one request for a token is in flight."""

    def __init__(self, config: HttpConfig, oauth: OAuth) -> None:
        self._config = config
        self._oauth = oauth
        address = urlsplit(oauth.token_url)
        self._origin = f"{address.scheme}://{address.netloc}"
        self._client: Client | None = None
        self._token: Token | None = None
        self._refused = False
        self._again = 0.0
        self._task: asyncio.Task[Token | ConnectorError] | None = None

    async def open(self) -> None:
        """Make the client for the token endpoint without connecting it. Raises `FatalError` for an unreadable file."""
        self._client = make_token_client(self._config, self._oauth.token_url)

    async def close(self) -> None:
        """Forget the token, and close the connections to the token endpoint."""
        client, self._client = self._client, None
        self._token = None
        if self._task is not None:
            self._task.cancel()
        if client is not None:
            await client.close()

    async def current(self, timeout: float) -> Token:
        """Return a valid token within *timeout* seconds. Raises a `ConnectorError` if there is none."""
        token, now = self._token, monotonic()
        if token is not None and now < token.expires:
            if now >= max(token.renews, self._again):
                self._fetching()
            return token
        task = self._fetching()
        # Not `await task`: cancelling this call would then also cancel the fetch, for which other calls may wait.
        await asyncio.wait((task,), timeout=timeout)
        if not task.done() or task.cancelled():
            raise TransientError(f"No token from {self._origin} within {timeout:.3g} s.")
        found = task.result()
        if isinstance(found, ConnectorError):
            raise copy.copy(found)  # each call raises its own copy, with its own traceback
        return found

    def refuse(self, token: Token) -> bool:
        """Record that the service refused *token*, and return whether another token may be tried."""
        if self._token is token:
            if token.after_refusal and monotonic() - token.born < AGAIN:
                return False
            self._token, self._refused = None, True
        return True

    def _fetching(self) -> asyncio.Task[Token | ConnectorError]:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._fetch(), name="enrichkit-token")
            self._task.add_done_callback(self._done)
        return self._task

    def _done(self, task: asyncio.Task[Token | ConnectorError]) -> None:
        self._task = None
        self._again = monotonic() + AGAIN
        if not task.cancelled() and isinstance(found := task.result(), Token):
            self._token, self._refused = found, False

    async def _fetch(self) -> Token | ConnectorError:
        """
        Return a new token, or the error.

        The error is not raised, so that no traceback shows the variables of this frame, which hold the token as text.
        """
        from pyreqwest.exceptions import PyreqwestError

        born = monotonic()
        unread: StreamRequest | None = None
        if self._client is None:
            return TransientError("The http connector was closed before it had a token.")
        try:
            request = token_request(self._client, self._oauth, TIMEOUT)
            response = await request.__aenter__()
            unread = request
            if response.status in (408, 429) or response.status >= 500:
                return _no_token(status_error(response.status, response))
            body, _, _ = await receive(response, MAX_BYTES, text=False)
            unread = None
            if response.status != 200:
                return refusal(response.status, body)
        except ConnectorError as error:
            return _no_token(error)
        except PyreqwestError as error:
            return _no_token(client_error(error, self._origin, TIMEOUT)[0])
        finally:
            if unread is not None:
                await unread.__aexit__(None, None, None)
        found = token_in(body)
        if found is None:
            return FatalError(
                f"The token endpoint {self._origin} answered 200 without a bearer token that can be sent; its answer "
                "must be JSON with access_token. Check OAuth.token_url."
            )
        return Token(found[0], born, found[1], after_refusal=self._refused)


def _no_token(error: ConnectorError) -> ConnectorError:
    """
    Return the error for a key whose request was never sent because the token request before it failed with *error*.
    """
    text = f"The token endpoint gave no token: {error}"
    if isinstance(error, UnavailableError):
        return UnavailableError(text, retry_after=error.retry_after, sent=False)
    if isinstance(error, TransientError):
        return TransientError(text, retry_after=error.retry_after)
    return FatalError(text)


class Authorized:
    """
    A sender of requests to a service that requires a token.

    Args:
        send: Function that sends one request, and raises `UnauthorizedError` for a 401.
        tokens: Tokens of the source.
    """

    def __init__(self, send: Send, tokens: Tokens) -> None:
        self._send = send
        self._tokens = tokens

    async def send(self, asking: Asking) -> Reply | None:
        """Send a request with a token, and after a 401 once more with a new one; see `Sender.request`."""
        deadline = monotonic() + asking.timeout
        for attempt in (1, 2):
            token = await self._tokens.current(max(deadline - monotonic(), 0.0))
            try:
                return await self._send(asking.within(deadline - monotonic())._replace(token=token))
            except UnauthorizedError:
                if not self._tokens.refuse(token) or attempt == 2:
                    break
        raise FatalError(
            "The service answered 401 to a token that is new, so no key can be looked up. Check OAuth.scope, and "
            "whether OAuth.token_url is that of the service."
        )
