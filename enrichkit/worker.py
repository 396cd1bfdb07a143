"""
A task on a worker: Arrow batches in, a run on the engine of the plan, Arrow batches out.

A value lands on its row by the code of its key, never by the order of arrival: Spark does not check.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from .assemble import columns_of
from .columns import column_reader
from .connector import TaskInfo
from .decode import Decode, decoder
from .engine.cache import AnswerCache
from .engine.dispatch import Engine
from .engine.fallback import Stage
from .engine.handover import Handover
from .engine.loop import loop_thread
from .engine.run import Run
from .errors import ConfigError
from .key_function import KeyFunction
from .keys import encode, kinds_of, meet
from .matches import decoder_of_matches
from .outcome import Outcomes
from .plan import Plan, secrets_of

if TYPE_CHECKING:
    import pyarrow as pa

    from .connector import Key
    from .engine.handover import Mark
    from .engine.lookup import Part
    from .fallbacks import StagePlan

__all__ = ["arrow_batches", "begin", "frame_batches", "keys_of", "pandas_batches", "sql_batches"]


def arrow_batches(payload: bytes, batches: Iterable[Any]) -> Iterator[pa.Array[Any]]:
    """Enrich Arrow batches: each one array, or a tuple of arrays, of keys."""
    yield from _enrich(_plan(payload), (batch if isinstance(batch, tuple) else (batch,) for batch in batches))


def sql_batches(payload: bytes, batches: Iterable[Any]) -> Iterator[pa.Array[Any]]:
    """Do as `arrow_batches`, after a look at the number of keys, which Spark does not check."""
    plan = _plan(payload)

    def checked() -> Iterator[Any]:
        for batch in batches:
            given = len(batch) if isinstance(batch, tuple) else 1
            for config in (plan.config, *(stage.config for stage in plan.stages)):
                if not given or config.key_parts not in (None, given):
                    needs = "one or more" if config.key_parts is None else config.key_parts
                    raise ConfigError(
                        f"A SQL function of {plan.source!r} was called with {given} key{'s' * (given != 1)}; its "
                        f"{type(config).__name__} needs {needs}. Call it with as many key columns as the config has, "
                        "in its order."
                    )
            yield batch

    yield from arrow_batches(payload, checked())


def pandas_batches(payload: bytes, batches: Iterable[Any]) -> Iterator[Any]:
    """Enrich pandas batches: tuples of Series, as `pandas_border.keys_of` takes them."""
    from .pandas_border import frame_of, keys_of

    plan = _plan(payload)
    for array in _enrich(plan, map(keys_of, batches)):
        yield frame_of(array)


def frame_batches(payload: bytes, batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Enrich the record batches of a frame."""
    from .frame_batches import enrich_batches

    yield from enrich_batches(pickle.loads(payload), batches)  # noqa: S301  # as below


def _plan(payload: bytes) -> Plan:
    plan: Plan = pickle.loads(payload)  # noqa: S301  # made by our own driver, inside Spark's own pickled closure
    return plan


def _enrich(plan: Plan, batches: Iterable[Sequence[pa.Array[Any]]]) -> Iterator[pa.Array[Any]]:
    """Look the keys of *batches* up and yield arrays of values: as many rows, in the same order, in other sizes."""
    filled = (batch for batch in batches if len(batch[0]))
    first = next(filled, None)
    if first is None:
        return  # an empty partition: nothing is opened
    handover, process = begin(plan, first)
    every = chain((first,), filled)
    del first  # or it would stay until the task ends

    def slices() -> Iterator[Outcomes]:
        for batch in every:
            start, rows = 0, len(batch[0])
            while start < rows:
                size = min(handover.slice_rows, rows - start)
                keys, column, codes = keys_of(plan, [part.slice(start, size) for part in batch])
                yield Outcomes(keys, size, codes, details=plan.options.details, column=column)
                start += size

    for part in process(slices()):
        yield from columns_of(part.outcomes, part.outcomes.tag, plan.value_type)


def keys_of(
    plan: Plan, columns: Sequence[pa.Array[Any]], *, ordered: bool = True
) -> tuple[Sequence[Key], pa.Array[Any] | None, pa.Int32Array]:
    """
    Return the distinct keys of a slice, as the run of *plan* wants them, and the number of each row's key.

    Between them stand the keys as one Arrow column, where slices are compared.
    """
    connector = plan.connector
    keys, codes = encode(columns, in_order=connector.neighbours)
    plain = ordered and plan.options.cache is None
    # In a window of ten rounds, from which a source with neighbours makes its calls, there are too many to compare.
    compared = plain and len(columns) == 1 and plan.batch_size > 1 and not connector.neighbours
    column = keys.columns[0] if compared else None
    # A slice of neighbours is cut again and again, which is quicker for keys in columns.
    return keys if plain and (connector.key_columns or connector.neighbours) else keys.objects(), column, codes


def begin(
    plan: Plan, columns: Sequence[pa.Array[Any]], *, ordered: bool = True
) -> tuple[Handover, Callable[[Iterable[Outcomes | Mark]], Iterator[Part]]]:
    """
    Return the run of a task, and what takes its slices and gives its parts.

    *columns* are keys, of the types that all keys of the task have.
    """
    digest = _secrets_digest(plan)
    # The cache of a source finds an answer by the key as Python has it, where 1 is 1.0, though to the source it is not.
    kinds = kinds_of(columns)
    handover = _handover(plan, None if kinds is None else f"{digest} {kinds}", ordered=ordered)
    return handover, lambda slices: handover.process(slices, plan.engine_key + digest, lambda: _engine(plan))


def _handover(plan: Plan, cached_by: str | None, *, ordered: bool) -> Handover:
    loop, options = loop_thread(), plan.options
    cache = None
    if options.cache is not None:
        made = partial(AnswerCache, options.cache.ttl, options.cache.max_bytes, options.cache.missing_ttl)
        # Keys of a type that is not known yet share their answers with no other task.
        cache = made() if cached_by is None else loop.cache(plan.cache_key + cached_by, made)
    task = _task_info()
    return Handover(
        loop,
        plan.window,
        2 * plan.capacity * plan.batch_size,
        lambda emit: Run(
            plan.source,
            options,
            _decode(plan, plan),
            emit,
            fallbacks=dict(plan.fallbacks),
            stages=[_stage(plan, stage, task) for stage in plan.stages],
            cache=cache,
            task=task,
            salt=plan.engine_key,
            ordered=ordered,
            many=plan.many,
            neighbours=plan.connector.neighbours,
            columns=column_reader(plan.value_type, _encoding(plan)),
        ),
        meet if ordered else None,
    )


def _stage(plan: Plan, stage: StagePlan, task: TaskInfo) -> Stage:
    decode = _decode(plan, stage)
    return Stage(
        stage.source,
        stage.when,
        stage.capacity * stage.batch_size,
        stage.engine_key + _secrets_digest(stage),
        lambda: _engine(stage),
        lambda emit: Run(
            stage.source,
            stage.options,
            decode,
            emit,
            task=task,
            salt=plan.engine_key,
            ordered=False,
            many=plan.many,
        ),
    )


def _decode(plan: Plan, source: Plan | StagePlan) -> Decode:
    encoding = _encoding(source)
    if plan.many and source.connector is not KeyFunction:  # which returns the list itself
        return decoder_of_matches(plan.value_type, encoding)
    return decoder(plan.value_type, encoding)


def _encoding(source: Plan | StagePlan) -> Any:
    return source.connector(source.config).encoding


def _engine(plan: Plan | StagePlan) -> Engine:
    connector = plan.connector(plan.config)
    connector.capacity = plan.capacity  # the pool's size
    return Engine(connector, plan.capacity, plan.batch_size, name=plan.source, rate=plan.options.rate)


def _secrets_digest(plan: Plan | StagePlan) -> str:
    """Tell apart sources whose secrets have the same names but other contents, so that two users never share one."""
    digest = hashlib.sha256()
    for secret in secrets_of(plan.config):
        digest.update(hashlib.sha256(secret.resolve().encode("utf-8", "surrogateescape")).digest())
    return digest.hexdigest()


def _task_info() -> TaskInfo:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskInfo()
    batch = context.getLocalProperty("streaming.sql.batchId")
    return TaskInfo(
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        stage=context.stageId(),
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        batch_id=int(batch) if batch is not None else None,
    )
