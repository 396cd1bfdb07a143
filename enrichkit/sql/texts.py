"""Helpers that the plugins share: check texts as UTF-8, check and write UUIDs, quote names, wrap queries."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["are_utf8", "are_uuids", "quote", "subquery", "uuid_text"]

_UUID = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}")


def are_utf8(texts: Sequence[str]) -> bool:
    """
    Return whether all *texts* can be encoded as UTF-8; a text with half of a surrogate pair cannot.

    >>> are_utf8(["a", "ü"]), are_utf8(["a", chr(0xD800)])
    (True, False)
    """
    # One scan of the joined texts, in C, is enough, because two lone surrogates do not become one character when their
    # texts are joined.
    joined = "".join(texts)
    if joined.isascii():
        return True
    try:
        joined.encode()
    except UnicodeEncodeError:
        return False
    return True


def are_uuids(texts: Sequence[str]) -> bool:
    """
    Return whether each of *texts* is a UUID: 32 hexadecimal digits, with or without hyphens in the usual places.

    >>> are_uuids(["00000000-0000-0000-0000-00000000000A"]), are_uuids(["A"])
    (True, False)
    """
    return all(map(_UUID.fullmatch, texts))


def uuid_text(text: str) -> str:
    """
    Return the UUID *text* in the spelling of a database: lower case, with hyphens.

    >>> uuid_text("0000000000000000000000000000000A")
    '00000000-0000-0000-0000-00000000000a'
    """
    digits = text.replace("-", "").lower()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def quote(name: str) -> str:
    """
    Return *name* as a quoted identifier of standard SQL; no character in *name* can end the identifier.

    >>> quote('we"ird')
    '"we""ird"'
    """
    return '"' + name.replace('"', '""') + '"'


def subquery(query: str) -> str:
    """
    Return the user's *query*, put in parentheses. The parentheses make it a subquery, for which the server accepts only
    a single SELECT.

    If the last line of *query* ends with a comment, the line break before the closing parenthesis ends this comment.

    >>> subquery("SELECT 1; -- one")
    '(\\nSELECT 1; -- one\\n)'
    >>> subquery("SELECT 1 ; ")
    '(\\nSELECT 1 \\n)'
    """
    return f"(\n{query.rstrip().rstrip(';')}\n)"
