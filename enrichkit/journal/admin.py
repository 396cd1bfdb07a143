"""`enrichkit journal list | show | expire`: lists, shows and deletes answers without knowing their sources."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from .blocks import Header, RefusedFileError, Scan, read_header, scan
from .config import Scope
from .stores import storage_errors

if TYPE_CHECKING:
    from .stores import File, Store

__all__ = ["Entry", "Part", "expire_files", "find_entries", "list_parts"]

_NAME = re.compile(r"[0-9a-f]{20}-")  # the name of each file of a journal begins with the mark of its scope, a hash


@dataclass(frozen=True)
class Part:
    """
    The files that one scope has written for one table, i.e. for one source with its types.

    Attributes:
        source: Name of the source.
        table: Digest of the table.
        scope: Name of the scope, for example `run=nightly`.
        shared: Whether the answers belong to a shared journal, so that other jobs also find them.
        key_types: Types of the parts of a key.
        value_type: The declared type.
        files: Number of files.
        entries: Number of entries.
        bytes: Bytes of the files.
        oldest: Time of the first write, in seconds since 1970; None if there is no entry.
        newest: Time of the last write, in seconds since 1970; None if there is no entry.
        damaged: Number of places in the middle of files where blocks are damaged. Only the headers of blocks are
            checked, so damage inside answers is not counted.
        torn: Number of bytes at the ends of files that do not form a whole block.
    """

    source: str
    table: str
    scope: str
    shared: bool
    key_types: tuple[str, ...]
    value_type: str
    files: int
    entries: int
    bytes: int
    oldest: float | None
    newest: float | None
    damaged: int
    torn: int


@dataclass(frozen=True)
class Entry:
    """
    One answer.

    Attributes:
        source: Name of the source.
        scope: Name of the scope that wrote the answer.
        value: The value as a Python object; None for a miss.
        found: Whether the source held the key; False for a miss.
        written_at: Time of the write, in seconds since 1970.
        file: Path of the file, relative to the root of the journal.
    """

    source: str
    scope: str
    value: Any
    found: bool
    written_at: float
    file: str


def list_parts(store: Store) -> tuple[list[Part], dict[str, str]]:
    """
    Return the parts of a journal, sorted by source and scope, and the files that are in no part, each with the reason.

    Raises:
        JournalError: The storage cannot be read.
    """
    parts: dict[tuple[str, str, bool], list[tuple[File, Header, Scan, list[Any]]]] = {}
    refused: dict[str, str] = {}
    with storage_errors(store.root, "read"):
        for folder, file in _files(store):
            try:
                opened = _open(store, file)
            except (RefusedFileError, FileNotFoundError, PermissionError) as reason:
                refused[file.path] = str(reason)
                continue
            if opened is not None:
                header, data, state = opened
                blocks = list(scan(memoryview(data).cast("B"), state, header.salt, check=False))
                key = (header.table, header.scope, folder.endswith("/shared"))
                parts.setdefault(key, []).append((file, header, state, blocks))
    found = [_part(*key, files) for key, files in parts.items()]
    return sorted(found, key=lambda part: (part.source, part.scope, part.table)), refused


def _part(table: str, scope: str, shared: bool, files: list[tuple[File, Header, Scan, list[Any]]]) -> Part:
    header = files[0][1]
    times = [block.written_at for *_, blocks in files for block in blocks]
    return Part(
        source=header.source,
        table=table,
        scope=scope,
        shared=shared,
        key_types=tuple(str(field.type) for field in list(header.schema)[:-2]),
        value_type=str(header.schema.field("value").type),
        files=len(files),
        entries=sum(block.rows for *_, blocks in files for block in blocks),
        bytes=sum(file.size for file, *_ in files),
        oldest=min(times, default=None),
        newest=max(times, default=None),
        damaged=sum(state.damaged for _, _, state, _ in files),
        torn=sum(state.torn for _, _, state, _ in files),
    )


def find_entries(store: Store, *key: object) -> list[Entry]:
    """
    Return all answers to *key* in all tables and scopes, the oldest first.

    Args:
        store: The journal.
        key: The parts of the key. A text is converted to the type of the key column, so a command line can pass texts.

    Raises:
        JournalError: The storage cannot be read.
    """
    found: list[Entry] = []
    with storage_errors(store.root, "read"):
        for _, file in _files(store):
            try:
                opened = _open(store, file)
            except (RefusedFileError, FileNotFoundError, PermissionError):
                continue
            if opened is not None:
                found += _entries(file, *opened, key)
    return sorted(found, key=lambda entry: entry.written_at)


def _entries(file: File, header: Header, data: Any, state: Scan, key: tuple[object, ...]) -> Iterator[Entry]:
    """Yield the entries of *file* for *key*."""
    types = [field.type for field in list(header.schema)[:-2]]
    parts = [*map(_scalar, key, types)]
    if len(key) != len(types) or None in parts:
        return
    for block in scan(memoryview(data).cast("B"), state, header.salt):
        try:
            batch = pa.ipc.read_record_batch(data.slice(block.offset, block.length), header.schema)
            batch.validate()
        except (pa.ArrowException, OSError):
            continue
        for number, part in enumerate(parts):
            batch = batch.filter(pc.equal(batch.column(number), part))
        answers = zip(batch.column("value").to_pylist(), batch.column("found").to_pylist(), strict=True)
        for value, is_found in answers:
            yield Entry(header.source, header.scope, value, is_found, block.written_at, file.path)


def _scalar(part: object, data_type: Any) -> Any:
    """Return *part* as a scalar of *data_type*, or None when it cannot be converted to this type."""
    try:
        if isinstance(part, str) and not pa.types.is_string(data_type):
            return pa.scalar(part).cast(data_type)
        return pa.scalar(part, data_type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None


def expire_files(
    store: Store, older_than: float, *, scope: str | None = None, now: float | None = None
) -> tuple[int, int]:
    """
    Delete the files into which nothing was written for *older_than* seconds.

    A process that has read a file before the deletion still finds the file's answers until it refreshes its index. A
    task that is still writing to a deleted file continues in a new file.

    Args:
        store: The journal.
        older_than: Seconds since the last write to a file; files with a later write are kept.
        scope: Name of the scope whose files are deleted; None: the files of all scopes.
        now: The current time, in seconds since 1970; None: the time of the clock.

    Returns:
        Number of deleted files, and the sum of their sizes in bytes. Files that do not belong to a journal are kept.

    Raises:
        JournalError: The storage refuses the deletion.
    """
    limit = (time.time() if now is None else now) - older_than
    mark = "" if scope is None else Scope(scope).mark
    files = size = 0
    with storage_errors(store.root, "cleared"):
        for _, file in _files(store):
            # A file is chosen by its name and not by its header, because the header may be torn, and on an object store
            # reading it would cost a download.
            if file.modified <= limit and _NAME.match(file.name) and file.name.startswith(mark):
                store.delete(file)
                files, size = files + 1, size + file.size
    return files, size


def _files(store: Store) -> Iterator[tuple[str, File]]:
    for table in store.folders(""):
        for folder in store.folders(table):
            for file in store.files(f"{table}/{folder}"):
                yield f"{table}/{folder}", file


def _open(store: Store, file: File) -> tuple[Header, Any, Scan] | None:
    """
    Return the header of *file*, the bytes of *file*, and a `Scan` that begins after the header; None if the header is
    incomplete.
    """
    if not file.size:
        return None
    data = store.read(file)
    found = read_header(memoryview(data).cast("B"))
    return None if found is None else (found[0], data, Scan(found[1]))
