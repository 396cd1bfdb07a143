"""Documents as bytes: undo their compression, and cut the text of one field out of JSON."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType, ValidationError

from enrichkit.errors import PermanentError

__all__ = ["ABSENT", "Path", "decompressed", "too_large"]

ABSENT: Any = UNSET
"""Stands for a value that an answer does not hold. None is a null that it does hold."""


def decompressed(body: bytes, encoding: str | None, limit: int) -> bytes:
    """
    Return *body* without its Content-Encoding: `gzip`, `deflate` or none.

    Not left to the client: clients were seen to accept half a gzip stream, and to unpack any amount.

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


def too_large(limit: int) -> PermanentError:
    """The error for an answer of more than *limit* bytes."""
    return PermanentError(
        f"The answer is too large: it has more than {limit:,} bytes. Raise HttpConfig.max_bytes if it may."
    )


class Path:
    """
    The place of one field in a JSON document.

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
        # One pass that builds nothing but the steps on the way; all other fields are skipped.
        self._decoder = msgspec.json.Decoder(step)

    def find(self, document: bytes) -> Any:
        """Return the JSON text at the path, or `ABSENT` when a field is absent or a null stands in the way."""
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
