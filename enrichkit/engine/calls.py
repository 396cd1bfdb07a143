"""
One call: the keys it holds, from its slot to its end.

A key may be held by more than one call (after `attempt_timeout`), and a call may outlive the lookups it was made for
(after `timeout`): the first answer settles a key, and a key fails only when no other way to an answer is left.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ..connector import Keys
from .lookup import Bundle

if TYPE_CHECKING:
    from .lookup import Group, Lookup
    from .run import Run

__all__ = ["Bisection", "InFlight"]


class Bisection:
    """How many more calls may be made to find the poisoned keys of one group."""

    __slots__ = ("calls",)

    def __init__(self, keys: int) -> None:
        self.calls = math.ceil(4 * math.log2(keys))


class InFlight:
    """
    One call of `fetch_many` that has not ended.

    Attributes:
        keys: Those that it was made with.
        bundles: They hold the keys, all of them, as long as all is well.
        lookups: Key to the lookup that wants its answer, else; a timed-out one may be replaced by a later one.
        attempt: How often its first key has been asked for, this time included.
        running: Not ended yet.
        late: All its lookups have their outcome, or `attempt_timeout` has passed: nobody has to wait for it.
        overdue: `attempt_timeout` has passed, and its keys were queued again where that is allowed.
        cancelled_at: When the engine cancelled it; None: it did not.
    """

    __slots__ = (
        "attempt",
        "bisection",
        "bundles",
        "cancelled_at",
        "keys",
        "late",
        "lookups",
        "overdue",
        "record",
        "run",
        "running",
        "started",
        "task",
    )

    def __init__(
        self,
        run: Run,
        group: Group,
        bisection: Bisection | None,
        now: float,
        task: asyncio.Task[Any] | None,
    ) -> None:
        self.run = run
        self.bundles: Sequence[Bundle] = ()
        self.lookups: dict[Any, Lookup] = {}
        self.bisection = bisection
        self.started = now
        self.task = task
        self.running = True
        self.late = False
        self.overdue = False
        self.cancelled_at: float | None = None
        self.attempt = 1
        self.keys: Sequence[Any]
        self.record: list[Any] = [*group]
        if isinstance(group[0], Bundle):
            self.bundles = [*self.record]
            for bundle in self.bundles:
                bundle.call = self
            self.keys = _joined(run, [bundle.keys for bundle in self.bundles])
        else:
            again = False
            for lookup in self.record:
                self.lookups[lookup.key] = lookup
                lookup.attempts += 1
                lookup.call = self
                again = again or lookup.started is not None
            self.keys = tuple(self.lookups)
            if again:
                self.attempt = self.record[0].attempts
                self.record = [lookup for lookup in self.record if lookup.started is None]
        run.deadlines.start(self.record, now)

    def separate(self) -> None:
        """Make a lookup of each key: something concerns one of them alone."""
        if not self.bundles:
            return
        bundles, self.bundles = self.bundles, ()
        for bundle in bundles:
            for lookup in bundle.singly():
                self.lookups[lookup.key] = lookup
                lookup.started, lookup.attempts, lookup.call = self.started, 1, self
        self.record[:] = self.lookups.values()

    def wanted(self) -> bool:
        """Whether somebody waits for it."""
        return bool(self.bundles) or not all(lookup.settled for lookup in self.lookups.values())

    def cancel(self, now: float) -> None:
        """Cancel the call, once; its connection is lost with it."""
        if self.cancelled_at is None and self.task is not None:
            self.cancelled_at = now
            self.task.cancel()


def _joined(run: Run, parts: list[Sequence[Any]]) -> Sequence[Any]:
    """Return the keys of *parts* as the connector of *run* gets them."""
    if run.engine is not None and run.engine.connector.key_columns:
        columns = [part for part in parts if isinstance(part, Keys)]
        keys = columns[0].followed_by(columns[1:]) if len(columns) == len(parts) else None
        if keys is not None:
            return keys
    return tuple(chain.from_iterable(parts))
