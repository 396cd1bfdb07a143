"""
The functions that Spark calls on a worker. Each function takes batches of keys, looks the keys up with the engine of
the plan, and yields batches of values.

A value gets to its row by the code (the index) of the row's key, never by the order in which answers arrive, because
Spark would not notice a wrong order.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..engine.bridge import NOTHING
from ..interface import check_key_parts
from ..outcome import Outcomes
from .assemble import columns_of
from .log import log_to_file
from .task import begin, key_slices

if TYPE_CHECKING:
    from ..plan import Plan


__all__ = ["arrow_batches", "frame_batches", "pandas_batches", "sql_batches"]

log_to_file()


def arrow_batches(payload: bytes, batches: Iterable[Any]) -> Iterator[pa.Array[Any]]:
    """Look up the keys in Arrow batches, and yield their values; a batch is one array, or a tuple of arrays."""
    yield from _enrich(_plan(payload), (batch if isinstance(batch, tuple) else (batch,) for batch in batches))


def sql_batches(payload: bytes, batches: Iterable[Any]) -> Iterator[pa.Array[Any]]:
    """Yield the values like `arrow_batches`; first check the number of key columns, which Spark does not check."""
    plan = _plan(payload)

    def checked_batches() -> Iterator[Any]:
        for batch in batches:
            count = len(batch) if isinstance(batch, tuple) else 1
            for config in (plan.config, *(side.config for side in (*plan.tiers, *plan.fallbacks))):
                check_key_parts(
                    config,
                    count,
                    f"A SQL function of {plan.source!r} was called with",
                    "Call it with as many key columns as the config has, in its order.",
                    noun="key",
                )
            yield batch

    yield from arrow_batches(payload, checked_batches())


def pandas_batches(payload: bytes, batches: Iterable[Any]) -> Iterator[Any]:
    """
    Look up the keys in *batches*, and yield their values for each batch.

    A batch is a tuple of pandas Series, see `pandas_arrow.keys_of`.
    """
    from .pandas_arrow import frame_of, keys_of

    plan = _plan(payload)
    for array in _enrich(plan, map(keys_of, batches)):
        yield frame_of(array)


def frame_batches(payload: bytes, batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield the enriched record batches of a frame."""
    from .frame import enrich_batches

    yield from enrich_batches(pickle.loads(payload), batches)  # noqa: S301  # made by the job's own driver, see `_plan`


def _plan(payload: bytes) -> Plan:
    plan: Plan = pickle.loads(payload)  # noqa: S301  # made by the job's own driver, inside Spark's pickled closure
    return plan


def _enrich(plan: Plan, batches: Iterable[Sequence[pa.Array[Any]]]) -> Iterator[pa.Array[Any]]:
    """
    Look up the keys of *batches* and yield arrays of values.

    There are as many values as keys, in the order of the keys. The arrays may differ in length from the batches, and
    some arrays are empty.
    """
    filled = (batch for batch in batches if len(batch[0]))
    first = next(filled, None)
    if first is None:
        return  # the partition is empty: no connector is opened
    bridge = begin(plan, first)
    all_batches = chain((first,), filled)
    del first  # this reference would keep the batch in memory until the task ends

    def slices() -> Iterator[Outcomes]:
        for batch in all_batches:
            for _, rows, keys, key_array, codes in key_slices(plan, bridge, batch, 0, len(batch[0])):
                yield Outcomes(keys, rows, codes, details=plan.options.details, key_array=key_array)

    no_rows = Outcomes([], 0, pa.array([], pa.int32()), details=plan.options.details)
    for part in bridge.process(slices()):
        outcomes = no_rows if part is NOTHING else part.outcomes
        yield from columns_of(outcomes, outcomes.tag, plan.value_type, plan.units)
        del part, outcomes  # free the values: the next part may take long to come
