"""
The states of batches on durable storage: `<journal>/<table>/batches/<folder of the scope>/<name>.json`.

A batch is *planned* before it is sent, *submitted* when the service has given it an id, and *collected* when its
answers are in the journal. The file `<name>.keys` holds the keys of the batch. This file is written before the batch is
planned, and deleted when the batch is collected. Each file is replaced as a whole, so if the driver is killed, a file
holds either the state before a step or the state after it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs

from ..errors import JournalError
from ..journal.stores import LocalStore, ObjectStore, Store, storage_errors

__all__ = ["State", "States"]


class State(msgspec.Struct, frozen=True, kw_only=True):
    """
    The state of one batch.

    Attributes:
        name: Name of the batch, 32 hexadecimal digits, by which the service finds the batch again.
        step: `planned`, `submitted` or `collected`.
        batch: Id that the service has given the batch; empty while the batch is planned.
        at: Time at which the batch was planned, in seconds since 1970.
        requests: Number of its requests.
        status: The service's word for the progress of the batch; empty until the service was asked.
        answered: Number of requests that the service has answered; once the batch is collected, only those with a
            usable answer.
        missing: Number of answers that say that the source does not hold the key; part of *answered*.
        failed: Number of requests without a usable answer, for each reason; empty until the batch is collected.
        spent: Cost of the batch, by unit; empty until the batch is collected.
    """

    name: str
    at: float
    requests: int
    step: str = "planned"
    batch: str = ""
    status: str = ""
    answered: int = 0
    missing: int = 0
    failed: dict[str, int] = {}
    spent: dict[str, float] = {}


class States:
    """
    The batches of one table of a journal, in one scope; a scope is one run, or all runs that share the journal.

    Args:
        store: The storage that holds the journal.
        folder: Path, below the journal, of the folder that holds the states.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self._store, self._folder = store, folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """
        Keep other processes of this machine from submitting or collecting the same batches. A journal in an object
        store is not locked.

        Raises:
            JournalError: Another process submits or collects these batches now.
        """
        if not isinstance(self._store, LocalStore):
            yield
            return
        with storage_errors(self._store.root, "written"), open(self._path("lock"), "wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JournalError(
                    f"Another process submits or collects these batches in the journal at {self._store.root!r} now; "
                    "two at a time could submit a key twice. Wait until it has ended."
                ) from None
            yield

    def all(self) -> list[State]:
        """Return the batches, the oldest first."""
        names = [name for name in self._names() if name.endswith(".json")]
        found = [msgspec.json.decode(self._read(name), type=State) for name in names]
        return sorted(found, key=lambda state: (state.at, state.name))

    def sweep(self) -> None:
        """Delete the files of batches whose planning was cut off, for example because their driver was killed."""
        names = self._names()
        for name in names:
            if name.endswith((".new", ".keys")) and f"{name.partition('.')[0]}.json" not in names:
                self._delete(name)

    def plan(self, columns: Sequence[Any], schema: pa.Schema) -> State:
        """Write the keys in *columns*, and then the state of a new batch with these keys; return the state."""
        batch = pa.record_batch(columns, schema=schema)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(batch)
        state = State(name=uuid.uuid4().hex, at=time.time(), requests=len(batch))
        self._write(f"{state.name}.keys", sink.getvalue())
        self.put(state)
        return state

    def keys(self, state: State) -> list[Any]:
        """Return the key columns of a batch that is not collected."""
        table = pa.ipc.open_stream(self._read(f"{state.name}.keys")).read_all().combine_chunks()
        return [column.chunk(0) for column in table.columns]

    def put(self, state: State) -> None:
        """Write *state* in place of the older state of its batch; delete the keys of a batch that is collected."""
        self._write(f"{state.name}.json", msgspec.json.encode(state))
        if state.step == "collected":
            self._delete(f"{state.name}.keys")

    def _path(self, name: str) -> str:
        assert isinstance(self._store, LocalStore)
        return self._store.path_for_writing(f"{self._folder}/{name}")[0]

    def _names(self) -> list[str]:
        if isinstance(self._store, ObjectStore):
            selector = pafs.FileSelector(f"{self._store.root}/{self._folder}", allow_not_found=True)
            return [info.base_name for info in self._store.file_system.get_file_info(selector)]
        try:
            return os.listdir(os.path.join(self._store.root, self._folder))
        except FileNotFoundError:
            return []

    def _read(self, name: str) -> bytes:
        with storage_errors(self._store.root, "read"):
            if isinstance(self._store, ObjectStore):
                path = f"{self._store.root}/{self._folder}/{name}"
                with self._store.file_system.open_input_stream(path, compression=None) as stream:
                    return bytes(stream.read())
            with open(self._path(name), "rb") as file:
                return file.read()

    def _write(self, name: str, data: Any) -> None:
        with storage_errors(self._store.root, "written"):
            if isinstance(self._store, ObjectStore):
                self._store.write(f"{self._folder}/{name}", data)
                return
            assert isinstance(self._store, LocalStore)
            path, mode = self._store.path_for_writing(f"{self._folder}/{name}")
            with open(f"{path}.new", "wb", opener=lambda file, flags: os.open(file, flags, mode)) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.new", path)

    def _delete(self, name: str) -> None:
        with storage_errors(self._store.root, "written"), contextlib.suppress(FileNotFoundError):
            if isinstance(self._store, ObjectStore):
                self._store.file_system.delete_file(f"{self._store.root}/{self._folder}/{name}")
            else:
                os.unlink(self._path(name))
