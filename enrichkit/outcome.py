"""The outcomes of the keys of one slice of rows. The engine writes the outcomes; the worker makes columns of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["ERROR", "MISSING", "OK", "OVER_BUDGET", "PENDING", "REJECTED", "STATUSES", "TIMEOUT", "Details", "Outcomes"]

# Status codes of keys, one byte each; `STATUSES` has the names. `null_key` is the status of rows with a null key. It
# has no constant here, because the engine never gets a null key.
PENDING, OK, MISSING, TIMEOUT, ERROR, REJECTED, OVER_BUDGET = range(7)
STATUSES = ("pending", "ok", "missing", "timeout", "error", "rejected", "over_budget", "null_key")


class Details:
    """
    What ``details=True`` shows of each of *n* keys besides value, status and error.

    Attributes:
        attempts: List of length n: the number of calls made for each key; 0 if the answer came from a stage before the
            source, such as the cache.
        latencies: List of length n: seconds from the start of each key's first call to its outcome; 0 without a call.
        origins: List of length n: for each key `call`, `shared`, `preload`, `reuse`, `journal`, `cache`, `stale`,
            `fallback`, or `tier:` with the name of the tier; None until the origin is known.
        paid: The cost of each key's calls, by the index of the key; only for sources that report costs. The code that
            writes the cost of a key to a row removes the entry, so that only one row of the key shows the cost.
    """

    __slots__ = ("attempts", "latencies", "origins", "paid")

    def __init__(self, n: int) -> None:
        self.attempts = [0] * n
        self.latencies = [0.0] * n
        self.origins: list[str | None] = [None] * n
        self.paid: dict[int, Mapping[str, float]] = {}

    def put(
        self,
        indices: Sequence[int],
        attempts: int,
        latency: float,
        origins: Sequence[str],
        paid: Mapping[str, float] | None = None,
    ) -> None:
        """
        Write *attempts*, *latency* and *paid* for all keys with *indices*, and for each of these keys one of *origins*.
        """
        for index, origin in zip(indices, origins, strict=True):
            self.attempts[index] = attempts
            self.latencies[index] = latency
            self.origins[index] = origin
        if paid:
            self.paid.update(dict.fromkeys(indices, paid))

    def select(self, indices: Sequence[int]) -> Details:
        """
        Return the details of the keys with *indices*, which may repeat or omit a key. The entries of `paid` move to the
        result.
        """
        selected = Details(0)
        selected.attempts = [self.attempts[index] for index in indices]
        selected.latencies = [self.latencies[index] for index in indices]
        selected.origins = [self.origins[index] for index in indices]
        if self.paid:
            selected.paid = {place: self.paid.pop(index) for place, index in enumerate(indices) if index in self.paid}
        return selected


class Outcomes:
    """
    The outcomes of the distinct keys of one slice of rows, as one list or array per attribute.

    Lists are used instead of one object per key for two reasons: Arrow takes the values as one list, and a bulk lookup
    of a million keys would otherwise make a million objects.

    Attributes:
        keys: The distinct keys, n of them.
        key_array: The keys as one Arrow column, for the check on the Spark thread whether slices have keys in common;
            None when slices are not compared.
        apart: True when none of the keys is in an earlier slice that is not returned to Spark yet. The run then need
            not search for lookups of the same keys.
        rows: How many rows the slice holds. The option `window` limits the number of rows in all slices under way.
        tag: Data of the caller, which the engine returns untouched.
        values: List of length n: the value of each key. None for a key without an outcome, for a key whose rows get a
            null, and for a key whose value is in *value_columns*.
        value_columns: Values that came as Arrow columns, each with the indices of its keys.
        statuses: The status codes of the n keys, one byte each.
        errors: For each key that failed, a redacted "ErrorClass: text", by the index of the key.
        details: Attempts, latencies and origins; None unless the user asked for details.
        counts: List of length n: the number of rows that have each key; needed in unordered mode only.
        unsettled: How many keys still have no outcome.
        bytes: Approximate size, in bytes, of the values that have come and are not yet passed on to the Spark thread.
        admitted: Time by the event loop's clock at which the engine got the slice.
        spent: Seconds that the tiers took before they passed keys on to the main source. These seconds are subtracted
            from the time that the main source has until the timeout.
        ticket: The slice's position in the queue of its run.
    """

    __slots__ = (
        "admitted",
        "apart",
        "bytes",
        "counts",
        "details",
        "errors",
        "key_array",
        "keys",
        "rows",
        "spent",
        "statuses",
        "tag",
        "ticket",
        "unsettled",
        "value_columns",
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
        key_array: Any = None,
    ) -> None:
        n = len(keys)
        self.key_array = key_array
        self.apart = False
        self.counts = counts
        self.bytes = 0
        self.admitted = self.spent = 0.0
        self.ticket: Any = None
        self.keys = keys
        self.rows = rows
        self.tag = tag
        self.values: list[Any] = [None] * n
        self.value_columns: list[tuple[Sequence[int], Any]] = []
        self.statuses = bytearray(n)
        self.errors: dict[int, str] = {}
        self.details = Details(n) if details else None
        self.unsettled = n

    def put(self, indices: Sequence[int], values: Any, statuses: bytes | bytearray) -> None:
        """
        Write the *values* (a list or a column) and *statuses* of the keys with *indices*; all three have the same
        length.
        """
        if not isinstance(values, list):
            self.value_columns.append((indices, values))
            _assign(self.statuses, indices, statuses)
        elif isinstance(indices, range):
            self.values[indices.start : indices.stop] = values
            self.statuses[indices.start : indices.stop] = statuses
        else:
            for index, value, status in zip(indices, values, statuses, strict=True):
                self.values[index] = value
                self.statuses[index] = status
        self.unsettled -= len(indices)

    def __repr__(self) -> str:
        return f"<Outcomes {self.rows} rows, {len(self.keys)} keys, {self.unsettled} unsettled>"


def _assign(statuses: bytearray, indices: Sequence[int], given: bytes | bytearray) -> None:
    if isinstance(indices, range):
        statuses[indices.start : indices.stop] = given
    else:
        for index, status in zip(indices, given, strict=True):
            statuses[index] = status
