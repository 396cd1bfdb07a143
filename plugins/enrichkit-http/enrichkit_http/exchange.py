"""
The class `Exchange`, by which this plugin and others send requests with all the safeguards of this package.

A plugin for another HTTP service makes an `HttpConfig`, and sends its requests through an `Exchange`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .asking import Asking
from .credentials import Renewed
from .faults import LimitedError
from .oauth import OAuth
from .paging import Pages
from .redirects import Redirects
from .sender import Sender
from .tokens import Authorized, Tokens

if TYPE_CHECKING:
    from enrichkit.plugin import Call

    from .asking import Headers, Send
    from .config import HttpConfig

__all__ = ["Exchange"]


class Exchange:
    """
    A sender of requests to one source, which can be used between `open` and `close`.

    It applies the config's settings for size limits, TLS, proxy, secrets and their renewal, redirects and statuses, and
    turns failures into the errors that `fetch_many` may raise. The caller, not this class, fills the placeholders of
    the config.

    Args:
        config: The address to which requests go, and the settings for them.
        text: True when a value is text, so that the charset of a response matters.
        limited: True to raise a `LimitedError` for a 429, False to raise an `UnavailableError`.

    Attributes:
        repeatable: True when a request may be sent again even if the service may have carried it out already.
    """

    def __init__(self, config: HttpConfig, *, text: bool = False, limited: bool = True) -> None:
        self.sender = Sender(config, text=text)
        if limited:
            self.sender.limited = LimitedError
        self.repeatable = self.sender.repeatable
        self._follows = config.follow_rate_headers
        self.send: Send = self.sender.request
        self._tokens = Tokens(config, config.oauth) if isinstance(config.oauth, OAuth) else None
        if self._tokens is not None:
            self.send = Authorized(self.send, self._tokens).send
        elif self.sender.credentials:
            self.send = Renewed(self.send, self.sender).send
        if config.redirects:
            self.send = Redirects(self.send, config.redirects).send
        if config.next_page:
            self.send = Pages(self.send, config).send

    async def open(self, capacity: int) -> None:
        """
        Make the client, without connecting it, for *capacity* requests at a time.

        Raises `FatalError` for a secret or a file that cannot be read.
        """
        await self.sender.open(capacity)
        if self._tokens is not None:
            await self._tokens.open()

    async def close(self) -> None:
        """Close idle connections; the connection of a request that still runs closes at the end of the request."""
        if self._tokens is not None:
            await self._tokens.close()
        await self.sender.close()

    def listen(self, call: Call) -> None:
        """From now on, report rate limits in response headers to *call*, if the config has `follow_rate_headers`."""
        if self._follows:
            # The sender may use the `allows` of any call, because all calls report to the same engine.
            self.sender.allows = call.allows

    async def body(
        self,
        url: str,
        body: bytes | None,
        call: Call,
        timeout: float | None = None,
        *,
        headers: Headers = (),
        limit: int | None = None,
    ) -> bytes | None:
        """
        Send *body* to *url* and return the body of the response, decompressed and whole; None for a miss.

        Without a body the request is a GET, even if the config has another method.

        Args:
            url: Address of the config, or another address of the same origin.
            body: Body of the request; None: a GET without a body.
            call: The engine's `Call`, which has the default timeout and takes reports of rate limits.
            timeout: Seconds after which the request is aborted; None: `Call.timeout`.
            headers: Headers of this request. A header given here replaces the header of the same name in the config.
            limit: Most bytes of the response; None: `max_bytes` of the config.

        Raises:
            LimitedError: The service answered 429.
            ConnectorError: Any other error that `fetch_many` may raise.
        """
        self.listen(call)
        client = self.sender.current_client()
        seconds, method = call.timeout if timeout is None else timeout, "GET" if body is None else None
        reply = await self.send(Asking(client, url, body, seconds, headers, limit, method=method))
        return None if reply is None else reply[0]
