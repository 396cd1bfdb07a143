"""Plans one enrichment on the driver: checks source, config, options and type, and makes a `Plan` of them."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, ConnectorError, FatalError, PermanentError
from ..functions import make_connector
from ..interface import Connector, check_key_parts
from ..observe.active import address
from ..observe.hooks import observers
from ..options import Options
from ..plan import Plan
from ..secrets import redact, secrets_of
from ..sources.config import check_no_fields, find_source
from ..sources.registry import require_driver
from .asking import ask
from .connections import hear_connections, warn_of_connections
from .content import content_of
from .fallbacks import default_values, options_for_worker, plan_fallbacks
from .job_limits import check_budget, engine_limits, plan_limits, without_stores
from .pickling import digest, identity_of
from .tiers import main_source, plan_tiers

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import SparkContext
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from ..interface import ConnectorConfig, Returns
    from ..plan import SidePlan, TierPlan
    from ..sources.tiers import Tiers

__all__ = ["check_preload", "is_local", "limits_of", "make_plan", "names_of", "why_unlisted", "without_secrets"]

OPTIONS = frozenset(field.name for field in fields(Options))
DESCRIBE_TIMEOUT = 30.0
CHECK_TIMEOUT = 2.0  # seconds for a question to the source that only serves to raise an error early
SECRET_MIN = 4  # characters; shorter secrets are not masked, as a message with *** for each "a" would be unreadable
WINDOW_MIN = 20_000
# Default of `window`, in rounds of calls; a round has `capacity` calls of `batch_size` keys. The rows of the window
# should fit into the processor's cache: on a busy machine, a Redis key took 0.9 us of CPU time in a window of 20,000
# rows and 1.3 us in a window of 80,000. If the connector sets `neighbours`, a larger window makes calls faster, because
# a call then gets keys that lie closer together. With 2,000 keys a call, PostgreSQL took 1.6 us per key with 4 rounds,
# 1.1 with 10 and 0.9 with 20, but with 20 rounds the worker loses as much time as the source saves.
WINDOW_ROUNDS, NEIGHBOURS_ROUNDS = 4, 10


def make_plan(
    source: str | ConnectorConfig | Tiers,
    keys: int | None,
    returns: Returns | None,
    options: Mapping[str, Any],
    *,
    many: bool = False,
    shape: Callable[[str, DataType], DataType] | None = None,
    names: Sequence[str | None] = (),
) -> tuple[Plan, DataType]:
    """
    Check all arguments of an enrichment; return its plan and the Spark type of one value.

    Args:
        source: Name of the source, its config, or tiers.
        keys: Number of key columns; None: only a worker will know the number, because the call is in SQL.
        returns: Declared type of one value, as for `enrich`.
        options: The keywords of `enrich`.
        many: Whether a value is a list, with one element for each match of its key.
        shape: Function that takes the name of the source and the type of one value, and returns the type of one answer;
            None: an answer has the type of one value.
        names: Name of each key column, None for an expression without a name; empty: no names are known.

    Raises:
        ConfigError: An option, the source, its config or the declared type is wrong. On the driver.
    """
    from ..values.types import arrow_type_of, ddl_of

    check_no_fields(options, OPTIONS, main_source(source), "enrich()")
    checked = Options.of(dict(options))
    name, connector, config = find_source(main_source(source))
    require_driver(connector)
    check_key_parts(
        config,
        keys,
        f"enrich({name!r}, ...) was given",
        "Name as many key columns as the config has, in its order.",
    )
    if names:
        config = config.for_columns(names)
    if returns is None:
        returns = config.returns
    declared = None if returns is None else arrow_type_of(returns)
    if declared is not None:
        if isinstance(returns, type):
            config = replace(config, returns=returns)  # a config may use details of this class that DDL lacks
        # A connector may return other values for another type, so the type is part of the config. It is set as the
        # DDL that `ddl_of` returns, so that users who write one type in different forms share an engine and a cache.
        config = replace(config, returns=ddl_of(declared[0]))
    check_secrets(config)
    instance = make_connector(connector, config)
    capacity, batch_size, window = limits_of(name, instance, checked)
    check_preload(name, instance, checked)
    check_budget(name, instance, checked.budget)
    if declared is not None:
        _check_with_source(name, instance, declared[1])
    spark_type, value_type = declared or arrow_type_of(_ask_type(name, instance))
    limits = plan_limits(checked, name, config)
    for each in limits:
        check_secrets(each.config)
    tiers = plan_tiers(source, checked, config.key_parts if keys is None else keys, spark_type, names, many=many)
    for tier in tiers:
        check_secrets(tier.config)
    fallbacks = plan_fallbacks(checked, config.key_parts if keys is None else keys, spark_type, names)
    if shape is not None:
        spark_type, value_type = arrow_type_of(shape(name, spark_type))
    identity = identity_of(connector, config)
    warn_of_connections(name, connector, config, capacity)
    return Plan(
        source=name,
        connector=connector,
        config=config,
        capacity=capacity,
        batch_size=batch_size,
        window=window,
        options=options_for_worker(without_stores(checked)),
        value_type=value_type,
        default_values=default_values(checked, value_type),
        # With `capacity="auto"`, calls of an engine have one batch size, because the tuner compares their latencies.
        engine_key=digest(*identity, capacity, checked.tuned and batch_size, *engine_limits(checked, limits)),
        cache_key=digest(
            *identity, value_type, checked.cache, checked.loads, many, *(tier.engine_key for tier in tiers)
        ),
        many=many,
        fallbacks=fallbacks,
        content_key=_content(connector, config, value_type, tiers)
        if checked.journal or instance.idempotency_keys
        else "",
        run=_name_of_run(checked, instance, (*tiers, *fallbacks)),
        monitor=address(),
        observers=observers(),
        limits=limits,
        tiers=tiers,
        units=tuple(instance.units) if checked.details else (),
    ), spark_type


def names_of(columns: Sequence[Column | str]) -> list[str | None]:
    """
    Return the name of each of *columns*: the last part of a name such as `t.title`, or an alias; None for a column
    without a name.

    A column shows its name only in its `repr`, which is the same for `col("a")` and `lit("a")`. So the result for
    `lit("a")` is the name `a`, too.
    """
    found = [each if isinstance(each, str) else _shown(each).removeprefix("Column<'")[:-2] for each in columns]
    matches = [
        re.fullmatch(r"(?:.* AS |(?:(?:\w+|`[^`]+`)\.)*)([^\W\d]\w*|`[^`]+`)", each, re.DOTALL) for each in found
    ]
    return [None if match is None else match[1].strip("`") for match in matches]


def _shown(column: Column) -> str:
    """Return the `repr` of *column*; an empty text for a field of an enrichment, which PySpark 3.5 cannot show."""
    try:
        return repr(column)
    except Exception as error:
        if type(error).__name__ != "AnalysisException":
            raise
        return ""


def _name_of_run(options: Options, instance: Connector[Any], beside: Sequence[SidePlan]) -> str:
    """
    Return the name of a batch job's run, which is a part of idempotency keys: the `run_id` of the journal, or a random
    name; an empty text if no idempotency keys are needed.
    """
    if not instance.idempotency_keys and not any(each.content_key for each in beside):
        return ""
    named = None if options.journal is None else options.journal.run_id
    return named or uuid.uuid4().hex


def _content(
    connector: type[Connector[Any]], config: ConnectorConfig, value_type: pa.DataType, tiers: Sequence[TierPlan]
) -> str:
    """Return the fingerprint of all that an answer depends on: the source, and the tiers that are asked before it."""
    content = content_of(connector, config, value_type)
    return (
        digest(content, *(content_of(tier.connector, tier.config, value_type) for tier in tiers)) if tiers else content
    )


def check_secrets(config: ConnectorConfig) -> None:
    """
    Raise a `ConfigError` when a `Secret` of *config* is absent from the environment of this process, and therefore from
    the environment of each worker.

    Only a classic session with a local master tells where its workers run; for other sessions, nothing is checked.
    Workers on this machine have the environment of this process, and the variables of `spark.executorEnv`. A secret in
    a file is not checked, because the file may be created before the job starts.
    """
    secrets = [secret for secret in secrets_of(config) if secret.kind == "env"]
    context = _local_context() if secrets else None
    if context is None:
        return
    for secret in secrets:
        if context.getConf().get(f"spark.executorEnv.{secret.name}") is None:
            secret.resolve()


def _local_context() -> SparkContext | None:
    """Return the context of a classic session whose workers run on this machine; None for any other session."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    context: SparkContext | None = getattr(session, "sparkContext", None) if session is not None else None
    return context if context is not None and re.fullmatch(r"local(\[.*\])?", str(context.master)) else None


def is_local() -> bool:
    """Return whether the active session is a classic one whose workers run on this machine."""
    return _local_context() is not None


def _check_with_source(name: str, connector: Connector[Any], declared: pa.DataType) -> None:
    """
    Raise a `ConfigError` if the source reports a type that does not fit into the type *declared*.

    The source is asked only if the workers run on this machine. Otherwise, perhaps only the workers can reach the
    source and its secrets. When the source cannot be asked, nothing is raised, because the worker will report the
    reason.
    """
    from ..values.types import arrow_type_of
    from .declared import check_declared

    describes = type(connector).describe is not Connector.describe
    if not describes or connector.encoding != "python" or not is_local():
        return
    undeclared = type(connector)(replace(connector.config, returns=None))
    told = _describe(undeclared, CHECK_TIMEOUT)
    if isinstance(told, str):
        check_declared(name, declared, arrow_type_of(told)[1])


def limits_of(name: str, instance: Connector[Any], options: Options) -> tuple[int, int, int]:
    """
    Return the effective capacity, batch size and window.

    Args:
        name: Name of the source.
        instance: Its connector, which need not be open.
        options: Checked options of the lookup.

    Raises:
        ConfigError: An option does not fit the connector. On the driver.
    """
    if options.attempt_timeout is not None and not instance.repeatable:
        raise ConfigError(
            f"attempt_timeout is {options.attempt_timeout!r}, but a call to {name!r} must not be made twice "
            f"(its {type(instance.config).__name__} says so). Leave attempt_timeout out, or declare the call "
            "idempotent."
        )
    if options.retry is not None and options.retry.on_missing and not instance.repeatable:
        raise ConfigError(
            f"retry has on_missing=True, which repeats a call that finds nothing, but a call to {name!r} must not be "
            f"made twice (its {type(instance.config).__name__} says so). Leave on_missing out, or declare the call "
            "idempotent."
        )
    given = options.max_capacity if isinstance(options.capacity, str) else options.capacity
    capacity = given or instance.capacity
    batch_size = options.batch_size or min(instance.batch_size, instance.max_batch_size)
    if batch_size > instance.max_batch_size:
        raise ConfigError(
            f"batch_size is {batch_size:,}; the connector {instance.name!r} takes at most {instance.max_batch_size:,} "
            f"keys per call. Set batch_size={instance.max_batch_size}.{instance.larger_batches and ' '}"
            f"{instance.larger_batches}"
        )
    rounds = NEIGHBOURS_ROUNDS if instance.neighbours else WINDOW_ROUNDS
    return capacity, batch_size, options.window or max(WINDOW_MIN, rounds * capacity * batch_size)


def why_unlisted(instance: Connector[Any]) -> str:
    """Return why the connector *instance* cannot list the keys of its source; an empty text if it can."""
    if type(instance).scan is Connector.scan:
        return f"The connector {instance.name!r} has no scan, which lists the keys."
    return instance.cannot_scan


def check_preload(name: str, instance: Connector[Any], options: Options) -> None:
    """Raise a `ConfigError` when *options* have `preload`, but *name* has a connector that cannot list its keys."""
    why = why_unlisted(instance)
    if options.preload and why:
        raise ConfigError(
            f"preload is {options.preload!r}, but {name!r} cannot be loaded. {why} Leave preload out; the keys of the "
            "rows are then looked up as they come."
        )


def without_secrets(text: str, config: ConnectorConfig) -> str:
    """Return *text* without the secrets of *config* and without the fields that its `repr` hides."""
    secrets = [getattr(config, field.name) for field in fields(config) if not field.repr]
    for secret in secrets_of(config):
        with contextlib.suppress(ConfigError):
            secrets.append(secret.resolve())
    return redact(text, *(value for value in secrets if isinstance(value, str) and len(value) >= SECRET_MIN))


def _ask_type(name: str, connector: Connector[Any]) -> str:
    """Ask the source *name* for the DDL of its values, and return it; raises `ConfigError`."""
    described = _describe(connector, DESCRIBE_TIMEOUT)
    if isinstance(described, str):
        return described
    how = f"Declare it, for example enrich({name!r}, ..., returns='string')."
    # `from None`, not `from described`: a traceback would show the texts of *described* and of its causes, which may
    # hold secrets.
    if isinstance(described, TimeoutError):
        raise ConfigError(
            f"The type of the values of {name!r} could not be asked within {DESCRIBE_TIMEOUT:g} s. {how}"
        ) from None
    if isinstance(described, BaseException):
        reason = without_secrets(str(described), connector.config)
        if not isinstance(described, ConnectorError | ConfigError):
            reason = f"{type(described).__name__}: {reason}."
        if isinstance(described, FatalError | PermanentError | ConfigError):
            how = ""  # the source or config is wrong, so a declared type would not help
        text = f"The type of the values of {name!r} could not be asked: {reason} {how}"
        raise ConfigError(text.rstrip()) from None
    raise ConfigError(f"The type of the values of {name!r} is not known: the source cannot tell it. {how}")


def _describe(connector: Connector[Any], timeout: float) -> str | BaseException | None:
    """Return the result of `Connector.describe`, or the exception that ended it; *timeout* is passed to `ask`."""

    async def question() -> str | None:
        described = await connector.describe()
        # Only a connector with this encoding is asked how many connections its source accepts, because it is connected
        # after `open`. Other connectors connect only at the first lookup.
        if connector.encoding == "python":
            await hear_connections(connector)
        return described

    return ask(connector, question, timeout)
