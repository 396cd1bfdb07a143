"""
A connector at work in a test, as in a worker process: on the kind of loop that a worker has, in a thread of its own.

The thread is what makes a test of somebody else's connector safe to run: a call that never ends, or that blocks the
loop, is a failure that says where it stands, and not a test run that hangs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from ..connector import Call, Connector, ConnectorConfig, Failure, Key, connector_of
from ..engine.loop import _new_loop
from ..errors import TransientError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from types import TracebackType

__all__ = ["Bench", "decoded", "is_transient", "open_connector", "wait_until"]

T = TypeVar("T")

_TYPED = (bool, int, float, Decimal, date, datetime)


@contextlib.asynccontextmanager
async def open_connector(config: ConnectorConfig, *, capacity: int = 8) -> AsyncIterator[Any]:
    """
    Open the connector of *config* for the block, on the loop that runs.

    Args:
        config: Of the source.
        capacity: As the option; the engine sets it before it opens a connector.

    >>> from enrichkit.function_connector import FunctionConfig
    >>> async def shout(key: str) -> str:
    ...     return key.upper()
    >>> async def look_up(config: ConnectorConfig, *keys: Key) -> Mapping[Key, Value | Failure]:
    ...     async with open_connector(config) as connector:
    ...         return await connector.fetch_many(keys, Call(timeout=5.0))
    >>> asyncio.run(look_up(FunctionConfig(function=shout), "a"))
    {'a': 'A'}
    """
    connector = connector_of(config)(config)
    connector.capacity = capacity
    try:
        await connector.open()
        yield connector
    finally:
        await connector.close()
        await asyncio.sleep(0)  # transports close in the loop's next turn


class Bench:
    """
    A connector on a loop thread, and plain functions that use it from the test's own thread.

    Args:
        connector: Not opened yet.
        patience: Seconds after which whatever does not end has failed.
        capacity: Calls in flight at most; also what the connector is opened with.

    Attributes:
        connector: The connector.
        loop: Its loop.
        is_open: Whether the connector is open.
    """

    def __init__(self, connector: Connector[Any], *, patience: float = 10.0, capacity: int = 4) -> None:
        self.connector = connector
        self.connector.capacity = self.capacity = capacity
        self.patience = patience
        self.loop = _new_loop()
        self.is_open = False
        self._opened = False  # or tried to
        self._thread = threading.Thread(target=self._main, name="enrichkit-bench", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if self._opened:
                self.close()
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(self.patience)
            if not self._thread.is_alive():  # else the connector blocks it, which a check has said
                self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return what *coroutine* returns on the loop; `AssertionError` when it does not end."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        done, _ = concurrent.futures.wait([future], self.patience)
        if not done:
            future.cancel()
            raise AssertionError(f"It did not end within {self.patience:g} s. The loop is at:\n{self._stack()}")
        return future.result()

    def open(self) -> None:
        """Open the connector."""
        self._opened = True  # also when it fails: the engine closes it then, too
        self.run(self.connector.open())
        self.is_open = True

    def close(self) -> None:
        """Close the connector, and let the loop go round as often as closed transports need."""
        self._opened = self.is_open = False
        self.run(self.connector.close())
        for _ in range(3):
            self.run(asyncio.sleep(0))

    def fetch(self, keys: Sequence[Key], *, many: bool = False, timeout: float | None = None) -> Any:
        """Make one call and return what the connector returned, or raise what it raised."""
        return self.run(self._fetch(keys, self.call(many=many, timeout=timeout)))

    def fetch_at_once(self, groups: Sequence[Sequence[Key]]) -> list[Any]:
        """Make a call for each of *groups*, all in the same turn of the loop, and return what they returned."""

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*(self._fetch(keys, self.call()) for keys in groups))

        return self.run(all_of_them())

    def look_up(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Return the answers to *keys*, asked in groups as large as the connector takes."""
        size = max(1, min(self.connector.batch_size, self.connector.max_batch_size))
        found: dict[Key, Any] = {}
        for start in range(0, len(keys), size):
            found.update(self.fetch(tuple(keys[start : start + size])))
        return found

    def start(self, keys: Sequence[Key], *, timeout: float | None = None) -> asyncio.Task[Any]:
        """Begin a call and return its task, which is the loop's; see `ended` and `cancel`."""

        async def begin() -> asyncio.Task[Any]:
            return asyncio.create_task(self._fetch(keys, self.call(timeout=timeout)), name="enrichkit-bench-call")

        return self.run(begin())

    def ended(self, task: asyncio.Task[Any], within: float | None = None) -> bool:
        """Wait *within* seconds for *task*; tell whether it ended."""

        async def wait() -> bool:
            return bool((await asyncio.wait({task}, timeout=within))[0])

        return self.run(wait())

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel *task*, as the engine does at the hard limit, and wait until it has ended."""
        self.loop.call_soon_threadsafe(task.cancel)
        self.ended(task)

    def attempt(self, keys: Sequence[Key]) -> dict[Key, Any] | None:
        """
        Make one call and return its answers; None for a `TransientError`.

        Any other exception passes through: the engine would not try again.
        """
        try:
            return dict(self.fetch(keys))
        except TransientError:
            return None

    def recovered(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Ask for *keys* in one call until no answer is a transient error; return the answers."""

        def ask() -> dict[Key, Any]:
            answers = dict(self.fetch(keys))
            for answer in answers.values():
                if is_transient(answer):
                    raise answer.error
            return answers

        return self.patiently(ask)

    def patiently(self, step: Callable[[], T]) -> T:
        """Do *step*, and again after a `TransientError`, as the engine would; return what it returns."""
        ends = time.monotonic() + self.patience
        while True:
            try:
                return step()
            except TransientError as error:
                if time.monotonic() > ends:
                    raise AssertionError(f"It did not recover within {self.patience:g} s; it says: {error}") from error
                time.sleep(min(error.retry_after or 0.02, 1.0))

    def call(self, *, many: bool = False, timeout: float | None = None) -> Call:
        """Return what a connector is told of a call."""
        return Call(timeout=self.patience if timeout is None else timeout, many=many)

    def tasks(self) -> set[str]:
        """Return the names of the tasks that are on the loop."""

        async def names() -> set[str]:
            return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}

        return self.run(names())

    async def _fetch(self, keys: Sequence[Key], call: Call) -> Any:
        return await self.connector.fetch_many(keys, call)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left, timeout=1.0) if left else asyncio.sleep(0))
            asyncio.set_event_loop(None)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "(the thread has ended)"


def is_transient(answer: Any) -> bool:
    """Whether *answer* says that its key may be asked again."""
    return isinstance(answer, Failure) and isinstance(answer.error, TransientError)


def decoded(answer: Any, like: Any, encoding: str) -> Any:
    """
    Return an answer as Python objects, so that it can be compared with the value that a test knows.

    For that only; what a column gets is what the declared type says.

    Args:
        answer: What the connector returned for one key.
        like: The known value; texts and numbers get its type, as the declared type would give it to them.
        encoding: Of the connector.

    >>> decoded(b'{"tier": 1}', {"tier": 1}, "json"), decoded({"tier": b"1"}, {"tier": 1}, "text")
    ({'tier': 1}, {'tier': 1})
    """
    if answer is None or isinstance(answer, Failure) or encoding == "python":
        return answer
    if isinstance(answer, Mapping):
        likes = like if isinstance(like, Mapping) else {}
        return {name: decoded(part, likes.get(name), encoding) for name, part in answer.items()}
    if encoding == "json":
        value = json.loads(answer)
        # A declared string is the text of any document.
        return bytes(answer).decode() if isinstance(like, str) and not isinstance(value, str) else _typed(value, like)
    return _typed(answer.decode() if isinstance(answer, bytes) and not isinstance(like, bytes) else answer, like)


def _typed(value: Any, like: Any) -> Any:
    """Return *value* as what *like* is, at any depth; as it is where it cannot be that."""
    if isinstance(value, Mapping) and isinstance(like, Mapping):
        return {name: _typed(part, like.get(name)) for name, part in value.items()}
    if isinstance(value, list) and isinstance(like, list):
        return [_typed(part, other) for part, other in itertools.zip_longest(value, like[: len(value)])]
    if not isinstance(like, _TYPED) or value is None:
        return value
    try:
        return msgspec.convert(value, type(like), strict=False)
    except msgspec.ValidationError:
        return value


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask *condition* every few milliseconds, for *seconds* at most; return what it said last."""
    ends = time.monotonic() + seconds
    while not condition() and time.monotonic() < ends:
        time.sleep(0.002)
    return condition()
