"""
Fallbacks that are asked for a value, unlike a fixed default value: another source, or a function of the key.

A fallback has its own run on the engine of its source, so grouping, limits, timeouts, retries and late calls work for
the fallback's lookups as for all others. At each flush, in which the main run returns finished rows to Spark, it also
passes lookups without an answer on to their fallback. The rows wait until the fallback has an outcome. Meanwhile the
lookup is not in the main run's table of keys: a later row with the same key makes a new lookup.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from ..outcome import Outcomes
from . import admission, settlement

if TYPE_CHECKING:
    from collections.abc import Callable

    from .policies import FallbackRequest
    from .records import Part
    from .run import Run

__all__ = ["Fallback"]

AHEAD = 2
"""The run of a fallback gets at most this many times the keys that fit into its calls; other keys wait outside it."""


class Fallback:
    """
    One fallback of one run. Lives on the loop thread.

    Args:
        name: Name of the fallback in messages.
        options: The options among `on_timeout`, `on_error` and `on_missing` that name the fallback.
        room: Most keys in calls at a time: capacity x batch size of the fallback's engine.
        make_run: Function that makes the unordered run of the fallback. Its argument is the function to which the run
            hands finished parts.
    """

    def __init__(
        self,
        name: str,
        options: tuple[str, ...],
        room: int,
        make_run: Callable[[Callable[[list[Part] | BaseException], None]], Run],
    ) -> None:
        self.name = name
        self.options = options
        self.run = make_run(self._take)
        self.parent: Run | None = None  # set by the run whose fallback this is
        self._waiting: dict[Outcomes, list[FallbackRequest]] = {}
        self._held = 0  # number of keys in the fallback's run that have no outcome yet
        self._limit = AHEAD * room

    def __repr__(self) -> str:
        return f"<Fallback {self.name}: {self._held} asked, {sum(map(len, self._waiting.values()))} waiting>"

    def put(self, request: FallbackRequest) -> None:
        """Take *request* over; the next flush asks for its key."""
        request.asked.append(self)
        self._waiting.setdefault(request.lookup.outcomes, []).append(request)

    def flush(self) -> None:
        """
        Pass waiting keys to the run of the fallback, as far as it has room.

        While the values in memory exceed `window_bytes`, only keys of the oldest slice are passed on.
        """
        parent = self.parent
        assert parent is not None
        if not self._waiting or self._held >= self._limit or parent.closed:
            return
        head = parent.only_slice()
        room = self._limit - self._held
        taken: list[FallbackRequest] = []
        # Look at the first `room` slices only, because there may be thousands of small slices. These are enough,
        # because each slice in `_waiting` has at least one waiting key.
        for outcomes in list(islice(self._waiting, room)) if head is None else [head]:
            waiting = self._waiting.get(outcomes, [])  # type: ignore[arg-type]  # a head that is no slice has no entry
            left = room - len(taken)
            taken += waiting[:left]
            del waiting[:left]
            if not waiting:
                self._waiting.pop(outcomes, None)  # type: ignore[arg-type]  # as for `get` above
        by_key: dict[Any, list[FallbackRequest]] = {}
        for request in taken:
            by_key.setdefault(request.lookup.key, []).append(request)
        if by_key:
            self._held += len(by_key)
            asked = Outcomes(list(by_key), len(by_key), list(by_key.values()), counts=[1] * len(by_key))
            admission.admit(self.run, asked)

    def close(self) -> None:
        """Drop the requests that wait, and close the fallback's run."""
        self._waiting.clear()
        self.run.close()

    def _take(self, parts: list[Part] | BaseException) -> None:
        """Settle in the parent run the requests with outcomes in *parts*; if *parts* is an error, fail the parent."""
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
                for request in outcomes.tag[index]:
                    settlement.fallback_settled(parent, request, self, status, value, text, each)
        parent.flush()
        self.flush()
