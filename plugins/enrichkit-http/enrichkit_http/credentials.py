"""
The credentials of a source while a job runs: they expire, and somebody replaces them.

A client holds the secrets that it was made with. When one of them is to be asked for again, another thread asks, and a
new client takes the place of the old one, which is used until then. After a 401 the secrets are read once more: with
other ones the request is repeated; with the same ones the keys wait, if the service has accepted them before.
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
    The secrets of a source, as its client was made with them. No `repr` shows them.

    Attributes:
        secrets: The references to them.
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
        """Return whether one of them is to be asked for again."""
        return self._expiring and not all(map(fresh, self.secrets))

    async def read(self) -> None:
        """Ask for those that are due, on another thread, so that `note` does not wait for them. Raises `FatalError`."""
        try:
            for secret in self.secrets:
                await revealed(secret)
        except ConfigError as error:
            raise FatalError(str(error)) from None

    def note(self) -> None:
        """Note what they are now, as a client is made with them. Raises `FatalError`."""
        try:
            self._used = {secret: secret.resolve() for secret in self.secrets}
        except ConfigError as error:
            raise FatalError(str(error)) from None

    def refuse(self) -> bool:
        """Note that the service refused them; return whether one of them may be another one now."""
        return any(list(itertools.starmap(refuse, self._used.items())))  # each of them hears of it


class Renewed:
    """
    The requests of a source with secrets.

    Args:
        send: Sends one request; raises `UnauthorizedError` for a 401.
        sender: Has the client, and makes another one.
    """

    def __init__(self, send: Send, sender: Sender) -> None:
        self._send = send
        self._sender = sender
        self._accepted = False

    async def send(self, asking: Asking) -> Reply | None:
        """Send a request, and after a 401 once more if the secrets are others now; see `Sender.request`."""
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
            # A 401 comes before anything is done, so that even a POST may be repeated.
            refused = UnavailableError(f"{refused} The service has accepted them before.", sent=False)
        refused.said = said
        raise refused

    async def _renewed(self, client: Client | None, deadline: float) -> bool:
        with contextlib.suppress(TimeoutError):  # a function or command that takes longer is no answer
            async with asyncio.timeout(max(deadline - monotonic(), 0.0)):
                return await self._sender.renewed_after_refusal(client)
        return False
