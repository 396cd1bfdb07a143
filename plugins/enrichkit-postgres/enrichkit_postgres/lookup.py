"""
One lookup, prepared once: keys to the arguments of a statement, rows to answers.

Two forms of statement. Where the column's `=` is Python's `==`, `key = ANY($1)` and the key column is selected back:
the answer is found by it, and a row that was not asked for (a reply to another statement, behind a broken proxy) is
noticed. Where it is not (citext, char(n), uuid as text, a collation without case) or where there are several key
columns, the server says itself which of our keys a row belongs to: the keys are joined `WITH ORDINALITY`, and the
numbers of two calls never overlap, so that a foreign row is noticed too.
"""

from __future__ import annotations

import secrets
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from enrichkit.connector import Failure, Key, Value
from enrichkit.errors import FatalError, PermanentError, TransientError

from .ddl import ddl_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .pgtypes import Kept, Taken

__all__ = ["Asked", "Lookup"]

_last = itemgetter(-1)


class Asked:
    """
    The keys of one call on their way.

    Attributes:
        keys: Those that are sent.
        arguments: Of the statement.
        answers: What is known already: a `Failure` for each key that is not sent.
        by: What the server sends back for a key, to the key; None when it is the key.
        twins: Pairs of keys of which only the second is sent, because the column finds them equal.
    """

    __slots__ = ("answers", "arguments", "by", "keys", "twins")

    def __init__(self, keys: Sequence[Key], answers: dict[Key, Value | Failure]) -> None:
        self.keys = keys
        self.answers = answers
        self.arguments: tuple[Any, ...] = ()
        self.by: dict[Any, Key] | None = None
        self.twins: list[tuple[Key, Key]] = []


class Lookup:
    """
    How a table or a query is asked.

    Args:
        source: What messages call it.
        sql: The statement.
        taken: The key columns.
        kept: The value columns by name.
        width: How many columns before the values identify the row's key.
        numbered: True when the row begins with the key's number instead of the key.
        foreign: Makes the error for a row that was not asked for.
    """

    def __init__(
        self,
        *,
        source: str,
        sql: str,
        taken: Sequence[Taken],
        kept: Mapping[str, Kept],
        width: int,
        numbered: bool,
        foreign: Callable[[], FatalError | TransientError],
    ) -> None:
        self.source = source
        self.sql = sql
        self.ddl = ddl_of(kept)
        self._taken = tuple(taken)
        self._names = tuple(kept)
        self._numbered = numbered
        self._next = secrets.randbits(40)
        self._same = [column.key.same for column in taken]
        self._refuses = any(column.refused for column in kept.values())
        self._foreign = foreign
        mapped = numbered or any(self._same)
        key = "r[0]" if width == 1 else f"r[:{width}]"
        self._key_of = _function(f"lambda r: {key}")
        self._value_of = _function(f"lambda r: {_value(self._names, width)}")
        self._read = _function(
            f"lambda rows, by: {{{f'by[{key}]' if mapped else key}: {_value(self._names, width)} for r in rows}}"
        )

    def ask(self, keys: Sequence[Key]) -> Asked:
        """Return the arguments for *keys*, without those that the columns cannot hold; raises `FatalError`."""
        columns = self._columns(keys)
        asked = Asked(keys, {})
        if not all(map(_takes, self._taken, columns)):
            asked.answers = {key: failure for key in keys if (failure := self._rejection(key)) is not None}
            asked.keys = [key for key in keys if key not in asked.answers]
            columns = self._columns(asked.keys)
        if self._numbered:
            first = self._next = (self._next + len(keys)) % 2**62
            asked.by = dict(zip(range(first + 1, first + 1 + len(asked.keys)), asked.keys, strict=True))
            asked.arguments = (first,)
        elif any(self._same):
            self._find_twins(asked)
            columns = self._columns(asked.keys)
        encoded = (taken.encode(column) for taken, column in zip(self._taken, columns, strict=True))
        asked.arguments = (*encoded, *asked.arguments)
        return asked

    def read(self, rows: Sequence[Any], asked: Asked, many: bool) -> dict[Key, Value | Failure]:
        """Return the answers that *rows* hold, and those that were known before."""
        if many or (self._refuses and any(map(_last, rows))):
            found = self._read_slowly(rows, asked, many)
        else:
            try:
                found = self._read(rows, asked.by)
            except KeyError:
                raise self._foreign() from None
            if asked.by is None and sum(map(found.__contains__, asked.keys)) != len(found):
                raise self._foreign()
            if len(found) != len(rows):
                found = self._read_slowly(rows, asked, many)
        for twin, key in asked.twins:
            if key in found:
                found[twin] = found[key]
        return found | asked.answers if asked.answers else found

    def _read_slowly(self, rows: Sequence[Any], asked: Asked, many: bool) -> dict[Key, Value | Failure]:
        by = asked.by if asked.by is not None else {key: key for key in asked.keys}
        matches: dict[Key, list[Value]] = {}
        refused: dict[Key, int] = {}
        for row in rows:
            try:
                key = by[self._key_of(row)]
            except KeyError:
                raise self._foreign() from None
            matches.setdefault(key, []).append(self._value_of(row))
            if self._refuses and row[-1]:
                refused[key] = row[-1]
        found: dict[Key, Value | Failure] = {}
        for key, values in matches.items():
            if key in refused:
                found[key] = self._refusal(self._names[refused[key] - 1])
            elif many:
                found[key] = values
            elif len(values) == 1:
                found[key] = values[0]
            else:
                found[key] = self._ambiguity(len(values))
        return found

    def _columns(self, keys: Sequence[Key]) -> list[Sequence[Any]]:
        if len(self._taken) == 1:
            return [keys]
        width = len(self._taken)
        if not keys:
            return [()] * width
        if set(map(type, keys)) != {tuple} or set(map(len, keys)) != {width}:
            raise self._misshapen()
        return list(zip(*keys, strict=True))

    def _find_twins(self, asked: Asked) -> None:
        by: dict[Any, Key] = {}
        for key in asked.keys:
            parts = key if len(self._taken) > 1 else (key,)
            sent_back = tuple(
                part if same is None else same(part) for same, part in zip(self._same, parts, strict=True)
            )
            first = by.setdefault(sent_back if len(sent_back) > 1 else sent_back[0], key)
            if first is not key:
                asked.twins.append((key, first))
        asked.by = by
        asked.keys = list(by.values())

    def _rejection(self, key: Key) -> Failure | None:
        parts = key if len(self._taken) > 1 else (key,)
        if len(self._taken) == 1 and type(key) is tuple:
            raise self._misshapen()
        for taken, part in zip(self._taken, parts, strict=True):
            if not _takes(taken, [part]):
                why = ", which it cannot hold" if type(part) in taken.key.types else ""
                error = PermanentError(
                    f"The key was not sent: the key column {taken.name!r} of {self.source} is {taken.pg} and was "
                    f"given a value of the type {type(part).__name__}{why}; it takes {taken.key.allowed}. "
                    "Cast or filter the key in Spark."
                )
                return Failure(error, rejected=True)
        return None

    def _misshapen(self) -> FatalError:
        names = ", ".join(repr(taken.name) for taken in self._taken)
        return FatalError(
            f"A key came with another number of parts than PostgresConfig.key names columns: {names}. "
            "Name as many key columns in enrich(...) as in PostgresConfig.key."
        )

    def _ambiguity(self, count: int) -> Failure:
        names = " and ".join(repr(taken.name) for taken in self._taken)
        return Failure(
            PermanentError(
                f"{count} rows of {self.source} have one key, and one is allowed: {names} is not unique. "
                "Use enrich_frame(..., many=True) to get them all, or a key that is unique."
            )
        )

    def _refusal(self, column: str) -> Failure:
        return Failure(
            PermanentError(
                f"The column {column!r} of {self.source} holds infinity, NaN, or a value out of the range of its "
                "Spark type (years 1 to 9999, numbers of 38 digits). Leave the column out, or convert it in "
                "PostgresConfig.query."
            )
        )


def _takes(taken: Taken, keys: Sequence[Any]) -> bool:
    return set(taken.key.types).issuperset(map(type, keys)) and (not keys or taken.key.holds(keys))


def _value(names: Sequence[str], width: int) -> str:
    """The source of one value: the column alone, or a mapping of all of them."""
    if len(names) == 1:
        return f"r[{width}]"
    return "{" + ", ".join(f"{name!r}: r[{width + i}]" for i, name in enumerate(names)) + "}"


def _function(source: str) -> Callable[..., Any]:
    # A dict display with constant names costs 0.37 us per row of three values, dict(zip(names, row[1:])) 0.88 us. The
    # only foreign text in it are column names, as Python literals.
    function: Callable[..., Any] = eval(source, {"__builtins__": {}})  # noqa: S307 - see above
    return function
