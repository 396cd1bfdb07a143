"""What became of the keys of one slice of rows: the engine writes it, the carrier reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["ERROR", "MISSING", "OK", "PENDING", "REJECTED", "STATUSES", "TIMEOUT", "Outcomes"]

# Status codes, one byte each. `null_key` is a row's status, not a key's: the engine never sees a null key.
PENDING, OK, MISSING, TIMEOUT, ERROR, REJECTED = range(6)
STATUSES = ("pending", "ok", "missing", "timeout", "error", "rejected", "null_key")


class Outcomes:
    """
    The outcomes of the distinct keys of one slice of rows, column by column.

    Columns instead of one object per key: the values go to Arrow as one list, and a bulk lookup of a million
    keys would otherwise make a million objects.

    Attributes:
        keys: The distinct keys, n of them.
        column: They as one Arrow column, where the Spark thread compares slices; None: nowhere.
        apart: None of the keys is in a slice that was admitted before and has not left.
        rows: How many rows of the window the slice holds.
        tag: The carrier's own data, handed back untouched.
        values: n values; None until settled, and for every status but `ok` and a fallback, and where *columns* have it.
        columns: Values that came as columns, each with the places of its keys.
        statuses: n status codes.
        errors: Index of a key to a redacted "ErrorClass: text"; only keys that failed are here.
        attempts: n counts of calls made for the key; 0 from the cache. None unless details are asked for.
        latencies: n seconds from first slot to outcome. None unless details are asked for.
        origins: n of `call`, `shared`, `cache`, `stale`, `fallback` or a tier. None unless details are asked for.
        counts: n numbers of rows that have the key; needed in unordered mode only.
        unsettled: How many keys still have no outcome.
        bytes: About how many bytes the settled values take.
        ticket: The slice's place in the queue of its run.
    """

    __slots__ = (
        "apart",
        "attempts",
        "bytes",
        "column",
        "columns",
        "counts",
        "errors",
        "keys",
        "latencies",
        "origins",
        "rows",
        "statuses",
        "tag",
        "ticket",
        "unsettled",
        "values",
    )

    def __init__(
        self,
        keys: Sequence[Any],
        rows: int,
        tag: Any = None,
        *,
        details: bool = False,
        counts: Sequence[int] | None = None,
        column: Any = None,
    ) -> None:
        n = len(keys)
        self.column = column
        self.apart = False
        self.counts = counts
        self.bytes = 0
        self.ticket: Any = None
        self.keys = keys
        self.rows = rows
        self.tag = tag
        self.values: list[Any] = [None] * n
        self.columns: list[tuple[Sequence[int], Any]] = []
        self.statuses = bytearray(n)
        self.errors: dict[int, str] = {}
        self.attempts: list[int] | None = [0] * n if details else None
        self.latencies: list[float] | None = [0.0] * n if details else None
        self.origins: list[str | None] | None = [None] * n if details else None
        self.unsettled = n

    def put(self, indices: Sequence[int], values: Any, statuses: bytes | bytearray) -> None:
        """Write the *values*, a list or a column, and *statuses* of the keys with *indices*, as many of each."""
        if not isinstance(values, list):
            self.columns.append((indices, values))
        elif isinstance(indices, range):
            self.values[indices.start : indices.stop] = values
        else:
            for index, value in zip(indices, values, strict=True):
                self.values[index] = value
        if isinstance(indices, range):
            self.statuses[indices.start : indices.stop] = statuses
        else:
            for index, status in zip(indices, statuses, strict=True):
                self.statuses[index] = status
        self.unsettled -= len(indices)

    def __repr__(self) -> str:
        return f"<Outcomes {self.rows} rows, {len(self.keys)} keys, {self.unsettled} unsettled>"
