"""Documents as bytes: decompression, and the JSON text of one field."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType, ValidationError

from enrichkit.errors import PermanentError
from enrichkit.plugin import Absent

__all__ = ["ABSENT", "TOO_LARGE", "Path", "decompressed", "too_large"]

TOO_LARGE = "The answer is too large"
"""The beginning of the error for a response with more bytes than it may have."""

ABSENT: Any = UNSET
"""Marker for a value that a response does not hold. None stands for a null in the response."""


def decompressed(body: bytes, encoding: str | None, limit: int) -> bytes:
    """
    Return *body* without its Content-Encoding: `gzip`, `deflate` or none.

    The connector does this itself, because HTTP clients were seen to accept half a gzip stream, and to decompress any
    number of bytes.

    Raises:
        PermanentError: The encoding is another one, the stream is not whole, or it holds more than *limit* bytes.
    """
    match (encoding or "identity").strip().lower():
        case "identity":
            return body
        case "gzip" | "x-gzip":
            window = zlib.MAX_WBITS | 16
        case "deflate":
            window = zlib.MAX_WBITS
        case _:
            raise PermanentError(
                "The answer has another Content-Encoding than gzip, deflate and identity, which are those that can be "
                "undone. Leave Accept-Encoding out of HttpConfig.headers, or make it 'gzip'."
            )
    stream = zlib.decompressobj(window)
    try:
        plain = stream.decompress(body, limit + 1)
    except zlib.error:
        raise PermanentError(
            "The answer is not the compressed stream that its Content-Encoding names; it was not used."
        ) from None
    if len(plain) > limit:
        raise too_large(limit)
    if not stream.eof or stream.unused_data:
        raise PermanentError("The compressed answer is cut off, or something follows it; it was not used.")
    return plain


def too_large(limit: int, *, pages: bool = False) -> PermanentError:
    """Return the error for a response of more than *limit* bytes; *pages*: for the pages of an answer together."""
    together = "its pages have together" if pages else "it has"
    return PermanentError(f"{TOO_LARGE}: {together} more than {limit:,} bytes. Raise HttpConfig.max_bytes if it may.")


class Path:
    """
    The path to one field in a JSON document.

    >>> Path("data.profile").find(b'{"data": {"profile": {"name": "Ada"}}}')
    b'{"name": "Ada"}'
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._names = path.split(".")
        inner: Any = Raw | UnsetType
        for name in reversed(self._names):
            step = msgspec.defstruct("Step", [("next", inner, UNSET)], rename={"next": name})
            inner = step | UnsetType | None
        # One pass over the document; the decoder makes an object for each step of the path, and skips all other fields.
        self._decoder = msgspec.json.Decoder(step)

    def find(self, document: bytes) -> Any:
        """Return the JSON text at the path, or `ABSENT` when a field on the path is absent or null."""
        try:
            node: Any = self._decoder.decode(document)
        except ValidationError:
            raise PermanentError(
                f"The answer has no object on the way to {self._path!r}, but something else."
            ) from None
        for _ in self._names:
            node = node.next
            if node is None or node is UNSET:
                return ABSENT
        return bytes(node)

    def absent(self, document: bytes) -> Absent:
        """Return the answer for a *document* in which `find` has found nothing."""

        def names() -> list[str] | None:
            node: Any = msgspec.json.decode(document)
            for name in self._names:
                if not isinstance(node, dict):
                    return None
                if name not in node:
                    return list(node)
                node = node[name]
            return None

        return Absent(self._path, names)
