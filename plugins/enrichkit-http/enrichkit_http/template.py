"""
The templates of a request: the address and the JSON body, in which a key is always data and never syntax.

A key enters an address as percent-encoded text (RFC 3986, section 2: all characters but letters, digits and `-._~` are
encoded). One trap remains: the segments `.` and `..` are not encoded, and a URL parser resolves them, even if they are
written `%2e%2e` (WHATWG URL, "double-dot path segment"). So this module refuses a filled segment that is empty, `.` or
`..`, before the client sees the address. A JSON encoder writes a key into a body, so the key cannot change the
structure of the body.
"""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import msgspec

from enrichkit.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "KEY_TYPES",
    "MAX_KEY_BYTES",
    "Body",
    "Piece",
    "RejectedKeyError",
    "Url",
    "check_separated",
    "pieces_of",
    "text_of",
]

Piece: TypeAlias = str | int
"""Literal text, or the number of the key part that replaces a placeholder."""

KEY_TYPES = (str, int, Decimal, date, datetime)
MAX_KEY_BYTES = 4096

_BRACES = re.compile(r"\{[^{}]*\}|[{}]")
_PLACEHOLDER = re.compile(r"\{([0-9]{0,2})\}")
_UNRESERVED = re.compile(r"[A-Za-z0-9_.~-]*").fullmatch
# Matches a literal text that cannot separate two placeholders: an encoded value can hold all characters of this text,
# too, so the text does not show where the first value ends. The quote cannot separate values, either, because the
# client sends a quote in a query as %27, and an encoded value can hold %27.
_SEPARATES_NOTHING = re.compile(r"[A-Za-z0-9_.~%'-]*").fullmatch
_NO_SEGMENT = ("", ".", "..")


class RejectedKeyError(ValueError):
    """The key cannot be written into a request. The text of the error does not show the key."""


def text_of(part: Any) -> str:
    """
    Return a key part as text, which is the same in addresses, in bodies and in the field names of a bulk response.

    Raises:
        RejectedKeyError: The part has no text that can be sent, or its text is too long.

    >>> text_of(7), text_of(date(2024, 2, 29)), text_of(Decimal("1.50"))
    ('7', '2024-02-29', '1.50')
    """
    text = part if type(part) is str else _formatted(part)
    if not text.isascii() or len(text) > MAX_KEY_BYTES:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise RejectedKeyError(
                "The key holds half of a surrogate pair, which has no UTF-8 form. Repair the key column."
            ) from None
        if size > MAX_KEY_BYTES:
            raise RejectedKeyError(
                f"The key has {size:,} bytes; an HTTP source takes at most {MAX_KEY_BYTES:,}. Shorten the key column."
            )
    return text


def _formatted(part: Any) -> str:
    if isinstance(part, bool) or not isinstance(part, KEY_TYPES):
        raise RejectedKeyError(
            f"The key holds a {type(part).__name__}, which has more than one text; a key of an HTTP source must be "
            "a string, integer, decimal, date or timestamp. Cast the column to string."
        )
    if isinstance(part, Decimal):
        return format(part, "f")
    return part.isoformat() if isinstance(part, date) else str(part)


def pieces_of(text: str, field: str) -> list[Piece]:
    """
    Split the template *text* into literal texts and the numbers of key parts; errors call the template *field*.

    >>> pieces_of("/a/{}/b-{}", "HttpConfig.url")
    ['/a/', 0, '/b-', 1]
    """
    pieces: list[Piece | None] = []
    end = 0
    for match in _BRACES.finditer(text):
        placeholder = _PLACEHOLDER.fullmatch(match[0])
        if placeholder is None:
            raise ConfigError(
                f"{field} holds {match[0]!r}; only {{}} and the numbers {{0}}, {{1}}, ... of the key columns may stand "
                "in braces. Write {0} for the first key column."
            )
        pieces += [text[end : match.start()], int(placeholder[1]) if placeholder[1] else None]
        end = match.end()
    pieces.append(text[end:])
    return [piece for piece in _numbered(pieces, field) if piece != ""]


def _numbered(pieces: Sequence[Any], field: str) -> list[Any]:
    """Return *pieces* with each None, which stands for `{}`, replaced by the next number, as in `str.format`."""
    automatic = [index for index, piece in enumerate(pieces) if piece is None]
    if automatic and any(isinstance(piece, int) for piece in pieces):
        raise ConfigError(
            f"{field} mixes {{}} with numbers in braces; use one kind. Write {{0}}, {{1}}, ... throughout."
        )
    numbers = {index: number for number, index in enumerate(automatic)}
    return [numbers.get(index, piece) for index, piece in enumerate(pieces)]


def check_separated(url: str) -> None:
    """Raise `ConfigError` if nothing between two placeholders of *url* marks where the value of the first one ends."""
    previous: int | None = None
    between = ""
    for piece in pieces_of(url, "HttpConfig.url"):
        if isinstance(piece, str):
            between = piece
            continue
        if previous not in (None, piece) and _SEPARATES_NOTHING(between):
            raise ConfigError(
                f"HttpConfig.url has {repr(between) if between else 'nothing'} between {{{previous}}} and {{{piece}}}, "
                "which a key may hold too, so that two keys could ask the same; there must be one of "
                f":/?[]@!$&()*+,;= there. Write '{{{previous}}}/{{{piece}}}', or join the columns to one."
            )
        previous, between = piece, ""


class Url:
    """
    A template of an address, with parts of a key in path segments and in values of the query.

    Attributes:
        numbers: Numbers of the key parts that the template uses.
    """

    def __init__(self, template: str) -> None:
        self._pieces = pieces_of(template, "HttpConfig.url")
        self.numbers = {piece for piece in self._pieces if isinstance(piece, int)}
        segments: list[list[Piece]] = [[]]
        for piece in pieces_of(template.partition("?")[0], "HttpConfig.url"):
            if isinstance(piece, int):
                segments[-1].append(piece)
            else:
                first, *others = piece.split("/")
                segments[-1].append(first)
                segments += [[other] for other in others]
        # The segments that `fill` checks: a key `..` would lead to another path. In a query such a key does no harm.
        self._segments = [segment for segment in segments if any(isinstance(piece, int) for piece in segment)]
        # Filling takes a tenth of the Python time of a lookup. So templates with one placeholder, which are nearly all
        # templates, have a fast path.
        before, _, after = _PLACEHOLDER.sub("\0", template).partition("\0")
        self._around = None if "\0" in after or self.numbers != {0} else (before, after)

    def fill(self, texts: Sequence[str]) -> str:
        """
        Return the address for a key; *texts* are the texts of its parts.

        Raises:
            RejectedKeyError: A path segment would be empty, `.` or `..`.

        >>> Url("http://api.example/u/{0}?in={1}").fill(("a/../b", "x&y"))
        'http://api.example/u/a%2F..%2Fb?in=x%26y'
        """
        if self._around is not None and texts[0].strip("."):
            text = texts[0]
            return f"{self._around[0]}{text if _UNRESERVED(text) else quote(text, safe='')}{self._around[1]}"
        quoted = [text if _UNRESERVED(text) else quote(text, safe="") for text in texts]
        for segment in self._segments:
            if _joined(segment, quoted).lower().replace("%2e", ".") in _NO_SEGMENT:
                raise RejectedKeyError(
                    "The key makes a path segment of the address empty, '.' or '..', which names another resource; "
                    "such a key is never sent. Put the key into the query instead, as in '?id={0}'."
                )
        return _joined(self._pieces, quoted)


def _joined(pieces: Sequence[Piece], quoted: Sequence[str]) -> str:
    return "".join([piece if isinstance(piece, str) else quoted[piece] for piece in pieces])


class Body:
    """
    A template of a JSON body. The parts of a key replace strings that consist of a placeholder only.

    Attributes:
        numbers: Numbers of the key parts that the template uses.
    """

    def __init__(self, template: str) -> None:
        self._pieces = _numbered(list(_pieces_of_json(json.loads(template))), "HttpConfig.body")
        self.numbers = {piece for piece in self._pieces if isinstance(piece, int)}

    def fill(self, parts: Sequence[Any]) -> bytes:
        """
        Return the body for the *parts* of a key, each of which `text_of` has accepted. With `bulk` the only part is a
        list of keys.

        >>> Body('{"id": "{}", "deep": [true]}').fill(['"}, "admin": true'])
        b'{"id":"\\\\"}, \\\\"admin\\\\": true","deep":[true]}'
        """
        encoded = [
            msgspec.json.encode(list(map(_as_json, part)) if isinstance(part, list) else _as_json(part))
            for part in parts
        ]
        return b"".join([encoded[piece] if isinstance(piece, int) else piece for piece in self._pieces])


def _as_json(part: Any) -> Any:
    """Return a key part for a body: a str or an int unchanged, a part of another type as text."""
    return part if type(part) is str or type(part) is int else text_of(part)


def _pieces_of_json(node: Any) -> Iterator[bytes | int | None]:
    """Yield the JSON text of *node* in pieces: a placeholder as the number of its key part, and `{}` as None."""
    if isinstance(node, dict):
        yield from _pieces_of_object(node)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield b"," if index else b"["
            yield from _pieces_of_json(value)
        yield b"]" if node else b"[]"
    elif isinstance(node, str) and (placeholder := _PLACEHOLDER.search(node)):
        if placeholder[0] != node:
            raise ConfigError(
                f"HttpConfig.body holds {placeholder[0]} inside a longer string; a placeholder must be a whole JSON "
                'string, so that the key is encoded and not pasted. Write {"id": "{0}"} and build longer texts in the '
                "key."
            )
        yield int(placeholder[1]) if placeholder[1] else None
    else:
        yield msgspec.json.encode(node)


def _pieces_of_object(node: dict[str, Any]) -> Iterator[bytes | int | None]:
    for index, (name, value) in enumerate(node.items()):
        if _PLACEHOLDER.search(name):
            raise ConfigError(
                f"HttpConfig.body has a field named {name!r}; a key may be a value, not a name. "
                'Write {"id": "{0}"}, with the placeholder after the colon.'
            )
        yield (b"," if index else b"{") + msgspec.json.encode(name) + b":"
        yield from _pieces_of_json(value)
    yield b"}" if node else b"{}"
