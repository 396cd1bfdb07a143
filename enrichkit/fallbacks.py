"""
What stands in for an answer, worked out and checked on the driver.

`default(value)` is a value; a function of the key or another source has to be asked, and becomes a stage: a source with
limits of its own behind the first one. Options that name the same one share a stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from .config import find_source, source_names
from .connector import Connector, ConnectorConfig
from .errors import ConfigError, PluginError
from .key_function import KeyFunction, KeyFunctionConfig, name_of
from .options import Default, Options, did_you_mean
from .registry import FIRST_PARTY, require_driver
from .shipping import digest, functions_of, identity_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql.types import DataType

__all__ = ["StagePlan", "as_shipped", "capacities", "default_values", "plan_stages"]

POLICIES = ("on_timeout", "on_error", "on_missing")


@dataclass(frozen=True)
class StagePlan:
    """
    One fallback that has to be asked. Pickled with its plan; its fields are as those of a `Plan`.

    Attributes:
        source: What messages call it.
        when: The options that name it.
        connector: Built on the worker from *config*.
        config: Of the source, or of the function.
        capacity: Calls in flight per worker process.
        batch_size: Keys per call.
        options: Flow control of its lookups.
        engine_key: Fingerprint of what its engine depends on.
    """

    source: str
    when: tuple[str, ...]
    connector: type[Connector[Any]]
    config: ConnectorConfig
    capacity: int
    batch_size: int
    options: Options
    engine_key: str

    @property
    def shipped(self) -> list[Any]:
        """The classes and functions that may have to travel by value."""
        return [self.connector, type(self.config), *functions_of(self.config)]


def plan_stages(options: Options, keys: int | None, spark_type: DataType) -> tuple[StagePlan, ...]:
    """
    Return the fallbacks of *options* that have to be asked.

    Args:
        options: Of the lookup.
        keys: How many key columns there are; None: not known yet.
        spark_type: Of one value of the main source.

    Raises:
        ConfigError: There is no such source, it does not fit the keys or the type, or a function cannot travel.
    """
    stages: dict[str, StagePlan] = {}
    for name in POLICIES:
        policy = options.policy(name)
        if isinstance(policy, Default) or policy in ("fail", "null"):
            continue
        if isinstance(policy, str | ConnectorConfig):
            stage = _of_source(name, policy, options, keys, spark_type)
        else:
            stage = _of_function(name, policy, options)
        same = stages.get(stage.engine_key)
        stages[stage.engine_key] = stage if same is None else replace(same, when=(*same.when, name))
    return tuple(stages.values())


def _of_source(
    name: str, policy: str | ConnectorConfig, options: Options, keys: int | None, spark_type: DataType
) -> StagePlan:
    from .types import arrow_type_of, ddl_of

    if isinstance(policy, str):
        _known(name, policy)
    try:
        source, connector, config = find_source(policy)
        require_driver(connector)
    except (ConfigError, PluginError) as error:
        raise type(error)(f"{name}: {error}") from error
    if keys is not None and config.key_parts not in (None, keys):
        raise ConfigError(
            f"{name} is the source {source!r}, whose {type(config).__name__} needs {config.key_parts} key "
            f"column{'s' * (config.key_parts != 1)}; enrich() was given {keys}. A fallback is asked with the same "
            "keys, so name a source that takes them."
        )
    if config.returns not in (None, type(config).__dataclass_fields__["returns"].default):  # somebody has declared it
        declared, _ = arrow_type_of(config.returns)
        if ddl_of(declared) != ddl_of(spark_type):  # comments aside
            raise ConfigError(
                f"{name} is the source {source!r}, whose values are declared as {declared.simpleString()}; they must "
                f"be of the column's type, {spark_type.simpleString()}. Leave returns= out of the fallback's config, "
                "or declare the same type."
            )
    config = replace(config, returns=ddl_of(spark_type))  # a connector may answer as it is asked to
    instance = connector(config)
    return StagePlan(
        source=source,
        when=(name,),
        connector=connector,
        config=config,
        capacity=instance.capacity,
        batch_size=(batch_size := min(instance.batch_size, instance.max_batch_size)),
        options=_of_a_stage(options, repeatable=instance.repeatable),
        engine_key=digest(*identity_of(connector, config), instance.capacity, batch_size, None),
    )


def _of_function(name: str, function: Callable[[Any], Any], options: Options) -> StagePlan:
    config = KeyFunctionConfig(function=function, show_keys=options.show_keys)
    try:
        identity = identity_of(KeyFunction, config)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return StagePlan(
        source=f"the function {name_of(function)}",
        when=(name,),
        connector=KeyFunction,
        config=config,
        capacity=KeyFunction(config).capacity,
        batch_size=1,
        options=_of_a_stage(replace(options, retry=None), repeatable=False),
        engine_key=digest(*identity),
    )


def as_shipped(options: Options) -> Options:
    """
    Return *options* for the workers: of a fallback only whether it is a value.

    Values travel decoded, and what has to be asked as a stage; what the user wrote may be of a class or function that
    workers do not have.
    """
    kinds: dict[str, Any] = {}
    for name in POLICIES:
        policy = options.policy(name)
        if isinstance(policy, Default):
            kinds[name] = Default(None)
        elif policy not in ("fail", "null"):
            kinds[name] = "null"
    return replace(options, **kinds)


def _of_a_stage(options: Options, *, repeatable: bool) -> Options:
    """Return the options of a fallback's lookups: a clock of its own, and nothing that concerns the rows."""
    retry = options.retry
    return replace(
        options,
        retry=retry if repeatable or retry is None else replace(retry, on_missing=False),
        timeout=options.timeout if repeatable else options.timeout or options.attempt_timeout,
        attempt_timeout=options.attempt_timeout if repeatable else None,
        capacity=None,
        batch_size=None,
        on_timeout="null",
        on_error="null",
        on_missing="null",
        max_fallback_ratio=1.0,
        cache=None,
        rate=None,
        details=False,
    )


def _known(name: str, policy: str) -> None:
    known = source_names()
    if policy not in known and policy not in FIRST_PARTY:  # of which it is known how to install them
        hint = did_you_mean(policy, ["fail", "null", "default", *known])
        raise ConfigError(
            f"{name} is {policy!r}; it must be 'fail', 'null', default(value), a function of the key, or a source: "
            f"its config or its name.{hint} Installed or registered: {', '.join(map(repr, known)) or 'none'}. "
            f"For example {name}='null'."
        )


def capacities(options: Options) -> dict[str, int]:
    """
    Return for each name of fallbacks that have to be asked how many calls these have in flight. For `explain`.

    One that several options name counts once. It is told by its config or function; `plan_stages` compares what
    travels, for which PySpark has to be there. Different ones of one name, as lambdas have, are added up.
    """
    found: dict[str, int] = {}
    seen: list[Any] = []
    for name in POLICIES:
        policy = options.policy(name)
        if isinstance(policy, Default) or policy in ("fail", "null"):
            continue
        if isinstance(policy, str | ConnectorConfig):
            if isinstance(policy, str):
                _known(name, policy)
            source, connector, config = find_source(policy)
            shown = repr(source)
        else:
            connector, config = KeyFunction, KeyFunctionConfig(function=policy)
            shown = f"the function {name_of(policy)}"
        # Without the type, because all fallbacks get that of the column.
        asked = (connector, {f.name: getattr(config, f.name) for f in fields(config) if f.name != "returns"})
        if asked not in seen:
            seen.append(asked)
            found[shown] = found.get(shown, 0) + connector(config).capacity
    return found


def default_values(options: Options, value_type: pa.DataType) -> dict[str, Any]:
    """Return the decoded `default(...)` values by option name. Raises `ConfigError` when one does not fit."""
    from .decode import decoder

    decode = decoder(value_type, "python")
    values = {}
    for name in POLICIES:
        policy = options.policy(name)
        if isinstance(policy, Default):
            _check_fields(f"{name} is default({policy.value!r})", policy.value, value_type)
            decoded, errors = decode([policy.value])
            if errors:
                reason = str(errors[0]).replace("Change the source", f"Change {name}")
                raise ConfigError(f"{name} is default({policy.value!r}). {reason}")
            values[name] = decoded[0]
    return values


def _check_fields(what: str, value: Any, value_type: Any) -> None:
    """Refuse a field that is not declared: a source may have more than what is asked for, a default may not."""
    import pyarrow as pa

    from .types import is_variant

    if is_variant(value_type):
        return
    if pa.types.is_list(value_type) and isinstance(value, list | tuple):
        for part in value:
            _check_fields(what, part, value_type.value_type)
    elif pa.types.is_map(value_type) and isinstance(value, Mapping):
        for part in value.values():
            _check_fields(what, part, value_type.item_type)
    elif pa.types.is_struct(value_type) and isinstance(value, Mapping):
        for field, part in value.items():
            if field not in value_type.names:
                raise ConfigError(
                    f"{what}, whose field {field!r} is not declared.{did_you_mean(str(field), value_type.names)} "
                    f"Declared are: {', '.join(value_type.names)}. Rename it, or declare it with returns=."
                )
            _check_fields(what, part, value_type.field(field).type)
