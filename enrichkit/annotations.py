"""
Python annotations -> Spark types: a dataclass, `TypedDict` or `NamedTuple` of annotated fields, or a plain annotation.

| annotation | Spark | | annotation | Spark |
|---|---|---|---|---|
| `str`, `uuid.UUID` | string | | `date` | date |
| `bytes` | binary | | `datetime` | timestamp |
| `bool` | boolean | | `time` | time |
| `int` | bigint | | `timedelta` | interval day to second |
| `float` | double | | `list[T]`, `Sequence[T]`, `tuple[T, ...]` | array |
| `Decimal` | decimal(38,18), as Spark infers it | | `dict[K, V]`, `Mapping[K, V]` | map |
| `None` | void | | dataclass, `TypedDict`, `NamedTuple` | struct |

`T | None`, `NotRequired[T]`, `Required[T]` and `Final[T]` are T: every field is nullable. A Spark type, an Arrow type
or DDL text in `Annotated` decides: `Annotated[int, "int"]`, `Annotated[Decimal, DecimalType(10, 2)]`. Other things in
`Annotated` are for others.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import decimal
import types
import typing
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from .errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["type_of_annotation"]

_ALLOWED = (
    "str, bytes, bool, int, float, Decimal, UUID, date, datetime, time, timedelta, list[T], dict[K, V], T | None, "
    "Annotated[T, 'DDL'], and dataclasses, TypedDicts and NamedTuples of such fields"
)
_PLAIN: dict[Any, str] = {
    str: "StringType",
    uuid.UUID: "StringType",
    bytes: "BinaryType",
    bool: "BooleanType",
    int: "LongType",
    float: "DoubleType",
    dt.date: "DateType",
    dt.datetime: "TimestampType",
    dt.time: "TimeType",
    dt.timedelta: "DayTimeIntervalType",
    None: "NullType",
    type(None): "NullType",
}
_ARRAYS = (list, collections.abc.Sequence)
_MAPS = (dict, collections.abc.Mapping)
# By name, because typing_extensions has its own of some of them.
_WRAPPERS = ("Required", "NotRequired", "ReadOnly", "Final")


def type_of_annotation(hint: Any, declared: Callable[[Any], DataType | None]) -> DataType:
    """
    Return the Spark type of the annotation *hint*.

    Args:
        hint: A class or another annotation.
        declared: Returns the type that DDL text, a Spark type or an Arrow type declares; None for anything else.

    Raises:
        ConfigError: On the driver: part of it has no Spark type; the message names the field.
    """
    return _Walk(declared).type_of(hint, "", ())


@dataclasses.dataclass(frozen=True, slots=True)
class _Walk:
    declared: Callable[[Any], DataType | None]

    def type_of(self, hint: Any, path: str, inside: tuple[Any, ...]) -> DataType:
        """The type of *hint*, which is at *path*, in a field of the classes *inside*."""
        from pyspark.sql import types as t

        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            return self._annotated(arguments, path, inside)
        if getattr(origin, "_name", None) in _WRAPPERS:
            return self.type_of(arguments[0], path, inside)
        if hasattr(hint, "__supertype__"):  # a NewType
            return self.type_of(hint.__supertype__, path, inside)
        if origin in (typing.Union, types.UnionType):
            others = [argument for argument in arguments if argument is not type(None)]
            if len(others) == 1:
                return self.type_of(others[0], path, inside)
        elif (origin in _ARRAYS and arguments) or (origin is tuple and arguments[1:] == (...,)):
            return t.ArrayType(self.type_of(arguments[0], f"{path}[]", inside))
        elif origin in _MAPS and len(arguments) == 2:  # typing.Dict has none, and dict[str] is not refused by Python
            key, value = (
                self.type_of(part, path + name, inside)
                for part, name in zip(arguments, ("{key}", "{value}"), strict=True)
            )
            return t.MapType(key, value)
        elif _is_struct(hint):
            return self._struct(hint, path, inside)
        elif hint is decimal.Decimal:
            return t.DecimalType(38, 18)
        elif (isinstance(hint, type) or hint is None) and hint in _PLAIN and hasattr(t, _PLAIN[hint]):
            return typing.cast("DataType", getattr(t, _PLAIN[hint])())
        raise self._refused(hint, path)

    def _annotated(self, arguments: tuple[Any, ...], path: str, inside: tuple[Any, ...]) -> DataType:
        for extra in arguments[1:]:
            try:
                found = self.declared(extra)
            except ConfigError as error:
                raise ConfigError(f"{self._where(path)} is Annotated with {extra!r}: {error}") from error
            if found is not None:
                return found
        return self.type_of(arguments[0], path, inside)

    def _struct(self, cls: type, path: str, inside: tuple[Any, ...]) -> DataType:
        from pyspark.sql import types as t

        if cls in inside:
            raise ConfigError(
                f"{self._where(path)} is annotated as {cls.__qualname__}, which is a part of itself; a Spark type ends "
                "somewhere. Leave the field out, or annotate it as str and parse it in Spark."
            )
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except (NameError, TypeError) as error:
            raise ConfigError(
                f"{self._where(path)} is {cls.__qualname__}, whose annotations cannot be read: {error}. Define what "
                "they name at the top of the module, not in a function, or write the type as DDL."
            ) from error
        # Not all annotations of a dataclass are fields: there are ClassVars.
        names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else list(hints)
        parts = ((name, self.type_of(hints[name], f"{path}.{name}".lstrip("."), (*inside, cls))) for name in names)
        return t.StructType([t.StructField(name, part) for name, part in parts])

    def _refused(self, hint: Any, path: str) -> ConfigError:
        shown = hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
        kind, more = typing.get_origin(hint) or hint, ""
        if kind in _ARRAYS:
            more = " Say of what, as in list[str]."
        elif kind in _MAPS:
            more = " Say of what, as in dict[str, int]."
        elif hint is dt.time:
            more = " PySpark has a time type from 4.1 on."
        return ConfigError(
            f"{self._where(path)} is annotated as {shown}, which has no Spark type; allowed are {_ALLOWED}."
            f"{more} Change it, or write the type as DDL."
        )

    def _where(self, path: str) -> str:
        return f"The field {path!r} of returns" if path else "returns"


def _is_struct(hint: Any) -> bool:
    if not isinstance(hint, type):
        return False
    # typing.is_typeddict does not know those of typing_extensions.
    typed_dict = issubclass(hint, dict) and hasattr(hint, "__required_keys__")
    named_tuple = issubclass(hint, tuple) and hasattr(hint, "_fields")
    return dataclasses.is_dataclass(hint) or typed_dict or named_tuple
