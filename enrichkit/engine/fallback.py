"""
Fallbacks that have to be asked: another source, or a function of the key.

A stage is a run of its own on the engine of its source, so its lookups are grouped, bounded, timed, retried and drained
as any others, and nothing here waits. A lookup that has no answer is handed on when its run flushes, and its rows wait
until the stage has an outcome. Its own run has done with it by then: a later row with that key is a new lookup.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from ..outcome import Outcomes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .dispatch import Engine
    from .lookup import Lookup, Part
    from .run import Run

__all__ = ["HandedOn", "Stage", "both"]

AHEAD = 2
"""A stage holds this many times the keys that it can ask for at a time; the others wait where their bytes count."""


class HandedOn:
    """
    A lookup without an answer, on its way through its fallbacks.

    Attributes:
        status: Of its rows.
        text: What they say of it; None for a miss.
        origin: Where the last word came from.
        asked: The stages that it has been handed to.
    """

    __slots__ = ("asked", "lookup", "origin", "status", "text")

    def __init__(self, lookup: Lookup, status: int, text: str | None, origin: str) -> None:
        self.lookup = lookup
        self.status = status
        self.text = text
        self.origin = origin
        self.asked: list[Stage] = []


class Stage:
    """
    One fallback of one run. Lives on the loop thread.

    Args:
        name: What messages call it.
        options: The options that name it, of `on_timeout`, `on_error` and `on_missing`.
        room: Keys that are in a call at a time at most: capacity x batch size of its engine.
        key: Of its engine in this process.
        engine: Makes that engine when there is none.
        run: Makes its run, unordered, given where to emit to.
    """

    def __init__(
        self,
        name: str,
        options: tuple[str, ...],
        room: int,
        key: str,
        engine: Callable[[], Engine],
        run: Callable[[Callable[[list[Part] | BaseException], None]], Run],
    ) -> None:
        self.name = name
        self.options = options
        self.key = key
        self.engine = engine
        self.run = run(self._take)
        self.parent: Run | None = None  # set by the run whose fallback this is
        self._waiting: dict[Outcomes, list[HandedOn]] = {}
        self._held = 0  # keys given to the run that have no outcome
        self._limit = AHEAD * room

    def __repr__(self) -> str:
        return f"<Stage {self.name}: {self._held} asked, {sum(map(len, self._waiting.values()))} waiting>"

    def put(self, handed: HandedOn) -> None:
        """Take *handed* over; it is asked for when the run flushes."""
        handed.asked.append(self)
        self._waiting.setdefault(handed.lookup.outcomes, []).append(handed)

    def flush(self) -> None:
        """Ask for keys that wait, as many as there is room for; above `window_bytes` only for the oldest slice's."""
        parent = self.parent
        assert parent is not None
        if not self._waiting or self._held >= self._limit or parent.closed:
            return
        head = parent.only_slice()
        room = self._limit - self._held
        taken: list[HandedOn] = []
        # One key at least waits for each slice, so no more slices than that: thousands of small ones may be here.
        for outcomes in list(islice(self._waiting, room)) if head is None else [head]:
            waiting = self._waiting.get(outcomes, [])  # type: ignore[arg-type]  # the head is a slice, or is not here
            left = room - len(taken)
            taken += waiting[:left]
            del waiting[:left]
            if not waiting:
                self._waiting.pop(outcomes, None)  # type: ignore[arg-type]  # likewise
        by_key: dict[Any, list[HandedOn]] = {}
        for handed in taken:
            by_key.setdefault(handed.lookup.key, []).append(handed)
        if by_key:
            self._held += len(by_key)
            self.run.admit(Outcomes(list(by_key), len(by_key), list(by_key.values()), counts=[1] * len(by_key)))

    def close(self) -> None:
        """Forget what waits, and end the run."""
        self._waiting.clear()
        self.run.close()

    def _take(self, parts: list[Part] | BaseException) -> None:
        """Hand what the run has found back to the run whose fallback this is."""
        parent = self.parent
        assert parent is not None
        if isinstance(parts, BaseException):
            parent.fail(parts)
            return
        for part in parts:
            assert part.indices is not None
            outcomes = part.outcomes
            self._held -= len(part.indices)
            self.run.taken_bytes += part.bytes
            each = part.bytes // max(1, len(part.indices))
            for index in part.indices:
                status, value, text = outcomes.statuses[index], outcomes.values[index], outcomes.errors.get(index)
                for handed in outcomes.tag[index]:
                    parent.fell_back(handed, self, status, value, text, each)
        parent.flush()
        self.flush()


def both(handed: HandedOn, stage: Stage, text: str | None) -> str | None:
    """Return what is said of a lookup when *stage* had no answer either: its *text*, None for a miss."""
    name = stage.name
    if text is None:
        return handed.text and f"{handed.text}; {name} has nothing for the key"
    before = handed.text or "the source does not hold the key"
    return f"{text} (in {name}, after: {before})"
