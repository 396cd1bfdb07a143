"""
The making of the HTTP client, and the reading of its responses.

pyreqwest (written in Rust, with reqwest, hyper and rustls) speaks HTTP, and reads responses on a thread of its own.
These defaults of pyreqwest are switched off: proxies from environment variables, redirects, cookies, the Referer
header, decompression.
"""

from __future__ import annotations

import atexit
import os
import re
import time
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import enrichkit
from enrichkit.errors import ConfigError, FatalError, PermanentError, UnavailableError
from enrichkit.plugin import files_exhausted, reveal

from .document import as_utf8, decompressed, too_large
from .faults import CONNECT_TIMEOUT, header
from .headers import check_header_value, fixed
from .proxy import with_proxy

if TYPE_CHECKING:
    from pyreqwest.client import Client, ClientBuilder
    from pyreqwest.response import Response

    from .config import HttpConfig

__all__ = [
    "IDLE_TIMEOUT",
    "AmbiguousLengthError",
    "Reply",
    "make_client",
    "make_token_client",
    "own_headers",
    "receive",
]

SECOND = timedelta(seconds=1)
# Common servers and load balancers close an idle connection after 15 s or more. The client closes it earlier, because a
# request that it sends while the server closes the connection would fail.
IDLE_TIMEOUT = 10 * SECOND
LAST_WORDS = 0.1
"""
Seconds that a program waits when it exits, so that the client's thread can free the Python objects of past requests.

Python aborts the process if the client's thread frees Python objects while the interpreter shuts down. Without the
wait, Python aborted 7 of 40 programs, each of which had looked up one key.
"""
USER_AGENT = f"enrichkit/{enrichkit.__version__}"

_process_id: int | None = None
"""
Id of the process that made the first client; None: no client was made yet. All clients of a process share a thread that
does not live on in a fork, so a process that finds the id of another process here makes no client.
"""

_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\s;\"]+)", re.IGNORECASE)


class AmbiguousLengthError(PermanentError):
    """Two HTTP parsers could disagree on where the response ends, so its connection must not be used again."""


Reply: TypeAlias = tuple[bytes, str | None, bool]
"""
A successful response: the decompressed body, the charset or None, and whether the protocol marks the end of the body
(by a length, chunks or HTTP/2). Without such a mark, a body that was cut off may look like a whole one.
"""


def make_client(config: HttpConfig, capacity: int) -> Client:
    """
    Return a client that has opened no connection yet.

    Raises:
        FatalError: A secret or a file is absent or wrong, or this process was forked from a process that had made a
            client.
        UnavailableError: This process can open no more files.
    """
    builder = _builder(capacity).default_headers(_headers(config))
    secure = config.url.lower().startswith("https:")
    if config.http2:
        builder = builder.http2(True) if secure else builder.http2_prior_knowledge()
    return _built(builder, config, secure)


def make_token_client(config: HttpConfig, token_url: str) -> Client:
    """Return a client for the token endpoint at *token_url*. The client sends none of the headers of *config*."""
    headers = {"user-agent": USER_AGENT, "accept": "application/json"}
    return _built(_builder(1).default_headers(headers), config, token_url.lower().startswith("https:"))


def _builder(capacity: int) -> ClientBuilder:
    from pyreqwest.client import ClientBuilder

    global _process_id
    if _process_id not in (None, os.getpid()):
        raise FatalError(
            "This process was forked from one that had opened the http connector, and the thread of its client does "
            "not live on in the fork, where a request would never end. Fork before the first use, or spawn the process."
        )
    if _process_id is None:
        atexit.register(time.sleep, LAST_WORDS)
    _process_id = os.getpid()
    return (
        ClientBuilder()
        .no_proxy()
        .follow_redirects(False)
        .default_cookie_store(False)
        .referer(False)
        .gzip(False)
        .brotli(False)
        .zstd(False)
        .deflate(False)
        .connect_timeout(CONNECT_TIMEOUT * SECOND)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(capacity)
        .tcp_nodelay(True)
        .tcp_keepalive(30 * SECOND)
        .tcp_keepalive_interval(5 * SECOND)
        .tcp_keepalive_retries(3)
        .tcp_user_timeout(30 * SECOND)
    )


def _built(builder: ClientBuilder, config: HttpConfig, secure: bool) -> Client:
    if config.proxy is not None:
        builder = with_proxy(builder, config.proxy, config.proxy_auth)
    try:
        return (_with_tls(builder, config) if secure else builder).build()
    except ValueError:  # the error's text is not shown, because it may quote the certificate or key
        _check_files()
        if not secure:
            raise
        raise FatalError(
            "The certificate and the key of HttpConfig.tls_cert and tls_key are damaged or no pair, or tls_ca is "
            "damaged; each must be a PEM file, a key without a passphrase. Look at them with: openssl x509 -noout "
            "-text -in FILE"
        ) from None


def _check_files() -> None:
    """
    Raise an `UnavailableError` if this process can open no more files.

    The client's own error hides this cause: it says "no CA certificates", because the client could not open the files
    that hold them.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if (exhausted := files_exhausted(error)) is not None:
            raise UnavailableError(f"The HTTP client cannot be made: {exhausted}.", sent=False) from None


def own_headers(config: HttpConfig) -> dict[str, str]:
    """Return the default headers of all requests. Headers of the config replace default headers of the same names."""
    headers = {"user-agent": USER_AGENT}
    if str(config.returns).strip().lower() != "string" and not config.raw:
        headers["accept"] = "application/json"
    if config.body is not None:
        headers["content-type"] = "application/json"
    if config.form_pairs:
        headers["content-type"] = "application/x-www-form-urlencoded"
    return headers


def _headers(config: HttpConfig) -> dict[str, str]:
    headers = own_headers(config)
    try:
        for name, configured in fixed(config.pairs):
            value = reveal(configured) or ""
            check_header_value(name, value)
            headers[name.lower()] = value
        if config.bearer is not None:
            headers["authorization"] = f"Bearer {reveal(config.bearer)}"
            check_header_value("Authorization", headers["authorization"])
    except ConfigError as error:
        raise FatalError(str(error)) from None
    return headers


def _with_tls(builder: ClientBuilder, config: HttpConfig) -> ClientBuilder:
    builder = builder.min_tls_version("TLSv1.2").danger_accept_invalid_certs(config.insecure)
    if config.tls_ca is not None:
        builder = builder.add_root_certificate_pem(_pem("tls_ca", config.tls_ca, b"CERTIFICATE-----"))
    if config.tls_cert is not None:
        identity = _pem("tls_cert", config.tls_cert, b"CERTIFICATE-----")
        if config.tls_key is not None:
            identity += b"\n" + _pem("tls_key", config.tls_key, b"PRIVATE KEY-----")
        builder = builder.identity_pem(identity)
    return builder


def _pem(field: str, path: str, mark: bytes) -> bytes:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FatalError(
            f"HttpConfig.{field} {path!r} cannot be read on this worker: {error.strerror}. Ship the file there."
        ) from None
    if mark not in content:  # the client itself raises no error for a file without a certificate
        raise FatalError(
            f"HttpConfig.{field} {path!r} holds no {mark.decode()!r}; it must be a PEM file. Convert it with openssl."
        )
    return content


async def receive(response: Response, limit: int, *, text: bool) -> Reply:
    """
    Read a successful response to its end. After an error the caller must close the response.

    Args:
        response: The response; only its head has been read so far.
        limit: The most bytes that the body may have, before and after decompression.
        text: True if the body is text: it is returned in its own charset, with the name of the charset. False if the
            body is JSON: it is returned in UTF-8.

    Raises:
        PermanentError: The body is too large, or has a compression that is not supported.
        AmbiguousLengthError: The response has both a Content-Length and a Transfer-Encoding, or a Transfer-Encoding
            other than `chunked`.
    """
    length, transfer = header(response, "content-length"), header(response, "transfer-encoding")
    if transfer is not None and (length is not None or transfer.strip().lower() != "chunked"):
        raise AmbiguousLengthError(
            "The answer has more than one length, or a Transfer-Encoding other than 'chunked', so where it ends "
            "depends on who reads it; it was not used. Look at the proxies in front of the service."
        )
    announced = int(length) if length is not None and length.isdigit() else None
    if announced is not None and announced > limit:
        raise too_large(limit)
    reader = response.body_reader
    chunk = await reader.read_chunk()
    body = b"" if chunk is None else chunk.to_bytes()
    if chunk is not None and len(body) != announced:
        chunks = [body]
        size = len(body)
        while size <= limit and (chunk := await reader.read_chunk()) is not None:
            chunks.append(chunk.to_bytes())
            size += len(chunk)
        body = b"".join(chunks)
    if len(body) > limit:
        raise too_large(limit)
    encoding = header(response, "content-encoding")
    if encoding is not None:
        body = decompressed(body, encoding, limit)
    framed = length is not None or transfer is not None or not response.version.startswith("HTTP/1")
    if text:
        return body, _charset_in(header(response, "content-type") or ""), framed
    if not body.isascii() or b"\0" in body[:4]:  # in JSON, zero bytes occur only in UTF-16 and UTF-32
        body = as_utf8(body, _charset_in(header(response, "content-type") or ""))
    return body, None, framed


@lru_cache(maxsize=64)  # the responses of a service have the same Content-Type, so the cache saves most searches
def _charset_in(content_type: str) -> str | None:
    match = _CHARSET.search(content_type)
    return None if match is None else match[1]
