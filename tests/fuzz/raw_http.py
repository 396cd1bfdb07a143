"""A service on loopback that answers each request with a prepared body, and keeps the requests as they came."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["RawService"]

T = TypeVar("T")


class RawService:
    """
    The service, and the event loop on which it and the connectors under test run.

    Attributes:
        url: Its address, without a path.
        body: What it answers.
        requests: The first line, the other lines of the head, and the body of each request.
    """

    def __init__(self) -> None:
        self.url = ""
        self.body = b""
        self.requests: list[tuple[str, list[str], bytes]] = []
        self._runner = asyncio.Runner()
        self._clients: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._server = self.run(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *exc: Any) -> None:
        self._server.close()
        self.run(self._close())
        self._runner.__exit__(*exc)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of *work*, which runs on the loop of the service."""
        return self._runner.run(work)

    async def _close(self) -> None:
        for writer in self._clients.values():
            writer.transport.abort()
        while self._clients:
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._clients[task] = writer
        try:
            while True:
                first, *others = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
                fields = dict(line.lower().split(": ", 1) for line in others)
                body = await reader.readexactly(int(fields.get("content-length", "0")))
                self.requests.append((first, others, body))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(self.body), self.body))
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client has closed the connection
        finally:
            del self._clients[task]
            writer.close()
