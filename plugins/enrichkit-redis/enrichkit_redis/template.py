"""From the key columns to the names of Redis keys: unambiguous, bounded, and fast for a whole call at a time."""

from __future__ import annotations

import math
import re
import string
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from enrichkit.connector import Failure, Key, Keys
from enrichkit.errors import ConfigError, FatalError, PermanentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MAX_KEY_BYTES", "KeyTemplate", "Name"]

Name: TypeAlias = str | bytes
"""Name of a key in Redis; a str stands for its UTF-8 bytes."""

MAX_KEY_BYTES = 64 * 1024  # Redis takes up to 512 MiB; a longer key is a mistake or an attack


class _RefusedError(Exception):
    """The key cannot be a Redis key; the text says why."""


class KeyTemplate:
    """
    The template of `RedisConfig.key`.

    Int 1 and str "1" give the same name; a float is written as Python's `repr` writes it (1.0 is "1.0"), a Decimal
    without exponent, a date in ISO 8601, bytes as they are.

    Attributes:
        columns: How many key columns it takes.
        has_brace: Whether an opening brace stands in the template itself.

    >>> KeyTemplate("user:{}").names(["a", "b"])
    (['user:a', 'user:b'], {})
    >>> KeyTemplate("{}:{}").names([("a:b", "c"), ("a", "b:c")])
    (['a%3Ab:c', 'a:b%3Ac'], {})
    """

    def __init__(self, template: str) -> None:
        self.template = template
        # literal, column, literal, column, ..., literal
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
        # What no part of a composite key may hold as it is; see docs of RedisConfig.key. Decoding from the left finds
        # the end of each part at the first separator character, so the join is reversible, hence unambiguous. Braces
        # are among them because Redis Cluster takes '{...}' for a hash tag: data must not choose its slot.
        special = "".join(sorted(set("%{}").union(*self._literals[1:-1])))
        self._escaped = "%" + special.replace("%", "")  # one after another: the others are turned into some with '%'
        pattern = f"[{re.escape(special)}]" if self.columns > 1 else "(?!)"
        self._special, self._special_bytes = re.compile(pattern), re.compile(pattern.encode())
        self.has_brace = any("{" in literal for literal in self._literals)
        self._plain = self._literals == ["", ""]

    def names(self, keys: Sequence[Key]) -> tuple[Sequence[Name], dict[Key, Failure]]:
        """
        Return the names of *keys*, in their order and without those refused, and a `Failure` for each key refused.

        Raises:
            FatalError: The keys do not have as many parts as the template has fields.
        """
        if isinstance(keys, Keys):
            named = self._in_columns(keys)
            if named is not None:
                return named, {}
        kinds = set(map(type, keys))
        self._check_columns(keys, kinds)
        names = self._all_names(keys, kinds)
        if names is not None:
            return names, {}
        slow: list[Name] = []
        refused: dict[Key, Failure] = {}
        for key in keys:
            try:
                slow.append(self._name(key))
            except _RefusedError as error:
                refused[key] = Failure(PermanentError(str(error)), rejected=True)
        return slow, refused

    def _in_columns(self, keys: Keys) -> Keys | None:
        """The names as a column when each part is valid text or a whole number, else None. Up to 0.05 us per key."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if len(keys.columns) != self.columns:
            return None
        try:
            parts = [self._part(column) for column in keys.columns]
            if any(part is None for part in parts):
                return None
            pieces = [self._literals[0]]
            for n, literal in zip(self._order, self._literals[1:], strict=True):
                pieces += [parts[n], literal]
            names: Any = parts[0] if self._plain else pc.binary_join_element_wise(*pieces, "")
        except pa.ArrowInvalid:  # no UTF-8, or more than 2 GiB: a look at each key says which one is wrong
            return None
        if pc.max(pc.binary_length(names)).as_py() > MAX_KEY_BYTES:
            return None
        return Keys([names], names.to_pylist)

    def _part(self, column: Any) -> Any:
        """The text of one part of each key, without what it may not hold; None: it is neither text nor a number."""
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
                return None  # one would be replaced in what another was replaced by
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

    def _all_names(self, keys: Sequence[Key], kinds: set[type]) -> list[str] | None:
        """The names when every key is plain text or a whole number and valid, else None. 0.05 to 0.15 us per key."""
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
            size = len("".join(names).encode())  # one encoding of them all finds a lone surrogate in any
        except UnicodeEncodeError:
            return None
        # UTF-8 takes at most four bytes per character.
        return names if size <= MAX_KEY_BYTES or max(map(len, names)) * 4 <= MAX_KEY_BYTES else None

    def _name(self, key: Key) -> Name:
        texts = [_text(part) for part in (key if self.columns > 1 else (key,))]
        try:
            encoded = [text if isinstance(text, bytes) else text.encode() for text in texts]
        except UnicodeEncodeError:
            raise _RefusedError(
                "The key holds a lone surrogate; a Redis key is bytes, so its text must be valid Unicode. "
                "Clean the column."
            ) from None
        encoded = [self._special_bytes.sub(_percent_bytes, part) for part in encoded]
        name = self._literals[0].encode() + b"".join(
            encoded[column] + literal.encode() for column, literal in zip(self._order, self._literals[1:], strict=True)
        )
        if len(name) > MAX_KEY_BYTES:
            raise _RefusedError(
                f"The key has {len(name)} bytes; at most {MAX_KEY_BYTES} are allowed. "
                "Shorten it, for example by a hash."
            )
        return name


def _count(columns: int) -> str:
    return "1 key column" if columns == 1 else f"{columns} key columns"


def _parse(template: str) -> tuple[list[str], list[int]]:
    """Return the literals around the fields, one more than there are fields, and the column of each field."""

    def wrong(what: str) -> ConfigError:
        return ConfigError(
            f"RedisConfig.key is {template!r}, {what}; it may hold plain fields only: '{{}}', '{{0}}' or a name, "
            "for example 'user:{}'."
        )

    try:
        pieces = list(string.Formatter().parse(template)) if isinstance(template, str) else []
    except ValueError:
        raise wrong("which has an unmatched brace") from None
    literals, labels = [""], []
    for literal, label, spec, conversion in pieces:
        literals[-1] += literal
        if label is None:
            continue
        if conversion or spec or not re.fullmatch(r"[0-9]{0,2}|[^\W\d]\w*", label):
            more = ("!" + conversion if conversion else "") + (":" + spec if spec else "")
            raise wrong(f"whose field {{{label}{more}}} is not plain")
        labels.append(label)
        literals.append("")
    kinds = {"auto" if not label else "number" if label[0] in string.digits else "name" for label in labels}
    if not labels:
        raise wrong("which has no field")
    if len(kinds) > 1:
        raise wrong("which mixes '{}', numbers and names")
    if kinds == {"number"}:
        order = [int(label) for label in labels]
    elif kinds == {"auto"}:
        order = list(range(len(labels)))
    else:
        seen = list(dict.fromkeys(labels))
        order = [seen.index(label) for label in labels]
    for between in literals[1:-1]:
        if len(set(order)) > 1 and not re.fullmatch(r"[!-$&-~]+", between):
            raise ConfigError(
                f"RedisConfig.key is {template!r}, which has {between!r} between two fields; there must be one or more "
                "printable ASCII characters other than '%' and blank, or two keys could share a name. "
                "Separate the fields, for example '{0}:{1}'."
            )
    return literals, order


def _percent(char: re.Match[str] | str) -> str:
    return f"%{ord(char[0]):02X}"


def _percent_bytes(char: re.Match[bytes]) -> bytes:
    return b"%%%02X" % ord(char[0])


def _text(part: Any) -> str | bytes:
    """One part as text, or the bytes it is. By exact type: a bool is an int, a datetime is a date; neither may pass."""
    kind = type(part)
    if kind is str or kind is bytes:
        return part  # type: ignore[no-any-return]  # str or bytes
    if kind is int:
        return str(part)
    if kind is float and not math.isnan(part):
        return repr(part + 0.0)  # -0.0 equals 0.0, so both must have one name
    if kind is Decimal and part.is_finite():
        return format(part, "f")
    if kind is date:
        return str(part.isoformat())
    what = "NaN" if kind is float or kind is Decimal else f"a {kind.__name__}"
    raise _RefusedError(
        f"A part of the key is {what}; it must be a str, bytes, int, finite Decimal, date, or float other than NaN. "
        "Cast the column to string."
    )
