"""The headers of a request: the checks of headers, and the templates of headers that hold a part of the key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from enrichkit.errors import ConfigError
from enrichkit.plugin import Secret

from .fields import Named, check_one_part, pairs_of
from .template import Piece, RejectedKeyError, pieces_of

if TYPE_CHECKING:
    from .config import HttpConfig

__all__ = [
    "FRAMING",
    "HeaderTemplates",
    "check_bearer",
    "check_header_value",
    "fixed",
    "header_pairs",
    "holds_credential",
    "is_header",
]

# RFC 9110, sections 5.6.2 and 5.5: a name is a token; a value is visible ASCII, and does not begin or end with a blank.
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+").fullmatch
_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?").fullmatch
_CREDENTIAL = re.compile(r"auth|cookie|token|secret|password|key|signature|session", re.IGNORECASE).search

# Headers that only the HTTP client may set. They delimit requests, and contradictory ones would allow request
# smuggling.
FRAMING = ("connection", "content-length", "expect", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")


def header_pairs(headers: Any) -> tuple[Named, ...]:
    """Check *headers*, which are a mapping or pairs, and return them as a tuple of pairs; raises `ConfigError`."""
    pairs = pairs_of("headers", headers, "{'X-Api-Key': Secret.env('API_KEY')}")
    seen = set()
    for name, value in pairs:
        if not isinstance(name, str) or not _TOKEN(name):
            raise ConfigError(
                f"HttpConfig.headers has the name {name!r}; a name consists of letters, digits and !#$%&'*+-.^_`|~, "
                "without blanks or a colon. Write 'X-Api-Key'."
            )
        if name.lower() in seen:
            raise ConfigError(
                f"HttpConfig.headers names {name!r} twice; each header may be given once. Join the values by commas."
            )
        if name.lower() in FRAMING:
            raise ConfigError(f"HttpConfig.headers sets {name!r}, which belongs to the HTTP client. Leave it out.")
        if isinstance(value, str):
            _check_text(name, value)
        elif not isinstance(value, Secret):
            raise ConfigError(
                f"HttpConfig.headers gives {name!r} a {type(value).__name__}; a value is text or a Secret. Write "
                "Secret.env('NAME')."
            )
        seen.add(name.lower())
    return pairs


def _check_text(name: str, value: str) -> None:
    if not _has_part(value):
        check_header_value(name, value)
        return
    check_one_part("headers", name, value)
    pieces = pieces_of(value, "headers")
    check_header_value(name, "".join([piece if isinstance(piece, str) else "x" for piece in pieces]))
    if name.lower() == "host":
        raise ConfigError(
            f"HttpConfig.headers puts a part of the key into {name!r}; a key never chooses where the request goes. "
            "Register one source for each host."
        )
    if _CREDENTIAL(name) and len(pieces) > 1:
        raise ConfigError(
            f"HttpConfig.headers joins a part of the key to other text in {name!r}, which looks like a credential; a "
            "key and a credential are never joined. Write '{0}' alone, or a Secret alone."
        )


def _has_part(value: str | Secret) -> bool:
    return isinstance(value, str) and ("{" in value or "}" in value)


def fixed(pairs: Iterable[Named]) -> list[Named]:
    """Return the headers in *pairs* whose values hold no part of the key."""
    return [(name, value) for name, value in pairs if not _has_part(value)]


def check_header_value(name: str, value: str) -> None:
    """
    Raise `ConfigError` for a *value* that the service would not receive unchanged.

    The driver calls this function for each value that is text. A worker calls it again for each value without a
    placeholder, when secrets are resolved.
    """
    if not _VALUE(value):
        raise ConfigError(
            f"HttpConfig.headers gives {name!r} a value with a line break, a control or non-ASCII character, or a "
            "blank at an end; a value is visible ASCII, blanks inside. Take the character out; the value is not shown, "
            "it may be a secret."
        )


def check_bearer(config: HttpConfig) -> None:
    """Raise `ConfigError` if `bearer` is not a `Secret`, or if another field sets the header Authorization, too."""
    if config.bearer is None:
        return
    if not isinstance(config.bearer, Secret):
        raise ConfigError(
            f"HttpConfig.bearer is a {type(config.bearer).__name__}; it must be a Secret, which no plan shows. Write "
            "Secret.env('API_KEY')."
        )
    others = ["oauth"] if config.oauth is not None else []
    others += [f"headers[{name!r}]" for name, _ in config.pairs if name.lower() == "authorization"]
    if others:
        raise ConfigError(
            f"HttpConfig.bearer is given with {others[0]}; a request has one header Authorization. Leave one of them "
            "out."
        )


def is_header(name: Any, value: Any) -> bool:
    """Return whether the service would receive *name* and *value* unchanged as a header."""
    return isinstance(name, str) and isinstance(value, str) and bool(_TOKEN(name) and _VALUE(value))


def holds_credential(header: Named) -> bool:
    """Return whether a header holds a `Secret`, or has a name that looks like that of a credential."""
    name, value = header
    return isinstance(value, Secret) or _CREDENTIAL(name) is not None


class HeaderTemplates:
    """
    The headers that hold a part of the key.

    Attributes:
        numbers: Numbers of the key parts that the headers use.
    """

    def __init__(self, pairs: Iterable[Named]) -> None:
        self._templates: list[tuple[str, list[Piece]]] = [
            (name.lower(), pieces_of(value, "headers"))
            for name, value in pairs
            if isinstance(value, str) and _has_part(value)
        ]
        self.numbers = {piece for _, pieces in self._templates for piece in pieces if isinstance(piece, int)}

    def fill(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """
        Return the headers for a key; *texts* are the texts of its parts.

        Raises:
            RejectedKeyError: A header's value would not arrive unchanged, for example because it holds a line break.

        >>> HeaderTemplates([("X-Tenant", "shop-{0}")]).fill(["7"])
        [('x-tenant', 'shop-7')]
        """
        filled = []
        for name, pieces in self._templates:
            value = "".join([piece if isinstance(piece, str) else texts[piece] for piece in pieces])
            if not _VALUE(value):
                raise RejectedKeyError(
                    f"The key gives the header {name!r} a line break, a control or non-ASCII character, or a blank at "
                    "an end, which would not arrive unchanged; such a key is never sent. Put the key into "
                    "HttpConfig.params instead, where it is percent-encoded."
                )
            filled.append((name, value))
        return filled
