"""The input of `enrich_frame` on a worker: cuts record batches into slices, and takes rows out of a slice by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..engine.bridge import Mark
from ..outcome import Outcomes
from .task import key_slices

if TYPE_CHECKING:
    from ..engine.bridge import Bridge
    from ..plan import FrameTask, Plan

__all__ = ["Slice", "ordered_slices", "unordered_slices"]


class Slice:
    """
    A slice of the rows of one input batch. The `tag` of the slice's `Outcomes` is this object.

    Attributes:
        batch: The rows that `take` has not returned yet, and perhaps rows that it has returned; the returned rows are
            at most half of the batch.
        codes: For each row the index of its key; null where the key is null.
        counts: Number of rows of each key; for unordered runs only, None before `sort`.
        row_bytes: Estimated bytes of one row; for unordered runs only.
    """

    __slots__ = ("_ends", "_left", "_order", "batch", "codes", "counts", "row_bytes")

    def __init__(self, batch: pa.RecordBatch, codes: pa.Int32Array) -> None:
        self.batch = batch
        self.codes = codes
        self.counts: list[int] | None = None

    def sort(self, key_count: int) -> None:
        """Sort the rows by key, and count the rows of each of the *key_count* keys."""
        counted = pc.value_counts(self.codes.drop_null())
        counts = dict(zip(*(counted.field(n).to_pylist() for n in range(2)), strict=True))
        self.counts = [counts[key] for key in range(key_count)]
        # Row numbers in the order of their keys, rows with a null key last; -1 for a row that `take` has returned.
        self._order: list[int] = pc.array_sort_indices(self.codes).to_pylist()
        self._ends = [*accumulate(self.counts), len(self._order)]  # where the rows of each key end in _order
        self._left = 0  # number of rows of self.batch that `take` has returned
        self.row_bytes = self.batch.nbytes // self.batch.num_rows

    def take(self, indices: Sequence[int]) -> tuple[pa.RecordBatch, list[int]]:
        """
        Remove and return the rows of the keys with *indices*, and for each row the position of its key in *indices*.

        An index that equals the number of keys stands for the rows with a null key.
        """
        rows: list[int] = []
        places: list[int] = []
        for place, index in enumerate(indices):
            start, end = self._ends[index - 1] if index else 0, self._ends[index]
            rows += self._order[start:end]
            places += [place] * (end - start)
            self._order[start:end] = [-1] * (end - start)
        removed = self.batch.take(pa.array(rows, pa.int32()))
        self._left += len(rows)
        if self.batch.num_rows // 2 < self._left:
            self._shrink()
        return removed, places

    def _shrink(self) -> None:
        """
        Replace the batch by a copy of the rows that `take` has not returned yet.

        Otherwise a single slow row, or a call that still runs although its rows have left, would keep the whole input
        batch in memory.
        """
        staying = [place for place, row in enumerate(self._order) if row >= 0]
        self.batch = self.batch.take(pa.array([self._order[place] for place in staying], pa.int32()))
        for row, place in enumerate(staying):
            self._order[place] = row
        self._left = 0


def ordered_slices(
    task: FrameTask, plan: Plan, bridge: Bridge, batches: Iterable[pa.RecordBatch]
) -> Iterator[Outcomes | Mark]:
    """Yield the rows of *batches* in slices as large as the window allows."""
    for batch in batches:
        yield from _slices(task, plan, bridge, batch, 0, batch.num_rows)


def unordered_slices(
    task: FrameTask, plan: Plan, bridge: Bridge, batches: Iterable[pa.RecordBatch]
) -> Iterator[Outcomes | Mark]:
    """Yield the rows of *batches* in slices as large as the window allows, with barriers and pauses between slices."""
    last: Any = None  # value of the barrier column in the last row of the previous batch
    for batch in batches:
        ends = [batch.num_rows]
        if task.barrier is not None:
            column = batch.column(task.barrier)
            ends = pc.run_end_encode(column.dictionary_encode("encode").indices).run_ends.to_pylist()
            if last is not None and not last.equals(column[0]):
                yield Mark.BARRIER
            last = column[-1]
        start = 0
        for end in ends:
            if start:
                yield Mark.BARRIER
            yield from _slices(task, plan, bridge, batch, start, end)
            start = end
        yield Mark.PAUSE


def _slices(
    task: FrameTask, plan: Plan, bridge: Bridge, batch: pa.RecordBatch, start: int, end: int
) -> Iterator[Outcomes]:
    """Yield the rows of *batch* from *start* to *end* in slices."""
    output = batch.select(range(task.width))
    key_columns = [batch.column(n) for n in task.keys]
    for first, rows, keys, key_array, codes in key_slices(plan, bridge, key_columns, start, end, ordered=task.ordered):
        tag = Slice(output.slice(first, rows), codes)
        if not task.ordered:
            tag.sort(len(keys))
        yield Outcomes(keys, rows, tag, details=plan.options.details, counts=tag.counts, key_array=key_array)
