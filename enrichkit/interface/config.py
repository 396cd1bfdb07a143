"""The config of a source: what a user gives to `enrich`, and what travels to the workers."""

from __future__ import annotations

import inspect
import traceback
from abc import ABCMeta
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union

from ..errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

__all__ = ["ConnectorConfig", "Returns", "check_key_parts"]

Returns: TypeAlias = Union[str, "DataType", "pa.Schema", "pa.DataType", type[Any]]
"""The type of one value: DDL, a Spark or Arrow type, an Arrow schema, or a class with annotated fields."""

T = TypeVar("T")


class _ConfigType(ABCMeta):  # not just `type`, because a config may have abstract bases
    """
    The metaclass of configs. When a config is refused, the metaclass clears the variables in the frames of the
    traceback, because they hold the fields, and a field may be a secret.
    """

    @property
    def __signature__(cls) -> inspect.Signature:  # otherwise `help` would show the signature of `__call__`
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # `cls` is a class, not an instance
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(cls: type[T], *args: Any, **fields: Any) -> T:
        try:
            _check_names(cls, len(args), list(fields))
            config: T = type.__call__(cls, *args, **fields)
        except Exception as error:
            # A dataclass takes its fields as arguments, and a field may hold a secret. A traceback that shows the
            # variables of its frames would show the fields, so the frames are cleared.
            found: list[BaseException] = [error]
            for each in found:
                traceback.clear_frames(each.__traceback__)
                found += [e for e in (each.__cause__, each.__context__) if e is not None and e not in found]
            raise
        finally:
            del args, fields
        return config


def _check_names(cls: type, unnamed: int, names: Sequence[str]) -> None:
    """
    Raise a `ConfigError` when one of *names* is no field of the config class *cls*, or when *names* lack a required
    field.

    Also raise a `ConfigError` when *unnamed*, the number of positional arguments, is not 0 although the class takes no
    positional arguments.
    """
    parameters = inspect.signature(cls).parameters
    kinds = {each.kind for each in parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return  # the class has an `__init__` that takes any names
    known = sorted(parameters, key=lambda name: name == "returns")  # `returns` comes last
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{cls.__name__} has no field {name!r}.{did_you_mean(name, known)} Its fields: {', '.join(known)}."
            )
    if kinds != {inspect.Parameter.KEYWORD_ONLY}:
        return  # the class takes positional arguments
    if unnamed:
        raise ConfigError(
            f"{cls.__name__} takes each field by its name, as in {cls.__name__}({known[0]}=...). "
            f"Its fields: {', '.join(known)}."
        )
    needed = [name for name in known if parameters[name].default is inspect.Parameter.empty and name not in names]
    if needed:
        raise ConfigError(f"{cls.__name__} needs {' and '.join(map(repr, needed))}. Its fields: {', '.join(known)}.")


@dataclass(frozen=True, kw_only=True)
class ConnectorConfig(metaclass=_ConfigType):
    """
    Base of every config: a frozen dataclass that is hashable, picklable, and hides its secrets from `repr`.

    A subclass adds fields and validates them in `__post_init__` with `ConfigError`.

    Attributes:
        returns: Type of one value: DDL, for example `"name string, tier int"`, or another form that `enrich` takes; a
            connector always gets DDL. None: the type is what `Connector.describe` returns.
    """

    returns: Any = None  # a user sets `Returns | None`; a connector gets `str | None`

    @property
    def key_parts(self) -> int | None:
        """Number of key columns that the source needs; None: any number. Checked on the driver."""
        return None

    def for_columns(self, names: Sequence[str | None]) -> ConnectorConfig:
        """
        Return the config for key columns of these *names*; the driver calls this after it has checked `key_parts`.

        A config that refers to key columns by name returns a config that refers to the same columns by position.

        Args:
            names: Name of each key column, in order; None: an expression without a name.

        Raises:
            ConfigError: The config names a column that is not among *names*. Raised on the driver.
        """
        return self


def check_key_parts(
    config: ConnectorConfig, count: int | None, subject: str, remedy: str, *, noun: str = "key column"
) -> None:
    """
    Raise a `ConfigError` when the source of *config* does not take keys of *count* columns.

    Args:
        config: Config of the source.
        count: How many key columns there are; None: not known yet, so that nothing is checked.
        subject: Beginning of the message, up to *count*, for example "enrich('redis', ...) was given".
        remedy: End of the message: the sentence that says how to fix the call.
        noun: The noun that follows *count* in the message, in the singular.

    >>> check_key_parts(ConnectorConfig(), 0, "A SQL function of 'redis' was called with", "Add a key.", noun="key")
    Traceback (most recent call last):
    enrichkit.errors.ConfigError: A SQL function of 'redis' was called with 0 keys; its ConnectorConfig needs one or \
more. Add a key.
    """
    if count is None or (count > 0 and config.key_parts in (None, count)):
        return
    needed = "one or more" if config.key_parts is None else config.key_parts
    raise ConfigError(
        f"{subject} {count} {noun}{'s' * (count != 1)}; its {type(config).__name__} needs {needed}. {remedy}"
    )
