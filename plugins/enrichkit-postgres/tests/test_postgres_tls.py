"""
TLS: which server is trusted, and that one that is not gets no login.

The server of the wheel is built without TLS, so a relay ends it in front of that one, after PostgreSQL's own greeting.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from enrichkit_postgres import PostgresConfig

from enrichkit.errors import ConnectorError, FatalError
from enrichkit.plugin import Call
from enrichkit.testing import open_connector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from enrichkit import local

pytestmark = pytest.mark.service

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
UNKNOWN = "unable to get local issuer certificate"

accepted = pytest.mark.parametrize(
    ("host", "mode", "trusted"),
    [
        ("127.0.0.1", "verify-full", "ours"),
        ("127.0.0.1", "verify-ca", "ours"),
        ("localhost", "verify-ca", "ours"),  # which its certificate does not name
        ("127.0.0.1", "require", None),
        ("localhost", "require", None),
        ("127.0.0.1", "prefer", None),
    ],
)
refused = pytest.mark.parametrize(
    ("host", "mode", "trusted", "reason"),
    [
        ("127.0.0.1", "verify-full", "another", UNKNOWN),
        ("127.0.0.1", "verify-full", None, UNKNOWN),
        ("127.0.0.1", "verify-ca", "another", UNKNOWN),
        ("127.0.0.1", "verify-ca", None, UNKNOWN),
        ("localhost", "verify-full", "ours", "Hostname mismatch, certificate is not valid for 'localhost'"),
    ],
    ids=["another authority", "no authority", "another authority, any host", "no authority, any host", "another host"],
)


@pytest.fixture(scope="module")
def authorities(authority: Any) -> dict[str, Any]:
    """Two, of which one has issued what the servers show; by the name that says which."""
    return {name: authority(name) for name in ("ours", "another")}


def file_of(authorities: dict[str, Any], name: str | None) -> str | None:
    return None if name is None else authorities[name].file


async def ask(dsn: str, **config: Any) -> Any:
    """Return the answer for the key 1, or the type and the text of the error."""
    try:
        async with open_connector(PostgresConfig(dsn=dsn, **config), capacity=1) as connector:
            return dict(await connector.fetch_many([1], Call(timeout=20.0)))
    except ConnectorError as error:
        return type(error), str(error)


def refusal(server: str, reason: str) -> tuple[type[ConnectorError], str]:
    return FatalError, (
        f"The TLS connection to PostgreSQL at {server} was refused by us: {reason}. It must show a valid certificate "
        "for this host name. Name the certificates to trust with PostgresConfig.tls_ca."
    )


@contextlib.asynccontextmanager
async def relay(target: tuple[str, int], context: ssl.SSLContext) -> AsyncIterator[tuple[int, bytearray]]:
    """TLS in front of the server at *target*: its port, and what came to the server."""
    arrived = bytearray()
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray) -> None:
        with contextlib.suppress(OSError):  # the other end was aborted
            while data := await reader.read(65536):
                seen += data
                writer.write(data)
        writer.transport.abort()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: Any = asyncio.current_task()
        tasks.add(task)
        try:
            assert await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST
            writer.write(b"S")
            await writer.start_tls(context)
            there = await asyncio.open_connection(*target)
            await asyncio.gather(pump(reader, there[1], arrived), pump(there[0], writer, bytearray()))
        except OSError:  # the client does not trust us
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], arrived
    finally:
        server.close()
        await asyncio.gather(*tasks)


@pytest.fixture(scope="module")
def context(authorities: dict[str, Any]) -> ssl.SSLContext:
    """With a certificate for 127.0.0.1."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*authorities["ours"].issue("relay"))
    return made


def relayed(server: local.PostgresServer, context: ssl.SSLContext, host: str, mode: str, **config: Any) -> Any:
    """Ask *server* through a relay; also return what came to it, and the address of the relay."""

    async def run() -> tuple[Any, bytes, str]:
        target = urlsplit(server.dsn)
        async with relay((str(target.hostname), int(target.port or 0)), context) as (port, arrived):
            query = "SELECT k AS id, 2 * k AS twice FROM unnest($1::int[]) AS k"
            dsn = f"postgresql://postgres@{host}:{port}/postgres?sslmode={mode}"
            return await ask(dsn, query=query, **config), bytes(arrived), f"{host}:{port}"

    return asyncio.run(run())


@accepted
def test_a_trusted_server_is_asked(
    postgres_server: local.PostgresServer,
    authorities: dict[str, Any],
    context: ssl.SSLContext,
    host: str,
    mode: str,
    trusted: str | None,
) -> None:
    found, arrived, _ = relayed(postgres_server, context, host, mode, tls_ca=file_of(authorities, trusted))
    assert found == {1: 2}
    assert b"\0postgres\0" in arrived


@refused
def test_a_server_that_is_not_trusted_gets_no_login(
    postgres_server: local.PostgresServer,
    authorities: dict[str, Any],
    context: ssl.SSLContext,
    host: str,
    mode: str,
    trusted: str | None,
    reason: str,
) -> None:
    found, arrived, at = relayed(postgres_server, context, host, mode, tls_ca=file_of(authorities, trusted))
    assert found == refusal(at, reason)
    assert arrived == b""


@pytest.fixture(scope="module")
def asks(authorities: dict[str, Any]) -> ssl.SSLContext:
    """With a certificate for 127.0.0.1, and refusing clients without one of ours."""
    asks = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    asks.load_cert_chain(*authorities["ours"].issue("asks"))
    asks.verify_mode = ssl.CERT_REQUIRED
    asks.load_verify_locations(authorities["ours"].file)
    asks.maximum_version = ssl.TLSVersion.TLSv1_2  # from 1.3 on a client hears of it when it is connected
    return asks


def test_a_client_certificate_is_shown(
    postgres_server: local.PostgresServer, authorities: dict[str, Any], asks: ssl.SSLContext
) -> None:
    cert, key = authorities["ours"].issue("me")
    files = {"tls_ca": authorities["ours"].file, "tls_cert": cert, "tls_key": key}
    found, _, _ = relayed(postgres_server, asks, "127.0.0.1", "verify-full", **files)
    assert found == {1: 2}


def refuse_without_certificate(listener: socket.socket, asks: ssl.SSLContext) -> None:
    """Take one connection as PostgreSQL does, and tell the client why it is not taken in."""
    connection, _ = listener.accept()
    with connection:
        assert connection.recv(len(SSL_REQUEST)) == SSL_REQUEST
        connection.sendall(b"S")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        handshake = asks.wrap_bio(incoming, outgoing, server_side=True)
        refused = False
        while not refused:
            incoming.write(connection.recv(65536))
            try:
                handshake.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                refused = True
            connection.sendall(outgoing.read())
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):  # or what is not read would take the alert back
            pass


def test_a_server_that_asks_for_a_certificate_in_vain_says_so(
    authorities: dict[str, Any], asks: ssl.SSLContext
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        served = thread.submit(refuse_without_certificate, listener, asks)
        dsn = f"postgresql://postgres@127.0.0.1:{listener.getsockname()[1]}/postgres"
        found = asyncio.run(ask(dsn, query="SELECT $1 AS id", tls_ca=authorities["ours"].file))
        served.result()
    text = (
        f"PostgreSQL at {dsn.split('@')[1].split('/')[0]} refused the TLS connection: SSLV3_ALERT_HANDSHAKE_FAILURE. "
        "If it asks for a certificate of the client, name one that it trusts with PostgresConfig.tls_cert and tls_key."
    )
    assert found == (FatalError, text)


def test_a_server_with_an_expired_certificate_gets_no_login(
    postgres_server: local.PostgresServer, authorities: dict[str, Any]
) -> None:
    expired = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    expired.load_cert_chain(*authorities["ours"].issue("expired", days=-1))
    found, arrived, at = relayed(postgres_server, expired, "127.0.0.1", "verify-full", tls_ca=authorities["ours"].file)
    assert found == refusal(at, "certificate has expired")
    assert arrived == b""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")  # a deprecated version is the point
def test_a_server_with_an_old_version_of_tls_gets_no_login(
    postgres_server: local.PostgresServer, authorities: dict[str, Any]
) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.load_cert_chain(*authorities["ours"].issue("old"))
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    config = {"host": "127.0.0.1", "mode": "verify-full", "tls_ca": authorities["ours"].file}
    (kind, _), arrived, _ = relayed(postgres_server, old, **config)
    assert issubclass(kind, ConnectorError)
    assert arrived == b""
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert relayed(postgres_server, old, **config)[0] == {1: 2}
