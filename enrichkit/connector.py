"""
What a plugin extends: a config that travels, and a connector that stays on its worker.

A connector answers under the keys that it was asked; an absent key is a miss. It does not retry, time out, cache,
batch or limit: the engine does. It translates its driver's exceptions into the three classes of `enrichkit.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar, Union

from .bulk import Answers, Key, Keys, Value
from .errors import ConfigError, ConnectorError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

__all__ = [
    "Answers",
    "Call",
    "Connector",
    "ConnectorConfig",
    "Failure",
    "Key",
    "Keys",
    "Returns",
    "TaskInfo",
    "Value",
    "connector_of",
]

Returns: TypeAlias = Union[str, "DataType", "pa.Schema", "pa.DataType", type[Any]]
"""The type of one value: DDL, a Spark or Arrow type, an Arrow schema, or a class with annotated fields."""


@dataclass(frozen=True, slots=True)
class Failure:
    """
    The answer for one key of a call whose other keys are fine.

    Attributes:
        error: A `TransientError` (the key is asked again) or a `PermanentError`.
        rejected: True when the key was never sent because it is invalid for the source.
    """

    error: ConnectorError
    rejected: bool = False


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """
    The Spark task that a call is made for; for logs and idempotency, never for connections.

    Attributes:
        partition: Number of the partition.
        attempt: Attempt number of the task, from 0.
        stage: Number of the stage.
        query_id: Id of the streaming query, or None in batch.
        batch_id: Number of the micro-batch, or None in batch.
    """

    partition: int = 0
    attempt: int = 0
    stage: int = 0
    query_id: str | None = None
    batch_id: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """
    What a connector may know of one call.

    Attributes:
        timeout: Seconds until the engine cancels the call; drivers use it as their last resort. At most a day.
        attempt: 1 for the first call of these keys.
        many: True when a value is a list with one element per match.
        task: The Spark task.
    """

    timeout: float
    attempt: int = 1
    many: bool = False
    task: TaskInfo = field(default_factory=TaskInfo)


@dataclass(frozen=True, kw_only=True)
class ConnectorConfig:
    """
    Base of every config: a frozen dataclass that is hashable, picklable, and hides its secrets from `repr`.

    A subclass adds fields and validates them in `__post_init__` with `ConfigError`.

    Attributes:
        returns: Type of one value: DDL, for example `"name string, tier int"`, or what else `enrich` takes, which a
            connector gets as DDL; None: the connector knows or describes it.
    """

    returns: Any = None  # what a user gives is `Returns | None`, what a connector gets `str | None`

    @property
    def key_parts(self) -> int | None:
        """How many key columns the source needs; None: any number. Checked on the driver."""
        return None


ConfigT = TypeVar("ConfigT", bound=ConnectorConfig)

_connector_of_config: dict[type[ConnectorConfig], type[Connector[Any]]] = {}


class Connector(Generic[ConfigT]):
    """
    One source, open in one worker process.

    The engine makes one instance per worker process and source, calls `open` once on its event loop, then up to
    `capacity` calls of `fetch_many` at a time, and `close` when it was idle for a while. Objects that belong to a
    loop (clients, locks, pools) are made in `open`, never in `__init__`.

    Attributes:
        name: What messages call the source, for example `redis`.
        config_class: The config that this connector takes.
        capacity: Default of the option: calls in flight per worker process.
        batch_size: Default of the option: keys per call.
        max_batch_size: Most keys that one call may hold.
        neighbours: True when keys that lie side by side in their order cost the source less together, as in a B-tree:
            a call then holds the lowest keys that wait, and the next call those above them.
        encoding: What `fetch_many` returns: `"python"` (objects), `"json"` (bytes of one JSON document per key) or
            `"text"` (bytes or str of the value's text; a mapping of such for a struct). May be a property.
        repeatable: False when asking twice is not the same as asking once; `attempt_timeout` and
            `Retry(on_missing=True)` are refused then.
        requires: Modules of the driver, checked on the driver program before a job starts.
        pip: What to install when one of them is absent.
        key_types: Python types of one part of a key that the source takes; empty: all. The connector rejects others.
        key_columns: True when `fetch_many` makes use of `Keys`, which it may get then instead of a tuple.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[ConnectorConfig]]
    capacity: int = 8
    batch_size: int = 1
    max_batch_size: int = 1
    neighbours: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ()
    pip: ClassVar[str | None] = None
    key_types: ClassVar[tuple[type, ...]] = ()
    key_columns: ClassVar[bool] = False
    repeatable: bool = True
    encoding: str = "python"

    def __init__(self, config: ConfigT) -> None:
        self.config = config

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "config_class" in cls.__dict__:
            _connector_of_config[cls.config_class] = cls

    async def open(self) -> None:
        """Make clients and pools. Called once per worker process, on the loop; raises a `ConnectorError`."""

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """
        Look *keys* up: 1 to `batch_size` distinct keys, none of them null; a tuple, or `Keys` with `key_columns`.

        Returns:
            A mapping of the very keys that were asked. Absent: the source does not hold the key. None: it holds a
            null. `Failure`: this key alone failed. With ``call.many`` each value is a list. `Answers` where the source
            gives columns.

        Raises:
            TransientError: The whole call may be tried again.
            PermanentError: One of the keys is poison; the engine bisects.
            FatalError: Nothing will work; the task fails.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Free everything. May be called twice, after a failed `open`, and on no other loop than `open` was."""

    async def describe(self) -> str | None:
        """Return the DDL of one value, or None when the source cannot tell. Called on the driver only, after `open`."""
        returns: str | None = self.config.returns
        return returns

    async def store_many(self, values: Mapping[Key, Value], ttl: float | None) -> None:
        """Write *values* to the source, to live *ttl* seconds. For a later version; 0.1 does not call it."""
        raise NotImplementedError

    def scan(self) -> AsyncIterator[tuple[Key, Value]]:
        """Iterate over everything that the source holds. For a later version; 0.1 does not call it."""
        raise NotImplementedError


def connector_of(config: ConnectorConfig) -> type[Connector[Any]]:
    """Return the connector class whose `config_class` is the class of *config*; raises `ConfigError`."""
    for cls in type(config).__mro__:
        if cls in _connector_of_config and (cls is not ConnectorConfig or type(config) is ConnectorConfig):
            return _connector_of_config[cls]
    raise ConfigError(
        f"No connector takes a {type(config).__name__}; a Connector subclass must name it: "
        f"config_class = {type(config).__name__}."
    )
