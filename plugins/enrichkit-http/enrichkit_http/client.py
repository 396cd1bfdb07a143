"""
The HTTP client and how its answers are received.

pyreqwest (Rust: reqwest, hyper, rustls) does the protocol and reads answers on a thread of its own. What it does
without being asked is switched off: proxies of the environment, redirects, cookies, the Referer header, decompression.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import enrichkit
from enrichkit.errors import ConfigError, FatalError, PermanentError
from enrichkit.secrets import reveal

from .checks import check_header_value
from .document import decompressed, too_large
from .faults import CONNECT_TIMEOUT, header

if TYPE_CHECKING:
    from pyreqwest.client import Client, ClientBuilder
    from pyreqwest.response import Response

    from .config import HttpConfig

__all__ = ["Reply", "TangledAnswerError", "make_client", "receive"]

SECOND = timedelta(seconds=1)
# Below the 15 s after which common servers and load balancers close an idle connection, perhaps under a request.
IDLE_TIMEOUT = 10 * SECOND

_made_in: int | None = None
"""The process that has made the first client, and with it the client's thread, of which there is one per process."""

_CHARSET = re.compile(r";\s*charset\s*=\s*\"?([^\s;\"]+)", re.IGNORECASE)


class TangledAnswerError(PermanentError):
    """Two parsers would disagree where the answer ends; its connection is not to be used again."""


Reply: TypeAlias = tuple[bytes, str | None, bool]
"""A successful answer: its body, decompressed, its charset, and whether its length was announced: it is whole then."""


def make_client(config: HttpConfig, capacity: int) -> Client:
    """Make a client; it opens no connection yet. Raises `FatalError` for a secret or file that is absent or wrong."""
    from pyreqwest.client import ClientBuilder

    global _made_in
    if _made_in not in (None, os.getpid()):
        raise FatalError(
            "This process was forked from one that had opened the http connector, and the thread of its client does "
            "not live on in the fork, where a request would never end. Fork before the first use, or spawn the process."
        )
    _made_in = os.getpid()
    builder = (
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
        .default_headers(_headers(config))
    )
    secure = config.url.lower().startswith("https:")
    if config.http2:
        builder = builder.http2(True) if secure else builder.http2_prior_knowledge()
    if not secure:
        return builder.build()
    try:
        return _with_tls(builder, config).build()
    except ValueError:  # the client's words may quote the file
        raise FatalError(
            "The certificate and the key of HttpConfig.tls_cert and tls_key are damaged or no pair, or tls_ca is "
            "damaged; each must be a PEM file, a key without a passphrase. Look at them with: openssl x509 -noout "
            "-text -in FILE"
        ) from None


def _headers(config: HttpConfig) -> dict[str, str]:
    headers = {"user-agent": f"enrichkit/{enrichkit.__version__}"}
    if str(config.returns).strip().lower() != "string":
        headers["accept"] = "application/json"
    if config.body is not None:
        headers["content-type"] = "application/json"
    try:
        for name, given in config.pairs:
            value = reveal(given) or ""
            check_header_value(name, value)
            headers[name.lower()] = value
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
    if mark not in content:  # the client takes a file without any certificate for one with none to add
        raise FatalError(
            f"HttpConfig.{field} {path!r} holds no {mark.decode()!r}; it must be a PEM file. Convert it with openssl."
        )
    return content


async def receive(response: Response, limit: int, *, text: bool) -> Reply:
    """
    Read a successful answer, to its end if it is returned; after an error the response must be closed.

    Args:
        response: Its head.
        limit: Most bytes, as sent and decompressed.
        text: Find out the charset, too.

    Raises:
        PermanentError: It is too large, or compressed in a way that cannot be undone.
        TangledAnswerError: It has more than one length.
    """
    length, transfer = header(response, "content-length"), header(response, "transfer-encoding")
    if transfer is not None and (length is not None or transfer.strip().lower() != "chunked"):
        raise TangledAnswerError(
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
    return body, _charset_in(header(response, "content-type") or "") if text else None, framed


@lru_cache(maxsize=64)  # a service says the same of all its answers
def _charset_in(content_type: str) -> str | None:
    found = _CHARSET.search(content_type)
    return None if found is None else found[1]
