"""
Tiers: sources that are asked before the source of a run, such as a store that is nearer or cheaper.

Like a fallback, a tier has a run of its own, on the engine of its source. If no stage (such as the cache) has an
answer for a key, the key goes to the first tier. Keys that the tier finds are settled, and all other keys go on at
once: to the next tier, and at last to the source of the run. A tier never makes a row fail: a key that the tier does
not answer in time, or at all, goes on.

A tier that does not answer is *down*: keys go on without it. Once a second some of these keys are also sent to the
tier, as a probe that shows whether it is back. All runs on an engine share the knowledge whether the tier is down.
Values that a later tier or the source has found are written back in the background, see `write_back.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from ..errors import TransientError, UnavailableError
from ..interface import Keys
from ..outcome import ERROR, MISSING, OK, PENDING, TIMEOUT, Outcomes
from . import admission, settlement
from .records import NO_SLICE
from .run import Run

if TYPE_CHECKING:
    from .engine import Engine
    from .records import Group, Part
    from .run import TierPort
    from .search import Search
    from .write_back import WriteBack

__all__ = ["Tier", "TierRun"]

_log = logging.getLogger("enrichkit")

PROBE_EVERY = 1.0
"""Seconds between two probes that ask whether a tier is back."""


SILENT = (TransientError.__name__, UnavailableError.__name__)
"""How the error text of a key begins if the tier has not answered."""


class _Health:
    """The state of the tier on one engine; `down` is the loop time of the next probe; None: the tier answers."""

    __slots__ = ("down",)

    def __init__(self) -> None:
        self.down: float | None = None


_healths: WeakKeyDictionary[Engine, _Health] = WeakKeyDictionary()


class _Request(NamedTuple):
    """Keys of the parent run, at `indices` in its slice `outcomes`; earlier tiers took `spent` seconds for them."""

    outcomes: Outcomes
    indices: Sequence[int]
    spent: float


class TierRun(Run):
    """
    The run of a tier. Its keys wait while `window_bytes` holds back the keys of its parent, the run that asks the tier.
    """

    tier: Tier
    behind_tiers = True  # an earlier tier may pass on keys of a slice after keys of later slices

    def take(self, limit: int) -> tuple[Group, Search | None]:
        """Remove and return pending keys for a call, like `Run.take`, but within the parent run's `window_bytes`."""
        parent = self.tier.parent
        assert parent is not None
        waiting = parent.settled_bytes - parent.taken_bytes
        self.held_back = parent.held_back or waiting > parent.options.window_bytes
        return super().take(limit)

    def only_slice(self) -> Part | Outcomes | None:
        """
        Return the tier's slice for the only slice whose keys the parent run may ask for; None: it may ask for all keys.
        """
        parent = self.tier.parent
        assert parent is not None
        only = parent.only_slice()
        return None if only is None else self.tier.slice_of(only)

    def stood_still(self, since: float, until: float) -> None:
        """Do not count the time from *since* to *until* for the timeout of any key, in this run and in the tier."""
        super().stood_still(since, until)
        self.tier.stood_still(since, until)


class Tier:
    """
    One tier of one run. Lives on the loop thread.

    Args:
        name: Name of the source.
        engine: The engine of the source.
        make_run: Function that makes the unordered run of the tier; its argument is the function that the run calls
            with its finished parts.
        batch_size: Most keys per call.
        writer: The object that writes to the tier the values that later tiers and the source have found; None: nothing
            is written.

    Attributes:
        origin: The origin that rows get when the tier has answered their key.
        parent: The run that asks this tier before its source; the run sets the attribute.
        next: The tier that is asked next; None: the source is asked next.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        make_run: Callable[[Callable[[list[Part] | BaseException], None]], TierRun],
        batch_size: int = 1,
        writer: WriteBack | None = None,
    ) -> None:
        self.name = name
        self.origin = f"tier:{name}"
        self.writer = writer
        self.parent: Run | None = None
        self.next: TierPort | None = None
        self._engine = engine
        engine.keep_open()
        self._make_run = make_run
        self._batch_size = batch_size
        self._health = _healths.setdefault(engine, _Health())
        # For each slice of the tier's run, the request of the parent run that it serves; None: the slice is a probe.
        self._asked: dict[Outcomes, _Request | None] = {}
        self._run: TierRun | None = None
        self.runs: list[TierRun] = []

    def ask(self, outcomes: Outcomes, indices: Sequence[int], spent: float = 0.0) -> None:
        """Ask for the keys with *indices* in the slice *outcomes*; while the tier is down, pass the keys on instead."""
        if self._health.down is None and self._engine.gate.outage.since is not None:
            self._goes_down()
        keys = outcomes.keys.objects() if isinstance(outcomes.keys, Keys) else outcomes.keys
        wanted = list(keys) if len(indices) == len(keys) else [keys[index] for index in indices]
        if self._health.down is None:
            self._admit(wanted, _Request(outcomes, indices, spent))
            return
        if self._engine.now() >= self._health.down:
            self._health.down = self._engine.now() + PROBE_EVERY
            self._admit(wanted[: self._batch_size], None)
        self._skip(_Request(outcomes, indices, spent))

    def slice_of(self, outcomes: Part | Outcomes) -> Outcomes:
        """Return the tier's slice with keys of *outcomes*, a slice of the parent run; `NO_SLICE` if there is none."""
        for asked, request in self._asked.items():
            if request is not None and request.outcomes is outcomes:
                return asked
        return NO_SLICE

    def stood_still(self, since: float, until: float) -> None:
        """
        Do not count the time from *since* to *until*, in which the process stood still, as time that the tier takes.
        """
        for asked in self._asked:
            asked.admitted += until - max(since, asked.admitted)

    def wake(self) -> None:
        """Let the engine of the tier check again whether it may send calls for the keys of this tier."""
        if self._run is not None:
            self._engine.wake()

    def close(self) -> None:
        """End the tier: no key is asked for, and no value is written any more."""
        self._asked.clear()
        self._end_run()
        if self.writer is not None:
            self.writer.close()
        self._engine.release()

    def _admit(self, keys: list[Any], request: _Request | None) -> None:
        if self._run is None:
            self._run = run = self._make_run(self._take)
            run.tier = self
            self.runs = [*self.runs[-1:], run]
        asked = Outcomes(keys, len(keys), details=True, counts=[1] * len(keys))
        self._asked[asked] = request
        admission.admit(self._run, asked)

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def _take(self, parts: list[Part] | BaseException) -> None:
        """Settle the keys that the tier has found, and pass the other keys on."""
        parent = self.parent
        assert parent is not None
        if isinstance(parts, BaseException):
            _log.warning("%s: the tier is left out, because it has failed: %s", self.name, parts)
            self._goes_down()
            return
        silent = False
        for part in parts:
            asked = part.outcomes
            if asked not in self._asked:
                continue
            request = self._asked[asked]
            if not asked.unsettled:
                del self._asked[asked]
            if self._run is not None:
                self._run.taken_bytes += part.bytes
            answers = [_is_answer(asked, index) for index in part.indices or ()]
            answered = any(answers)
            silent = silent or (bool(answers) and not answered)
            if answered and self._health.down is not None:
                self._health.down = None
                _log.warning("%s: the tier is back.", self.name)
            if request is not None:
                self._settle(parent, part, request)
        if silent:
            self._goes_down()
        parent.flush()

    def _settle(self, parent: Run, part: Part, request: _Request) -> None:
        """Give the rows of *request* the values in *part*, which the tier has found, and pass the other keys on."""
        # Sorted, because `ask` and `admit_keys` pair a list that has an index for each key with the keys in order.
        asked, places = part.outcomes, sorted(part.indices or ())
        assert asked.details is not None
        took = max((asked.details.latencies[place] for place in places), default=0.0)
        # A key may join a lookup that began before the tier was asked for the key; only the time since then counts.
        took = min(took, self._engine.now() - asked.admitted)
        hits = [place for place in places if asked.statuses[place] == OK]
        if hits:
            values = [asked.values[place] for place in hits]
            keys = [asked.keys[place] for place in hits]
            parent.stats.tiered += len(hits)
            parent.stats.ok += len(hits)
            parent.remember(keys, values, parent.engine.now() - took, before=self)
            indices, each = [request.indices[place] for place in hits], part.bytes // len(places)
            origins = {OK: self.origin}
            settlement.record(
                parent, request.outcomes, indices, values, bytes([OK]) * len(hits), each, 1, took, origins
            )
        others = [place for place in places if asked.statuses[place] != OK]
        parent.stats.skipped += sum(asked.statuses[place] != MISSING for place in others)
        indices = [request.indices[place] for place in others]
        self._pass_on(_Request(request.outcomes, indices, request.spent + took))

    def _skip(self, request: _Request) -> None:
        """Pass on the keys of *request*, for which the tier has given no answer, and count them as skipped."""
        assert self.parent is not None
        self.parent.stats.skipped += len(request.indices)
        self._pass_on(request)

    def _pass_on(self, request: _Request) -> None:
        parent = self.parent
        assert parent is not None
        if not request.indices or parent.closed:
            return
        if self.next is not None:
            self.next.ask(*request)
        else:
            admission.ask_source(parent, *request)

    def _goes_down(self) -> None:
        """Mark the tier as down until the next probe, and pass on the keys that it has not answered."""
        if self._health.down is None:
            _log.warning("%s: the tier does not answer, so its keys are looked up without it.", self.name)
        self._health.down = self._engine.now() + PROBE_EVERY
        waiting, self._asked = self._asked, {}
        self._end_run()
        for asked, request in waiting.items():
            if request is not None:
                left = [place for place, status in enumerate(asked.statuses) if status == PENDING]
                indices = [request.indices[place] for place in left]
                # Count at most the timeout: keys that took longer have waited for a slot, and no timeout includes this
                # wait.
                took = min(self.timeout, self._engine.now() - asked.admitted)
                self._skip(_Request(request.outcomes, indices, request.spent + took))

    @property
    def timeout(self) -> float:
        """The most seconds that the tier may take for a key."""
        run = self.runs[-1] if self.runs else None
        return 0.0 if run is None else run.options.timeout or 0.0


def _is_answer(asked: Outcomes, index: int) -> bool:
    """Whether the tier has answered the key with *index*; an error that is not transient is an answer, too."""
    if asked.statuses[index] == ERROR:
        return not asked.errors[index].startswith(SILENT)
    return asked.statuses[index] != TIMEOUT
