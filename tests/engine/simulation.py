"""
One seed, one story: a source with moods, tasks with random options, and a Spark thread, all under virtual time.

`story.py` draws the story from the seed, `simulate` plays it on the real engine and the real hand-over, and the books
of `watch.py` and `invariants.py` are checked at every step. What plays the Spark thread runs the loop whenever it
waits, so that two threads become one and every run of a seed is the same.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from enrichkit.engine.bridge import Bridge
from enrichkit.engine.cache import MISS, AnswerCache
from enrichkit.engine.engine import Engine
from enrichkit.engine.hedging import Hedges
from enrichkit.engine.loop import LoopThread
from enrichkit.engine.reuse import Reuse
from enrichkit.engine.run import Run
from enrichkit.errors import FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.interface import Call, Connector, ConnectorConfig, Failure, Keys, TaskInfo
from enrichkit.outcome import Outcomes
from enrichkit.testing.clock import VirtualTimeLoop

from .columns import column_of, in_columns
from .invariants import RunWatch, states_watched
from .nearby import Near, Other, WatchedFallback, make_fallback, make_table, make_tier, undecoded
from .stages import MemoryStage
from .story import Kind, draw
from .watch import Flight, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from enrichkit.engine.preload import Table
    from enrichkit.engine.records import Part
    from enrichkit.engine.tiers import Tier

    from .story import Plan, RunPlan

__all__ = ["FLAGS", "simulate"]

FLAGS = {
    **dict.fromkeys(("timeout", "late answer", "retry", "miss", "duplicate", "early close", "poisoned key"), 0.2),
    "keys in columns": 0.2,
    "apart": 0.1,
    "entered later": 0.05,
    "outage": 0.05,
    "probed": 0.05,
    "refused": 0.05,
    "returned": 0.05,
    "reuse": 0.05,
    "journal": 0.1,
    "hedged": 0.01,
    "tier": 0.1,
    "tier down": 0.02,
    "written back": 0.02,
    "preload": 0.05,
    "above the bytes": 0.02,
    "many": 0.1,
    "long pause": 0.02,
    "fallback": 0.1,
    "stood still": 0.1,
}
"""What a story may hold, and the share of the seeds that must, or the simulation no longer tests what it is for."""
VIRTUAL_LIMIT = 50_000.0  # seconds; no story lasts nearly as long unless something hangs
ODD = (ValueError, KeyError, StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError, RecursionError)
FATAL = (FatalError, SystemExit, KeyboardInterrupt, MemoryError)


class Source(Connector[ConnectorConfig]):
    """The server and its driver, with the weather of the story."""

    name = "simulated"
    config_class = ConnectorConfig

    def __init__(self, plan: Plan, watch: Watch) -> None:
        super().__init__(ConnectorConfig())
        self.watch = watch
        self.plan = plan
        self.weather = plan.weather
        self.rng = random.Random(f"source {plan.seed}")
        self.pauses = random.Random(f"pauses of the source {plan.seed}")
        self.calls = 0
        self.seen: Counter[Any] = Counter()
        self.opened = self.closed = 0
        self.fatal = False

    async def open(self) -> None:
        self.opened += 1
        if self.weather.slow_open:
            await asyncio.sleep(self.weather.slow_open)
        if self.weather.shaky_open and self.opened == 1:
            raise TransientError("connection refused")
        if not self.weather.opens_at_once:
            self.watch.opened_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        self.closed += 1

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        try:
            flight = self.watch.called(keys, call)
        except AssertionError as broken:
            self.watch.broken.append(broken)  # the engine takes what a connector raises for a failed lookup
            raise
        try:
            if self.weather.full is not None and len(self.watch.flights) > self.weather.full:
                self.watch.flags.add("refused")
                raise UnavailableError("too many calls", busy=True, retry_after=self.weather.asks_to_wait)
            await self._travel(flight)
            flight.answers = self._answer(keys)
        except BaseException as error:
            flight.error = error
            raise
        finally:
            self.watch.ended(flight)
        return in_columns(flight.answers) if self.plan.in_columns else flight.answers

    async def _travel(self, flight: Flight) -> None:
        loop, rng, weather = asyncio.get_running_loop(), self.rng, self.weather
        until, never = self._delay(loop.time())
        while True:
            try:
                if never:
                    await loop.create_future()
                elif until > loop.time():
                    await asyncio.sleep(until - loop.time())
                return
            except asyncio.CancelledError:
                flight.cancelled += 1
                if flight.cancelled > 1 or rng.random() >= weather.stubborn:
                    if rng.random() < 0.1:
                        raise ValueError("a driver that hides its cancellation") from None
                    raise
                flight.stubborn, never = True, False
                until = loop.time() + weather.unit * rng.random()

    def _delay(self, now: float) -> tuple[float, bool]:
        rng, weather = self.rng, self.weather
        began, ended = weather.outage
        draw = rng.random()
        if draw < weather.never or (began <= now < ended and draw < 0.2):
            return now, True
        if draw < weather.never + weather.late:
            return now + weather.unit * rng.uniform(1.0, 3.0), False
        if draw < weather.never + weather.late + weather.near:
            return now + weather.unit * rng.uniform(0.9, 1.15), False
        if rng.random() < weather.instant:
            return now, False
        return now + rng.expovariate(1.0 / weather.latency), False

    def _answer(self, keys: Sequence[Any]) -> Any:
        rng, weather = self.rng, self.weather
        self.calls += 1
        if self.plan.fatal_at == self.calls:
            self.fatal = True
            if rng.random() < 0.3:
                return {"a key": "that nobody asked for"}
            raise rng.choice(FATAL)("it is over")
        now = asyncio.get_running_loop().time()
        if weather.outage[0] <= now < weather.outage[1]:
            if weather.absent:
                raise UnavailableError("not reachable", retry_after=rng.choice([None, None, 0.1 * weather.unit]))
            raise self._transient()
        if rng.random() < weather.transient:
            raise self._transient()
        if rng.random() < weather.odd:
            raise rng.choice(ODD)("odd")
        self.seen.update(keys)
        if any(self.plan.kinds[key] == Kind.POISONED for key in keys):
            self.watch.flags.add("poisoned key")
            raise PermanentError("poison") if rng.random() < 0.7 else ValueError("poison")
        answers = {}
        for key in keys:
            kind = self.plan.kinds[key]
            if rng.random() < weather.failing:
                answers[key] = Failure(self._transient())
            elif kind == Kind.REFUSED or kind == Kind.BROKEN:
                answers[key] = Failure(PermanentError("no"), rejected=kind == Kind.REFUSED)
            elif kind != Kind.MISSING and not (kind == Kind.APPEARING and self.seen[key] == 1):
                answers[key] = self.plan.value(key)
            elif self.plan.many and rng.random() < 0.5:
                answers[key] = []  # which is a miss, as no answer is
        return answers

    def _transient(self) -> TransientError:
        wish = None
        if self.rng.random() < 0.2:
            unit = self.weather.unit
            wish = self.rng.choice([0.0, 0.05 * unit, 0.3 * unit, 0.3 * unit, unit, float("nan"), -1.0])
            wish = 120.0 if self.rng.random() < 0.01 else wish
        if self.weather.long_pause is not None and self.pauses.random() < 0.05:
            self.watch.flags.add("long pause")
            wish = self.weather.long_pause
        return TransientError("busy", retry_after=wish)


class SourceOfColumns(Source):
    """Takes keys in columns, too."""

    key_columns = True


class Loop(VirtualTimeLoop):
    """Has the books checked whenever nothing can run before the clock moves."""

    watch: Watch

    def _jump(self, seconds: float | None) -> None:
        for error in self.watch.broken + self.errors:
            raise error
        self.watch.quiet(self.time())
        super()._jump(seconds)
        self.advance(self.watch.stands_still())


class Thread:
    """What the hand-over sees of the loop thread: mails are run by the loop, which runs while the caller waits."""

    engine = LoopThread.engine
    _make_room = LoopThread._make_room
    _close = LoopThread._close

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.engines: dict[str, Engine] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.near: Near | None = None
        self.loaded: Table | None = None

    def post(self, mail: Callable[..., Any], *args: Any) -> None:
        self.loop.call_soon(mail, *args)

    def tiers(self, plan: Plan) -> tuple[Tier, ...]:
        """Return the tiers of a run. On the loop."""
        if plan.tier is None:
            return ()
        self.near = self.near or Near(plan)
        near, tier = self.near, plan.tier
        engine = self.engine("near", lambda: Engine(near, tier.capacity, name="near", seed=plan.seed))
        return (make_tier(engine, plan),)

    def fallbacks(self, plan: Plan) -> tuple[WatchedFallback, ...]:
        """Return the fallbacks of a run. On the loop."""
        if plan.fallback is None:
            return ()
        other = plan.fallback

        def build() -> Engine:
            return Engine(Other(other, plan.seed), other.capacity, name="other", seed=plan.seed)

        return (make_fallback(self.engine("other", build), other, plan.seed),)

    def table(self, plan: Plan) -> Table | None:
        """Return what is loaded before the first lookup of a run. On the loop."""
        if self.loaded is None and plan.listed is not None:
            self.loaded = make_table(plan)
        return self.loaded


class WatchedBridge(Bridge):
    """The hand-over, except that it runs the loop itself instead of waiting for the thread that does."""

    def __init__(
        self,
        thread: Thread,
        watch: Watch,
        plan: RunPlan,
        number: int,
        cache: AnswerCache | None,
        journal: MemoryStage | None,
        build: Callable[[], Engine],
    ) -> None:
        self._thread = thread
        self._watching = False
        self.watched: RunWatch

        def make_run(emit: Callable[[Any], None]) -> Run:
            def watched_emit(parts: list[Part] | BaseException) -> None:
                if isinstance(parts, BaseException):
                    self.watched.failed = parts
                else:
                    self.watched.emitted(parts)
                emit(parts)
                if self._watching:
                    thread.loop.stop()

            fallbacks = thread.fallbacks(watch.plan)
            run = Run(
                thread.engine("simulated", build),
                "simulated",
                plan.options,
                undecoded,
                watched_emit,
                batch_size=watch.plan.batch_size,
                ordered=plan.ordered,
                default_values=plan.default_values,
                reuse=Reuse(plan.options.reuse_bytes) if plan.options.reuse and cache is None else None,
                journal=journal,
                cache=cache,
                task=TaskInfo(partition=number),
                seed=watch.plan.seed,
                neighbours=watch.plan.neighbours,
                columns=column_of,
                tiers=thread.tiers(watch.plan),
                fallbacks=fallbacks,
                preload=thread.table(watch.plan),
                many=watch.plan.many,
            )
            close = run.close

            def watched_close() -> None:
                close()
                watch.closes(number)

            run.close = watched_close  # type: ignore[method-assign]  # the books must know the very moment
            self.watched = RunWatch(watch, plan, number, run, journal)
            watch.runs.append(self.watched)
            for fallback in fallbacks:
                fallback.passed_on = self.watched.passed_on
            return run

        super().__init__(thread, plan.window, plan.start, "simulated", plan.options, make_run)  # type: ignore[arg-type]  # a thread in all it needs

    def _drain(self) -> Iterator[Part]:
        if self._run is not None and not self._run.closed:
            self._thread.loop.run_until_complete(self._run.drain())
        yield from ()

    def _wait(self, until: float | None) -> list[Part] | BaseException:
        self._watching = True
        while self._ready.empty():
            self._thread.loop.run_forever()
        self._watching = False
        return self._ready.get_nowait()


class _BrokenInput(Exception):
    pass


def simulate(seed: int) -> set[str]:
    """Play the story of *seed*; return which of `FLAGS` it held, and raise what was wrong."""
    with states_watched():
        return _simulate(seed)


def _simulate(seed: int) -> set[str]:
    plan = draw(seed)
    loop = Loop(seed, VIRTUAL_LIMIT)
    watch = loop.watch = Watch(plan, loop.time)
    watch.flags |= {"many"} if plan.many else set()
    source = SourceOfColumns(plan, watch) if plan.keys_in_columns else Source(plan, watch)
    thread = Thread(loop)
    cache = AnswerCache(plan.cache.ttl, plan.cache.max_bytes, plan.cache.missing_ttl) if plan.cache else None
    journaled = _journal_of(plan)
    plays = [_play(plan, number, thread, source, cache, journaled) for number in range(len(plan.runs))]
    try:
        if plan.together:
            for _ in zip_longest(*plays):  # the two take turns, part by part
                pass
        else:
            for play in plays:
                deque(play, maxlen=0)
        _end(thread, watch, source)
    finally:
        for play in plays:
            play.close()
        loop.close()
    return watch.flags


def _journal_of(plan: Plan) -> dict[Any, list[Any]] | None:
    """Return what the journal of the story holds at its begin; None where it has none."""
    if plan.journal is None:
        return None
    kinds = {key: plan.kinds[key] for key in plan.kinds if key in plan.journal}
    return {key: [MISS if kind == Kind.MISSING else plan.value(key)] for key, kind in kinds.items()}


def _play(
    plan: Plan,
    number: int,
    thread: Thread,
    source: Source,
    cache: AnswerCache | None,
    journaled: dict[Any, list[Any]] | None,
) -> Generator[Part]:
    """Be the Spark thread of one task: yields what it takes."""
    run_plan, watch, loop = plan.runs[number], source.watch, thread.loop
    rng = random.Random(f"spark {plan.seed} {number}")

    def engine() -> Engine:
        watch.engine = Engine(source, plan.capacity, rate=plan.rate, seed=plan.seed)
        watch.engine.hedges = Hedges()
        watch.engine.hedges._until_look = 10  # a story has few calls
        return watch.engine

    journal = None if journaled is None else MemoryStage("journal", journaled)
    bridge = WatchedBridge(thread, watch, run_plan, number, cache, journal, engine)
    parts = bridge.process(_slices(plan, run_plan, bridge, thread))
    taken = 0
    try:
        for part in parts:
            bridge.watched.taken_rows += part.rows
            taken += 1
            if run_plan.close_after is not None and taken > run_plan.close_after:
                watch.flags.add("early close")
                break
            if rng.random() < 0.1:
                loop.run_until_complete(asyncio.sleep(0.05 * plan.weather.unit * rng.random()))
            yield part
            bridge.watched.done_with(part)
        else:
            bridge.watched.complete(run_plan.rows)
    except _BrokenInput:
        watch.flags.add("early close")
    except FatalError:
        if not source.fatal:
            raise  # the task failed without a reason
    finally:
        parts.close()
    loop.run_until_complete(asyncio.sleep(1.0))
    bridge.watched.over()


def _slices(story: Plan, plan: RunPlan, bridge: Bridge, thread: Thread) -> Iterator[Outcomes]:
    segment = 0
    data_type = pa.int64() if story.neighbours else pa.string()
    for index, piece in enumerate(plan.slices):
        if index == plan.breaks_after:
            raise _BrokenInput
        if piece.barrier:
            thread.post(bridge.admit_barrier, segment)
            segment += 1
        if piece.gap:
            thread.loop.run_until_complete(asyncio.sleep(piece.gap))
        counts = list(piece.counts)
        keys: Sequence[Any] = list(piece.keys)
        if story.keys_in_columns:
            column = pa.array(piece.keys, data_type)
            keys = Keys([column], column.to_pylist)
        yield Outcomes(keys, piece.rows, segment, details=plan.options.details, counts=counts)


def _end(thread: Thread, watch: Watch, source: Source) -> None:
    loop = thread.loop
    if thread.loaded is not None:
        thread.loaded.end()
    if thread.near is not None:
        for error in thread.near.broken:
            raise error
    for engine in thread.engines.values():
        loop.run_until_complete(engine.close())
    watch.closed = True
    assert not watch.flights
    assert source.closed >= bool(source.opened)
    left = [task for task in asyncio.all_tasks(loop) if not task.done()]
    assert not left, "tasks of the engine outlive it"
    assert loop.timers == 0, "the engine left a timer"
    if loop.errors:
        raise loop.errors[0]
