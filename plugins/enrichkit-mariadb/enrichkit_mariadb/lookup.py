"""
One lookup, prepared once: keys to the arguments of a statement, rows to answers.

    SET STATEMENT max_statement_time = 9.0 FOR
    SELECT k.n + 100, t.`id`, t.`name`
    FROM JSON_TABLE('[[7],[8]]', '$[*]' COLUMNS (n FOR ORDINALITY, k0 BIGINT PATH '$[0]')) AS k
    LEFT JOIN `shop`.`users` AS t ON t.`id` = k.k0

The keys are one parameter, whatever they are and however many, and each is compared as the type of its column: there
is no text that an integer column takes for 0. The numbers of two calls never overlap, and a key without a row comes
back as well: a reply that belongs to another statement, or is not whole, cannot be taken for an answer.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from enrichkit.connector import Failure, Key, Value
from enrichkit.errors import FatalError, PermanentError, TransientError

from .columns import Column, KeyType, ValueType, key_type, value_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enrichkit.sql import Source

__all__ = ["Asked", "Lookup"]

_LOOKED_UP = "integers, decimal, double, texts, enums, binaries, date, datetime, timestamp and uuid"


class Asked:
    """
    The keys of one call on their way.

    Attributes:
        keys: Those that are sent.
        sent_back: Each of them as its row holds it.
        offset: The row of the first one is numbered ``offset + 1``.
        document: Them all, as JSON.
        answers: What is known already: a `Failure` for each key that is not sent.
    """

    __slots__ = ("answers", "document", "keys", "offset", "sent_back")

    def __init__(self, offset: int, keys: Sequence[Key]) -> None:
        self.keys = keys
        self.sent_back: list[tuple[Any, ...]] = []
        self.offset = offset
        self.document = "[]"
        self.answers: dict[Key, Value | Failure] = {}


class Lookup:
    """
    How a table is asked. Raises `FatalError` for a column that cannot be a key or a value.

    Args:
        source: What messages call it.
        table: Its name in our statement.
        keys: The key columns.
        values: The value columns.
        max_packet: Most bytes that the server takes at once; it ends the connection of a client that sends more.
    """

    def __init__(
        self, source: Source, table: str, keys: Sequence[Column], values: Sequence[Column], max_packet: int
    ) -> None:
        self._max_packet = max_packet
        self.source = source
        self._keys = [(column, self._key_type(column)) for column in keys]
        self._types = [set(kind.types) for _, kind in self._keys]
        self._names = [column.name for column in values]
        read = [self._value_type(column) for column in (*keys, *values)]
        self._decoders = [(i, kind.decode) for i, kind in enumerate(read, 1) if kind.decode is not None]
        self._width = len(keys) + 1
        types = [kind.ddl for kind in read[len(keys) :]]
        self.ddl = types[0] if len(types) == 1 else ", ".join(map(_field, self._names, types))
        columns = ", ".join(f"k{i} {kind.column} PATH '$[{i}]'" for i, (_, kind) in enumerate(self._keys))
        on = " AND ".join(
            f"{column.sql} = {kind.equals.format(f'k.k{i}')}" for i, (column, kind) in enumerate(self._keys)
        )
        # The limit is the statement's, not the session's: nothing to set before and nothing to forget after.
        self.sql = (
            f"SET STATEMENT max_statement_time = %s FOR SELECT k.n + %s, {', '.join(kind.select for kind in read)} "  # noqa: S608 - quoted names
            f"FROM JSON_TABLE(%s, '$[*]' COLUMNS (n FOR ORDINALITY, {columns})) AS k "
            f"LEFT JOIN {table} AS t ON {on}"
        )
        self._next = secrets.randbits(40)

    def ask(self, keys: Sequence[Key]) -> Asked:
        """
        Return what to send for *keys*, without those that the columns cannot hold.

        Raises:
            PermanentError: They are too long for one statement; the engine halves the group.
            FatalError: They have another shape than the key columns.
        """
        asked = Asked(self._next, keys)
        self._next = (self._next + len(keys)) % 2**62
        parts = [self._parts(key) for key in keys]
        if not self._take(parts):
            failures = [self._rejection(part) for part in parts]
            asked.answers = {key: failure for key, failure in zip(keys, failures, strict=True) if failure is not None}
            asked.keys = [key for key in keys if key not in asked.answers]
            parts = [part for part, failure in zip(parts, failures, strict=True) if failure is None]
        # Column by column: passes in C over a group, where a loop over its keys costs five times as much.
        columns = list(zip(self._keys, zip(*parts, strict=True), strict=False))
        asked.sent_back = list(
            zip(
                *(column if kind.same is None else map(kind.same, column) for (_, kind), column in columns), strict=True
            )
        )
        encoded = (column if kind.encode is None else map(kind.encode, column) for (_, kind), column in columns)
        document = msgspec.json.encode(list(zip(*encoded, strict=True)))
        if 2 * len(document) + len(self.sql) + 100 > self._max_packet:  # the driver may escape every byte
            raise PermanentError(
                f"The keys of a call are {len(document)} bytes long; the server takes {self._max_packet} bytes at "
                "once, and each may become two. Lower batch_size, or raise max_allowed_packet of the server."
            )
        asked.document = document.decode()
        return asked

    def read(self, rows: Sequence[Sequence[Any]], asked: Asked, many: bool) -> dict[Key, Value | Failure]:
        """Return the answers that *rows* hold, and those that were known before; raises `TransientError`."""
        matches: dict[int, list[Value]] = {}
        refused: dict[int, str] = {}
        for number, *row in rows:
            index = number - asked.offset - 1
            if not 0 <= index < len(asked.keys):
                raise self._foreign()
            found = matches.setdefault(index, [])
            if row[0] is None:  # no row of the table has this key
                continue
            unreadable = self._decode(row)
            if tuple(row[: self._width - 1]) != asked.sent_back[index]:
                continue  # the collation finds them equal, Spark would not
            if unreadable is not None:
                refused[index] = unreadable
            found.append(self._value(row[self._width - 1 :]))
        if len(matches) < len(asked.keys):
            raise self._foreign()
        answers = dict(asked.answers)
        for index, found in matches.items():
            if index in refused:
                answers[asked.keys[index]] = self._refusal(refused[index])
            elif many and found:
                answers[asked.keys[index]] = found
            elif found:
                answers[asked.keys[index]] = found[0] if len(found) == 1 else self.source.ambiguity(len(found))
        return answers

    def _value(self, values: list[Any]) -> Value:
        return values[0] if len(values) == 1 else dict(zip(self._names, values, strict=True))

    def _decode(self, row: list[Any]) -> str | None:
        """Decode in place; return the name of a value column that cannot be decoded, if any."""
        unreadable = None
        for i, decode in self._decoders:
            if row[i - 1] is not None:
                try:
                    row[i - 1] = decode(row[i - 1])
                except ValueError:
                    row[i - 1] = None
                    if i >= self._width:
                        unreadable = self._names[i - self._width]
        return unreadable

    def _parts(self, key: Key) -> tuple[Any, ...]:
        parts = key if type(key) is tuple else (key,)
        if len(parts) != len(self._keys):
            raise self.source.misshapen()
        return parts

    def _take(self, parts: Sequence[tuple[Any, ...]]) -> bool:
        """Whether the columns can hold all these keys."""
        return not parts or all(
            types.issuperset(map(type, column)) and kind.holds(column)
            for (_, kind), types, column in zip(self._keys, self._types, zip(*parts, strict=True), strict=True)
        )

    def _rejection(self, parts: tuple[Any, ...]) -> Failure | None:
        for (column, kind), part in zip(self._keys, parts, strict=True):
            right = type(part) in kind.types
            if not right or not kind.holds([part]):
                return self.source.rejection(column.name, part, is_=column.full, takes=kind.allowed, right=right)
        return None

    def _key_type(self, column: Column) -> KeyType:
        kind = key_type(column)
        if kind is None:
            raise self.source.not_a_key(column.name, column.full, _LOOKED_UP)
        return kind

    def _value_type(self, column: Column) -> ValueType:
        kind = value_type(column)
        if kind is None:
            raise FatalError(
                f"The column {column.name!r} of {self.source} has the type {column.full}, for which Spark has none. "
                "Name the columns to read in MariadbConfig.columns, or make a view that converts it, for example with "
                "ST_AsText."
            )
        return kind

    def _refusal(self, column: str) -> Failure:
        return Failure(
            PermanentError(
                f"The column {column!r} of {self.source} holds a date that no calendar has, such as 0000-00-00. "
                "Leave the column out, or make a view that turns such dates into NULL."
            )
        )

    def _foreign(self) -> TransientError:
        return TransientError(
            f"A reply came back that is not the one to the keys of {self.source} that were asked for; the connection "
            "was closed."
        )


def _field(name: str, ddl: str) -> str:
    return f"`{name.replace('`', '``')}` {ddl}"
