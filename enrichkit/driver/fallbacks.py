"""
Checks the fallbacks of a lookup on the driver, and plans those that the worker has to ask: sources and functions.

A fallback is a `default(value)`, another source, or a function of the key. A source or a function becomes a
`FallbackPlan`: the worker asks it after the main source, with limits of its own. Options that name the same fallback
share one plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, did_you_mean
from ..functions import name_of
from ..interface import ConnectorConfig, check_key_parts
from ..options import Default, Options
from ..plan import FallbackPlan
from ..sources.config import find_source, source_names
from ..sources.function_fallback import KeyFunction, KeyFunctionConfig
from ..sources.registry import FIRST_PARTY
from .pickling import digest, identity_of
from .side import engine_of, find_side, side_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import DataType

__all__ = ["default_values", "fallback_capacities", "options_for_worker", "plan_fallbacks"]

POLICIES = ("on_timeout", "on_error", "on_missing")


def plan_fallbacks(
    options: Options, keys: int | None, spark_type: DataType, names: Sequence[str | None] = ()
) -> tuple[FallbackPlan, ...]:
    """
    Return the fallbacks of *options* that a worker has to ask: sources and functions, but not default values.

    Args:
        options: Options of the lookup.
        keys: Number of key columns; None: not known yet.
        spark_type: Type of one value of the main source.
        names: Name of each key column, as in `make_plan`.

    Raises:
        ConfigError: A source does not exist, or does not fit the keys or the type, or a function cannot travel to the
            workers.
    """
    fallbacks: dict[str, FallbackPlan] = {}
    for name, policy in _policies_to_ask(options):
        if isinstance(policy, str | ConnectorConfig):
            fallback = _plan_source(name, policy, options, keys, spark_type, names)
        else:
            fallback = _plan_function(name, policy, options)
        same = fallbacks.get(fallback.engine_key)
        fallbacks[fallback.engine_key] = fallback if same is None else replace(same, when=(*same.when, name))
    return tuple(fallbacks.values())


def _policies_to_ask(options: Options) -> Iterator[tuple[str, str | ConnectorConfig | Callable[[Any], Any]]]:
    """Yield the options that name a source or a function: the name of the option and its value."""
    for name in POLICIES:
        policy = options.policy(name)
        if not isinstance(policy, Default) and policy not in ("fail", "null"):
            yield name, policy


def _plan_source(
    name: str,
    policy: str | ConnectorConfig,
    options: Options,
    keys: int | None,
    spark_type: DataType,
    names: Sequence[str | None],
) -> FallbackPlan:
    from ..values.types import arrow_type_of, ddl_of

    if isinstance(policy, str):
        _check_source_name(name, policy)
    source, connector, config = find_side(name, policy)
    check_key_parts(
        config,
        keys,
        f"{name} is the source {source!r}, which gets",
        "A fallback gets the same key columns as the first source: name a source that takes them.",
    )
    if names:
        config = config.for_columns(names)
    if config.returns not in (None, type(config).__dataclass_fields__["returns"].default):  # the user declares a type
        declared, _ = arrow_type_of(config.returns)
        if ddl_of(declared) != ddl_of(spark_type):  # compared as DDL, which leaves out comments of fields
            raise ConfigError(
                f"{name} is the source {source!r}, whose values are declared as {declared.simpleString()}; they must "
                f"be of the column's type, {spark_type.simpleString()}. Leave returns= out of the fallback's config, "
                "or declare the same type."
            )
    instance, engine = engine_of(connector, config, spark_type)
    options = side_options(options, repeatable=instance.repeatable)
    return FallbackPlan(source=source, when=(name,), options=options, **engine)


def _plan_function(name: str, function: Callable[[Any], Any], options: Options) -> FallbackPlan:
    config = KeyFunctionConfig(function=function, show_keys=options.show_keys)
    try:
        identity = identity_of(KeyFunction, config)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    return FallbackPlan(
        source=f"the function {name_of(function)}",
        when=(name,),
        connector=KeyFunction,
        config=config,
        capacity=KeyFunction(config).capacity,
        batch_size=1,
        options=side_options(replace(options, retry=None), repeatable=False),
        engine_key=digest(*identity),
        returns_lists=True,
    )


def options_for_worker(options: Options) -> Options:
    """
    Return *options* with fallbacks that a worker can unpickle: `default(None)` replaces a default value, and "null"
    replaces a source or a function.

    The workers may not have the class or function of a fallback. Therefore default values travel decoded in the plan,
    and sources and functions travel as a `FallbackPlan`.
    """
    fallbacks: dict[str, Any] = {name: "null" for name, _ in _policies_to_ask(options)}
    fallbacks |= {name: Default(None) for name in POLICIES if isinstance(options.policy(name), Default)}
    return replace(options, **fallbacks)


def _check_source_name(name: str, policy: str) -> None:
    known = source_names()
    # For a plugin of enrichkit that is not installed, `find_source` raises an error that tells how to install it.
    if policy not in known and policy not in FIRST_PARTY:
        hint = did_you_mean(policy, ["fail", "null", "default", *known])
        raise ConfigError(
            f"{name} is {policy!r}; it must be 'fail', 'null', default(value), a function of the key, or a source: "
            f"its config or its name.{hint} Installed or registered: {', '.join(map(repr, known)) or 'none'}. "
            f"For example {name}='null'."
        )


def fallback_capacities(options: Options) -> dict[str, int]:
    """
    Return, for `explain`, how many calls each fallback may have in flight, by the fallback's name. Default values are
    left out, because nothing is asked for them.

    A fallback that several options name is counted once. If different fallbacks have the same name, as lambdas have,
    their calls are added up. Two fallbacks are the same if their configs or functions are equal. `plan_fallbacks`
    compares their pickled forms instead, but pickling needs PySpark, and this function works without it.
    """
    capacities: dict[str, int] = {}
    seen: list[Any] = []
    for name, policy in _policies_to_ask(options):
        if isinstance(policy, str | ConnectorConfig):
            if isinstance(policy, str):
                _check_source_name(name, policy)
            source, connector, config = find_source(policy)
            shown = repr(source)
        else:
            connector, config = KeyFunction, KeyFunctionConfig(function=policy)
            shown = f"the function {name_of(policy)}"
        # `returns` is left out, because all fallbacks get the type of the column.
        identity = (connector, {f.name: getattr(config, f.name) for f in fields(config) if f.name != "returns"})
        if identity not in seen:
            seen.append(identity)
            capacities[shown] = capacities.get(shown, 0) + connector(config).capacity
    return capacities


def default_values(options: Options, value_type: pa.DataType) -> dict[str, Any]:
    """Return the decoded `default(...)` values by option name. Raises `ConfigError` when a value does not fit."""
    from ..values.decode import decoder

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


def _check_fields(subject: str, value: Any, value_type: Any) -> None:
    """
    Raise a `ConfigError` when a struct in *value* has a field that *value_type* does not declare.

    A source may return fields that are not declared; a default value must not have such fields.
    """
    import pyarrow as pa

    from ..values.types import is_variant

    if is_variant(value_type):
        return
    if pa.types.is_list(value_type) and isinstance(value, list | tuple):
        for part in value:
            _check_fields(subject, part, value_type.value_type)
    elif pa.types.is_map(value_type) and isinstance(value, Mapping):
        for part in value.values():
            _check_fields(subject, part, value_type.item_type)
    elif pa.types.is_struct(value_type) and isinstance(value, Mapping):
        for field, part in value.items():
            if field not in value_type.names:
                raise ConfigError(
                    f"{subject}, whose field {field!r} is not declared.{did_you_mean(str(field), value_type.names)} "
                    f"Declared are: {', '.join(value_type.names)}. Rename it, or declare it with returns=."
                )
            _check_fields(subject, part, value_type.field(field).type)
