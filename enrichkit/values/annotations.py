"""
The Spark types that Python annotations stand for: the annotations of a class with fields, or one annotation such as
`int`.

| annotation | Spark | | annotation | Spark |
|---|---|---|---|---|
| `str`, `uuid.UUID` | string | | `date` | date |
| `bytes` | binary | | `datetime` | timestamp |
| `bool` | boolean | | `time` | time |
| `int` | bigint | | `timedelta` | interval day to second |
| `float` | double | | `list[T]`, `Sequence[T]`, `tuple[T, ...]` | array |
| `Decimal` | decimal(38,18), as Spark infers it | | `dict[K, V]`, `Mapping[K, V]` | map |
| `None` | void | | dataclass, `TypedDict`, `NamedTuple` | struct |

`T | None`, `NotRequired[T]`, `Required[T]` and `Final[T]` mean the type of T, because every field is nullable anyway.
If `Annotated` holds a Spark type, an Arrow type or DDL text, this is the type of the field: `Annotated[int, "int"]`,
`Annotated[Decimal, DecimalType(10, 2)]`. Other objects in `Annotated` are ignored: they are meant for other libraries.
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

from ..errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["annotated_type"]

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
# The wrappers are listed by name, because typing_extensions has its own versions of some of them.
_WRAPPERS = ("Required", "NotRequired", "ReadOnly", "Final")


def annotated_type(hint: Any, declared: Callable[[Any], DataType | None]) -> DataType:
    """
    Return the Spark type of the annotation *hint*.

    Args:
        hint: A class or another annotation.
        declared: Function that takes any object: if it is DDL text, a Spark type or an Arrow type, the function returns
            the type that it declares, otherwise None.

    Raises:
        ConfigError: On the driver: a part of *hint* has no Spark type; the message names the field.
    """
    return _Walk(declared).type_of(hint, "", ())


@dataclasses.dataclass(frozen=True, slots=True)
class _Walk:
    """
    A walk through an annotation and its parts.

    Each method takes a part of the annotation, the path of this part, and the classes that enclose it.
    """

    declared: Callable[[Any], DataType | None]

    def type_of(self, hint: Any, path: str, inside: tuple[Any, ...]) -> DataType:
        """Return the type of *hint*."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            return self._annotated(arguments, path, inside)
        unwrapped = _unwrap(hint, origin, arguments)
        if unwrapped is not hint:
            return self.type_of(unwrapped, path, inside)
        data_type = self._collection(origin, arguments, path, inside)
        if data_type is None:
            data_type = self._struct(hint, path, inside) if _is_struct(hint) else _plain_type(hint)
        if data_type is None:
            raise self._type_error(hint, path)
        return data_type

    def _annotated(self, arguments: tuple[Any, ...], path: str, inside: tuple[Any, ...]) -> DataType:
        for extra in arguments[1:]:
            try:
                data_type = self.declared(extra)
            except ConfigError as error:
                raise ConfigError(f"{self._where(path)} is Annotated with {extra!r}: {error}") from error
            if data_type is not None:
                return data_type
        return self.type_of(arguments[0], path, inside)

    def _collection(
        self, origin: Any, arguments: tuple[Any, ...], path: str, inside: tuple[Any, ...]
    ) -> DataType | None:
        from pyspark.sql import types as t

        if (origin in _ARRAYS and arguments) or (origin is tuple and arguments[1:] == (...,)):
            return t.ArrayType(self.type_of(arguments[0], f"{path}[]", inside))
        if origin in _MAPS and len(arguments) == 2:  # bare typing.Dict has no arguments, and dict[str] has one
            key = self.type_of(arguments[0], f"{path}{{key}}", inside)
            return t.MapType(key, self.type_of(arguments[1], f"{path}{{value}}", inside))
        return None

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
        # The hints of a dataclass may include class variables (ClassVar), which are not fields.
        names = [field.name for field in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else list(hints)
        parts = ((name, self.type_of(hints[name], f"{path}.{name}".lstrip("."), (*inside, cls))) for name in names)
        return t.StructType([t.StructField(name, part) for name, part in parts])

    def _type_error(self, hint: Any, path: str) -> ConfigError:
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


def _unwrap(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    """
    Return the annotation that *hint* stands for, or *hint* itself if it stands for no other.

    For `T | None`, for a wrapper such as `Required[T]` and for a NewType of T, this is T. For a Literal whose values
    all have the same type, it is the type of the values.
    """
    if getattr(origin, "_name", None) in _WRAPPERS:
        return arguments[0]
    if origin is typing.Literal and len({*map(type, arguments)}) == 1:
        return type(arguments[0])  # only the type matters here; a connector may use the values themselves
    if hasattr(hint, "__supertype__"):  # a NewType
        return hint.__supertype__
    if origin in (typing.Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None)]
        if len(others) == 1:
            return others[0]
    return hint


def _plain_type(hint: Any) -> DataType | None:
    from pyspark.sql import types as t

    if hint is decimal.Decimal:
        return t.DecimalType(38, 18)
    if (isinstance(hint, type) or hint is None) and hint in _PLAIN and hasattr(t, _PLAIN[hint]):
        return typing.cast("DataType", getattr(t, _PLAIN[hint])())
    return None


def _is_struct(hint: Any) -> bool:
    if not isinstance(hint, type):
        return False
    # A TypedDict is recognized by an attribute, because typing.is_typeddict does not know the TypedDict of
    # typing_extensions.
    is_typed_dict = issubclass(hint, dict) and hasattr(hint, "__required_keys__")
    is_named_tuple = issubclass(hint, tuple) and hasattr(hint, "_fields")
    return dataclasses.is_dataclass(hint) or is_typed_dict or is_named_tuple
