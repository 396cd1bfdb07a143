"""
The prepared statement of a source: it turns keys into arguments, and rows into answers.

The statement has one of two forms. The first form is for one key column whose `=` gives the same result as Python's
`==`. Its condition is `key = ANY($1)`, and the statement also selects the key column, which shows to which key a row
belongs. A row whose key is not in the request raises an error, because a broken proxy may have delivered the reply to
another statement. The second form is for several key columns, and for columns whose `=` differs from Python's (citext,
char(n), uuid as text, a case-insensitive collation). This form joins the table to the keys `WITH ORDINALITY`, so that
the server returns with each row the number of its key. Two calls never use the same number, so a row of another call is
detected in this form, too. A user's query returns the keys themselves, as in the first form, even if there are several
key columns.

A reply without rows does not show to which call it belongs, so each reply also repeats the number of its call.

Unless a value column has an array type, the server sends a single row, in which each field holds a whole column of the
result: see `aggregates.py`.
"""

from __future__ import annotations

import secrets
from itertools import islice
from typing import TYPE_CHECKING, Any

from enrichkit.errors import FatalError, PermanentError, TransientError
from enrichkit.plugin import Answers, Failure, Key, Keys, Value, objects_of

from .ddl import ddl_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from enrichkit.sql import Source

    from .aggregates import Aggregate
    from .listing import Listing
    from .pgtypes import KeyColumn, ValueColumn

__all__ = ["Request", "Statement"]


class Request:
    """
    The keys of one call.

    Attributes:
        keys: The keys that are sent.
        arguments: The arguments of the statement, except the number of the call, which follows them.
        number: Number of the call, which the reply repeats.
        answers: The answers that need no server: a `Failure` for each key that the columns cannot hold.
        key_of: Mapping from what the server returns for a key (a number, or another form of the key) to the key; None
            when the server returns the key itself.
        twins: Pairs of keys that the server returns in the same form, for example two spellings of a uuid. Only the
            second key of a pair is sent; its answer is copied for the first key.
    """

    __slots__ = ("answers", "arguments", "key_of", "keys", "number", "twins")

    def __init__(self, keys: Sequence[Key], answers: dict[Key, Value | Failure], number: int) -> None:
        self.keys = keys
        self.number = number
        self.answers = answers
        self.arguments: tuple[Any, ...] = ()
        self.key_of: dict[Any, Key] | None = None
        self.twins: list[tuple[Key, Key]] = []


class Statement:
    """
    The statement that looks up keys in a table or a query.

    Args:
        source: The table or query, for messages.
        sql: Text of the statement.
        keys: The key columns.
        values: The value columns by name.
        width: Number of columns that identify the key of a row; they precede the values.
        numbered: Whether the first column is the number of the key instead of the key.
        aggregates: The `Aggregate` of each column of the result, the key columns first; empty when the statement
            returns plain rows.
        foreign_row: A function that returns the error for a row whose key is not in the request.
        listing: The statements that list the keys of a table; None for a query.

    Attributes:
        keys: The key columns.
        names: Names of the value columns.
        ddl: Type of one value.
    """

    def __init__(
        self,
        *,
        source: Source,
        sql: str,
        keys: Sequence[KeyColumn],
        values: Mapping[str, ValueColumn],
        width: int,
        numbered: bool,
        aggregates: Sequence[Aggregate],
        foreign_row: Callable[[], FatalError | TransientError],
        listing: Listing | None = None,
    ) -> None:
        self.source = source
        self.listing = listing
        self.sql = sql
        self.ddl = ddl_of(values)
        self.names = tuple(values)
        self.keys = tuple(keys)
        self._width = width
        self._numbered = numbered
        self._next_number = secrets.randbits(40)
        self._returned_as = [column.type.returned_as for column in keys]
        self._refuses = any(column.refused for column in values.values())
        self._aggregates = tuple(aggregates)
        self._foreign_row = foreign_row

    def request(self, keys: Sequence[Key]) -> Request:
        """
        Return the request for *keys*; a key that the columns cannot hold is not sent. Raises `FatalError` if a key has
        too many or too few parts.
        """
        columns = self._key_columns(keys)
        request = Request(keys, {}, self._next_number)
        self._next_number = (self._next_number + len(keys)) % 2**62
        if not all(map(_can_hold, self.keys, columns)):
            request.answers = {key: failure for key in keys if (failure := self._rejection(key)) is not None}
            request.keys = [key for key in keys if key not in request.answers]
            columns = self._key_columns(request.keys)
        if self._numbered:
            numbers = range(request.number + 1, request.number + 1 + len(request.keys))
            request.key_of = dict(zip(numbers, request.keys, strict=True))
            request.arguments = (request.number,)
        elif any(self._returned_as):
            self._find_twins(request)
            columns = self._key_columns(request.keys)
        encoded = (column.encode(parts) for column, parts in zip(self.keys, columns, strict=True))
        request.arguments = (*encoded, *request.arguments)
        return request

    async def fetch(self, connection: Any, request: Request, timeout: float | None = None) -> Sequence[Any]:
        """
        Execute the statement for *request*, and return the rows; raises `TransientError` if the reply belongs to
        another call.
        """
        rows: Sequence[Any] = await connection.fetch(self.sql, *request.arguments, request.number, timeout=timeout)
        if not rows or any(row[-1] != request.number for row in rows):
            raise TransientError(f"The reply from {self.source} belongs to another call; the connection was closed.")
        if self._aggregates:
            return rows
        # The rows are the result of a LEFT JOIN, with the number of the call on the left. If the keys have no row, the
        # result still has one row, in which the column `mark` is NULL.
        return [row[:-2] for row in rows if row[-2] is not None]

    def read(self, rows: Sequence[Any], request: Request, many: bool) -> Mapping[Key, Value | Failure]:
        """
        Return the answers in *rows*, together with the answers that *request* already has. If *many* is True, the
        answer for a key is the list of the values of all its rows; otherwise, several rows for one key are a `Failure`.
        """
        columns = self._columns_in(rows)
        if not columns:
            return request.answers
        keys, distinct = self._keys_in(columns, request)
        values = columns[self._width : self._width + len(self.names)]
        refusals = columns[-1] if self._refuses and any(columns[-1]) else None
        if many or refusals or not distinct:
            answers = self._matches(keys, list(map(objects_of, values)), refusals or (None,) * len(keys), many)
        else:
            in_columns = Answers(keys, values[0] if len(values) == 1 else dict(zip(self.names, values, strict=True)))
            if not (request.twins or request.answers):
                return in_columns
            answers = in_columns.rows()
        for twin, key in request.twins:
            if key in answers:
                answers[twin] = answers[key]
        return answers | request.answers

    def _columns_in(self, rows: Sequence[Any]) -> list[Any]:
        """Return the columns of the result; an empty list when no row was found."""
        if not self._aggregates:
            return list(zip(*rows, strict=True))
        (row,) = rows
        if row[0] is None:  # no row was found, because an aggregate of no rows is NULL
            return []
        fields = iter(row)
        return [aggregate.read(*islice(fields, len(aggregate.functions))) for aggregate in self._aggregates]

    def _keys_in(self, columns: Sequence[Any], request: Request) -> tuple[Sequence[Key], bool]:
        """
        Return the key of each row, and whether all these keys differ; raises the error of *foreign_row* for a key that
        was not requested.
        """
        keys: Any = columns[0]
        if self._width > 1:
            keys = list(zip(*map(objects_of, columns[: self._width]), strict=True))
        if request.key_of is not None:
            try:
                keys = list(map(request.key_of.__getitem__, objects_of(keys)))
            except KeyError:
                raise self._foreign_row() from None
        checked = _distinct_and_requested(keys, request.keys)
        if checked is not None:
            return checked, True
        keys = objects_of(keys)
        different = set(keys)
        if request.key_of is None and not different.issubset(request.keys):
            raise self._foreign_row()
        return keys, len(different) == len(keys)

    def _matches(
        self, keys: Sequence[Key], columns: Sequence[Any], refusals: Sequence[int | None], many: bool
    ) -> dict[Key, Value | Failure]:
        """
        Return the answer for each key. This method also works if several rows have the same key, or if *refusals* says
        that Spark cannot hold a value.
        """
        values: Iterable[Value] = columns[0]
        if len(columns) > 1:
            values = Answers(range(len(keys)), dict(zip(self.names, columns, strict=True))).rows().values()
        matches: dict[Key, list[Value]] = {}
        refused: dict[Key, int] = {}
        for key, value, refusal in zip(keys, values, refusals, strict=True):
            matches.setdefault(key, []).append(value)
            if refusal:
                refused[key] = refusal
        answers: dict[Key, Value | Failure] = {}
        for key, group in matches.items():
            if key in refused:
                answers[key] = self._refusal(self.names[refused[key] - 1])
            elif many:
                answers[key] = group
            elif len(group) == 1:
                answers[key] = group[0]
            else:
                answers[key] = self.source.ambiguity(len(group))
        return answers

    def _key_columns(self, keys: Sequence[Key]) -> list[Sequence[Any]]:
        """Return the parts of *keys*, one sequence for each key column."""
        if len(self.keys) == 1:
            return [keys]
        width = len(self.keys)
        if not keys:
            return [()] * width
        if set(map(type, keys)) != {tuple} or set(map(len, keys)) != {width}:
            raise self.source.misshapen()
        return list(zip(*keys, strict=True))

    def _find_twins(self, request: Request) -> None:
        """
        If the server returns several keys in the same form, keep only the first of these keys in *request*, and record
        the others as twins.
        """
        key_of: dict[Any, Key] = {}
        for key in request.keys:
            parts = key if len(self.keys) > 1 else (key,)
            returned = tuple(
                part if function is None else function(part)
                for function, part in zip(self._returned_as, parts, strict=True)
            )
            first = key_of.setdefault(returned if len(returned) > 1 else returned[0], key)
            if first is not key:
                request.twins.append((key, first))
        request.key_of = key_of
        request.keys = list(key_of.values())

    def _rejection(self, key: Key) -> Failure | None:
        """Return the `Failure` for a key that the columns cannot hold; None if they can hold *key*."""
        if len(self.keys) == 1 and type(key) is tuple:
            raise self.source.misshapen()
        for column, part in zip(self.keys, self.source.parts_of(key), strict=True):
            if not _can_hold(column, [part]):
                right = type(part) in column.type.types
                return self.source.rejection(
                    column.name, part, is_=column.type_name, takes=column.type.allowed, right=right
                )
        return None

    def _refusal(self, column: str) -> Failure:
        return Failure(
            PermanentError(
                f"The column {column!r} of {self.source} holds infinity, NaN, or a value out of the range of its "
                "Spark type (years 1 to 9999, numbers of 38 digits). Leave the column out, or convert it in "
                "PostgresConfig.query."
            )
        )


def _distinct_and_requested(returned: Any, requested: Sequence[Key]) -> Sequence[Key] | None:
    """
    Return *returned*, the keys of the rows, if a fast check proves that each was *requested* and occurs only once.

    The result is None when the check cannot prove this; the caller then has to compare the keys as Python objects.
    """
    if not isinstance(requested, Keys) or len(requested.columns) > 1:
        returned = objects_of(returned)
        # The check succeeds, for example, if an index scan finds a row for each key in the order of the request.
        return returned if tuple(returned) == requested else None
    import pyarrow as pa  # imported here, because a driver program that only plans the job does not need pyarrow
    import pyarrow.compute as pc

    (column,) = requested.columns
    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
        return None
    try:
        array = returned.cast(column.type) if isinstance(returned, pa.Array) else pa.array(returned, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None
    if pc.is_in(column, array).true_count < len(array):
        return None
    return requested if array.equals(column) else Keys([array], array.to_pylist)


def _can_hold(column: KeyColumn, parts: Sequence[Any]) -> bool:
    """Return whether *column* can hold all *parts*."""
    if isinstance(parts, Keys) and len(parts) and len(parts.columns) == 1:
        import pyarrow as pa
        import pyarrow.compute as pc

        (array,) = parts.columns
        if pa.types.is_integer(array.type):
            return int in column.type.types and column.type.holds(list(pc.min_max(array).as_py().values()))
    return set(column.type.types).issuperset(map(type, parts)) and (not parts or column.type.holds(parts))
