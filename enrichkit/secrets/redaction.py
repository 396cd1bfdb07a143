"""The redaction of texts that may hold a secret."""

from __future__ import annotations

import re

__all__ = ["redact"]

# The pattern matches up to the last @ of a word, because a password that is not percent-encoded may hold an @ or a
# slash.
_USERINFO = re.compile(r"(?<=://)(?:[^/\s]+|[^/\s:]*:[^\s]+)(?=@)")
_PAIR = re.compile(
    r"((?:password|passwd|pwd|secret|token|api[-_]?key|authorization)[\"']?\s*[=:]\s*)"
    r"(?:\"[^\"]*\"?|'[^']*'?|(?:(?:bearer|basic)\s+)?(?!Secret\.)[^\s&,;\"']+)",
    re.IGNORECASE,
)


def redact(text: str, *known: str | None) -> str:
    """
    Return *text* with `***` in place of passwords of URLs, the values of password-like settings and *known* secrets.

    >>> redact("redis://app:pw@cache:6379 refused password=pw and the token 5ecret", "5ecret")
    'redis://***@cache:6379 refused password=*** and the token ***'
    """
    # The longest secret is replaced first, because one secret may be the beginning of another.
    for secret in sorted(filter(None, known), key=len, reverse=True):
        text = text.replace(secret, "***")
    return _PAIR.sub(r"\1***", _USERINFO.sub("***", text))
