"""
The sinks of a writer: one kind appends blocks to a file, the other gathers them into objects of several megabytes.

No sink ever shortens or changes what it has written, so a reader may map a file while it grows. After a failed write
the sink leaves the file as it is, and writes the next block to a new file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

from .stores import SUFFIX, LocalStore, ObjectStore, Store

__all__ = ["SEGMENT_BYTES", "FileSink", "SegmentSink", "Sink", "open_sink"]

SEGMENT_BYTES = 8 << 20
"""
Bytes that are gathered before an object is written; on an object store, a killed process loses about that many at most.
"""


class Sink(Protocol):
    """A destination of whole blocks. Each method may raise any error of the storage."""

    def write(self, parts: Sequence[Any]) -> None:
        """Append the block that consists of the buffers *parts*."""
        ...

    def close(self) -> None:
        """Write the blocks that are not written yet, and close the file if one is open."""
        ...


def open_sink(store: Store, stem: str, header: bytes, *, sync: bool, segment_bytes: int) -> Sink:
    """
    Return a sink for *store*.

    Args:
        store: Where the files are.
        stem: Path of the files below the root, without their number and suffix; no other writer uses this path.
        header: Bytes with which each file begins.
        sync: Whether a write waits for the disk.
        segment_bytes: Fewest bytes of an object on an object store, except for the last object.
    """
    if isinstance(store, ObjectStore):
        return SegmentSink(store, stem, header, segment_bytes)
    assert isinstance(store, LocalStore)
    return FileSink(store, stem, header, sync=sync)


class FileSink:
    """A sink that appends each block, with one write, to a file that no other process writes to."""

    def __init__(self, store: LocalStore, stem: str, header: bytes, *, sync: bool) -> None:
        self._store, self._stem, self._header, self._sync = store, stem, header, sync
        self._descriptor: int | None = None
        self._process = 0
        self._files = 0

    def write(self, parts: Sequence[Any]) -> None:
        descriptor = self._descriptor
        # A new file is needed if this process is a fork, because a fork must not write to the file of its parent. A new
        # file is also needed if the file has been deleted, because no reader would find blocks appended to it.
        if descriptor is not None and (self._process != os.getpid() or os.fstat(descriptor).st_nlink == 0):
            self.close()
            descriptor = None
        if descriptor is None:
            descriptor = self._open()
            parts = [self._header, *parts]
        try:
            _write_all(descriptor, parts)
            if self._sync:
                os.fdatasync(descriptor)
        except BaseException:
            self.close()
            raise

    def _open(self) -> int:
        self._process = os.getpid()
        name = f"{self._stem}-{self._process}-{self._files}{SUFFIX}"
        self._files += 1
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        path, mode = self._store.path_for_writing(name)
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:  # another process has just removed the empty folder: make it again
            path, mode = self._store.path_for_writing(name)
            descriptor = os.open(path, flags, 0o600)
        self._descriptor = descriptor
        if mode != 0o600:
            os.fchmod(descriptor, mode)
        if self._sync:
            folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)


def _write_all(descriptor: int, parts: Sequence[Any]) -> None:
    """Write *parts* with one system call, or with several calls if the system accepts only a part of them."""
    left = [memoryview(part).cast("B") for part in parts]
    written = os.writev(descriptor, left)
    while True:
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if not left:
            return
        left[0] = left[0][written:]
        written = os.writev(descriptor, left)


class SegmentSink:
    """A sink that joins blocks into objects of at least `segment_bytes`; only the last object may be smaller."""

    def __init__(self, store: ObjectStore, stem: str, header: bytes, segment_bytes: int) -> None:
        self._store, self._stem, self._header, self._most = store, stem, header, segment_bytes
        self._parts: list[bytes] = []
        self._bytes = 0
        self._files = 0

    def write(self, parts: Sequence[Any]) -> None:
        block = b"".join(parts)
        self._parts.append(block)
        self._bytes += len(block)
        if self._bytes >= self._most:
            self.close()

    def close(self) -> None:
        if not self._parts:
            return
        data = b"".join([self._header, *self._parts])
        self._parts, self._bytes = [], 0
        self._files += 1
        self._store.write(f"{self._stem}-{os.getpid()}-{self._files - 1}{SUFFIX}", data)
