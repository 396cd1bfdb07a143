"""
The engine of a source in a worker process: it turns pending keys into calls, and owns the connector, slots and limits.

`capacity` long-lived slot coroutines take groups of keys from the runs (the lookups of one task each) and await
`fetch_many` themselves, so that no key needs a task, timer or semaphore of its own. A slot makes no other call until
its call has really ended, even if the call is late or was cancelled, so there are never more than `capacity` calls in
flight. Between tasks the engine stays open, because Spark reuses its workers.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import ConnectorError, ContractError, OverBudgetError, TransientError
from ..functions import raised
from .deadlines import TICKS_PER_TIMEOUT, Sweeper
from .fast_paths import answered_one
from .hedging import Hedges
from .job import JobLimits, average_cost
from .limits import Gate, RetryBudget, background_slots
from .metering import CallMeter
from .opening import Opening
from .results import ANSWERED, AWAY, FAULTY, TROUBLED, Ending, conclude, with_said
from .returned import came_back
from .sizes import BytesEach, first_keys
from .tuning import Tuner
from .unanswered import refuse
from .watchdog import stood_still, sweep

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..interface import Call, Connector
    from ..limits import Budget, Limit, Rate
    from .account import Account
    from .job import Store
    from .records import Group, InFlight, Lookup
    from .run import Run
    from .search import Search

__all__ = ["Engine"]

TURNS_WITHOUT_YIELD = 32  # calls after which a slot lets other tasks run, even if no call has suspended
NO_BUDGET: Mapping[str, float] = MappingProxyType({})  # what a call reserves if the job has no budget


class Engine:
    """
    The engine of one source in one worker process. Lives on the loop thread.

    Args:
        connector: The connector, which is not open yet; the first call opens it.
        capacity: Number of slots, i.e. most calls in flight.
        rate: Calls per second of this process, or a `Rate`; None: no limit.
        limit: The most calls that the whole job may have in flight; None: no limit.
        budget: The most that the job may spend; None: no limit.
        stores: The stores that hold the limits of the job, by the option that sets the limit.
        tuned: Whether the engine learns from the source's latency how many calls may be in flight, at most *capacity*.
        seed: Seed of the random draws of the gate; only tests give one.

    Attributes:
        runs: The runs (the lookups of one task each) that the engine serves in turns.
        calls: The calls in flight, late ones included, each with its run.
        gate: The gate, which may hold calls back although a slot is free.
        account: The account of the job's budget; None: there is no budget.
        retry_budget: How many retries the source may get.
        tuner: The tuner, which finds how many calls may be in flight; None: as many as the capacity.
        hedges: The object that decides when a call is slow, and how many second calls may be sent; None: no run wants
            second calls.
        silent: True from the time when a call becomes late until a call ends in time.
        cancelled: True from the time when a call is cancelled until a call ends in time.
        room_at: Earliest loop time at which a late call may be cancelled to give its slot to a waiting key.
        idle_since: Loop time since which no run or tier uses the engine; None: the engine is in use.
    """

    def __init__(
        self,
        connector: Connector[Any],
        capacity: int,
        *,
        name: str = "",
        rate: float | Rate | None = None,
        limit: Limit | None = None,
        budget: Budget | None = None,
        stores: Mapping[str, Store] = MappingProxyType({}),
        tuned: bool = False,
        seed: int | None = None,
    ) -> None:
        self.name = name or connector.name
        self.connector = connector
        self._key_columns = connector.key_columns
        self.capacity = capacity
        self.retry_budget = RetryBudget()
        self.tuner = Tuner(capacity) if tuned else None
        self.hedges: Hedges | None = None
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self.job = JobLimits(self.name, stores, self.look_again)
        self._average = average_cost(connector, rate)
        self.account = self.job.account(budget, lambda: self.allowed - len(self.calls))
        self.gate = Gate(
            self.name,
            capacity,
            self.job.pace(rate, self._average),
            random.Random(seed),  # noqa: S311  # a throttle needs no cryptography
            self.job.limit(limit, capacity, lambda: len(self.calls)),
            self.account,
        )
        self._metered = connector.reports or self._average is not None or self.account is not None
        self._meters: dict[InFlight, CallMeter] = {}
        self._answer_bytes = BytesEach()
        self.runs: deque[Run] = deque()
        self.calls: dict[InFlight, Run] = {}
        self.silent = self.cancelled = False
        self.room_at = 0.0
        self.idle_since: float | None = self.now()
        self._tiers = 0  # number of open tiers, each of which may make a run at any time
        self._sweeper = Sweeper(self._loop, self._sweep, partial(stood_still, self))
        self._slots: set[asyncio.Task[None]] = set()
        self._parked: deque[asyncio.Future[None]] = deque()
        self._short_of_tokens: deque[tuple[Run, list[Lookup], int]] = deque()  # retries that lack tokens, in order
        self._resume: asyncio.TimerHandle | None = None
        self.opening = Opening(connector, self.name, lambda: self.gate.no_connection(self.now()))
        self._closing = False

    def __repr__(self) -> str:
        waiting = sum(bool(run.pending) for run in self.runs)
        return f"<Engine {self.name}: {len(self.calls)} in flight, {waiting} runs waiting, {self.capacity} capacity>"

    @property
    def allowed(self) -> int:
        """How many calls may be in flight now."""
        return self.capacity if self.tuner is None else self.tuner.allowed

    # runs

    def attach(self, run: Run) -> None:
        """Serve *run* until it closes."""
        self.runs.append(run)
        self.idle_since = None
        self.gate.patience = max(each.options.stall_timeout for each in self.runs)
        for timeout in (run.options.timeout, run.attempt_timeout):
            if timeout is not None:
                self._sweeper.watch(timeout / TICKS_PER_TIMEOUT)
        if run.hedged and self.hedges is None:
            self.hedges = Hedges()

    def detach(self, run: Run) -> None:
        """Stop serving *run*, and cancel its calls, because its rows have their outcome or nobody waits for them."""
        if run in self.runs:
            self.runs.remove(run)
            self._short_of_tokens = deque(entry for entry in self._short_of_tokens if entry[0] is not run)
        for call in run.in_flight():
            call.late = True  # nobody waits for the call; how it ends does not count for or against the source
            run.stats.abandoned += call.cancelled_at is None
            self.cancel(call, self.now())
        self._maybe_idle()

    def keep_open(self) -> None:
        """Keep the engine open for a tier, even while no run uses it, until `release`."""
        self._tiers += 1
        self.idle_since = None

    def release(self) -> None:
        """Undo one `keep_open`."""
        self._tiers -= 1
        self._maybe_idle()

    def _maybe_idle(self) -> None:
        if not self.runs and not self._tiers:
            self.idle_since = self.now()

    def cancel(self, call: InFlight, now: float) -> None:
        """Cancel *call*, unless it was cancelled before; its slot becomes free when the call has ended."""
        self.cancelled = True
        call.cancel(now)

    def wake(self) -> None:
        """Give slots to the waiting groups of keys: first wake parked slots, then start new slots, up to `capacity`."""
        groups = sum(run.pending.groups(self._most_keys(run)) for run in self.runs)
        while groups > 0 and self._parked:
            future = self._parked.popleft()
            if not future.done():
                future.set_result(None)
                groups -= 1
        while groups > 0 and len(self._slots) < self.capacity:
            slot = self._loop.create_task(self._slot(), name=f"enrichkit-slot-{self.name}")
            self._slots.add(slot)
            slot.add_done_callback(self._slot_ended)
            groups -= 1

    def later(self, run: Run, wait: float, group: list[Lookup], tokens: int = 0, search: Search | None = None) -> None:
        """
        After *wait* seconds, put *group* at the head of the pending queue of *run*; meanwhile the group takes no slot.

        If the retry budget has fewer than the *tokens* that the group needs, the group waits until it has enough.
        """

        def due() -> None:
            nonlocal group
            run.timers.discard(handle)
            # A late answer or a fallback may have settled a key of the group meanwhile.
            group = [lookup for lookup in group if not lookup.settled]
            if not group:
                return
            if tokens and (self._short_of_tokens or not self.retry_budget.spend(tokens, run.stats)):
                run.stop_clocks(group)
                self._short_of_tokens.append((run, group, tokens))
            else:
                run.put_first(group, search)

        handle = self._loop.call_later(wait, due)
        run.timers.add(handle)
        self._sweeper.wake()

    def release_retries(self) -> bool:
        """Queue the retries for which the budget has tokens again; return whether other retries still wait."""
        waiting = self._short_of_tokens
        if waiting:
            self.retry_budget.trickle(self._sweeper.tick)
        while waiting:
            run, group, tokens = waiting[0]
            group = [lookup for lookup in group if not lookup.settled]  # a late answer may have settled keys meanwhile
            if group and not self.retry_budget.spend(tokens, run.stats):
                break
            waiting.popleft()
            run.put_first(group)
        return bool(waiting)

    async def store(self, values: Mapping[Any, Any], ttl: float | None) -> None:
        """Have the connector write *values*; this takes no slot from the calls. See `Connector.store_many`."""
        if values:
            if not self.opening.done:
                await self.opening.open()
            await self.connector.store_many(values, ttl)

    async def close(self) -> None:
        """End the slots and close the connector."""
        self._closing = True
        self._sweeper.stop()
        if self._resume is not None:
            self._resume.cancel()
        for slot in list(self._slots):
            slot.cancel()
        if self._slots:
            await asyncio.wait(list(self._slots), timeout=1.0)
        await self.job.close()
        await self.opening.close()

    # slots

    async def _slot(self) -> None:
        """Take groups and make calls, one after another, until the engine closes."""
        task = asyncio.current_task()
        connector, calls = self.connector, self.calls
        turns = 0
        while not self._closing:
            taken = self._next(task)
            if taken is None:
                parked = self._loop.create_future()
                self._parked.append(parked)
                await parked
                continue
            call, run = taken
            calls[call] = run
            if self._sweeper.idle:
                self._sweeper.wake()
            answers: Any = None
            failure: BaseException | None = None
            try:
                if not self.opening.done:
                    await self.opening.open()
                about = run.first_call if call.attempt == 1 and not self._metered else self._about(run, call)
                answers = await connector.fetch_many(call.keys, about)
            except BaseException as error:  # a plugin may raise anything; the keys or the task get the error
                failure = error
                if self._closing and isinstance(error, asyncio.CancelledError):
                    raise
                if isinstance(error, GeneratorExit) and (task is None or asyncio.current_task(self._loop) is not task):
                    raise  # comes from Python, which discards this coroutine, for example in a forked child
            self._end(run, call, answers, failure)
            answers = None  # otherwise a parked slot would keep the answers in memory
            turns += 1
            if turns % TURNS_WITHOUT_YIELD == 0:
                await asyncio.sleep(0)

    def _about(self, run: Run, call: InFlight) -> Call:
        """
        Return the `Call` object that the connector gets for *call*.

        If the engine counts costs, the object has a meter, to which the connector reports the costs.
        """
        about = run.call(call.attempt)
        if not self._metered:
            return about
        meter = CallMeter(self.gate, self._average, self.connector.cost(call.keys), self.now)
        self._meters[call] = meter
        return replace(about, meter=meter)

    def _count_cost(self, run: Run, call: InFlight) -> None:
        """Count what the ended *call* has cost."""
        meter, reported = self._meters.pop(call, None), None
        if meter is not None:
            meter.ended()
            known = meter.known and call.cancelled_at is None
            if meter.reported:
                run.stats.paid(meter.reported, known=known)
                self.gate.took(meter.reported)
                call.paid = meter.reported
            reported = meter.reported if known else {}
        if self.account is not None:
            self.account.ended(call, reported)

    def _slot_ended(self, slot: asyncio.Task[None]) -> None:
        """Replace *slot*, which has ended, for example because a connector left a cancellation of its task pending."""
        self._slots.discard(slot)
        if self._closing:
            return
        error = None if slot.cancelled() else slot.exception()
        if error is not None:  # a defect of the engine: it would end each new slot, too, so all runs fail
            for run in list(self.runs):
                run.broken(error)
        self.wake()

    def _next(self, task: asyncio.Task[None] | None) -> tuple[InFlight, Run] | None:
        """Return the next call that *task* makes, and its run; None: no call can be sent now. The runs take turns."""
        runs, account = self.runs, self.account
        if self.tuner is not None and len(self.calls) >= self.tuner.allowed:
            return None  # when a call in flight ends, its slot tries again
        if self.gate.may_hold and any(run.pending for run in runs) and self._held_back():
            return None
        several = left = len(runs)
        while left:  # a `for` loop over a range would add 4 % to the time of a lookup
            left -= 1
            run = runs[0]
            if several > 1:
                runs.rotate(-1)
            try:
                if run.background and not self._has_room_behind():
                    continue
                group, search = run.take(1 if run.batch_size == 1 else self._most_keys(run))
                most = NO_BUDGET if account is None or not group else self._reserve(account, run, group, search)
                if not group or most is None:
                    continue
                call = run.begin(group, search, task, self._key_columns)
            except Exception as error:  # noqa: BLE001  # keys taken from `pending` without a call would wait for ever
                run.broken(error)
                return self._next(task)
            if account is not None:
                account.calls[call] = most
            call.accepts = self.gate.breaker.accepts
            if self.gate.may_hold:
                self.gate.sent(call)
            return call, run
        return None

    def _has_room_behind(self) -> bool:
        """Whether a background call may be sent: no row waits for a slot, and few background calls are in flight."""
        # A slot that is the only one makes no background call, except while the source is away: then no row needs the
        # slot, and one call has to ask whether the source is back.
        most = background_slots(self.capacity) or self.gate.outage.since is not None
        if sum(run.background for run in self.calls.values()) >= most:
            return False
        return not any(run.pending for run in self.runs if not run.background)

    def _reserve(self, account: Account, run: Run, group: Group, search: Search | None) -> Mapping[str, float] | None:
        """
        Reserve in the budget the most that a call for *group* can take, and return that amount.

        Returns:
            The reservation, or None when the call cannot be sent now. In the case of None, either the group is back at
            the head of the queue, or its keys will get the outcome `over_budget`, or the run fails because the
            connector's `most` raised an error.
        """
        try:
            most = account.most_of(self.connector, group)
        except Exception as error:  # noqa: BLE001  # a plugin may raise anything
            wrong = ContractError(f"{run.source}: the connector's most() raised {raised(error)}.")
            self._loop.call_soon(run.fail, wrong)
            return None
        if account.take(most, self.now()):
            return most
        if account.over(most):
            self._loop.call_soon(refuse, run, group, OverBudgetError(account.describe()))
            return None
        run.put_back(group, search)
        self._held_back()
        return None

    def _most_keys(self, run: Run) -> int:
        """
        Return how many keys the next call of *run* may have.

        With this number, the answers to all calls in flight fit into half of `window_bytes`; the other half is for the
        answers that have arrived and that Spark has not taken yet.
        """
        size, sizes = run.batch_size, self._answer_bytes
        if sizes.each is None:
            return first_keys(size) or size
        return sizes.most(size, run.options.window_bytes / 2 / self.allowed)

    def _held_back(self) -> bool:
        """
        Return whether the gate holds calls back now; if so, set a timer to wake the slots when a call can be sent.
        """
        wait = self.gate.delay(self.now(), len(self.calls))
        if wait <= 0:
            return False
        self._sweeper.wake()
        if self._resume is None:
            self._resume = self._loop.call_later(wait, self._wake_again)
        return True

    def look_again(self) -> None:
        """Check now whether the gate lets calls through, because a share of a limit has changed."""
        if self._resume is not None:
            self._resume.cancel()
            self._wake_again()

    def held_by(self) -> str | None:
        """Return why the gate holds calls of waiting keys back, as `Gate.reason` names it; None: it holds none back."""
        if self._resume is None or not any(run.pending for run in self.runs):
            return None
        return self.gate.reason(self.now())

    def _wake_again(self) -> None:
        self._resume = None
        self.wake()

    def _end(self, run: Run, call: InFlight, answers: Any, failure: BaseException | None) -> None:
        """Record how *call* ended, and give its keys their outcomes."""
        del self.calls[call]
        ending: Ending | None = None
        settled = run.settled_bytes
        try:
            if self._metered:
                self._count_cost(run, call)
            if failure is not None or call.cancelled_at is not None:
                failure = self._translated(run, call, failure)
            elif run.first_answers is not None:
                run.look_at_first(answers)
            if failure is None and answered_one(run, call, answers):
                ending = ANSWERED
            else:
                run.stats.calls_took.add(self.now() - call.started)
                ending = conclude(run, call, answers, failure)
        except Exception as error:  # noqa: BLE001  # a defect of decoder or engine must fail the task, not hang it
            run.broken(error)
        came = run.settled_bytes - settled
        if run.batch_size > 1 and ending is ANSWERED and self._answer_bytes.saw(came, len(call.keys)):
            self.wake()  # calls have fewer keys from now on, so more calls are needed
        if self.gate.may_hold or self.tuner is not None or self.hedges is not None:
            self._note(run, call, ending)
        if call.late or ending is None:
            return  # the gate has already counted a late call, when the call became late
        self.silent = self.cancelled = False
        if ending is ANSWERED:
            self.gate.accepted()
        else:
            self._count(ending)

    def _count(self, ending: Ending) -> None:
        """Tell the circuit breaker that a call has ended in time, but with an error."""
        if ending is TROUBLED:
            self.gate.refused()
        elif ending is FAULTY:
            self.gate.breaker.faulted()

    def became_late(self, call: InFlight, now: float) -> None:
        """Count *call*, which has not been answered in time, as refused, for the circuit breaker and the tuner."""
        self.silent = True
        call.late_since = now
        self.gate.refused()
        if self.tuner is not None:
            self.tuner.refused(call.started, now)

    def _note(self, run: Run, call: InFlight, ending: Ending | None) -> None:
        """Tell the outage detection, the hedges and the tuner, as far as they are in use, how *call* ended."""
        if self.gate.may_hold:
            self._note_for_outage(call, ending)
        hedges = self.hedges
        answered = ending in (ANSWERED, FAULTY)
        if hedges is not None and answered and hedges.answered(call, self.now(), earns=run.hedged):
            self._sweeper.watch(hedges.tick)
        tuner = self.tuner
        if tuner is None or call.cancelled_at is not None:  # the end of a cancelled call shows no latency
            return
        if ending is TROUBLED or (ending is AWAY and not self.gate.outage.probes):
            tuner.refused(call.started, self.now())
        elif answered and tuner.answered(call.started, self.now(), len(self.calls) + 1):
            self.wake()

    def _note_for_outage(self, call: InFlight, ending: Ending | None) -> None:
        """Tell the outage detection how *call* ended; an answer may end an outage, and so allow more calls."""
        outage, now = self.gate.outage, self.now()
        if ending not in (ANSWERED, FAULTY) or call.cancelled_at is not None:
            outage.gave_up(call, now)
            return
        self.gate.allowance.answered(call, now)
        if outage.holds:
            began = outage.since
            blamed = outage.answered(call, now, len(self.calls))
            if began is not None and blamed is not None:
                for run in list(self.runs):
                    try:
                        came_back(run, began, now, blamed, counted=outage.probes > 0 and not blamed)
                    except Exception as error:  # noqa: BLE001  # the error must fail the task, not end the slot
                        run.broken(error)
            self.wake()

    def _translated(self, run: Run, call: InFlight, failure: BaseException | None) -> BaseException | None:
        """Return the error that the keys or the task get for a failed or cancelled call; the slot itself goes on."""
        # Either the engine cancelled the call, or the connector cancelled its own task. In both cases the request to
        # cancel is taken back, so that the task of the slot can go on with the next call.
        while call.task is not None and call.task.cancelling() and not self._closing:
            call.task.uncancel()  # also needed if the connector caught the CancelledError and returned answers
        if call.cancelled_at is not None and _tells_of_cancellation(failure):
            seconds = min(run.hard_limit, call.cancelled_at - call.started)
            failure = TransientError(f"no answer within {seconds:.3g} s; the call was cancelled")
        if isinstance(failure, TransientError):
            # A pause that the source asks for is kept, even if nobody waits for this call any more.
            self.gate.heed(call, failure, len(self.calls), self.now())
        return with_said(run, failure)

    # deadlines

    def _sweep(self, now: float) -> bool:
        """Check all deadlines; return whether there is anything left to watch."""
        try:
            return sweep(self, now)
        except Exception as error:  # noqa: BLE001  # if the error ended the sweeper, deadlines would be ignored
            for run in list(self.runs):
                run.broken(error)
            return bool(self.calls)


def _tells_of_cancellation(failure: BaseException | None) -> bool:
    """Whether a cancelled call may have ended with *failure* because of that; a driver may raise its own error."""
    of_driver = isinstance(failure, Exception) and not isinstance(failure, ConnectorError | MemoryError)
    return of_driver or isinstance(failure, asyncio.CancelledError)
