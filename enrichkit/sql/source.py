"""The table or query of a SQL source: the choice of its columns, and errors about unsuitable columns and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import FatalError, PermanentError, did_you_mean
from ..interface import Failure
from ..values.ddl import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .config import SqlConfig

__all__ = ["Source", "listed", "no_table"]

ColumnT = TypeVar("ColumnT")


class Source:
    """
    The table or query in which keys are looked up. Its `str` is its name, for messages.

    Args:
        config: Config of the source.
        name: Name of the source in messages, for example `the table public.users`.
    """

    def __init__(self, config: SqlConfig, name: str) -> None:
        self._config = type(config).__name__
        self._keys = config.key_columns
        self._columns = config.columns
        self._expires = config.expires
        self._returns: str = config.returns or ""
        self._name = name

    def __str__(self) -> str:
        return self._name

    def choose(self, columns: Mapping[str, ColumnT]) -> tuple[list[ColumnT], list[ColumnT]]:
        """
        Return the key columns and the value columns of a table that has *columns*.

        Raises:
            FatalError: The config names a column that is not in *columns*, or no column is left for the values.
        """
        keys = [self.find("key", name, columns) for name in self._keys]
        names = self._columns or [name for name in columns if name not in (*self._keys, self._expires)]
        if not names:
            raise FatalError(
                f"{self._config}.columns is empty and {self} has no column besides its key {self._keys}. Name a column "
                "in it."
            )
        return keys, [self.find("columns", name, columns) for name in names]

    def find(self, field: str, name: str, columns: Mapping[str, ColumnT]) -> ColumnT:
        """Return the column *name*, which *field* of the config names; raises `FatalError` if *columns* lacks it."""
        if name in columns:
            return columns[name]
        raise FatalError(
            f"{self._config}.{field} names the column {name!r}, which {self} does not have."
            f"{did_you_mean(name, columns)} Its columns: {listed(columns)}."
        )

    def expiry(self, columns: Mapping[str, ColumnT]) -> ColumnT | None:
        """
        Return the column that holds the expiry times of rows, or None if the config names none; raises `FatalError`.
        """
        return None if self._expires is None else self.find("expires", self._expires, columns)

    def not_a_time(self, type_: str, allowed: str) -> FatalError:
        """Return the error for an `expires` column of the type *type_*, which is none of the *allowed* types."""
        return FatalError(
            f"{self._config}.expires names the column {self._expires!r} of {self}, which has the type {type_}; it must "
            f"be {allowed}. Name another column, or change the type of this one."
        )

    def check_fields(self, names: Sequence[str]) -> None:
        """Check that each field of `returns` is one of the value columns *names*; raises `FatalError`."""
        if len(names) > 1:  # the value of a single column is the whole value, not a field of a struct
            for name in fields_of(self._returns):  # a field without a column would be null in every row
                self.find("returns", name, dict.fromkeys(names))

    def parts_of(self, key: Any) -> tuple[Any, ...]:
        """
        Return the parts of *key*, one for each key column.

        Raises:
            FatalError: The number of parts is not the number of key columns.
        """
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(self._keys):
            raise self.misshapen()
        return parts

    def not_a_key(self, column: str, type_: str, allowed: str) -> FatalError:
        """Return the error for a key column of the type *type_*, which is none of the *allowed* types."""
        return FatalError(
            f"The key column {column!r} of {self} has the type {type_}, which cannot be looked up; a key can be one "
            f"of: {allowed}. Name another column in {self._config}.key."
        )

    def not_unique(self, statement: str) -> FatalError:
        """
        Return the error for a writable table without a unique index over the key; *statement* is SQL that creates one.
        """
        return FatalError(
            f"{self._config}.writable is True, and {self} has no unique index over exactly the columns of "
            f"{self._config}.key, {listed(self._keys)}, by which a write finds the row that it replaces. Make one: "
            f"{statement}"
        )

    def not_exact(self, column: str, type_: str) -> FatalError:
        """Return the error for a writable table whose key *column* treats different keys as equal."""
        return FatalError(
            f"{self._config}.writable is True, and the key column {column!r} of {self} has the type {type_}, which "
            "finds texts equal that are not the same: the value of one key would be given to another. Write to a table "
            "whose key column compares exactly."
        )

    def changed(self, column: str, type_: str) -> PermanentError:
        """Return the error for a written value that *column*, of the type *type_*, does not give back unchanged."""
        return PermanentError(
            f"Nothing was written to {self}: its column {column!r}, of the type {type_}, would not give a value back "
            "as it is, because it rounds, cuts, pads or changes it. Give the column a type that holds each value of "
            f"the source, or name other columns in {self._config}.columns."
        )

    def misshapen(self) -> FatalError:
        """Return the error for a key whose number of parts is not the number of key columns."""
        return FatalError(
            f"The number of parts of a key is not the number of columns in {self._config}.key: "
            f"{', '.join(map(repr, self._keys))}. Name as many key columns in enrich(...) as in {self._config}.key."
        )

    def rejection(self, column: str, part: Any, *, is_: str, takes: str, right: bool) -> Failure:
        """
        Return the answer to a key that was not sent, because *column* cannot hold *part*.

        Args:
            column: Name of a key column.
            part: Part of the key for that column.
            is_: Type of the column.
            takes: Values that the column takes, in words.
            right: Whether the Python type of *part* is right, so that only its value does not fit the column.
        """
        why = ", which it cannot hold" if right else ""
        error = PermanentError(
            f"The key was not sent: the key column {column!r} of {self} is {is_} and was given a value of the type "
            f"{type(part).__name__}{why}; it takes {takes}. Cast or filter the key in Spark."
        )
        return Failure(error, rejected=True)

    def ambiguity(self, count: int | None = None) -> Failure:
        """Return the answer to a key with *count* rows (None: two or more) where only one row is allowed."""
        return Failure(
            PermanentError(
                f"{count or 'Several'} rows of {self} have the same key, and only one row is allowed: "
                f"{' and '.join(map(repr, self._keys))} is not unique. "
                "Use enrich_frame(..., many=True) to get them all, or a key that is unique."
            )
        )


def no_table(config: SqlConfig, name: str, where: str, names: Sequence[str], hint: str = "") -> FatalError:
    """
    Return the error for a table that does not exist.

    Args:
        config: Config of the source.
        name: Name of the missing table.
        where: Place where the table was looked for, for example `the schema 'public'`.
        names: Names of the tables and views that exist in that place.
        hint: A sentence with advice; if it is empty, the message suggests the name in *names* that is most similar to
            *name*.
    """
    existing = f"Its tables and views: {listed(names)}." if names else "It has no table that this user can see."
    return FatalError(
        f"{type(config).__name__}.table names {name!r}, which {where} does not have."
        f"{hint or did_you_mean(name, names)} {existing}"
    )


def listed(names: Iterable[str]) -> str:
    """Return the first twenty *names*, quoted and with commas between them, for a message."""
    shown = [repr(name) for name in names]
    return ", ".join(shown[:20]) + (", ..." if len(shown) > 20 else "")
