"""The functions by which the engine gets the writer of a task and the index of a process for a user's `Journal`."""

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
_MOST_INDEXES = 8  # a streaming query has a scope for each micro-batch


def index_of(journal: Journal, table: Table, scope: Scope) -> Index:
    """
    Refresh the index that this process keeps for *scope*, and return it.

    Runs with a shared journal get the same index, and pass their scope to `Index.lookup`.

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
    Return a new writer for *task*, the partition and attempt of a task; the writer makes its file at its first write.

    Raises:
        JournalError: The storage cannot be reached.
    """
    return Writer(open_store(journal.path), table, scope, task=task, sync=journal.sync)
