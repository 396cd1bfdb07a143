"""
A function of the key in the place of a source: what `on_timeout`, `on_error` and `on_missing` take.

As a connector it is bounded and timed like any other source: a function that never returns, or blocks, costs its own
rows their time and nobody else.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .connector import Call, Connector, ConnectorConfig, Failure
from .errors import ConnectorError, FatalError, PermanentError
from .secrets import redact

__all__ = ["Caller", "KeyFunction", "KeyFunctionConfig", "is_async", "name_of", "not_of_one_argument"]

THREADS = 8
AT_ONCE = 100


@dataclass(frozen=True, kw_only=True)
class KeyFunctionConfig(ConnectorConfig):
    """
    The function.

    Attributes:
        function: Takes a key, a tuple if there are several key columns, and returns a value or an awaitable of one.
        show_keys: Quote what it raises: the text of an exception may hold the key.
    """

    function: Callable[[Any], Any]
    show_keys: bool = False


class Caller:
    """
    Calls functions in one of *threads*, because they may block; when there are 0, on the loop, which suits `async def`.

    A thread cannot be ended from outside. One that never comes back keeps its place among the threads; the keys that
    come after it wait for the others, and time out when there are none.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="enrichkit-function") if threads else None

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what *function* returns, or what the awaitable that it returns comes to."""
        if self._threads is None:
            answer = function(*arguments)
        else:
            loop = asyncio.get_running_loop()
            answer, error = await loop.run_in_executor(self._threads, _guarded, function, *arguments)
            if isinstance(error, StopIteration):  # which no coroutine can raise
                raise PermanentError("the function raised StopIteration")
            if error is not None:
                raise error
        return await answer if inspect.isawaitable(answer) else answer

    def close(self) -> None:
        """Let the threads end when they can."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class KeyFunction(Connector[KeyFunctionConfig]):
    """Calls the function: an `async def` on the loop, any other in a thread."""

    name = "function"
    config_class = KeyFunctionConfig

    _caller: Caller | None = None

    def __init__(self, config: KeyFunctionConfig) -> None:
        super().__init__(config)
        self._is_async = is_async(config.function)
        self.capacity = AT_ONCE if self._is_async else THREADS

    async def open(self) -> None:
        """Make the threads."""
        self._caller = Caller(0 if self._is_async else self.capacity)

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        """Call the function with the only one of *keys*."""
        [key] = keys
        assert self._caller is not None, "open() comes first"
        try:
            return {key: await self._caller.call(self.config.function, key)}
        except FatalError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it raises is the key's error
            return {key: Failure(self._translated(error))}

    async def close(self) -> None:
        """Let the threads end when they can."""
        if self._caller is not None:
            self._caller.close()

    def _translated(self, error: Exception) -> ConnectorError:
        if isinstance(error, ConnectorError):
            return error  # raised on purpose, with a text that is meant to be read
        text = f": {redact(str(error))}" if self.config.show_keys and str(error) else ""
        return PermanentError(f"the function raised {type(error).__qualname__}{text}")


def is_async(function: Callable[[Any], Any]) -> bool:
    """Whether *function* is an `async def`, or an object that is called by one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # not whether it can be called, but how


def name_of(function: Callable[[Any], Any]) -> str:
    """Return what messages call *function*; of a partial, not what it has bound."""
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    return name


def not_of_one_argument(function: Callable[..., Any], argument: str) -> str | None:
    """Return why *function* cannot be called with *argument* alone, as the end of a sentence; None when it can."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return None  # of a function in C, which does not tell
    try:
        signature.bind(None)
    except TypeError as error:
        # Without the defaults, as without what a partial has bound: a password may be among them.
        parts = [part.replace(default=part.empty) for part in signature.parameters.values()]
        return (
            f"{name_of(function)}{signature.replace(parameters=parts)}, which cannot be called with {argument} alone: "
            f"{error}."
        )
    return None


def _guarded(function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """Call *function* in a thread. A future does not take every exception: a StopIteration would never arrive."""
    try:
        return function(*arguments), None
    except BaseException as error:  # noqa: BLE001  # raised again by the caller
        return None, error
