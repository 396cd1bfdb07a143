"""
Background lookups for the cache: of keys whose answers expire soon, and of keys that got a stale value.

These keys have their own run on the engine of their source, like the keys of a fallback. A call of this run is sent
only while no row waits for a slot, and such calls take at most a quarter of the slots, so a row waits for at most one
of them. When too many keys wait in the background, further keys are dropped. While the source is away, probes are made
with the keys that got a stale value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..outcome import MISSING, OK, Outcomes
from . import admission
from .cache import MISS
from .limits import background_slots
from .run import Run

if TYPE_CHECKING:
    from ..options import Options
    from .cache import AnswerCache
    from .records import Part

__all__ = ["BackgroundRun", "Refresher", "background_options"]

AHEAD = 2
"""Most keys in the background run, as a multiple of the keys that its calls in flight can hold."""


class BackgroundRun(Run):
    """A run whose keys are only asked for while no other run has keys that wait."""

    background = True


def background_options(options: Options) -> Options:
    """Return the options of lookups for which no row waits: they have one attempt, and their failures fail no task."""
    nothing: dict[str, Any] = {"on_timeout": "null", "on_error": "null", "on_missing": "null"}
    return replace(
        options, **nothing, max_fallback_ratio=1.0, retry=None, cache=None, journal=None, reuse=False, details=False
    )


class Refresher:
    """
    The background lookups of one run. Lives on the loop thread.

    Args:
        cache: The cache that gets the answers; if several runs share it, only one of them at a time asks for a key.
        make_run: Function that makes the unordered `BackgroundRun`; its argument is the function that the run calls
            with its finished parts.
        capacity: Slots of the engine.

    Attributes:
        run: The background run.
        serves_stale: Whether stale values replace the outcomes of lookups that fail.
    """

    def __init__(
        self,
        cache: AnswerCache,
        make_run: Callable[[Callable[[list[Part] | BaseException], None]], BackgroundRun],
        capacity: int,
    ) -> None:
        self._cache = cache
        self.serves_stale = cache.keeps_stale
        self.run = make_run(self._take)
        self._held: set[Any] = set()
        self._room = AHEAD * max(1, background_slots(capacity)) * self.run.batch_size

    def took(self, seconds: float) -> None:
        """Record that a call took *seconds*, for the cache's moving average of the duration of calls."""
        known = self._cache.call_time
        self._cache.call_time = known + (seconds - known) / 8 if known else seconds

    def old_values(self, keys: Iterable[Any]) -> dict[Any, Any]:
        """Return, by key, the stale values of *keys*, with which lookups that fail are answered."""
        return self._cache.stale(keys, self.run.engine.now())

    def refresh(self, keys: Sequence[Any]) -> None:
        """
        Ask for those of *keys* whose answers in the cache expire soon; all *keys* have just been looked up for rows.
        """
        due = self._cache.due(keys, self.run.engine.now())
        if due:
            self.ask(due)

    def ask(self, keys: Iterable[Any]) -> None:
        """
        Ask for those of *keys* that no background lookup asks for yet; drop keys beyond the limit on background keys.
        """
        wanted = [key for key in keys if key not in self._cache.refreshing][: self._room - len(self._held)]
        if wanted and not self.run.closed:
            self._held.update(wanted)
            self._cache.refreshing.update(wanted)
            admission.admit(self.run, Outcomes(wanted, len(wanted), counts=[1] * len(wanted)))

    def close(self) -> None:
        """Forget the keys, and cancel their calls."""
        self._cache.refreshing -= self._held
        self._held.clear()
        self.run.close()

    def _take(self, parts: list[Part] | BaseException) -> None:
        """Give the answers in *parts* to the cache. Keys that failed are dropped, because no row waits for them."""
        if isinstance(parts, BaseException):
            self.close()
            return
        for part in parts:
            outcomes = part.outcomes
            self.run.taken_bytes += part.bytes
            known: dict[Any, Any] = {}
            for index in part.indices or ():
                key = outcomes.keys[index]
                self._held.discard(key)
                self._cache.refreshing.discard(key)
                if outcomes.statuses[index] in (OK, MISSING):
                    known[key] = outcomes.values[index] if outcomes.statuses[index] == OK else MISS
            self._cache.put_many(known.keys(), known.values(), self.run.engine.now())
