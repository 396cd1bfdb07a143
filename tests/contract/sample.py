"""
A correct connector for a server with a protocol of JSON lines; the tests of the contract kit plant bugs in it.

The connector is small but complete: it has real sockets, a pool, time limits, `store_many` and `scan`.
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

DAMAGED = {"damaged": True}
"""Stands for a value that the server cannot read."""
KNOWN = {key: f"what is held for {key}" for key in ("plain", "o'clock", "\N{SNOWMAN} man", "a/b", "100%")}


class SampleServer:
    """
    A server in a thread that holds texts under JSON keys. Its answers have the order in which it was filled.

    Attributes:
        port: Port on loopback on which the server listens.
        values: Value and time of expiry, by the JSON text of the key.
    """

    KEYS_MAX = 100
    """The most keys in one request."""

    def __init__(self) -> None:
        self.values: dict[str, tuple[Any, float]] = {}
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
        """Replace all values of the server by *values*."""
        self.values = {json.dumps(wire(key)): (value, float("inf")) for key, value in values.items()}

    def answer(self, request: dict[str, Any]) -> Any:
        now = time.monotonic()
        self.values = {key: (value, expiry) for key, (value, expiry) in self.values.items() if expiry > now}
        match request["do"]:
            case "get" if len(request["keys"]) > self.KEYS_MAX:
                return "too many keys"
            case "get":
                keys = {json.dumps(key) for key in request["keys"]}
                return [[json.loads(key), value] for key, (value, _) in self.values.items() if key in keys]
            case "put":
                expiry = float("inf") if request["ttl"] is None else now + request["ttl"]
                self.values |= {json.dumps(key): (value, expiry) for key, value in request["pairs"]}
                return len(request["pairs"])
            case "list":
                return [[json.loads(key), value] for key, (value, _) in self.values.items()]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while line := await reader.readline():
                request = json.loads(line)
                writer.write(json.dumps([request["id"], self.answer(request)]).encode() + b"\n")
                await writer.drain()


def wire(key: Any) -> Any:
    """Return *key* in a form that JSON can express: parts as a list, and bytes as hexadecimal text in an object."""
    if isinstance(key, tuple):
        return [wire(part) for part in key]
    return {"hex": key.hex()} if isinstance(key, bytes) else key


@dataclass(frozen=True, kw_only=True)
class SampleConfig(ConnectorConfig):
    """The port of the server, and a token."""

    port: int
    token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if type(self.port) is not int:
            raise ConfigError(f"{type(self).__name__}.port is {self.port!r}; it must be a whole number, such as 4000.")
        if not (isinstance(self.token, str) and (self.token.isprintable() or not self.token)):
            raise ConfigError(f"{type(self).__name__}.token must be a text without control characters, such as 'a1b2'.")


class Line:
    """One connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, data: bytes) -> bytes:
        if self.writer.is_closing():  # the connection was lost while idle; uvloop then refuses to write
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
    stores_ttl = True
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
        sent = {json.dumps(wire(key)): key for key in keys if key not in refused}
        pairs = await self.request({"do": "get", "keys": [wire(key) for key in sent.values()]}, call.timeout)
        found = {sent[json.dumps(key)]: self.readable(value) for key, value in pairs}
        answers = {
            key: [value] if call.many and not isinstance(value, Failure) else value for key, value in found.items()
        }
        return answers | refused

    def readable(self, value: Any) -> Any:
        """Return *value*, or a failure for what the server could not read itself."""
        return Failure(PermanentError("damaged")) if value == DAMAGED else value

    async def describe(self) -> str | None:
        return self.config.returns or "string"

    async def store_many(self, values: Mapping[Any, Any], ttl: float | None) -> None:
        await self.request({"do": "put", "pairs": [[wire(k), v] for k, v in values.items()], "ttl": ttl}, 5.0)

    async def scan(self, kinds: Sequence[type], size: int) -> AsyncIterator[Sequence[Any]]:
        keys = [tuple(key) if isinstance(key, list) else key for key, _ in await self.request({"do": "list"}, 5.0)]
        for start in range(0, len(keys), size):
            yield keys[start : start + size]

    async def request(self, request: dict[str, Any], timeout: float) -> Any:
        """Send *request* and return the server's answer."""
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
        """Send *request* on *line* and return the answer; drop *line* if that fails."""
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
    The contract tests of the sample connector.

    Attributes:
        kind: Class of the connector under test.
    """

    patience = 20.0
    kind: type[SampleConnector] = SampleConnector

    @pytest.fixture
    def connector(self, server: SampleServer) -> SampleConnector:
        return self.kind(self.kind.config_class(port=server.port))

    @pytest.fixture
    def known(self, server: SampleServer) -> dict[Any, Any]:
        server.fill(KNOWN)
        return KNOWN

    @pytest.fixture
    def unreadable(self, server: SampleServer, known: dict[Any, Any]) -> Sequence[Any]:
        keys = [f"damaged {n}" for n in range(5)]
        server.fill({**known, **dict.fromkeys(keys, DAMAGED)})
        return keys

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody"

    @pytest.fixture
    def address(self, server: SampleServer) -> tuple[str, int]:
        return "127.0.0.1", server.port
