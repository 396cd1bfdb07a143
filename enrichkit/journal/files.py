"""
The reader of a journal file, which turns complete blocks into batches of entries (keys with answers).

Small blocks that are near each other are joined into one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .blocks import Block, RefusedFileError, Scan, read_header, scan
from .entries import one_batch

if TYPE_CHECKING:
    from .blocks import Header
    from .stores import File, Store
    from .table import Table

__all__ = ["Chunk", "FileReader"]

SMALL_BLOCK = 64 << 10
GROUP_BYTES = 1 << 20
COPY_BYTES = 64 << 20
"""The most bytes that an index copies into memory: until this limit is reached, small blocks are copied and joined."""


@dataclass(frozen=True)
class Chunk:
    """
    A batch of entries.

    Attributes:
        batch: The entries.
        rows: Number of entries of each block.
        written_at: When each block was written.
        copied: Bytes of memory that the batch takes; 0 if it is a part of a mapped file.
    """

    batch: Any
    rows: Sequence[int]
    written_at: Sequence[float]
    copied: int


class FileReader:
    """
    A reader of one journal file, which remembers how far it has read the file.

    Attributes:
        file: The file as the last `read` was given it.
        header: Header of the file; None until the header has been written completely.
        state: The progress of the reader through the blocks of the file.
    """

    def __init__(self, store: Store, table: Table, file: File) -> None:
        self._store, self._table = store, table
        self.file = file
        self.header: Header | None = None
        self.state = Scan(0)

    def read(self, file: File, copied: int) -> Iterator[Chunk]:
        """
        Yield the entries that were written since the last call.

        Args:
            file: The file of this reader with its present size.
            copied: Bytes that the index has copied into memory so far; `read` copies blocks only up to `COPY_BYTES`.

        Raises:
            RefusedFileError: The file does not belong to this table.
        """
        self.file = file
        if not file.size:  # an empty file cannot be mapped into memory
            return
        buffer = self._store.read(file)
        data = memoryview(buffer).cast("B")
        if self.header is None:
            self._read_header(data)
            if self.header is None:
                return
        blocks = list(scan(data, self.state, self.header.salt))
        kept: Any = None
        for group in _groups(blocks):
            size = group[-1].offset + group[-1].length - group[0].offset
            is_small = size <= GROUP_BYTES and (len(group) > 1 or size <= SMALL_BLOCK)
            if is_small and copied + size <= COPY_BYTES:
                copied += size
                start = group[0].offset
                copy = pa.py_buffer(bytes(data[start : start + size]))
                yield from self._chunk(copy, [block._replace(offset=block.offset - start) for block in group], size)
                continue
            if kept is None:
                kept = self._store.keep(file, buffer)
            for block in group:
                yield from self._chunk(kept, [block], 0)

    def _read_header(self, data: memoryview) -> None:
        found = read_header(data)
        if found is None:
            return
        header, end = found
        if header.table != self._table.digest or not header.schema.equals(self._table.schema, check_metadata=True):
            raise RefusedFileError("it belongs to another source, or to other types")
        self.header, self.state.end = header, end

    def _chunk(self, data: Any, blocks: Sequence[Block], copied: int) -> Iterator[Chunk]:
        """
        Yield one batch with the entries of *blocks*, which are in *data*; yield nothing if all blocks are damaged.
        """
        batches, whole = [], []
        for block in blocks:
            try:
                batch = pa.ipc.read_record_batch(data.slice(block.offset, block.length), self._table.schema)
                batch.validate()
            except (pa.ArrowException, OSError, ValueError):
                batch = None
            if batch is None or len(batch) != block.rows or not block.rows:
                self.state.damaged += 1
                continue
            batches.append(batch)
            whole.append(block)
        if batches:
            joined = batches[0] if len(batches) == 1 else one_batch(batches)
            yield Chunk(joined, [block.rows for block in whole], [block.written_at for block in whole], copied)


def _groups(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Yield *blocks* in groups: small blocks near each other form one group, and each large block forms its own."""
    group: list[Block] = []
    for block in blocks:
        end = block.offset + block.length
        if group and (block.length > SMALL_BLOCK or end - group[0].offset > GROUP_BYTES):
            yield group
            group = []
        group.append(block)
        if block.length > SMALL_BLOCK:
            yield group
            group = []
    if group:
        yield group
