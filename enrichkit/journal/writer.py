"""
The writer of one task, which turns answers into blocks of a file.

docs/journal.md has the times per entry. They were measured on one core; each entry had a text of 12 characters and a
whole number.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa

from ..columnar import Keys
from ..errors import JournalError
from .blocks import Header, encode_block
from .columns import key_columns
from .sinks import SEGMENT_BYTES, open_sink
from .stores import storage_errors

if TYPE_CHECKING:
    from types import TracebackType

    from ..columnar import Key, Value
    from .config import Scope
    from .stores import Store
    from .table import Table

__all__ = ["Writer"]

BLOCK_ROWS = 16_384
BLOCK_BYTES = 4 << 20
LINGER = 0.005

_FEW = 64
"""
If `append` gets fewer entries than this, it gathers them as Python objects, and `flush` makes the Arrow arrays.
"""

_ARROW = pa.Array | pa.ChunkedArray

_Piece = tuple[Any, Any, Any]
"""
Gathered answers: keys, values, and flags that are false for a miss. They are either three lists of objects, or Arrow
arrays; the keys then are a list of arrays, one for each part of a key.
"""


class Writer:
    """
    The writer of the answers of one task in one process.

    `append` gathers answers, and `flush` writes them; both methods may be called from any thread. Each process and each
    attempt of a task has a writer of its own, and a writer has files of its own.

    Args:
        store: Where the journal is.
        table: Table to which the answers belong.
        scope: Scope of the run.
        task: Partition and attempt of the task, for example `3-0`; only for people to read.
        sync: Whether each write waits for the disk.
        linger: Seconds that gathered answers may wait; the first `append` after that time writes them. 0: each `append`
            writes its answers at once.
        segment_bytes: Bytes that are gathered before an object is written to an object store; ignored in a folder.
        clock: Function that returns the seconds since 1970.

    Attributes:
        entries: Number of entries that were handed to the sink; the sink of an object store may still hold some of them
            in memory.
        bytes: Number of bytes of the blocks with these entries.
    """

    def __init__(
        self,
        store: Store,
        table: Table,
        scope: Scope,
        *,
        task: str = "0-0",
        sync: bool = False,
        linger: float = LINGER,
        segment_bytes: int = SEGMENT_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table, self._linger, self._clock = table, linger, clock
        self._header = Header.of(table, scope.name, task, clock())
        stem = f"{table.digest}/{scope.folder}/{scope.mark}-{quote(task, safe='')}-{uuid.uuid4().hex}"
        self._root = store.root
        self._sink = open_sink(store, stem, self._header.encode(), sync=sync, segment_bytes=segment_bytes)
        self._pieces: list[_Piece] = []
        self._rows = self._bytes = 0
        self._oldest = 0.0  # when the oldest of the gathered pieces came, by `time.monotonic`
        self._gathering = threading.Lock()
        self._writing = threading.Lock()
        self.entries = self.bytes = 0

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def waiting(self) -> int:
        """Number of entries that wait for a flush."""
        return self._rows

    def append(
        self,
        keys: Sequence[Key],
        values: Sequence[Value] | pa.Array[Any],
        found: Sequence[bool] | pa.BooleanArray | None = None,
    ) -> None:
        """
        Gather n answers; write all gathered answers if they are many, or if the oldest has waited for `linger` seconds.

        Args:
            keys: n keys, none of them null: objects, tuples of several parts, or `Keys`.
            values: n values that `pyarrow.array` takes for the declared type, or an array of this type. For a miss,
                any such value may be given.
            found: n flags, false for a miss; None: no key is a miss.

        Raises:
            JournalError: A key or value does not fit the table, or the storage refuses the write. The gathered answers
                may then be missing from the journal; the writer can still be used.
        """
        size = len(keys)
        if len(values) != size or (found is not None and len(found) != size):
            raise JournalError(
                f"{size:,} keys came with {len(values):,} values; give one value, and one flag, for each."
            )
        if not size:
            return
        piece: _Piece | None = None
        if size >= _FEW or isinstance(keys, Keys) or any(isinstance(part, _ARROW) for part in (values, found)):
            piece = self._arrays(keys, values, found)
        with self._gathering:
            if not self._pieces:
                self._oldest = time.monotonic()
            if piece is not None:
                self._pieces.append(piece)
                self._bytes += piece[1].nbytes
            else:
                if not self._pieces or not isinstance(self._pieces[-1][1], list):
                    self._pieces.append(([], [], []))
                flags = repeat(True, size) if found is None else found
                for gathered, more in zip(self._pieces[-1], (keys, values, flags), strict=True):
                    gathered.extend(more)
            self._rows += size
            due = (
                self._rows >= BLOCK_ROWS
                or self._bytes >= BLOCK_BYTES
                or time.monotonic() - self._oldest >= self._linger
            )
        if due:
            self.flush()

    def _arrays(self, keys: Any, values: Any, found: Any) -> _Piece:
        columns = key_columns(keys, self._table.key_types)
        flags = pa.repeat(True, len(keys)) if found is None else pa.array(found, pa.bool_())
        return columns, self._value_column(values), flags

    def _value_column(self, values: Any) -> Any:
        try:
            if isinstance(values, pa.ChunkedArray):
                values = values.combine_chunks()
            if isinstance(values, pa.Array):
                if values.type != self._table.value_type:
                    raise TypeError
                return values
            return pa.array(values, self._table.value_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise JournalError(
                f"A value does not fit {self._table.value_type}, the declared type ({type(error).__name__}); a journal "
                "takes decoded values."
            ) from error

    def flush(self) -> None:
        """
        Write the gathered answers. In a folder, they survive the death of this process once the method has returned.

        On an object store, the answers survive only once the object to which they belong is written, i.e. when it has
        reached `segment_bytes` or the writer is closed.

        Raises:
            JournalError: The storage refuses the write, or a key or value does not fit the table. The gathered answers
                are then missing from the journal; the writer can still be used.
        """
        with self._writing:  # if another `flush` has taken the answers, wait until they are written
            with self._gathering:
                pieces, self._pieces = self._pieces, []
                self._rows = self._bytes = 0
            if not pieces:
                return
            with storage_errors(self._root, "written"):
                batch = self._batch(pieces)
                rows = len(batch)
                # One `append` may bring more rows than a block should have, so the batch is split into blocks.
                most = max(1, min(BLOCK_ROWS * 4, rows * BLOCK_BYTES * 4 // max(1, batch.nbytes)))
                for start in range(0, rows, most):
                    part = batch if rows <= most else batch.slice(start, most)
                    head, payload = encode_block(part, self._clock(), self._header.salt)
                    self._sink.write([head, payload])
                    self.entries += len(part)
                    self.bytes += len(head) + payload.size

    def _batch(self, pieces: list[_Piece]) -> Any:
        arrays = [self._arrays(*piece) if isinstance(piece[1], list) else piece for piece in pieces]
        columns = [[*keys, values, flags] for keys, values, flags in arrays]
        joined = columns[0] if len(columns) == 1 else map(pa.concat_arrays, zip(*columns, strict=True))
        return pa.record_batch([*joined], schema=self._table.schema)

    def close(self) -> None:
        """
        Write the answers that are still gathered, and close the file.

        Raises:
            JournalError: As `flush` does.
        """
        try:
            self.flush()
        finally:
            with self._writing, storage_errors(self._root, "written"):
                self._sink.close()
