"""
Helpers with which plugins write values to a table: they split a value into columns, and check that the table returns
what was written.

The table is a tier in front of another source: the engine asks the table first, and writes values that come from the
other source to the table. The table must give the same values as the other source. So a plugin reads the written rows
back, in the same transaction and with the statement that looks keys up, and commits only if nothing differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ..errors import PermanentError
from ..interface import Failure
from .source import listed

if TYPE_CHECKING:
    from ..interface import Key, Value
    from .source import Source

__all__ = ["check_stored", "rows_of", "same_value"]


def rows_of(values: Mapping[Key, Value], names: Sequence[str], source: Source) -> dict[Key, Mapping[str, Any]]:
    """
    Return each of *values* as a mapping from column names to the values to write; all mappings have the same columns.

    Args:
        values: One or more values by key. With several *names* each value is a mapping whose keys are some of *names*.
        names: Names of the value columns.
        source: The table, for messages.

    Raises:
        PermanentError: With several *names*, a value is not a mapping from some of *names*, or its keys differ from the
            keys of the first value.
    """
    if len(names) == 1:
        return {key: {names[0]: value} for key, value in values.items()}
    first = next(iter(values.values()))
    for value in values.values():
        if not isinstance(value, Mapping) or not value or value.keys() != first.keys() or value.keys() - set(names):
            fields = (
                f"a mapping with the fields {listed(value)}" if isinstance(value, Mapping) else type(value).__name__
            )
            raise PermanentError(
                f"A value to write is {fields}; all values of a call must be mappings with the same names, which must "
                f"be value columns of {source}: {listed(names)}."
            )
    return dict(values)


def same_value(written: Any, found: Any) -> bool:
    """
    Return whether *found* is the value *written*: numbers and times by value, texts and bytes exactly.

    >>> same_value(1.5, Decimal("1.50")), same_value("a", "a "), same_value([1, None], [1, None])
    (True, False, True)
    """
    if isinstance(written, list | tuple) and isinstance(found, list | tuple):
        return len(written) == len(found) and all(map(same_value, written, found))
    # NaN is not equal to itself, so two NaNs are compared separately.
    if isinstance(written, float) and isinstance(found, float | Decimal):
        return written == float(found) or (written != written and found != found)
    return bool(written == found)


def check_stored(
    source: Source,
    rows: Mapping[Key, Mapping[str, Any]],
    found: Mapping[Key, Value | Failure],
    types: Mapping[str, str],
    same: Callable[[str, Any, Any], bool] = lambda name, written, found: same_value(written, found),
) -> None:
    """
    Check that a table gives back what was written to it.

    Args:
        source: The table.
        rows: The rows that were written: for each key, the columns and their values.
        found: The answers that the table gives for these keys.
        types: The SQL type of each value column, in the order of the columns of *found*.
        same: Takes the name of a column, the value that was written to it and the value that was found, and returns
            whether the two are the same.

    Raises:
        PermanentError: A value differs, or a row is not found; the message quotes no value.
    """
    for key, row in rows.items():
        answer = found.get(key, _ABSENT)
        if isinstance(answer, Failure):
            raise PermanentError(f"Nothing was written to {source}: {answer.error}")
        if answer is _ABSENT:
            raise PermanentError(
                f"Nothing was written to {source}: a row that was written is not found by its key. Look for a trigger "
                "or a rule that changes or hides rows, and for keys that the table holds in another spelling."
            )
        parts: Any = answer if len(types) > 1 else dict.fromkeys(types, answer)
        for name, value in row.items():
            if not same(name, value, parts[name]):
                raise source.changed(name, types[name])


_ABSENT: Any = object()
