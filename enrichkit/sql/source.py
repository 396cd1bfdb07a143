"""A table or a query whose columns are known: which of them are asked for, and what to say about those that are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ..connector import Failure
from ..ddl import fields_of
from ..errors import FatalError, PermanentError
from ..options import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .config import SqlConfig

__all__ = ["Source", "listed", "no_table", "quote"]

ColumnT = TypeVar("ColumnT")


class Source:
    """
    What is looked up in. Its text is its name.

    Args:
        config: What the user said.
        name: What messages call it, for example `the table public.users`.
    """

    def __init__(self, config: SqlConfig, name: str) -> None:
        self._config = type(config).__name__
        self._keys = config.key_columns
        self._columns = config.columns
        self._returns: str = config.returns or ""
        self._name = name

    def __str__(self) -> str:
        return self._name

    def choose(self, columns: Mapping[str, ColumnT]) -> tuple[list[ColumnT], list[ColumnT]]:
        """
        Return the key columns and the value columns of a table that has *columns*.

        Raises:
            FatalError: The config names a column that is not among them, or none is left for the values.
        """
        keys = [self._find("key", name, columns) for name in self._keys]
        names = self._columns or [name for name in columns if name not in self._keys]
        if not names:
            raise FatalError(
                f"{self._config}.columns is empty and {self} has no column besides its key {self._keys}. Name a column "
                "in it."
            )
        return keys, [self._find("columns", name, columns) for name in names]

    def check_fields(self, names: Sequence[str]) -> None:
        """Check that the value columns *names* fill each field of ``returns``; raises `FatalError`."""
        if len(names) > 1:  # else the value of the only column is the value, and not a field of it
            for name in fields_of(self._returns):  # a field that no column fills would be null in every row
                self._find("returns", name, dict.fromkeys(names))

    def not_a_key(self, column: str, type_: str, allowed: str) -> FatalError:
        """Return the error for a key column of the type *type_*, which is none of those *allowed*."""
        return FatalError(
            f"The key column {column!r} of {self} has the type {type_}, which cannot be looked up; a key can be one "
            f"of: {allowed}. Name another column in {self._config}.key."
        )

    def misshapen(self) -> FatalError:
        """Return the error for a key that has not one part for each key column."""
        return FatalError(
            f"A key came with another number of parts than {self._config}.key names columns: "
            f"{', '.join(map(repr, self._keys))}. Name as many key columns in enrich(...) as in {self._config}.key."
        )

    def rejection(self, column: str, part: Any, *, is_: str, takes: str, right: bool) -> Failure:
        """
        Return the answer to a key that was not sent, because *column* cannot hold its *part*.

        Args:
            column: A key column.
            part: What was given for it.
            is_: What the column is: its type.
            takes: What it takes.
            right: True when *part* is of a Python type that it takes.
        """
        why = ", which it cannot hold" if right else ""
        error = PermanentError(
            f"The key was not sent: the key column {column!r} of {self} is {is_} and was given a value of the type "
            f"{type(part).__name__}{why}; it takes {takes}. Cast or filter the key in Spark."
        )
        return Failure(error, rejected=True)

    def ambiguity(self, count: int | None = None) -> Failure:
        """Return the answer to a key that *count* rows have (None: more than one), where one is allowed."""
        return Failure(
            PermanentError(
                f"{count or 'Several'} rows of {self} have one key, and one is allowed: "
                f"{' and '.join(map(repr, self._keys))} is not unique. "
                "Use enrich_frame(..., many=True) to get them all, or a key that is unique."
            )
        )

    def _find(self, field: str, name: str, columns: Mapping[str, ColumnT]) -> ColumnT:
        if name in columns:
            return columns[name]
        raise FatalError(
            f"{self._config}.{field} names the column {name!r}, which {self} does not have."
            f"{did_you_mean(name, columns)} Its columns: {listed(columns)}."
        )


def no_table(config: SqlConfig, name: str, where: str, names: Sequence[str], hint: str = "") -> FatalError:
    """
    Return the error for a table that is not there.

    Args:
        config: What the user said.
        name: What the table was to be called.
        where: What should have it, for example `the schema 'public'`.
        names: What is there instead.
        hint: A sentence; empty: the name among *names* that looks most like it.
    """
    said = f"Its tables and views: {listed(names)}." if names else "It has no table that this user can see."
    return FatalError(
        f"{type(config).__name__}.table names {name!r}, which {where} does not have."
        f"{hint or did_you_mean(name, names)} {said}"
    )


def listed(names: Iterable[str]) -> str:
    """Return the first twenty of *names*, for a message."""
    shown = [repr(name) for name in names]
    return ", ".join(shown[:20]) + (", ..." if len(shown) > 20 else "")


def quote(name: str) -> str:
    """
    Return *name* as an identifier of standard SQL, quoted so that whatever it holds stays a name.

    >>> quote('we"ird')
    '"we""ird"'
    """
    return '"' + name.replace('"', '""') + '"'
