"""
The prompt of a request: a text made from a template with placeholders for the key columns, and the images sent with it.
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from string import Formatter
from typing import Any

from enrichkit.errors import ConfigError, PermanentError

__all__ = ["KEY_TYPES", "Prompt", "is_sendable", "numbered", "text_of"]

KEY_TYPES = (str, int, float, bool, Decimal, dt.date, dt.datetime, bytes)
_KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif"}


class Prompt:
    """
    A template of a prompt, with placeholders for the parts of a key.

    Args:
        template: Text with `{0}` or `{name}`.
        images: Numbers or names of the parts that are images.
        owner: Name of the config, for messages.

    Attributes:
        parts: Number of parts of the key.
        names: The names in the template and *images*, in the order of their first use; empty if numbers are used.

    Raises:
        ConfigError: The template has wrong braces or no placeholder, mixes numbers and names, or skips the number of a
            part.
    """

    def __init__(self, template: Any, images: Sequence[int | str] = (), owner: str = "ChatConfig") -> None:
        found = _pieces(template, owner)
        names = list(dict.fromkeys([*(name for _, name in found if name is not None), *map(str, images)]))
        if not names:
            raise ConfigError(
                f"{owner}.prompt holds no placeholder, so every key would ask the same. Write '{{0}}' where the key "
                "goes."
            )
        numbered = [name.isdecimal() for name in names]
        if any(numbered) and not all(numbered):
            raise ConfigError(f"{owner}.prompt mixes numbers and names of key columns; use one of them throughout.")
        places = {name: int(name) if all(numbered) else place for place, name in enumerate(names)}
        if sorted(places.values()) != list(range(len(places))):
            raise ConfigError(
                f"{owner}.prompt uses the key columns {sorted(places.values())}; each from 0 on must be used, or keys "
                f"that differ would ask the same. Use {{0}} to {{{len(places) - 1}}}."
            )
        self.parts = len(places)
        self.names = () if all(numbered) else tuple(names)
        self._images = [places[str(each)] for each in images]
        self._pieces = [
            (text, None if name is None or places[name] in self._images else places[name]) for text, name in found
        ]

    def text(self, parts: Sequence[Any]) -> str:
        """
        Return the text for the *parts* of a key; raises `PermanentError` if a part of the text holds bytes or half of a
        surrogate pair.
        """
        return "".join([text + ("" if place is None else text_of(parts[place])) for text, place in self._pieces])

    def images(self, parts: Sequence[Any]) -> list[str]:
        """Return the addresses of the images: the address in the key, or a `data:` address with the key's bytes."""
        return [_address(parts[place]) for place in self._images]


def numbered(template: str, images: Sequence[int | str], columns: Sequence[str | None], owner: str) -> dict[str, Any]:
    """
    Return the fields `prompt` and `images` with each name replaced by the number of its key column.

    A name stands for the column of the same name, or else for a column whose name differs only in case. Columns without
    a name get the remaining names, in the order of their first use in *template*, and then in *images*.

    Raises:
        ConfigError: A column has a name that neither the template nor *images* has, or that another column has, too.
    """
    left = list(Prompt(template, images, owner).names)
    if not left:
        return {"prompt": template, "images": tuple(images)}
    names, places = tuple(left), {}
    for place, column in enumerate(columns):
        if column is not None:
            same = [column] if column in left else [name for name in left if name.lower() == column.lower()]
            if not same:
                raise ConfigError(
                    f"{owner}.prompt and images name the key columns {', '.join(map(repr, names))}, and the key column "
                    f"{place} is {column!r}, which is none of them or comes twice. Use the names of the key columns in "
                    "the prompt, or rename the column with .alias()."
                )
            left.remove(same[0])
            places[same[0]] = place
    unnamed = [place for place, column in enumerate(columns) if column is None]
    places.update(zip(left, unnamed, strict=True))
    texts = [
        text.replace("{", "{{").replace("}", "}}") + ("" if name is None else f"{{{places[name]}}}")
        for text, name in _pieces(template, owner)
    ]
    return {"prompt": "".join(texts), "images": tuple(places[str(each)] for each in images)}


def _pieces(template: Any, owner: str) -> list[tuple[str, str | None]]:
    """Return the texts of the template, each with the name of the placeholder that follows it, or None."""
    problem = f"is a {type(template).__name__}"
    if isinstance(template, str):
        problem = "has a brace that is no placeholder"
        try:
            found = [(text, name, spec, how) for text, name, spec, how in Formatter().parse(template)]
        except ValueError:
            found = []
        plain = all(name is None or ((name.isdecimal() or name.isidentifier()) and not spec and not how)
                    for _, name, spec, how in found)  # fmt: skip
        if found and plain:
            return [(text, name) for text, name, _, _ in found]
    raise ConfigError(
        f"{owner}.prompt {problem}; it must be text, in which {{0}} or {{name}} stands for a key column and {{{{ for a "
        "brace. Write 'Is this positive? {0}'."
    )


def text_of(part: Any) -> str:
    """Return the text of one part of a key."""
    if isinstance(part, str):
        if not is_sendable(part):
            raise PermanentError("A text of the key holds half of a surrogate pair, which no UTF-8 can carry.")
        return part
    if isinstance(part, bytes | bytearray | memoryview):
        raise PermanentError(
            "A key column of the prompt holds bytes. Name it in images if it is an image, or cast it to a text."
        )
    return part.isoformat() if isinstance(part, dt.date) else str(part)


def is_sendable(text: str) -> bool:
    """Return whether UTF-8 can encode *text*."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _address(part: Any) -> str:
    if isinstance(part, str) and part.startswith(("https://", "http://", "data:image/")):
        return part
    if isinstance(part, bytes | bytearray):
        data = bytes(part)
        kind = next((kind for mark, kind in _KINDS.items() if data.startswith(mark)), None)
        kind = "webp" if kind is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP" else kind
        if kind is not None:
            return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    raise PermanentError(
        "An image is neither the bytes of a PNG, JPEG, GIF or WebP file nor an address that starts with 'https://'."
    )
