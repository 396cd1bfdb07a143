"""
A function, or a plain class, as a connector: `@connector("geo", returns="city string")`.

The decorator registers the name and returns the function or class unchanged. The function travels to the workers with
the expressions that use the name. Unless an installed package defines the function, it is pickled by value, so that
workers need not have its module.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..errors import ConfigError
from ..functions import is_async, name_of, signature_problem
from ..interface import Call, Connector, ConnectorConfig, Key, Returns
from ..options import MOST_BATCH_SIZE, MOST_CAPACITY
from .function_fallback import AT_ONCE, THREADS, Caller
from .registry import register

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = ["FunctionConfig", "FunctionConnector", "connector"]

F = TypeVar("F", bound=Callable[..., Any])

# Names and annotations by which a parameter shows that it takes one key (`_ONE`) or several keys (`_MANY`). A key is
# never a list, so a parameter that takes a list takes several keys.
_ONE = {"key", "str", "int", "float", "bytes", "bool", "date", "datetime", "Decimal", "tuple", "Tuple"}
_MANY = {"keys", "list", "List", "Sequence", "Collection", "Iterable", "set", "Set", "frozenset", "FrozenSet"}


def connector(
    name: str, *, returns: Returns | None = None, batch_size: int | None = None, capacity: int | None = None
) -> Callable[[F], F]:
    """
    Register *name* as a source whose values the decorated function returns; `register` does the same for a config.

    An `async def` runs on the worker's event loop, any other function in a thread. A class is instantiated once per
    worker process, without arguments. Its method `fetch` is the function. Its methods `open` and `close`, if it has
    them, are called before the first call and after the last call of `fetch`. The function may raise the errors that
    `Connector.fetch_many` raises.

    Args:
        name: Name of the source for `enrich`. A second function with the same name replaces the first function.
        returns: Type of one value, in any form that `enrich` takes; None: each `enrich` must declare the type.
        batch_size: Keys per call. None: the function takes one key and returns its value, or None when the source does
            not hold the key. A number: the function takes a list of keys, at most this many, and returns a mapping from
            keys to values, without the keys that the source does not hold. A key of several columns is a tuple.
        capacity: Calls in flight per worker process, 1 to 10,000; None: 100 for an `async def` with one key, 8 for any
            other function.

    Returns:
        A decorator, which returns its function or class unchanged.

    Raises:
        ConfigError: An argument is wrong, or the function cannot be called with one key (with a list of keys if
            *batch_size* is set). Raised on the driver.

    Warns:
        UserWarning: The function is not an `async def`.

    >>> @connector("sizes", returns="int")
    ... async def size(key: str) -> int:
    ...     return len(key)
    """
    if not isinstance(name, str):
        raise ConfigError(
            f"@connector was given {name!r}; its first argument is the name of the source, a str, as in "
            "@enrichkit.connector('geo', returns='string'). Add the name."
        )
    for option, value, most in (("batch_size", batch_size, MOST_BATCH_SIZE), ("capacity", capacity, MOST_CAPACITY)):
        if value is not None and not (type(value) is int and 1 <= value <= most):
            raise ConfigError(
                f"@connector({name!r}) was given {option}={value!r}; it must be a whole number from 1 to {most:,}. "
                "Leave it out for the default."
            )

    def decorate(function: F) -> F:
        config = FunctionConfig(function=function, returns=returns, batch_size=batch_size, capacity=capacity)
        _check(f"@connector({name!r}) was given", config)
        register(name, config)
        if not is_async(config.fetch):
            warnings.warn(
                f"@connector({name!r}) was given {name_of(config.fetch)}, which is no async function. It runs in a "
                f"pool of {FunctionConnector(config).capacity} threads per worker process (capacity), and no deadline "
                "can stop a thread: a call that hangs keeps its thread. Write async def, or set timeouts in the "
                "function.",
                stacklevel=2,
            )
        return function

    return decorate


@dataclass(frozen=True, kw_only=True)
class FunctionConfig(ConnectorConfig):
    """
    The config of a function or class, made by the decorator `connector`. The docstring of `connector` describes the
    fields `returns`, `batch_size` and `capacity`.

    Attributes:
        function: The decorated function or class.
    """

    function: Callable[..., Any] = field(repr=False)
    batch_size: int | None = None
    capacity: int | None = None

    @property
    def fetch(self) -> Callable[..., Any]:
        """
        The function that takes keys. For a class, this is its method `fetch` with None in place of `self`. Callers only
        inspect the signature, and never call the function.
        """
        if not _is_class(self.function):
            return self.function
        method: Callable[..., Any] = self.function.fetch
        if isinstance(inspect.getattr_static(self.function, "fetch"), staticmethod | classmethod):
            return method  # a static or class method has no parameter `self`
        return functools.partial(method, None)


class FunctionConnector(Connector[FunctionConfig]):
    """A connector that calls the function with one key, or with a list of keys."""

    name: ClassVar[str] = "function"
    config_class: ClassVar[type[ConnectorConfig]] = FunctionConfig

    _caller: Caller | None = None
    _object: Any = None

    def __init__(self, config: FunctionConfig) -> None:
        super().__init__(config)
        self._is_async = is_async(config.fetch)
        self.capacity = config.capacity or (AT_ONCE if self._is_async and config.batch_size is None else THREADS)
        self.batch_size = self.max_batch_size = config.batch_size or 1

    async def open(self) -> None:
        """
        Make the pool of threads, and the instance if the user gave a class.

        The class is instantiated where its `fetch` will run, in a thread or on the event loop, because its constructor
        makes the objects that `fetch` uses.
        """
        self._caller = Caller(0 if self._is_async else self.capacity)
        if _is_class(self.config.function):
            instance = await self._caller.call(self.config.function)
            if hasattr(instance, "open"):
                await self._caller.call(instance.open)
            self._object = instance

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Any]:
        """Call the function; its results and exceptions mean the same as those of `Connector.fetch_many`."""
        assert self._caller is not None, "open() comes first"
        function = self.config.function if self._object is None else self._object.fetch
        if self.config.batch_size is not None:
            answers: Mapping[Key, Any] = await self._caller.call(function, list(keys))
            return answers
        results = [(key, await self._caller.call(function, key)) for key in keys]  # one key: max_batch_size is 1
        return {key: value for key, value in results if value is not None}

    async def close(self) -> None:
        """Tell the threads to end after their calls, and close the instance of a class if it was opened."""
        instance, self._object = self._object, None
        if self._caller is not None:
            self._caller.close()
        if hasattr(instance, "close"):
            last_caller = Caller(0 if self._is_async else 1)  # a new thread, because calls may hang in all old threads
            try:
                await last_caller.call(instance.close)
            finally:
                last_caller.close()


def _is_class(function: Any) -> TypeGuard[type[Any]]:
    return isinstance(function, type)


def _check(given: str, config: FunctionConfig) -> None:
    """
    Raise `ConfigError` if the function of *config* cannot be called with one key (with a list if `batch_size` is set).

    The message of the error begins with *given*.
    """
    function, batch_size = config.function, config.batch_size
    if not callable(function):
        raise ConfigError(
            f"{given} {function!r}; it decorates an async function of a key, or a class with a method fetch. Put it "
            "above one."
        )
    if _is_class(function):
        _check_class(given, function)
    kind, fetch = "the method" if _is_class(function) else "the function", config.fetch
    problem = signature_problem(fetch, "a key" if batch_size is None else "a list of keys")
    if problem is not None:
        raise ConfigError(
            f"{given} {kind} {problem} It gets one argument; a key of several columns is a tuple. For example "
            "async def geo(key): tenant, user = key."
        )
    if inspect.isgeneratorfunction(fetch) or inspect.isasyncgenfunction(fetch):
        raise ConfigError(
            f"{given} {kind} {name_of(fetch)}, a generator; it must return its answer. Write return instead of yield."
        )
    parameter, many = _first_parameter(fetch)
    if many is True and batch_size is None:
        raise ConfigError(
            f"{given} {kind} {name_of(fetch)}({parameter}), which seems to take several keys; without batch_size it is "
            "called with one. Set batch_size=100 for lists of up to 100 keys, or rename the parameter to key."
        )
    if many is False and batch_size is not None:
        raise ConfigError(
            f"{given} {kind} {name_of(fetch)}({parameter}), which seems to take one key; with batch_size={batch_size} "
            "it is called with a list of keys. Leave batch_size out, or take keys: list and return a mapping of them."
        )


def _check_class(given: str, cls: type[Any]) -> None:
    if issubclass(cls, Connector | ConnectorConfig):
        raise ConfigError(
            f"{given} the class {cls.__name__}, which is a connector or a config already; it decorates functions and "
            "plain classes. Register a config instead, with enrichkit.register(name, config)."
        )
    if not inspect.isroutine(getattr(cls, "fetch", None)):
        raise ConfigError(
            f"{given} the class {cls.__name__} without a method fetch; it needs one, which is called with a key, or "
            "with a list of keys if batch_size is set. Add async def fetch(self, key)."
        )
    try:
        inspect.signature(cls).bind()
    except ValueError:
        return  # `inspect` finds no signature for a class that inherits from a class written in C
    except TypeError as error:
        raise ConfigError(
            f"{given} the class {cls.__name__}, which cannot be made without arguments: {error}. A worker makes it. "
            "Give its parameters defaults."
        ) from error


def _first_parameter(function: Callable[..., Any]) -> tuple[str, bool | None]:
    """
    Return the first parameter of *function* as text, and whether it takes several keys.

    The second result is True or False when the annotation or the name of the parameter tells, and None otherwise.
    """
    try:
        parameter = next(iter(inspect.signature(function).parameters.values()))
    except ValueError:
        return "", None  # `inspect` finds no signature for some functions written in C
    hint = parameter.annotation
    # The annotation is not evaluated, because it may be a text with names that only the type checker knows.
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    type_name = text.partition("[")[0].rpartition(".")[2]
    word = type_name if type_name in _ONE | _MANY else parameter.name
    return str(parameter.replace(default=parameter.empty)), word in _MANY if word in _ONE | _MANY else None
