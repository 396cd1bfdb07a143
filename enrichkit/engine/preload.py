"""
Sources that each worker process loads as a whole before its first lookup, like Flink's full cache.

The connector lists the keys of the source page by page, and `fetch_many` looks up the keys of each page. So an answer
is the same as without the load, however the connector treats duplicates, collations and values that cannot be read.
Each load has its own connector with one connection; the connector is closed when the load has ended.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import (
    ConfigError,
    EnrichkitError,
    FatalError,
    PermanentError,
    TaskFailedError,
    TransientError,
    UnavailableError,
)
from ..functions import raised
from ..interface import Absent, Answers, Call, Connector, Failure
from .answers import breach, in_rows
from .cache import ABSENT, MISS, Stage
from .limits import asked_pause
from .sizes import sizes_of

if TYPE_CHECKING:
    from ..options import Preload
    from .answers import Decode, FirstAnswers

__all__ = ["Table"]

_log = logging.getLogger("enrichkit")

T = TypeVar("T")

FIRST_WAIT, MOST_WAIT = 0.05, 1.0
"""Seconds between two attempts at a load while the source is away: the first wait, and the longest after doubling."""


class WaitingRun(Protocol):
    """A run that waits for the table. The table tells the run that the source is loaded, or that it never will be."""

    def loaded(self) -> None: ...
    def fail(self, error: BaseException) -> None: ...
    def broken(self, error: BaseException) -> None: ...


class Table(Stage):
    """
    The answers of a whole source: a stage, i.e. a store of answers that a run asks before it asks the source. Lives on
    the loop thread.

    Args:
        source: Name of the source in messages.
        connector: Function that returns a new connector for one load.
        kinds: Python type of each part of a key.
        size: Most keys per page.
        decode: Function that turns the raw answers of one call into values of the declared type.
        preload: The user's option `preload`.
        patience: Seconds for which the source may be away before a load fails.
        limit: Seconds that one step of a load may take: opening the connector, listing a page, or one call.
        many: Whether an answer is a list, with one element for each match of its key.
        first_answers: Function that makes the object that checks the first answers of a load; None: there is no check.
        today: Function that returns the date and the time of day, in any time zone; tests pass their own.

    Attributes:
        answers: For each key its value, `MISS`, or `ABSENT` if the source has to be asked for the key. Each load makes
            a new dict.
        bytes: About how many bytes keys and values take.
        loads: Number of loads that have succeeded.
        failures: Number of loads that have failed.
        ended: Whether the table can no longer be used.
        make_room: Function that closes idle engines whose connectors have a given class. The table calls it when the
            server had no free connection.
        idle_since: Loop time since which no run uses the table; None: a run uses it.
    """

    origin = "preload"
    active = True

    def __init__(
        self,
        source: str,
        connector: Callable[[], Connector[Any]],
        kinds: Sequence[type],
        size: int,
        decode: Decode,
        preload: Preload,
        *,
        patience: float,
        limit: float,
        many: bool = False,
        first_answers: Callable[[], FirstAnswers] | None = None,
        today: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._source = source
        self._connector = connector
        self._kinds = tuple(kinds)
        self._size = size
        self._decode = decode
        self._preload = preload
        self._patience = patience
        self._limit = min(limit, patience)
        self._call = Call(timeout=self._limit, many=many)
        self._first_answers = first_answers
        self._today = today
        self._otherwise: Any = ABSENT  # what `get_many` returns for a key that was not listed
        self._told = False
        self._runs: dict[WaitingRun, None] = {}
        self.answers: dict[Any, Any] = {}
        self.bytes = 0
        self.loads = 0
        self.failures = 0
        self.ended = False
        self.make_room: Callable[[type[Connector[Any]]], None] = _no_engines
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self.idle_since: float | None = self._now()
        self._task = loop.create_task(self._live(), name=f"enrichkit-preload-{source}")

    def __len__(self) -> int:
        return len(self.answers)

    # for the runs

    def enter(self, run: WaitingRun) -> bool:
        """Serve *run*; return whether the source is already loaded. If not, `Run.loaded` is called after the load."""
        self._runs[run] = None
        self.idle_since = None
        return self.loads > 0

    def leave(self, run: WaitingRun) -> None:
        """Stop serving *run*."""
        self._runs.pop(run, None)
        if not self._runs:
            self.idle_since = self._now()

    def end(self) -> None:
        """End the table: cancel a load that is under way, without an error, and forget all answers."""
        self.ended = True
        self._task.cancel()
        self.answers = {}
        self.bytes = 0

    # as a stage

    def get_many(self, keys: Sequence[Any], now: float) -> list[Any]:
        """Return for each of *keys* its value, `MISS`, or `ABSENT`."""
        return list(map(self.answers.get, keys, repeat(self._otherwise)))

    # loads

    async def _live(self) -> None:
        """Load the source, and load it again whenever the option `preload` asks for a refresh."""
        while True:
            try:
                loaded = await self._load()
            except Exception as error:  # noqa: BLE001  # a plugin may raise anything; waiting runs must learn of it
                self.failures += 1
                if self.loads == 0 or self._preload.on_refresh_error == "fail":
                    self._fail(error)
                    return
                if not self._told:
                    self._told = True
                    _log.warning(
                        "%s: the old answers serve, because no new ones could be loaded: %s", self._source, error
                    )
            else:
                self._publish(*loaded)
            wait = self._preload.wait(self._today())
            if wait is None:
                return
            await asyncio.sleep(wait)

    def _publish(self, answers: dict[Any, Any], otherwise: Any, size: int) -> None:
        self.answers, self._otherwise, self.bytes = answers, otherwise, size
        self.loads += 1
        self._told = False
        if self.loads == 1:
            for run in list(self._runs):
                try:
                    run.loaded()
                except Exception as error:  # noqa: BLE001  # the error must not end the table: other runs use it
                    run.broken(error)

    def _fail(self, error: Exception) -> None:
        """End the table, and fail all its runs because of *error*; the next task makes a new table."""
        self.ended = True
        self.answers = {}
        for run in list(self._runs):
            # A `ConfigError`, as for a misspelled field, is handed on unchanged, because its message tells what to
            # change.
            is_whole = isinstance(error, ConfigError)
            run.fail(error if is_whole else TaskFailedError(f"{self._source}: it could not be loaded: {error}"))

    async def _load(self) -> tuple[dict[Any, Any], Any, int]:
        """
        Load the source, and wait for it while it is away.

        Returns:
            The answers, the value that `get_many` returns for a key that was not listed, and the size in bytes.
        """
        wait, began = FIRST_WAIT, self._now()
        away: float | None = None
        while True:
            load = _Load(self)
            try:
                return await load.run()
            except TransientError as error:
                now = self._now()
                if isinstance(error, UnavailableError) and error.busy and load.kind is not None:
                    self.make_room(load.kind)
                # The time away is measured from the last answer before the first failure, not from the latest answer.
                # So a load also ends in an error if each attempt gets some answers and then fails.
                away = max(began, load.heard) if away is None else away
                pause = max(wait, asked_pause(error.retry_after, self._patience) or 0.0)
                if now - away + pause > self._patience:
                    raise FatalError(
                        f"it was away for {now - away:.1f} s, and stall_timeout is {self._patience:g} s. The last "
                        f"attempt got: {error}"
                    ) from None
                await asyncio.sleep(pause)
                wait = min(2 * wait, MOST_WAIT)


def _no_engines(kind: type[Connector[Any]]) -> None:
    """Do nothing: this is `Table.make_room` until a loop thread, which knows the engines, sets another function."""


class _Load:
    """One attempt to load a source; `heard` is the loop time of the last answers, `kind` the class of the connector."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._answers: dict[Any, Any] = {}
        self._bytes = 0
        self.heard = 0.0
        self.kind: type[Connector[Any]] | None = None

    async def run(self) -> tuple[dict[Any, Any], Any, int]:
        table = self._table
        connector = table._connector()
        connector.capacity = 1
        self.kind = type(connector)
        first = table._first_answers() if table._first_answers is not None else None
        try:
            await self._step(connector.open())
            pages = connector.scan(table._kinds, table._size)
            try:
                while (page := await self._step(anext(pages, None))) is not None:
                    keys = tuple(filter(self._fits, page))
                    for start in range(0, len(keys), table._size):
                        await self._take(connector, keys[start : start + table._size], first)
            finally:
                await _closed(pages)
            if first is not None and not first.done and (wrong := first.verdict()) is not None:
                raise wrong
            return self._answers, MISS if connector.lists_all(table._kinds) else ABSENT, self._size()
        except EnrichkitError:
            raise
        except Exception as error:  # noqa: BLE001  # a plugin may raise anything
            # The text of the error may hold secrets, and a traceback would show them.
            raise FatalError(f"its connector raised {raised(error)}.") from None
        finally:
            await connector.close()

    async def _step(self, step: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._table._limit) as limit:
                return await step
        except TimeoutError:
            if not limit.expired():
                raise
            raise TransientError(f"no answer within {self._table._limit:g} s") from None

    async def _take(self, connector: Connector[Any], keys: tuple[Any, ...], first: FirstAnswers | None) -> None:
        """Look up *keys* and keep the answers; if a key makes the call fail, find this key by bisection."""
        if not keys:
            return
        try:
            found: Any = await self._step(connector.fetch_many(keys, self._table._call))
        except PermanentError as error:
            if len(keys) > 1:
                half = len(keys) // 2
                await self._take(connector, keys[:half], first)
                await self._take(connector, keys[half:], first)
                return
            found = {keys[0]: Failure(error)}
        self.heard = self._table._now()
        self._keep(keys, found, first)
        self._check_size()

    def _keep(self, keys: Sequence[Any], found: Any, first: FirstAnswers | None) -> None:
        if first is not None and not first.done and isinstance(found, Mapping):
            wrong = first.see(found)
            if wrong is not None:
                raise wrong
        broken: BaseException | None = None
        if isinstance(found, Answers):
            found, broken = in_rows(self._table._source, found)
        broken = broken or breach(self._table._source, dict.fromkeys(keys), found)
        if broken is not None:
            raise broken
        raws: dict[Any, Any] = {}
        answers = dict.fromkeys(keys, MISS)  # a key without an answer: its row was deleted after the listing
        for key, raw in found.items():
            if isinstance(raw, Failure):
                if isinstance(raw.error, TransientError | FatalError):
                    raise raw.error
                answers[key] = ABSENT  # a run then asks the source for the key, and gets the error itself
            elif not (isinstance(raw, Absent) or (self._table._call.many and raw in ([], ()))):
                raws[key] = raw
        values, bad = self._table._decode(list(raws.values()))
        answers.update(zip(raws, values, strict=True))
        for index in bad:
            answers[list(raws)[index]] = ABSENT
        fresh = [key for key in keys if key not in self._answers]
        self._bytes += sizes_of(fresh) + sizes_of(value for value in values if value is not None)
        self._answers.update(answers)

    def _size(self) -> int:
        return self._bytes + sys.getsizeof(self._answers)

    def _check_size(self) -> None:
        most = self._table._preload.max_bytes
        if self._size() > most:
            raise FatalError(
                f"its first {len(self._answers):,} keys and their values take {self._size():,} bytes, and "
                f"Preload.max_bytes is {most:,}. Raise max_bytes if each worker process has the memory, name fewer "
                "columns in the config, or leave preload out and look keys up as they come."
            )

    def _fits(self, key: Any) -> bool:
        """Whether the parts of *key* have the types of the rows' keys; `==` is not enough, as 1 == True in Python."""
        parts = key if isinstance(key, tuple) else (key,)
        return tuple(map(type, parts)) == self._table._kinds


async def _closed(pages: AsyncIterator[Any]) -> None:
    close = getattr(pages, "aclose", None)
    if close is not None:
        await close()
