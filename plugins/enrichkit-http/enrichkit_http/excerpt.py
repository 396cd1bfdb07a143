"""The beginning of an unsuccessful response, in which the service may say what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from enrichkit.errors import ConfigError, PermanentError
from enrichkit.plugin import Secret, fresh, redact, reveal

from .document import decompressed
from .faults import header
from .headers import holds_credential
from .oauth import OAuth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyreqwest.response import Response

    from .config import HttpConfig
    from .tokens import Token

__all__ = ["BYTES", "beginning_of"]

BYTES = 300
READ = 4096
"""
Number of bytes of the body that are read. It is larger than `BYTES`, so that a secret that begins in the shown bytes
and ends after them is read as a whole, and redacted.
"""
WAIT = 0.5
"""
Most seconds to wait for the body. The wait is short, because most services send the body together with the headers.
"""


async def beginning_of(response: Response, config: HttpConfig, token: Token | None) -> str:
    """
    Return the first `BYTES` bytes of the body of *response* as printable text, without the secrets of *config*.

    The text is empty when there is no body, when none comes within `WAIT` seconds, or when a secret cannot be read and
    so cannot be redacted.
    """
    body = b""
    with contextlib.suppress(Exception):  # a failed read does not matter: the caller raises the error for the status
        async with asyncio.timeout(WAIT):
            while len(body) < READ and (chunk := await response.body_reader.read_chunk()) is not None:
                body += chunk.to_bytes()
    encoding = header(response, "content-encoding")
    if encoding is not None:
        try:
            body = decompressed(body, encoding, 2**16)
        except PermanentError:
            return ""
    return shown(body, config, token)


def shown(body: bytes, config: HttpConfig, token: Token | None) -> str:
    """Return the first `BYTES` bytes of *body* as printable text without secrets, or "" if a secret cannot be read."""
    try:
        text = redact(body.decode("utf-8", "replace"), *_secrets(config, token))
    except ConfigError:
        return ""
    text = text.encode()[:BYTES].decode("utf-8", "ignore")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _secrets(config: HttpConfig, token: Token | None) -> Iterator[str | None]:
    """Yield the secrets that the request held, because the service may repeat them in its response."""
    for pair in (*config.pairs, *config.param_pairs, *config.form_pairs):
        if isinstance(pair[1], Secret) or holds_credential(pair):
            if not fresh(pair[1]):
                raise ConfigError("the secret that the request held is no longer known")
            secret = reveal(pair[1])
            yield secret
            yield (secret or "").partition(" ")[2]  # the credential after a scheme such as `Bearer`
    if config.bearer is not None:
        if not fresh(config.bearer):
            raise ConfigError("the secret that the request held is no longer known")
        yield reveal(config.bearer)
    yield reveal(config.proxy_auth)
    if isinstance(config.oauth, OAuth):
        yield reveal(config.oauth.client_secret)
    if token is not None:
        yield token.header().partition(" ")[2]
