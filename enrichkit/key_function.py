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

__all__ = ["KeyFunction", "KeyFunctionConfig", "name_of"]

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


class KeyFunction(Connector[KeyFunctionConfig]):
    """
    Calls the function: an `async def` on the loop, any other in a thread, because it may block.

    A thread cannot be ended from outside. One that never comes back keeps its place among the threads; the keys that
    come after it wait for the others, and time out when there are none.
    """

    name = "function"
    config_class = KeyFunctionConfig

    def __init__(self, config: KeyFunctionConfig) -> None:
        super().__init__(config)
        self._is_async = is_async(config.function)
        self.capacity = AT_ONCE if self._is_async else THREADS
        self._threads: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """Make the threads."""
        if not self._is_async:
            self._threads = ThreadPoolExecutor(self.capacity, thread_name_prefix="enrichkit-function")

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        """Call the function with the only one of *keys*."""
        [key] = keys
        function = self.config.function
        try:
            if self._threads is None:
                answer = function(key)
            else:
                answer, error = await asyncio.get_running_loop().run_in_executor(self._threads, _guarded, function, key)
                if error is not None:
                    raise error
            if inspect.isawaitable(answer):
                answer = await answer
        except FatalError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it raises is the key's error
            return {key: Failure(self._translated(error))}
        return {key: answer}

    async def close(self) -> None:
        """Let the threads end when they can."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

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


def _guarded(function: Callable[[Any], Any], key: Any) -> tuple[Any, BaseException | None]:
    """Call *function* in a thread. A future does not take every exception: a StopIteration would never arrive."""
    try:
        return function(key), None
    except BaseException as error:  # noqa: BLE001  # raised again by the caller
        return None, error
