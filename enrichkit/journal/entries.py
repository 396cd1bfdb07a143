"""
The entries of an index (an entry is a key with its answer): hashes in sorted arrays, and rows in Arrow batches.

Entries are numbered in the order in which they were read. Each entry takes 12 bytes of memory, for its hash and its
number. The keys and values stay in the batches, which are parts of memory-mapped files, or copies in memory if they are
small.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from ..errors import JournalError
from .columns import Hashes, hashes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Entries", "Numbers", "one_batch"]

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_MOST = 2**32 - 1


class Entries:
    """
    Batches of entries, and the sorted hashes by which the entries of a key are found.

    Args:
        key_parts: Number of key columns, which are the first columns of each batch.
    """

    def __init__(self, key_parts: int) -> None:
        self._key_parts = key_parts
        self._chunks: list[Any] = []
        self._ends: list[int] = []  # for each chunk, the number that follows that of its last entry
        self._runs: list[tuple[Hashes, Any]] = []  # sorted hashes, and the numbers of their entries
        self._new: list[Hashes] = []

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def add(self, chunk: Any) -> None:
        """Add the entries of *chunk*; `candidates` finds them only after the next `sort`."""
        if len(self) + len(chunk) > _MOST:
            raise JournalError(
                f"The journal has more than {_MOST:,} entries of one scope; expire some, or use run ids."
            )
        self._new.append(hashes_of(chunk.columns[: self._key_parts]))
        self._chunks.append(chunk)
        self._ends.append(len(self) + len(chunk))

    def sort(self) -> None:
        """
        Sort the added entries into a new run, i.e. a sorted array, and merge it with earlier runs that are not much
        longer. As in a log-structured merge tree, each entry is merged only a few times.
        """
        if not self._new:
            return
        hashes = np.concatenate(self._new)
        self._new = []
        first = len(self) - len(hashes)
        order = np.argsort(hashes)
        self._runs.append((hashes[order], (order + first).astype(np.uint32)))
        while len(self._runs) > 1 and len(self._runs[-2][0]) <= 2 * len(self._runs[-1][0]):
            parts = self._runs[-2:]
            del self._runs[-2:]
            hashes = np.concatenate([part[0] for part in parts])
            numbers = np.concatenate([part[1] for part in parts])
            order = np.argsort(hashes)
            self._runs.append((hashes[order], numbers[order]))

    def candidates(self, hashes: Hashes) -> tuple[Numbers, Numbers]:
        """
        Return the entries whose hash is one of *hashes*; because of collisions, a few may be entries of other keys.

        Returns:
            Two arrays of the same length: indices into *hashes*, ascending, and for each index the number of an entry
            with this hash.
        """
        order = np.argsort(hashes)  # looking the hashes up in sorted order takes a third of the time
        needles = hashes[order]
        places, numbers = [], []
        for run, run_numbers in self._runs:
            at = np.searchsorted(run, needles)
            looking = np.arange(len(needles))
            while True:  # each turn takes one entry per hash: the loop goes on while a hash has further entries
                inside = at < len(run)
                at, looking = at[inside], looking[inside]
                equal = run[at] == needles[looking]
                at, looking = at[equal], looking[equal]
                if not len(at):
                    break
                places.append(order[looking])
                numbers.append(run_numbers[at].astype(np.int64))
                at = at + 1
        if not places:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        found = np.concatenate(places)
        by_place = np.argsort(found, kind="stable")
        return found[by_place], np.concatenate(numbers)[by_place]

    def rows(self, numbers: Numbers) -> Any:
        """Return the entries with these *numbers* as one record batch, in the same order."""
        ends = np.array(self._ends)
        chunks = np.searchsorted(ends, numbers, side="right")
        first, last = int(chunks.min()), int(chunks.max())
        if first == last:
            return self._take(first, numbers)
        order = np.argsort(chunks, kind="stable")
        grouped, grouped_chunks = numbers[order], chunks[order]
        borders = [0, *(np.flatnonzero(np.diff(grouped_chunks)) + 1).tolist(), len(grouped)]
        parts = [
            self._take(int(grouped_chunks[start]), grouped[start:end]) for start, end in itertools.pairwise(borders)
        ]
        joined = one_batch(parts)
        if (order[1:] > order[:-1]).all():
            return joined
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return joined.take(pa.array(back))

    def _take(self, chunk: int, numbers: Numbers) -> Any:
        rows = numbers - (self._ends[chunk - 1] if chunk else 0)
        start = int(rows[0])
        if int(rows[-1]) - start == len(rows) - 1 and (np.diff(rows) == 1).all():
            # Adjacent rows are the common case, because a replay asks for keys in the order in which they were written.
            return self._chunks[chunk].slice(start, len(rows))
        return self._chunks[chunk].take(pa.array(rows))


def one_batch(batches: Sequence[Any]) -> Any:
    """Join *batches*, one or more with the same schema, into one record batch."""
    joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
    if len(joined) != 1:
        raise JournalError("The answers to the keys of one look-up take more than 2 GiB; ask for fewer keys at a time.")
    return joined[0]
