"""The input of `enrich_frame` on a worker: record batches -> slices of rows, and the rows of some keys of a slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from .engine.handover import Mark
from .outcome import Outcomes
from .worker import keys_of

if TYPE_CHECKING:
    from .engine.handover import Handover
    from .plan import Plan

__all__ = ["FrameTask", "Slice", "ordered", "unordered"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameTask:
    """
    What a worker does besides the lookups. Columns are numbered, because names may occur twice.

    Attributes:
        plan: Pickled.
        width: How many columns of the input are handed on; those behind them are keys.
        keys: The key columns.
        names: The columns that come to the input's; several take the fields of a struct.
        spread: The fields of the result are columns.
        inner: Rows without a match are dropped.
        explode: A row comes once for each match.
        ordered: Rows leave in order.
        barrier: The column whose change no row crosses.
    """

    plan: bytes
    width: int
    keys: tuple[int, ...]
    names: tuple[str, ...]
    spread: bool = False
    inner: bool = False
    explode: bool = False
    ordered: bool = True
    barrier: int | None = None


class Slice:
    """
    Some rows of one batch of the input, in the tag of their outcomes.

    Attributes:
        batch: Those rows that have not left, and, while they are the lesser part, those that have.
        codes: One number of a key per row, null where the key is null.
        counts: How many rows each key has. This and what follows is for unordered runs.
        row_bytes: About how many bytes a row takes.
    """

    __slots__ = ("_ends", "_left", "_order", "batch", "codes", "counts", "row_bytes")

    def __init__(self, batch: pa.RecordBatch, codes: pa.Int32Array) -> None:
        self.batch = batch
        self.codes = codes
        self.counts: list[int] | None = None

    def sort(self, keys: int) -> None:
        """Find the rows of each of the *keys*, and count them."""
        counted = pc.value_counts(self.codes.drop_null())
        counts = dict(zip(*(counted.field(n).to_pylist() for n in range(2)), strict=True))
        self.counts = [counts[key] for key in range(keys)]
        # By key, and behind them the rows without one; -1 when it has left.
        self._order: list[int] = pc.array_sort_indices(self.codes).to_pylist()
        self._ends = [*accumulate(self.counts), len(self._order)]
        self._left = 0  # of the rows in batch
        self.row_bytes = self.batch.nbytes // self.batch.num_rows

    def take(self, indices: Sequence[int]) -> tuple[pa.RecordBatch, list[int]]:
        """Remove the rows of the keys with *indices*; return them, and the place in *indices* of the key of each."""
        rows: list[int] = []
        places: list[int] = []
        for place, index in enumerate(indices):
            start, end = self._ends[index - 1] if index else 0, self._ends[index]
            rows += self._order[start:end]
            places += [place] * (end - start)
            self._order[start:end] = [-1] * (end - start)
        taken = self.batch.take(pa.array(rows, pa.int32()))
        self._left += len(rows)
        if self.batch.num_rows // 2 < self._left:
            self._shrink()
        return taken, places

    def _shrink(self) -> None:
        """Copy the rows that are still here: a slow one, or a call that goes on, would keep the whole input batch."""
        staying = [place for place, row in enumerate(self._order) if row >= 0]
        self.batch = self.batch.take(pa.array([self._order[place] for place in staying], pa.int32()))
        for row, place in enumerate(staying):
            self._order[place] = row
        self._left = 0


def ordered(
    task: FrameTask, plan: Plan, handover: Handover, batches: Iterable[pa.RecordBatch]
) -> Iterator[Outcomes | Mark]:
    """The rows of *batches* in slices, as the window allows."""
    for batch in batches:
        yield from _slices(task, plan, handover, batch, 0, batch.num_rows)


def unordered(
    task: FrameTask, plan: Plan, handover: Handover, batches: Iterable[pa.RecordBatch]
) -> Iterator[Outcomes | Mark]:
    """Like `ordered`, with the marks between slices."""
    last: Any = None
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
            yield from _slices(task, plan, handover, batch, start, end)
            start = end
        yield Mark.PAUSE


def _slices(
    task: FrameTask, plan: Plan, handover: Handover, batch: pa.RecordBatch, start: int, end: int
) -> Iterator[Outcomes]:
    """The rows of *batch* from *start* to *end*."""
    handed_on = batch.select(range(task.width))
    while start < end:
        size = min(handover.slice_rows, end - start)
        parts = [batch.column(n).slice(start, size) for n in task.keys]
        keys, column, codes = keys_of(plan, parts, ordered=task.ordered)
        tag = Slice(handed_on.slice(start, size), codes)
        if not task.ordered:
            tag.sort(len(keys))
        yield Outcomes(keys, size, tag, details=plan.options.details, counts=tag.counts, column=column)
        start += size
