"""
A function, or a plain class, as a connector: `@connector("geo", returns="city string")`.

What is decorated stays what it is, and its name is registered. It travels with the expressions that name it: by value
unless an installed package defines it, so workers need not have its module.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .connector import Call, Connector, ConnectorConfig, Key, Returns
from .errors import ConfigError
from .key_function import AT_ONCE, THREADS, Caller, is_async, name_of, not_of_one_argument
from .options import MOST_BATCH_SIZE, MOST_CAPACITY
from .registry import register

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = ["FunctionConfig", "FunctionConnector", "connector"]

F = TypeVar("F", bound=Callable[..., Any])

# What a parameter is called or annotated as that stands for one key, and for several. A key is never a list.
_ONE = {"key", "str", "int", "float", "bytes", "bool", "date", "datetime", "Decimal", "tuple", "Tuple"}
_MANY = {"keys", "list", "List", "Sequence", "Collection", "Iterable", "set", "Set", "frozenset", "FrozenSet"}


def connector(
    name: str, *, returns: Returns | None = None, batch_size: int | None = None, capacity: int | None = None
) -> Callable[[F], F]:
    """
    Let *name* stand for a source that a function of yours asks, as `register` does for a config.

    An `async def` runs on the worker's event loop, any other function in a thread. A class is made once per worker
    process, without arguments; its method `fetch` is that function, and its methods `open` and `close`, if it has
    them, are called before the first call and after the last. Errors are those of `Connector.fetch_many`.

    Args:
        name: What `enrich` is given. Decorating another function with the same name replaces the first.
        returns: Type of one value, in all forms that `enrich` takes; None: each `enrich` must say it.
        batch_size: Keys per call. None: the function is called with one key and returns its value, or None when the
            source does not hold it. A number: it is called with a list of 1 to so many keys and returns a mapping of
            them to values, without the keys that the source does not hold. A key of several columns is a tuple.
        capacity: Calls in flight per worker process, 1 to 10,000; None: 100 of an `async def` with one key, else 8.

    Returns:
        A decorator that returns the very function or class that it is given.

    Raises:
        ConfigError: An argument is wrong, or what is decorated cannot be called that way. On the driver.

    Warns:
        UserWarning: The function is no `async def`.

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
                "can stop a thread: a call that hangs keeps it. Write async def, or give what it waits for a timeout.",
                stacklevel=2,
            )
        return function

    return decorate


@dataclass(frozen=True, kw_only=True)
class FunctionConfig(ConnectorConfig):
    """
    The function or class. Made by `connector`, which describes the other fields.

    Attributes:
        function: As it was decorated.
    """

    function: Callable[..., Any] = field(repr=False)
    batch_size: int | None = None
    capacity: int | None = None

    @property
    def fetch(self) -> Callable[..., Any]:
        """The function that is called with keys; of a class, its method without an object."""
        if not _is_class(self.function):
            return self.function
        method: Callable[..., Any] = self.function.fetch
        if isinstance(inspect.getattr_static(self.function, "fetch"), staticmethod | classmethod):
            return method  # which takes no object
        return functools.partial(method, None)


class FunctionConnector(Connector[FunctionConfig]):
    """Calls the function, with one key or with a list of them."""

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
        """Make the threads, and the object of a class: where `fetch` runs, because it makes what `fetch` needs."""
        self._caller = Caller(0 if self._is_async else self.capacity)
        if _is_class(self.config.function):
            made = await self._caller.call(self.config.function)
            if hasattr(made, "open"):
                await self._caller.call(made.open)
            self._object = made

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Any]:
        """Call the function; what it raises and returns means the same as for a connector."""
        assert self._caller is not None, "open() comes first"
        function = self.config.function if self._object is None else self._object.fetch
        if self.config.batch_size is not None:
            answers: Mapping[Key, Any] = await self._caller.call(function, list(keys))
            return answers
        found = [(key, await self._caller.call(function, key)) for key in keys]  # the engine gives one
        return {key: answer for key, answer in found if answer is not None}

    async def close(self) -> None:
        """Let the threads end when they can, and close the object of a class, if it could be opened."""
        made, self._object = self._object, None
        if self._caller is not None:
            self._caller.close()
        if hasattr(made, "close"):
            last = Caller(0 if self._is_async else 1)  # of the other threads none may be free ever again
            try:
                await last.call(made.close)
            finally:
                last.close()


def _is_class(function: Any) -> TypeGuard[type[Any]]:
    return isinstance(function, type)


def _check(given: str, config: FunctionConfig) -> None:
    """Raise `ConfigError` when the function of *config* cannot be called as its `batch_size` says."""
    function, batch_size = config.function, config.batch_size
    if not callable(function):
        raise ConfigError(
            f"{given} {function!r}; it decorates an async function of a key, or a class with a method fetch. Put it "
            "above one."
        )
    if _is_class(function):
        _check_class(given, function)
    kind, fetch = "the method" if _is_class(function) else "the function", config.fetch
    argument = "a key" if batch_size is None else "a list of keys"
    fault = not_of_one_argument(fetch, argument)
    if fault is not None:
        raise ConfigError(
            f"{given} {kind} {fault} It gets one argument; a key of several columns is a tuple. For example "
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
        return  # of a class that inherits from one in C, which does not tell
    except TypeError as error:
        raise ConfigError(
            f"{given} the class {cls.__name__}, which cannot be made without arguments: {error}. A worker makes it. "
            "Give its parameters defaults."
        ) from error


def _first_parameter(function: Callable[..., Any]) -> tuple[str, bool | None]:
    """Return the first parameter as text, and whether it says that it takes several keys; None: it does not say."""
    try:
        parameter = next(iter(inspect.signature(function).parameters.values()))
    except ValueError:
        return "", None  # of a function in C, which does not tell
    hint = parameter.annotation
    # Read, not evaluated: it may be a text that names what only the type checker knows.
    text = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    annotated = text.partition("[")[0].rpartition(".")[2]
    said = annotated if annotated in _ONE | _MANY else parameter.name
    return str(parameter.replace(default=parameter.empty)), said in _MANY if said in _ONE | _MANY else None
