"""
One task's lookups on the loop thread: Flink's AsyncWaitOperator.

A slice of rows is admitted as `Outcomes`, its keys become `Lookup`s (or join one in flight, or take a cached answer),
the dispatcher turns lookups into calls, and a slice whose keys are all settled leaves through the queue. Nothing here
waits: each method is one step of a state machine, run by the mailbox, a slot or the sweeper. It is one long class
because its steps share one state; what could stand alone does: `lookup.py`, `policies.py`, `queues.py`, `calls.py`.
"""

from __future__ import annotations

import random
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from ..connector import Answers, Call, Key, Keys, TaskInfo
from ..errors import PermanentError, TaskFailedError
from ..outcome import ERROR, MISSING, OK, PENDING, REJECTED, TIMEOUT, Outcomes
from .cache import ABSENT, MISS, SMALL, AnswerCache, size_of
from .deadlines import Deadlines
from .fallback import HandedOn
from .lookup import Bundle, Lookup, Part
from .pending import Pending
from .policies import Policies
from .queues import OrderedQueue, UnorderedQueue
from .stats import RunStats

if TYPE_CHECKING:
    from ..options import Options
    from .calls import Bisection, InFlight
    from .dispatch import Engine
    from .fallback import Stage
    from .lookup import Group

__all__ = ["Run"]

Decode = Callable[[Sequence[Any]], tuple[list[Any], dict[int, PermanentError]]]
Columns = Callable[[Answers, Sequence[Key]], tuple[Any, Sequence[int]]]

HARD_LIMIT_EXTRA = 5.0
HARD_LIMIT_FACTOR = 2.0
DAY = 86_400.0
_COUNTER = {MISSING: "missing", TIMEOUT: "timeouts", ERROR: "errors", REJECTED: "rejected"}


class Run:
    """
    One task. Lives on the loop thread, except `taken_bytes`.

    Args:
        source: What messages call the source.
        options: Flow control.
        decode: Raw answers of one call to values of the declared type.
        columns: Answers in columns to one column of values in the order of the keys, null for a miss, and the places of
            the misses; it raises where that takes more. None: all go key by key.
        emit: Called on the loop thread with the parts that leave now, or with the error that failed the task.
        ordered: Slices leave in order; else rows as they are ready, within barriers.
        fallbacks: Decoded `default(...)` values by option name.
        stages: The fallbacks that have to be asked.
        cache: Shared with other runs of the same source, or None.
        task: For the connector's `Call`.
        salt: For the hash of keys in messages.
        seed: For jitter; tests give one.
        many: An answer is a list, with one element for each match of its key.
        neighbours: The keys of each slice come in order, and those that lie side by side are asked for together.
    """

    def __init__(
        self,
        source: str,
        options: Options,
        decode: Decode,
        emit: Callable[[list[Part] | BaseException], None],
        *,
        ordered: bool = True,
        fallbacks: dict[str, Any] | None = None,
        stages: Sequence[Stage] = (),
        cache: AnswerCache | None = None,
        task: TaskInfo | None = None,
        salt: str = "",
        seed: int | None = None,
        many: bool = False,
        neighbours: bool = False,
        columns: Columns | None = None,
    ) -> None:
        self.source = source
        self.options = options
        self.decode = decode
        self.task = task or TaskInfo()
        self.cache = cache
        self.stats = RunStats()
        limit = options.timeout or options.attempt_timeout or DAY
        # Seconds after which a call is cancelled: time to drain after the deadline, but not for ever.
        self.hard_limit = min(DAY, max(HARD_LIMIT_FACTOR * limit, limit + HARD_LIMIT_EXTRA))
        self.first_call = Call(timeout=self.hard_limit, many=many, task=self.task)
        self.deadlines = Deadlines(options.timeout)
        self.rng = random.Random(seed)  # noqa: S311  # jitter needs no cryptography
        self.error: BaseException | None = None
        self.closed = False
        self.ended = False
        self.taken_bytes = 0  # written by the Spark thread only
        self.settled_bytes = 0
        self._window_bytes = options.window_bytes
        self.held_back = False  # by window_bytes: only the head slice's keys are dispatched
        self.engine: Engine | None = None
        self.draining: dict[Any, InFlight] = {}
        self.timers: set[Any] = set()
        self._ordered = ordered
        self._queue: OrderedQueue[Part | Outcomes] | UnorderedQueue[Part | Outcomes]
        self._queue = OrderedQueue() if ordered else UnorderedQueue()
        self._emit = emit
        self.stages = tuple(stages)
        for stage in self.stages:
            stage.parent = self
        self._policies = Policies(source, options, fallbacks or {}, self.stages, salt)
        self.misses_alike = self._policies.misses_alike() and not (options.retry and options.retry.on_missing)
        self.misses_null = self.misses_alike and self._policies.fallback(MISSING) == (None, None)
        # The cache keeps values, rows that leave one by one want values, and a list of matches is no column.
        self.columns = columns if ordered and not many and cache is None else None
        self._table: dict[Any, Lookup | Bundle] = {}
        self._aside = False  # some bundles are not in the table, as nobody will look for their keys
        self.pending = Pending(neighbours=neighbours)
        self._touched: dict[Outcomes, list[int]] = {}
        self._handed_on = False  # a lookup waits for a flush to be asked for at a fallback
        self._answer_bytes = 0  # of one answer of the call that is being settled

    def __repr__(self) -> str:
        return f"<Run {self.source}: {len(self._table)} in flight or pending, {len(self._queue)} slices held>"

    # admission

    def admit(self, outcomes: Outcomes) -> None:
        """Take in one slice of rows."""
        if self.closed:
            return
        outcomes.ticket = self._queue.put(outcomes)
        keys = outcomes.keys
        self.stats.rows += outcomes.rows
        self.stats.keys += len(keys)
        if not self._ordered:
            assert outcomes.counts is not None, "an unordered run needs the number of rows of each key"
            nulls = outcomes.rows - sum(outcomes.counts)
            if nulls or not keys:
                self._queue.ready(outcomes.ticket, Part(outcomes, [], nulls, 0), last=not keys)
        elif not keys:
            self._queue.ready(outcomes.ticket, Part(outcomes, None, outcomes.rows, 0))
        if self.cache is not None and keys:
            self._admit_cached(outcomes, self.cache)
        else:
            self._admit_keys(outcomes, range(len(keys)))
        self.flush()
        if not self.closed:
            self._emit_ready()  # null keys are ready at once

    def admit_barrier(self, tag: Any = None) -> None:
        """Let no row that comes later leave before, nor an earlier one after, this point. *tag* leaves as a part."""
        if not self.closed:
            self._queue.put_barrier(Part(Outcomes([], 0, tag), None, 0, 0))
            self._emit_ready()

    def end_input(self) -> None:
        """No more slices come. Pending retries keep their full policy."""
        self.ended = True

    def _admit_cached(self, outcomes: Outcomes, cache: AnswerCache) -> None:
        assert self.engine is not None
        keys, found = outcomes.keys, cache.get_many(outcomes.keys, self.engine.now())
        statuses = bytearray([OK]) * len(keys)
        absent: list[int] = []
        missed: list[int] = []
        if type(ABSENT) in set(map(type, found)):
            blank = [index for index, value in enumerate(found) if value is ABSENT or value is MISS]
            for index in blank:
                (absent if found[index] is ABSENT else missed).append(index)
                found[index], statuses[index] = None, PENDING
        count = len(keys) - len(absent) - len(missed)
        self.stats.cached += count + len(missed)
        self.stats.ok += count
        outcomes.put(range(len(keys)), found, statuses)  # all, since few are blank, and those are nulls as before
        outcomes.unsettled += len(absent) + len(missed)
        hits: Sequence[int] = ()
        if not self._ordered or outcomes.origins is not None:
            hits = [index for index, status in enumerate(statuses) if status == OK]
        if outcomes.origins is not None:
            for index in hits:
                outcomes.origins[index] = "cache"
        if count:
            self._touch(outcomes, hits)
        for index in missed:
            self.settle(Lookup(keys[index], outcomes, index), MISSING, origin="cache")
        if absent:
            self._admit_keys(outcomes, absent)

    def _admit_keys(self, outcomes: Outcomes, indices: Sequence[int]) -> None:
        assert self.engine is not None
        keys, table, size = outcomes.keys, self._table, self.engine.batch_size
        if len(indices) < len(keys):
            every = list(keys)
            keys = [every[index] for index in indices]
        if self._aside and not outcomes.apart:
            self._enter_aside()
        if self.draining or (size == 1 and not table.keys().isdisjoint(keys)):
            new = [pair for pair in zip(keys, indices, strict=True) if self._is_new(pair[0], outcomes, pair[1])]
            keys, indices = [key for key, _ in new], [index for _, index in new]
        if size == 1:  # no key of it ever shares its fate with another
            lookups = list(map(Lookup, keys, repeat(outcomes), indices))
            table.update(zip(keys, lookups, strict=True))
            self.pending.add(lookups)
        else:
            keys = keys if isinstance(keys, list | Keys) else list(keys)
            if self.pending.neighbours:
                size = max(size, len(keys))
            for start in range(0, len(keys), size):
                end = start + size
                bundle = Bundle(table, outcomes, keys[start:end], indices[start:end])
                if outcomes.apart:
                    self._aside = True
                else:
                    self.stats.shared += bundle.enter()
                if bundle.keys:
                    self.pending.add_bundle(bundle)
        self.engine.wake()

    def _enter_aside(self) -> None:
        """Let the table find the keys of all slices that were apart: one comes that may have some of them, too."""
        assert self.engine is not None
        asked = (bundle for call in self.engine.calls if call.run is self for bundle in call.bundles)
        for bundle in chain(self.pending.bundles(), asked):
            if not bundle.entered:
                bundle.enter()
        self._aside = False

    def _is_new(self, key: Any, outcomes: Outcomes, index: int) -> bool:
        """Whether *key* has to be asked for; else it waits for a lookup or a call that there is."""
        found = self._table.get(key)
        if found is not None:
            self.stats.shared += 1
            found.wait(key, outcomes, index)
            return False
        if key in self.draining:
            self._table[key] = lookup = Lookup(key, outcomes, index)
            self._attach(lookup)
            return False
        return True

    def _attach(self, lookup: Lookup) -> None:
        """Let *lookup* wait for a call that still runs although its earlier lookup of the key timed out."""
        assert self.engine is not None
        call = self.draining[lookup.key]
        call.lookups[lookup.key] = lookup
        lookup.call = call
        lookup.attached = True
        self.deadlines.start([lookup], self.engine.now())

    # pending keys

    def take(self, limit: int) -> tuple[Group, Bisection | None]:
        """Remove and return the next group of at most *limit* pending keys, empty if none may leave now."""
        only = None
        if self.held_back or self.settled_bytes - self.taken_bytes > self._window_bytes:
            only = self.only_slice()
        return self.pending.take(limit, only)

    def only_slice(self) -> Part | Outcomes | None:
        """Return the slice whose keys alone may be asked for because of `window_bytes`; None: all may."""
        was, self.held_back = self.held_back, self.settled_bytes - self.taken_bytes > self._window_bytes
        if self.held_back:
            return self._queue.head()
        if was:
            self.resume()  # the other slots: the Spark thread takes part after part, and may not see that it was
        return None

    def resume(self) -> None:
        """Look again whether keys may be dispatched: the Spark thread has taken bytes."""
        if self.engine is not None and not self.closed:
            self.engine.wake()
            for stage in self.stages:
                stage.flush()

    def call(self, attempt: int) -> Call:
        """Return what the connector may know of a call whose first key is asked for the *attempt*-th time."""
        return replace(self.first_call, attempt=attempt)

    def put_first(self, group: list[Lookup], bisection: Bisection | None = None) -> None:
        """Put *group* at the head of the pending queue: a retry, or half of a poisoned group."""
        if not self.closed:
            assert self.engine is not None
            self.pending.add_urgent(group, bisection)
            self.engine.wake()

    def start_clocks(self, count: int, now: float) -> None:
        """Start the clock of the next pending lookups, *count* of them at most, as if they had a slot."""
        self.deadlines.start(self.pending.clock(count), now)

    # outcomes

    def expire(self, now: float) -> bool:
        """Give the lookups whose deadline has passed their timeout outcome; True when there was one."""
        found = False
        for lookup in self.deadlines.expired(now):
            found = True
            call = lookup.call
            if call is not None and call.running:
                self.draining[lookup.key] = call
            elif call is None:
                self.pending.clocked -= 1
            self.settle(lookup, TIMEOUT, error=lookup.error)
            if self.closed:
                break
        if found:
            self.pending.drop_settled()
            self.flush()
        return found

    def settle(
        self,
        lookup: Lookup,
        status: int,
        value: Any = None,
        *,
        error: BaseException | None = None,
        origin: str = "call",
    ) -> None:
        """Give *lookup* its outcome. The first one wins; a later one is counted and dropped."""
        if lookup.settled:
            self.stats.late += 1
            return
        lookup.settled = True
        if self._table.get(lookup.key) is lookup:
            del self._table[lookup.key]
        if lookup.attached and origin == "call":
            origin = "shared"
        latency, text = 0.0, None
        if lookup.started is not None and self.engine is not None:
            latency = self.engine.now() - lookup.started
            self.stats.latency.add(latency)
        if status == OK:
            self.stats.ok += 1
        else:
            setattr(self.stats, _COUNTER[status], getattr(self.stats, _COUNTER[status]) + 1)
            text = self._policies.text(status, error)
            stage = self._policies.stage(status)
            if stage is not None:
                self._hand_on(HandedOn(lookup, status, text, origin), stage)
                return
            failure = self._policies.failure(lookup, status, text, latency)
            if failure is not None:
                self.fail(failure)
            value, instead = self._policies.fallback(status)
            origin = instead or origin
        self._finish(lookup, status, value, text, latency, origin)

    def _hand_on(self, handed: HandedOn, stage: Stage) -> None:
        if handed.lookup.started is None and self.engine is not None:
            handed.lookup.started = self.engine.now()  # a cached miss: what it takes is the fallback's time
        stage.put(handed)
        self._handed_on = True

    def fell_back(self, handed: HandedOn, stage: Stage, status: int, value: Any, text: str | None, size: int) -> None:
        """Give *handed* the outcome that *stage* has found, or what the policy for that says; *size*: bytes of it."""
        if self.closed:
            return
        assert self.engine is not None
        lookup, latency = handed.lookup, self.engine.now() - (handed.lookup.started or 0.0)
        if status == OK:
            handed.origin = "fallback"
        else:
            before = handed.status
            status = self._policies.fell_through(handed, stage, status, text)
            if before != handed.status:
                self.stats.missing -= 1
                self.stats.errors += 1
            further = self._policies.stage(status)
            if further is not None and further not in handed.asked:
                self._hand_on(handed, further)
                return
            failure = self._policies.failure(lookup, status, handed.text, latency)
            if failure is not None:
                self.fail(failure)
                return
            value, instead = self._policies.fallback(status)
            handed.origin = instead or handed.origin
        self._answer_bytes = size
        self._finish(lookup, handed.status, value, handed.text, latency, handed.origin)
        self._answer_bytes = 0

    def _finish(
        self, lookup: Lookup, status: int, value: Any, text: str | None, latency: float, origin: str | None
    ) -> None:
        """Write the outcome of *lookup* to all its rows."""
        self._write(lookup.outcomes, lookup.index, status, value, text, lookup.attempts, latency, origin)
        if lookup.more is not None:
            if origin == "call":
                origin = "shared"
            for outcomes, index in lookup.more:
                self._write(outcomes, index, status, value, text, lookup.attempts, latency, origin)

    def settle_one(self, lookup: Lookup, raw: Any, started: float) -> bool:
        """
        Give *lookup*, alone in a call since *started*, its *raw* answer: the fastest path.

        Returns:
            False when there is more to it: another slice waits, details are asked for, the answer cannot be decoded ...
        """
        outcomes = lookup.outcomes
        if (
            lookup.settled
            or lookup.more is not None
            or lookup.started != started
            or outcomes.attempts is not None
            or self.closed
            or self.cache is not None
            or self.draining
        ):
            return False  # before the value is decoded, which happens once
        [value], bad = self.decode((raw,))
        if bad:
            return False
        assert self.engine is not None
        size = 64 if type(raw) in SMALL else size_of(raw)
        lookup.settled = True
        del self._table[lookup.key]
        index = lookup.index
        outcomes.values[index] = value
        outcomes.statuses[index] = OK
        outcomes.bytes += size
        self.settled_bytes += size
        stats = self.stats
        stats.ok += 1
        stats.latency.add(self.engine.now() - started)
        outcomes.unsettled -= 1
        if not outcomes.unsettled or not self._ordered:
            self._touched[outcomes] = [index]
            self.flush()
        return True

    def settle_ok(self, lookups: Sequence[Lookup], values: Sequence[Any], started: float, size: int) -> None:
        """Give the *lookups* of one call their *values*: the fast path of `settle`. *size*: bytes of all values."""
        assert self.engine is not None
        latency = self.engine.now() - started
        self._answer_bytes = each = size // len(lookups)
        table, touched, stats, unordered = self._table, self._touched, self.stats, not self._ordered
        count = 0
        for lookup, value in zip(lookups, values, strict=True):
            outcomes = lookup.outcomes
            if lookup.settled or lookup.more is not None or lookup.started != started or outcomes.attempts is not None:
                self.settle(lookup, OK, value)
                continue
            lookup.settled = True
            del table[lookup.key]
            count += 1
            index = lookup.index
            outcomes.values[index] = value
            outcomes.statuses[index] = OK
            outcomes.bytes += each
            outcomes.unsettled -= 1
            if outcomes in touched:
                touched[outcomes].append(index)
            elif unordered or not outcomes.unsettled:
                touched[outcomes] = [index]
        self.settled_bytes += each * count
        stats.ok += count
        if count:
            stats.latency.add(latency, count)
        self._answer_bytes = 0

    def settle_together(self, call: InFlight, values: Any, missed: Sequence[int], size: int) -> None:
        """
        Give the keys of *call*, all in bundles, their *values*; those in the places *missed* are misses.

        A column of values has its nulls there already, and no row waits in another slice.
        """
        assert self.engine is not None
        keys, stats, now = call.keys, self.stats, self.engine.now()
        latency, each = now - call.started, size // len(keys)
        statuses, instead = bytearray([OK]) * len(keys), None
        if self.cache is not None:
            found = values.copy()
            for place in missed:
                found[place] = MISS
            self.cache.put_many(keys, found, now)
        if missed:
            value, instead = self._policies.fallback(MISSING)
            for place in missed:
                statuses[place] = MISSING
                if isinstance(values, list):
                    values[place] = value
        stats.ok += len(keys) - len(missed)
        stats.missing += len(missed)
        stats.latency.add(latency, len(keys))
        self._answer_bytes = each
        start = 0
        for bundle in call.bundles:
            outcomes, indices = bundle.outcomes, bundle.indices
            end = start + len(indices)
            if bundle.entered:
                deque(map(self._table.pop, bundle.keys), maxlen=0)  # the fastest way to remove them all
            outcomes.put(indices, values[start:end], statuses[start:end])
            outcomes.bytes += each * len(indices)
            self.settled_bytes += each * len(indices)
            if outcomes.attempts is not None and outcomes.latencies is not None and outcomes.origins is not None:
                for index, status in zip(indices, statuses[start:end], strict=True):
                    outcomes.attempts[index] = 1
                    outcomes.latencies[index] = latency
                    outcomes.origins[index] = "call" if status == OK else instead or "call"
            self._touch(outcomes, indices)
            if bundle.more:
                for place, key in enumerate(bundle.keys, start):
                    waiting = bundle.more.pop(key, None)
                    if waiting is None:
                        continue
                    value, status = values[place], statuses[place]
                    origin = "shared" if status == OK else instead or "shared"
                    for outcomes, index in waiting:
                        self._write(outcomes, index, status, value, None, 1, latency, origin)
            start = end
        self._answer_bytes = 0

    def _touch(self, outcomes: Outcomes, indices: Sequence[int]) -> None:
        """Note that the keys of *outcomes* with *indices* got their outcome; what it means is for `flush`."""
        if not self._ordered:
            self._touched.setdefault(outcomes, []).extend(indices)
        elif not outcomes.unsettled:
            self._touched[outcomes] = []

    def _write(
        self,
        outcomes: Outcomes,
        index: int,
        status: int,
        value: Any,
        text: str | None,
        attempts: int,
        latency: float,
        origin: str | None,
    ) -> None:
        outcomes.values[index] = value
        outcomes.statuses[index] = status
        outcomes.bytes += self._answer_bytes
        self.settled_bytes += self._answer_bytes
        if text is not None:
            outcomes.errors[index] = text
        if outcomes.attempts is not None and outcomes.latencies is not None and outcomes.origins is not None:
            outcomes.attempts[index] = attempts
            outcomes.latencies[index] = latency
            outcomes.origins[index] = origin
        outcomes.unsettled -= 1
        self._touched.setdefault(outcomes, []).append(index)

    # emission and end

    def flush(self) -> None:
        """Hand the slices that became ready to the queue, and emit what may leave."""
        if self.closed or not (self._touched or self._handed_on):
            return
        failure = self._policies.too_many(self.stats.done)  # here, because the 100th key may be a good one
        if failure is not None:
            self.fail(failure)
            return
        if self._handed_on:
            self._handed_on = False
            for stage in self.stages:
                stage.flush()
        for outcomes, indices in self._touched.items():
            done = outcomes.unsettled == 0
            if self._ordered:
                if done:
                    self._queue.ready(outcomes.ticket, Part(outcomes, None, outcomes.rows, outcomes.bytes))
            else:
                assert outcomes.counts is not None
                rows = sum(map(outcomes.counts.__getitem__, indices))
                self._queue.ready(outcomes.ticket, Part(outcomes, indices, rows, outcomes.bytes), last=done)
                outcomes.bytes = 0
        self._touched.clear()
        self._emit_ready()

    def _emit_ready(self) -> None:
        parts = self._queue.pop()
        if parts:
            self._emit(parts)  # type: ignore[arg-type]  # an entry's parts are Parts; entries themselves never leave

    def fail(self, error: BaseException) -> None:
        """Fail the task with *error*; only the first one counts."""
        if not self.closed:
            self.error = error
            self.close()
            self._emit(error)

    def broken(self, error: BaseException) -> None:
        """Fail the task because a step of its run raised *error*, which should never happen."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        self.fail(
            TaskFailedError(
                f"{self.source}: a step of the engine raised {type(error).__name__} "
                f"({where.filename.rpartition('/')[2]}, line {where.lineno}). This is a defect; please report it."
            )
        )

    def close(self) -> None:
        """Stop: nothing is admitted, dispatched or emitted any more, and calls in flight are cancelled."""
        if self.closed:
            return
        self.closed = True
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()
        self.pending.clear()
        self._table.clear()
        self._touched.clear()
        for stage in self.stages:
            stage.close()
        if self.engine is not None:
            self.engine.detach(self)
