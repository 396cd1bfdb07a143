"""
The answers that a run may use, found by key. A scope is the part of a journal that one run writes.

If a key has several answers, all processes always find the same one: the first that the scope itself has written. If
the scope has written none, they find the first that another scope has written. The first answer is used and not the
last, so that a replay gives each row the answer that the row got before, even if another answer was written later. The
scope's own answers take precedence, because tasks of two scopes may ask the source for the same key at the same time.
Each task then gives its rows the answer that it has got itself, even if the other task was the first to write one.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .blocks import RefusedFileError
from .columns import hashes_of, key_columns
from .entries import Entries, Numbers
from .files import FileReader
from .stores import storage_errors

if TYPE_CHECKING:
    from ..columnar import Key
    from .config import Scope
    from .files import Chunk
    from .stores import File, Store
    from .table import Table

__all__ = ["Hits", "Index"]

_log = logging.getLogger("enrichkit")


@dataclass(frozen=True)
class Hits:
    """
    The keys of a look-up that the journal holds.

    Attributes:
        places: Indices of these keys among the keys that were asked for, ascending, as an int64 array.
        values: Their values, as an array of the declared type; null for a miss.
        found: Whether the source held the key, as a boolean array.
    """

    places: pa.Int64Array
    values: pa.Array[Any]
    found: pa.BooleanArray

    def __len__(self) -> int:
        return len(self.places)


class Index:
    """
    An index of all answers that a run may use, whichever task or process has written them.

    An index knows the answers that were written before its last `refresh`. `refresh` and `lookup` may be called from
    any thread; a lock lets only one of these calls run at a time.

    Args:
        store: Where the journal is.
        table: Table to which the answers belong.
        scope: Scope of the run.
        max_age: Seconds after which an answer is not used any more; None: no limit.
        clock: Function that returns the seconds since 1970.

    Attributes:
        damaged: How many times blocks in the middle of a file were skipped, because their bytes are wrong.
        refused: The files that do not belong to this table or that this process has no right to read, with the reason.
    """

    def __init__(
        self,
        store: Store,
        table: Table,
        scope: Scope,
        *,
        max_age: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._table, self._scope, self._max_age, self._clock = store, table, scope, max_age, clock
        self._lock = threading.Lock()
        self.refused: dict[str, str] = {}
        self._said: set[str] = set()  # paths of the files whose damage was logged
        self._clear()

    def _clear(self) -> None:
        self._readers: dict[str, FileReader] = {}
        self._entries = Entries(len(self._table.key_types))
        self._copied = 0
        self._names: list[str] = []  # names of the files, in the order in which they were read
        # For each block: the number of the first entry after the block, the time when the block was written, and the
        # index of its file in `_names`.
        self._ends: list[int] = []
        self._written: list[float] = []
        self._file_of: list[int] = []
        self._blocks: tuple[Any, Any, Any] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def damaged(self) -> int:
        return sum(reader.state.damaged for reader in self._readers.values())

    def refresh(self) -> None:
        """
        Read the entries that were written since the last refresh, and forget the files that have been deleted.

        Raises:
            JournalError: The storage cannot be read.
        """
        with self._lock, storage_errors(self._store.root, "read"):
            try:
                self._refresh()
            except BaseException:
                self._clear()  # a file may have been read in part, so the next refresh reads all files again
                raise

    def _refresh(self) -> None:
        files = self._files()
        if not self._readers.keys() <= files.keys():
            self._clear()
        for file in files.values():
            reader = self._readers.get(file.path)
            # A file with an incomplete last block is read again even if its size is the same, because a network file
            # system may show the new size of a file before the written bytes.
            is_new = reader is None or reader.file.size != file.size or reader.state.torn
            if is_new and file.path not in self.refused:
                self._read(file)
        self._entries.sort()

    def _files(self) -> dict[str, File]:
        files = self._store.files(f"{self._table.digest}/{self._scope.folder}")
        # On a file system that ignores the case of names, two scopes may share a folder. So, unless the scope is
        # shared, a file is taken only if its name begins with the scope's mark, a hash of the scope's name.
        return {file.path: file for file in files if self._scope.shared or file.name.startswith(self._scope.mark)}

    def _read(self, file: File) -> None:
        reader = self._readers.get(file.path)
        if reader is None:
            reader = self._readers[file.path] = FileReader(self._store, self._table, file)
        damaged = reader.state.damaged
        try:
            for chunk in reader.read(file, self._copied):
                self._add(file, chunk)
        except (RefusedFileError, PermissionError) as refused:
            del self._readers[file.path]
            self.refused[file.path] = str(refused)
            _log.warning("The journal at %r ignores %s: %s.", self._store.root, file.path, refused)
            return
        except FileNotFoundError:  # the file was deleted after `_files` had listed it
            return
        if reader.state.damaged > damaged and file.path not in self._said:
            self._said.add(file.path)
            _log.warning(
                "The journal at %r has damaged blocks in %s; their keys are asked for again.",
                self._store.root,
                file.path,
            )

    def _add(self, file: File, chunk: Chunk) -> None:
        if not self._names or self._names[-1] != file.name:
            self._names.append(file.name)
        end = len(self._entries)
        for rows, written_at in zip(chunk.rows, chunk.written_at, strict=True):
            end += rows
            self._ends.append(end)
            self._written.append(written_at)
            self._file_of.append(len(self._names) - 1)
        self._entries.add(chunk.batch)
        self._copied += chunk.copied
        self._blocks = None

    def lookup(self, keys: Sequence[Key], scope: Scope | None = None) -> Hits:
        """
        Return the answers that the journal holds for *keys*.

        Args:
            keys: Distinct keys, none of them null.
            scope: Scope whose own answers take precedence if runs share the index; None: the scope of this index.

        Raises:
            JournalError: A key does not fit the types of the table.
        """
        columns = key_columns(keys, self._table.key_types)
        with self._lock:
            return self._lookup(columns, (scope or self._scope).mark)

    def _lookup(self, columns: Sequence[Any], mark: str) -> Hits:
        if not len(self._entries):
            return self._no_hits()
        places, numbers = self._entries.candidates(hashes_of(columns))
        places, numbers = self._young(places, numbers)
        if not len(places):
            return self._no_hits()
        rows = self._entries.rows(numbers)
        # Different keys may have the same hash, so the keys themselves are compared. If a comparison gives null, the
        # keys are treated as different.
        asked = columns
        if len(places) < len(columns[0]) or (np.diff(places) != 1).any():
            asked = [column.take(pa.array(places)) for column in columns]
        parts = [pc.equal(column, stored) for column, stored in zip(asked, rows.columns, strict=False)]
        mask = np.asarray(pc.fill_null(functools.reduce(pc.and_, parts), False))
        chosen = self._first(places, numbers, mask, mark)
        if chosen is not None:
            rows, places = rows.take(pa.array(chosen)), places[chosen]
        return Hits(pa.array(places), rows.column("value"), rows.column("found"))

    def _no_hits(self) -> Hits:
        return Hits(pa.array([], pa.int64()), pa.array([], self._table.value_type), pa.array([], pa.bool_()))

    def _young(self, places: Numbers, numbers: Numbers) -> tuple[Numbers, Numbers]:
        if self._max_age is None or not len(places):
            return places, numbers
        ends, written, _ = self._block_table()
        is_young = written[np.searchsorted(ends, numbers, side="right")] >= self._clock() - self._max_age
        return places[is_young], numbers[is_young]

    def _first(self, places: Numbers, numbers: Numbers, mask: Any, mark: str) -> Any:
        """
        Return the indices of the entries to use, one entry for each key that was found; None if all entries are used.
        """
        has_rivals = len(places) > 1 and (places[1:] == places[:-1]).any()
        if mask.all() and not has_rivals:
            return None
        chosen = np.flatnonzero(mask)
        if has_rivals and len(chosen):
            ends, written, file_of = self._block_table()
            blocks = np.searchsorted(ends, numbers[chosen], side="right")
            foreign = np.array([not name.startswith(mark) for name in self._names])[file_of]
            rank = np.unique(self._names, return_inverse=True)[1][file_of]
            order = np.lexsort((numbers[chosen], rank[blocks], written[blocks], foreign[blocks], places[chosen]))
            chosen = chosen[order]
            chosen = chosen[np.r_[True, places[chosen][1:] != places[chosen][:-1]]]
        return chosen

    def _block_table(self) -> tuple[Any, Any, Any]:
        """
        Return three arrays with one element for each block: the number of the first entry after the block, the time
        when the block was written, and the index of its file.
        """
        if self._blocks is None:
            self._blocks = np.array(self._ends), np.array(self._written), np.array(self._file_of)
        return self._blocks
