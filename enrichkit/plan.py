"""
The data that the driver pickles and sends to the workers: one enrichment, which the driver has planned and checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from .interface import Connector, ConnectorConfig
    from .observe.sender import Address
    from .options import Options

__all__ = ["FallbackPlan", "FrameTask", "LimitPlan", "Plan", "SidePlan", "TierPlan"]


@dataclass(frozen=True)
class LimitPlan:
    """
    The store that holds one limit of the whole job. A `LimitPlan` is pickled with its `Plan`.

    Attributes:
        option: The option with the limit: `rate`, `limit` or `budget`.
        name: Name of the limit in the store.
        source: Name of the store in messages.
        connector: Class of the connector whose `lease_store` connects to the store.
        config: Config of the store.
    """

    option: str
    name: str
    source: str
    connector: type[Connector[Any]]
    config: ConnectorConfig


@dataclass(frozen=True, kw_only=True)
class SidePlan:
    """
    A fallback or a tier: a source besides the main source of a plan, with an engine of its own. A `SidePlan` is pickled
    with its `Plan`.

    Attributes:
        source: Name of the source in messages.
        connector: Class of the connector, which the worker builds from *config*.
        config: Config of the source; for a fallback that is a function of the key, the config of that function.
        capacity: Most calls in flight per worker process.
        batch_size: Most keys per call.
        options: Options of the lookups in this source, for example their timeout.
        engine_key: Fingerprint of everything that its engine depends on. Lookups with the same fingerprint share an
            engine.
        content_key: Fingerprint of everything that an answer depends on, see `Plan`.
        limits: Always empty, because a fallback or tier has no limits of the whole job.
    """

    source: str
    connector: type[Connector[Any]]
    config: ConnectorConfig
    capacity: int
    batch_size: int
    options: Options
    engine_key: str
    content_key: str = ""
    limits: tuple[LimitPlan, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FallbackPlan(SidePlan):
    """
    One fallback that makes lookups of its own: another source, or a function of the key, but no `default(value)`.

    Attributes:
        when: Names of the options that name the fallback, for example `on_error`.
        returns_lists: True for a function of the key, which with ``many=True`` returns the whole list of matches at
            once.
    """

    when: tuple[str, ...]
    returns_lists: bool = False


@dataclass(frozen=True, kw_only=True)
class TierPlan(SidePlan):
    """
    A source that is asked before the main source of a plan. The details of a row that it answers show its name as the
    origin.

    Attributes:
        write_back: Whether values that a later tier or the source of the plan finds are written to this tier.
        ttl: Seconds after which this tier forgets a value that was written to it; None: the tier decides by itself.
    """

    write_back: bool = False
    ttl: float | None = None


@dataclass(frozen=True)
class Plan:
    """
    One enrichment. The plan is pickled, and the Spark expression carries it to the workers.

    Attributes:
        source: Name of the source in messages.
        connector: Class of the connector, which the worker builds from *config*.
        config: Config of the source.
        capacity: Most calls in flight per worker process.
        batch_size: Most keys per call.
        window: Most rows of a task that may be under way: taken for lookup and not yet returned to Spark.
        options: Options of the lookups, with fallbacks in a form that a worker can unpickle, see `options_for_worker`.
        value_type: Arrow type of one value.
        default_values: Values of the fallbacks `default(value)`, converted to *value_type*, by option name.
        engine_key: Fingerprint of everything that an engine depends on. A worker adds a digest of the resolved secrets,
            so that a changed secret leads to another engine.
        cache_key: Fingerprint of everything that a cache depends on. A worker adds a digest of the resolved secrets and
            the types of the keys.
        many: True when a value is a list, with one element for each match of its key.
        fallbacks: The fallbacks that are sources or functions; the other fallbacks need no lookup.
        content_key: Fingerprint of everything that an answer depends on. Every program that makes the same lookup gets
            the same fingerprint. Empty if neither a journal nor an idempotency key needs it.
        run: Name of the run of a batch job, which is a part of idempotency keys; empty if nothing needs it.
        monitor: Address to which the tasks push their statistics; None: they push none.
        observers: Names of the observers whose hook `enrichkit_task_finished` is called.
        limits: The stores of the limits of the whole job.
        tiers: The sources that are asked before the source of the plan, in order.
        units: Units in which the details show what the calls of a row have cost; empty: the details show no costs.
    """

    source: str
    connector: type[Connector[Any]]
    config: ConnectorConfig
    capacity: int
    batch_size: int
    window: int
    options: Options
    value_type: pa.DataType
    default_values: Mapping[str, Any]
    engine_key: str
    cache_key: str
    many: bool = False
    fallbacks: tuple[FallbackPlan, ...] = ()
    content_key: str = ""
    run: str = ""
    monitor: Address | None = None
    observers: tuple[str, ...] = ()
    limits: tuple[LimitPlan, ...] = ()
    tiers: tuple[TierPlan, ...] = ()
    units: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameTask:
    """
    The work of one task of `enrich_frame`. Columns are numbered, because a name may occur twice.

    Attributes:
        plan: The pickled `Plan`.
        width: How many columns of the input, counted from the first, are columns of the output, too. Further columns of
            the input hold only keys or the barrier.
        keys: Numbers of the key columns.
        names: Names of the columns that the output has besides those of the input; several if the fields of a struct
            become columns.
        spread: True when the fields of the value become columns.
        inner: True when rows without a match are dropped.
        explode: True when a row is yielded once for each match.
        ordered: True when rows are yielded in the order of the input.
        barrier: Number of the barrier column; rows are not reordered across a change of its value. None: there is no
            barrier.
    """

    plan: bytes = field(repr=False)  # hidden, because the config in the plan may hold a password
    width: int
    keys: tuple[int, ...]
    names: tuple[str, ...]
    spread: bool = False
    inner: bool = False
    explode: bool = False
    ordered: bool = True
    barrier: int | None = None
