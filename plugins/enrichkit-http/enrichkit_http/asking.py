"""The description of one request, which the layers for pages, redirects, tokens and secrets pass on to the `Sender`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pyreqwest.client import Client

    from .client import Reply
    from .tokens import Token

__all__ = ["Asking", "Headers", "Send"]

Headers: TypeAlias = Sequence[tuple[str, str]]
"""The headers of one request, without the headers that the client adds to all requests."""


class Asking(NamedTuple):
    """
    One request, before a client sends it.

    Attributes:
        client: The client that `Sender.current_client` returned; None when the connector is not open.
        url: Address, without the parameters that are secrets.
        body: Body without the fields that are secrets; None: no body.
        timeout: Seconds after which the request is aborted.
        headers: Headers of this request.
        limit: Most bytes of the response; None: `max_bytes` of the config.
        token: Token to send with the request; None: no token.
        method: HTTP method; None: the method of the config.
    """

    client: Client | None
    url: str
    body: bytes | None
    timeout: float
    headers: Headers = ()
    limit: int | None = None
    token: Token | None = None
    method: str | None = None

    def within(self, seconds: float) -> Asking:
        """Return the same request with *seconds* as its timeout, or with 0 if *seconds* is negative."""
        return self._replace(timeout=max(seconds, 0.0))


Send: TypeAlias = "Callable[[Asking], Awaitable[Reply | None]]"
"""
A function that sends one request and returns the reply, or None for a miss. It raises the errors that `fetch_many` may
raise.
"""
