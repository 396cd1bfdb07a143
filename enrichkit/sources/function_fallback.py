"""
The connector for a fallback that is a function of the key, given as `on_timeout`, `on_error` or `on_missing`.

Because the function is called through a connector, it has a capacity and a timeout like any other source. A function
that never returns, or that blocks its thread, delays only the rows that need its result.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ..errors import ConnectorError, FatalError, PermanentError
from ..functions import is_async, raised
from ..interface import Call, Connector, ConnectorConfig, Failure

__all__ = ["Caller", "KeyFunction", "KeyFunctionConfig"]

THREADS = 8
AT_ONCE = 100


@dataclass(frozen=True, kw_only=True)
class KeyFunctionConfig(ConnectorConfig):
    """
    The config of a function of the key.

    Attributes:
        function: The function. It takes a key, which is a tuple if there are several key columns, and returns a value
            or an awaitable of a value.
        show_keys: Whether messages quote the texts of the function's exceptions; such a text may hold the key.
    """

    function: Callable[[Any], Any]
    show_keys: bool = False


class Caller:
    """
    A pool of threads that calls functions, which may block. With 0 threads, it calls an `async def` on the event loop.

    A thread cannot be ended from outside, so a call that never returns keeps its thread. Later keys wait for the other
    threads. They time out if calls that never return keep all threads.

    Args:
        threads: Number of threads.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="enrichkit-function") if threads else None

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of *function*; if that is an awaitable, return the result of the awaitable."""
        if self._threads is None:
            answer = function(*arguments)
        else:
            loop = asyncio.get_running_loop()
            answer, error = await loop.run_in_executor(self._threads, _result_or_error, function, *arguments)
            if isinstance(error, StopIteration):  # Python forbids a coroutine to raise StopIteration
                raise PermanentError(f"the function raised {raised(error)}")
            if error is not None:
                raise error
        return await answer if inspect.isawaitable(answer) else answer

    def close(self) -> None:
        """Tell the threads to end after their calls, without waiting for them."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


class KeyFunction(Connector[KeyFunctionConfig]):
    """A connector that calls its config's function: an `async def` on the event loop, another function in a thread."""

    name = "function"
    config_class = KeyFunctionConfig

    _caller: Caller | None = None

    def __init__(self, config: KeyFunctionConfig) -> None:
        super().__init__(config)
        self._is_async = is_async(config.function)
        self.capacity = AT_ONCE if self._is_async else THREADS

    async def open(self) -> None:
        """Make the pool of threads."""
        self._caller = Caller(0 if self._is_async else self.capacity)

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        """Call the function with the only key in *keys*."""
        [key] = keys
        assert self._caller is not None, "open() comes first"
        try:
            return {key: await self._caller.call(self.config.function, key)}
        except FatalError:
            raise
        except Exception as error:  # noqa: BLE001  # any exception of the function fails only its key
            return {key: Failure(self._translate(error))}

    async def close(self) -> None:
        """Tell the threads to end after their calls."""
        if self._caller is not None:
            self._caller.close()

    def _translate(self, error: Exception) -> ConnectorError:
        if isinstance(error, ConnectorError):
            return error  # the function raised this `ConnectorError` on purpose, so its text is shown
        return PermanentError(f"the function raised {raised(error, show_text=self.config.show_keys)}")


def _result_or_error(function: Callable[..., Any], *arguments: Any) -> tuple[Any, BaseException | None]:
    """
    Return `(result, None)`, or `(None, error)` if *function* raises an exception.

    `Caller.call` runs this function in a thread. The exception is returned, not raised, because a future does not
    accept every exception: a StopIteration would never reach the coroutine that waits for the future.
    """
    try:
        return function(*arguments), None
    except BaseException as error:  # noqa: BLE001  # `Caller.call` raises it again
        return None, error
