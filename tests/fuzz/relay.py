"""A TCP server on loopback in front of a real Redis server; it replaces the replies of one exchange by given bytes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Self

from .resp import Replies, bulk

__all__ = ["ECHO", "Case", "Exchange", "Relay"]

ECHO = b"<echo>"
"""Stands in a prepared reply for the reply to `ECHO` with the nonce of the exchange, with which each exchange begins
and ends."""


@dataclass(frozen=True)
class Case:
    """
    A lookup, and what the server says in the course of it.

    Attributes:
        kind: Kind of the lookup: `"string"`, `"hash"` (all fields) or `"fields"`.
        keys: The keys, a letter each.
        step: Number of the exchange whose replies are replaced; 0 is the login, 1 the first exchange with keys.
        reply: The bytes in place of its replies.
        then: What follows them: the server closes the connection (`"close"`), or the connection stays open and the
            server answers the next request as it should (`"stay"`).
    """

    kind: str
    keys: str
    step: int
    reply: bytes
    then: str = "close"


@dataclass(frozen=True)
class Exchange:
    """
    Some commands that came in one write, and the bytes that were sent back.

    Attributes:
        connection: Number of the connection.
        commands: The commands, each as a list of its arguments.
        sent: The bytes that were sent back.
    """

    connection: int
    commands: list[list[bytes]]
    sent: bytes

    @property
    def replies(self) -> list[Any] | None:
        """The reply to each command; None when the bytes are anything else than these replies."""
        said = Replies(self.sent)
        echoes = {number for number, command in enumerate(self.commands) if command[0] == b"ECHO"}
        if said.rest or len(said.whole) != len(self.commands):
            return None
        if any(said.whole[number] != self.commands[number][1] for number in echoes):
            return None
        return said.whole


class Relay:
    """
    The server. It plays a case once; all other exchanges are those of the real server.

    Args:
        target: Port of the real server.
        case: What it plays; None: nothing.

    Attributes:
        port: Where it listens.
        exchanges: What was asked and answered.
    """

    def __init__(self, target: int, case: Case | None = None) -> None:
        self.port = 0
        self.exchanges: list[Exchange] = []
        self._target = target
        self._case = case
        self._connections = 0
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for writer in self._clients.values():
            writer.transport.abort()
        await asyncio.gather(*self._clients)

    def behave(self) -> None:
        """From now on, all replies are those of the real server."""
        self._case = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = writer
        number, self._connections = self._connections, self._connections + 1
        real_reader, real_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            while commands := await _next_commands(reader):
                real_writer.write(b"".join(map(_packed, commands)))
                sent, stays = await _replies_to(commands, real_reader), True
                if self._case is not None and self._case.step == len(self.exchanges):
                    sent = self._case.reply.replace(ECHO, bulk(commands[-1][1]))
                    stays = self._case.then == "stay"
                self.exchanges.append(Exchange(number, commands, sent))
                writer.write(sent)
                if not stays:
                    return
        except ConnectionError:
            return  # the client may break the connection at any time
        finally:
            del self._clients[task]
            writer.close()
            real_writer.transport.abort()


async def _next_commands(reader: asyncio.StreamReader) -> list[list[bytes]]:
    """Return the commands of an exchange, the last of which is an echo; none when the client has gone."""
    data = b""
    while chunk := await reader.read(65536):
        data += chunk
        said = Replies(data)  # commands have the form of replies: lists of bulk strings
        commands: list[list[bytes]] = said.whole
        if not said.rest and len(commands) > 1 and commands[-1][0] == b"ECHO":
            return commands
    return []


async def _replies_to(commands: list[list[bytes]], reader: asyncio.StreamReader) -> bytes:
    data = b""
    while len(Replies(data).whole) < len(commands):
        chunk = await reader.read(65536)
        assert chunk, "the real server does not close a connection"
        data += chunk
    return data


def _packed(command: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join(map(bulk, command))
