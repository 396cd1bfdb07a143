"""HTTPS with the tests' own authorities, and HTTP/2."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.errors import ConnectorError, FatalError, PermanentError, UnavailableError
from enrichkit.plugin import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNTRUSTED = (
    "failed: its certificate is not trusted here, or ours not there. Set HttpConfig.tls_ca, or tls_cert and tls_key."
)
BROKE_OFF = "the TLS handshake broke off. The service may speak no TLS there, none from 1.2 on, or want a certificate."


@pytest.fixture(scope="module")
def trusted(authority: Callable[[str], Any]) -> Any:
    return authority("trusted")


def context(certificate: tuple[str, str]) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*certificate)
    return made


@pytest.fixture
def asked(serving: Callable[..., Any], connected: Callable[..., Any], http: Callable[..., bytes]) -> Callable[..., Any]:
    """`asked(tls, **fields)`: a value from a service behind that context, or the error, and what the service saw."""

    def run(tls: ssl.SSLContext | None, scheme: str = "https", **fields: Any) -> tuple[Any, list[bytes]]:
        async def once() -> tuple[Any, list[bytes]]:
            asyncio.get_running_loop().set_exception_handler(lambda loop, details: None)  # handshakes fail on purpose
            async with serving(http(b"v"), tls=tls) as server:
                address = server.url.partition(":")[2]
                async with connected(f"{scheme}:{address}/{{}}", **fields) as connector:
                    try:
                        return await connector.fetch_many(["S3cret"], Call(timeout=5.0)), server.heads
                    except ConnectorError as error:
                        return (type(error), str(error).replace(address, "//host")), server.heads

        return asyncio.run(once())

    return run


def test_a_service_is_trusted_by_the_authority_of_the_config(asked: Callable[..., Any], trusted: Any) -> None:
    found, heads = asked(context(trusted.issue("good")), tls_ca=trusted.file)
    assert (found, heads) == ({"S3cret": "v"}, [b"GET /S3cret HTTP/1.1"])


def test_a_service_that_cannot_prove_its_name_gets_no_request(
    asked: Callable[..., Any], trusted: Any, authority: Callable[[str], Any]
) -> None:
    good = context(trusted.issue("good"))
    cases = [
        asked(good),
        asked(good, tls_ca=authority("other").file),
        asked(context(trusted.issue("elsewhere", "DNS:elsewhere.example")), tls_ca=trusted.file),
        asked(context(trusted.issue("expired", days=-1)), tls_ca=trusted.file),
    ]
    refused = ((FatalError, f"The TLS handshake with https://host {UNTRUSTED}"), [])
    assert cases == [refused] * len(cases)


def test_insecure_accepts_any_certificate(asked: Callable[..., Any], trusted: Any) -> None:
    found, _ = asked(context(trusted.issue("expired", days=-1)), insecure=True)
    assert found == {"S3cret": "v"}


@pytest.mark.slow
def test_a_service_without_tls_gets_no_request(asked: Callable[..., Any]) -> None:
    found, heads = asked(None)
    assert found == (UnavailableError, "No connection to https://host: none within 2 s.")
    assert heads == []


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")  # a deprecated version is the point
def test_tls_below_1_2_is_refused(asked: Callable[..., Any], trusted: Any) -> None:
    old = context(trusted.issue("good"))
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    assert asked(old, tls_ca=trusted.file) == ((UnavailableError, f"No connection to https://host: {BROKE_OFF}"), [])
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert asked(old, tls_ca=trusted.file)[0] == {"S3cret": "v"}


def test_a_client_certificate_is_shown(asked: Callable[..., Any], trusted: Any, tmp_path: Path) -> None:
    strict = context(trusted.issue("good"))
    strict.verify_mode = ssl.CERT_REQUIRED
    strict.load_verify_locations(trusted.file)
    certificate, key = trusted.issue("client")
    both = tmp_path / "both.pem"
    both.write_text(Path(certificate).read_text() + Path(key).read_text())
    assert asked(strict, tls_ca=trusted.file, tls_cert=certificate, tls_key=key)[0] == {"S3cret": "v"}
    assert asked(strict, tls_ca=trusted.file, tls_cert=str(both))[0] == {"S3cret": "v"}


@contextlib.contextmanager
def one_handshake(tls: ssl.SSLContext) -> Iterator[int]:
    """The port of a service that sends an alert when it refuses a handshake; an asyncio server sends none."""

    def serve() -> None:
        plain, _ = listener.accept()
        secured = tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        secured.settimeout(10)
        with pytest.raises(ssl.SSLError):
            secured.do_handshake()
        with socket.socket(fileno=secured.detach()) as raw:
            raw.settimeout(10)
            while raw.recv(65536):  # an earlier close would reset the connection, and lose the alert
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(10)
        served = pool.submit(serve)
        yield listener.getsockname()[1]
        served.result()


@pytest.mark.parametrize(
    ("version", "error", "said"),
    [
        (ssl.TLSVersion.TLSv1_3, FatalError, f"The TLS handshake with https://host {UNTRUSTED}"),
        # This service sends the same alert for every handshake that fails.
        (ssl.TLSVersion.TLSv1_2, UnavailableError, f"No connection to https://host: {BROKE_OFF}"),
    ],
    ids=["1.3", "1.2"],
)
def test_a_service_that_requires_a_client_certificate_gets_no_request_without_one(
    lookup: Callable[..., Any], trusted: Any, version: ssl.TLSVersion, error: type[ConnectorError], said: str
) -> None:
    strict = context(trusted.issue("good"))
    strict.verify_mode = ssl.CERT_REQUIRED
    strict.maximum_version = version
    with one_handshake(strict) as port, pytest.raises(ConnectorError) as caught:
        lookup(f"https://127.0.0.1:{port}/{{}}", "S3cret", tls_ca=trusted.file)
    assert (error, said) == (type(caught.value), str(caught.value).replace(f"//127.0.0.1:{port}", "//host"))
    assert not getattr(caught.value, "sent", False)


def test_a_file_that_is_absent_or_wrong_fails_the_task(
    connected: Callable[..., Any], trusted: Any, authority: Callable[[str], Any], tmp_path: Path
) -> None:
    def error_of(**fields: str) -> str:
        async def scenario() -> None:
            async with connected("https://127.0.0.1/{}", **fields):
                pass

        with pytest.raises(FatalError) as caught:
            asyncio.run(scenario())
        return str(caught.value)

    certificate, _ = trusted.issue("client")
    _, other_key = authority("other").issue("client")
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("S3cret")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nS3cret\n-----END CERTIFICATE-----\n")
    for field, others in (("tls_ca", {}), ("tls_cert", {}), ("tls_key", {"tls_cert": certificate})):
        assert error_of(**{field: "/no/such/file"}, **others) == (
            f"HttpConfig.{field} '/no/such/file' cannot be read on this worker: No such file or directory. Ship the "
            "file there."
        )
        mark = "PRIVATE KEY-----" if field == "tls_key" else "CERTIFICATE-----"
        assert error_of(**{field: str(rubbish)}, **others) == (
            f"HttpConfig.{field} {str(rubbish)!r} holds no {mark!r}; it must be a PEM file. Convert it with openssl."
        )
    for fields in (
        {"tls_ca": str(broken)},
        {"tls_cert": certificate},
        {"tls_cert": certificate, "tls_key": other_key},
    ):
        assert error_of(**fields) == (
            "The certificate and the key of HttpConfig.tls_cert and tls_key are damaged or no pair, or tls_ca is "
            "damaged; each must be a PEM file, a key without a passphrase. Look at them with: openssl x509 -noout "
            "-text -in FILE"
        )


# --- HTTP/2


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame, RFC 9113, section 4.1."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


class Http2(asyncio.Protocol):
    """A server that answers each request with status 200 and `v`, in the shortest frames of the RFC."""

    seen: bytes
    streams: int

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.buffer = b""
        transport.write(frame(4, 0, 0))  # SETTINGS

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        if len(self.buffer) < len(preface):
            return
        assert self.buffer.startswith(preface)
        position = len(preface)
        while len(self.buffer) >= position + 9:
            length = int.from_bytes(self.buffer[position : position + 3], "big")
            if len(self.buffer) < position + 9 + length:
                break
            kind, flags = self.buffer[position + 3 : position + 5]
            stream = int.from_bytes(self.buffer[position + 5 : position + 9], "big")
            if kind == 4 and not flags & 1:
                self.transport.write(frame(4, 1, 0))  # SETTINGS ACK
            if kind == 1:
                # HEADERS with the indexed field `:status: 200`, then DATA that ends the stream.
                self.transport.write(frame(1, 4, stream, b"\x88") + frame(0, 1, stream, b"v"))
            position += 9 + length
        self.buffer = preface + self.buffer[position:]


@pytest.mark.parametrize("secure", [False, True])
def test_http2_is_spoken_when_the_config_says_so(connected: Callable[..., Any], trusted: Any, secure: bool) -> None:
    async def scenario() -> None:
        tls = context(trusted.issue("good")) if secure else None
        made: list[Http2] = []
        if tls is not None:
            tls.set_alpn_protocols(["h2", "http/1.1"])

        def protocol() -> Http2:
            made.append(Http2())
            return made[-1]

        listener = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, ssl=tls)
        port = listener.sockets[0].getsockname()[1]
        fields = {"tls_ca": trusted.file} if secure else {}
        url = f"http{'s' if secure else ''}://127.0.0.1:{port}/{{}}"
        try:
            async with connected(url, http2=True, **fields) as connector:
                await connector.fetch_many(["first"], Call(timeout=5.0))
                keys = [f"k{n}" for n in range(8)]
                found = await asyncio.gather(*[connector.fetch_many([key], Call(timeout=5.0)) for key in keys])
                # Text without a Content-Length: a frame marks its end.
                assert found == [{key: "v"} for key in keys]
                assert len(made) == 1, "requests at a time do not share a connection"
        finally:
            listener.close()
            for each in made:
                each.transport.abort()
            await asyncio.sleep(0)

    asyncio.run(scenario())


def test_http2_is_not_offered_by_default(asked: Callable[..., Any], trusted: Any) -> None:
    both = context(trusted.issue("good"))
    both.set_alpn_protocols(["h2", "http/1.1"])
    assert asked(both, tls_ca=trusted.file) == ({"S3cret": "v"}, [b"GET /S3cret HTTP/1.1"])


def test_a_service_that_speaks_only_http2_is_not_understood_by_default(
    serving: Callable[..., Any], connected: Callable[..., Any]
) -> None:
    async def scenario() -> None:
        goodbye = frame(7, 0, 0, bytes(4) + (13).to_bytes(4, "big"))  # GOAWAY: HTTP_1_1_REQUIRED
        async with serving((frame(4, 0, 0) + goodbye, "close")) as server, connected(server.url + "/{}") as connector:
            with pytest.raises(PermanentError) as caught:
                await connector.fetch_many(["k"], Call(timeout=5.0))
            assert str(caught.value) == (
                f"The answer from {server.url} is not valid HTTP: its head, length or chunks are malformed or too long."
            )

    asyncio.run(scenario())
