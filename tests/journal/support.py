"""A journal in a folder of a test, written and read in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from enrichkit.journal import Scope
from enrichkit.journal.index import Index
from enrichkit.journal.stores import LocalStore, Store
from enrichkit.journal.table import Table
from enrichkit.journal.writer import Writer

NIGHTLY = Scope("run=nightly")
TEXTS = Table("users", "fingerprint", (pa.string(),), pa.string())


def write(
    store: Store | Path,
    entries: dict[Any, Any],
    *,
    table: Table = TEXTS,
    scope: Scope = NIGHTLY,
    block: int = 1000,
    now: float = 1000.0,
    task: str = "0-0",
) -> None:
    """Write *entries*, None for a miss, in blocks of *block* entries."""
    keys, values = list(entries), list(entries.values())
    with Writer(opened(store), table, scope, task=task, linger=60, clock=lambda: now) as writer:
        for start in range(0, len(keys), block):
            part = values[start : start + block]
            writer.append(keys[start : start + block], part, [value is not None for value in part])
            writer.flush()


def opened(store: Store | Path) -> Store:
    return LocalStore(str(store)) if isinstance(store, Path) else store


def index(
    store: Store | Path,
    *,
    table: Table = TEXTS,
    scope: Scope = NIGHTLY,
    max_age: float | None = None,
    now: float = 1000.0,
) -> Index:
    found = Index(opened(store), table, scope, max_age=max_age, clock=lambda: now)
    found.refresh()
    return found


def read(index_or_store: Index | Store | Path, keys: Any, **options: Any) -> dict[Any, Any]:
    """Return what the journal holds of *keys*, None for a miss."""
    found = index_or_store if isinstance(index_or_store, Index) else index(index_or_store, **options)
    hits = found.lookup(keys)
    values = zip(hits.places.to_pylist(), hits.values.to_pylist(), hits.found.to_pylist(), strict=True)
    assert hits.places.to_pylist() == sorted(set(hits.places.to_pylist()))
    return {keys[place]: value for place, value, is_found in values if is_found or value is None}


def only_file(folder: Path) -> Path:
    (file,) = folder.rglob("*.journal")
    return file
