"""The JSON schema of the declared type, and the check of an answer against this schema."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from enrichkit.plugin import fields_of

__all__ = ["mismatch", "named_parts", "schema_of"]

_PLAIN = {"string": "string", "boolean": "boolean", "float": "number", "double": "number"}
_PLAIN |= dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "integer")
_KINDS: dict[str, tuple[type, ...]] = {"object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,)}
_KINDS |= {"integer": (int,), "number": (int, float)}


def named_parts(hint: Any, path: str = "") -> tuple[dict[str, tuple[Any, ...]], list[str]]:
    """
    Return what the annotations of a class say about its fields beyond what a Spark type can express.

    Returns:
        The values of each `Literal` by the path of the field, and the paths of the fields that may be None.

    >>> named_parts(list[Literal["a", "b"]])
    ({'[]': ('a', 'b')}, [])
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return named_parts(arguments[0], path)
    if origin is Literal:
        return {path: arguments}, []
    if origin in (typing.Union, types.UnionType):
        others = [each for each in arguments if each is not type(None)]
        choices, optional = named_parts(others[0], path) if len(others) == 1 else ({}, [])
        return choices, [*optional, *([path] if len(others) < len(arguments) else [])]
    if origin in (list, tuple) and arguments:
        return named_parts(arguments[0], f"{path}[]")
    if not isinstance(hint, type) or not (dataclasses.is_dataclass(hint) or hasattr(hint, "__annotations__")):
        return {}, []
    try:
        hints = typing.get_type_hints(hint, include_extras=True)
    except (NameError, TypeError):
        return {}, []  # the planner checks the class, too, and reports what is wrong with it
    choices, optional = {}, []
    for name, each in hints.items():
        more, less = named_parts(each, f"{path}.{name}".lstrip("."))
        choices |= more
        optional += less
    return choices, optional


def schema_of(
    ddl: str, choices: Mapping[str, tuple[Any, ...]], optional: tuple[str, ...] = (), path: str = ""
) -> dict[str, Any]:
    """
    Return the JSON schema of the type *ddl*, in which each field is required, as strict schemas demand.

    >>> schema_of("array<int>", {})
    {'type': 'array', 'items': {'type': 'integer'}}
    """
    schema = _schema(ddl.strip(), choices, optional, path)
    if path in choices:
        schema["enum"] = list(choices[path])
    if path in optional and "type" in schema:
        schema["type"] = [schema["type"], "null"]
        if "enum" in schema:
            schema["enum"].append(None)
    return schema


def _schema(ddl: str, choices: Mapping[str, tuple[Any, ...]], optional: tuple[str, ...], path: str) -> dict[str, Any]:
    if ddl in _PLAIN:
        return {"type": _PLAIN[ddl]}
    if ddl.startswith("decimal"):
        return {"type": "number"}
    if ddl == "date":
        return {"type": "string", "format": "date"}
    if ddl.startswith("timestamp"):
        return {"type": "string", "format": "date-time"}
    if ddl.startswith("array<"):
        return {"type": "array", "items": schema_of(ddl[6:-1], choices, optional, f"{path}[]")}
    if ddl.startswith("map<string,"):
        return {"type": "object", "additionalProperties": schema_of(ddl[11:-1], choices, optional, f"{path}{{}}")}
    fields = fields_of(ddl)
    if fields:
        parts = {
            name: schema_of(each, choices, optional, f"{path}.{name}".lstrip(".")) for name, each in fields.items()
        }
        return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    return {}


def mismatch(value: Any, schema: Mapping[str, Any], path: str = "") -> str | None:
    """
    Return what is wrong with an answer, in a sentence that quotes nothing of the answer, or None if the answer fits.

    >>> mismatch({"a": "x"}, {"type": "object", "properties": {"a": {"type": "string", "enum": ["y", "z"]}}})
    "The field 'a' is none of its 2 choices."
    """
    where = f"The field {path!r}" if path else "The answer"
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else list(kinds)
    if value is None and "null" in kinds:
        return None
    kind = next((each for each in kinds if each != "null"), None)
    if kind is not None:
        fits = isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
        if not fits and not (kind == "integer" and isinstance(value, float) and value.is_integer()):
            return f"{where} is {'null' if value is None else f'a {type(value).__name__}'}, and must be of type {kind}."
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is none of its {len(schema['enum'])} choices."
    if isinstance(value, list) and "items" in schema:
        found = (mismatch(each, schema["items"], f"{path}[]") for each in value)
        return next((each for each in found if each is not None), None)
    if isinstance(value, dict):
        return _mismatch_inside(value, schema, path)
    return None


def _mismatch_inside(value: dict[str, Any], schema: Mapping[str, Any], path: str) -> str | None:
    for name, part in schema.get("properties", {}).items():
        inner = f"{path}.{name}".lstrip(".")
        if name not in value:
            return f"The field {inner!r} is absent."
        problem = mismatch(value[name], part, inner)
        if problem is not None:
            return problem
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        found = (mismatch(each, more, f"{path}{{}}") for each in value.values())
        return next((each for each in found if each is not None), None)
    return None
