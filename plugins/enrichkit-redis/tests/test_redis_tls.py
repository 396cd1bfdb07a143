"""TLS in front of a real server: a server that is not trusted gets no byte of a login."""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import Any

import pytest

from enrichkit.errors import FatalError, TransientError, UnavailableError
from enrichkit.plugin import Call

CALL = Call(timeout=5)


@pytest.fixture(scope="module")
def authority(authority: Any) -> Any:
    """The authority that the tests trust."""
    return authority("ours")


def context_of(files: tuple[str, str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    return context


def fetch(proxy: Any, connected: Any, run: Any, port: int, context: ssl.SSLContext | None, **fields: Any) -> Any:
    """Look up `a` through a proxy that ends TLS; also return the bytes that arrived at the server."""
    arrived: list[bytes] = []

    async def main() -> Any:
        async with proxy(port, tls=context) as p:
            p.on_request = arrived.append
            url = f"rediss://127.0.0.1:{p.port}"
            async with connected(url, password="S3cret", **fields) as connector:
                try:
                    return await connector.fetch_many(["a"], CALL), b"".join(arrived)
                except (FatalError, TransientError) as error:
                    return (type(error), str(error).replace(str(p.port), "PORT")), b"".join(arrived)

    return run(main())


@pytest.fixture
def guarded(client: Any) -> Any:
    """A server with a password and one value."""
    client.set("a", "1")
    client.config_set("requirepass", "S3cret")
    yield client
    client.config_set("requirepass", "")


def test_a_trusted_server_is_read(server, guarded, authority, proxy, connected, run):
    found, arrived = fetch(
        proxy, connected, run, server.port, context_of(authority.issue("good")), tls_ca=authority.file
    )

    assert found == {"a": b"1"}
    assert b"S3cret" in arrived


def test_a_client_certificate_is_shown(server, guarded, authority, proxy, connected, run):
    context = context_of(authority.issue("asks"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.file)
    cert, key = authority.issue("me")

    found, _ = fetch(proxy, connected, run, server.port, context, tls_ca=authority.file, tls_cert=cert, tls_key=key)

    assert found == {"a": b"1"}


def test_insecure_switches_the_check_off(server, guarded, authority, proxy, connected, run):
    context = context_of(authority.issue("elsewhere", "DNS:elsewhere.test"))

    found, _ = fetch(proxy, connected, run, server.port, context, insecure=True)

    assert found == {"a": b"1"}


@pytest.mark.parametrize(
    ("alternative", "days", "trusted", "reason"),
    [
        ("IP:127.0.0.1", 2, False, "unable to get local issuer certificate"),
        ("DNS:elsewhere.test", 2, True, "IP address mismatch, certificate is not valid for '127.0.0.1'"),
        ("IP:127.0.0.1", -1, True, "certificate has expired"),
    ],
    ids=["unknown authority", "wrong host", "expired"],
)
def test_an_untrusted_server_gets_no_login(
    server, authority, proxy, connected, run, alternative, days, trusted, reason
):
    name = f"bad{abs(hash((alternative, days, trusted)))}"
    context = context_of(authority.issue(name, alternative, days))

    found, arrived = fetch(
        proxy, connected, run, server.port, context, **({"tls_ca": authority.file} if trusted else {})
    )

    assert arrived == b""
    assert found == (
        FatalError,
        (
            f"The certificate of Redis at 127.0.0.1:PORT is not trusted: {reason}. "
            "Name the authority's file in RedisConfig.tls_ca."
        ),
    )


def alert(level: int, description: int) -> bytes:
    """An alert of TLS, RFC 5246, section 7.2."""
    return b"\x15\x03\x03\x00\x02" + bytes([level, description])


NO_TLS = "does not speak TLS 1.2 or later with us (REASON). See RedisConfig.url."  # the reason is OpenSSL's word


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        (b"-ERR unknown command\r\n", FatalError, NO_TLS),
        (alert(2, 70), FatalError, NO_TLS),
        (alert(1, 0), UnavailableError, "closed the connection during the TLS handshake."),
        (b"", UnavailableError, "cannot be reached (ConnectionResetError)."),
    ],
    ids=["plain bytes", "refuses the version", "says goodbye", "hangs up"],
)
def test_a_server_that_breaks_off_the_handshake_gets_no_login(connected, run, reply, error, said):
    arrived: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await reader.read(65536))
        writer.write(reply)
        writer.close()

    async def main() -> tuple[type, str]:
        listener = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with listener, connected(f"rediss://127.0.0.1:{port}", password="S3cret") as connector:
            with pytest.raises((FatalError, TransientError)) as caught:
                await connector.fetch_many(["a"], CALL)
            return type(caught.value), str(caught.value).replace(str(port), "PORT")

    kind, text = run(main())
    assert (error, f"Redis at 127.0.0.1:PORT {said}") == (kind, re.sub(r"\([A-Z0-9_]+\)", "(REASON)", text))
    assert b"\x16" == arrived[0][:1]  # a handshake
    assert b"S3cret" not in b"".join(arrived)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")  # a deprecated version is the point
def test_an_old_version_of_tls_is_refused(server, guarded, authority, proxy, connected, run):
    context = context_of(authority.issue("old"))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1

    found, arrived = fetch(proxy, connected, run, server.port, context, tls_ca=authority.file)

    assert arrived == b""
    # An asyncio server of TLS closes without an alert; the case with an alert is "refuses the version" above.
    assert found == (UnavailableError, "Redis at 127.0.0.1:PORT cannot be reached (ConnectionResetError).")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    found, _ = fetch(proxy, connected, run, server.port, context, tls_ca=authority.file)
    assert found == {"a": b"1"}


@pytest.mark.parametrize("fields", [{"tls_ca": "/nowhere/ca.pem"}, {"tls_cert": "/nowhere/cert.pem"}])
def test_a_missing_file_fails_the_task(connected, fields):
    async def main() -> None:
        async with connected("rediss://127.0.0.1:1", **fields) as connector:
            await connector.fetch_many(["a"], CALL)

    with pytest.raises(FatalError) as caught:
        asyncio.run(main())

    assert str(caught.value) == (
        "A file that RedisConfig.tls_ca, tls_cert or tls_key names cannot be used on this worker "
        "(No such file or directory); it must be a PEM file. Put it there, or correct the path."
    )
