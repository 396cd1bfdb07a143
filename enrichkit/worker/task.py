"""Sets up one task on a worker: the keys of its slices of rows, and the bridge, run, fallbacks and engine for them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..engine.bridge import Bridge
from ..engine.cache import AnswerCache
from ..engine.engine import Engine
from ..engine.fallback import Fallback
from ..engine.job import Store
from ..engine.loop import loop_thread
from ..engine.preload import Table
from ..engine.refresh import BackgroundRun, Refresher, background_options
from ..engine.reuse import Reuse
from ..engine.run import HARD_LIMIT_EXTRA, Run
from ..engine.sizes import BytesEach, first_keys
from ..engine.tiers import Tier, TierRun
from ..engine.write_back import WriteBack
from ..functions import make_connector
from ..interface import TaskInfo
from ..observe.task import ObservedTask
from ..secrets import secrets_of
from ..values.decode import Decode, decoder
from ..values.decode_columns import column_reader
from ..values.encode import encoder
from ..values.first_answers import FirstAnswers
from .keys import encode, intersects, kinds_of, python_kinds_of
from .many import decoder_of_matches
from .spark_socket import spark_socket

if TYPE_CHECKING:
    import pyarrow as pa

    from ..engine.loop import LoopThread
    from ..interface import Key
    from ..options import Cache, Options
    from ..plan import FallbackPlan, Plan, SidePlan, TierPlan
    from .journaled import JournalStage

__all__ = ["KeySlice", "begin", "key_slices", "keys_of"]

RunT = TypeVar("RunT", bound=Run)

_row_bytes: dict[str, BytesEach] = {}
"""For each enrichment, how many bytes the values of a row take, as measured by the tasks of this process."""


def begin(plan: Plan, key_columns: Sequence[pa.Array[Any]], *, ordered: bool = True) -> Bridge:
    """
    Begin a task, and return its bridge to the event loop. The bridge takes slices of rows and yields them with
    outcomes.

    Args:
        plan: The enrichment.
        key_columns: Key columns of the first batch; all batches of the task have keys of the same types.
        ordered: Whether slices are returned in the order in which they were given.
    """
    return _bridge(plan, key_columns, ordered=ordered)


class KeySlice(NamedTuple):
    """
    The keys of a slice of rows of one batch.

    Attributes:
        start: Index of the first row in the batch.
        rows: Number of rows.
        keys: The distinct keys of the rows.
        key_array: The keys as one Arrow column, for the check whether two slices have keys in common; None: slices are
            not compared.
        codes: For each row the index of its key in *keys*; null where the key is null.
    """

    start: int
    rows: int
    keys: Sequence[Key]
    key_array: pa.Array[Any] | None
    codes: pa.Int32Array


def key_slices(
    plan: Plan, bridge: Bridge, key_columns: Sequence[pa.Array[Any]], start: int, end: int, *, ordered: bool = True
) -> Iterator[KeySlice]:
    """Yield the keys of the rows from *start* to *end* of a batch, in slices as large as the window allows now."""
    while start < end:
        rows = min(bridge.slice_rows, end - start)
        keys, key_array, codes = keys_of(plan, [part.slice(start, rows) for part in key_columns], ordered=ordered)
        if bridge.observed is not None:
            bridge.observed.saw(keys, codes)
        yield KeySlice(start, rows, keys, key_array, codes)
        start += rows


def keys_of(
    plan: Plan, key_columns: Sequence[pa.Array[Any]], *, ordered: bool = True
) -> tuple[Sequence[Key], pa.Array[Any] | None, pa.Int32Array]:
    """Return the `keys`, `key_array` and `codes` of one slice, see `KeySlice`, in the form that the run needs."""
    connector = plan.connector
    keys, codes = encode(key_columns, in_order=connector.neighbours)
    # A cache and an unordered run handle each key as a Python object; without them, keys stay together in bundles.
    in_bundles = ordered and plan.options.cache is None
    # With `neighbours`, the window has the keys of ten calls per slot; comparing slices of so many keys takes too long.
    is_compared = in_bundles and len(key_columns) == 1 and plan.batch_size > 1 and not connector.neighbours
    key_array = keys.columns[0] if is_compared else None
    # With `neighbours`, the engine cuts a slice again and again, which is quicker for keys in Arrow columns.
    in_columns = in_bundles and (connector.key_columns or connector.neighbours)
    return keys if in_columns else keys.objects(), key_array, codes


def _bridge(plan: Plan, key_columns: Sequence[pa.Array[Any]], *, ordered: bool) -> Bridge:
    loop, secrets, info = loop_thread(), _secrets_digest(plan), _task_info()
    start, few = 2 * plan.capacity * plan.batch_size, first_keys(plan.batch_size)
    # The first slices have as many rows as the first calls may have keys. With smaller slices, these calls would have
    # fewer keys than they may have.
    row_bytes = _row_bytes.setdefault(plan.cache_key, BytesEach(few))
    return Bridge(
        loop,
        plan.window,
        start,
        plan.source,
        plan.options,
        _run_maker(
            plan,
            loop,
            secrets,
            info,
            _cache(plan, loop, secrets, key_columns),
            _journal(plan, key_columns, info),
            key_columns,
            ordered=ordered,
        ),
        intersects if ordered else None,
        spark_socket(plan.cache_key),
        ObservedTask(plan, info),
        # While the size of the answers is not known, calls have few keys, and the window begins with the rows of two
        # such calls per slot.
        first=2 * plan.capacity * few if few is not None and row_bytes.each is None else start,
        row_bytes=row_bytes,
    )


def _cache(plan: Plan, loop: LoopThread, secrets: str, key_columns: Sequence[pa.Array[Any]]) -> AnswerCache | None:
    """Return the cache of the source for keys of the types of *key_columns*; None if the option `cache` is not set."""
    options = plan.options.cache
    if options is None:
        return None
    make_cache = partial(
        AnswerCache,
        options.ttl,
        options.max_bytes,
        options.missing_ttl,
        jitter=options.jitter,
        stale_if_error=options.stale_if_error,
        refresh_ahead=options.refresh_ahead,
    )
    # A cache finds an answer by the key as a Python object, where 1 equals 1.0. To the source these are two keys, so
    # keys of different types have caches of their own. While the type is not known, the task uses a cache of its own.
    kinds = kinds_of(key_columns)
    return make_cache() if kinds is None else loop.cache(f"{plan.cache_key}{secrets} {kinds}", make_cache)


def _journal(plan: Plan, key_columns: Sequence[pa.Array[Any]], info: TaskInfo) -> JournalStage | None:
    """Return the journal of the task; None if the option `journal` is not set, or the journal cannot be used."""
    if plan.options.journal is None:
        return None
    from .journaled import journal_stage

    return journal_stage(plan, key_columns, info)


def _run_maker(
    plan: Plan,
    loop: LoopThread,
    secrets: str,
    task: TaskInfo,
    cache: AnswerCache | None,
    journal: JournalStage | None,
    key_columns: Sequence[pa.Array[Any]],
    *,
    ordered: bool,
) -> Callable[[Callable[[Any], None]], Run]:
    """
    Return the function that makes the run on the loop thread.

    Steps that are slow or may block are done here, on the Spark thread, because the loop thread must not wait.
    """
    encoding = _encoding(plan)
    decode = _decoder(plan.value_type, encoding, matches=plan.many)
    columns = column_reader(plan.value_type, encoding)
    first_answers = None
    if plan.options.absent_fields == "fail":
        first_answers = FirstAnswers(plan.source, plan.value_type, encoding, plan.cache_key)
    make_tiers = [_tier_maker(plan, tier, loop, task) for tier in plan.tiers]
    make_table = _table_maker(plan, loop, secrets, key_columns, decode, encoding)
    make_fallbacks = [_fallback_maker(plan, fallback, loop, task) for fallback in plan.fallbacks]

    def make_run(emit: Callable[[Any], None]) -> Run:
        engine = loop.engine(plan.engine_key + secrets, lambda: _engine(plan))
        with ExitStack() as cleanup:  # if a step raises, this closes what the steps before it have made
            fallbacks = []
            for make_fallback in make_fallbacks:
                fallbacks.append(make_fallback())
                cleanup.callback(fallbacks[-1].close)
            tiers = []
            for make_tier in make_tiers:
                tiers.append(make_tier())
                cleanup.callback(tiers[-1].close)
            refresher = None
            if cache is not None and plan.options.cache is not None and _has_background(plan.options.cache):
                make_background = partial(_background_run, plan, engine, decode, task)
                refresher = Refresher(cache, make_background, engine.capacity)
                cleanup.callback(refresher.close)
            run = Run(
                engine,
                plan.source,
                plan.options,
                decode,
                emit,
                batch_size=plan.batch_size,
                default_values=dict(plan.default_values),
                fallbacks=fallbacks,
                # With a cache, answers must not be used longer than its time to live, so there is no `Reuse`.
                reuse=Reuse(plan.options.reuse_bytes) if plan.options.reuse and cache is None else None,
                preload=make_table() if make_table is not None else None,
                journal=journal,
                cache=cache,
                refresher=refresher,
                tiers=tiers,
                task=task,
                call_run=_call_run(plan.content_key, plan.run, task),
                salt=plan.engine_key,
                ordered=ordered,
                many=plan.many,
                neighbours=plan.connector.neighbours,
                columns=columns,
                first_answers=first_answers,
                looks_up=repr(plan.config),
                shows_costs=plan.options.details and bool(engine.connector.units),
            )
            cleanup.pop_all()
        if journal is not None:
            journal.fail = run.fail
        return run

    return make_run


def _has_background(cache: Cache) -> bool:
    """Return whether keys of *cache* are looked up in the background."""
    return cache.refresh_ahead > 0.0 or cache.stale_if_error > 0.0


def _background_run(
    plan: Plan, engine: Engine, decode: Decode, task: TaskInfo, emit: Callable[[Any], None]
) -> BackgroundRun:
    return _side_run(BackgroundRun, plan, plan, background_options(plan.options), engine, decode, task, emit)


def _side_run(
    kind: type[RunT],
    plan: Plan,
    side: Plan | SidePlan,
    options: Options,
    engine: Engine,
    decode: Decode,
    task: TaskInfo,
    emit: Callable[[Any], None],
) -> RunT:
    """Return an unordered run beside the main run of *plan*. The run asks the source of *side*, with *options*."""
    return kind(
        engine,
        side.source,
        options,
        decode,
        emit,
        batch_size=side.batch_size,
        task=task,
        call_run=_call_run(side.content_key, plan.run, task),
        salt=plan.engine_key,
        ordered=False,
        many=plan.many,
    )


def _table_maker(
    plan: Plan, loop: LoopThread, secrets: str, key_columns: Sequence[pa.Array[Any]], decode: Decode, encoding: Any
) -> Callable[[], Table] | None:
    """Return the function that finds or makes the preloaded table on the loop thread; None if the run has no table."""
    preload, kinds = plan.options.loads, kinds_of(key_columns)
    if preload is None or kinds is None:  # for a column of nulls from pandas, the type of the keys is not known yet
        return None
    # Keys of different types can be equal in Python, but are different keys to the source, so each type has its own
    # table.
    key = f"{plan.cache_key}{secrets} {kinds}"
    python_kinds = python_kinds_of(key_columns)
    limit = 2 * (plan.options.longest_wait or 0.0) + HARD_LIMIT_EXTRA

    def first_answers() -> FirstAnswers:
        return FirstAnswers(plan.source, plan.value_type, encoding, plan.cache_key)

    def make_table() -> Table:
        return Table(
            plan.source,
            lambda: make_connector(plan.connector, plan.config),
            python_kinds,
            plan.batch_size,
            decode,
            preload,
            patience=plan.options.stall_timeout,
            limit=limit,
            many=plan.many,
            first_answers=first_answers if plan.options.absent_fields == "fail" else None,
        )

    return lambda: loop.table(key, make_table)


def _fallback_maker(plan: Plan, fallback: FallbackPlan, loop: LoopThread, task: TaskInfo) -> Callable[[], Fallback]:
    """Return the function that makes *fallback* on the loop thread."""
    key = fallback.engine_key + _secrets_digest(fallback)
    decode = _decoder(plan.value_type, _encoding(fallback), matches=plan.many and not fallback.returns_lists)

    def make_fallback() -> Fallback:
        engine = loop.engine(key, lambda: _engine(fallback))
        return Fallback(
            fallback.source,
            fallback.when,
            fallback.capacity * fallback.batch_size,
            partial(_side_run, Run, plan, fallback, fallback.options, engine, decode, task),
        )

    return make_fallback


def _tier_maker(plan: Plan, tier: TierPlan, loop: LoopThread, task: TaskInfo) -> Callable[[], Tier]:
    """Return the function that makes *tier* on the loop thread."""
    key = tier.engine_key + _secrets_digest(tier)
    encoding = _encoding(tier)
    decode = _decoder(plan.value_type, encoding, matches=plan.many)
    encode = encoder(plan.value_type, tier.connector.store_encoding or encoding) if tier.write_back else None

    def make_tier() -> Tier:
        engine = loop.engine(key, lambda: _engine(tier))
        return Tier(
            tier.source,
            engine,
            partial(_side_run, TierRun, plan, tier, tier.options, engine, decode, task),
            tier.batch_size,
            None if encode is None else WriteBack(tier.source, engine, encode, tier.ttl, tier.batch_size),
        )

    return make_tier


def _decoder(value_type: pa.DataType, encoding: Any, *, matches: bool) -> Decode:
    return (decoder_of_matches if matches else decoder)(value_type, encoding)


def _encoding(plan: Plan | SidePlan) -> Any:
    return make_connector(plan.connector, plan.config).encoding


def _engine(plan: Plan | SidePlan) -> Engine:
    connector = make_connector(plan.connector, plan.config)
    connector.capacity = plan.capacity  # the size of the connector's pool
    limits = {each.option: Store(each.name, each.source, each.connector, each.config) for each in plan.limits}
    return Engine(
        connector,
        plan.capacity,
        name=plan.source,
        rate=plan.options.rate,
        limit=plan.options.limit,
        budget=plan.options.budget,
        stores=limits,
        tuned=plan.options.tuned,
    )


def _call_run(content_key: str, run: str, task: TaskInfo) -> str:
    """
    Return a text that identifies a source and the run. The text is the same in each replay of the run, so that calls
    have the same idempotency keys again. The text is empty if no connector needs such keys.
    """
    if not (content_key and run):
        return ""
    name = f"run={run}" if task.query_id is None else f"query={task.query_id},batch={task.batch_id}"
    return f"{content_key} {name}"


def _secrets_digest(plan: Plan | SidePlan) -> str:
    """
    Return a digest of the resolved secrets, so that users whose secrets differ share no engine and no cache.

    A secret that expires is in the digest only by its reference, not by its value, because a new token does not mean
    another user, and all tasks of the process use the same token.
    """
    digest = hashlib.sha256()
    for secret in secrets_of(plan.config):
        text = secret.resolve() if secret.ttl is None else repr(secret)
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest())
    return digest.hexdigest()


def _task_info() -> TaskInfo:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return TaskInfo()
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return TaskInfo(
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        stage=context.stageId(),
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        batch_id=int(batch_id) if batch_id is not None else None,
    )
