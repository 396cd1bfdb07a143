"""
The named values of a request: the parameters of the query and the fields of a form.

Each value holds at most one part of the key. With two parts in one value, two keys could give the same text, because
the service decodes the value: with a colon in between, the parts `a:b` and `c` would become `a:b:c`, and so would the
parts `a` and `b:c`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote, quote_plus

from enrichkit.errors import ConfigError
from enrichkit.plugin import Secret

from .template import Piece, pieces_of, text_of

__all__ = ["Form", "Named", "check_one_part", "named_values", "pairs_of", "with_params"]

Named: TypeAlias = tuple[str, str | Secret]
"""A name and its value. The value is a secret, or text that may hold a placeholder for a part of the key."""


def pairs_of(field: str, values: Any, example: str) -> tuple[tuple[Any, Any], ...]:
    """Return *values*, a mapping or pairs, as a tuple of pairs; *field* and *example* are for an error message."""
    try:
        return tuple((name, value) for name, value in (values.items() if isinstance(values, Mapping) else values))
    except (TypeError, ValueError):
        raise ConfigError(
            f"HttpConfig.{field} is a {type(values).__name__} that holds no pairs; it must be a mapping of names to "
            f"texts or secrets. Write {example}."
        ) from None


def named_values(field: str, values: Any) -> tuple[Named, ...]:
    """
    Check *values*, which are a mapping or pairs, and return them as a tuple of pairs.

    Raises:
        ConfigError: A name is not text, is empty, occurs twice, or holds a placeholder; a value is neither text nor a
            `Secret`, holds a brace that belongs to no placeholder, or has placeholders for two parts of the key.
    """
    pairs = pairs_of(field, values, "{'id': '{0}'}")
    seen = set()
    for name, value in pairs:
        if not isinstance(name, str) or not name or "{" in name or not _encodable(name):
            raise ConfigError(
                f"HttpConfig.{field} has the name {name!r}; a name is text that is not empty and holds no '{{': a key "
                "may be a value, not a name. Write {'id': '{0}'}."
            )
        if name in seen:
            raise ConfigError(f"HttpConfig.{field} names {name!r} twice; each name may be given once. Leave one out.")
        seen.add(name)
        if isinstance(value, Secret):
            continue
        if not isinstance(value, str) or not _encodable(value):
            raise ConfigError(
                f"HttpConfig.{field} gives {name!r} a {type(value).__name__} that is no text; a value is text, in "
                "which {0} stands for the first key column, or a Secret. Write '{0}', or Secret.env('NAME')."
            )
        check_one_part(field, name, value)
    return pairs


def check_one_part(field: str, name: str, value: str) -> None:
    """Raise `ConfigError` if *value* has a brace outside a placeholder, or placeholders for two parts of the key."""
    try:
        numbers = {piece for piece in pieces_of(value, field) if isinstance(piece, int)}
    except ConfigError:  # this error is replaced, because its text shows a part of the value, which may be a credential
        raise ConfigError(
            f"HttpConfig.{field} gives {name!r} a value with braces in which no number stands; only {{}} and the "
            "numbers {0}, {1}, ... of the key columns may. Write {0} for the first key column, or refer to a value "
            "that has braces of its own by a Secret."
        ) from None
    if len(numbers) > 1:
        raise ConfigError(
            f"HttpConfig.{field} gives {name!r} a value with {len(numbers)} parts of the key; one value holds at most "
            "one, or two keys could ask the same. Give each part a name of its own."
        )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # *text* holds half of a surrogate pair
        return False
    return True


def with_params(url: str, pairs: Sequence[Named]) -> str:
    """
    Return the template *url* with the parameters *pairs* in its query, without the parameters that are secrets.

    >>> with_params("https://api.example/{}?v=2", [("id", "user:{1}"), ("a b", "x&y")])
    'https://api.example/{0}?v=2&id=user%3A{1}&a%20b=x%26y'
    """
    added = [
        f"{quote(name, safe='')}={_numbered(pieces_of(value, 'params'), quoted=True)}"
        for name, value in pairs
        if isinstance(value, str)
    ]
    if not added:
        return url
    sign = "?" if "?" not in url else "" if url.endswith(("?", "&")) else "&"
    return _numbered(pieces_of(url, "HttpConfig.url")) + sign + "&".join(added)


def _numbered(pieces: Sequence[Piece], *, quoted: bool = False) -> str:
    """Return *pieces* joined to one template text, in which each placeholder is written with its number, as `{0}`."""
    return "".join(
        [f"{{{piece}}}" if isinstance(piece, int) else quote(piece, safe="") if quoted else piece for piece in pieces]
    )


class Form:
    """
    A template of a form (`application/x-www-form-urlencoded`), without those of its fields that are secrets.

    Attributes:
        numbers: Numbers of the key parts that the template uses.
    """

    def __init__(self, pairs: Sequence[Named]) -> None:
        self._fields: list[tuple[str, list[Piece]]] = [
            (
                quote_plus(name),
                [piece if isinstance(piece, int) else quote_plus(piece) for piece in pieces_of(value, "form")],
            )
            for name, value in pairs
            if isinstance(value, str)
        ]
        self.numbers = {piece for _, pieces in self._fields for piece in pieces if isinstance(piece, int)}

    def fill(self, parts: Sequence[Any]) -> bytes:
        """
        Return the form for the *parts* of a key, each of which `text_of` has accepted.

        >>> Form([("id", "user:{0}"), ("v", "2")]).fill(["a b&c"])
        b'id=user%3Aa+b%26c&v=2'
        """
        quoted = [quote_plus(text_of(part)) for part in parts]
        return "&".join(
            [
                f"{name}={''.join([piece if isinstance(piece, str) else quoted[piece] for piece in pieces])}"
                for name, pieces in self._fields
            ]
        ).encode()
