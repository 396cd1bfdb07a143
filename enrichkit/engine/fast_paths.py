"""
The fast paths from a call's answers to outcomes. Most calls take a fast path, because none of their keys needs to be
inspected separately.

Each `answered_...` function returns whether it has settled the keys. If the result is False, nothing has changed, and
`results.py` inspects each key. Both ways lead to the same outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ..interface import Absent, Answers, Failure
from .cache import ABSENT
from .limits import RetryBudget
from .settlement import settle_bundles, settle_lookup
from .sizes import SMALL, TEXT_BYTES, size_of

if TYPE_CHECKING:
    from .records import InFlight
    from .run import Run

__all__ = ["answered_in_columns", "answered_one", "answered_together", "bytes_of", "earn"]

ABSENT_EACH = repeat(ABSENT)
MARKED = frozenset((Failure, Absent, type(ABSENT)))
_NOT_PLAIN = MARKED | {list, tuple}
_TEXT = frozenset((bytes, str, type(None), type(ABSENT)))


def answered_one(run: Run, call: InFlight, answers: Any) -> bool:
    """Settle the only key of *call* on the fastest path; return False and do nothing if its answer needs inspection."""
    lookup = call.alone
    if lookup is None or type(answers) is not dict or len(answers) != 1:
        return False
    raw = answers.get(lookup.key, ABSENT)
    kind = type(raw)
    if kind in _NOT_PLAIN:
        return False
    size = 64 if kind in SMALL else size_of(raw)
    if not settle_lookup(run, lookup, raw, call.started, size):
        return False
    call.running = False
    call.record.clear()
    call.alone = None  # otherwise the call and the lookup keep each other alive until the garbage collector runs
    # If the budget is full, `earn` has no effect; skipping it saves 1 % of the time of a lookup.
    if run.engine.retry_budget.tokens < RetryBudget.SIZE:
        earn(run, call)
    return True


def answered_together(run: Run, call: InFlight, answers: Any) -> bool:
    """Settle all keys of *call* at once, as in most bulk calls; return False and do nothing if one needs inspection."""
    if run.closed or type(answers) is not dict:
        return False
    in_order = [*answers] == [*call.keys]  # most connectors keep the order of keys, which saves a look at each key
    raws = list(answers.values()) if in_order else list(map(answers.get, call.keys, ABSENT_EACH))
    kinds = set(map(type, raws))
    missed: list[int] = []
    if not kinds.isdisjoint(MARKED):
        if Failure in kinds or Absent in kinds or not run.misses_alike:
            return False
        missed = [place for place, raw in enumerate(raws) if raw is ABSENT]
        for place in missed:
            raws[place] = None
    if len(answers) + len(missed) != len(raws):
        return False  # there is an answer for a key that was not asked for
    values, bad = run.decode(raws)
    if bad:
        return False
    _settle_together(run, call, values, missed, bytes_of(raws, kinds))
    return True


def answered_in_columns(run: Run, call: InFlight, answers: Answers) -> bool:
    """Settle all keys of *call* without a Python object per value; if objects are needed, do nothing, return False."""
    if run.closed or run.columns is None or run.remembers:
        return False
    if any(bundle.more and not bundle.more.keys().isdisjoint(bundle.keys) for bundle in call.bundles):
        return False
    if len(answers.found) < len(call.keys) and not run.misses_null:
        return False
    try:
        column, missed = run.columns(answers, call.keys)
    except Exception:  # noqa: BLE001  # if the reader fails, the inspection of each key reports the error
        return False
    _settle_together(run, call, column, missed, column.nbytes)
    return True


def _settle_together(run: Run, call: InFlight, values: Any, missed: Sequence[int], size: int) -> None:
    settle_bundles(run, call, values, missed, size)
    call.running = False
    call.record.clear()
    call.release()
    earn(run, call)
    run.flush()


def earn(run: Run, call: InFlight) -> None:
    """Give tokens back to the retry budget, because *call* was answered in time and without a failure."""
    budget = run.engine.retry_budget
    if not call.late and budget.tokens < RetryBudget.SIZE:
        retry = run.options.retry
        # A call in a search for bad keys earns only 1 token, because it has cost none. If `retry.on_missing` is set, a
        # retry earns only 1 token, too, because its answer may be one more miss, which is no success.
        retried = call.attempt > 1 and call.search is None and not (retry and retry.on_missing)
        budget.earn(RetryBudget.RETRY if retried else 1)


def bytes_of(raws: list[Any], kinds: set[type]) -> int:
    """Return the approximate number of bytes of the answers *raws*, which have the types *kinds*."""
    if kinds <= _TEXT:
        return sum(map(len, filter(None, raws))) + TEXT_BYTES * len(raws)
    return 64 * len(raws) if kinds <= SMALL else sum(map(size_of, raws))
