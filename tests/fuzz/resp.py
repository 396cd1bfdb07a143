"""
A reader of RESP, the protocol of Redis, that shares no code with hiredis: the judge of what a server has said.

It is as strict as https://redis.io/docs/latest/develop/reference/protocol-spec/, but where hiredis is lax: neither
looks at the two bytes behind a bulk string. Of RESP3, which the connector does not ask for, sets and attributes are
lists, and big numbers are their digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

__all__ = ["Other", "Replies", "UnreadableError", "bulk"]

_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")
_DIGITS = re.compile(rb"[+-]?[0-9]+")
_COUNT = re.compile(rb"[0-9]{1,9}")
_AGGREGATES = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}
_DEEPEST = 200


class UnreadableError(Exception):
    """The bytes are not RESP, or end inside a reply."""


@dataclass(frozen=True)
class Other:
    """A reply that is never a value: an error, a map, a push, a boolean or a double."""

    kind: bytes
    content: Any


class Replies:
    """
    The replies in *data*.

    Attributes:
        whole: The replies that can be read: bytes, int, None, lists of these, and `Other`.
        rest: The bytes behind them, which are not RESP or the beginning of a reply.
        spans: Where each reply begins and ends, those inside other replies included.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.whole: list[Any] = []
        self.spans: list[tuple[int, int]] = []
        at = 0
        while at < len(data):
            try:
                reply, at = self._read(at, 0)
            except UnreadableError:
                break
            self.whole.append(reply)
        self.rest = data[at:]

    def _read(self, at: int, depth: int) -> tuple[Any, int]:
        kind, line, end = self._data[at : at + 1], *self._line(at + 1)
        if depth > _DEEPEST:
            raise UnreadableError
        reply: Any
        if kind in (b"$", b"=", b"!"):
            reply, end = self._string(kind, line, end)
        elif kind in _AGGREGATES:
            reply, end = self._aggregate(kind, line, end, depth)
        else:
            reply = _plain(kind, line)
        self.spans.append((at, end))
        return reply, end

    def _line(self, at: int) -> tuple[bytes, int]:
        end = self._data.find(b"\r\n", at)
        if end < 0:
            raise UnreadableError
        return self._data[at:end], end + 2

    def _string(self, kind: bytes, line: bytes, at: int) -> tuple[Any, int]:
        if line == b"-1":
            return None, at
        end = at + _count(line)
        if end + 2 > len(self._data):
            raise UnreadableError
        text = self._data[at:end]
        if kind == b"=":
            if text[3:4] != b":":
                raise UnreadableError
            text = text[4:]
        return (Other(kind, text) if kind == b"!" else text), end + 2

    def _aggregate(self, kind: bytes, line: bytes, at: int, depth: int) -> tuple[Any, int]:
        if line == b"-1":
            return None, at
        parts = []
        for _ in range(_AGGREGATES[kind] * _count(line)):
            part, at = self._read(at, depth + 1)
            parts.append(part)
        return (parts if kind in (b"*", b"~", b"|") else Other(kind, parts)), at


def _count(line: bytes) -> int:
    if not _COUNT.fullmatch(line):
        raise UnreadableError
    return int(line)


def _plain(kind: bytes, line: bytes) -> Any:
    """Return the reply of one line."""
    if kind == b"+" or (kind == b"(" and _DIGITS.fullmatch(line)):
        return line
    if kind == b":":
        if not _NUMBER.fullmatch(line):
            raise UnreadableError
        return int(line)
    if kind == b"_" and not line:
        return None
    if kind in (b"-", b",") or (kind == b"#" and line in (b"t", b"f")):
        return Other(kind, line)
    raise UnreadableError


def bulk(text: bytes) -> bytes:
    """Return *text* as a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(text), text)
