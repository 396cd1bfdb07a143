"""
The lookups of one task on the loop thread: the counterpart of Flink's AsyncWaitOperator.

A slice (a group of rows) is admitted as `Outcomes` (`admission.py`), the engine turns its pending keys into calls, the
keys get their outcomes (`settlement.py`), and the rows of settled keys are returned through the queue. Of the methods
of a run, only `drain` is a coroutine. Each other method is one step of a state machine, called by the mailbox (which
takes work from the Spark thread), by a slot (a task that makes calls) or by the sweeper (a periodic timer). The
functions of `admission.py`, `settlement.py` and similar modules take the run as their first argument. They depend on
this module, so this module imports none of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from ..errors import TaskFailedError
from ..interface import Call, TaskInfo
from ..outcome import MISSING, Outcomes
from .deadlines import TICK_MAX, Deadlines
from .pending import Pending
from .policies import NamedFallback, Policies
from .queues import OrderedQueue, UnorderedQueue
from .records import NO_SLICE, Bundle, InFlight, Part
from .stats import RunStats

if TYPE_CHECKING:
    from ..options import Options
    from .answers import Columns, Decode, FirstAnswers
    from .cache import AnswerCache, Stage
    from .limits import Gate, RetryBudget
    from .preload import Table
    from .records import Group, Lookup
    from .reuse import Reuse
    from .search import Search
    from .write_back import WriteBack

__all__ = ["EnginePort", "Run"]

HARD_LIMIT_EXTRA = 5.0
HARD_LIMIT_FACTOR = 2.0
DAY = 86_400.0
MANY = 1000
"""Number of keys after which a warning is logged if the source holds none of them."""
QUEUED_EVERY = 8
"""The wait of keys for their call is measured for one call in this many, because measuring takes 2 % of a lookup."""
FEW = 10
"""Like `MANY`, but for a task that has ended: if it had fewer keys than this, no warning is logged."""

_log = logging.getLogger("enrichkit")
_told: WeakSet[EnginePort] = WeakSet()
"""Engines whose warning about misses was logged, so that not every micro-batch logs it for a source with few keys."""


class EnginePort(Protocol):
    """
    The part of its engine that a run uses.

    Attributes:
        retry_budget: How many retries the source may get.
        gate: The gate, which may hold calls back although a slot is free.
        calls: Dict from each call that has not ended to its run; a late call stays here until it has really ended.
        now: Function that returns the loop time.
        attach: Function that registers a run, which the engine then serves until the run closes.
        wake: Function that lets free slots look for groups of pending keys.
        later: Function that puts a group at the head of the pending queue of a run after a wait.
        detach: Function that ends the service of a run, and cancels its calls.
    """

    retry_budget: RetryBudget
    gate: Gate
    calls: dict[InFlight, Run]
    now: Callable[[], float]

    def attach(self, run: Run) -> None: ...
    def wake(self) -> None: ...
    def later(
        self, run: Run, wait: float, group: list[Lookup], tokens: int = 0, search: Search | None = None
    ) -> None: ...
    def detach(self, run: Run) -> None: ...


class FallbackPort(NamedFallback, Protocol):
    """
    The part of a fallback that its run uses; see `fallback.py`.

    Attributes:
        parent: The run whose fallback this is.
        run: The run of the fallback.
        flush: Function that makes the fallback ask for the keys that were handed to it.
        close: Function that ends the fallback; the run calls it when it closes.
    """

    parent: Run | None

    @property
    def run(self) -> Run: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class TierPort(Protocol):
    """
    The part of a tier (a source that is asked before the run's own) that the run uses; see `tiers.py`.

    Attributes:
        parent: The run that asks the tier before its source.
        next: The tier that is asked next; None: the source is asked next.
        writer: The object that writes to the tier what later tiers and the source have found; None: nothing is written.
        runs: The runs of the tier.
        ask: Function that asks the tier for the keys that have the given indices in a slice.
        wake: Function that lets the tier check again whether it may ask for keys.
        close: Function that ends the tier; the run calls it when it closes.
    """

    parent: Run | None
    next: TierPort | None
    writer: WriteBack | None

    @property
    def runs(self) -> Sequence[Run]: ...
    def ask(self, outcomes: Outcomes, indices: Sequence[int], spent: float = 0.0) -> None: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...


class RefresherPort(Protocol):
    """
    The part of a run's background lookups that the run uses; see `refresh.py`.

    Attributes:
        serves_stale: Whether stale values replace the outcomes of lookups that fail.
        run: The background run.
        took: Function that records how many seconds a call took.
        old_values: Function that returns the stale values of keys, by key.
        refresh: Function that asks, in the background, for those of the given keys whose answers expire soon.
        ask: Function that asks for the given keys in the background.
        close: Function that ends the background lookups; the run calls it when it closes.
    """

    serves_stale: bool

    @property
    def run(self) -> Run: ...
    def took(self, seconds: float) -> None: ...
    def old_values(self, keys: Iterable[Any]) -> dict[Any, Any]: ...
    def refresh(self, keys: Sequence[Any]) -> None: ...
    def ask(self, keys: Iterable[Any]) -> None: ...
    def close(self) -> None: ...


class Run:
    """
    The lookups of one task on one engine. Lives on the loop thread, except `taken_bytes`.

    Args:
        engine: The engine that makes the calls; it serves the run from now on.
        source: What messages call the source.
        options: The options of the enrichment.
        decode: Function that turns the raw answers of one call into values of the declared type.
        emit: Function that the run calls on the loop thread with the parts to return to Spark now (see `Part`), or with
            the error that failed the task.
        batch_size: Most keys per call.
        columns: Function that turns answers in columns into one column of values, in the order of the keys and with
            null for a miss. It returns the column and the indices of the misses, and raises an exception if a key has
            to be handled separately. None: all answers are read key by key.
        ordered: Whether slices are returned in order; otherwise rows are returned as they become ready, but none
            crosses a barrier.
        default_values: Decoded `default(...)` values by option name.
        fallbacks: The fallbacks of the run.
        reuse: The answers that this run has got; None: the run itself remembers no answers, for example because it has
            a cache.
        preload: The table of the whole source, loaded before the first lookup; None: there is none.
        journal: Answers on durable storage, which the run looks up before those in the cache; None: there is no
            journal.
        cache: The cache, which other runs of the same source share; None: there is no cache.
        refresher: The object that asks for keys of the cache in the background; None: there are no such lookups.
        tiers: The sources that are asked before the source of this run, in order.
        task: The task, for the connector's `Call`.
        call_run: Fingerprint of the source and the run, for the idempotency keys of `Call`.
        salt: Salt of the hashes that stand for keys in messages.
        seed: Seed of the random jitter; tests give one.
        many: Whether an answer is a list, with one element for each match of its key.
        neighbours: Whether the keys of each slice come sorted, and neighboring keys are asked for together.
        first_answers: The object that checks the first answers; None: the first answers are not checked.
        looks_up: How the source is asked for a key, as a warning shows it: the config of the source, without secrets.
        shows_costs: Whether the details of the rows show what their calls have cost.

    Attributes:
        stages: The stages, i.e. stores of known answers such as the cache, that are asked before the source, in order.
        remembers: Whether a stage or a tier wants the answers of the source.
        only_reuse: *reuse*, if no other stage and no tier wants the answers of the source; otherwise None.
        table: By key, the lookup or bundle that asks for the key.
        draining: By key, the call that goes on although the key's lookup has timed out.
        touched: Slices that have new outcomes since the last flush; in an unordered run, with the indices of the keys.
        settled_bytes: Bytes of all values that have been settled so far.
        taken_bytes: Bytes of values that Spark has taken; written by the Spark thread only. In the run of a fallback,
            tier or refresher: bytes of values that the run it serves has taken; written by the loop thread only.
        held_back: Whether `window_bytes` holds calls back; see `only_slice`.
        patient: Whether the clocks stand still while the source is away, because a timeout would fail the task.
        found_none: Whether `tell_of_misses` still has to check whether the source holds any of the keys.
        failed_in_a_row: Number of calls of several keys that have failed in a row, while the source answered no call.
        healthy: Number of calls that the source had answered, not counting errors, when `failed_in_a_row` last counted
            a failure.
        raised_at: Places at which the connector raised an exception that is no `ConnectorError`, as the log shows them.
        began: Loop time since which the engine serves the run.
        patient_since: Loop time since which the run may wait for a source that is away: `began`, or the last time at
            which the run gave up the keys of an outage.
        emitted_rows: Rows that were given to `emit`.
        emitted_bytes: Bytes of values that were given to `emit`.
        unindexed: Whether some bundles are not in the table, because no other slice had their keys.
        fallback_due: Whether a lookup waits for the next flush, which asks its fallback.
        serves_stale: Whether stale values of the cache replace the outcomes of lookups that fail.
        stale_since: Start, in loop time, of the last outage in which the waiting bundles were separated, to look for
            stale values of their keys.
        gave_up: Start, in loop time, of the last outage in which the run settled keys in error and waited once more.
        until_loaded: The steps that wait until the source is loaded; None: the run does not wait for its source to
            load.
    """

    behind_tiers = False
    """
    Whether this is the run of a tier. Its keys may then arrive in another order than the slices of the parent run.
    """
    background = False
    """Whether the engine makes calls for this run only while no other run needs the slots."""

    def __init__(
        self,
        engine: EnginePort,
        source: str,
        options: Options,
        decode: Decode,
        emit: Callable[[list[Part] | BaseException], None],
        *,
        batch_size: int = 1,
        columns: Columns | None = None,
        ordered: bool = True,
        default_values: dict[str, Any] | None = None,
        fallbacks: Sequence[FallbackPort] = (),
        reuse: Reuse | None = None,
        preload: Table | None = None,
        journal: Stage | None = None,
        cache: AnswerCache | None = None,
        refresher: RefresherPort | None = None,
        tiers: Sequence[TierPort] = (),
        task: TaskInfo | None = None,
        call_run: str = "",
        salt: str = "",
        seed: int | None = None,
        many: bool = False,
        neighbours: bool = False,
        first_answers: FirstAnswers | None = None,
        looks_up: str = "the config of the source",
        shows_costs: bool = False,
    ) -> None:
        self.engine = engine
        self.batch_size = batch_size
        self.source = source
        self.options = options
        self.decode = decode
        # An unordered run returns rows one by one, and a cache stores answers one by one, so both need single values.
        # Lists of matches cannot be read as a column either. All other runs keep the answers of a call in a column.
        self.columns = columns if ordered and not many and cache is None else None
        stages: tuple[Stage | None, ...] = (preload, reuse, journal, cache)
        self.stages: tuple[Stage, ...] = tuple(stage for stage in stages if stage is not None)
        self.tiers = tuple(tiers)
        for place, tier in enumerate(self.tiers):
            tier.parent, tier.next = self, self.tiers[place + 1] if place + 1 < len(tiers) else None
        self.writers = [tier.writer for tier in self.tiers if tier.writer is not None]
        self.remembers = bool(self.stages or self.writers)
        self.only_reuse = reuse if self.stages == (reuse,) and not self.writers else None
        self._journal = journal
        self._flushes = False
        self.ordered = ordered
        self.cache = cache
        self.refresher = refresher
        self.serves_stale = refresher is not None and refresher.serves_stale
        self.stats = RunStats()
        # The timeout from which the hard limit is computed: a late call may go on after the deadline, but not forever.
        limit = options.longest_wait or DAY
        self.attempt_timeout = options.seconds_of_attempt
        self.hedged = options.hedged
        self.shows_costs = shows_costs
        self.hard_limit = min(DAY, max(HARD_LIMIT_FACTOR * limit, limit + HARD_LIMIT_EXTRA))
        self.first_call = Call(timeout=self.hard_limit, many=many, task=task or TaskInfo(), run=call_run)
        self.fallbacks = tuple(fallbacks)
        for fallback in self.fallbacks:
            fallback.parent = self
        self.policies = Policies(source, options, default_values or {}, self.fallbacks, salt)
        self.misses_alike = self.policies.misses_alike() and not (options.retry and options.retry.on_missing)
        self.misses_null = self.misses_alike and self.policies.replacement(MISSING) == (None, None)
        self.rng = random.Random(seed)  # noqa: S311  # jitter needs no cryptography
        self.deadlines = Deadlines(options.timeout)
        mixed, alone = bool(self.tiers) or self.behind_tiers, batch_size == 1
        self.pending = Pending(neighbours=neighbours, mixed=mixed, alone=alone)
        self.queue: OrderedQueue[Part | Outcomes] | UnorderedQueue[Part | Outcomes]
        self.queue = OrderedQueue() if ordered else UnorderedQueue()
        self.table: dict[Any, Lookup | Bundle] = {}
        self.draining: dict[Any, InFlight] = {}
        self.timers: set[Any] = set()
        self.touched: dict[Outcomes, list[int]] = {}
        self.settled_bytes = 0
        self.taken_bytes = 0
        self.held_back = False
        self.patient = options.on_timeout is None or options.on_timeout == "fail"
        self.began = self.patient_since = engine.now()
        self.emitted_rows = 0
        self.emitted_bytes = 0
        self.unindexed = False
        self.fallback_due = False
        self.error: BaseException | None = None
        self.raised_at: set[str] = set()
        self.failed_in_a_row = 0
        self.healthy = 0
        self.first_answers = first_answers
        self.doubtful = False  # whether a declared field was absent from all answers so far
        self.looks_up = looks_up
        self.found_none = True
        self.stale_since: float | None = None
        self.gave_up: float | None = None
        self.closed = False
        self._emit = emit
        self._preload = preload
        self.until_loaded: list[partial[None]] | None = None
        engine.attach(self)
        if preload is not None and not preload.enter(self):
            self.until_loaded = []

    def __repr__(self) -> str:
        return f"<Run {self.source}: {len(self.table)} in flight or pending, {len(self.queue)} slices held>"

    def in_flight(self) -> Iterator[InFlight]:
        """Iterate over the calls of this run that are in flight."""
        return (call for call, run in self.engine.calls.items() if run is self)

    def behind(self) -> Iterator[Run]:
        """Iterate over the runs that serve this one: the runs of its fallbacks, tiers and refresher."""
        for fallback in self.fallbacks:
            yield fallback.run
        for tier in self.tiers:
            yield from tier.runs
        if self.refresher is not None:
            yield self.refresher.run

    # admission

    def remember(
        self,
        keys: Sequence[Any],
        values: Sequence[Any],
        asked: float,
        *,
        late: bool = False,
        before: TierPort | None = None,
    ) -> None:
        """
        Let the stages and tiers remember the answers of a call that was sent at *asked*; an answer may be `MISS`.

        If *before* is given, the answers come from that tier, and only the tiers before it get them.
        """
        now = self.engine.now()
        if self.refresher is not None and before is None:
            self.refresher.took(now - asked)
        for tier in self.tiers if self.writers else ():
            if tier is before:
                break
            if tier.writer is not None:
                tier.writer.put(keys, values)
        for stage in self.stages:
            if stage.active:
                stage.put_many(keys, values, now, late=late)
        if self._journal is not None and not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._flush_stages)

    def ask_in_background(self, keys: Iterable[Any]) -> None:
        """Let the refresher, if there is one, ask for *keys* of the cache."""
        if keys and self.refresher is not None:
            self.refresher.ask(keys)

    def old_values(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return, by key, the stale values of *keys*, with which lookups that fail are answered."""
        return {} if self.refresher is None else self.refresher.old_values(keys)

    def _flush_stages(self) -> None:
        """Flush the journal, once for all answers of one turn of the event loop, and before their rows are returned."""
        self._flushes = False
        if self._journal is not None:
            self._journal.flush()

    def admit_barrier(self, tag: Any = None) -> None:
        """Add a barrier, a part with *tag* and no rows: earlier rows are returned before it, later rows after it."""
        if self.until_loaded is not None:
            self.until_loaded.append(partial(self.admit_barrier, tag))
        elif not self.closed:
            self.queue.put_barrier(Part(Outcomes([], 0, tag), None, 0, 0))
            self.emit_ready()

    def loaded(self) -> None:
        """Admit the slices and barriers that have waited until the source was loaded."""
        waiting, self.until_loaded = self.until_loaded, None
        for step in waiting or ():
            step()

    # pending keys

    def take(self, limit: int) -> tuple[Group, Search | None]:
        """Remove and return pending keys for a call, *limit* at most, like `Pending.take`; the group may be empty."""
        only = None
        if self.held_back or self.settled_bytes - self.taken_bytes > self.options.window_bytes:
            only = self.only_slice()
        return self.pending.take(limit, only)

    def begin(self, group: Group, search: Search | None, task: asyncio.Task[Any] | None, key_columns: bool) -> InFlight:
        """Return the call that the slot *task* makes for *group* now, and start the clocks of the keys."""
        call = InFlight(group, search, self.engine.now(), task, key_columns)
        if self.tiers:
            self._start_call(call)
        else:
            self.deadlines.start(call.record, call.started)
        stats = self.stats
        stats.calls += 1  # counted now, because the run may be closed before the call ends
        keys = 1 if call.alone is not None else len(call.keys)
        if keys > 1:
            stats.further += keys - 1
            stats.fill.add(keys)
        if stats.calls % QUEUED_EVERY == 1 and call.attempt == 1:
            stats.alone.tidy()
            stats.queued.add(call.started - group[0].outcomes.admitted, QUEUED_EVERY)
        return call

    def call(self, attempt: int) -> Call:
        """Return the `Call` for the connector, for a call whose first key is asked for the *attempt*-th time."""
        return replace(self.first_call, attempt=attempt)

    def only_slice(self) -> Part | Outcomes | None:
        """
        Return the only slice whose keys may be asked for under `window_bytes`; None: all keys may be asked for.

        That slice is the oldest one, because later rows cannot be returned before its rows. While Spark has not taken
        all emitted rows, the result is `NO_SLICE`: Spark is slower than the source, and each slice would add bytes.
        """
        was = self.held_back
        # The Spark thread counts the bytes that it takes, and then calls `resume` if `held_back` is set. So `held_back`
        # is set before the check: otherwise bytes that are taken during the check would wake no slot.
        self.held_back = True
        if self.settled_bytes - self.taken_bytes > self.options.window_bytes:
            return self.queue.head() if self.taken_bytes >= self.emitted_bytes else NO_SLICE
        self.held_back = False
        if was:
            self.resume()  # the Spark thread may read `held_back` only now, and then it does not call this
        return None

    def resume(self) -> None:
        """Check again whether keys may be asked for, because the Spark thread has taken bytes."""
        if not self.closed:
            self.engine.wake()
            for fallback in self.fallbacks:
                fallback.flush()
            for tier in self.tiers:
                tier.wake()

    async def drain(self) -> None:
        """Wait until the values that are to be written back to tiers have been written."""
        for writer in self.writers:
            await writer.drain()

    def put_first(self, group: list[Lookup], search: Search | None = None) -> None:
        """Put *group* at the head of the pending queue: a retry, or a part of a group that failed."""
        if group and not self.closed:
            self.pending.add_urgent(group, search)
            self.engine.wake()

    def put_back(self, group: Group, search: Search | None) -> None:
        """Put *group*, for which no call may be made now, back at the head of the pending queue."""
        # Stop the clocks first, because `Pending.put_back` counts the lookups whose clocks run.
        self.stop_clocks(held for held in group if not isinstance(held, Bundle))
        self.pending.put_back(group, search)

    def start_clocks(self, count: int, now: float) -> None:
        """
        Start the clocks of the next pending lookups, as if they had a slot, until the clocks of *count* of them run.
        """
        for record in _by_spent(self.pending.clock(count)):
            self.deadlines.start(record, now, _spent(record[0]))

    def _start_call(self, call: InFlight) -> None:
        """Start the clocks of the keys of *call* as if the clocks had already run while the tiers were asked."""
        records = _by_spent(call.record)
        # The end of a call empties only `call.record`, which is the first of *records*. A lookup in another record has
        # a state that says that it is settled. A bundle has no such state, so bundles are replaced by lookups.
        if len(records) > 1 and call.bundles:
            call.separate()
            records = _by_spent(call.record)
        for record in records:
            self.deadlines.start(record, call.started, _spent(record[0]))
        call.record = records[0] if records else []

    def restart_clock(self, lookup: Lookup, now: float) -> None:
        """Restart the clock of *lookup*, whose deadline has passed while the source was away."""
        self.deadlines.start([lookup], now)

    def stop_clocks(self, lookups: Iterable[Lookup]) -> None:
        """
        In a patient run, stop the clocks of *lookups*, which wait through no fault of their own, until their next call.
        """
        if self.patient:
            for lookup in lookups:
                lookup.started = None

    def stood_still(self, since: float, until: float) -> None:
        """
        Leave the time from *since* to *until*, which is now, out of the durations of all lookups and outages.

        The process stood still in that time, for example because its virtual machine was paused.
        """
        gap = until - since
        self.began = min(until, self.began + gap)
        self.patient_since = min(until, self.patient_since + gap)
        if self.gave_up is not None:
            self.gave_up += gap  # this is the start of an outage, which is moved as well
        if self.stale_since is not None:
            self.stale_since += gap
        for held in self.table.values():
            if not isinstance(held, Bundle) and held.node_away_since is not None:
                held.node_away_since += gap
        self.deadlines.stand_still(since, until)

    def look_at_first(self, answers: Any) -> None:
        """Check the first *answers* of the task until enough were seen; fail the task if they lack a declared field."""
        first = self.first_answers
        if first is not None and isinstance(answers, Mapping):
            error = first.see(answers)
            if first.done:
                self.first_answers = None
            self.doubtful = not first.done and first.verdict() is not None
            if error is not None:
                self.fail(error)

    def stop_draining(self, call: InFlight) -> None:
        """Remove *call*, which has ended, from `draining`."""
        if self.draining:
            for key in [key for key, draining in self.draining.items() if draining is call]:
                del self.draining[key]

    # emission and end

    def flush(self) -> None:
        """Hand the slices that became ready to the queue, and emit the parts whose turn has come."""
        if self.closed or not (self.touched or self.fallback_due):
            return
        # Check here and not at each failure: the 100th key, at which the check begins to apply, may have succeeded.
        failure = self.policies.too_many(self.stats.done)
        if failure is not None:
            self.fail(failure)
            return
        if self.found_none and self.stats.done >= MANY:
            self.tell_of_misses(MANY)
        if self.fallback_due:
            self.fallback_due = False
            for fallback in self.fallbacks:
                fallback.flush()
        for outcomes, indices in self.touched.items():
            done = outcomes.unsettled == 0
            if self.ordered:
                if done:
                    self.queue.ready(outcomes.ticket, Part(outcomes, None, outcomes.rows, outcomes.bytes))
            elif indices:
                assert outcomes.counts is not None
                rows = sum(map(outcomes.counts.__getitem__, indices))
                self.queue.ready(outcomes.ticket, Part(outcomes, indices, rows, outcomes.bytes), last=done)
                outcomes.bytes = 0
        self.touched.clear()
        self.emit_ready()

    def tell_of_misses(self, least: int) -> None:
        """Log a warning if the source holds none of the keys so far (*least* or more): the keys may be wrong."""
        self.found_none = False
        if self.stats.missing == self.stats.done >= least and self.engine not in _told:
            _told.add(self.engine)
            _log.warning(
                "%s: the source holds none of the first %s keys of this task. Compare a key with %s.",
                self.source,
                f"{self.stats.done:,}",
                self.looks_up,
            )

    def emit_ready(self) -> None:
        """Emit the parts whose turn has come."""
        parts = self.queue.pop()
        if parts:
            self._flush_stages()
            if self.closed:  # a stage that could not make answers durable has failed the task
                return
            self.emitted_rows += sum(part.rows for part in parts)
            self.emitted_bytes += sum(part.bytes for part in parts)
            self._emit(parts)  # type: ignore[arg-type]  # an entry's parts are Parts; no entry itself is popped

    def fail(self, error: BaseException) -> None:
        """Fail the task with *error*; do nothing if the run is closed, for example by an earlier error."""
        if not self.closed:
            self.error = error
            self.close()
            self._emit(error)

    def broken(self, error: BaseException) -> None:
        """Fail the task because a step of its run raised *error*, which is a defect of enrichkit."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        self.fail(
            TaskFailedError(
                f"{self.source}: a step of the engine raised {type(error).__name__} "
                f"({where.filename.rpartition('/')[2]}, line {where.lineno}). This is a defect; please report it."
            )
        )

    def close(self) -> None:
        """Stop: nothing is admitted, asked for or emitted any more, and calls in flight are cancelled."""
        if self.closed:
            return
        self.closed = True
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        self.pending.clear()
        self.engine.gate.outage.forget(self.table.values())
        self.table.clear()
        self.touched.clear()
        for fallback in self.fallbacks:
            fallback.close()
        if self.refresher is not None:
            self.refresher.close()
        for tier in self.tiers:
            tier.close()
        self.engine.detach(self)
        if self._preload is not None:
            self._preload.leave(self)
        for stage in self.stages:
            stage.close()


def _by_spent(starting: Sequence[Lookup | Bundle]) -> list[list[Lookup | Bundle]]:
    """
    Group the lookups or bundles *starting* by the time that tiers took for them.

    Times in a group differ by at most `TICK_MAX`, and the deadline of the first entry is that of the whole group.
    """
    records: list[list[Lookup | Bundle]] = []
    for held in sorted(starting, key=_spent):
        if not records or _spent(held) > _spent(records[-1][0]) + TICK_MAX:
            records.append([])
        records[-1].append(held)
    return records


def _spent(held: Lookup | Bundle) -> float:
    """Return the seconds that tiers took for the keys of *held*."""
    return getattr(held, "spent", 0.0)
