"""
The end of a call, and what becomes of each key of the call.

If no key needs to be treated separately, all keys are settled together (`fast_paths.py`). Otherwise each key is handled
separately: the key has a value, is a miss, is asked for again (`retries.py`), or has failed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import (
    ConnectorError,
    EnrichkitError,
    FatalError,
    PermanentError,
    TransientError,
    UnavailableError,
    reworded,
)
from ..functions import raised
from ..interface import Absent, Answers, Failure
from ..outcome import ERROR, MISSING, OK, REJECTED
from . import settlement
from .answers import breach, in_rows
from .cache import ABSENT, MISS
from .deadlines import prune
from .fast_paths import ABSENT_EACH, MARKED, answered_in_columns, answered_together, bytes_of, earn
from .limits import RetryBudget
from .retries import ask_afresh, ask_again, asked_elsewhere, failed, failed_for_now, refused
from .returned import put_back, wait_for_node

if TYPE_CHECKING:
    from .records import InFlight, Lookup
    from .run import Run

__all__ = ["ANSWERED", "AWAY", "FAULTY", "TROUBLED", "Ending", "conclude", "with_said"]

_LISTS = frozenset((list, tuple))  # types of a list of matches; an empty list is a miss


class Ending(enum.Enum):
    """
    What the result of a call tells about the state of its source.

    Attributes:
        ANSWERED: The source answered; some keys may still have failed.
        TROUBLED: The call ended with transient errors only.
        AWAY: The source is away, and the keys of the call wait for it.
        FAULTY: The call as a whole failed with an error that is not transient.
    """

    ANSWERED = enum.auto()
    TROUBLED = enum.auto()
    AWAY = enum.auto()
    FAULTY = enum.auto()


# Globals, because each call uses them: looking a member up in its class takes three times as long.
ANSWERED, TROUBLED, AWAY, FAULTY = Ending


def conclude(run: Run, call: InFlight, answers: Any, error: BaseException | None) -> Ending:
    """Settle, queue again, or fail the keys of *call*, which ended with *answers* or with *error*."""
    call.running = False
    if isinstance(answers, Answers):
        if call.bundles and answered_in_columns(run, call, answers):
            return ANSWERED
        answers, error = in_rows(run.source, answers)
    if run.first_call.many and isinstance(answers, Mapping):
        # An empty list of matches means the same as an absent key: a miss.
        answers = {key: answer for key, answer in answers.items() if type(answer) not in _LISTS or answer}
    if call.bundles:
        if error is None and answered_together(run, call, answers):
            return ANSWERED
        call.separate()
    run.stop_draining(call)
    if run.shows_costs:
        call.pay()
    if error is None and not (type(answers) is dict and answers.keys() <= call.lookups.keys()):
        error = breach(run.source, call.lookups, answers)
    ending = _conclude_each(run, call, answers, error)
    prune(call.record)
    call.release()
    run.flush()
    return ending


def _conclude_each(run: Run, call: InFlight, answers: Any, error: BaseException | None) -> Ending:
    """Settle, queue again, or fail each key of *call* separately."""
    if error is None:
        trouble = _trouble(answers, len(call.lookups))
    else:
        trouble = error if isinstance(error, TransientError) else None
    gate, others, now = run.engine.gate, len(run.engine.calls), run.engine.now()
    if trouble is not None and not run.closed and gate.unavailable(call, trouble, others, now):
        for failure in answers.values() if error is None else ():
            gate.heed(call, failure.error, others, now)
        put_back(run, call, trouble)
        return AWAY
    if isinstance(error, UnavailableError) and error.node is not None:
        answers, error = dict.fromkeys(call.lookups, Failure(error)), None  # each key waits until the node is back
    if error is None:
        if not run.closed or run.cache is not None:
            _answered(run, call, answers)
    elif not run.closed:
        for lookup in call.held():
            lookup.call_ended()
        failed(run, call, error)
    if trouble is not None:
        return TROUBLED
    return ANSWERED if error is None else FAULTY


def _trouble(answers: Mapping[Any, Any], keys: int) -> TransientError | None:
    """
    Return one of the errors in *answers* if all keys (their number is *keys*) failed with a transient error, else None.
    """
    found: TransientError | None = None
    if len(answers) < keys:
        return None  # a key without an answer is a miss, which shows that the source works
    for answer in answers.values():
        if not (isinstance(answer, Failure) and isinstance(answer.error, TransientError)):
            return None
        if found is None or not isinstance(answer.error, UnavailableError):
            found = answer.error
    return found


def _answered(run: Run, call: InFlight, answers: Mapping[Any, Any]) -> None:
    """Settle the keys of *call*, or queue them again, according to *answers*, which maps keys to their answers."""
    lookups = list(call.held())
    raws = list(map(answers.get, call.lookups, ABSENT_EACH))
    plain = set(map(type, raws)).isdisjoint(MARKED)
    if not plain:
        lookups, raws = _split(run, call, lookups, raws)
    if lookups:
        _settle_values(run, call, lookups, raws)
    if plain or not any(isinstance(answer, Failure) for answer in answers.values()):
        earn(run, call)


def _settle_values(run: Run, call: InFlight, lookups: Sequence[Lookup], raws: Sequence[Any]) -> None:
    """
    Decode *raws*, the answers to *lookups*, and settle each lookup; it has failed if its answer cannot be decoded.
    """
    values, bad = run.decode(raws)
    good = [index for index in range(len(lookups)) if index not in bad]
    for index, decode_error in bad.items():
        if not run.closed:
            settlement.settle(run, lookups[index], ERROR, error=decode_error)
    if run.remembers and good:
        keys = [lookups[index].key for index in good]
        run.remember(keys, [values[index] for index in good], call.started, late=call.late)
    sizes = [raws[index] for index in good]
    each = bytes_of(sizes, set(map(type, sizes))) // max(1, len(good))
    for index in good:
        if not run.closed:
            settlement.settle(run, lookups[index], OK, values[index], size=each)


def _split(run: Run, call: InFlight, lookups: list[Lookup], raws: list[Any]) -> tuple[list[Lookup], list[Any]]:
    """Settle or queue again the lookups that are misses or failed; return the other lookups, and their answers."""
    found: list[Lookup] = []
    answers: list[Any] = []
    missed: list[Lookup] = []
    failures: list[tuple[Lookup, Failure]] = []
    for lookup, raw in zip(lookups, raws, strict=True):
        lookup.call_ended()
        if raw is ABSENT or isinstance(raw, Absent):
            missed.append(lookup)
        elif isinstance(raw, Failure):
            failures.append((lookup, raw))
        else:
            found.append(lookup)
            answers.append(raw)
    transient = [(lookup, failure.error) for lookup, failure in failures if isinstance(failure.error, TransientError)]
    _settle_failures(run, failures)
    _settle_misses(run, call, missed)
    _ask_failures_again(run, call, transient)
    return found, answers


def with_said(run: Run, error: BaseException | None) -> BaseException | None:
    """Return *error*. If messages may show keys (`show_keys`), append what the source said, which may hold keys."""
    if run.options.show_keys and isinstance(error, ConnectorError) and error.said:
        return reworded(error, f"{str(error).rstrip('.')} (the source said: {error.said})")
    return error


def _settle_failures(run: Run, failures: Iterable[tuple[Lookup, Failure]]) -> None:
    """Settle the keys whose *failures* are final; a fatal failure fails the task."""
    for lookup, failure in failures:
        if isinstance(failure.error, FatalError):
            run.fail(failure.error)
        elif not isinstance(failure.error, TransientError) and not run.closed:
            error = with_said(run, _without_text(run, failure.error))
            settlement.settle(run, lookup, REJECTED if failure.rejected else ERROR, error=error)


def _without_text(run: Run, error: BaseException) -> BaseException:
    """
    Return the *error* of a `Failure`, or a `PermanentError` instead if *error* is no `EnrichkitError`.

    The text of an error that is not enrichkit's may hold a secret, so it is shown only if messages may show keys.
    """
    if isinstance(error, EnrichkitError):
        return error
    return PermanentError(f"the connector returned {raised(error, show_text=run.options.show_keys)}")


def _ask_failures_again(run: Run, call: InFlight, failures: Iterable[tuple[Lookup, TransientError]]) -> None:
    """Queue the keys of the transient *failures* again if another call may be made; settle the other keys."""
    attached: list[Lookup] = []
    lacking: list[tuple[Lookup, UnavailableError]] = []
    refusals: dict[float | None, list[tuple[Lookup, UnavailableError]]] = {}
    shaky: list[tuple[Lookup, TransientError]] = []
    for lookup, error in failures:
        run.engine.gate.heed(call, error, len(run.engine.calls), run.engine.now())
        if lookup.attached:
            attached.append(lookup)
            continue
        if isinstance(error, UnavailableError) and error.node is not None:
            lacking.append((lookup, error))
        elif isinstance(error, UnavailableError) and not call.overdue:
            refusals.setdefault(error.retry_after, []).append((lookup, error))
        else:
            shaky.append((lookup, error))
    if attached:
        ask_afresh(run, attached)
    if lacking:
        wait_for_node(run, lacking)
    for pairs in refusals.values():
        shaky += refused(run, pairs)
    failed_for_now(run, call, shaky)


def _settle_misses(run: Run, call: InFlight, missed: list[Lookup]) -> None:
    """Settle the *missed* keys of *call*, or queue them again if `Retry.on_missing` is set."""
    if missed and run.options.retry is not None and run.options.retry.on_missing:
        missed = _final_misses(run, call, missed)
    if missed and run.remembers:
        keys = [lookup.key for lookup in missed]
        run.remember(keys, [MISS] * len(missed), call.started, late=call.late)
    for lookup in missed:
        if not run.closed:
            settlement.settle(run, lookup, MISSING)


def _final_misses(run: Run, call: InFlight, missed: list[Lookup]) -> list[Lookup]:
    """Queue again the lookups of *missed* that may be asked for once more; return the lookups whose miss is final."""
    waiting = [lookup for lookup in missed if not lookup.settled]
    for lookup in waiting:
        lookup.failed(lookup.error, counted=not call.overdue)
    waiting = [lookup for lookup in waiting if not asked_elsewhere(call, lookup)]
    lost = ask_again(run, waiting, None, RetryBudget.RETRY, only_delayed=True)
    return [lookup for lookup in missed if lookup.settled] + [lookup for lookup in lost if lookup.routes == 0]
