"""
The records of a run: lookups (one key each), bundles (several keys handled as one), calls, and parts.

A slice is a group of rows that enters the run together; a part is the rows of a slice that are returned together.

The table shows the states of a lookup, which only the methods of `Lookup` and `settlement.py` change:

| state     | the key                                                    | event -> next state                       |
|-----------|------------------------------------------------------------|-------------------------------------------|
| PENDING   | waits for its first slot                                   | `sent` -> IN_FLIGHT; `joined` -> DRAINING |
| IN_FLIGHT | is in a call that was made for it                          | `queued`, `returned` -> WAITING           |
| WAITING   | waits for a retry; an earlier call may still answer        | `sent`, `blamed` -> IN_FLIGHT             |
| DRAINING  | waits for a late call that an earlier lookup began         | `queued` -> WAITING                       |
| SETTLED   | has its outcome, which is final; a late call may still run |                                           |

A key in any other state becomes SETTLED when it gets its outcome. After `attempt_timeout` a key may be in several calls
at once, and a call may outlive the lookups that it was made for. So the first answer settles the key. When a call ends
with a transient error, the key fails only if it has no other `routes` to an answer: no other call with the key is in
flight, and no retry of the key is queued.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from ..interface import Keys
from ..outcome import Outcomes

if TYPE_CHECKING:
    from .search import Search

__all__ = ["NO_SLICE", "Bundle", "Group", "InFlight", "Lookup", "Part", "State"]

NO_SLICE = Outcomes([], 0)
"""An empty slice; as the result of `Run.only_slice`, it means that no pending key may be asked for now."""


class State(enum.Enum):
    """The state of a lookup; see the table at the top of this module."""

    PENDING = enum.auto()
    IN_FLIGHT = enum.auto()
    WAITING = enum.auto()
    DRAINING = enum.auto()
    SETTLED = enum.auto()


# Globals, because every key and every call uses them: looking a member up in its class takes three times as long.
PENDING, IN_FLIGHT, WAITING, DRAINING, SETTLED = State


class Lookup:
    """
    The lookup of one distinct key, from the arrival of its rows to its outcome.

    Attributes:
        state: See the table at the top of this module.
        routes: Number of ways in which an answer may still come: one for each call in flight with the key, and one if
            the key is queued for a retry or for its first call.
        started: Loop time at which the key's clock (for its timeout) started; None before, and while the key waits
            through no fault of its own.
        attempts: Calls made with the key.
        failures: Attempts that count against `Retry.attempts`: transient errors, overdue calls, and misses with
            `on_missing`.
        error: The last transient error.
        node_away_since: Loop time since which every call of the key has failed because a node of the source is away;
            None: the last call did not fail for this reason.
        call: The last call that was made with the key, or that the key joined; None before the first.
        more: Further slices that wait for the key, with the key's index in each.
        spent: Seconds that tiers (sources asked before the run's own) took for the key; not set if the run has no
            tiers, which saves 1 % of the time of a lookup.
        paid: The key's share in the cost of its calls so far, by unit; not set unless the run shows costs.
        refusals: How many calls of the key the source has refused while it answered other calls; not set before the
            first refusal.
    """

    __slots__ = (
        "attempts",
        "call",
        "error",
        "failures",
        "index",
        "key",
        "more",
        "node_away_since",
        "outcomes",
        "paid",
        "refusals",
        "routes",
        "spent",
        "started",
        "state",
    )

    spent: float
    paid: dict[str, float]
    refusals: int

    def __init__(self, key: Any, outcomes: Outcomes, index: int) -> None:
        self.key = key
        self.outcomes = outcomes
        self.index = index
        self.state = PENDING
        self.more: list[tuple[Outcomes, int]] | None = None
        self.started: float | None = None
        self.attempts = 0
        self.failures = 0
        self.routes = 1
        self.error: BaseException | None = None
        self.node_away_since: float | None = None
        self.call: InFlight | None = None

    @property
    def settled(self) -> bool:
        """Whether the key has its outcome."""
        return self.state is SETTLED

    @property
    def attached(self) -> bool:
        """Whether the lookup waits for an earlier lookup's call, whose failure does not count against this lookup."""
        return self.state is DRAINING

    def waits_for(self, call: InFlight) -> bool:
        """Whether *call* was made for this lookup, and the key has neither been queued nor sent again since."""
        return self.state is IN_FLIGHT and self.call is call

    def sent(self, call: InFlight) -> None:
        """Record that *call* was made with the key, which has left the queue."""
        self.state = IN_FLIGHT
        self.attempts += 1
        self.call = call

    def joined(self, call: InFlight) -> None:
        """Wait for *call*, which still runs although an earlier lookup of the key has timed out."""
        self.state = DRAINING
        self.call = call
        call.lookups[self.key] = self

    def queued(self) -> None:
        """Record that the key was queued for another call."""
        self.state = WAITING
        self.routes += 1

    def returned(self, error: BaseException, node_away_since: float | None = None) -> None:
        """
        Record that the key was queued for another call, which counts as the same attempt as the last call.

        This is for a key whose last call found the source or one of its nodes away, or was refused by the source.
        """
        self.state = WAITING
        self.routes += 1
        self.attempts -= 1
        self.error = error
        self.node_away_since = node_away_since

    def unasked(self) -> bool:
        """Record that no further call is made with the key; return whether no call in flight can answer it either."""
        self.routes -= 1
        if self.routes:
            self.state = IN_FLIGHT  # a late call with the key has not ended
        return not self.routes

    def blamed(self) -> None:
        """
        Count the last call, after which the key was put back, as a failed attempt, because the key is blamed for it.
        """
        self.routes -= 1
        if self.routes:
            self.state = IN_FLIGHT  # a late call with the key has not ended, and perhaps no retry follows
        self.attempts += 1
        self.failures += 1

    def call_ended(self) -> None:
        """Record that a call with the key has ended."""
        self.routes -= 1

    def failed(self, error: BaseException | None, *, counted: bool) -> None:
        """Record a transient *error*; if *counted* is True, count it as a failure of the key, too."""
        self.error = error
        self.node_away_since = None
        self.failures += counted

    def pay(self, share: Mapping[str, float]) -> None:
        """Add *share*, the key's share in the cost of a call, to `paid`."""
        paid = getattr(self, "paid", {})
        self.paid = paid | {unit: paid.get(unit, 0.0) + amount for unit, amount in share.items()}

    def wait(self, key: Any, outcomes: Outcomes, index: int) -> None:
        """Let *outcomes*, a further slice, wait for *key*, which has the index *index* in that slice."""
        if self.more is None:
            self.more = []
        self.more.append((outcomes, index))

    def concerns(self, outcomes: Any) -> bool:
        """Whether the slice *outcomes* waits for the key."""
        return self.outcomes is outcomes or any(other is outcomes for other, _ in self.more or ())

    def singly(self) -> Sequence[Lookup]:
        """Return a sequence of this lookup alone, so that callers can treat lookups and bundles alike."""
        return (self,)


class Bundle:
    """
    Several keys of one slice, handled as one lookup until a deadline, failure or retry separates them.

    The keys of a bundle wait for a slot together, and a call of several keys sends and settles them together. Before
    one of the keys is handled alone, every key of the bundle becomes a `Lookup`, so that code for single keys has to
    deal with lookups only.

    Attributes:
        keys: Keys of the slice `outcomes`; `indices` are their indices in that slice.
        entered: Whether `Run.table` maps the keys to this bundle, or to the bundle from which this one was cut.
        started: Loop time at which the clock (for the timeout) of the keys started; None before.
        call: The call that was made with the bundle; None before.
        more: For each key, the further slices that wait for it, with the key's index in each. Bundles that were cut
            from this one share the dict.
        spent: Seconds that tiers, i.e. sources asked before the run's own, took for the keys.
    """

    __slots__ = ("_lookups", "_table", "call", "entered", "indices", "keys", "more", "outcomes", "spent", "started")

    state = State.PENDING  # never SETTLED: a bundle is dropped when its keys have their outcomes
    settled = False

    def __init__(self, table: dict[Any, Any], outcomes: Outcomes, keys: Sequence[Any], indices: Sequence[int]) -> None:
        self._table = table
        self.outcomes = outcomes
        self.keys = keys
        self.indices = indices
        self.started: float | None = None
        self.call: InFlight | None = None
        self.more: dict[Any, list[tuple[Outcomes, int]]] = {}
        self.entered = False
        self.spent = 0.0
        self._lookups: list[Lookup] | None = None

    def enter(self) -> int:
        """
        Enter the bundle in the table under its keys.

        A key that is already in the table is removed from this bundle, and its rows wait for the lookup or bundle that
        the table maps the key to.

        Returns:
            How many keys were removed from the bundle.
        """
        self.entered = True
        holders: list[Lookup | Bundle] = list(map(self._table.setdefault, self.keys, repeat(self)))
        held = len(holders) - holders.count(self)
        if held:
            mine: list[tuple[Any, int]] = []
            for holder, key, index in zip(holders, self.keys, self.indices, strict=True):
                if holder is self:
                    mine.append((key, index))
                else:
                    holder.wait(key, self.outcomes, index)
            self.keys, self.indices = [key for key, _ in mine], [index for _, index in mine]
        return held

    def wait(self, key: Any, outcomes: Outcomes, index: int) -> None:
        """Let *outcomes*, a further slice, wait for *key*, which has the index *index* in that slice."""
        self.more.setdefault(key, []).append((outcomes, index))

    def concerns(self, outcomes: Any) -> bool:
        """Whether the slice *outcomes* waits for a key of this bundle, or of one that was cut from the same bundle."""
        return self.outcomes is outcomes or any(other is outcomes for rows in self.more.values() for other, _ in rows)

    def cut(self, size: int) -> Bundle:
        """Remove the first *size* keys, and return them as a bundle."""
        first = Bundle(self._table, self.outcomes, self.keys[:size], self.indices[:size])
        self.keys, self.indices = self.keys[size:], self.indices[size:]
        # Both bundles share the dict, because the table may still map keys of `first` to this bundle. A later slice
        # with such a key then calls `wait` of this bundle, but the answer comes to `first`.
        first.entered, first.more = self.entered, self.more
        first.spent = self.spent
        return first

    def singly(self) -> list[Lookup]:
        """Replace all bundles of the call by lookups, one for each key; return the lookups of this bundle in order."""
        if self._lookups is None:
            self._lookups = [
                Lookup(key, self.outcomes, index) for key, index in zip(self.keys, self.indices, strict=True)
            ]
            self._table.update(zip(self.keys, self._lookups, strict=True))
            if self.spent:
                for lookup in self._lookups:
                    lookup.spent = self.spent
            if self.more:
                for lookup in self._lookups:
                    lookup.more = self.more.pop(lookup.key, None)
            if self.call is not None:
                self.call.separate()
        return self._lookups


Group: TypeAlias = "list[Any]"
"""The keys of one call: a new list, either of lookups only or of bundles only."""


class InFlight:
    """
    One call of `fetch_many` that has not ended.

    Args:
        group: The lookups or bundles that the call is made with; this object keeps the list and changes it.
        search: The search that *group* is a part of, or None.
        now: Loop time.
        task: The task of the slot that makes the call; the engine cancels it at the hard limit.
        key_columns: Whether the connector takes `Keys`.

    Attributes:
        keys: The keys of *group*.
        bundles: The bundles of *group* until one of their keys has to be handled separately; then empty.
        alone: If the call is made with only one lookup: that lookup, until `lookups` is read or the call ends;
            otherwise None.
        attempt: How often the first key of *group* has been asked for, this call included.
        running: Whether the call has not ended yet.
        accepts: Number of calls that the source had answered in time, by the count of the circuit breaker, when this
            call was sent; not set before.
        late: Whether the call is late: all its lookups have their outcome without it, or `attempt_timeout` has passed.
        late_since: Loop time at which the call became late; not set before.
        overdue: Whether `attempt_timeout` has passed; if so, the keys were queued again where `Retry` allows it.
        cancelled_at: Loop time at which the engine cancelled the call; None: the call was not cancelled.
        record: The lookups or bundles whose clock started with this call; the run's `Deadlines` keep a reference to
            this list.
        paid: What the call has cost, by unit; not set unless the source has reported the cost.
    """

    __slots__ = (
        "_lookups",
        "accepts",
        "alone",
        "attempt",
        "bundles",
        "cancelled_at",
        "keys",
        "late",
        "late_since",
        "overdue",
        "paid",
        "record",
        "running",
        "search",
        "started",
        "task",
    )

    accepts: int
    late_since: float
    paid: Mapping[str, float]

    def __init__(
        self,
        group: Group,
        search: Search | None,
        now: float,
        task: asyncio.Task[Any] | None,
        key_columns: bool = False,
    ) -> None:
        self.bundles: Sequence[Bundle] = ()
        self.alone: Lookup | None = None
        self._lookups: dict[Any, Lookup] | None = None
        self.search = search
        self.started = now
        self.task = task
        self.running = True
        self.late = False
        self.overdue = False
        self.cancelled_at: float | None = None
        self.attempt = 1
        self.keys: Sequence[Any]
        self.record: list[Any] = group
        first: Any = group[0]
        if isinstance(first, Bundle):
            self.bundles = [*self.record]
            for bundle in self.bundles:
                bundle.call = self
            self.keys = _joined_keys([bundle.keys for bundle in self.bundles], key_columns)
            return
        if len(group) == 1:
            self.alone = first
            self.keys = (first.key,)
        else:
            self._lookups = {lookup.key: lookup for lookup in self.record}
            self.keys = tuple(self._lookups)
        again = False
        for lookup in self.record:
            # The lines of `Lookup.sent`, inline: calling the method takes 2 % of the time of a lookup.
            lookup.state = IN_FLIGHT
            lookup.attempts += 1
            lookup.call = self
            again = again or lookup.started is not None
        self.attempt = first.attempts
        if again:
            self.record = [lookup for lookup in self.record if lookup.started is None]

    @property
    def lookups(self) -> dict[Any, Lookup]:
        """
        By key, the lookup that waits for the answer; empty while the call has bundles.

        If a lookup has timed out, a later lookup of the same key may replace it here.
        """
        # The dict is made when it is first read, because a dict for each call of one key takes 4 % of the time of a
        # lookup.
        if self._lookups is None:
            self._lookups = {lookup.key: lookup for lookup in self.held()}
            self.alone = None
        return self._lookups

    def held(self) -> Iterable[Lookup]:
        """Return the values of `lookups`, without making this dict if it was not made yet."""
        if self._lookups is not None:
            return self._lookups.values()
        return () if self.alone is None else (self.alone,)

    def separate(self) -> None:
        """Replace the bundles by a lookup for each key, so that a single key can be handled alone."""
        if not self.bundles:
            return
        bundles, self.bundles = self.bundles, ()
        for bundle in bundles:
            for lookup in bundle.singly():
                self.lookups[lookup.key] = lookup
                lookup.started = bundle.started
                lookup.sent(self)
        self.record[:] = self.lookups.values()

    def share(self) -> dict[str, float]:
        """Return the share of each key in the cost of the call, by unit: all keys have equal shares."""
        return {unit: amount / len(self.keys) for unit, amount in getattr(self, "paid", {}).items()}

    def pay(self) -> None:
        """Charge an equal share of the cost to each lookup that the call was made for."""
        share = self.share()
        for lookup in self.held() if share else ():
            if not lookup.attached:
                lookup.pay(share)

    def wanted(self) -> bool:
        """Whether a lookup waits for the call."""
        return bool(self.bundles) or not all(lookup.state is SETTLED for lookup in self.held())

    def dispensable(self) -> bool:
        """Whether each lookup of the call has its outcome, or can get it from another call."""
        lookups = self.held()
        return not self.bundles and all(each.settled or each.attached or each.routes > 1 for each in lookups)

    def cancel(self, now: float) -> None:
        """Cancel the call, unless it has been cancelled before; the connection that it uses is lost."""
        if self.cancelled_at is None and self.task is not None:
            self.cancelled_at = now
            self.task.cancel()

    def release(self) -> None:
        """
        Drop the bundles and lookups, because they and the call would otherwise keep each other alive until a garbage
        collection.
        """
        self.bundles = ()
        self.alone = None
        self._lookups = {}


class Part:
    """
    Rows that a run returns together: a whole slice, or in unordered mode the rows of some of its keys.

    Attributes:
        outcomes: The slice.
        indices: Indices of the keys to which the rows belong; None: all rows of the slice; empty: rows with a null key.
        rows: Number of rows.
        bytes: About how many bytes the values of the rows take.
    """

    __slots__ = ("bytes", "indices", "outcomes", "rows")

    def __init__(self, outcomes: Outcomes, indices: list[int] | None, rows: int, size: int) -> None:
        self.outcomes = outcomes
        self.indices = indices
        self.rows = rows
        self.bytes = size


def _joined_keys(parts: list[Sequence[Any]], key_columns: bool) -> Sequence[Any]:
    """
    Return the keys of *parts*: as `Keys` if *key_columns* is True and all parts are `Keys` that can be joined, else as
    a tuple.
    """
    if key_columns:
        columns = [part for part in parts if isinstance(part, Keys)]
        keys = columns[0].followed_by(columns[1:]) if len(columns) == len(parts) else None
        if keys is not None:
            return keys
    return tuple(chain.from_iterable(parts))
