"""Columns for the engine's tests: all that the engine asks of one, without Arrow, and sources that speak in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.interface import Answers, Failure
from enrichkit.testing.scripted import ScriptedConnector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enrichkit.interface import Call
    from enrichkit.outcome import Outcomes


class Column(tuple[Any, ...]):
    """An immutable column, of which there are parts, but no single values."""

    __slots__ = ()

    def __getitem__(self, places: Any) -> tuple[Any, ...]:
        assert isinstance(places, slice), "a value of a column was asked for"
        return tuple.__getitem__(self, places)

    @property
    def nbytes(self) -> int:
        return 64 * len(self)


def in_columns(answers: Any) -> Any:
    """Return *answers*, if they are a dict, as columns."""
    return Answers(list(answers), list(answers.values())) if type(answers) is dict else answers


def column_of(answers: Answers, keys: Sequence[Any]) -> tuple[Column, list[int]]:
    """Read *answers* as `decode_columns.py` does; raises when there are others than values for *keys*."""
    rows = answers.rows()
    if len(rows) < len(answers.found) or not rows.keys() <= set(keys):
        raise ValueError("a key comes twice, or was not asked for")
    if any(isinstance(value, Failure) for value in rows.values()):
        raise TypeError("a failure is no value")
    return Column(map(rows.get, keys)), [place for place, key in enumerate(keys) if key not in rows]


def values_of(outcomes: Outcomes) -> list[Any]:
    """Return the values of a slice, those of columns included."""
    values = list(outcomes.values)
    for places, column in outcomes.value_columns:
        for place, value in zip(places, column, strict=True):
            assert values[place] is None, "a key has two values"
            values[place] = value
    return values


class Columnar(ScriptedConnector):
    """A scripted source that answers in columns."""

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        return in_columns(await super().fetch_many(keys, call))


class TakesColumns(Columnar):
    """A scripted source that takes keys in columns, too, and notes as what it got those of each call."""

    key_columns = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.given: list[Sequence[Any]] = []

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        self.given.append(keys)
        return await super().fetch_many(keys, call)
