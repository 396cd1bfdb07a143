"""Behind a pooler that gives each transaction another server connection, as PgBouncer does in transaction mode."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from urllib.parse import urlsplit

import asyncpg
import pytest
from enrichkit_postgres import PostgresConfig, PostgresConnector

from enrichkit.errors import FatalError, TransientError
from enrichkit.plugin import Call
from enrichkit.testing import fault_proxy
from tests.pace import at_pace

pytestmark = pytest.mark.service

KNOWN = {"user", "database", "client_encoding", "application_name", "datestyle", "timezone", "intervalstyle"}


class Pooler:
    """
    The transaction mode of PgBouncer and nothing else: after each transaction a client gets the server connection that
    was idle longest, statements and settings of a session are not carried along, unknown startup settings are refused.
    """

    def __init__(self, dsn: str) -> None:
        self.target = urlsplit(dsn)
        self.idle: asyncio.Queue = asyncio.Queue()
        self.greeting = b""
        self.transactions = 0
        self.clients: set[asyncio.Task] = set()

    async def connect(self) -> None:
        reader, writer = await asyncio.open_connection(self.target.hostname, self.target.port)
        startup = f"user\0postgres\0database\0{self.target.path[1:]}\0client_encoding\0UTF8\0\0".encode()
        writer.write(struct.pack("!ii", len(startup) + 8, 196608) + startup)
        self.greeting = b""
        while True:
            kind, message = await self.message(reader)
            self.greeting += message
            if kind == b"Z":
                break
        self.idle.put_nowait((reader, writer))

    @staticmethod
    async def message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
        head = await reader.readexactly(5)
        return head[:1], head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.clients.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            size = struct.unpack("!i", await reader.readexactly(4))[0]
            names = (await reader.readexactly(size - 4))[4:].rstrip(b"\0").split(b"\0")[::2]
            unknown = [name.decode() for name in names if name.decode().lower() not in KNOWN]
            if unknown:
                text = f"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: {unknown[0]}\0\0".encode()
                writer.write(b"E" + struct.pack("!i", len(text) + 4) + text)
            else:
                writer.write(self.greeting)
                await self.pump(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = None
        try:
            while (message := await self.message(reader))[0] != b"X":
                server = server or await self.idle.get()
                server[1].write(message[1])
                until = {b"S": b"Z", b"Q": b"Z", b"H": b"TnE"}.get(message[0], b"")  # sync, query, flush
                reply = b""
                while until and (not reply or reply not in until):
                    reply, answer = await self.message(server[0])
                    writer.write(answer)
                if reply == b"Z" and answer[-1:] == b"I":
                    self.transactions += 1
                    self.idle.put_nowait(server)
                    server = None
        finally:
            if server is not None:  # the client left in the middle of a transaction
                server[1].close()
                await server[1].wait_closed()


@contextlib.asynccontextmanager
async def pooled(dsn: str):
    pooler = Pooler(dsn)
    for _ in range(2):
        await pooler.connect()
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield pooler, f"postgresql://postgres@127.0.0.1:{port}/{pooler.target.path[1:]}"
    finally:
        server.close()
        await asyncio.gather(*pooler.clients)
        while not pooler.idle.empty():
            writer = pooler.idle.get_nowait()[1]
            writer.close()
            await writer.wait_closed()


@pytest.fixture
def dsn(postgres_server, postgres_dsn):
    """The DSN of a database with 1,000 users."""
    postgres_server.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text); INSERT INTO users SELECT i, 'name' || i FROM "
        "generate_series(0, 999) AS i;"
        "CREATE FUNCTION drop_user(int) RETURNS int LANGUAGE sql AS 'DELETE FROM users WHERE id = $1 RETURNING id'",
        postgres_dsn.rpartition("/")[2],
    )
    return postgres_dsn


def test_each_call_is_one_read_only_transaction_that_leaves_no_setting_behind(dsn):
    async def run() -> None:
        async with pooled(dsn) as (pooler, through):
            connector = PostgresConnector(PostgresConfig(dsn=through, table="users", pgbouncer=True))
            await connector.open()
            before = pooler.transactions
            for i in range(6):
                assert {i: f"name{i}"} == await connector.fetch_many([i, -1], Call(timeout=5))
            assert pooler.transactions - before == 6
            await connector.close()
            for _ in range(2):
                server = await asyncpg.connect(through, statement_cache_size=0, ssl=False)
                shown = [
                    await server.fetchval(f"SHOW {name}")
                    for name in ("statement_timeout", "search_path", "IntervalStyle")
                ]
                assert shown == ["0", '"$user", public', "postgres"]
                await server.close()

    asyncio.run(run())


def test_each_write_is_one_transaction_that_leaves_no_setting_behind(dsn):
    async def run() -> None:
        async with pooled(dsn) as (pooler, through):
            connector = PostgresConnector(PostgresConfig(dsn=through, table="users", pgbouncer=True, writable=True))
            await connector.open()
            before = pooler.transactions
            for i in range(6):
                await connector.store_many({i: f"new{i}", 1000 + i: "more"}, None)
                assert {i: f"new{i}", 1000 + i: "more"} == await connector.fetch_many([i, 1000 + i], Call(timeout=5))
            assert pooler.transactions - before == 12
            with pytest.raises(FatalError, match="SQLSTATE 25006"):
                await connector.opened()[0].run(
                    lambda connection, timeout: connection.execute("DELETE FROM users", timeout=timeout), 5.0
                )
            await connector.close()
            for _ in range(2):
                server = await asyncpg.connect(through, statement_cache_size=0, ssl=False)
                shown = [
                    await server.fetchval(f"SHOW {name}")
                    for name in ("statement_timeout", "search_path", "transaction_read_only", "IntervalStyle")
                ]
                assert shown == ["0", '"$user", public', "off", "postgres"]
                await server.close()

    asyncio.run(run())


def test_the_server_stops_what_writes_and_what_is_slow(dsn):
    async def run(query: str) -> None:
        async with pooled(dsn) as (_, through):
            connector = PostgresConnector(PostgresConfig(dsn=through, query=query, pgbouncer=True))
            await connector.open()
            try:
                await connector.fetch_many([1], Call(timeout=at_pace(2.0)))  # the server's limit is a tenth less
            finally:
                await connector.close()

    with pytest.raises(FatalError, match="SQLSTATE 25006"):
        asyncio.run(run("SELECT k AS id, drop_user(k) FROM unnest($1::int[]) AS k"))
    with pytest.raises(TransientError, match="SQLSTATE 57014"):
        asyncio.run(run("SELECT k AS id, pg_sleep(60)::text FROM unnest($1::int[]) AS k"))


def test_a_cancelled_call_asks_for_no_cancel(dsn):
    """A PgBouncer ends when who has asked it for one hangs up early, as we do."""
    sent = []
    config = {"query": "SELECT k AS id, pg_sleep(60)::text FROM unnest($1::int[]) AS k", "pgbouncer": True}

    async def run() -> None:
        async with pooled(dsn) as (pooler, through):
            address = urlsplit(through)
            with fault_proxy(address.hostname, address.port) as proxy:
                proxy.delay(lambda chunk: sent.append(chunk.data) or 0.0, direction="to server")
                connector = PostgresConnector(PostgresConfig(dsn=proxy.url(through), **config))
                await connector.open()
                task = asyncio.create_task(connector.fetch_many([1], Call(timeout=0.5)))
                while pooler.idle.qsize() == 2:  # until the statement runs
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                while connector._pool._disposals:
                    await asyncio.gather(*connector._pool._disposals)
                await connector.close()

    asyncio.run(run())
    assert sent
    assert not [data for data in sent if data.startswith(struct.pack("!ii", 16, 80877102))]


def test_without_pgbouncer_true_the_message_names_it(dsn):
    async def run() -> None:
        async with pooled(dsn) as (_, through):
            await PostgresConnector(PostgresConfig(dsn=through, table="users")).open()

    with pytest.raises(FatalError) as caught:
        asyncio.run(run())
    assert str(caught.value).endswith(
        "says: unsupported startup parameter: search_path, ProtocolViolationError, SQLSTATE 08P01. "
        "Behind PgBouncer, set PostgresConfig.pgbouncer=True."
    )
