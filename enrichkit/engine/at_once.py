"""
The short ways from a call's answers to outcomes, which most calls go: none of its keys needs a look of its own.

Each says whether it did it; if not, it has done nothing, and `conclude.py` goes the long way, to the same outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

from ..connector import Answers, Failure
from .cache import ABSENT, SMALL, TEXT_BYTES, size_of
from .retry import Budget

if TYPE_CHECKING:
    from .calls import InFlight

__all__ = ["answered_in_columns", "answered_one", "answered_together", "bytes_of", "earn"]

ABSENT_EACH = repeat(ABSENT)
MARKED = frozenset((Failure, type(ABSENT)))
_NOT_PLAIN = MARKED | {list, tuple}
_TEXT = frozenset((bytes, str, type(None), type(ABSENT)))


def answered_one(call: InFlight, answers: Any) -> bool:
    """Settle the only key of *call*: the fastest path. False: nothing done, since there is more to it than a value."""
    run = call.run
    if type(answers) is not dict or len(answers) != 1 or len(call.lookups) != 1:
        return False
    [lookup] = call.lookups.values()
    raw = answers.get(lookup.key, ABSENT)
    if type(raw) in _NOT_PLAIN or not run.settle_one(lookup, raw, call.started):
        return False
    call.running = False
    call.record.clear()
    call.lookups.clear()
    earn(call)
    return True


def answered_together(call: InFlight, answers: Any) -> bool:
    """Settle all keys of *call* at once: the way of bulk. False: nothing done, as one of them needs more than that."""
    run = call.run
    if run.closed or type(answers) is not dict:
        return False
    in_order = [*answers] == [*call.keys]  # as most connectors give them, which saves a look at each key
    raws = list(answers.values()) if in_order else list(map(answers.get, call.keys, ABSENT_EACH))
    kinds = set(map(type, raws))
    missed: list[int] = []
    if not kinds.isdisjoint(MARKED):
        if Failure in kinds or not run.misses_alike:
            return False
        missed = [place for place, raw in enumerate(raws) if raw is ABSENT]
        for place in missed:
            raws[place] = None
    if len(answers) + len(missed) != len(raws):
        return False  # an answer to what was not asked for
    values, bad = run.decode(raws)
    if bad:
        return False
    _settle_together(call, values, missed, bytes_of(raws, kinds))
    return True


def answered_in_columns(call: InFlight, answers: Answers) -> bool:
    """Do as `answered_together`, but without an object for each value. False: nothing done."""
    run = call.run
    if run.closed or run.columns is None:
        return False
    if any(bundle.more and not bundle.more.keys().isdisjoint(bundle.keys) for bundle in call.bundles):
        return False
    if len(answers.found) < len(call.keys) and not run.misses_null:
        return False
    try:
        column, missed = run.columns(answers, call.keys)
    except Exception:  # noqa: BLE001  # whatever it stumbles over, a look at each key explains
        return False
    _settle_together(call, column, missed, column.nbytes)
    return True


def _settle_together(call: InFlight, values: Any, missed: Sequence[int], size: int) -> None:
    call.run.settle_together(call, values, missed, size)
    call.running = False
    call.record.clear()
    call.bundles = ()  # or call and bundles would hold each other until the garbage collector comes
    if not missed:
        earn(call)
    call.run.flush()


def earn(call: InFlight) -> None:
    """A clean answer in time gives back some of the budget of retries."""
    engine = call.run.engine
    if engine is not None and not call.late and engine.budget.tokens < Budget.SIZE:
        engine.budget.earn()


def bytes_of(raws: list[Any], kinds: set[type]) -> int:
    """Return about how many bytes the answers *raws* take, which are of the types *kinds*."""
    if kinds <= _TEXT:
        return sum(map(len, filter(None, raws))) + TEXT_BYTES * len(raws)
    return 64 * len(raws) if kinds <= SMALL else sum(map(size_of, raws))
