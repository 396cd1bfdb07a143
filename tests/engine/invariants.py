"""
What must hold at every moment of a simulated task, whatever the seed: the oracle beside the engine.

`RunWatch` sees each call when it starts and ends, each key when it gets its outcome, each part when it leaves, and the
moments at which nothing can run any more before the clock moves. It keeps its own books and asks the engine little.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from enrichkit.engine import admission
from enrichkit.engine.cache import MISS
from enrichkit.engine.deadlines import TICKS_PER_TIMEOUT
from enrichkit.engine.hedging import Hedges
from enrichkit.engine.records import Bundle, Lookup, State
from enrichkit.interface import Failure
from enrichkit.options import Default
from enrichkit.outcome import MISSING, OK, PENDING, STATUSES, TIMEOUT, Outcomes

from .columns import values_of
from .story import Kind
from .watch import EPSILON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enrichkit.engine.policies import FallbackRequest
    from enrichkit.engine.records import Part
    from enrichkit.engine.run import Run
    from enrichkit.options import Options

    from .stages import MemoryStage
    from .story import RunPlan
    from .watch import Flight, Watch

__all__ = ["RunWatch", "check_states", "states_watched"]

TRANSITIONS = {
    None: {State.PENDING},
    State.PENDING: {State.IN_FLIGHT, State.DRAINING, State.SETTLED},
    State.IN_FLIGHT: {State.WAITING, State.SETTLED},
    State.WAITING: {State.WAITING, State.IN_FLIGHT, State.SETTLED},  # WAITING again: of a key that was blamed
    State.DRAINING: {State.WAITING, State.SETTLED},
    State.SETTLED: set(),
}
"""The table in `records.py`, and the outcome that ends each state."""
_admit, _ask_source = admission.admit, admission.ask_source
_watches: WeakKeyDictionary[Run, RunWatch] = WeakKeyDictionary()

CHANGERS = {"__init__", "sent", "joined", "queued", "returned", "blamed", "settle", "settle_lookup"}
"""The functions that may change a lookup's state."""


@contextmanager
def states_watched() -> Iterator[None]:
    """Let no lookup change its state but as the table says, and by the functions that may."""
    slot: Any = Lookup.__dict__["state"]

    def change(lookup: Lookup, state: State) -> None:
        try:
            was = slot.__get__(lookup, Lookup)
        except AttributeError:
            was = None
        assert state in TRANSITIONS[was], f"key {lookup.key!r} goes from {was} to {state}"
        changer = sys._getframe(1).f_code.co_name
        assert changer in CHANGERS, f"{changer} changes the state of a lookup"
        if changer == "returned" and isinstance(lookup.outcomes.tag, Slice):  # not of a fallback
            lookup.outcomes.tag.waiting[lookup.index].returned += 1
        slot.__set__(lookup, state)

    Lookup.state = property(slot.__get__, change)  # type: ignore[assignment]
    try:
        yield
    finally:
        Lookup.state = slot


def _text_bytes(value: Any) -> int:
    """Return the number of characters in *value*: a text, a list of texts, or None."""
    return sum(map(_text_bytes, value)) if isinstance(value, list) else len(value or "")


def check_states(run: Run) -> None:
    """The state of each lookup without an outcome is what calls and queues say of it."""
    holding: Counter[Lookup] = Counter()
    for call in run.in_flight():
        holding.update(lookup for lookup in call.held() if not lookup.settled)
    for lookup in {*holding, *(held for held in run.table.values() if isinstance(held, Lookup))}:
        calls = holding[lookup]
        queued = lookup.routes - calls
        state = lookup.state
        if state is State.PENDING:
            right = calls == 0 and queued == 1
        elif state is State.IN_FLIGHT:
            right = calls >= 1 and queued == 0
        elif state is State.WAITING:
            right = queued == 1
        else:
            right = state is State.DRAINING and calls == 1 and queued == 0
        assert right, f"key {lookup.key!r} is {lookup.state}, in {calls} calls, queued {queued} times"


@dataclass(eq=False)
class Waiting:
    """Rows that wait for one lookup of a key, as the books have it."""

    key: Any
    admitted: float
    came: float = 0.0  # when the key came to the source, after its tiers and the load
    first: float | None = None  # when its clock started: its first slot, or its admission to a call that was under way
    unsettled: int = 0
    flights: list[Flight] = field(default_factory=list)  # that were made for it
    returned: int = 0  # of these, the calls that met a source that was away
    failed: bool = False  # some call that held the key did not answer it
    status: int = PENDING
    bytes: int = 0  # of the answer, at least


@dataclass(eq=False)
class Slice:
    """One slice of rows in the books."""

    outcomes: Outcomes
    segment: int
    admitted: float
    waiting: list[Waiting] = field(default_factory=list)
    left: list[bool] = field(default_factory=list)
    nulls_left: int = 0
    values: list[tuple[int, int, Any]] = field(default_factory=list)


class Once(bytearray):
    """Status codes each of which may be written once: exactly one outcome per key."""

    watch: RunWatch
    entry: Slice

    def __setitem__(self, index: Any, status: Any) -> None:
        some = range(len(self))[index] if isinstance(index, slice) else [index]
        statuses = status if isinstance(index, slice) else [status]
        for index, status in zip(some, statuses, strict=True):
            was = self[index]
            assert was == PENDING, f"key {index} was settled as {STATUSES[was]} and as {STATUSES[status]}"
            if status != PENDING:  # which is no outcome: cached answers go in together, those that are absent blank
                super().__setitem__(index, status)
                self.watch.settled(self.entry, index, status)


def _admit_watched(run: Run, outcomes: Outcomes) -> None:
    """Hand a slice to the books of *run*, which hand it on, or to *run* itself if it has none."""
    if run in _watches:
        _watches[run].admit(outcomes)
    else:
        _admit(run, outcomes)


def _ask_source_watched(run: Run, outcomes: Outcomes, indices: Sequence[int], spent: float) -> None:
    """Likewise for keys that no tier has answered."""
    if run in _watches:
        _watches[run].asks_source(outcomes, indices, spent)
    else:
        _ask_source(run, outcomes, indices, spent)


class RunWatch:
    """The books of one run."""

    def __init__(self, watch: Watch, plan: RunPlan, number: int, run: Run, journal: MemoryStage | None = None) -> None:
        self.watch = watch
        self.journal = journal
        self.plan = plan
        self.number = number
        self.run = run
        _watches[run] = self
        admission.admit, admission.ask_source = _admit_watched, _ask_source_watched  # the books come first
        self._restart, run.restart_clock = run.restart_clock, self.restarted  # type: ignore[method-assign]  # likewise
        self._stop, run.stop_clocks = run.stop_clocks, self.stopped  # type: ignore[method-assign]  # likewise
        self.options: Options = plan.options
        self.current: dict[Any, Waiting] = {}
        self.clocks: deque[Waiting] = deque()
        self.slices: deque[Slice] = deque()
        self.admitted_rows = self.emitted_rows = self.taken_rows = self.keys = self.lookups = 0
        self.bytes = 0  # of answers that Spark has not done with, at least
        self.statuses: Counter[int] = Counter()
        self.calls = self.sent = 0
        self.segment = 0  # barriers that have left
        self.answered: list[Waiting] = []
        self.at_fallback: set[tuple[Outcomes, int]] = set()  # rows that a fallback has to answer
        self.closed = self._admitting = False
        self._quiet_times = 0
        self._told = random.Random(f"told {watch.plan.seed} {number}")
        self.failed: BaseException | None = None
        timeout = self.options.timeout
        self._limit = math.inf if timeout is None else timeout + max(0.1, timeout / 10) + EPSILON
        self._patient = self.options.on_timeout is None
        retry = self.options.retry
        # Each halving of a poisoned group asks once more; a late call and the one that was made in its stead may both
        # be halved.
        attempts = (retry.attempts if retry else 1) + self.options.hedged  # a slow first call is made once more
        halvings = math.ceil(math.log2(watch.plan.batch_size))
        self.asks = attempts + halvings * (1 if self.options.attempt_timeout is None else attempts)
        self.asks_after_misses = retry is not None and retry.on_missing

    @property
    def limit(self) -> float:
        """Return the most seconds of a lookup; while the source is away, the clocks of a patient run stand still."""
        outage = self.run.engine.gate.outage
        away = outage.seconds + (self.watch.now - outage.since if outage.since is not None else 0.0)
        return self._limit + (away if self._patient else 0.0) + self.watch.stood_since(0.0)

    # admission

    def is_apart(self, outcomes: Outcomes) -> bool:
        """Whether no slice that was admitted and has not left has a key of this one."""
        keys = set(outcomes.keys)
        return all(keys.isdisjoint(entry.outcomes.keys) for entry in self.slices)

    def admit(self, outcomes: Outcomes) -> None:
        """Note a slice, whose tag is the number of its segment, and hand it to the run; tell that of some apart."""
        if isinstance(outcomes.tag, Slice):
            if not self.run.tiers:  # it has waited until the source was loaded
                self._looked_up(outcomes.tag, range(len(outcomes.keys)))
            self._hand_on(outcomes)
            return
        now = self.watch.now
        entry = Slice(outcomes, outcomes.tag, now, left=[False] * len(outcomes.keys))
        self.admitted_rows += outcomes.rows
        held = self.admitted_rows - self.taken_rows
        assert held == outcomes.rows or held <= self.plan.window, f"{held} rows are held, window {self.plan.window}"
        if self.closed:
            return
        if self.watch.plan.apart and self.plan.ordered:
            outcomes.apart = self._told.random() < 0.8 and self.is_apart(outcomes)
        assert not outcomes.apart or self.is_apart(outcomes)
        aside = [held for held in self._holders() if isinstance(held, Bundle) and not held.entered]
        asked = {key for held in aside for key in held.keys}
        self.keys += len(outcomes.keys)
        self.slices.append(entry)
        outcomes.tag = entry
        outcomes.statuses = statuses = Once(outcomes.statuses)
        statuses.watch, statuses.entry = self, entry
        entry.waiting = [Waiting(key, now, unsettled=1) for key in outcomes.keys]
        if not (self.run.tiers or self.run.until_loaded is not None):
            self._looked_up(entry, range(len(outcomes.keys)))
        self._hand_on(outcomes)
        assert outcomes.statuses is statuses
        if outcomes.apart and any(held.outcomes is outcomes for held in self._holders() if isinstance(held, Bundle)):
            self.watch.flags.add("apart")
        if not (outcomes.apart or asked.isdisjoint(outcomes.keys)):
            self.watch.flags.add("entered later")
            assert all(held.entered for held in aside), "a slice came that may have the keys of one that nobody finds"
        if not self.run.timers:
            self._somebody_asks()

    def _hand_on(self, outcomes: Outcomes) -> None:
        """Hand a slice to the run."""
        self._admitting = True
        _admit(self.run, outcomes)
        self._admitting = False

    def _looked_up(self, entry: Slice, indices: Sequence[int]) -> None:
        """Keys of *entry* go on to the source: each is a lookup, or waits for the one that there is."""
        for index in indices:
            mine = entry.waiting[index]
            waiting = self.current.setdefault(mine.key, mine)
            if waiting is mine:
                self.lookups += 1
                mine.came = self.watch.now
                if mine.key in self.run.draining:
                    self._start(mine)
            else:
                self.watch.flags.add("duplicate")
                waiting.unsettled += 1
                entry.waiting[index] = waiting

    def asks_source(self, outcomes: Outcomes, indices: Sequence[int], spent: float) -> None:
        """Keys that no tier has answered go on to the source."""
        self.watch.flags.add("tier")
        assert 0.0 <= spent <= self.watch.now - outcomes.admitted + EPSILON, "a tier took longer than it had"
        self._looked_up(outcomes.tag, indices)
        _ask_source(self.run, outcomes, indices, spent)

    def _start(self, waiting: Waiting) -> None:
        waiting.first = self.watch.now
        self.clocks.append(waiting)

    def restarted(self, lookup: Lookup, now: float) -> None:
        """The deadline of a lookup has passed while the source was away, in a patient run."""
        assert self._patient
        waiting = lookup.outcomes.tag.waiting[lookup.index]
        waiting.first = now
        self.clocks = deque(other for other in self.clocks if other is not waiting)
        self.clocks.append(waiting)
        self._restart(lookup, now)

    def stopped(self, lookups: list[Lookup]) -> None:
        """The clocks of lookups that wait for tokens start anew with their next call, in a patient run."""
        if self._patient:
            for lookup in lookups:
                waiting = lookup.outcomes.tag.waiting[lookup.index]
                waiting.first = None
                if waiting in self.clocks:
                    self.clocks.remove(waiting)
            self.watch.flags.add("short of tokens")
        self._stop(lookups)

    # calls

    def asked(self, flight: Flight, others: list[Flight]) -> None:
        """A call of this run starts; *others* are those in flight that share a key with it."""
        assert not self.closed, "a call was made after the run was closed"
        self.calls += 1
        self.sent += len(flight.keys)
        assert 1 <= len(flight.keys) <= self.watch.plan.batch_size, f"a group of {len(flight.keys)} keys"
        assert len(set(flight.keys)) == len(flight.keys), "a key twice in one call"
        for other in others:
            if other.number == self.number:
                self._asked_beside(flight, other)
        self._bytes_allow(flight)
        for key in flight.keys:
            waiting = self.current.get(key)
            if waiting is None or flight.started < waiting.admitted:
                assert flight.started <= self.watch.opened_at, f"nobody waits for key {key!r}"
                continue  # its lookup had its outcome while the connector was being opened; there may be a next one
            waiting.flights.append(flight)
            times = len(waiting.flights)
            if times > 1:
                self.watch.flags.add("retry")
            assert times - waiting.returned <= self.asks, f"key {key!r} is asked for the {times}th time"
            if waiting.first is None:
                self._start(waiting)

    def _bytes_allow(self, flight: Flight) -> None:
        """A first call starts: above `window_bytes` it is for the oldest slice, and no rows wait for Spark."""
        run, now = self.run, self.watch.now
        # A retry goes before all others, and so does a key whose late call has failed or met a source that was away.
        call = next(call for call in run.engine.calls if call.task is asyncio.current_task())
        first = all(lookup.attempts == 1 and lookup.started == now for lookup in call.held())
        first = first and not any(self.current[key].flights for key in flight.keys if key in self.current)
        if run.settled_bytes - run.taken_bytes <= self.options.window_bytes or not first or flight.started < now:
            return
        self.watch.flags.add("above the bytes")
        assert run.taken_bytes >= run.emitted_bytes, "keys are asked for while rows that have left wait for Spark"
        oldest = set(self.slices[0].outcomes.keys)
        assert not oldest.isdisjoint(flight.keys), "keys are asked for whose rows must wait for others"

    def _asked_beside(self, flight: Flight, other: Flight) -> None:
        """A call starts while another one that holds a key of it is under way: only after `attempt_timeout`."""
        hedged = False
        for key in set(flight.keys).intersection(other.keys):
            limit, waiting = self.options.seconds_of_attempt, self.current.get(key)
            if self.options.hedged:
                limit = Hedges.DELAY_MIN
            assert limit is not None, f"key {key!r} is asked twice at a time"
            # A call that was made in the stead of a late one may outlive the lookup that the late one settled.
            late = abs(flight.started - other.started) >= limit - EPSILON
            own = waiting is not None and other in waiting.flights and other.started > self.watch.opened_at
            assert late or not own, f"key {key!r} is asked twice too early"
            hedged = hedged or (own and waiting is not None and not waiting.returned)
        if hedged and self.options.hedged:
            self.watch.hedged()

    def ended(self, flight: Flight) -> None:
        """A call of this run ends."""
        self.answered = []
        for key in flight.keys:
            waiting = self.current.get(key)
            answer = flight.answers.get(key, ...) if isinstance(flight.answers, dict) else ...
            if waiting is None:
                if flight.error is None and not isinstance(answer, Failure):
                    self.watch.flags.add("late answer")
            elif flight.error is not None or isinstance(answer, Failure):
                waiting.failed = True
            elif flight in waiting.flights and (answer not in (..., []) or not self.asks_after_misses):
                self.answered.append(waiting)

    # outcomes

    def settled(self, entry: Slice, index: int, status: int) -> None:
        """A key of a slice gets its outcome."""
        now, key, waiting = self.watch.now, entry.outcomes.keys[index], entry.waiting[index]
        assert not self.closed, "a key got its outcome after the run was closed"
        waiting.unsettled -= 1
        waiting.status = status
        passed_on = (entry.outcomes, index) in self.at_fallback
        self.at_fallback.discard((entry.outcomes, index))
        if status == OK and waiting.flights and not self._admitting:  # a store holds what it knew already
            waiting.bytes = _text_bytes(self.watch.plan.value(key))
            self.bytes += waiting.bytes
        if not waiting.unsettled:
            if self.current.get(key) is waiting:
                del self.current[key]
            self.statuses[status] += 1
        if waiting.first is not None:
            assert now - waiting.first <= self.limit, f"key {key!r} waited {now - waiting.first:g} s"
        if status == TIMEOUT and not passed_on:
            self._timed_out(waiting)

    def _timed_out(self, waiting: Waiting) -> None:
        """A lookup has no answer in time: it has had all its time, in which the process did not stand still."""
        assert self.options.timeout is not None
        # A lookup that has a slot has its clock from then; one that has none may have had it since its admission.
        began, timeout = waiting.admitted, self.options.timeout
        unseen = self.watch.times_stood_since(began) * timeout / TICKS_PER_TIMEOUT  # the sweeper sees it at its tick
        waited = self.watch.now - began - self.watch.stood_since(began) + unseen
        assert waited >= timeout - EPSILON, f"key {waiting.key!r} timed out too early"

    def passed_on(self, request: FallbackRequest) -> None:
        """A lookup without an answer goes on to its fallback; a later row of its key makes a new lookup."""
        assert not self.closed, "a fallback is asked after the run was closed"
        self.watch.flags.add("fallback")
        lookup = request.lookup
        waiting = lookup.outcomes.tag.waiting[lookup.index]
        if request.status == TIMEOUT:
            self._timed_out(waiting)
        for row in ((lookup.outcomes, lookup.index), *(lookup.more or ())):
            assert row not in self.at_fallback, "a fallback is asked twice for a row"
            self.at_fallback.add(row)
        if self.current.get(waiting.key) is waiting and waiting.key not in self.run.table:
            del self.current[waiting.key]
            waiting.first = None
            self.clocks = deque(other for other in self.clocks if other is not waiting)
            self.answered = [other for other in self.answered if other is not waiting]

    def done_with(self, part: Part) -> None:
        """Spark is about to ask for the rows behind *part*."""
        entry = part.outcomes.tag
        if isinstance(entry, Slice):
            indices = range(len(entry.waiting)) if part.indices is None else part.indices
            self.bytes -= sum(entry.waiting[index].bytes for index in indices)

    def check(self, entry: Slice, index: int) -> None:
        """The outcome of a key that leaves is right."""
        outcomes, waiting = entry.outcomes, entry.waiting[index]
        key, status, value = outcomes.keys[index], outcomes.statuses[index], values_of(outcomes)[index]
        kind, name = self.watch.plan.kinds[key], STATUSES[status]
        other, expected = self.watch.plan.fallback, None
        if status == OK:
            assert kind in Kind.ANSWERED, f"key {key!r} of kind {kind} is ok"
            expected = self.watch.plan.value(key)
        else:
            option = {"missing": "on_missing", "timeout": "on_timeout"}.get(name, "on_error")
            policy = self.options.policy(option)
            if other is not None and option in other.options:
                expected = other.outcome(key, self.options, self.plan.default_values)
            elif isinstance(policy, Default):
                expected = self.plan.default_values[option]
            if status == MISSING:
                assert kind in (Kind.MISSING, Kind.APPEARING), f"key {key!r} of kind {kind} is missing"
                self.watch.flags.add("miss")
            elif name == "rejected":
                assert kind == Kind.REFUSED
            elif name == "error":
                refused = other is not None and key in other.refuses
                assert waiting.failed or refused or self.watch.plan.weather.shaky_open, (
                    f"key {key!r} is in error, but no call of it failed"
                )
            else:
                assert status == TIMEOUT, f"key {key!r} leaves with status {status}"
                self.watch.flags.add("timeout")
        assert value == expected, f"key {key!r} of status {name} has value {value!r}, not {expected!r}"
        if self.journal is not None and status in (OK, MISSING):
            answer = value if status == OK else None
            assert self.journal.holds(key, answer), f"key {key!r} leaves before its answer is in the journal"
        assert (index in outcomes.errors) == (name in ("timeout", "error", "rejected"))
        entry.values.append((index, status, value))
        if outcomes.details is not None:
            origin = outcomes.details.origins[index]
            asked_other = status != OK and other is not None and not {option, "on_missing"}.isdisjoint(other.options)
            fallback = status != OK and isinstance(policy, Default)
            known = ("call", "shared", "cache", "reuse", "journal", "preload", "tier:near")
            assert origin in (("fallback",) if fallback else (*known, *["fallback"] * asked_other)), origin
            assert origin != "journal" or self.journal is not None
            assert outcomes.details.attempts[index] <= self.asks
            assert 0.0 <= outcomes.details.latencies[index] <= (math.inf if asked_other else self.limit)

    # emission

    def emitted(self, parts: Sequence[Part]) -> None:
        """Parts leave the run."""
        assert not self.closed, "rows left after the run was closed"
        for part in parts:
            outcomes = part.outcomes
            self.emitted_rows += part.rows
            if not isinstance(outcomes.tag, Slice):
                assert outcomes.tag == self.segment, "barriers changed places"
                held = next(iter(self.slices), None)
                assert held is None or held.segment > self.segment, "a barrier left before a row that came earlier"
                self.segment += 1
                continue
            entry: Slice = outcomes.tag
            assert entry.segment == self.segment, "a row crossed a barrier"
            assert not self.plan.ordered or entry is self.slices[0], "a slice left before an earlier one"
            assert outcomes.counts is not None
            indices = range(len(outcomes.keys)) if part.indices is None else part.indices
            rows = 0
            for index in indices:
                assert not entry.left[index], "a row left twice"
                entry.left[index] = True
                rows += outcomes.counts[index]
                self.check(entry, index)
            nulls = outcomes.rows - sum(outcomes.counts)
            if part.indices is None or not part.indices:
                entry.nulls_left += nulls
                rows += nulls
            assert rows == part.rows
            if all(entry.left) and entry.nulls_left == nulls:
                self.slices.remove(entry)

    def quiet(self, now: float) -> None:
        """Nothing can run before the clock moves."""
        lost = [waiting for waiting in self.answered if waiting.unsettled]
        assert not lost or self.closed, f"an answer settled nobody: {lost[0]}"
        self.answered = []
        clocks = self.clocks
        while clocks and not clocks[0].unsettled:
            clocks.popleft()
        if clocks and not self.closed:  # clocks start in the order of time, so the first is the oldest
            assert clocks[0].first is not None
            assert now - clocks[0].first <= self.limit, f"a key has waited for {now - clocks[0].first:g} s"
        known = self.run.settled_bytes - self.run.taken_bytes
        assert self.closed or self.bytes <= known, f"answers of {self.bytes} bytes are counted as {known}"
        self._quiet_times += 1
        if self._quiet_times % 4 == 0 and not self.closed:  # each time would take half as long again
            check_states(self.run)
        if self._quiet_times % 16 == 0 and not self.closed and not self.run.timers:
            self._somebody_asks()

    def _holders(self) -> list[Lookup | Bundle]:
        """Return the lookups and bundles without an outcome that are in a call or wait for a slot."""
        run = self.run
        asked: dict[Lookup | Bundle, None] = {}
        for call in run.in_flight():
            asked |= dict.fromkeys((*call.bundles, *call.held()))
        pending = run.pending
        short = [group for owner, group, _ in run.engine._short_of_tokens if owner is run]  # type: ignore[attr-defined]
        for group in (pending._fresh, pending._later, *(group for group, _ in pending._urgent), *short):
            asked |= dict.fromkeys(group)
        return [held for held in asked if not held.settled]

    def _before_the_source(self) -> Iterator[tuple[Outcomes, int]]:
        """Iterate over the keys without an outcome that wait for a tier, or for the load of the source."""
        for tier in self.run.tiers:
            for outcomes, request in tier._asked.items():
                places = [place for place, status in enumerate(outcomes.statuses) if status == PENDING]
                yield from ((request.outcomes, request.indices[place]) for place in places if request is not None)
        for given in (step.args[-1] for step in self.run.until_loaded or ()):
            if isinstance(given, Outcomes):
                yield from ((given, index) for index in range(len(given.keys)))

    def _somebody_asks(self) -> None:
        """
        Each key without an outcome, of each slice, gets it from one lookup or bundle that is in a call or waits for a
        slot; here, none waits for its back-off. The table leads to it, unless it was cut from a slice that is apart.
        """
        table = self.run.table
        asked: Counter[tuple[Outcomes, int]] = Counter()
        found: set[Any] = set()
        shared: dict[int, tuple[Any, set[Any]]] = {}
        for held in self._holders():
            if isinstance(held, Bundle):
                keys, indices, more = held.keys, held.indices, held.more
                shared.setdefault(id(more), (more, set()))[1].update(keys)
                if held.entered:
                    found.update(keys)
                    assert all(table[key].more is more for key in keys), "rows may wait where nobody looks for them"
                else:
                    assert table.keys().isdisjoint(keys), "a key is asked for twice"
            else:
                keys, indices, more = [held.key], [held.index], {held.key: held.more or []}
                found.add(held.key)
                assert table[held.key] is held
            for key, index in zip(keys, indices, strict=True):
                for row in ((held.outcomes, index), *more.get(key, ())):
                    assert row[0].keys[row[1]] == key
                    asked[row] += 1
        assert table.keys() == found, "the table knows keys that nobody asks for any more"
        assert all(more.keys() <= keys for more, keys in shared.values()), "rows wait for what has its outcome"
        asked.update(self._before_the_source())
        asked.update(self.at_fallback)
        waiting = Counter(
            (entry.outcomes, index)
            for entry in self.slices
            for index, status in enumerate(entry.outcomes.statuses)
            if status == PENDING
        )
        lost, twice = waiting - asked, asked - waiting
        assert not lost, f"nobody asks for key {[outcomes.keys[index] for outcomes, index in lost]!r} any more"
        assert not twice, f"key {[outcomes.keys[index] for outcomes, index in twice]!r} is settled or will be twice"

    def _journaled(self, journal: MemoryStage) -> None:
        """The journal is closed, and holds right answers only."""
        assert not journal.waiting
        assert not journal.active
        for key, answers in journal.durable.items():
            kind = self.watch.plan.kinds[key]
            for answer in answers:
                if answer is MISS:
                    assert kind in (Kind.MISSING, Kind.APPEARING), f"the journal has a miss for key {key!r}"
                else:
                    assert kind in Kind.ANSWERED, f"the journal has an answer to key {key!r} of kind {kind}"
                    assert answer == self.watch.plan.value(key), f"the journal has a wrong answer to key {key!r}"

    def complete(self, rows: int) -> None:
        """The run ended well: all its *rows* left, and the counters add up."""
        stats = self.run.stats
        self.watch.flags |= {"outage"} if stats.outages else set()
        self.watch.flags |= {"returned"} if stats.returned else set()
        assert not self.slices
        assert not self.current
        assert self.emitted_rows == self.admitted_rows == self.taken_rows
        assert stats.rows == self.admitted_rows == rows
        assert stats.keys == self.keys
        counted = (stats.ok, stats.missing, stats.timeouts, stats.errors, stats.rejected)
        assert sum(counted) + stats.shared == stats.keys
        self.watch.flags |= {"reuse"} if stats.reused else set()
        self.watch.flags |= {"journal"} if stats.journaled else set()
        self.watch.flags |= {"tier down"} if stats.skipped else set()
        self.watch.flags |= {"written back"} if any(writer.written for writer in self.run.writers) else set()
        self.watch.flags |= {"preload"} if stats.preloaded else set()
        if not (self.run.stages or self.run.tiers):
            assert sum(counted) == self.lookups
            assert counted == tuple(self.statuses[status] for status in range(1, 6))

    def over(self) -> None:
        """The run was closed a second ago: none of its calls goes on, and the engine counted those that there were."""
        assert self.closed
        if self.journal is not None:
            self._journaled(self.journal)
        assert not self.run.timers
        for flight in self.watch.flights:
            assert flight.number != self.number or flight.stubborn, "a call goes on a second after its run was closed"
        stats = self.run.stats
        if self.watch.plan.weather.opens_at_once:
            assert (stats.calls, stats.attempts) == (self.calls, self.sent)
        else:  # calls that failed with the opening of the connector were made, too
            assert stats.calls >= self.calls
            assert stats.attempts >= self.sent
