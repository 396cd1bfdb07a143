"""
A call has ended: what that means for each of its keys.

Where all keys fare alike, they are settled at once (`at_once.py`). Else each is looked at for itself: it has a value or
is a miss, it is asked for again (`again.py`), or it has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..connector import Answers, Failure
from ..errors import ConnectorError, ContractError, FatalError, PermanentError, TransientError
from ..outcome import ERROR, MISSING, REJECTED
from .again import ask_afresh, ask_again, asked_elsewhere, failed
from .at_once import ABSENT_EACH, MARKED, answered_in_columns, answered_together, bytes_of, earn
from .cache import ABSENT, MISS
from .deadlines import prune
from .retry import Budget

if TYPE_CHECKING:
    from .calls import InFlight
    from .lookup import Lookup

__all__ = ["conclude"]

_LISTS = frozenset((list, tuple))  # of matches; an empty one is a miss


def conclude(call: InFlight, answers: Any, error: BaseException | None) -> bool:
    """
    Settle, queue again, or fail the keys of *call*, which ended with *answers* or with *error*.

    Returns:
        Whether the source did its work; False when all that came back was transient trouble.
    """
    run = call.run
    call.running = False
    if isinstance(answers, Answers):
        if call.bundles and answered_in_columns(call, answers):
            return True
        answers, error = _in_rows(run.source, answers)
    if run.first_call.many and isinstance(answers, Mapping):
        # A list without a match says what an absent key says.
        answers = {key: answer for key, answer in answers.items() if type(answer) not in _LISTS or answer}
    if call.bundles:
        if error is None and answered_together(call, answers):
            return True
        call.separate()
    for key in [key for key, draining in run.draining.items() if draining is call] if run.draining else ():
        del run.draining[key]
    if error is None and not (type(answers) is dict and answers.keys() <= call.lookups.keys()):
        error = _breach(run.source, call.lookups, answers)
    did_its_work = not isinstance(error, TransientError)
    if error is None:
        did_its_work = not _only_trouble(answers)
        if not run.closed or run.cache is not None:
            _answered(call, answers)
    elif not run.closed:
        for lookup in call.lookups.values():
            lookup.routes -= 1
        failed(call, error)
    prune(call.record)
    call.lookups.clear()  # or call and lookups would hold each other until the garbage collector comes
    run.flush()
    return did_its_work


def _breach(source: str, asked: dict[Any, Any], answers: Any) -> ContractError | None:
    """Return how *answers* breaks the contract: anything but a mapping of keys that were asked is never a guess."""
    if not isinstance(answers, Mapping):
        return ContractError(
            f"{source}: fetch_many returned a {type(answers).__name__}; it must return a mapping of the keys it was "
            "asked for to their values. Return {key: value}, and leave a key out that the source does not hold."
        )
    if not answers.keys() <= asked.keys():
        extra = sum(key not in asked for key in answers)
        return ContractError(
            f"{source}: fetch_many returned {extra:,} key(s) that it was not asked for; it must answer under the "
            f"very keys it was given ({len(asked):,} in this call). Map the source's answers back to those keys."
        )
    return None


def _in_rows(source: str, answers: Answers) -> tuple[Mapping[Any, Any], ConnectorError | None]:
    """Return *answers* as a dict, or what is wrong with them."""
    try:
        rows = answers.rows()
    except Exception as error:  # noqa: BLE001  # of Arrow: text that is no UTF-8, the year 10000
        if _can_be_hashed(answers.found):
            name = type(error).__name__
            return {}, PermanentError(f"the connector returned a column with a value that is none: {name}")
        return {}, ContractError(
            f"{source}: fetch_many returned Answers whose keys cannot be hashed; it must answer under the very keys it "
            "was given. Map the source's answers back to those keys."
        )
    if len(rows) < len(answers.found):
        return {}, ContractError(
            f"{source}: fetch_many returned {len(answers.found) - len(rows):,} key(s) twice; each key has one answer. "
            "Return a list of its values where call.many is set, and a Failure for the key else."
        )
    return rows, None


def _can_be_hashed(keys: Iterable[Any]) -> bool:
    try:
        set(keys)
    except TypeError:
        return False
    return True


def _only_trouble(answers: Mapping[Any, Any]) -> bool:
    """Whether *answers* holds nothing but transient failures; the first other answer decides."""
    return bool(answers) and all(
        isinstance(answer, Failure) and isinstance(answer.error, TransientError) for answer in answers.values()
    )


def _answered(call: InFlight, answers: Mapping[Any, Any]) -> None:
    run = call.run
    lookups = list(call.lookups.values())
    raws = list(map(answers.get, call.lookups, ABSENT_EACH))
    kinds = set(map(type, raws))
    plain = kinds.isdisjoint(MARKED)
    if not plain:
        lookups, raws = _split(call, lookups, raws)
    if lookups:
        values, bad = run.decode(raws)
        if bad:
            for index, decode_error in bad.items():
                if not run.closed:
                    run.settle(lookups[index], ERROR, error=decode_error)
            good = [index for index in range(len(lookups)) if index not in bad]
            lookups, raws, values = ([column[index] for index in good] for column in (lookups, raws, values))
    if lookups:
        if run.cache is not None and run.engine is not None:
            run.cache.put_many([lookup.key for lookup in lookups], values, run.engine.now())
        if not run.closed:
            run.settle_ok(lookups, values, call.started, bytes_of(raws, set(map(type, raws))))
    if plain:
        earn(call)


def _split(call: InFlight, lookups: list[Lookup], raws: list[Any]) -> tuple[list[Lookup], list[Any]]:
    """Settle or queue again the misses and failures of an answered call; return lookups and answers of the others."""
    run = call.run
    found: list[Lookup] = []
    answers: list[Any] = []
    missed: list[Lookup] = []
    shaky: dict[float | None, list[Lookup]] = {}
    attached: list[Lookup] = []
    for lookup, raw in zip(lookups, raws, strict=True):
        lookup.routes -= 1
        if raw is ABSENT:
            missed.append(lookup)
        elif not isinstance(raw, Failure):
            found.append(lookup)
            answers.append(raw)
        elif isinstance(raw.error, TransientError):
            if raw.error.retry_after is not None and run.engine is not None:
                run.engine.pause(raw.error.retry_after)
            waiting = shaky.setdefault(raw.error.retry_after, [])
            if lookup.attached:
                attached.append(lookup)
                continue
            lookup.error = raw.error
            lookup.failures += not (lookup.settled or call.overdue)
            if not asked_elsewhere(call, lookup):
                waiting.append(lookup)
        elif isinstance(raw.error, FatalError):
            run.fail(raw.error)
        elif not run.closed:
            run.settle(lookup, REJECTED if raw.rejected else ERROR, error=raw.error)
    if missed and run.options.retry is not None and run.options.retry.on_missing:
        missed = _final_misses(call, missed)
    if missed and run.cache is not None and run.engine is not None:
        run.cache.put_many([lookup.key for lookup in missed], [MISS] * len(missed), run.engine.now())
    for lookup in missed:
        if not run.closed:
            run.settle(lookup, MISSING)
    if attached:
        ask_afresh(run, attached)
    for retry_after, waiting in shaky.items():
        for lookup in ask_again(run, waiting, retry_after, Budget.RETRY):
            if not run.closed and not lookup.settled and lookup.routes == 0:
                run.settle(lookup, ERROR, error=lookup.error)
    return found, answers


def _final_misses(call: InFlight, missed: list[Lookup]) -> list[Lookup]:
    """Queue those of *missed* again that may be asked once more; return those whose miss is the last word."""
    waiting = [lookup for lookup in missed if not lookup.settled]
    for lookup in waiting:
        lookup.failures += not call.overdue
    waiting = [lookup for lookup in waiting if not asked_elsewhere(call, lookup)]
    lost = ask_again(call.run, waiting, None, Budget.RETRY)
    return [lookup for lookup in missed if lookup.settled] + [lookup for lookup in lost if lookup.routes == 0]
