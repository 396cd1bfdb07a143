"""The check whether the first answers of a task have the fields that the user has declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from ..errors import ConfigError, did_you_mean
from ..interface import Absent, Answers, Failure
from .types import is_variant

__all__ = ["FirstAnswers"]

ENOUGH = 20
"""
If this many answers all lack a declared field, the check reports the field as a mistake, even before the task has
ended.
"""
MOST_LOOKS = 200
"""Number of answers after which the check ends, even if few of them were objects."""
MOST_NAMES = 20
VALUE = ("", "")
"""A marker in the set of seen fields: at least one answer had a value at the path that the config names."""

Tree: TypeAlias = "dict[str, Tree]"
"""The declared fields by name; the value of a field is the tree of the fields declared inside it."""
Place: TypeAlias = "tuple[str, ...]"
"""The path of a field in an answer: the names of the enclosing fields from the top down, and its own name."""

_seen: dict[str, set[Place]] = {}
"""By enrichment, the fields that answers in this process have had; later tasks do not check these fields again."""


class FirstAnswers:
    """
    A check of the fields in a task's first answers against the declared fields; used only on the event-loop thread.

    Without this check, a declared field that no answer has would be null in all rows without an error, so a misspelled
    name would look like an empty source.

    Attributes:
        done: Whether there is nothing left to check.

    Args:
        source: Name of the source, for messages.
        data_type: The declared type of a value.
        encoding: The connector's encoding of an answer, see `Connector.encoding`.
        enrichment: Fingerprint of the source and the declared type; tasks with the same fingerprint share what they
            have found.
    """

    def __init__(self, source: str, data_type: pa.DataType, encoding: str, enrichment: str) -> None:
        self._source = source
        self._tree = _tree_of(data_type)
        # The fields of answers in the encoding `text` are not checked, because in a mapping of texts, such as a Redis
        # hash, the fields of one answer say nothing about the fields of other answers.
        self._read: Callable[[Any], Any] | None = None
        if self._tree and encoding in ("json", "python"):
            self._read = msgspec.json.decode if encoding == "json" else lambda answer: answer
        self._found = _seen.setdefault(enrichment, set())
        self._looked = 0
        self._objects: dict[Place, int] = {}
        self._names: dict[Place, dict[str, None]] = {}
        self._paths: dict[str, tuple[int, dict[str, None]]] = {}
        self.done = False

    def see(self, answers: Mapping[Any, Any]) -> ConfigError | None:
        """
        Inspect the *answers* of one call; return an error if they show that a declared field or the config's path is
        wrong.
        """
        if isinstance(answers, Answers) and isinstance(answers.columns, Mapping):
            self.done = True  # answers in columns are not checked: their connector requests each field by its name
            return None
        for answer in islice(answers.values(), ENOUGH):
            for match in answer if isinstance(answer, list | tuple) else (answer,):
                self._look(match)
        enough = max(self._objects.get((), 0), *(count for count, _ in self._paths.values()), 0) >= ENOUGH
        nothing_left = self._read is None and VALUE in self._found  # no fields to check, and the path is right
        self.done = enough or nothing_left or self._looked >= MOST_LOOKS
        return self.verdict(f"the first {ENOUGH} answers of this task") if enough else None

    def verdict(self, which: str = "") -> ConfigError | None:
        """
        Return an error if the answers so far show that a declared field or the config's path is wrong, otherwise None.

        Args:
            which: Words that name the inspected answers in the message; empty: the message names all answers of the
                task.
        """
        for path, (count, names) in self._paths.items():
            if VALUE not in self._found:
                return self._path_error(which or _all(count), path, names)
        objects = self._objects.get((), 0)
        for place, count in self._objects.items():
            if count < objects:
                continue  # some answers lack the whole object at this path, so nothing is known of its fields
            absent = [name for name in _inside(self._tree, place) if (*place, name) not in self._found]
            if absent:
                return self._field_error(which or _all(objects), place, absent)
        return None

    def _look(self, answer: Any) -> None:
        if isinstance(answer, Failure):
            return
        self._looked += 1
        try:
            if isinstance(answer, Absent):
                names = answer.names()
                if names is not None:
                    count, known = self._paths.get(answer.path, (0, {}))
                    self._paths[answer.path] = count + 1, known | dict.fromkeys(names)
                return
            self._found.add(VALUE)
            if self._read is not None:
                self._walk(self._read(answer), self._tree, ())
        except Exception:  # noqa: BLE001  # the decoder will report what is wrong with this answer
            return

    def _walk(self, value: Any, tree: Tree, place: Place) -> None:
        """
        Record which fields of the declared type *tree* occur in *value*, found at the path *place*. The items of a list
        share the path of the list.
        """
        if isinstance(value, list | tuple):
            for element in value:
                self._walk(element, tree, place)
        elif isinstance(value, Mapping):
            self._objects[place] = self._objects.get(place, 0) + 1
            self._names.setdefault(place, {}).update(dict.fromkeys(map(str, islice(value, 100))))
            for name, inner in tree.items():
                if name in value:
                    self._found.add((*place, name))
                    if inner:
                        self._walk(value[name], inner, (*place, name))

    def _field_error(self, which: str, place: Place, absent: Sequence[str]) -> ConfigError:
        names = self._names.get(place, {})
        fields = " and ".join(repr(".".join((*place, name))) for name in absent)
        what, they = ("field", "it") if len(absent) == 1 else ("fields", "they")
        return ConfigError(
            f"{self._source}: none of {which} has the declared {what} {fields}, so {they} would be null in every row."
            f"{did_you_mean(absent[0], names)} They have {_listed(names)}. Correct returns=, or set "
            "absent_fields='null' if that is right."
        )

    def _path_error(self, which: str, path: str, names: Iterable[str]) -> ConfigError:
        last = path.rpartition(".")[2]
        return ConfigError(
            f"{self._source}: none of {which} has a value at {path!r}, so every key would be missing."
            f"{did_you_mean(last, names)} Where the path ends they have {_listed(names)}. Correct the path in the "
            "config, or set absent_fields='null' if that is right."
        )


def _all(count: int) -> str:
    return f"the answers of this task ({count:,} in all)"


def _tree_of(data_type: Any) -> Tree:
    """
    Return the tree of the fields declared in *data_type*; for a list, the tree of its items. A type without fields
    gives {}.
    """
    if pa.types.is_list(data_type):
        return _tree_of(data_type.value_type)
    if not pa.types.is_struct(data_type) or is_variant(data_type):
        return {}
    return {field.name: _tree_of(field.type) for field in data_type}


def _inside(tree: Tree, place: Place) -> Iterator[str]:
    """Return the names of the fields that are declared directly below the path *place*."""
    for name in place:
        tree = tree[name]
    return iter(tree)


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name[:60]) for name in names]
    if not shown:
        return "no field"
    return ", ".join(shown[:MOST_NAMES]) + (" and more" if len(shown) > MOST_NAMES else "")
