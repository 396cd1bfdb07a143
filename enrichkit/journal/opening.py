"""The functions that give the engine, for a user's `Journal`, the writer of a task and the index of a process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from .index import Index
from .stores import open_store
from .writer import Writer

if TYPE_CHECKING:
    from .config import Journal, Scope
    from .table import Table

__all__ = ["index_of", "writer_of"]

_indexes: OrderedDict[tuple[Any, ...], Index] = OrderedDict()
_indexes_lock = threading.Lock()
_MOST_INDEXES = 8  # an LRU limit, because a streaming query makes a new index for each micro-batch


def index_of(journal: Journal, table: Table, scope: Scope) -> Index:
    """
    Refresh the index that this process keeps for *scope*, and return it.

    All runs with a shared journal get the same index, so each run has to pass its own scope to `Index.lookup`.

    Raises:
        JournalError: The storage cannot be read.
    """
    key = (journal.path, journal.max_age, table.digest, scope.folder if scope.shared else scope)
    with _indexes_lock:
        index = _indexes.get(key)
        if index is None:
            index = _indexes[key] = Index(open_store(journal.path), table, scope, max_age=journal.max_age)
        _indexes.move_to_end(key)
        while len(_indexes) > _MOST_INDEXES:
            _indexes.popitem(last=False)
    index.refresh()
    return index


def writer_of(journal: Journal, table: Table, scope: Scope, *, task: str) -> Writer:
    """
    Return a new writer; it makes its file at its first write. *task* names the partition and attempt of the task.

    Raises:
        JournalError: The storage cannot be reached.
    """
    return Writer(open_store(journal.path), table, scope, task=task, sync=journal.sync)
