"""
The fingerprint of everything that an answer depends on. Programs that look up the same thing in the same source have
the same fingerprint.

A journal finds answers by this fingerprint after a restart, and for other jobs. So the fingerprint must change when any
of these changes: a query, a prompt, the code of a user's function, or anything that the function uses. It must not
change in another process, when a script moves, or when a line is added above the function. A class or function of an
installed package has only its name in the fingerprint, and not its code.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from ..secrets import Secret
from .pickling import is_installed

if TYPE_CHECKING:
    import pyarrow as pa

    from ..interface import Connector, ConnectorConfig

__all__ = ["content_of"]

CHANGES_ANSWERS = "changes_answers"
"""
Name of an entry in the metadata of a config's field. The value False means that no answer depends on the field; a price
is such a field.
"""
_OF_THE_PROCESS = frozenset(
    ("__module__", "__dict__", "__weakref__", "__doc__", "__firstlineno__", "__slotnames__", "__static_attributes__")
)
_PLAIN = (str, bytes, int, float, complex, type(None), type(...), Secret)
"""
Types of values without parts. The text of a `Secret` is its reference and not the password, because another password
changes no answer.
"""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def content_of(connector: type[Connector[Any]], config: ConnectorConfig, value_type: pa.DataType) -> str:
    """Return a text that differs when the source, the config, the code or the type may lead to other answers."""
    writer = _Writer()
    parts = (connector.name, writer.text(connector), writer.text(config), str(value_type))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "backslashreplace")).hexdigest()


class _Writer:
    """A writer of texts that are equal for equal values, and for functions and classes whose code does the same."""

    def __init__(self) -> None:
        # `_written` holds the functions and classes that have their text already, `_open` holds the values whose text
        # is being made. If such a value occurs again, its number is written instead of its text. `_written` keeps its
        # objects alive, because the id of an object that is gone may be given to another object.
        self._written: dict[int, tuple[int, Any]] = {}
        self._open: dict[int, int] = {}

    def text(self, value: Any) -> str:
        """
        Return the text of *value*. Return a reference such as `#3` instead if the text of *value* is being made, or if
        *value* is a function or class that has its text already.
        """
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            return f"{type(value).__name__}:{value!r}"
        if (depth := self._open.get(id(value))) is not None:
            return f"^{depth}"
        if isinstance(value, type | FunctionType):
            if is_installed(value):
                return f"{value.__module__}.{value.__qualname__}"
            if id(value) in self._written:
                return f"#{self._written[id(value)][0]}"
            self._written[id(value)] = (len(self._written), value)
        self._open[id(value)] = len(self._open)
        try:
            return _text(value, self)
        finally:
            del self._open[id(value)]

    def texts(self, values: Iterable[Any]) -> str:
        """Return the texts of *values*, in their order."""
        return _joined(map(self.text, values))


@functools.singledispatch
def _text(value: Any, writer: _Writer) -> str:
    """Return the text of a *value* for whose class no function is registered below with `_text.register`."""
    kind = writer.text(type(value))
    if is_dataclass(value):
        counting = (f for f in fields(value) if f.metadata.get(CHANGES_ANSWERS, True))
        return kind + _joined(f"{f.name}={writer.text(getattr(value, f.name))}" for f in counting)
    if callable(value) and hasattr(value, "__wrapped__"):  # made by functools.cache
        return f"{kind}:{writer.text(value.__wrapped__)}"
    if not is_installed(type(value)):
        try:
            state = value.__reduce_ex__(2)[1:3]  # the arguments and the state that pickle would send
        except TypeError:  # such a value cannot be pickled, so no function that uses it reaches a worker
            return kind
        return f"{kind}{writer.texts(state)}"
    return f"{kind}:{_stable(value)}"


@_text.register
def _(value: type, writer: _Writer) -> str:
    members = (f"{name}={writer.text(part)}" for name, part in sorted(vars(value).items()) if _counts(name))
    return f"{value.__qualname__}{_joined(members)}{writer.texts(value.__bases__)}"


@_text.register
def _(value: FunctionType, writer: _Writer) -> str:
    does = _code(value.__code__, writer)
    given = writer.texts((value.__defaults__, value.__kwdefaults__))
    return f"{value.__qualname__}{does}{given}{_joined(_outer(value, writer))}"


def _outer(function: FunctionType, writer: _Writer) -> Iterator[str]:
    """Yield the texts of the variables of enclosing functions, and of the globals, that *function* uses."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{name}={writer.text(cell.cell_contents)}"
        except ValueError:  # the variable has no value yet
            yield f"{name}:"
    # These names include names of attributes, and an attribute may by chance have the same name as a global. Then the
    # fingerprint includes that global, although the function does not use it. A change of the global then changes the
    # fingerprint for no reason, so that a journal no longer finds the answers and the source is asked again; this does
    # no other harm.
    names = sorted(_names(function.__code__))
    for name in names:
        # Names such as `__file__` are left out: that path differs between machines and changes when a script moves.
        if name in function.__globals__ and not name.startswith("__"):
            value = function.__globals__[name]
            yield f"{name}={writer.text(value)}"
            if isinstance(value, ModuleType) and not _is_installed_module(value):
                used = (n for n in names if n in vars(value) and not n.startswith("__"))
                yield from (f"{name}.{n}={writer.text(vars(value)[n])}" for n in used)


@_text.register
def _(value: ModuleType, writer: _Writer) -> str:
    return f"module:{value.__name__}"


@_text.register
def _(value: MethodType, writer: _Writer) -> str:
    return f"method:{writer.texts((value.__func__, value.__self__))}"


@_text.register
def _(value: functools.partial, writer: _Writer) -> str:  # type: ignore[type-arg]  # singledispatch takes a plain class
    return f"partial:{writer.texts((value.func, value.args, value.keywords))}"


@_text.register
def _(value: Mapping, writer: _Writer) -> str:  # type: ignore[type-arg]  # singledispatch takes a plain class
    return "dict" + _joined(sorted(writer.texts((key, value[key])) for key in sorted(value, key=_stable)))


@_text.register(set)
@_text.register(frozenset)
def _(value: Iterable[Any], writer: _Writer) -> str:
    return "set" + _joined(sorted(map(writer.text, sorted(value, key=_stable))))


@_text.register(tuple)
@_text.register(list)
def _(value: Iterable[Any], writer: _Writer) -> str:
    return f"{type(value).__name__}{writer.texts(value)}"


@_text.register(classmethod)
@_text.register(staticmethod)
def _(value: Any, writer: _Writer) -> str:
    return f"{type(value).__name__}:{writer.text(value.__func__)}"


@_text.register
def _(value: property, writer: _Writer) -> str:
    return f"property:{writer.texts((value.fget, value.fset, value.fdel))}"


@_text.register
def _(value: CodeType, writer: _Writer) -> str:
    return _code(value, writer)


@_text.register
def _(value: functools.cached_property, writer: _Writer) -> str:  # type: ignore[type-arg]  # a plain class is needed
    return f"property:{writer.text(value.func)}"


@_text.register
def _(value: Field, writer: _Writer) -> str:  # type: ignore[type-arg]  # singledispatch takes a plain class
    return f"field:{writer.texts((value.name, value.default, value.default_factory, value.init, value.kw_only))}"


def _joined(texts: Iterable[str]) -> str:
    """Return *texts* joined. Different *texts* give different results, because the length of each text precedes it."""
    return f"({' '.join(f'{len(text)}:{text}' for text in texts)})"


def _stable(value: Any) -> str:
    """Return the `repr` of *value* without addresses in memory."""
    return _ADDRESS.sub("", repr(value))


def _counts(member: str) -> bool:
    """Return whether the *member* of a class may change answers."""
    return member not in _OF_THE_PROCESS


def _code(code: CodeType, writer: _Writer) -> str:
    """Return a text that describes what *code* does, without its file and its line numbers."""
    takes = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_cellvars, code.co_freevars)
    does = f"{code.co_code.hex()} {code.co_exceptiontable.hex()}"
    return f"<{takes} {names} {does} {writer.texts(code.co_consts)}>"


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that *code*, or code inside it, uses."""
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _is_installed_module(module: ModuleType) -> bool:
    return is_installed(_NamedAfter(module.__name__))


class _NamedAfter:
    """An object whose `__module__` is *name*, for `is_installed`."""

    def __init__(self, name: str) -> None:
        self.__module__ = name
