"""
Functions for the bytes of a response: decompression, conversion to UTF-8, and extraction of one field as JSON text.
"""

from __future__ import annotations

import codecs
import zlib
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType, ValidationError

from enrichkit.errors import PermanentError
from enrichkit.plugin import Absent

__all__ = ["ABSENT", "TOO_LARGE", "Path", "as_utf8", "decompressed", "encoding_of", "too_large"]

TOO_LARGE = "The answer is too large"
"""
The beginning of the error message for a response with more bytes than allowed. `Pages` recognizes the error by this
text.
"""

ABSENT: Any = UNSET
"""Marker for a value that a response does not hold. None stands for a null in the response."""


_MARKS = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
          codecs.BOM_UTF16_BE: "utf-16"}  # fmt: skip
"""
Encodings by byte order mark, without UTF-8. The marks of UTF-32 are compared first, because one of them begins with a
mark of UTF-16.
"""


def encoding_of(body: bytes, charset: str | None) -> str:
    """
    Return the encoding of the text *body*: the declared *charset*, or else the encoding that its byte order mark shows,
    or else UTF-8.
    """
    if charset is not None or body[:1] not in (b"\xff", b"\xfe", b"\0"):
        return charset or "utf-8"
    return next((name for mark, name in _MARKS.items() if body.startswith(mark)), "utf-8")


def as_utf8(body: bytes, charset: str | None) -> bytes:
    """
    Return the JSON text *body* in UTF-8, without a byte order mark.

    RFC 8259 (section 8.1) requires JSON to be UTF-8. If the service declares another *charset* nevertheless, *body* is
    decoded by that charset.

    Raises:
        PermanentError: The body is not text in its encoding, or Python does not know the charset.
    """
    encoding = encoding_of(body, charset)
    try:
        if codecs.lookup(encoding).name == "utf-8":
            return body.removeprefix(codecs.BOM_UTF8)
        return body.decode(encoding).removeprefix("\ufeff").encode()
    except (UnicodeError, LookupError):
        why = "that its Content-Type names" if charset else "of its byte order mark"
        raise PermanentError(
            f"The answer of {len(body):,} bytes is not text in the charset {encoding!r} {why}."
        ) from None


def decompressed(body: bytes, encoding: str | None, limit: int) -> bytes:
    """
    Return *body* decompressed; its Content-Encoding may be `gzip`, `deflate` or none.

    The connector decompresses bodies itself, because some HTTP clients accept a truncated gzip stream, or set no limit
    to the number of decompressed bytes.

    Raises:
        PermanentError: The encoding is not supported, the stream is not whole, or it holds more than *limit* bytes.
    """
    if not body:
        return body  # some services name a Content-Encoding even for an empty body
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
    if window == zlib.MAX_WBITS and not _begins_as_zlib(body):
        window = -zlib.MAX_WBITS  # some services send "deflate" without the zlib header (RFC 9110, 8.4.1.2)
    members: list[bytes] = []
    rest, room = body, limit + 1
    while rest or not members:
        stream = zlib.decompressobj(window)
        try:
            plain = stream.decompress(rest, room)
        except zlib.error:
            raise PermanentError(
                "The answer is not the compressed stream that its Content-Encoding names; it was not used."
            ) from None
        members.append(plain)
        room -= len(plain)
        if room <= 0:
            raise too_large(limit)
        rest = stream.unused_data
        # A gzip stream may have several members (RFC 1952, 2.2). Any other data after a stream is an error.
        if not stream.eof or (rest and not (window > zlib.MAX_WBITS and rest.startswith(_GZIP))):
            raise PermanentError("The compressed answer is cut off, or something follows it; it was not used.")
    return b"".join(members)


_GZIP = b"\x1f\x8b"


def _begins_as_zlib(body: bytes) -> bool:
    """Return whether *body* begins with a zlib header (RFC 1950, 2.2), or is too short to tell."""
    return len(body) < 2 or (body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0)


def too_large(limit: int, *, pages: bool = False) -> PermanentError:
    """
    Return the error for a response with more than *limit* bytes. If *pages* is True, return the error for an answer
    whose pages together have more than *limit* bytes.
    """
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
        # The decoder reads a document once, makes an object for each step of the path, and skips all other fields.
        self._decoder = msgspec.json.Decoder(step)

    def find(self, document: bytes) -> Any:
        """
        Return the JSON text at the path. Return `ABSENT` if the last field of the path is absent, or if an earlier
        field of the path is absent or null.
        """
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
        """Return the `Absent`, a kind of miss, for a *document* in which `find` found no value."""

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
