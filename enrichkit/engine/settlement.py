"""
Outcomes: how a lookup gets its outcome, and how the outcome is written to the slices whose rows wait for it.

`record` writes outcomes to slices, for one key or for many at once; only `settle_lookup` repeats the lines of `record`,
for speed. `settle` handles each key without an answer: the policy decides which value the rows of the key get. The only
exception is made for misses that `settle_bundles` writes together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..outcome import ERROR, MISSING, OK, OVER_BUDGET, REJECTED, TIMEOUT
from .cache import MISS
from .policies import FallbackRequest
from .records import SETTLED
from .sizes import size_of

if TYPE_CHECKING:
    from ..outcome import Outcomes
    from .policies import NamedFallback
    from .records import Bundle, InFlight, Lookup
    from .run import Run

__all__ = ["fallback_settled", "record", "settle", "settle_bundles", "settle_lookup"]

_COUNTER = {
    MISSING: "missing",
    TIMEOUT: "timeouts",
    ERROR: "errors",
    REJECTED: "rejected",
    OVER_BUDGET: "over_budget",
}
_STATUS = {status: bytes([status]) for status in (OK, *_COUNTER)}


def settle(
    run: Run,
    lookup: Lookup,
    status: int,
    value: Any = None,
    *,
    size: int = 0,
    error: BaseException | None = None,
    origin: str = "call",
) -> None:
    """
    Give *lookup* its outcome, or ask its fallback for one. If *lookup* has an outcome already, only add 1 to
    `stats.late`.

    Args:
        run: The run of *lookup*.
        lookup: The lookup that ends.
        status: A status code of `outcome.py`.
        value: The value if *status* is `OK`; otherwise the policy decides which value the rows get.
        size: About how many bytes *value* takes.
        error: The error that ended the lookup, if there is one.
        origin: Where the outcome comes from: `call`, or the origin of a stage.

    If stale values are allowed, an expired value in the cache replaces an error or a timeout.
    """
    if lookup.state is SETTLED:
        run.stats.late += 1
        return
    if lookup.attached and origin == "call":
        origin = "shared"
    lookup.state = SETTLED
    if run.table.get(lookup.key) is lookup:
        del run.table[lookup.key]
    latency, text = 0.0 if lookup.started is None else _latency(run, lookup, lookup.started), None
    if run.serves_stale and status in (ERROR, TIMEOUT):
        for old in run.old_values((lookup.key,)).values():
            run.stats.stale += 1
            status, value, size, origin = OK, old, size_of(old), "stale"
    if status == OK:
        run.stats.ok += 1
    else:
        setattr(run.stats, _COUNTER[status], getattr(run.stats, _COUNTER[status]) + 1)
        if status != MISSING:
            run.stats.failed("TimeoutError" if error is None else type(error).__name__)
        text = run.policies.note_failure(status, error)
        fallback = run.policies.fallback(status)
        if fallback is not None:
            _ask_fallback(run, FallbackRequest(lookup, status, text, origin), fallback)
            return
        failure = run.policies.failure(lookup, status, text, latency)
        if failure is not None:
            run.fail(failure)
        value, instead = run.policies.replacement(status)
        origin = instead or origin
    _record_lookup(run, lookup, status, value, text, size, latency, origin)


def _latency(run: Run, lookup: Lookup, started: float) -> float:
    """Return the seconds that *lookup* has taken since *started*, and add them to the statistics."""
    latency = run.engine.now() - started
    run.stats.latency.add(latency)
    if latency > run.stats.slow_from:
        run.stats.took_long(latency, lookup.key)
    return latency


def settle_lookup(run: Run, lookup: Lookup, raw: Any, started: float, size: int) -> bool:
    """
    Settle *lookup*, alone in a call sent at *started*, with its *raw* answer of about *size* bytes: the fastest path.

    Returns:
        Whether *lookup* is settled. Nothing is done and the result is False if more work is needed: for example, if
        another slice waits for the key, if the user asked for details, or if the value cannot be decoded.
    """
    outcomes = lookup.outcomes
    if (
        lookup.state is SETTLED
        or lookup.more is not None
        or lookup.started != started
        or outcomes.details is not None
        or run.closed
        or run.draining
    ):
        return False  # this is checked before decoding, so that no value is decoded twice
    values, bad = run.decode((raw,))
    if bad:
        return False
    lookup.state = SETTLED
    del run.table[lookup.key]
    if run.remembers:
        if run.only_reuse is not None:
            run.only_reuse.put_one(lookup.key, values[0], size)
        else:
            run.remember((lookup.key,), values, started)
    stats = run.stats
    stats.ok += 1
    latency = run.engine.now() - started
    stats.alone.note(latency)
    if latency > stats.slow_from:
        stats.took_long(latency, lookup.key)
    # The lines of `record` for one key without details, inline: calling `record` takes 12 % of the time of a lookup.
    index = lookup.index
    outcomes.values[index] = values[0]
    outcomes.statuses[index] = OK
    outcomes.bytes += size
    run.settled_bytes += size
    outcomes.unsettled -= 1
    if not outcomes.unsettled or not run.ordered:
        run.touched[outcomes] = [index]
        run.flush()
    return True


def settle_bundles(run: Run, call: InFlight, values: Any, missed: Sequence[int], size: int) -> None:
    """
    Give the keys of *call*, all in bundles, their *values*; the keys with the indices *missed* are misses.

    If *values* is an Arrow column, it already has nulls at these indices, and no other slice waits for one of the keys.
    """
    keys, stats, now = call.keys, run.stats, run.engine.now()
    each = size // len(keys)
    statuses = bytearray(_STATUS[OK]) * len(keys)
    if run.remembers:
        _remember(run, keys, values, missed, call.started)
    value, instead = run.policies.replacement(MISSING) if missed else (None, None)
    for place in missed:
        statuses[place] = MISSING
        if isinstance(values, list):
            values[place] = value
    stats.ok += len(keys) - len(missed)
    stats.missing += len(missed)
    origins = {OK: "call", MISSING: instead or "call"}
    shared = {OK: "shared", MISSING: instead or "shared"}
    start, paid = 0, call.share() if run.shows_costs else None
    for bundle in call.bundles:
        end = start + len(bundle.indices)
        # The latency includes the seconds that tiers took, which may differ from bundle to bundle.
        latency = now - (call.started if bundle.started is None else bundle.started)
        stats.latency.add(latency, len(bundle.keys))
        if latency > stats.slow_from:
            stats.took_long(latency, bundle.keys[0])  # one entry for all keys of the bundle
        if bundle.entered:
            deque(map(run.table.pop, bundle.keys), maxlen=0)  # the fastest way to remove the keys of the bundle
        own, theirs = values[start:end], statuses[start:end]
        record(run, bundle.outcomes, bundle.indices, own, theirs, each, 1, latency, origins, paid=paid)
        # Call `record` once for each slice that waits: one call per key would take as long as all other work.
        for outcomes, (indices, places) in _waiting(bundle, start).items():
            further, codes = [values[place] for place in places], bytes(statuses[place] for place in places)
            record(run, outcomes, indices, further, codes, each, 1, latency, shared)
        start = end


def _waiting(bundle: Bundle, start: int) -> dict[Outcomes, tuple[list[int], list[int]]]:
    """
    Remove and return the further slices that wait for keys of *bundle*, whose first key has index *start* in the call.

    Returns:
        For each further slice, the indices of these keys in the slice, and the indices of the same keys in the call.
    """
    waiting: dict[Outcomes, tuple[list[int], list[int]]] = {}
    if bundle.more:
        for place, key in enumerate(bundle.keys, start):
            for outcomes, index in bundle.more.pop(key, ()):
                indices, places = waiting.setdefault(outcomes, ([], []))
                indices.append(index)
                places.append(place)
    return waiting


def _remember(run: Run, keys: Sequence[Any], values: list[Any], missed: Sequence[int], asked: float) -> None:
    """Remember the *values* of *keys*; the keys with the indices *missed* are misses."""
    answers = values.copy()
    for place in missed:
        answers[place] = MISS
    run.remember(keys, answers, asked)


def fallback_settled(
    run: Run, request: FallbackRequest, fallback: NamedFallback, status: int, value: Any, text: str | None, size: int
) -> None:
    """Give the lookup of *request* the value that *fallback* has found, or the value that the next policy gives."""
    if run.closed:
        return
    lookup, latency = request.lookup, run.engine.now() - (request.lookup.started or 0.0)
    if status == OK:
        request.origin = "fallback"
    else:
        before = request.status
        status = run.policies.next_policy(request, fallback, status, text)
        if before != request.status:
            run.stats.missing -= 1
            run.stats.errors += 1
        further = run.policies.fallback(status)
        if further is not None and further not in request.asked:
            _ask_fallback(run, request, further)
            return
        failure = run.policies.failure(lookup, status, request.text, latency)
        if failure is not None:
            run.fail(failure)
            return
        value, instead = run.policies.replacement(status)
        request.origin = instead or request.origin
    _record_lookup(run, lookup, request.status, value, request.text, size, latency, request.origin)


def _ask_fallback(run: Run, request: FallbackRequest, fallback: NamedFallback) -> None:
    """Hand *request* to *fallback*, which is asked at the next flush of the run."""
    if request.lookup.started is None:
        request.lookup.started = run.engine.now()  # a miss from the cache has no clock: it starts here
    fallback.put(request)
    run.fallback_due = True


def _record_lookup(
    run: Run, lookup: Lookup, status: int, value: Any, text: str | None, size: int, latency: float, origin: str
) -> None:
    """Write the outcome of *lookup* to all slices that wait for it."""
    code, values, attempts = _STATUS[status], [value], lookup.attempts
    origins, paid = {status: origin}, getattr(lookup, "paid", None) if run.shows_costs else None
    record(run, lookup.outcomes, (lookup.index,), values, code, size, attempts, latency, origins, text, paid)
    if lookup.more is not None:
        shared = {status: "shared" if origin == "call" else origin}
        for outcomes, index in lookup.more:
            record(run, outcomes, (index,), values, code, size, attempts, latency, shared, text)
    # Touched even if the slice is not done yet, so that the next flush checks `max_fallback_ratio`.
    run.touched.setdefault(lookup.outcomes, [])


def record(
    run: Run,
    outcomes: Outcomes,
    indices: Sequence[int],
    values: Any,
    statuses: bytes | bytearray,
    size: int,
    attempts: int = 1,
    latency: float = 0.0,
    origins: dict[int, str] | None = None,
    text: str | None = None,
    paid: Mapping[str, float] | None = None,
) -> None:
    """
    Write the outcomes of the keys with *indices* to their slice; if rows are ready, the next flush returns them.

    Args:
        run: The run of the slice.
        outcomes: The slice.
        indices: Indices of the keys in the slice.
        values: A value for each of *indices*, as a list or an Arrow column.
        statuses: A status code for each of *indices*.
        size: About how many bytes each value takes.
        attempts: How often each key was asked for.
        latency: Seconds from the first slot of each key to its outcome.
        origins: The origin for each status code; needed if the slice has details.
        text: The error text that the rows of the keys get; None: there is none.
        paid: The share of each key in the cost of its calls, by unit; None: costs are not shown.
    """
    outcomes.put(indices, values, statuses)
    total = size * len(indices)
    outcomes.bytes += total
    run.settled_bytes += total
    if text is not None:
        for index in indices:
            outcomes.errors[index] = text
    if outcomes.details is not None and origins is not None:
        outcomes.details.put(indices, attempts, latency, [origins[status] for status in statuses], paid)
    if not run.ordered:
        run.touched.setdefault(outcomes, []).extend(indices)
    elif not outcomes.unsettled:
        run.touched[outcomes] = []
