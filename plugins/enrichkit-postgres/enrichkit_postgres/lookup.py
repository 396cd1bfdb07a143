"""
One lookup, prepared once: keys to the arguments of a statement, rows to answers.

Two forms of statement. Where the column's `=` is Python's `==`, `key = ANY($1)` and the key column is selected back:
the answer is found by it, and a row that was not asked for (a reply to another statement, behind a broken proxy) is
noticed. Where it is not (citext, char(n), uuid as text, a collation without case) or where there are several key
columns, the server says itself which of our keys a row belongs to: the keys are joined `WITH ORDINALITY`, and the
numbers of two calls never overlap, so that a foreign row is noticed too.

The server sends one row, in which each column comes as one: see `gathered.py`.
"""

from __future__ import annotations

import secrets
from itertools import islice
from typing import TYPE_CHECKING, Any

from enrichkit.bulk import objects_of
from enrichkit.connector import Answers, Failure, Key, Keys, Value
from enrichkit.errors import FatalError, PermanentError, TransientError

from .ddl import ddl_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from enrichkit.sql import Source

    from .gathered import Gathered
    from .pgtypes import Kept, Taken

__all__ = ["Asked", "Lookup"]


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
        gathered: How each column comes as one, keys first; empty when the statement returns rows.
        foreign: Makes the error for a row that was not asked for.

    Attributes:
        names: The value columns.
        ddl: The type of one value.
    """

    def __init__(
        self,
        *,
        source: Source,
        sql: str,
        taken: Sequence[Taken],
        kept: Mapping[str, Kept],
        width: int,
        numbered: bool,
        gathered: Sequence[Gathered],
        foreign: Callable[[], FatalError | TransientError],
    ) -> None:
        self.source = source
        self.sql = sql
        self.ddl = ddl_of(kept)
        self._taken = tuple(taken)
        self.names = tuple(kept)
        self._numbered = numbered
        self._next = secrets.randbits(40)
        self._same = [column.key.same for column in taken]
        self._refuses = any(column.refused for column in kept.values())
        self._foreign = foreign
        self._gathered = tuple(gathered)
        self._width = width

    def ask(self, keys: Sequence[Key]) -> Asked:
        """Return the arguments for *keys*, without those that the columns cannot hold; raises `FatalError`."""
        columns = self._columns(keys)
        asked = Asked(keys, {})
        if not all(map(_takes, self._taken, columns)):
            asked.answers = {key: failure for key in keys if (failure := self._rejection(key)) is not None}
            asked.keys = [key for key in keys if key not in asked.answers]
            columns = self._columns(asked.keys)
        if self._numbered:
            first, self._next = self._next, (self._next + len(keys)) % 2**62
            asked.by = dict(zip(range(first + 1, first + 1 + len(asked.keys)), asked.keys, strict=True))
            asked.arguments = (first,)
        elif any(self._same):
            self._find_twins(asked)
            columns = self._columns(asked.keys)
        encoded = (taken.encode(column) for taken, column in zip(self._taken, columns, strict=True))
        asked.arguments = (*encoded, *asked.arguments)
        return asked

    def read(self, rows: Sequence[Any], asked: Asked, many: bool) -> Mapping[Key, Value | Failure]:
        """Return the answers that *rows* hold, and those that were known before."""
        columns = self._columns_of(rows)
        if not columns:
            return asked.answers
        keys: Any = columns[0]
        if self._width > 1:
            keys = list(zip(*map(objects_of, columns[: self._width]), strict=True))
        if asked.by is not None:
            try:
                keys = list(map(asked.by.__getitem__, objects_of(keys)))
            except KeyError:
                raise self._foreign() from None
        each_once = _each_once(keys, asked.keys)
        one_each = each_once is not None
        if each_once is not None:
            keys = each_once
        else:
            keys = objects_of(keys)
            distinct = set(keys)
            one_each = len(distinct) == len(keys)
            if asked.by is None and not distinct.issubset(asked.keys):
                raise self._foreign()
        values = columns[self._width : self._width + len(self.names)]
        refused = columns[-1] if self._refuses and any(columns[-1]) else None
        if many or refused or not one_each:
            found = self._matches(keys, list(map(objects_of, values)), refused or (None,) * len(keys), many)
        else:
            answers = Answers(keys, values[0] if len(values) == 1 else dict(zip(self.names, values, strict=True)))
            if not (asked.twins or asked.answers):
                return answers
            found = answers.rows()
        for twin, key in asked.twins:
            if key in found:
                found[twin] = found[key]
        return found | asked.answers

    def _columns_of(self, rows: Sequence[Any]) -> list[Any]:
        """Return the columns of *rows*; none when there is no row."""
        if not self._gathered:
            return list(zip(*rows, strict=True))
        (row,) = rows
        if row[0] is None:  # an aggregate of no rows
            return []
        fields = iter(row)
        return [column.read(*islice(fields, len(column.aggregates))) for column in self._gathered]

    def _matches(
        self, keys: Sequence[Key], columns: Sequence[Any], refusals: Sequence[int | None], many: bool
    ) -> dict[Key, Value | Failure]:
        values: Iterable[Value] = columns[0]
        if len(columns) > 1:
            values = Answers(range(len(keys)), dict(zip(self.names, columns, strict=True))).rows().values()
        matches: dict[Key, list[Value]] = {}
        refused: dict[Key, int] = {}
        for key, value, refusal in zip(keys, values, refusals, strict=True):
            matches.setdefault(key, []).append(value)
            if refusal:
                refused[key] = refusal
        found: dict[Key, Value | Failure] = {}
        for key, group in matches.items():
            if key in refused:
                found[key] = self._refusal(self.names[refused[key] - 1])
            elif many:
                found[key] = group
            elif len(group) == 1:
                found[key] = group[0]
            else:
                found[key] = self.source.ambiguity(len(group))
        return found

    def _columns(self, keys: Sequence[Key]) -> list[Sequence[Any]]:
        if len(self._taken) == 1:
            return [keys]
        width = len(self._taken)
        if not keys:
            return [()] * width
        if set(map(type, keys)) != {tuple} or set(map(len, keys)) != {width}:
            raise self.source.misshapen()
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
            raise self.source.misshapen()
        for taken, part in zip(self._taken, parts, strict=True):
            if not _takes(taken, [part]):
                right = type(part) in taken.key.types
                return self.source.rejection(taken.name, part, is_=taken.pg, takes=taken.key.allowed, right=right)
        return None

    def _refusal(self, column: str) -> Failure:
        return Failure(
            PermanentError(
                f"The column {column!r} of {self.source} holds infinity, NaN, or a value out of the range of its "
                "Spark type (years 1 to 9999, numbers of 38 digits). Leave the column out, or convert it in "
                "PostgresConfig.query."
            )
        )


def _each_once(found: Any, asked: Sequence[Key]) -> Sequence[Key] | None:
    """Return *found* when a quick look shows that each of these keys was asked for and comes once."""
    if not isinstance(asked, Keys) or len(asked.columns) > 1:
        found = objects_of(found)
        return found if tuple(found) == asked else None  # as an index gives them when it has them all
    import pyarrow as pa  # here: a driver program that only plans has no use for it
    import pyarrow.compute as pc

    (column,) = asked.columns
    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
        return None
    try:
        array = found.cast(column.type) if isinstance(found, pa.Array) else pa.array(found, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
    if pc.is_in(column, array).true_count < len(array):
        return None
    return asked if array.equals(column) else Keys([array], array.to_pylist)


def _takes(taken: Taken, keys: Sequence[Any]) -> bool:
    if isinstance(keys, Keys) and len(keys) and len(keys.columns) == 1:
        import pyarrow as pa
        import pyarrow.compute as pc

        (column,) = keys.columns
        if pa.types.is_integer(column.type):
            return int in taken.key.types and taken.key.holds(list(pc.min_max(column).as_py().values()))
    return set(taken.key.types).issuperset(map(type, keys)) and (not keys or taken.key.holds(keys))
