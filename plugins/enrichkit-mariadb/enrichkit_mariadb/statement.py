"""
The prepared statement of a source: it turns keys into arguments, and rows into answers.

    SET STATEMENT max_statement_time = 9.0 FOR
    SELECT k.n + 100, t.`id`, t.`name`
    FROM JSON_TABLE('[[7],[8]]', '$[*]' COLUMNS (n FOR ORDINALITY, k0 BIGINT PATH '$[0]')) AS k
    LEFT JOIN `shop`.`users` AS t ON t.`id` = k.k0

All keys of a call are one parameter, a JSON document. The server compares each key as the type of its column.
Otherwise, MariaDB would read a text such as 'abc' as the number 0 when it compares the text with an integer column, and
find the row with the key 0. Each key of a call has a number, and the result holds this number even if the table has no
row for the key. The numbers of two calls never overlap. So the connector notices a reply that belongs to another
statement, or that is not complete.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from enrichkit.errors import FatalError, PermanentError, TransientError
from enrichkit.plugin import Failure, Key, Value

from .columns import Column, KeyType, ValueType, key_type, value_type
from .listing import Listing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enrichkit.sql import Source

__all__ = ["Request", "Statement"]

_LOOKED_UP = "integers, decimal, double, texts, enums, binaries, date, datetime, timestamp and uuid"


class Request:
    """
    The keys of one call.

    Attributes:
        keys: The keys that are sent.
        expected_parts: For each key that is sent, the values that the key columns return for a row with this key.
        offset: Number that the server adds to the position of each key, counted from 1; so the first key has the number
            ``offset + 1``.
        document: The keys as JSON, a list with a list of parts for each key.
        answers: The answers that need no server: a `Failure` for each key that is not sent.
    """

    __slots__ = ("answers", "document", "expected_parts", "keys", "offset")

    def __init__(self, offset: int, keys: Sequence[Key]) -> None:
        self.keys = keys
        self.expected_parts: list[tuple[Any, ...]] = []
        self.offset = offset
        self.document = "[]"
        self.answers: dict[Key, Value | Failure] = {}


class Statement:
    """
    The statement that looks up keys in a table or view.

    Args:
        source: The table, for messages.
        table: SQL of the table's name.
        keys: The key columns.
        values: The value columns.
        max_packet: Most bytes of a statement; the server closes the connection of a client that sends more.
        serves: SQL of a further condition, which begins with `AND` and is true for rows that have not expired; empty if
            rows never expire.

    Attributes:
        source: The *source*.
        table: The *table*.
        types: Types of the value columns by name, as the server writes them.
        max_packet: The *max_packet*.
        sql: Text of the statement.
        sql_of_all: Text of a statement like `sql` that also finds rows that have expired.
        ddl: Type of one value.
        listing: The statements that list the keys.

    Raises:
        FatalError: A key column has a type that cannot be looked up, or a column has a type that Spark does not have.
    """

    def __init__(
        self,
        source: Source,
        table: str,
        keys: Sequence[Column],
        values: Sequence[Column],
        max_packet: int,
        serves: str = "",
    ) -> None:
        self.max_packet = max_packet
        self.table = table
        self.types = {column.name: column.full for column in values}
        self.source = source
        self._keys = [(column, self._key_type(column)) for column in keys]
        self.listing = Listing(source, table, self._keys, serves)
        self._python_types = [set(type_.types) for _, type_ in self._keys]
        self._values = list(values)
        self._names = [column.name for column in values]
        selected = [self._value_type(column) for column in (*keys, *values)]
        self._decoders = [(i, type_.decode) for i, type_ in enumerate(selected) if type_.decode is not None]
        self._key_width = len(keys)
        types = [type_.ddl for type_ in selected[len(keys) :]]
        self.ddl = types[0] if len(types) == 1 else ", ".join(map(_field, self._names, types))
        select = ", ".join(type_.select for type_ in selected)
        # A further column of the result has the number of the first key column whose character set lacks a character of
        # the key, or 0 if there is no such key column.
        unmapped = [
            f"WHEN {type_.unmapped.format(f'k.k{i}')} THEN {i + 1}"
            for i, (_, type_) in enumerate(self._keys)
            if type_.unmapped is not None
        ]
        self._finds_unmapped = bool(unmapped)
        if unmapped:
            select += f", CASE {' '.join(unmapped)} ELSE 0 END"
        columns = ", ".join(f"k{i} {type_.column} PATH '$[{i}]'" for i, (_, type_) in enumerate(self._keys))
        on = " AND ".join(
            f"{column.sql} = {type_.equals.format(f'k.k{i}')}" for i, (column, type_) in enumerate(self._keys)
        )
        # The time limit belongs to the statement and not to the session, so that no call needs a further round trip to
        # set or reset it.
        self.sql_of_all = (
            f"SET STATEMENT max_statement_time = %s FOR SELECT k.n + %s, {select} "  # noqa: S608 - quoted names
            f"FROM JSON_TABLE(%s, '$[*]' COLUMNS (n FOR ORDINALITY, {columns})) AS k "
            f"LEFT JOIN {table} AS t ON {on}"
        )
        self.sql = self.sql_of_all + serves
        self._next_offset = secrets.randbits(40)

    def request(self, keys: Sequence[Key]) -> Request:
        """
        Return the request for *keys*; a key that the columns cannot hold is not sent.

        Raises:
            PermanentError: The keys are too long for one statement; the engine then splits them into smaller calls.
            FatalError: A key does not have as many parts as there are key columns.
        """
        request = Request(self._next_offset, keys)
        self._next_offset = (self._next_offset + len(keys)) % 2**62
        parts = [self._parts_of(key) for key in keys]
        if not self._can_hold(parts):
            failures = [self._rejection(each) for each in parts]
            request.answers = {key: failure for key, failure in zip(keys, failures, strict=True) if failure is not None}
            request.keys = [key for key in keys if key not in request.answers]
            parts = [each for each, failure in zip(parts, failures, strict=True) if failure is None]
        # The keys are converted column by column, in loops that run in C; a Python loop over the keys would take five
        # times as long.
        columns = list(zip(self._keys, zip(*parts, strict=True), strict=False))
        request.expected_parts = list(
            zip(
                *(
                    column if type_.returned_as is None else map(type_.returned_as, column)
                    for (_, type_), column in columns
                ),
                strict=True,
            )
        )
        encoded = (column if type_.encode is None else map(type_.encode, column) for (_, type_), column in columns)
        document = msgspec.json.encode(list(zip(*encoded, strict=True)))
        if 2 * len(document) > self.room(self.sql):  # asyncmy may escape every byte
            raise PermanentError(
                f"The keys of a call are {len(document)} bytes long, which escaping may double; the server takes "
                f"{self.max_packet} bytes at once. Lower batch_size, or raise max_allowed_packet of the server."
            )
        request.document = document.decode()
        return request

    def room(self, sql: str) -> int:
        """Return how many bytes the arguments of the statement *sql* may take, besides its one or two numbers."""
        return self.max_packet - len(sql.encode()) - 100  # 100 bytes are for these numbers and the packet header

    def read(self, rows: Sequence[Sequence[Any]], request: Request, many: bool) -> dict[Key, Value | Failure]:
        """
        Return the answers in *rows*, together with the answers that *request* already has. If *many* is True, the
        answer for a key is the list of the values of all its rows; otherwise, several rows for one key are a `Failure`.

        Raises:
            TransientError: The numbers in *rows* are not those of the request.
        """
        matches, failures = self._matches(rows, request)
        answers = dict(request.answers)
        for index, values in matches.items():
            if index in failures:
                answers[request.keys[index]] = failures[index]
            elif many and values:
                answers[request.keys[index]] = values
            elif values:
                answers[request.keys[index]] = values[0] if len(values) == 1 else self.source.ambiguity(len(values))
        return answers

    def _matches(
        self, rows: Sequence[Sequence[Any]], request: Request
    ) -> tuple[dict[int, list[Value]], dict[int, Failure]]:
        """
        Return the values in *rows*, and the failures of keys that cannot be compared or whose values cannot be decoded.

        Both mappings are keyed by the index of a key in *request*. A key without a row has an empty list of values.
        """
        matches: dict[int, list[Value]] = {}
        failures: dict[int, Failure] = {}
        first, count, width = request.offset + 1, len(request.keys), self._key_width
        for number, *row in rows:
            index = number - first
            if not 0 <= index < count:
                raise self._foreign_reply()
            values = matches.setdefault(index, [])
            if self._finds_unmapped and (unmapped := row.pop()):
                failures[index] = self._unmapped(self._keys[unmapped - 1][0])
                continue
            if row[0] is None:  # no row of the table has this key
                continue
            column = self._decode(row) if self._decoders else None
            if tuple(row[:width]) != request.expected_parts[index]:
                continue  # the collation treats this key as equal to the key of the row, but Spark does not
            if column is not None:
                failures[index] = self._refusal(column)
            values.append(self._value_of(row[width:]))
        if len(matches) < count:
            raise self._foreign_reply()
        return matches, failures

    def _value_of(self, columns: list[Any]) -> Value:
        return columns[0] if len(columns) == 1 else dict(zip(self._names, columns, strict=True))

    def _decode(self, row: list[Any]) -> Column | None:
        """
        Decode the columns of *row* in place. Return a value column whose value cannot be decoded, or None if there is
        none.
        """
        unreadable = None
        for i, decode in self._decoders:
            if row[i] is not None:
                try:
                    row[i] = decode(row[i])
                except ValueError:
                    row[i] = None
                    if i >= self._key_width:
                        unreadable = self._values[i - self._key_width]
        return unreadable

    def _parts_of(self, key: Key) -> tuple[Any, ...]:
        parts = key if type(key) is tuple else (key,)
        if len(parts) != len(self._keys):
            raise self.source.misshapen()
        return parts

    def _can_hold(self, parts: Sequence[tuple[Any, ...]]) -> bool:
        """Return whether the columns can hold all keys; *parts* has a tuple of the parts of each key."""
        return not parts or all(
            types.issuperset(map(type, column)) and type_.holds(column)
            for (_, type_), types, column in zip(self._keys, self._python_types, zip(*parts, strict=True), strict=True)
        )

    def _rejection(self, parts: tuple[Any, ...]) -> Failure | None:
        """
        Return the `Failure` for a key with a part that its column cannot hold; None if the columns can hold all
        *parts*.
        """
        for (column, type_), part in zip(self._keys, parts, strict=True):
            right = type(part) in type_.types
            if not right or not type_.holds([part]):
                return self.source.rejection(column.name, part, is_=column.full, takes=type_.allowed, right=right)
        return None

    def _key_type(self, column: Column) -> KeyType:
        type_ = key_type(column)
        if type_ is None:
            raise self.source.not_a_key(column.name, column.full, _LOOKED_UP)
        return type_

    def _value_type(self, column: Column) -> ValueType:
        type_ = value_type(column)
        if type_ is None:
            raise FatalError(
                f"The column {column.name!r} of {self.source} has the type {column.full}, which Spark does not have. "
                "Name the columns to read in MariadbConfig.columns, or make a view that converts this column, for "
                "example with ST_AsText."
            )
        return type_

    def _refusal(self, column: Column) -> Failure:
        """Return the answer to a key whose row has a value in *column* that cannot be decoded."""
        if not column.is_text:
            return Failure(
                PermanentError(
                    f"The column {column.name!r} of {self.source} holds a date that no calendar has, such as "
                    "0000-00-00. Leave the column out, or make a view that turns such dates into NULL."
                )
            )
        return Failure(
            PermanentError(
                f"The column {column.name!r} of {self.source} holds bytes that its character set {column.charset} does "
                "not map to Unicode, and MariaDB would send '?' in their place. Name the column in "
                "MariadbConfig.as_bytes, to read its bytes as they are stored."
            )
        )

    def _unmapped(self, column: Column) -> Failure:
        """Return the answer to a key with a character that the character set of the key *column* lacks."""
        return Failure(
            PermanentError(
                f"The key has a character that the character set {column.charset} of the key column {column.name!r} of "
                f"{self.source} does not map, and MariaDB would look for '?' in its place. Name the column in "
                "MariadbConfig.as_bytes, to look rows up by the bytes that they hold."
            )
        )

    def _foreign_reply(self) -> TransientError:
        """Return the error for a reply that belongs to another statement, or that is not complete."""
        return TransientError(
            f"The reply from {self.source} does not hold exactly the keys of the call; the connection was closed."
        )


def _field(name: str, ddl: str) -> str:
    """Return the DDL of one field of a struct, with the name in backquotes."""
    return f"`{name.replace('`', '``')}` {ddl}"
