"""The engine's test bench: scripted servers, engines and tasks on one event loop, or on a loop thread."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

from enrichkit.engine import admission
from enrichkit.engine.bridge import Bridge
from enrichkit.engine.engine import Engine
from enrichkit.engine.fallback import Fallback
from enrichkit.engine.refresh import BackgroundRun, Refresher, background_options
from enrichkit.engine.run import Run
from enrichkit.engine.tiers import Tier, TierRun
from enrichkit.engine.write_back import WriteBack
from enrichkit.interface import Keys
from enrichkit.options import Default, Options
from enrichkit.outcome import STATUSES, Outcomes
from enrichkit.testing import clock as virtual
from enrichkit.testing.scripted import Script, ScriptedConnector, Step

from .columns import values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from enrichkit.engine.answers import FirstAnswers
    from enrichkit.engine.cache import AnswerCache, Stage
    from enrichkit.engine.consumer import Consumer
    from enrichkit.engine.loop import LoopThread
    from enrichkit.engine.preload import Table
    from enrichkit.engine.records import Part
    from enrichkit.engine.reuse import Reuse
    from enrichkit.engine.sizes import BytesEach
    from enrichkit.interface import Connector, TaskInfo

POLICIES = ("on_timeout", "on_error", "on_missing")


class Row(NamedTuple):
    """One row, or barrier, that left a task. The three last are None without details."""

    key: Any
    value: Any
    status: str
    error: str | None = None
    at: float = 0.0
    attempts: int | None = None
    latency: float | None = None
    origin: str | None = None


class Task:
    """
    A run and what left it. Each key of a slice is one row, unless *counts* say otherwise.

    Attributes:
        left: What left, in order.
    """

    def __init__(self, engine: Engine, options: Options, arguments: dict[str, Any]) -> None:
        default_values = {
            name: options.policy(name).value for name in POLICIES if isinstance(options.policy(name), Default)
        }
        decode = arguments.pop("decode", lambda raws: (list(raws), {}))
        self.run = Run(
            engine,
            arguments.pop("name", "scripted"),
            options,
            decode,
            self._emit,
            default_values=default_values,
            seed=1,
            shows_costs=options.details and bool(engine.connector.units),
            **arguments,
        )
        self.ordered = arguments.get("ordered", True)
        self._in_columns = engine.connector.key_columns
        self._held: dict[int, Outcomes] = {}  # slices that have not left, by identity
        self.left: list[Row] = []
        self._takes = True
        self.error: BaseException | None = None
        self.admitted = 0
        self._changed = asyncio.Event()

    def admit(self, *keys: Any, counts: Sequence[int] | None = None, nulls: int = 0, apart: bool = False) -> Outcomes:
        """Admit one slice, with *nulls* rows that have no key; *apart*: it is told that nobody else has its keys."""
        counts = counts or [1] * len(keys)
        rows = sum(counts) + nulls
        given = Keys([pa.array(keys)], list(keys)) if keys and self._in_columns else list(keys)
        outcomes = Outcomes(given, rows, details=self.run.options.details, counts=counts)
        assert not apart or self.is_apart(keys), "a slice that has not left has one of the keys"
        outcomes.apart = apart
        self._held[id(outcomes)] = outcomes
        self.admitted += rows
        admission.admit(self.run, outcomes)
        return outcomes

    def admit_each(self, *keys: Any) -> None:
        """Admit a slice for each of *keys*."""
        for key in keys:
            self.admit(key)

    def is_apart(self, keys: Iterable[Any]) -> bool:
        """Whether none of *keys* is in a slice that has not left; of ordered tasks."""
        return all(set(keys).isdisjoint(outcomes.keys) for outcomes in self._held.values())

    def barrier(self, tag: Any) -> None:
        self.run.admit_barrier(tag)

    def close(self) -> None:
        """What the Spark thread does when it goes away."""
        self.run.close()

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until *done* holds, which is looked at whenever something leaves; raise what failed the run."""
        while not done():
            if self.error is not None:
                raise self.error
            self._changed.clear()
            await self._changed.wait()

    async def end(self) -> None:
        """End the input, wait until every row has left, and close; raise what failed the run."""
        await self.until(lambda: self._rows() == self.admitted)
        if self.error is not None:
            raise self.error
        self.run.close()

    @property
    def takes(self) -> bool:
        """Whether the Spark thread takes what leaves; else its bytes count, until the thread does."""
        return self._takes

    @takes.setter
    def takes(self, takes: bool) -> None:
        self._takes = takes
        if takes:
            self._take_bytes(self.run.emitted_bytes - self.run.taken_bytes)

    def _take_bytes(self, size: int) -> None:
        self.run.taken_bytes += size
        asyncio.get_running_loop().call_soon(self.run.resume)  # the Spark thread posts this, so it comes later

    @property
    def keys(self) -> list[Any]:
        return [row.key for row in self.left]

    @property
    def values(self) -> list[Any]:
        return [row.value for row in self.left]

    @property
    def statuses(self) -> list[str]:
        return [row.status for row in self.left]

    def _rows(self) -> int:
        return sum(row.status != "barrier" for row in self.left)

    def _emit(self, parts: list[Part] | BaseException) -> None:
        if isinstance(parts, BaseException):
            assert self.error is None, "a run fails once"
            self.error = parts
        else:
            for part in parts:
                self._take(part)
            if self.takes:
                self._take_bytes(sum(part.bytes for part in parts))
            assert self._rows() <= self.admitted, "a row left twice"
        self._changed.set()

    def _take(self, part: Part) -> None:
        outcomes = part.outcomes
        values = values_of(outcomes)
        now = asyncio.get_running_loop().time()
        if outcomes.tag is not None:
            self.left.append(Row(outcomes.tag, None, "barrier", at=now))
            return
        assert outcomes.counts is not None
        if part.indices is None:
            self._held.pop(id(outcomes), None)
        indices = range(len(outcomes.keys)) if part.indices is None else part.indices
        for i in indices:
            extra = outcomes.details
            details = (extra.attempts[i], extra.latencies[i], extra.origins[i]) if extra is not None else ()
            status, error = STATUSES[outcomes.statuses[i]], outcomes.errors.get(i)
            row = Row(outcomes.keys[i], values[i], status, error, now, *details)
            self.left += [row] * outcomes.counts[i]
        nulls = part.rows - sum(outcomes.counts[i] for i in indices)
        self.left += [Row(None, None, "null_key", at=now)] * nulls


class Lab:
    """Makes servers, engines and tasks, and closes them all."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []
        self.batch_sizes: dict[Engine, int] = {}
        self.tasks: list[Task] = []

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def server(
        self, script: Script | None = None, *, otherwise: Step | None = None, opening: Sequence[Step] = ()
    ) -> ScriptedConnector:
        return ScriptedConnector(script, otherwise=otherwise, opening=opening)

    def engine(
        self, server: Connector[Any], *, capacity: int = 4, batch_size: int = 1, rate: float | None = None
    ) -> Engine:
        engine = Engine(server, capacity, rate=rate, seed=1)
        self.engines.append(engine)
        self.batch_sizes[engine] = batch_size
        return engine

    def task(
        self,
        engine: Engine,
        *,
        ordered: bool = True,
        reuse: Reuse | Stage | None = None,
        preload: Table | None = None,
        journal: Stage | None = None,
        cache: AnswerCache | Stage | None = None,
        refresher: Refresher | None = None,
        tiers: Sequence[Tier] = (),
        task: TaskInfo | None = None,
        decode: Any = None,
        name: str = "scripted",
        fallbacks: Sequence[Fallback] = (),
        many: bool = False,
        neighbours: bool = False,
        first_answers: FirstAnswers | None = None,
        looks_up: str = "the config of the source",
        columns: Any = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> Task:
        """Make a task on *engine*; None: with the batch size that `engine` was given."""
        arguments = {
            "ordered": ordered,
            "reuse": reuse,
            "preload": preload,
            "journal": journal,
            "cache": cache,
            "refresher": refresher,
            "tiers": tiers,
            "task": task,
            "name": name,
            "fallbacks": fallbacks,
            "many": many,
            "batch_size": self.batch_sizes.get(engine, 1) if batch_size is None else batch_size,
        }
        arguments |= {"neighbours": neighbours, "columns": columns}
        arguments |= {"first_answers": first_answers, "looks_up": looks_up}
        if decode is not None:
            arguments["decode"] = decode
        made = Task(engine, Options(**options), arguments)
        self.tasks.append(made)
        return made

    def start(
        self,
        script: Script | None = None,
        *,
        otherwise: Step | None = None,
        capacity: int = 4,
        batch_size: int = 1,
        rate: float | None = None,
        **arguments: Any,
    ) -> tuple[ScriptedConnector, Task]:
        """Make a server, an engine for it, and one task."""
        server = self.server(script, otherwise=otherwise)
        engine = self.engine(server, capacity=capacity, batch_size=batch_size, rate=rate)
        return server, self.task(engine, **arguments)

    def fallback(
        self,
        server: Connector[Any],
        *when: str,
        name: str = "backup",
        capacity: int = 4,
        batch_size: int = 1,
        decode: Any = None,
        **options: Any,
    ) -> Fallback:
        """Make a fallback that asks *server* when one of the options *when* says so."""
        engine = self.engine(server, capacity=capacity, batch_size=batch_size)
        nulls = dict.fromkeys(POLICIES, "null")
        settings = Options(**{**nulls, "max_fallback_ratio": 1.0, "timeout": 1.0, **options})
        plain = decode or (lambda raws: (list(raws), {}))
        return Fallback(
            name,
            when,
            capacity * batch_size,
            lambda emit: Run(engine, name, settings, plain, emit, batch_size=batch_size, ordered=False, seed=1),
        )

    def tier(
        self,
        engine: Engine,
        name: str = "near",
        *,
        timeout: float = 0.5,
        writes: bool = False,
        ttl: float | None = None,
    ) -> Tier:
        """Make a tier on *engine* for one task."""
        nulls = dict.fromkeys(POLICIES, "null")
        settings = Options(**{**nulls, "max_fallback_ratio": 1.0, "timeout": timeout, "retry": None})
        plain = lambda raws: (list(raws), {})  # noqa: E731
        size = self.batch_sizes[engine]
        return Tier(
            name,
            engine,
            lambda emit: TierRun(engine, name, settings, plain, emit, batch_size=size, ordered=False, seed=1),
            size,
            WriteBack(name, engine, lambda values: dict(enumerate(values)), ttl, size) if writes else None,
        )

    def refresher(self, engine: Engine, cache: AnswerCache, **options: Any) -> Refresher:
        """Make the background of a task on *engine*, whose *options* are those of the task."""
        settings = background_options(Options(**options))
        return Refresher(
            cache,
            lambda emit: BackgroundRun(
                engine,
                "scripted",
                settings,
                lambda raws: (list(raws), {}),
                emit,
                batch_size=self.batch_sizes[engine],
                ordered=False,
                seed=1,
            ),
            engine.capacity,
        )

    async def at(self, moment: float) -> None:
        """Wait until *moment* of virtual time, and until everything has run that is due then."""
        await asyncio.sleep(moment - self.now)
        await virtual.settle()

    async def settle(self) -> None:
        """Wait until everything has run that can run now."""
        await virtual.settle()

    async def close(self) -> None:
        for task in self.tasks:
            task.close()
        await asyncio.sleep(0)  # for calls that swallow a cancellation: the next one must not merge with it
        for engine in self.engines:
            await engine.close()
        for engine in self.engines:
            peak = getattr(engine.connector, "peak", 0)  # a few tests bring a connector of their own
            assert peak <= engine.capacity, "more calls in flight than capacity"


class ThreadTask:
    """
    A run on a loop thread, with the calling thread in the place of Spark's.

    Attributes:
        key: Of the engine in the loop thread.
        build: Makes that engine when there is none.
    """

    def __init__(
        self,
        loop: LoopThread,
        key: str,
        build: Callable[[], Engine],
        run: Callable[[Engine, Callable[[Any], None]], Run],
        options: Options,
        *,
        window: int,
        start: int,
        source: str = "scripted",
        intersects: Callable[[Any, Sequence[Any]], bool] | None = None,
        consumer: Consumer | None = None,
        row_bytes: BytesEach | None = None,
    ) -> None:
        self.loop = loop
        self.key = key
        self.build = build
        self.bridge = Bridge(
            loop,
            window,
            start,
            source,
            options,
            lambda emit: run(self.loop.engine(self.key, self.build), emit),
            intersects,
            consumer,
            row_bytes=row_bytes,
        )

    def process(self, slices: Iterable[Outcomes], **instead: Any) -> Generator[Part, None, None]:
        """Start the run and yield what leaves; *instead* gives another `key` or `build`."""
        vars(self).update(instead)
        return self.bridge.process(slices)  # type: ignore[return-value]  # it is a generator

    def loop_turn(self, after: float = 0.0) -> None:
        """Wait until the loop has read all mails and gone round once more, *after* seconds later."""
        done = threading.Event()
        self.loop.post(lambda: asyncio.get_running_loop().call_later(after, done.set))
        assert done.wait(5.0), "the loop does not turn"


class SparkThread(Protocol):
    """Makes a `ThreadTask`; tasks of one server share its engine."""

    def __call__(
        self,
        server: ScriptedConnector,
        *,
        loop: LoopThread | None = None,
        capacity: int = 4,
        batch_size: int = 1,
        window: int = 1000,
        start: int | None = None,
        ordered: bool = True,
        consumer: Consumer | None = None,
        row_bytes: BytesEach | None = None,
        **options: Any,
    ) -> ThreadTask: ...


def end_thread(thread: LoopThread) -> None:
    loop = thread._loop
    thread.stop()
    assert not thread.alive(), "the loop thread does not end"
    for engine in thread.engines.values():  # the loop is here now, whose thread is no more
        loop.run_until_complete(engine.close())
    loop.close()
