"""
A connector as it should be, for a server that speaks JSON lines: the one in which bugs are planted.

It is small, but nothing in it is pretended: real sockets, a pool, time limits, writing, listing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from enrichkit import Call, ConfigError, Connector, ConnectorConfig, Failure, FatalError, PermanentError, TransientError
from enrichkit.testing import ConnectorContract

KNOWN = {key: f"what is held for {key}" for key in ("plain", "o'clock", "\N{SNOWMAN} man", "a/b", "100%")}


class SampleServer:
    """
    Holds texts under JSON keys, in a thread. It answers in the order in which it was filled.

    Attributes:
        port: Where it listens on loopback.
        held: What it holds, by the JSON of the key: value, and the moment at which it ends.
    """

    MOST = 100
    """Keys per request."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[Any, float]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> SampleServer:
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc: object) -> None:
        async def end() -> None:
            self._server.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def fill(self, values: Mapping[Any, Any]) -> None:
        """Hold *values* and nothing else."""
        self.held = {json.dumps(wire(key)): (value, float("inf")) for key, value in values.items()}

    def answer(self, request: dict[str, Any]) -> Any:
        now = time.monotonic()
        self.held = {key: (value, ends) for key, (value, ends) in self.held.items() if ends > now}
        match request["do"]:
            case "get" if len(request["keys"]) > self.MOST:
                return "too many keys"
            case "get":
                asked = {json.dumps(key) for key in request["keys"]}
                return [[json.loads(key), value] for key, (value, _) in self.held.items() if key in asked]
            case "put":
                ends = float("inf") if request["ttl"] is None else now + request["ttl"]
                self.held |= {json.dumps(key): (value, ends) for key, value in request["pairs"]}
                return len(request["pairs"])
            case "list":
                return [[json.loads(key), value] for key, (value, _) in self.held.items()]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while line := await reader.readline():
                request = json.loads(line)
                writer.write(json.dumps([request["id"], self.answer(request)]).encode() + b"\n")
                await writer.drain()


def wire(key: Any) -> Any:
    """Return *key* as JSON has it: a list of parts, and bytes as hexadecimal text in an object."""
    if isinstance(key, tuple):
        return [wire(part) for part in key]
    return {"hex": key.hex()} if isinstance(key, bytes) else key


@dataclass(frozen=True, kw_only=True)
class SampleConfig(ConnectorConfig):
    """Where the server is."""

    port: int
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if type(self.port) is not int:
            raise ConfigError(f"{type(self).__name__}.port is {self.port!r}; it must be a whole number, such as 4000.")
        if not (isinstance(self.token, str) and (self.token.isprintable() or not self.token)):
            raise ConfigError(f"{type(self).__name__}.token must be a text without control characters, such as 'a1b2'.")


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, data: bytes) -> bytes:
        if self.writer.is_closing():  # lost while it was idle; uvloop lets nobody write then
            raise ConnectionResetError
        self.writer.write(data)
        return await self.reader.readline()

    def abort(self) -> None:
        self.writer.transport.abort()


class SampleConnector(Connector[SampleConfig]):
    name = "sample"
    config_class = SampleConfig
    batch_size = 100
    max_batch_size = 100
    key_types = (str, int, float, bytes)
    lines: set[Line] | None = None

    async def open(self) -> None:
        self.lines = set()
        self.idle: list[Line] = []
        self.slots = asyncio.Semaphore(self.capacity)
        self.count = 0

    async def close(self) -> None:
        lines, self.lines = self.lines, None
        for line in lines or ():
            line.abort()
        await asyncio.sleep(0)

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        refused = {key: Failure(PermanentError("no text"), rejected=True) for key in keys if not sendable(key)}
        asked = {json.dumps(wire(key)): key for key in keys if key not in refused}
        pairs = await self.request({"do": "get", "keys": [wire(key) for key in asked.values()]}, call.timeout)
        answers = {asked[json.dumps(key)]: [value] if call.many else value for key, value in pairs}
        return answers | refused

    async def describe(self) -> str | None:
        return self.config.returns or "string"

    async def store_many(self, values: Mapping[Any, Any], ttl: float | None) -> None:
        await self.request({"do": "put", "pairs": [[wire(k), v] for k, v in values.items()], "ttl": ttl}, 5.0)

    async def scan(self) -> AsyncIterator[tuple[Any, Any]]:
        for key, value in await self.request({"do": "list"}, 5.0):
            yield tuple(key) if isinstance(key, list) else key, value

    async def request(self, request: dict[str, Any], timeout: float) -> Any:
        """Return the server's answer to *request*."""
        if self.lines is None:
            raise FatalError("The connector is not open.")
        async with self.slots:
            try:
                async with asyncio.timeout(timeout):
                    line = self.idle.pop() if self.idle else await self.connect()
                    answer = await self.exchange(line, request)
            except TimeoutError:
                raise TransientError("The server did not answer in time.") from None
            except OSError:
                raise TransientError("The connection was lost.") from None
            self.give_back(line)
        if answer == "too many keys":
            raise PermanentError("The group is too large.")
        return answer

    async def connect(self) -> Line:
        line = Line(*await asyncio.open_connection("127.0.0.1", self.config.port, limit=2**24))
        if self.lines is None:
            line.abort()
            raise TransientError("The connector was closed.")
        self.lines.add(line)
        return line

    def give_back(self, line: Line) -> None:
        self.idle.append(line)

    async def exchange(self, line: Line, request: dict[str, Any]) -> Any:
        """Ask on *line*, which is no longer used when that fails."""
        self.count += 1
        try:
            data = await line.ask(json.dumps({**request, "id": self.count}).encode() + b"\n")
            return self.read(data, self.count)
        except BaseException:
            self.drop(line)
            raise

    def read(self, data: bytes, number: int) -> Any:
        if not data.endswith(b"\n"):
            raise ConnectionResetError
        return json.loads(data)[1]

    def drop(self, line: Line) -> None:
        line.abort()
        if self.lines is not None:
            self.lines.discard(line)


def sendable(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return all(isinstance(part, str | int | float | bytes) and part == part for part in parts)


@pytest.fixture(scope="module")
def server() -> Iterator[SampleServer]:
    with SampleServer() as server:
        yield server


class SampleContract(ConnectorContract):
    """
    The contract on the sample.

    Attributes:
        kind: The class of the connector.
    """

    patience = 5.0
    kind: type[SampleConnector] = SampleConnector

    @pytest.fixture
    def connector(self, server: SampleServer) -> SampleConnector:
        return self.kind(self.kind.config_class(port=server.port))

    @pytest.fixture
    def known(self, server: SampleServer) -> dict[Any, Any]:
        server.fill(KNOWN)
        return KNOWN

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody"

    @pytest.fixture
    def address(self, server: SampleServer) -> tuple[str, int]:
        return "127.0.0.1", server.port
