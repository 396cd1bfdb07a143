"""
The worker's half of `enrich_frame`: record batches in, record batches out.

In order, a slice of rows leaves as the run hands it over. Unordered, the rows of each call become ready by themselves;
they are gathered until they fill a batch, or until the oldest of them has waited for `LINGER`, or the next batch of the
input is pulled, which may take long. The columns of the input pass through as they are, whatever their types.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from .assemble import BYTES, columns_of
from .engine.handover import NOTHING
from .frame_slices import FrameTask, ordered, unordered
from .matches import exploded, picked
from .outcome import MISSING, Outcomes
from .worker import begin

if TYPE_CHECKING:
    from .engine.lookup import Part
    from .plan import Plan

__all__ = ["enrich_batches"]

ROWS = 10_000
"""Most rows of a batch that is filled up; Spark's own default."""
LINGER = 0.02
"""Seconds that a row whose lookup is done may wait for others to leave with it."""


def enrich_batches(task: FrameTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Look the keys of *batches* up and yield batches of the rows that *task* asks for, of other sizes."""
    plan: Plan = pickle.loads(task.plan)  # noqa: S301  # made by our own driver, inside Spark's own pickled closure
    filled = filter(len, batches)
    first = next(filled, None)
    if first is None:
        return  # an empty partition: nothing is opened
    handover, process = begin(plan, [first.column(n) for n in task.keys], ordered=task.ordered)
    every = chain((first,), filled)
    del first  # or it would stay until the task ends
    if task.ordered:
        for part in process(ordered(task, plan, handover, every)):
            # A call that goes on after its rows have timed out keeps their outcomes, but need not keep the input.
            tag, part.outcomes.tag = part.outcomes.tag, None
            yield from _rows(task, plan, tag.batch, part.outcomes, tag.codes)
        return
    ready = _Ready(task, plan)
    for part in process(unordered(task, plan, handover, every)):
        if part is not NOTHING:
            ready.add(part)
        if part is NOTHING or ready.full():
            yield from ready.leave()
        handover.wake_at = ready.until
    yield from ready.leave()


class _Ready:
    """
    The rows that may leave an unordered run.

    Attributes:
        until: When they leave at the latest, by `time.monotonic()`; None: there are none.
    """

    def __init__(self, task: FrameTask, plan: Plan) -> None:
        self._task = task
        self._plan = plan
        # By slice, in the order of their first rows: slices on two sides of a barrier never come in turn.
        self._parts: dict[Outcomes, list[int]] = {}
        self._rows = 0
        self._bytes = 0
        self.until: float | None = None

    def add(self, part: Part) -> None:
        """Add the rows of *part*; a barrier has none."""
        if part.rows:
            # The rows with a null key come as a part without keys.
            self._parts.setdefault(part.outcomes, []).extend(part.indices or (len(part.outcomes.keys),))
            self._rows += part.rows
            self._bytes += part.bytes + part.rows * part.outcomes.tag.row_bytes
            if self.until is None:
                self.until = time.monotonic() + LINGER

    def full(self) -> bool:
        """Whether they fill a batch, or have waited long enough."""
        waited = self.until is not None and time.monotonic() >= self.until
        return waited or self._rows >= ROWS or self._bytes >= BYTES

    def leave(self) -> Iterator[pa.RecordBatch]:
        """Remove all rows and yield them."""
        parts, self._parts = self._parts, {}
        self._rows = self._bytes = 0
        self.until = None
        made: list[pa.RecordBatch] = []
        rows = size = 0
        for outcomes, indices in parts.items():
            nulls = len(outcomes.keys)
            indices = sorted(indices)  # so that the rows without a key are the last
            batch, places = outcomes.tag.take(indices)
            codes = pa.array(places, pa.int32())
            if indices[-1] == nulls:
                del indices[-1]
                codes = pa.array([None if place == len(indices) else place for place in places], pa.int32())
            some = picked(outcomes, indices, len(places))
            for index in indices:
                outcomes.values[index] = None  # the slice may live on for a slow row
            for one in _rows(self._task, self._plan, batch, some, codes):
                made.append(one)
                rows += one.num_rows
                size += one.nbytes
                if rows >= ROWS or size >= BYTES:  # now, because a row may have very many matches
                    yield from _merged(made)
                    made, rows, size = [], 0, 0
        yield from _merged(made)


def _merged(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    merged: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return merged


def _rows(
    task: FrameTask, plan: Plan, batch: pa.RecordBatch, outcomes: Outcomes, codes: pa.Int32Array
) -> Iterator[pa.RecordBatch]:
    """The rows that come of those of *batch*, whose keys have the *outcomes* with the numbers *codes*."""
    if task.inner:
        # A miss that `on_missing` gave a value to is no miss any more.
        found = [
            status != MISSING or (bool(value) if plan.many else value is not None)
            for status, value in zip(outcomes.statuses, outcomes.values, strict=True)
        ]
        mask = pa.array(found, pa.bool_()).take(codes).fill_null(False)
        batch, codes = batch.filter(mask), codes.filter(mask)
    if not batch.num_rows:
        return
    if not task.explode:
        yield from _widened(task, plan.value_type, batch, outcomes, codes)
        return
    size = max(1, min(ROWS, BYTES * batch.num_rows // max(1, batch.nbytes)))
    longest = max((len(value) for value in outcomes.values if value), default=1)
    # One row may be much wider than the others, and is copied for each of its matches. To look at it takes 2 us.
    width = None if longest * batch.nbytes <= BYTES else lambda row: batch.slice(row, 1).nbytes
    matches, pairs = exploded(outcomes, codes, size, BYTES, width)
    for rows, chosen in pairs:
        places = {number: place for place, number in enumerate(dict.fromkeys(n for n in chosen if n is not None))}
        yield from _widened(
            task,
            plan.value_type.value_type,
            batch.take(pa.array(rows, pa.int32())),
            picked(matches, list(places), len(chosen)),
            pa.array([None if n is None else places[n] for n in chosen], pa.int32()),
        )


def _widened(
    task: FrameTask, data_type: pa.DataType, batch: pa.RecordBatch, outcomes: Outcomes, codes: pa.Int32Array
) -> Iterator[pa.RecordBatch]:
    """*batch* with the columns that come to it, in pieces as `columns_of` makes them."""
    start = 0
    for column in columns_of(outcomes, codes, data_type):
        columns = column.flatten() if task.spread else [column]
        fields = [pa.field(name, column.type) for name, column in zip(task.names, columns, strict=True)]
        rows = batch.slice(start, len(column))
        yield pa.RecordBatch.from_arrays([*rows.columns, *columns], schema=pa.schema([*batch.schema, *fields]))
        start += len(column)
