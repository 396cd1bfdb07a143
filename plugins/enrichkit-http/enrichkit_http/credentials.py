"""
The credentials of a source, which may expire and be replaced while a job runs.

An HTTP client holds the secrets that it was made with. Shortly before a secret expires, another thread reads it again,
and then a new client replaces the old one; until then requests use the old client. After a 401 the secrets are read
once more. If a secret has changed, the request is repeated. If none has changed, the error is a `FatalError`. But if
the service has accepted the secrets before, the error is an `UnavailableError` instead, so the engine keeps the keys
and asks for them again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from time import monotonic
from typing import TYPE_CHECKING

from enrichkit.errors import ConfigError, ConnectorError, FatalError, UnavailableError
from enrichkit.plugin import Secret, fresh, refuse, revealed, secrets_of

from .faults import REFUSES
from .tokens import UnauthorizedError

if TYPE_CHECKING:
    from pyreqwest.client import Client

    from .asking import Asking, Send
    from .client import Reply
    from .config import HttpConfig
    from .sender import Sender

__all__ = ["Credentials", "Renewed"]


class Credentials:
    """
    The secrets with which the client of a source was made. No `repr` shows them.

    Attributes:
        secrets: The references to the secrets, without their values.
    """

    def __init__(self, config: HttpConfig) -> None:
        self.secrets = secrets_of((config.headers, config.bearer, config.params, config.form, config.proxy_auth))
        self._expiring = any(secret.ttl is not None for secret in self.secrets)
        self._used: dict[Secret, str | None] = {}

    def __repr__(self) -> str:
        return "<Credentials: ***>"

    def __bool__(self) -> bool:
        return bool(self.secrets)

    def due(self) -> bool:
        """Return whether a secret must be read again, for example because it expires soon."""
        return self._expiring and not all(map(fresh, self.secrets))

    async def read(self) -> None:
        """
        Read the secrets that are due. Another thread does this, so that `note` finds the new values and does not block
        the event loop. Raises `FatalError`.
        """
        try:
            for secret in self.secrets:
                await revealed(secret)
        except ConfigError as error:
            raise FatalError(str(error)) from None

    def note(self) -> None:
        """Record the present values of the secrets, with which a client is about to be made. Raises `FatalError`."""
        try:
            self._used = {secret: secret.resolve() for secret in self.secrets}
        except ConfigError as error:
            raise FatalError(str(error)) from None

    def refuse(self) -> bool:
        """Record that the service refused the secrets, and return whether one of them may have a new value now."""
        # A list, because `any` alone would stop at the first True and leave the other secrets unrecorded.
        return any(list(itertools.starmap(refuse, self._used.items())))


class Renewed:
    """
    A sender of requests to a source with secrets, which are read again after a 401.

    Args:
        send: Function that sends one request, and raises `UnauthorizedError` for a 401.
        sender: The `Sender` that holds the client and replaces it by a new one.
    """

    def __init__(self, send: Send, sender: Sender) -> None:
        self._send = send
        self._sender = sender
        self._accepted = False

    async def send(self, asking: Asking) -> Reply | None:
        """Send a request, and after a 401 once more if the secrets have changed; see `Sender.request`."""
        deadline = monotonic() + asking.timeout
        for attempt in (1, 2):
            try:
                reply = await self._send(asking)
            except UnauthorizedError as error:
                said = error.said
                if attempt == 2 or not await self._renewed(asking.client, deadline):
                    break
                asking = asking.within(deadline - monotonic())._replace(client=self._sender.current_client())
            else:
                self._accepted = True
                return reply
        refused: ConnectorError = FatalError(REFUSES.format(401))
        if self._accepted:
            # The service answers 401 before it does anything, so even a POST may be repeated.
            refused = UnavailableError(f"{refused} The service has accepted them before.", sent=False)
        refused.said = said
        raise refused

    async def _renewed(self, client: Client | None, deadline: float) -> bool:
        # If the secrets are not read by the deadline, the request is not repeated.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(deadline - monotonic(), 0.0)):
                return await self._sender.renewed_after_refusal(client)
        return False
