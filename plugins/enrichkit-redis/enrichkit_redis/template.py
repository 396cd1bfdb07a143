"""
The template that turns key columns into the names of Redis keys. The names are unambiguous and of limited length, and
the names of many keys are made together, which is fast.
"""

from __future__ import annotations

import math
import re
import string
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote_to_bytes

from enrichkit.errors import ConfigError, FatalError, PermanentError
from enrichkit.plugin import Failure, Key, Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["MAX_KEY_BYTES", "KeyTemplate", "Name", "RejectedKeyError"]

Name: TypeAlias = str | bytes
"""Name of a key in Redis; a str stands for its UTF-8 bytes."""

MAX_KEY_BYTES = 64 * 1024  # Redis allows 512 MiB, but a key longer than 64 KiB is a mistake or an attack

_READERS: Mapping[type, Callable[[bytes], Any]] = {
    str: bytes.decode,
    bytes: bytes,
    int: lambda text: int(text.decode("ascii")),
    float: lambda text: float(text.decode("ascii")),
    date: lambda text: date.fromisoformat(text.decode("ascii")),
}
"""
Functions that convert a part of a name to a part of a key, by the type of the part. There is no function for Decimal,
because equal Decimals, such as 1 and 1.0, have different names.
"""


class RejectedKeyError(Exception):
    """No name can be made of the key; the text of the error gives the reason."""


class KeyTemplate:
    """
    The template of `RedisConfig.key`.

    Int 1 and str "1" give the same name. A float is written as in Python's `repr` (1.0 is "1.0"), a Decimal without an
    exponent, and a date in ISO 8601. Bytes enter the name as they are. With several key columns, special characters are
    percent-encoded in each part; see `RedisConfig.key`.

    Attributes:
        columns: Number of key columns that the template takes.
        has_brace: Whether the literal text of the template holds an opening brace.

    >>> KeyTemplate("user:{}").names(["a", "b"])
    (['user:a', 'user:b'], {})
    >>> KeyTemplate("{}:{}").names([("a:b", "c"), ("a", "b:c")])
    (['a%3Ab:c', 'a:b%3Ac'], {})
    """

    def __init__(self, template: str) -> None:
        self.template = template
        # The template consists of literals and fields in turn: a literal, a field, a literal, a field, ..., a literal.
        self._literals, self._order = _parse(template)
        self.columns = len(set(self._order))
        if set(self._order) != set(range(self.columns)):
            absent = min(set(range(self.columns)) - set(self._order))
            raise ConfigError(
                f"RedisConfig.key is {template!r}, without a field for key column {absent}; it must "
                "use each one, or two keys would share a name. Number the fields from 0, for example '{0}:{1}'."
            )
        self._format = "".join(
            text.replace("{", "{{").replace("}", "}}") + part
            for text, part in zip(self._literals, [*(f"{{{n}}}" for n in self._order), ""], strict=True)
        ).format
        # If a key has several columns, these characters are percent-encoded in its parts; see RedisConfig.key. So each
        # part ends at the first separator character, and two different keys never have the same name. Braces are
        # encoded because Redis Cluster treats '{...}' as a hash tag, and data must not choose its own slot.
        special = "".join(sorted(set("%{}").union(*self._literals[1:-1])))
        # '%' is replaced first, because the encoded form of each other character holds a '%'.
        self._escaped = "%" + special.replace("%", "")
        pattern = f"[{re.escape(special)}]" if self.columns > 1 else "(?!)"
        self._special, self._special_bytes = re.compile(pattern), re.compile(pattern.encode())
        self.has_brace = any("{" in literal for literal in self._literals)
        self._plain = self._literals == ["", ""]

    @property
    def pattern(self) -> bytes:
        """A glob pattern that matches all names that the template makes, and maybe other names."""
        return b"*".join(re.sub(rb"[][*?\\^-]", rb"\\\g<0>", literal.encode()) for literal in self._literals)

    @staticmethod
    def reads(kinds: Sequence[type]) -> bool:
        """Return whether a key with parts of the types *kinds* can be read from its name, and has only one name."""
        return all(kind in _READERS for kind in kinds)

    def reader(self, kinds: Sequence[type]) -> Callable[[bytes], Key | None]:
        """
        Return a function that parses a name of Redis back into the key whose parts have the types *kinds*.

        The function returns None for a name that the template does not make from any such key.

        >>> read = KeyTemplate("{}:{}").reader((str, int))
        >>> read(b"a%3Ab:7"), read(b"a:07")
        (('a:b', 7), None)
        """
        part = rb"([^%b]*(?:%%[0-9A-F]{2}[^%b]*)*)" if self.columns > 1 else b"(.*)"
        if self.columns > 1:
            special = re.escape("".join(sorted(self._escaped))).encode()
            part = part % (special, special)
        pieces = [re.escape(self._literals[0].encode())]
        known: dict[int, int] = {}
        for column, literal in zip(self._order, self._literals[1:], strict=True):
            if column in known:
                pieces.append(b"(?:\\%d)" % known[column])
            else:
                known[column] = len(known) + 1
                pieces.append(part)
            pieces.append(re.escape(literal.encode()))
        match = re.compile(b"".join(pieces), re.DOTALL).fullmatch
        groups = [known[column] for column in range(self.columns)]
        readers = [_READERS.get(kind) for kind in kinds]

        def read(name: bytes) -> Key | None:
            found = match(name)
            if found is None or None in readers or len(readers) != self.columns:
                return None
            try:
                parts = [
                    reader(unquote_to_bytes(found[group]) if self.columns > 1 else found[group])  # type: ignore[misc]
                    for reader, group in zip(readers, groups, strict=True)
                ]
                key = tuple(parts) if self.columns > 1 else parts[0]
                written = self._name(key)
            except (ValueError, RejectedKeyError):
                return None
            # Accept the key only if its own name is the given name: the name of the number 7 is 7, not 07.
            return key if written == name else None

        return read

    def names(self, keys: Sequence[Key]) -> tuple[Sequence[Name], dict[Key, Failure]]:
        """
        Return the names of the valid *keys* in their order, and a `Failure` for each rejected key.

        Raises:
            FatalError: The number of parts of a key is not the number of key columns that the template takes.
        """
        if isinstance(keys, Keys):
            column = self._names_of_columns(keys)
            if column is not None:
                return column, {}
        kinds = set(map(type, keys))
        self._check_columns(keys, kinds)
        names = self._names_of_plain_keys(keys, kinds)
        if names is not None:
            return names, {}
        valid: list[Name] = []
        rejected: dict[Key, Failure] = {}
        for key in keys:
            try:
                valid.append(self._name(key))
            except RejectedKeyError as error:
                rejected[key] = Failure(PermanentError(str(error)), rejected=True)
        return valid, rejected

    def _names_of_columns(self, keys: Keys) -> Keys | None:
        """
        Return the names as a column; None if the keys have to be named one by one, by `_name`.

        The result is a column if each part is valid text or a whole number, and no name is too long. This takes up to
        0.05 us per key.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if len(keys.columns) != self.columns:
            return None
        try:
            parts = [self._texts_of_column(column) for column in keys.columns]
            if any(part is None for part in parts):
                return None
            pieces = [self._literals[0]]
            for n, literal in zip(self._order, self._literals[1:], strict=True):
                pieces += [parts[n], literal]
            names: Any = parts[0] if self._plain else pc.binary_join_element_wise(*pieces, "")
        # A text is not UTF-8, or the column has more than 2 GiB; the caller then names the keys one by one.
        except pa.ArrowInvalid:
            return None
        # The size of all names together is tested first, because computing it takes a quarter of the time that
        # computing the longest length takes.
        if names.nbytes > MAX_KEY_BYTES and pc.max(pc.binary_length(names)).as_py() > MAX_KEY_BYTES:
            return None
        return Keys([names], names.to_pylist)

    def _texts_of_column(self, column: Any) -> Any:
        """
        Return *column*, one part of each key, as text in which special characters are percent-encoded.

        The result is None if the parts are neither texts nor whole numbers, or if the column cannot be encoded as a
        whole.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_integer(column.type):
            column = column.cast(pa.string())
        elif pa.types.is_string(column.type):
            column.validate(full=True)
        else:
            return None
        if self.columns > 1 and pc.any(pc.match_substring_regex(column, self._special.pattern)).as_py():
            if not set("0123456789ABCDEF").isdisjoint(self._escaped):
                # The column is not encoded as a whole: the encoded form of one special character could hold another
                # special character, which the loop below would encode again.
                return None
            for char in self._escaped:
                column = pc.replace_substring(column, char, _percent(char))
        return column

    def _check_columns(self, keys: Sequence[Key], kinds: set[type]) -> None:
        parts = set(map(len, keys)) if kinds == {tuple} else {1}
        if parts != {self.columns} or (tuple in kinds) != (self.columns > 1):
            raise FatalError(
                f"RedisConfig.key is {self.template!r}, which takes {_count(self.columns)}, but the lookup has "
                f"{_count(max(parts))}; it must have one field for each, for example '{{0}}:{{1}}' for two."
            )

    def _names_of_plain_keys(self, keys: Sequence[Key], kinds: set[type]) -> list[str] | None:
        """
        Return the names; None if the keys have to be named one by one, by `_name`.

        The result is a list if each part is valid text or a whole number, and no name is too long. This takes 0.05 to
        0.15 us per key.
        """
        columns: list[Sequence[Any]] = [keys] if self.columns == 1 else list(zip(*keys, strict=True))
        for n, column in enumerate(columns):
            if self.columns > 1:
                kinds = set(map(type, column))
            if kinds == {int} and (self.columns > 1 or self._plain):
                column = list(map(str, column))
            elif kinds != {str} and kinds != {int}:
                return None
            if self.columns > 1 and self._special.search("".join(column)):
                column = [self._special.sub(_percent, part) for part in column]
            columns[n] = column
        names: list[str]
        if self._plain:
            names = list(columns[0])
        elif self._order == [0]:
            before, after = self._literals
            names = [f"{before}{part}{after}" for part in columns[0]]
        else:
            names = list(map(self._format, *columns))
        try:
            size = len("".join(names).encode())  # one encoding of all names finds a lone surrogate in any name
        except UnicodeEncodeError:
            return None
        # UTF-8 takes at most four bytes per character, so the length in characters gives an upper limit of the bytes.
        return names if size <= MAX_KEY_BYTES or max(map(len, names)) * 4 <= MAX_KEY_BYTES else None

    def _name(self, key: Key) -> Name:
        texts = [_text(part) for part in (key if self.columns > 1 else (key,))]
        try:
            encoded = [text if isinstance(text, bytes) else text.encode() for text in texts]
        except UnicodeEncodeError:
            raise RejectedKeyError(
                "The key holds a lone surrogate; a Redis key is bytes, so its text must be valid Unicode. "
                "Clean the column."
            ) from None
        encoded = [self._special_bytes.sub(_percent_bytes, part) for part in encoded]
        name = self._literals[0].encode() + b"".join(
            encoded[column] + literal.encode() for column, literal in zip(self._order, self._literals[1:], strict=True)
        )
        if len(name) > MAX_KEY_BYTES:
            raise RejectedKeyError(
                f"The key has {len(name)} bytes; at most {MAX_KEY_BYTES} are allowed. "
                "Shorten it, for example by a hash."
            )
        return name


def _count(columns: int) -> str:
    return "1 key column" if columns == 1 else f"{columns} key columns"


def _parse(template: str) -> tuple[list[str], list[int]]:
    """
    Return two lists: the literals around the fields (one literal more than there are fields), and for each field the
    index of its key column.
    """
    literals, labels = _split(template)
    order = _columns_of(template, labels)
    for separator in literals[1:-1]:
        if len(set(order)) > 1 and not re.fullmatch(r"[!-$&-~]+", separator):
            raise ConfigError(
                f"RedisConfig.key is {template!r}, which has {separator!r} between two fields; there must be one or "
                "more printable ASCII characters other than '%' and blank, or two keys could share a name. "
                "Separate the fields, for example '{0}:{1}'."
            )
    return literals, order


def _split(template: str) -> tuple[list[str], list[str]]:
    """Return the literals around the fields, and the text inside the braces of each field."""
    try:
        str(template).encode()
        pieces = list(string.Formatter().parse(template)) if isinstance(template, str) else []
    except UnicodeEncodeError:
        raise _not_plain(template, "which holds half of a surrogate pair") from None
    except ValueError:
        raise _not_plain(template, "which has an unmatched brace") from None
    literals, labels = [""], []
    for literal, label, spec, conversion in pieces:
        literals[-1] += literal
        if label is None:
            continue
        if conversion or spec or not re.fullmatch(r"[0-9]{0,2}|[^\W\d]\w*", label):
            suffix = ("!" + conversion if conversion else "") + (":" + spec if spec else "")
            raise _not_plain(template, f"whose field {{{label}{suffix}}} is not plain")
        labels.append(label)
        literals.append("")
    return literals, labels


def _columns_of(template: str, labels: list[str]) -> list[int]:
    """Return the index of the key column of each field."""
    kinds = {"auto" if not label else "number" if label[0] in string.digits else "name" for label in labels}
    if not labels:
        raise _not_plain(template, "which has no field")
    if len(kinds) > 1:
        raise _not_plain(template, "which mixes '{}', numbers and names")
    if kinds == {"number"}:
        return [int(label) for label in labels]
    if kinds == {"auto"}:
        return list(range(len(labels)))
    names = list(dict.fromkeys(labels))
    return [names.index(label) for label in labels]


def _not_plain(template: str, fault: str) -> ConfigError:
    return ConfigError(
        f"RedisConfig.key is {template!r}, {fault}; it may hold plain fields only: '{{}}', '{{0}}' or a name, "
        "for example 'user:{}'."
    )


def _percent(char: re.Match[str] | str) -> str:
    return f"%{ord(char[0]):02X}"


def _percent_bytes(char: re.Match[bytes]) -> bytes:
    return b"%%%02X" % ord(char[0])


def _text(part: Any) -> str | bytes:
    """
    Return *part*, one part of a key, as text, or unchanged if it is bytes; raises `RejectedKeyError` if no name can
    hold it.

    Instances of subclasses are rejected, for example a bool, which is an int in Python, and a datetime, which is a
    date.
    """
    kind = type(part)
    if kind is str or kind is bytes:
        return part  # type: ignore[no-any-return]  # str or bytes
    if kind is int:
        return str(part)
    if kind is float and not math.isnan(part):
        return repr(part + 0.0)  # -0.0 equals 0.0, so both must have the same name
    if kind is Decimal and part.is_finite():
        return format(part, "f")
    if kind is date:
        return str(part.isoformat())
    noun = "NaN" if kind is float or kind is Decimal else f"a {kind.__name__}"
    raise RejectedKeyError(
        f"A part of the key is {noun}; it must be a str, bytes, int, finite Decimal, date, or float other than NaN. "
        "Cast the column to string."
    )
