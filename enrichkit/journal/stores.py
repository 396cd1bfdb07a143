"""
Where the files of a journal are: `<path>/<table>/<folder of the scope>/<name>.journal`.

The files of a local folder are read through memory maps. The objects of an object store are copied once per process:
small ones into memory, and others into a temporary file without a name, which the system removes at the latest when the
process ends.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.fs as pafs

from ..errors import JournalError

__all__ = ["SUFFIX", "File", "LocalStore", "ObjectStore", "Store", "is_remote", "open_store", "storage_errors"]

SUFFIX = ".journal"
_SMALL = 1 << 20  # most bytes of an object that is kept in memory
_WITHOUT_FOLDERS = ("s3", "gcs", "abfs")  # stores without folders, where pyarrow makes an empty object for a folder


class File(NamedTuple):
    """
    A file of a journal.

    Attributes:
        path: Path of the file in the store, for `Store.read`.
        name: The last part of the path.
        size: Size in bytes.
        modified: Time of the last write, in seconds since 1970.
    """

    path: str
    name: str
    size: int
    modified: float


class Store(Protocol):
    """A place for the files of a journal. Paths are `/`-separated and relative to the root."""

    root: str

    def files(self, folder: str) -> list[File]:
        """Return the files in *folder*, sorted by name; an empty list if there is no such folder."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Return the names of the folders in *folder*; an empty list if there is no such folder."""
        ...

    def read(self, file: File) -> Any:
        """Return all bytes of *file* as a buffer that the caller reads once; to keep the bytes, it calls `keep`."""
        ...

    def keep(self, file: File, data: Any) -> Any:
        """Return the bytes *data* of *file* as a buffer that takes little memory, so that it can be kept for long."""
        ...

    def delete(self, file: File) -> None:
        """Delete *file* if it still exists; a `LocalStore` also deletes the file's folder if that is then empty."""
        ...


@contextmanager
def storage_errors(root: str, what: str) -> Iterator[None]:
    """
    Turn storage errors into a `JournalError`, which says that the journal at *root* cannot be *what* (a participle such
    as `read`).
    """
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise JournalError(
            f"The journal at {root!r} cannot be {what}: {type(error).__name__}: {error}. It needs a folder that all "
            "workers may read and write, with room on the disk."
        ) from error


def is_remote(path: str) -> bool:
    """Return whether *path*, a `Journal.path`, is on an object store, and not a folder of this machine."""
    return "://" in path and not path.startswith("file://")


def open_store(path: str) -> Store:
    """Return the store at *path*, a `Journal.path`."""
    if not is_remote(path):
        return LocalStore(path.removeprefix("file://"))
    with storage_errors(path, "reached"):
        try:
            file_system, root = pafs.FileSystem.from_uri(path)
        except (ValueError, NotImplementedError) as error:
            raise JournalError(
                f"Journal.path {path!r} is no URI that pyarrow knows ({error}); allowed are s3://, gs://, abfss:// and "
                "hdfs://, or the path of a folder."
            ) from error
    return ObjectStore(file_system, root)


class LocalStore:
    """Files in a folder that this machine sees, perhaps on a mounted file system."""

    def __init__(self, root: str) -> None:
        self.root = root

    def files(self, folder: str) -> list[File]:
        found = []
        for entry, state in self._entries(folder):
            # Only regular files are listed, because a reader that opens a pipe would block.
            if entry.name.endswith(SUFFIX) and stat.S_ISREG(state.st_mode):
                found.append(File(f"{folder}/{entry.name}", entry.name, state.st_size, state.st_mtime))
        return sorted(found, key=lambda file: file.name)

    def folders(self, folder: str) -> list[str]:
        return sorted(entry.name for entry, state in self._entries(folder) if stat.S_ISDIR(state.st_mode))

    def _entries(self, folder: str) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        try:
            with os.scandir(os.path.join(self.root, folder)) as entries:
                for entry in entries:
                    try:
                        yield entry, entry.stat()
                    except OSError:  # the entry has been deleted meanwhile, or is a broken link
                        continue
        except FileNotFoundError:
            return

    def read(self, file: File) -> Any:
        with pa.memory_map(os.path.join(self.root, file.path)) as mapped:
            # The buffer keeps the map alive after the file has been closed, so a map needs no open file.
            return mapped.read_buffer()

    def keep(self, file: File, data: Any) -> Any:
        # The caller has read all bytes of *data*, a memory map, so all its pages are in the memory of the process. A
        # new map has no pages in memory yet, so the process takes less memory once *data* is freed.
        return self.read(file)

    def delete(self, file: File) -> None:
        path = os.path.join(self.root, file.path)
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        try:
            os.rmdir(os.path.dirname(path))
        except OSError:  # the folder holds other files, so it stays
            return

    def path_for_writing(self, path: str) -> tuple[str, int]:
        """
        Make the folders of *path*. Return the full path, and the mode with which to create the file.

        Only the user may read and write the new file and folders. If the folder of the journal is writable for its
        group, the group may read and write them, too.
        """
        full = os.path.join(self.root, path)
        os.makedirs(self.root, 0o700, exist_ok=True)
        group = stat.S_IMODE(os.stat(self.root).st_mode) & 0o2070
        group = group if group & 0o020 else 0
        folder = self.root
        for part in path.split("/")[:-1]:
            folder = os.path.join(folder, part)
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                continue
            if group:
                os.chmod(folder, 0o700 | group)
        return full, 0o600 | group & 0o060


class ObjectStore:
    """Objects of a pyarrow file system. An object is written whole, and never changed."""

    def __init__(self, file_system: Any, root: str) -> None:
        self.file_system = file_system
        self.root = root

    def files(self, folder: str) -> list[File]:
        found = [
            File(f"{folder}/{info.base_name}", info.base_name, info.size or 0, (info.mtime_ns or 0) / 1e9)
            for info in self._infos(folder)
            if info.type == pafs.FileType.File and info.base_name.endswith(SUFFIX)
        ]
        return sorted(found, key=lambda file: file.name)

    def folders(self, folder: str) -> list[str]:
        return sorted(info.base_name for info in self._infos(folder) if info.type == pafs.FileType.Directory)

    def _infos(self, folder: str) -> list[Any]:
        where = f"{self.root}/{folder}".rstrip("/")
        infos: list[Any] = self.file_system.get_file_info(pafs.FileSelector(where, allow_not_found=True))
        return infos

    def read(self, file: File) -> Any:
        with self.file_system.open_input_stream(f"{self.root}/{file.path}", compression=None) as stream:
            return stream.read_buffer()

    def keep(self, file: File, data: Any) -> Any:
        if data.size <= _SMALL:
            return data
        with tempfile.NamedTemporaryFile(prefix="enrichkit-journal-") as copy:
            copy.write(data)
            copy.flush()
            with pa.memory_map(copy.name) as mapped:
                return mapped.read_buffer()

    def delete(self, file: File) -> None:
        try:
            self.file_system.delete_file(f"{self.root}/{file.path}")
        except FileNotFoundError:
            return

    def write(self, path: str, data: Any) -> None:
        """Write *data* as the object *path*."""
        full = f"{self.root}/{path}"
        if self.file_system.type_name not in _WITHOUT_FOLDERS:
            self.file_system.create_dir(os.path.dirname(full), recursive=True)
        with self.file_system.open_output_stream(full, compression=None) as stream:
            stream.write(data)
