"""What a run is made of: the lookup of one key, and the part of a slice that leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..outcome import Outcomes
    from .calls import InFlight

__all__ = ["Lookup", "Part"]


class Lookup:
    """
    One distinct key from admission to its outcome.

    Attributes:
        started: Loop time of its first slot; None before.
        attempts: Calls made with it.
        failures: Transient failures so far.
        routes: Ways in which an answer may still come: calls in flight, waits, a place in the pending queue.
        call: The last call that holds it.
        attached: It joined a call that was already draining, so that call's failure is not its own.
        more: Further slices that wait for it, with their index of the key.
    """

    __slots__ = (
        "attached",
        "attempts",
        "call",
        "error",
        "failures",
        "index",
        "key",
        "more",
        "outcomes",
        "routes",
        "settled",
        "started",
    )

    def __init__(self, key: Any, outcomes: Outcomes, index: int) -> None:
        self.key = key
        self.outcomes = outcomes
        self.index = index
        self.more: list[tuple[Outcomes, int]] | None = None
        self.started: float | None = None
        self.attempts = 0
        self.failures = 0
        self.routes = 1
        self.settled = False
        self.attached = False
        self.error: BaseException | None = None
        self.call: InFlight | None = None


class Part:
    """
    What leaves a run: a whole slice, or in unordered mode the rows of some of its keys.

    Attributes:
        outcomes: The slice.
        indices: The keys whose rows leave; None: all rows; empty: the rows with a null key.
        rows: How many rows leave.
        bytes: About how many bytes of values leave.
    """

    __slots__ = ("bytes", "indices", "outcomes", "rows")

    def __init__(self, outcomes: Outcomes, indices: list[int] | None, rows: int, size: int) -> None:
        self.outcomes = outcomes
        self.indices = indices
        self.rows = rows
        self.bytes = size
