"""What one enrichment is, worked out and checked on the driver: everything that a worker needs to run it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from .config import find_source
from .errors import ConfigError, ConnectorError
from .fallbacks import StagePlan, as_shipped, default_values, plan_stages
from .options import Options
from .registry import require_driver
from .secrets import Secret, redact
from .shipping import digest, functions_of, identity_of, pickled

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from .connector import Connector, ConnectorConfig, Returns

__all__ = ["Plan", "limits_of", "make_plan", "pack", "secrets_of", "without_secrets"]

DESCRIBE_TIMEOUT = 30.0
SECRET_MIN = 4  # characters; to blot out each "a" would hide the message and no secret
WINDOW_MIN = 20_000
# Rounds of calls. What waits has to stay in the processor's cache: on a busy machine a Redis key took 0.9 us CPU in a
# window of 20,000 rows and 1.3 in one of 80,000. A source with neighbours gains more by a choice among many keys:
# PostgreSQL, 2,000 keys a call, 1.6 us per key with 4 rounds, 1.1 with 10 and 0.9 with 20, where the worker loses it.
WINDOW_ROUNDS, NEIGHBOURS_ROUNDS = 4, 10


@dataclass(frozen=True)
class Plan:
    """
    One enrichment. Pickled into the expression.

    Attributes:
        source: What messages call the source.
        connector: Built on the worker from *config*.
        config: Of the source.
        capacity: Calls in flight per worker process.
        batch_size: Keys per call.
        window: Rows admitted and not yet emitted, per task.
        options: Flow control; of a fallback only whether it is a value, see `as_shipped`.
        value_type: Arrow type of one value.
        fallbacks: Decoded `default(...)` values by option name.
        engine_key: Fingerprint of what an engine depends on; a worker adds a digest of the resolved secrets.
        cache_key: Likewise of what a cache depends on.
        many: A value is a list, with one element for each match of its key.
        stages: The fallbacks that have to be asked.
    """

    source: str
    connector: type[Connector[Any]]
    config: ConnectorConfig
    capacity: int
    batch_size: int
    window: int
    options: Options
    value_type: pa.DataType
    fallbacks: Mapping[str, Any]
    engine_key: str
    cache_key: str
    many: bool = False
    stages: tuple[StagePlan, ...] = ()

    @property
    def shipped(self) -> list[Any]:
        """The classes and functions that may have to travel by value."""
        of_stages = [part for stage in self.stages for part in stage.shipped]
        return [self.connector, type(self.config), *functions_of(self.config), *of_stages]


def make_plan(
    source: str | ConnectorConfig,
    keys: int | None,
    returns: Returns | None,
    options: Mapping[str, Any],
    *,
    many: bool = False,
    shape: Callable[[str, DataType], DataType] | None = None,
) -> tuple[Plan, DataType]:
    """
    Check everything and return the plan, and the Spark type of one value.

    *keys* is how many key columns there are; None: only a worker will know, because the call is in SQL.
    *shape* gets the source's name and the declared type, and returns the type that is wanted of it.

    Raises:
        ConfigError: An option, the source, its config or the declared type is wrong. On the driver.
    """
    from .types import arrow_type_of, ddl_of

    checked = Options.of(dict(options))
    name, connector, config = find_source(source)
    require_driver(connector)
    if keys is not None and config.key_parts not in (None, keys):
        raise ConfigError(
            f"enrich({name!r}, ...) was given {keys} key column{'s' * (keys != 1)}; its {type(config).__name__} needs "
            f"{config.key_parts}. Name as many key columns as the config has, in its order."
        )
    given = returns if returns is not None else config.returns
    declared = None if given is None else arrow_type_of(given)
    if declared is not None:
        # A connector may answer differently for another type. It gets one spelling of each type, so that who declares
        # the same in other words shares its engine and cache.
        config = replace(config, returns=ddl_of(declared[0]))
    instance = connector(config)
    capacity, batch_size, window = limits_of(name, instance, checked)
    spark_type, value_type = declared or arrow_type_of(_described(name, instance))
    stages = plan_stages(checked, config.key_parts if keys is None else keys, spark_type)
    if shape is not None:
        spark_type, value_type = arrow_type_of(shape(name, spark_type))
    identity = identity_of(connector, config)
    return Plan(
        source=name,
        connector=connector,
        config=config,
        capacity=capacity,
        batch_size=batch_size,
        window=window,
        options=as_shipped(checked),
        value_type=value_type,
        fallbacks=default_values(checked, value_type),
        engine_key=digest(*identity, capacity, batch_size, checked.rate),
        cache_key=digest(*identity, value_type, checked.cache, many),
        many=many,
        stages=stages,
    ), spark_type


def limits_of(name: str, instance: Connector[Any], options: Options) -> tuple[int, int, int]:
    """Return the effective capacity, batch size and window; *instance* is a connector that need not be open."""
    if options.attempt_timeout is not None and not instance.repeatable:
        raise ConfigError(
            f"attempt_timeout is {options.attempt_timeout}, but a call to {name!r} must not be made twice "
            f"(its {type(instance.config).__name__} says so). Leave attempt_timeout out, or declare the call "
            "idempotent."
        )
    if options.retry is not None and options.retry.on_missing and not instance.repeatable:
        raise ConfigError(
            f"retry has on_missing=True, but a call to {name!r} must not be made twice (its "
            f"{type(instance.config).__name__} says so), and one that found nothing was made. Leave on_missing out, or "
            "declare the call idempotent."
        )
    capacity = options.capacity or instance.capacity
    batch_size = options.batch_size or min(instance.batch_size, instance.max_batch_size)
    if batch_size > instance.max_batch_size:
        raise ConfigError(
            f"batch_size is {batch_size:,}; the connector {instance.name!r} takes at most {instance.max_batch_size:,} "
            f"keys per call. Set batch_size={instance.max_batch_size}."
        )
    rounds = NEIGHBOURS_ROUNDS if instance.neighbours else WINDOW_ROUNDS
    return capacity, batch_size, options.window or max(WINDOW_MIN, rounds * capacity * batch_size)


def secrets_of(config: Any) -> list[Secret]:
    """Return the secret references in *config*, at any depth, in the order of its fields."""
    if isinstance(config, Secret):
        return [config]
    if is_dataclass(config) and not isinstance(config, type):
        return [secret for f in fields(config) for secret in secrets_of(getattr(config, f.name))]
    if isinstance(config, Mapping):
        return [secret for value in config.values() for secret in secrets_of(value)]
    if isinstance(config, tuple | list | frozenset):
        return [secret for value in config for secret in secrets_of(value)]
    return []


def without_secrets(text: str, config: ConnectorConfig) -> str:
    """Return *text* without what *config* refers to as secrets, and without what it hides from its `repr`."""
    known = [getattr(config, field.name) for field in fields(config) if not field.repr]
    for secret in secrets_of(config):
        with contextlib.suppress(ConfigError):
            known.append(secret.resolve())
    return redact(text, *(value for value in known if isinstance(value, str) and len(value) >= SECRET_MIN))


def pack(plan: Plan) -> bytes:
    """
    Pickle *plan* for the workers.

    A connector class of an installed package travels by reference. One of a notebook, a script or a module beside it
    travels by value, because the workers do not have that module.
    """
    return pickled(plan, *plan.shipped)


def _described(name: str, connector: Connector[Any]) -> str:
    """Ask the source for the type of its values; in a thread of its own, because a notebook has a loop already."""
    result: list[str | BaseException | None] = []

    async def ask() -> str | None:
        try:
            await connector.open()
            return await connector.describe()
        finally:
            await connector.close()

    def answer() -> None:
        try:
            result.append(asyncio.run(asyncio.wait_for(ask(), DESCRIBE_TIMEOUT)))
        except BaseException as error:  # noqa: BLE001  # handed to the caller below
            result.append(error)

    thread = threading.Thread(target=answer, name="enrichkit-describe", daemon=True)
    thread.start()
    # A connector may not obey, nor a name server answer, which asyncio.run would wait for without end.
    thread.join(DESCRIBE_TIMEOUT + 1.0)
    described = result[0] if result else TimeoutError()
    if isinstance(described, str):
        return described
    how = f"Declare it, for example enrich({name!r}, ..., returns='string')."
    # Not from *described*: its text, or that of what it came from, may hold secrets, and a traceback shows them all.
    if isinstance(described, TimeoutError):
        raise ConfigError(
            f"The type of the values of {name!r} could not be asked within {DESCRIBE_TIMEOUT:g} s. {how}"
        ) from None
    if isinstance(described, BaseException):
        said = without_secrets(str(described), connector.config)
        if not isinstance(described, ConnectorError | ConfigError):
            said = f"{type(described).__name__}: {said}."
        raise ConfigError(f"The type of the values of {name!r} could not be asked: {said} {how}") from None
    raise ConfigError(f"The type of the values of {name!r} is not known: the source cannot tell it. {how}")
