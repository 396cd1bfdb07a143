"""
What a call of many keys takes and gives without a Python object for each: keys and answers in columns.

Both are what they stand for, a sequence of keys and a mapping of answers, and become that only for whoever asks for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from .errors import ContractError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Answers", "Key", "Keys", "Value", "dicts_of", "objects_of"]

Key: TypeAlias = Any
"""One distinct key: a str, int, float, bytes, bool, date, datetime or Decimal; a tuple of them for several columns."""
Value: TypeAlias = Any
"""One answer, in the encoding that the connector declares."""


class Keys(Sequence[Key]):
    """
    Distinct keys, none of them null, in Arrow columns.

    Args:
        columns: One array for each part of a key, all of one length.
        objects: The keys as Python objects, or what makes them when they are asked for.

    Attributes:
        columns: As given. A string may hold bytes that are no UTF-8.

    >>> import pyarrow as pa
    >>> column = pa.array(["a", "b", "c"])
    >>> keys = Keys([column], column.to_pylist)
    >>> keys[1:], keys[1:].columns[0].to_pylist(), keys[0]
    (Keys(['b', 'c']), ['b', 'c'], 'a')
    """

    __slots__ = ("_objects", "_part", "columns")

    def __init__(self, columns: Sequence[pa.Array[Any]], objects: list[Key] | Callable[[], list[Key]]) -> None:
        self.columns = tuple(columns)
        self._objects = objects
        self._part: tuple[Keys, range] | None = None  # the keys that these were cut from, and which of them they are

    def objects(self) -> list[Key]:
        """Return the keys as Python objects; a list that must not be changed."""
        made = self._objects
        if not isinstance(made, list):
            self._objects = made = made()
        return made

    def place(self) -> tuple[list[Key], int, int]:
        """Return the objects of the whole that these keys are a part of, where they begin there, and where they end."""
        if self._part is None:
            return self.objects(), 0, len(self)
        whole, places = self._part
        return (whole.objects(), places.start, places.stop) if places.step == 1 else (self.objects(), 0, len(self))

    def followed_by(self, others: Sequence[Keys]) -> Keys | None:
        """Return these keys and those of *others*; None: columns of other types, or of more than 2 GiB together."""
        if not others:
            return self
        import pyarrow as pa  # whoever has keys has loaded it

        all_keys = (self, *others)
        try:
            columns = [pa.concat_arrays(parts) for parts in zip(*(keys.columns for keys in all_keys), strict=True)]
        except pa.ArrowInvalid:
            return None
        return Keys(columns, lambda: list(chain.from_iterable(keys.objects() for keys in all_keys)))

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, index: int) -> Key: ...

    @overload
    def __getitem__(self, index: slice) -> Keys: ...

    def __getitem__(self, index: int | slice) -> Key | Keys:
        if not isinstance(index, slice):
            return self.objects()[index]
        # Of the whole: what is cut again and again would be a long chain of parts.
        whole, places = self._part or (self, range(len(self)))
        places = places[index]

        def objects() -> list[Key]:
            every = whole.objects()
            return every[places.start : places.stop] if places.step == 1 else [every[place] for place in places]

        part = Keys([column[index] for column in self.columns], objects)
        part._part = whole, places
        return part

    def __iter__(self) -> Iterator[Key]:
        return iter(self.objects())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys | list | tuple) and len(self) == len(other) and self.objects() == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return f"Keys({self.objects()!r})"


class Answers(Mapping[Key, Value]):
    """
    Answers column by column: they say what ``dict(zip(keys, values))`` says, without an object for each key.

    For connectors whose source answers in columns. The engine hands such answers on to the rows as they are, unless a
    key of the call needs to be looked at for itself.

    Args:
        keys: n of the keys that were asked for, each once, in any order.
        values: n values, as Python objects or as an Arrow array; or by the name of a field its n values, when a value
            is a struct.

    Attributes:
        found: The *keys*.
        columns: The *values*.

    Raises:
        ContractError: There are more keys than values, or fewer.

    >>> answers = Answers([7, 8], {"name": ["Ann", "Bob"], "tier": [3, None]})
    >>> answers[8], 9 in answers
    ({'name': 'Bob', 'tier': None}, False)
    """

    __slots__ = ("_rows", "columns", "found")

    def __init__(self, keys: Sequence[Key], values: Sequence[Value] | Mapping[str, Sequence[Value]]) -> None:
        self.found = keys
        self.columns = values
        self._rows: dict[Key, Value] | None = None
        columns = tuple(values.values()) if isinstance(values, Mapping) else (values,)
        for column in columns or ((),):
            if len(column) != len(keys):
                raise ContractError(f"Answers have {len(keys):,} keys but {len(column):,} values; give one for each.")

    def rows(self) -> dict[Key, Value]:
        """Return the answers as a dict."""
        if self._rows is None:
            values = self.columns
            if isinstance(values, Mapping):
                values = dicts_of(tuple(values))(zip(*map(objects_of, values.values()), strict=True))
            else:
                values = objects_of(values)
            self._rows = dict(zip(self.found, values, strict=True))
        return self._rows

    def __getitem__(self, key: Key) -> Value:
        return self.rows()[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self.rows())

    def __len__(self) -> int:
        return len(self.rows())

    def __repr__(self) -> str:
        return f"<Answers to {len(self.found):,} keys>"


def objects_of(column: Sequence[Value] | pa.Array[Any]) -> Sequence[Value]:
    """Return *column* with Python objects; as it is unless it is an Arrow array."""
    return column.to_pylist() if hasattr(column, "to_pylist") else column


@functools.lru_cache(maxsize=64)
def dicts_of(names: tuple[str, ...]) -> Callable[[Iterable[Any]], list[dict[str, Any]]]:
    """Return what makes a dict with the keys *names* of each row."""
    if set(map(type, names)) != {str}:
        return lambda rows: [dict(zip(names, row, strict=True)) for row in rows]
    # A dict display with constant names takes 0.11 to 0.24 us for three of them, dict(zip(names, row)) 0.26 to 0.47.
    # The only foreign text in it are the names, as Python literals.
    fields = ", ".join(f"{name!r}: v{n}" for n, name in enumerate(names))
    each = "".join(f"v{n}, " for n in range(len(names)))
    return eval(f"lambda rows: [{{{fields}}} for {each} in rows]", {"__builtins__": {}})  # type: ignore[no-any-return]  # noqa: S307
