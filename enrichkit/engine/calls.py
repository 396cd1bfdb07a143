"""
One call: the keys it holds, and what its end means for each of them.

A key may be held by more than one call (after `attempt_timeout`), and a call may outlive the lookups it was made for
(after `timeout`): the first answer settles a key, and a key fails only when no other way to an answer is left.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

from ..connector import Answers, Failure, Keys
from ..errors import ConnectorError, ContractError, FatalError, PermanentError, TransientError
from ..outcome import ERROR, MISSING, REJECTED
from .cache import ABSENT, MISS, SMALL, TEXT_BYTES, size_of
from .deadlines import prune
from .lookup import Bundle
from .retry import Budget, backoff

if TYPE_CHECKING:
    from .lookup import Group, Lookup
    from .run import Run

__all__ = ["Bisection", "InFlight", "answered_one", "conclude", "retry_late"]


_ABSENT_EACH = repeat(ABSENT)
_TEXT = frozenset((bytes, str, type(None), type(ABSENT)))
_MARKED = frozenset((Failure, type(ABSENT)))
_LISTS = frozenset((list, tuple))  # of matches; an empty one is a miss
_NOT_PLAIN = _MARKED | _LISTS


class Bisection:
    """How many more calls may be made to find the poisoned keys of one group."""

    __slots__ = ("calls",)

    def __init__(self, keys: int) -> None:
        self.calls = math.ceil(4 * math.log2(keys))


class InFlight:
    """
    One call of `fetch_many` that has not ended.

    Attributes:
        keys: Those that it was made with.
        bundles: They hold the keys, all of them, as long as all is well.
        lookups: Key to the lookup that wants its answer, else; a timed-out one may be replaced by a later one.
        attempt: How often its first key has been asked for, this time included.
        running: Not ended yet.
        late: All its lookups have their outcome, or `attempt_timeout` has passed: nobody has to wait for it.
        overdue: `attempt_timeout` has passed, and its keys were queued again where that is allowed.
        cancelled_at: When the engine cancelled it; None: it did not.
    """

    __slots__ = (
        "attempt",
        "bisection",
        "bundles",
        "cancelled_at",
        "keys",
        "late",
        "lookups",
        "overdue",
        "record",
        "run",
        "running",
        "started",
        "task",
    )

    def __init__(
        self,
        run: Run,
        group: Group,
        bisection: Bisection | None,
        now: float,
        task: asyncio.Task[Any] | None,
    ) -> None:
        self.run = run
        self.bundles: Sequence[Bundle] = ()
        self.lookups: dict[Any, Lookup] = {}
        self.bisection = bisection
        self.started = now
        self.task = task
        self.running = True
        self.late = False
        self.overdue = False
        self.cancelled_at: float | None = None
        self.attempt = 1
        self.keys: Sequence[Any]
        self.record: list[Any] = [*group]
        if isinstance(group[0], Bundle):
            self.bundles = [*self.record]
            for bundle in self.bundles:
                bundle.call = self
            self.keys = _joined(run, [bundle.keys for bundle in self.bundles])
        else:
            again = False
            for lookup in self.record:
                self.lookups[lookup.key] = lookup
                lookup.attempts += 1
                lookup.call = self
                again = again or lookup.started is not None
            self.keys = tuple(self.lookups)
            if again:
                self.attempt = self.record[0].attempts
                self.record = [lookup for lookup in self.record if lookup.started is None]
        run.deadlines.start(self.record, now)

    def separate(self) -> None:
        """Make a lookup of each key: something concerns one of them alone."""
        if not self.bundles:
            return
        bundles, self.bundles = self.bundles, ()
        for bundle in bundles:
            for lookup in bundle.singly():
                self.lookups[lookup.key] = lookup
                lookup.started, lookup.attempts, lookup.call = self.started, 1, self
        self.record[:] = self.lookups.values()

    def wanted(self) -> bool:
        """Whether somebody waits for it."""
        return bool(self.bundles) or not all(lookup.settled for lookup in self.lookups.values())

    def cancel(self, now: float) -> None:
        """Cancel the call, once; its connection is lost with it."""
        if self.cancelled_at is None and self.task is not None:
            self.cancelled_at = now
            self.task.cancel()


def _joined(run: Run, parts: list[Sequence[Any]]) -> Sequence[Any]:
    """Return the keys of *parts* as the connector of *run* gets them."""
    if run.engine is not None and run.engine.connector.key_columns:
        columns = [part for part in parts if isinstance(part, Keys)]
        keys = columns[0].followed_by(columns[1:]) if len(columns) == len(parts) else None
        if keys is not None:
            return keys
    return tuple(chain.from_iterable(parts))


def conclude(call: InFlight, answers: Any, error: BaseException | None) -> bool:
    """
    Settle, queue again, or fail the keys of *call*, which ended with *answers* or with *error*.

    Returns:
        Whether the source did its work; False when all that came back was transient trouble.
    """
    run = call.run
    call.running = False
    if isinstance(answers, Answers):
        if call.bundles and _answered_in_columns(call, answers):
            return True
        answers, error = _in_rows(run.source, answers)
    if run.first_call.many and isinstance(answers, Mapping):
        # A list without a match says what an absent key says.
        answers = {key: answer for key, answer in answers.items() if answer or type(answer) not in _LISTS}
    if call.bundles:
        if error is None and _answered_together(call, answers):
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
        _failed(call, error)
    prune(call.record)
    call.lookups.clear()  # or call and lookups would hold each other until the garbage collector comes
    run.flush()
    return did_its_work


def retry_late(call: InFlight) -> None:
    """Queue the keys of *call* again, whose `attempt_timeout` has passed while it goes on; not those that joined it."""
    call.separate()
    call.late = call.overdue = True
    waiting = [lookup for lookup in call.lookups.values() if not (lookup.settled or lookup.attached)]
    for lookup in waiting:
        lookup.failures += 1
    _again(call.run, waiting, None, Budget.RETRY_AFTER_TIMEOUT)


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


def _in_rows(source: str, answers: Answers) -> tuple[Mapping[Any, Any], ContractError | None]:
    """Return *answers* as a dict, or how they break the contract."""
    try:
        rows = answers.rows()
    except TypeError:
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


def _only_trouble(answers: Mapping[Any, Any]) -> bool:
    """Whether *answers* holds nothing but transient failures; the first other answer decides."""
    return bool(answers) and all(
        isinstance(answer, Failure) and isinstance(answer.error, TransientError) for answer in answers.values()
    )


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
    _earn(call)
    return True


def _answered_together(call: InFlight, answers: Any) -> bool:
    """Settle all keys of *call* at once: the way of bulk. False: nothing done, as one of them needs more than that."""
    run = call.run
    if run.closed or type(answers) is not dict:
        return False
    in_order = [*answers] == [*call.keys]  # as most connectors give them, which saves a look at each key
    raws = list(answers.values()) if in_order else list(map(answers.get, call.keys, _ABSENT_EACH))
    kinds = set(map(type, raws))
    missed: list[int] = []
    if not kinds.isdisjoint(_MARKED):
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
    _settle_together(call, values, missed, _bytes_of(raws, kinds))
    return True


def _answered_in_columns(call: InFlight, answers: Answers) -> bool:
    """Do as `_answered_together`, but without an object for each value. False: nothing done."""
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
        _earn(call)
    call.run.flush()


def _answered(call: InFlight, answers: Mapping[Any, Any]) -> None:
    run = call.run
    lookups = list(call.lookups.values())
    raws = list(map(answers.get, call.lookups, _ABSENT_EACH))
    kinds = set(map(type, raws))
    plain = kinds.isdisjoint(_MARKED)
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
            run.settle_ok(lookups, values, call.started, _bytes_of(raws, set(map(type, raws))))
    if plain:
        _earn(call)


def _earn(call: InFlight) -> None:
    """A clean answer in time gives back some of the budget of retries."""
    engine = call.run.engine
    if engine is not None and not call.late and engine.budget.tokens < Budget.SIZE:
        engine.budget.earn()


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
            if not _asked_elsewhere(call, lookup):
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
        _ask_afresh(run, attached)
    for retry_after, waiting in shaky.items():
        for lookup in _again(run, waiting, retry_after, Budget.RETRY):
            if not run.closed and not lookup.settled and lookup.routes == 0:
                run.settle(lookup, ERROR, error=lookup.error)
    return found, answers


def _final_misses(call: InFlight, missed: list[Lookup]) -> list[Lookup]:
    """Queue those of *missed* again that may be asked once more; return those whose miss is the last word."""
    waiting = [lookup for lookup in missed if not lookup.settled]
    for lookup in waiting:
        lookup.failures += not call.overdue
    waiting = [lookup for lookup in waiting if not _asked_elsewhere(call, lookup)]
    lost = _again(call.run, waiting, None, Budget.RETRY)
    return [lookup for lookup in missed if lookup.settled] + [lookup for lookup in lost if lookup.routes == 0]


def _asked_elsewhere(call: InFlight, lookup: Lookup) -> bool:
    """Whether *lookup* was queued again when *call* became overdue, so that its failure is no reason to do so again."""
    return call.overdue and lookup.routes > 0


def _ask_afresh(run: Run, attached: list[Lookup]) -> None:
    """Queue lookups that had joined a late call: it was not theirs, so its failure is not. Their own clock goes on."""
    for lookup in attached:
        lookup.attached = False
        lookup.routes += 1
    run.put_first(attached)


def _failed(call: InFlight, error: BaseException) -> None:
    run = call.run
    if isinstance(error, FatalError):
        run.fail(error)
        return
    if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
        run.fail(FatalError(f"{run.source}: its connector raised {type(error).__name__}, which ends the task."))
        return
    waiting = [lookup for lookup in call.lookups.values() if not lookup.settled]
    attached = [lookup for lookup in waiting if lookup.attached]
    if attached:
        _ask_afresh(run, attached)
        waiting = [lookup for lookup in waiting if lookup not in attached]
    if not waiting:
        return
    if isinstance(error, TransientError):
        for lookup in waiting:
            lookup.error = error
            lookup.failures += not call.overdue
    # What is wrong with a key that was asked alone is an answer, as a `Failure` is: no other call will do better.
    final = len(call.lookups) == 1 and not isinstance(error, TransientError)
    if not final:
        waiting = [lookup for lookup in waiting if not _asked_elsewhere(call, lookup)]
    if isinstance(error, TransientError):
        lost = _again(run, waiting, error.retry_after, Budget.RETRY)
    elif waiting and len(call.lookups) > 1 and _bisect(call, waiting):
        lost = []
    else:
        error = error if isinstance(error, ConnectorError) else PermanentError(_describe(error))
        lost = waiting
    for lookup in lost:
        if run.closed:
            return
        if not lookup.settled and (final or lookup.routes == 0):
            run.settle(lookup, ERROR, error=lookup.error if isinstance(error, TransientError) else error)


def _describe(error: BaseException) -> str:
    """Say which unknown exception a connector raised. Its text may hold keys or secrets, so only the class is named."""
    return f"the connector raised {type(error).__qualname__}"


def _again(run: Run, lookups: list[Lookup], retry_after: float | None, cost: int) -> list[Lookup]:
    """Queue those of *lookups* again that may be asked once more, after their back-off; return the others."""
    engine, retry = run.engine, run.options.retry
    if engine is None or run.closed:
        return lookups
    now = engine.now()
    if retry is None:
        return lookups
    lost: list[Lookup] = []
    by_failures: dict[int, list[Lookup]] = {}
    for lookup in lookups:
        if lookup.settled:
            continue
        if lookup.failures >= retry.attempts:
            lost.append(lookup)
        else:
            by_failures.setdefault(lookup.failures, []).append(lookup)
    if by_failures and not engine.budget.spend(cost):
        for lookup in (lookup for waiting in by_failures.values() for lookup in waiting):
            lookup.error = TransientError(f"{lookup.error or 'no answer'} (the budget of retries is used up)")
        return [lookup for lookup in lookups if not lookup.settled]
    for failures, waiting in by_failures.items():
        # One draw for the keys of one call: keys that each wait a time of their own would come back one by one.
        wait = backoff(retry, failures, retry_after, run.rng)
        in_time = [lookup for lookup in waiting if now + wait < run.deadlines.of(lookup)]
        lost += [lookup for lookup in waiting if now + wait >= run.deadlines.of(lookup)]
        if in_time:
            run.stats.retries += len(in_time)
            for lookup in in_time:
                lookup.routes += 1
            engine.later(run, wait, in_time)
    return lost


def _bisect(call: InFlight, waiting: list[Lookup]) -> bool:
    """Queue the halves of a poisoned group; False when its calls or the budget are used up."""
    run = call.run
    bisection = call.bisection or Bisection(len(call.lookups))
    if run.engine is None or bisection.calls < 2 or not run.engine.budget.spend(2 * Budget.BISECTION):
        return False
    bisection.calls -= 2
    run.stats.bisections += 2
    middle = (len(waiting) + 1) // 2
    for half in (waiting[:middle], waiting[middle:]):
        if half:
            for lookup in half:
                lookup.routes += 1
            run.put_first(half, bisection)
    return True


def _bytes_of(raws: list[Any], kinds: set[type]) -> int:
    """Return about how many bytes the answers *raws* take, which are of the types *kinds*."""
    if kinds <= _TEXT:
        return sum(map(len, filter(None, raws))) + TEXT_BYTES * len(raws)
    return 64 * len(raws) if kinds <= SMALL else sum(map(size_of, raws))
