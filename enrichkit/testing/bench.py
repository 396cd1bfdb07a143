"""
A connector that runs in a test as in a worker process: on the same kind of event loop, in a thread of its own.

Because of the thread, a faulty connector cannot block the test run. A call that never ends, or that blocks the loop,
makes the test fail with a message that shows which line the loop's thread is running.
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

from ..engine.names import new_loop
from ..errors import TransientError
from ..interface import Call, Connector, ConnectorConfig, Failure, Key, connector_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from types import TracebackType

__all__ = ["Bench", "decoded", "is_transient", "open_connector", "wait_until"]

T = TypeVar("T")

_TYPED = (bool, int, float, Decimal, date, datetime)


@contextlib.asynccontextmanager
async def open_connector(config: ConnectorConfig, *, capacity: int = 8) -> AsyncIterator[Any]:
    """
    Open the connector of *config* on the running event loop, and close it at the end of the block.

    Args:
        config: Config of the source.
        capacity: The most calls in flight. As in the engine, the connector's `capacity` is set to this number before
            the connector is opened.

    >>> from enrichkit.sources.function_connector import FunctionConfig
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
        await asyncio.sleep(0)  # transports close in the next iteration of the loop


class Bench:
    """
    A connector on a thread with an event loop, and blocking methods that use the connector from the test's thread.

    Args:
        connector: An unopened connector.
        patience: Seconds after which an operation that has not ended counts as failed.
        capacity: The most calls in flight; the connector is opened with this capacity.

    Attributes:
        connector: The connector.
        loop: The event loop of the connector.
        is_open: Whether the connector is open.
    """

    def __init__(self, connector: Connector[Any], *, patience: float = 10.0, capacity: int = 4) -> None:
        self.connector = connector
        self.connector.capacity = self.capacity = capacity
        self.patience = patience
        self.loop = new_loop()
        self.is_open = False
        self._opened = False  # true from the call of `open`, even if that call fails, until the call of `close`
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
            # If the thread is still alive, the connector blocks the loop, which then cannot be closed. The test has
            # already failed in this case, because a call on the blocked loop did not end in time.
            if not self._thread.is_alive():
                self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T], within: float | None = None) -> T:
        """
        Run *coroutine* on the loop and return its result.

        Raises:
            AssertionError: *coroutine* did not end within *within* seconds (None: `patience`).
        """
        within = self.patience if within is None else within
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        done, _ = concurrent.futures.wait([future], within)
        if not done:
            future.cancel()
            raise AssertionError(
                f"The connector did not finish within {within:g} s. Its event loop is at:\n{self._stack()}"
            )
        return future.result()

    def open(self) -> None:
        """Open the connector."""
        self._opened = True  # set before `open`, because the engine closes a connector even if `open` fails
        self.run(self.connector.open())
        self.is_open = True

    def close(self) -> None:
        """Close the connector, and run three more iterations of the loop, in which closed transports finish."""
        self._opened = self.is_open = False
        self.run(self.connector.close())
        for _ in range(3):
            self.run(asyncio.sleep(0))

    def fetch(self, keys: Sequence[Key], *, many: bool = False, timeout: float | None = None) -> Any:
        """Make one call of `fetch_many`, and return its result or raise its exception."""
        return self.run(self._fetch(keys, self.call(many=many, timeout=timeout)))

    def fetch_at_once(self, groups: Sequence[Sequence[Key]]) -> list[Any]:
        """Start one call for each of *groups*, all in the same iteration of the loop, and return the results."""

        async def fetch_all() -> list[Any]:
            return await asyncio.gather(*(self._fetch(keys, self.call()) for keys in groups))

        return self.run(fetch_all())

    def look_up(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Fetch *keys* in groups of `batch_size`, or of `max_batch_size` if that is less, and return the answers."""
        size = max(1, min(self.connector.batch_size, self.connector.max_batch_size))
        answers: dict[Key, Any] = {}
        for start in range(0, len(keys), size):
            answers.update(self.fetch(tuple(keys[start : start + size])))
        return answers

    def start(self, keys: Sequence[Key], *, timeout: float | None = None) -> asyncio.Task[Any]:
        """Begin a call and return its task, which runs on the loop: wait for it with `ended`, or end it by `cancel`."""

        async def begin() -> asyncio.Task[Any]:
            return asyncio.create_task(self._fetch(keys, self.call(timeout=timeout)), name="enrichkit-bench-call")

        return self.run(begin())

    def ended(self, task: asyncio.Task[Any], within: float | None = None) -> bool:
        """
        Wait for *task*, and return whether it has ended within *within* seconds (None: `patience`).

        Raises:
            AssertionError: The event loop is blocked.
        """
        within = self.patience if within is None else within

        async def wait() -> bool:
            return bool((await asyncio.wait({task}, timeout=within))[0])

        return self.run(wait(), within + self.patience)

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """
        Cancel *task*, as the engine does with a call that is far too late, and wait until the task has ended.

        Raises:
            AssertionError: *task* did not end within `patience` seconds.
        """
        self.loop.call_soon_threadsafe(task.cancel)
        assert self.ended(task), f"A cancelled call of `fetch_many` must end; it still runs after {self.patience:g} s."

    def attempt(self, keys: Sequence[Key]) -> dict[Key, Any] | None:
        """
        Make one call and return its answers, or None when the connector raises a `TransientError`.

        Other exceptions are raised, because the engine would not repeat the call after them.
        """
        try:
            return dict(self.fetch(keys))
        except TransientError:
            return None

    def fetch_until_recovered(self, keys: Sequence[Key]) -> dict[Key, Any]:
        """Repeat a call for *keys* until it has no transient error, and return its answers."""

        def fetch() -> dict[Key, Any]:
            answers = dict(self.fetch(keys))
            for answer in answers.values():
                if is_transient(answer):
                    raise answer.error
            return answers

        return self.retry(fetch)

    def retry(self, function: Callable[[], T]) -> T:
        """
        Call *function* again and again until it raises no `TransientError`, as the engine would, and return its result.

        Raises:
            AssertionError: *function* still raises a `TransientError` after `patience` seconds.
        """
        end = time.monotonic() + self.patience
        while True:
            try:
                return function()
            except TransientError as error:
                if time.monotonic() > end:
                    raise AssertionError(
                        f"The connector did not recover within {self.patience:g} s. Its last error is: {error}"
                    ) from error
                time.sleep(min(error.retry_after or 0.02, 1.0))

    def call(self, *, many: bool = False, timeout: float | None = None) -> Call:
        """Return the `Call` that `fetch_many` gets together with the keys."""
        return Call(timeout=self.patience if timeout is None else timeout, many=many, run="bench")

    def tasks(self) -> set[str]:
        """Return the names of the tasks on the loop."""

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
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0) if tasks else asyncio.sleep(0))
            asyncio.set_event_loop(None)

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)[-6:]) if frame is not None else "(the thread has ended)"


def is_transient(answer: Any) -> bool:
    """Return whether *answer* is a failure that the engine retries."""
    return isinstance(answer, Failure) and isinstance(answer.error, TransientError)


def decoded(answer: Any, like: Any, encoding: str) -> Any:
    """
    Return an answer as Python objects, for a comparison with the value that a test expects.

    In a job, the engine decodes answers in another way: into the declared type of the column.

    Args:
        answer: The connector's answer for one key.
        like: The expected value. Texts and numbers in *answer* are converted to the type of *like*, as the engine would
            convert them to the declared type.
        encoding: The connector's `encoding`.

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
        # If a text is expected and the document is not a JSON string, the value is the text of the document itself, as
        # in a column of strings.
        return bytes(answer).decode() if isinstance(like, str) and not isinstance(value, str) else _typed(value, like)
    return _typed(answer.decode() if isinstance(answer, bytes) and not isinstance(like, bytes) else answer, like)


def _typed(value: Any, like: Any) -> Any:
    """Return *value* converted to the type of *like*, at any depth; a part that cannot be converted stays as it is."""
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


def wait_until(condition: Callable[[], bool], seconds: float = 200.0) -> bool:
    """
    Call *condition* until it is true, for at most *seconds*; return whether it is true.

    The default is less than the 300 s after which a test is ended, so that the test itself says what did not come true.

    The pauses between calls begin with 2 ms and grow to 50 ms, because a condition may cost CPU time that what it waits
    for needs.
    """
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited >= seconds:
            return False
        time.sleep(min(max(waited / 50, 0.002), 0.05))
    return True
