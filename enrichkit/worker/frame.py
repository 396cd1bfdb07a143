"""
The worker's half of `enrich_frame`: record batches in, record batches out.

An ordered run yields whole slices, whose rows go to Spark at once. An unordered run yields the rows of each call
separately. These rows are gathered until they fill a batch, until the oldest of them has waited for `LINGER`, or until
the next input batch is pulled: no row waits for that batch, because it may take long to come. The columns of the input
pass through unchanged, whatever their types.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from ..engine.bridge import NOTHING
from ..outcome import MISSING, Outcomes
from .assemble import columns_of
from .frame_slices import ordered_slices, unordered_slices
from .many import explode_matches, select_outcomes
from .task import begin

if TYPE_CHECKING:
    from ..engine.bridge import Bridge
    from ..engine.records import Part
    from ..plan import FrameTask, Plan

__all__ = ["enrich_batches"]

ROWS = 10_000
"""Number of rows at which an output batch is full; Spark's own default."""
BYTES = 8 * 2**20
"""Bytes at which an output batch is full. While an unordered run makes a batch, its rows are in memory twice."""
LINGER = 0.02
"""Most seconds that a row with an outcome waits for other rows of its batch."""


def enrich_batches(task: FrameTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Look up the keys of *batches* and yield the rows that *task* describes, in batches of any size, even empty."""
    plan: Plan = pickle.loads(task.plan)  # noqa: S301  # made by the job's own driver, inside Spark's pickled closure
    filled = filter(len, batches)
    first = next(filled, None)
    if first is None:
        return  # the partition is empty: no connector is opened
    bridge = begin(plan, [first.column(n) for n in task.keys], ordered=task.ordered)
    all_batches = chain((first,), filled)
    del first  # this reference would keep the batch in memory until the task ends
    schema: pa.Schema | None = None
    for batch in (_ordered if task.ordered else _unordered)(task, plan, bridge, all_batches):
        if batch is not None:
            schema = batch.schema
            yield batch
        elif schema is not None:
            yield pa.RecordBatch.from_pylist([], schema)
        del batch  # free it: the batch may be large, and the next batch may take long to come


def _ordered(
    task: FrameTask, plan: Plan, bridge: Bridge, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch | None]:
    """Yield the enriched rows, slice by slice; None when no slice is ready."""
    for part in bridge.process(ordered_slices(task, plan, bridge, batches)):
        if part is NOTHING:
            yield None
            continue
        # A call that still runs after its rows have timed out keeps their outcomes in memory. The tag is removed, so
        # that these outcomes do not keep the input batch in memory, too.
        tag, part.outcomes.tag = part.outcomes.tag, None
        yield from _output(task, plan, tag.batch, part.outcomes, tag.codes)
        del part, tag  # free their rows and values: the next part may take long to come


def _unordered(
    task: FrameTask, plan: Plan, bridge: Bridge, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch | None]:
    """
    Yield the enriched rows in full batches, or when the oldest row has waited for `LINGER`; None when no row is ready.
    """
    ready = _ReadyRows(task, plan)
    for part in bridge.process(unordered_slices(task, plan, bridge, batches)):
        if part is not NOTHING:
            ready.add(part)
        elif ready.leave_at is None:
            yield None
        if part is NOTHING or ready.is_due():
            yield from ready.flush()
        bridge.wake_at = ready.leave_at
    yield from ready.flush()


class _ReadyRows:
    """
    The rows of an unordered run that have outcomes and wait for other rows of their batch.

    Attributes:
        leave_at: Time by `time.monotonic()` at which the rows are yielded at the latest; None when there are no rows.
    """

    def __init__(self, task: FrameTask, plan: Plan) -> None:
        self._task = task
        self._plan = plan
        # For the outcomes of each slice, the indices of the keys whose rows are gathered. The slices are in the order
        # in which their first rows came, so all slices before a barrier are ahead of the slices after it.
        self._indices: dict[Outcomes, list[int]] = {}
        self._rows = 0
        self._bytes = 0
        self.leave_at: float | None = None

    def add(self, part: Part) -> None:
        """Add the rows of *part*; a part that stands for a barrier has no rows."""
        if part.rows:
            # The rows with a null key come as a part without keys. As their index they get the number of keys, which
            # is the index of no key.
            self._indices.setdefault(part.outcomes, []).extend(part.indices or (len(part.outcomes.keys),))
            self._rows += part.rows
            self._bytes += part.bytes + part.rows * part.outcomes.tag.row_bytes
            if self.leave_at is None:
                self.leave_at = time.monotonic() + LINGER

    def is_due(self) -> bool:
        """Return whether the rows fill a batch, or one of them has waited for `LINGER`."""
        has_waited = self.leave_at is not None and time.monotonic() >= self.leave_at
        return has_waited or self._rows >= ROWS or self._bytes >= BYTES

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Remove all rows and yield them."""
        indices_by_slice, self._indices = self._indices, {}
        self._rows = self._bytes = 0
        self.leave_at = None
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        for outcomes, indices in indices_by_slice.items():
            null_index = len(outcomes.keys)
            indices = sorted(indices)  # the index of the rows with a null key is the last
            batch, places = outcomes.tag.take(indices)
            codes = pa.array(places, pa.int32())
            if indices[-1] == null_index:
                del indices[-1]
                codes = pa.array([None if place == len(indices) else place for place in places], pa.int32())
            selected = select_outcomes(outcomes, indices, len(places))
            for index in indices:
                outcomes.values[index] = None  # otherwise a slow row of the slice would keep this value in memory
            for output in _output(self._task, self._plan, batch, selected, codes):
                batches.append(output)
                rows += output.num_rows
                size += output.nbytes
                # Checked after each of a slice's output batches, because one row may have very many matches.
                if rows >= ROWS or size >= BYTES:
                    yield from _merge_batches(batches)
                    batches, rows, size = [], 0, 0
        yield from _merge_batches(batches)


def _merge_batches(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows of *batches* as one batch, in a list; an empty list for no batches."""
    if len(batches) < 2:
        return batches
    merged: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return merged


def _output(
    task: FrameTask, plan: Plan, batch: pa.RecordBatch, outcomes: Outcomes, codes: pa.Int32Array
) -> Iterator[pa.RecordBatch]:
    """
    Yield the output rows for the rows of *batch*.

    Args:
        task: The shape of the output.
        plan: The enrichment.
        batch: Input rows.
        outcomes: Outcomes of the keys of these rows.
        codes: For each row the index of its key in *outcomes*; null where the key is null.
    """
    if task.inner:
        # A row whose key is missing stays in the output if `on_missing` gave the key a value.
        matches = [
            status != MISSING or (bool(value) if plan.many else value is not None)
            for status, value in zip(outcomes.statuses, outcomes.values, strict=True)
        ]
        mask = pa.array(matches, pa.bool_()).take(codes).fill_null(False)
        batch, codes = batch.filter(mask), codes.filter(mask)
    if not batch.num_rows:
        return
    if task.explode:
        yield from _explode(task, plan, batch, outcomes, codes)
    else:
        yield from _append_columns(task, plan, plan.value_type, batch, outcomes, codes)


def _explode(
    task: FrameTask, plan: Plan, batch: pa.RecordBatch, outcomes: Outcomes, codes: pa.Int32Array
) -> Iterator[pa.RecordBatch]:
    """Yield the output rows for the rows of *batch*, one for each match; see `_output`."""
    size = max(1, min(ROWS, BYTES * batch.num_rows // max(1, batch.nbytes)))
    longest = max((len(value) for value in outcomes.values if value), default=1)
    # One row may be much wider than the others, and is copied for each of its matches. Measuring a row takes 2 us, so
    # rows are measured only when the longest list of matches could make too many bytes.
    row_bytes = None if longest * batch.nbytes <= BYTES else lambda row: batch.slice(row, 1).nbytes
    matches, pairs = explode_matches(outcomes, codes, size, BYTES, row_bytes)
    for rows, numbers in pairs:
        places = {number: place for place, number in enumerate(dict.fromkeys(n for n in numbers if n is not None))}
        yield from _append_columns(
            task,
            plan,
            plan.value_type.value_type,
            batch.take(pa.array(rows, pa.int32())),
            select_outcomes(matches, list(places), len(numbers)),
            pa.array([None if n is None else places[n] for n in numbers], pa.int32()),
        )


def _append_columns(
    task: FrameTask, plan: Plan, data_type: pa.DataType, batch: pa.RecordBatch, outcomes: Outcomes, codes: pa.Int32Array
) -> Iterator[pa.RecordBatch]:
    """Yield slices of *batch* with the values appended, one slice for each piece that `columns_of` yields."""
    start = 0
    for column in columns_of(outcomes, codes, data_type, plan.units):
        columns = column.flatten() if task.spread else [column]
        fields = [pa.field(name, column.type) for name, column in zip(task.names, columns, strict=True)]
        rows = batch.slice(start, len(column))
        yield pa.RecordBatch.from_arrays([*rows.columns, *columns], schema=pa.schema([*batch.schema, *fields]))
        start += len(column)
