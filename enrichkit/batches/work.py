"""
The work on batches: keys are sent to a service in batches, and its answers are written to the journal. `state.py` lists
the steps of a batch.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow as pa

from ..errors import ConfigError, PermanentError, TransientError
from ..interface import Call, Failure
from ..journal.columns import key_columns
from ..journal.opening import index_of, writer_of
from ..journal.stores import open_store
from ..journal.table import Table
from ..values.decode import decoder
from ..worker.keys import encode
from .report import Batch, Batches
from .state import State, States

if TYPE_CHECKING:
    from ..columnar import Keys
    from ..journal.config import Journal
    from ..plan import Plan

__all__ = ["Work"]

T = TypeVar("T")

ATTEMPTS = 6
"""
Most attempts of a request to the service if each fails with a transient error. The wait before the next attempt doubles
each time, beginning with half a second, unless the service asks for another wait.
"""
MOST_REASONS = 20


class Work:
    """
    The batches of one source, and the journal that gets the answers.

    Args:
        plan: Plan of the enrichment that will use the answers; the journal finds the answers by the fingerprint of the
            plan.
        journal: The journal.
        key_types: Arrow type of each key column.

    Raises:
        ConfigError: The connector has no batch form.
    """

    def __init__(self, plan: Plan, journal: Journal, key_types: Sequence[pa.DataType]) -> None:
        connector = plan.connector(plan.config)
        form = connector.batches()
        if form is None:
            raise ConfigError(
                f"The connector {connector.name!r} has no batch form: its service answers no files of requests, or "
                "nobody has written that part. Use enrich() for this source."
            )
        self.form = form
        self._source, self._journal, self._scope = plan.source, journal, journal.scope()
        self._table = Table(plan.source, plan.content_key, tuple(key_types), plan.value_type)
        self._states = States(open_store(journal.path), f"{self._table.digest}/batches/{self._scope.folder}")
        self._decode = decoder(plan.value_type, connector.encoding)
        self._name_of = Call(timeout=1.0, run=self._table.digest).idempotency_key

    async def submit(self, slices: Iterable[Keys], most: int | None) -> Batches:
        """
        Submit the keys that are neither in the journal nor in an earlier batch that is not collected yet.

        Args:
            slices: Distinct keys, in parts.
            most: Most requests of a batch; None: as many as the service takes.
        """
        counts: Counter[str] = Counter()
        with self._states.locked():
            async with self._opened():
                self._states.sweep()
                await self._resume()
                unfinished = [state for state in self._states.all() if state.step != "collected"]
                waiting = {name for state in unfinished for name in self._keys(state)}
                keys: list[Any] = []
                requests: list[bytes] = []
                size, most = 0, most or self.form.max_requests
                for key in self._unanswered(slices, counts):
                    name = self._name_of(key)
                    if name in waiting:
                        counts["waiting"] += 1
                        continue
                    waiting.add(name)
                    try:
                        request = self.form.request(name, key)
                    except PermanentError:
                        counts["refused"] += 1
                        continue
                    if keys and (len(keys) >= most or size + len(request) > self.form.max_bytes):
                        counts["submitted"] += await self._plan_and_send(keys, requests)
                        keys, requests, size = [], [], 0
                    keys.append(key)
                    requests.append(request)
                    size += len(request)
                if keys:
                    counts["submitted"] += await self._plan_and_send(keys, requests)
        return self.report(**counts)

    async def collect(self) -> Batches:
        """
        Ask the service once for the progress of the batches, and write the answers of finished batches to the journal.
        """
        with self._states.locked():
            if any(state.step != "collected" for state in self._states.all()):
                async with self._opened():
                    await self._resume()
                    for state in self._states.all():
                        if state.step == "submitted":
                            await self._look(state)
        return self.report()

    def report(self, **counts: int) -> Batches:
        """Return the progress of the batches, as the service reported it last."""
        batches = [
            Batch(
                id=state.batch,
                status=state.status or state.step,
                requests=state.requests,
                answered=state.answered,
                missing=state.missing,
                failed=state.failed,
                collected=state.step == "collected",
                spent=state.spent,
            )
            for state in self._states.all()
        ]
        return Batches(self._source, tuple(batches), **counts)

    def _unanswered(self, slices: Iterable[Keys], counts: Counter[str]) -> Iterable[Any]:
        """Yield the keys that have no answer in the journal; add the number of the others to `counts["known"]`."""
        index = index_of(self._journal, self._table, self._scope)
        for keys in slices:
            held = set(index.lookup(keys, self._scope).places.to_pylist())
            counts["known"] += len(held)
            yield from (key for place, key in enumerate(keys) if place not in held)

    async def _plan_and_send(self, keys: list[Any], requests: list[bytes]) -> int:
        columns = key_columns(keys, self._table.key_types)
        state = self._states.plan(columns, pa.schema(list(self._table.schema)[: len(columns)]))
        await self._send(state, requests, again=False)
        return len(keys)

    async def _resume(self) -> None:
        """
        Send planned batches again: an earlier call was killed or failed before it knew whether the service had received
        them.
        """
        for state in self._states.all():
            if state.step == "planned":
                requests = [self.form.request(name, key) for name, key in self._keys(state).items()]
                await self._send(state, requests, again=True)

    async def _send(self, state: State, requests: Sequence[bytes], *, again: bool) -> None:
        batch = await _steady(lambda attempt: self.form.submit(state.name, requests, again=again or attempt > 0))
        self._states.put(msgspec.structs.replace(state, step="submitted", batch=batch))

    def _keys(self, state: State) -> dict[str, Any]:
        """Return the key of each request of a batch, by the name of the request, in the order of the requests."""
        keys, _ = encode(self._states.keys(state))
        return {self._name_of(key): key for key in keys}

    async def _look(self, state: State) -> None:
        status = await _steady(lambda _: self.form.status(state.batch))
        if status.done:
            await self._gather(state, status.word, status.reason)
        elif (status.word, status.answered) != (state.status, state.answered):
            self._states.put(msgspec.structs.replace(state, status=status.word, answered=status.answered))

    async def _gather(self, state: State, word: str, reason: str) -> None:
        """Write to the journal the answers of a batch that has ended; then record that the batch is collected."""
        spent = _Spent()
        keys = self._keys(state)
        call = Call(timeout=1.0, meter=spent)
        answers = dict(await _steady(lambda _: self.form.answers(state.batch, call)))
        values = {name: answers[name] for name in keys if not isinstance(answers.get(name, _NO_ANSWER), Failure)}
        decoded, errors = self._decode(list(values.values()))
        failed = Counter(str(found.error) for name in keys if isinstance(found := answers.get(name), Failure))
        failed.update(map(str, errors.values()))
        right = [place for place in range(len(values)) if place not in errors]
        names = list(values)
        found = [values[names[place]] is not None for place in right]
        # With `sync`, the answers are on the disk before the state says that they are in the journal.
        with writer_of(
            replace(self._journal, sync=True), self._table, self._scope, task=f"batch-{state.name}"
        ) as writer:
            writer.append([keys[names[place]] for place in right], [decoded[place] for place in right], found)
        absent = state.requests - len(right) - failed.total()
        if absent:
            failed[f"The batch ended as {word!r}{f' ({reason})' if reason else ''} without an answer."] += absent
        done = {"step": "collected", "status": word, "answered": len(right), "missing": found.count(False)}
        self._states.put(
            msgspec.structs.replace(
                state, **done, failed=dict(failed.most_common(MOST_REASONS)), spent=dict(spent.units)
            )
        )

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        try:
            await self.form.open()
            yield
        finally:
            await self.form.close()


_NO_ANSWER = Failure(PermanentError(""))
"""Takes the place of an answer if the service's answers do not mention a request; None would mean a miss."""


class _Spent:
    """A meter that records the costs that the answers of a batch report."""

    def __init__(self) -> None:
        self.units: dict[str, float] = {}

    def spent(self, units: Any) -> None:
        self.units.update(units)

    def allows(self, remaining: float, seconds: float, limit: float | None, unit: str) -> None:
        """Ignore the limits that the source reports, because they apply to calls, and a batch makes no calls."""


async def _steady(step: Callable[[int], Awaitable[T]]) -> T:
    """
    Call *step* with the number of the attempt, and again after a `TransientError`, at most `ATTEMPTS` times; return its
    result.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return await step(attempt)
        except TransientError as error:
            await asyncio.sleep(0.5 * 2**attempt if error.retry_after is None else min(error.retry_after, 60.0))
    return await step(ATTEMPTS - 1)
