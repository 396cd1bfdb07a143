"""
The keys and the answers of a call in columns, without a Python object for each key.

`Keys` is a sequence of keys and `Answers` a mapping of answers. Both make the Python objects only when the objects are
read.
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
"""One distinct key: a str, int, float, bytes, bool, date, datetime or Decimal; for several columns a tuple of these."""
Value: TypeAlias = Any
"""One answer, in the encoding that the connector declares."""


class Keys(Sequence[Key]):
    """
    Distinct keys, none of them null, in Arrow columns.

    Args:
        columns: One array for each part of a key, all of one length.
        objects: The keys as a list of Python objects, or a function that makes the list at the first use.

    Attributes:
        columns: One array for each part of a key, as a tuple. An array of strings may hold bytes that are not UTF-8,
            because Spark does not check strings.

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
        # If these keys are a slice of larger `Keys`: the larger `Keys`, and the indices that the keys of the slice have
        # there. None: these keys are no slice.
        self._part: tuple[Keys, range] | None = None

    def objects(self) -> list[Key]:
        """Return the keys as a list of Python objects, which the caller must not change."""
        objects = self._objects
        if not isinstance(objects, list):
            self._objects = objects = objects()
        return objects

    def sample(self, count: int, start: int = 0) -> list[Key]:
        """
        Return at most *count* of the keys from *start* on; if possible, without making the objects of the other keys.
        Return no keys if a text among them is not UTF-8.
        """
        if isinstance(self._objects, list) or len(self.columns) > 1:
            return self.objects()[start : start + count]
        try:
            # No Python objects of these keys were made yet. The worker makes keys without objects only from one column
            # of texts or whole numbers, for which `to_pylist` returns the keys.
            return list(self.columns[0][start : start + count].to_pylist())
        except UnicodeDecodeError:
            return []

    def place(self) -> tuple[list[Key], int, int]:
        """
        Return a list of objects that holds these keys, and the indices in it where the keys begin and end.

        If these keys are a contiguous slice of a larger `Keys`, the list is that of the larger one, so that no list is
        made for the slice.
        """
        if self._part is None:
            return self.objects(), 0, len(self)
        whole, indices = self._part
        return (whole.objects(), indices.start, indices.stop) if indices.step == 1 else (self.objects(), 0, len(self))

    def followed_by(self, others: Sequence[Keys]) -> Keys | None:
        """
        Return these keys and those of *others*, one after the other.

        Return None when the types of the columns differ, or when the joined columns would hold more than 2 GiB.
        """
        if not others:
            return self
        import pyarrow as pa  # costs no time: pyarrow has made the columns, so it is loaded already

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
        # A slice of a slice refers to the original keys. Otherwise keys that are sliced again and again would form a
        # long chain.
        whole, indices = self._part or (self, range(len(self)))
        indices = indices[index]

        def objects() -> list[Key]:
            all_objects = whole.objects()
            if indices.step == 1:
                return all_objects[indices.start : indices.stop]
            return [all_objects[place] for place in indices]

        part = Keys([column[index] for column in self.columns], objects)
        part._part = whole, indices
        return part

    def __iter__(self) -> Iterator[Key]:
        return iter(self.objects())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keys | list | tuple) and len(self) == len(other) and self.objects() == list(other)

    __hash__ = None  # type: ignore[assignment]  # keys may equal a list, and lists have no hash

    def __repr__(self) -> str:
        return f"Keys({self.objects()!r})"


class Answers(Mapping[Key, Value]):
    """
    Answers in columns: the mapping ``dict(zip(keys, values))``, without a Python object for each key.

    A connector whose source answers in columns returns `Answers` instead of a dict. The engine passes such answers on
    to the rows as columns, unless a key of the call must be handled separately.

    Args:
        keys: n of the keys of the call, each once, in any order.
        values: n values, as Python objects or as an Arrow array. For structs a mapping from the name of each field to
            the n values of the field.

    Attributes:
        found: The *keys*.
        columns: The *values*.

    Raises:
        ContractError: The number of values in a column is not the number of keys.

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
    """
    Return *column* as Python objects: an Arrow array is converted, any other sequence is returned as it is.

    >>> import pyarrow as pa
    >>> objects_of(pa.array([1, None])), objects_of(("a", "b"))
    ([1, None], ('a', 'b'))
    """
    return column.to_pylist() if hasattr(column, "to_pylist") else column


@functools.lru_cache(maxsize=64)
def dicts_of(names: tuple[str, ...]) -> Callable[[Iterable[Any]], list[dict[str, Any]]]:
    """Return the function that turns each row of an iterable into a dict with the keys *names*."""
    if set(map(type, names)) != {str}:
        return lambda rows: [dict(zip(names, row, strict=True)) for row in rows]
    # The function is made from text because that is faster: a dict display with three constant names takes 0.11 to 0.24
    # us, dict(zip(names, row)) 0.26 to 0.47 us. `eval` is safe here: only the names come from outside, and `repr` makes
    # Python literals of them.
    fields = ", ".join(f"{name!r}: v{n}" for n, name in enumerate(names))
    each = "".join(f"v{n}, " for n in range(len(names)))
    return eval(f"lambda rows: [{{{fields}}} for {each} in rows]", {"__builtins__": {}})  # type: ignore[no-any-return]  # noqa: S307
