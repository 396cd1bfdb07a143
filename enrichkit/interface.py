"""
The base classes of a plugin: a config that travels, and a connector that stays on its worker.

A connector returns a mapping from the keys of the call to values; an absent key is a miss. The engine retries, times
out, caches, batches and limits calls; a connector does none of this. A connector translates the exceptions of its
client package into the three classes of `enrichkit.errors`.
"""

from __future__ import annotations

import hashlib
import inspect
import traceback
from abc import ABCMeta
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, Union

from .columnar import Answers, Key, Keys, Value
from .errors import ConfigError, ConnectorError, ContractError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from .batches.form import BatchForm
    from .limits import LeaseStore

__all__ = [
    "Absent",
    "Answers",
    "Call",
    "Connector",
    "ConnectorConfig",
    "Failure",
    "Key",
    "Keys",
    "Meter",
    "Returns",
    "TaskInfo",
    "Value",
    "check_key_parts",
    "connector_of",
]

Returns: TypeAlias = Union[str, "DataType", "pa.Schema", "pa.DataType", type[Any]]
"""The type of one value: DDL, a Spark or Arrow type, an Arrow schema, or a class with annotated fields."""


@dataclass(frozen=True, slots=True)
class Failure:
    """
    The answer for one key that failed in a call whose other keys did not fail.

    Attributes:
        error: A `TransientError`, after which the key is asked again, or a `PermanentError`.
        rejected: True when the key was never sent because it is invalid for the source.
    """

    error: ConnectorError
    rejected: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """
    The answer for one key where the source has an answer, but no value at the path that the config names: a miss.

    A connector may also leave such a key out. With `Absent` the task fails when none of its first answers has the
    value, because then the path is probably wrong; see the option `absent_fields`.

    Attributes:
        path: The path, for example `data.profile`.
        names: Returns the names of the fields that stand where the path ends; None when a null stands there, which
            tells nothing. It is called for a few answers only.
    """

    path: str
    names: Callable[[], Sequence[str] | None]


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """
    The Spark task that a call is made for. Use it for logs and idempotency, never for connections.

    Attributes:
        partition: Number of the partition.
        attempt: Attempt number of the task, from 0.
        stage: Number of the stage.
        query_id: Id of the streaming query; None in a batch query.
        batch_id: Number of the micro-batch; None in a batch query.
    """

    partition: int = 0
    attempt: int = 0
    stage: int = 0
    query_id: str | None = None
    batch_id: int | None = None


class Meter(Protocol):
    """What takes the reports of a call; the engine gives one to each call of a source whose limits need them."""

    def spent(self, units: Mapping[str, float]) -> None:
        """Note what the call has cost in all."""

    def allows(self, remaining: float, seconds: float, limit: float | None, unit: str) -> None:
        """Note how much of *unit* the source still allows."""


@dataclass(frozen=True, slots=True)
class Call:
    """
    The facts about one call that a connector may use, and what it may report of the call.

    Attributes:
        timeout: Seconds until the engine cancels the call, at most a day; the last resort behind the timeouts of the
            client package.
        attempt: 1 for the first call of these keys.
        many: True when a value is a list with one element per match.
        task: The Spark task.
        meter: What takes the reports of the call; None: nobody needs them.
        run: Fingerprint of the source and the run, for `idempotency_key`; empty: the connector needs none.
    """

    timeout: float
    attempt: int = 1
    many: bool = False
    task: TaskInfo = field(default_factory=TaskInfo)
    meter: Meter | None = field(default=None, repr=False, compare=False)
    run: str = field(default="", repr=False)

    def idempotency_key(self, key: Key) -> str:
        """
        Return 32 hexadecimal digits by which a service knows a request again, whatever has been repeated.

        They are the same for *key* in each attempt, in each attempt of the task, and in each replay: of the micro-batch
        of a streaming query, or of a batch job with the same `run_id` of its journal. A batch job without one has
        digits of its own for each call of `enrich`. They differ for other keys, configs and declared types.

        Raises:
            ContractError: The connector's `idempotency_keys` is False, so that the driver has made no fingerprint.
        """
        if not self.run:
            raise ContractError(
                "idempotency_key was called by a connector whose idempotency_keys is False, so there is no fingerprint "
                "of the run. Set idempotency_keys = True in its class."
            )
        return hashlib.sha256(f"{self.run} {_exact(key)}".encode("utf-8", "backslashreplace")).hexdigest()[:32]

    def spent(self, **units: float) -> None:
        """
        Report what the call has cost, as the source says, for example ``call.spent(tokens=1_250)``.

        It replaces the estimate of `Connector.cost` for these units; a later report replaces an earlier one. A unit
        whose amount is not known is `math.nan`, for example because an answer was lost: what was reported of it before
        stays, and the statistics count the call among those of unknown cost.
        """
        if self.meter is not None:
            self.meter.spent(units)

    def allows(self, remaining: float, seconds: float, limit: float | None = None, *, unit: str = "requests") -> None:
        """
        Report that the source allows *remaining* further calls in the next *seconds*, of a *limit* in each period.

        When few of them remain, the engine spreads them evenly over the seconds; without any it waits. With another
        *unit*, such as `"tokens"`, a call is what calls have taken of it on average, as `spent` has reported it.
        """
        if self.meter is not None:
            self.meter.allows(remaining, seconds, limit, unit)


def _exact(key: Key) -> str:
    """Return a text that is another one for keys of another type, such as `1` and `"1"`."""
    return f"({','.join(map(_exact, key))})" if isinstance(key, tuple) else f"{type(key).__name__}:{key!r}"


T = TypeVar("T")


class _ConfigType(ABCMeta):  # not a plain metaclass: a config may have abstract bases
    """The type of the config classes: when a config is refused, no frame of the traceback still holds its fields."""

    @property
    def __signature__(cls) -> inspect.Signature:  # for `help`, which would show that of `__call__`
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # of the class itself, not of an instance
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __call__(cls: type[T], *args: Any, **fields: Any) -> T:
        try:
            _check_names(cls, list(fields))
            config: T = type.__call__(cls, *args, **fields)
        except Exception as error:
            # A dataclass takes its fields as arguments, and a traceback may show the variables of all frames.
            found: list[BaseException] = [error]
            for each in found:
                traceback.clear_frames(each.__traceback__)
                found += [e for e in (each.__cause__, each.__context__) if e is not None and e not in found]
            raise
        finally:
            del args, fields
        return config


def _check_names(cls: type, names: Sequence[str]) -> None:
    """Raise a `ConfigError` when one of *names* is no field of the config class *cls*."""
    parameters = inspect.signature(cls).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return  # an `__init__` of its own takes any names
    known = sorted(parameters, key=lambda name: name == "returns")  # `returns` comes last
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{cls.__name__} has no field {name!r}.{did_you_mean(name, known)} Its fields: {', '.join(known)}."
            )


@dataclass(frozen=True, kw_only=True)
class ConnectorConfig(metaclass=_ConfigType):
    """
    Base of every config: a frozen dataclass that is hashable, picklable, and hides its secrets from `repr`.

    A subclass adds fields and validates them in `__post_init__` with `ConfigError`.

    Attributes:
        returns: Type of one value: DDL, for example `"name string, tier int"`, or another form that `enrich` takes; a
            connector always gets DDL. None: the connector knows or describes the type.
    """

    returns: Any = None  # a user sets `Returns | None`; a connector gets `str | None`

    @property
    def key_parts(self) -> int | None:
        """Number of key columns that the source needs; None: any number. Checked on the driver."""
        return None

    def for_columns(self, names: Sequence[str | None]) -> ConnectorConfig:
        """
        Return the config for key columns of these *names*; the driver asks this once `key_parts` is checked.

        A config that refers to key columns by name returns one here that refers to them by place.

        Args:
            names: Name of each key column, in order; None: an expression without a name.

        Raises:
            ConfigError: The config names other columns. On the driver.
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
        subject: Beginning of the message: the source, and the verb that takes *count* as its object.
        remedy: End of the message: the sentence that says how to fix the call.
        noun: What the message counts, in the singular.

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


ConfigT = TypeVar("ConfigT", bound=ConnectorConfig)

ONE_REQUEST: Mapping[str, float] = {"requests": 1.0}
"""What a call costs unless its connector says otherwise."""

_connector_of_config: dict[type[ConnectorConfig], type[Connector[Any]]] = {}


class Connector(Generic[ConfigT]):
    """
    One source, open in one worker process.

    The engine makes one instance per worker process and source. It calls `open` once on its event loop, then
    `fetch_many`, up to `capacity` calls at a time, and `close` after the instance was idle for a while. Objects that
    belong to a loop (clients, locks, pools) are made in `open`, never in `__init__`.

    Attributes:
        name: Name of the source in messages, for example `redis`.
        config_class: Class of the config that this connector takes.
        capacity: Default of the option `capacity`: calls in flight per worker process.
        batch_size: Default of the option `batch_size`: keys per call.
        max_batch_size: Most keys that one call may hold.
        larger_batches: A sentence that says how the source takes more keys per call than `max_batch_size`, for the
            message about a `batch_size` that is too large; empty: it never does.
        neighbours: True when the source answers keys that are neighbours in key order at a lower cost together, as a
            B-tree does. The engine then calls in elevator order: a call holds the lowest waiting keys, and the next
            call the keys above them.
        encoding: Encoding of the values of `fetch_many`: `"python"` (objects), `"json"` (bytes of one JSON document
            per key) or `"text"` (bytes or str of the value's text; for a struct a mapping of such texts). May be a
            property.
        repeatable: False when two calls for a key do not have the same effect as one; `attempt_timeout` and
            `Retry(on_missing=True)` are then refused.
        requires: Modules of the client package; their presence is checked on the Spark driver before a job starts.
        pip: Package to install when a module of `requires` is absent.
        key_types: Python types of one part of a key that the source takes; empty: all types. The connector rejects
            keys of other types.
        reports: True when `fetch_many` reports by `Call.spent` or `Call.allows`; else it need not be heard.
        units: Units that `fetch_many` reports by `Call.spent`, which ``details=True`` then shows. May depend on the
            config. Each is a name of letters, digits and underscores, for example `tokens` or `cost`.
        key_columns: True when `fetch_many` reads the columns of `Keys`; it may then get `Keys` instead of a tuple.
        idempotency_keys: True when `fetch_many` calls `Call.idempotency_key`. May depend on the config.
        store_encoding: Encoding of the values that `store_many` takes; None: that of `encoding`.
        stores_ttl: True when the source forgets a value by itself after the `ttl` that `store_many` is given. May be a
            property.
        cannot_store: A sentence that says why `store_many` cannot write with this config, and what to do; empty: it
            can. May be a property.
        cannot_scan: A sentence that says why `scan` cannot list the keys of this config, and what to do; empty: it can.
            May be a property.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[ConnectorConfig]]
    capacity: int = 8
    batch_size: int = 1
    max_batch_size: int = 1
    larger_batches: ClassVar[str] = ""
    neighbours: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ()
    pip: ClassVar[str | None] = None
    key_types: ClassVar[tuple[type, ...]] = ()
    key_columns: ClassVar[bool] = False
    repeatable: bool = True
    encoding: str = "python"
    reports: bool = False
    units: tuple[str, ...] = ()
    idempotency_keys: bool = False
    store_encoding: ClassVar[str | None] = None
    stores_ttl: bool = False
    cannot_store: str = ""
    cannot_scan: str = ""

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
        Look up *keys*: 1 to `batch_size` distinct keys, none of them null; a tuple, or `Keys` if `key_columns` is True.

        Returns:
            A mapping from the very objects in *keys* to values. A key that is absent: the source does not hold it.
            None: the source holds a null. `Failure`: this key alone failed. With ``call.many`` each value is a list.
            A connector whose source returns columns may return `Answers`.

        Raises:
            TransientError: The whole call may be tried again.
            PermanentError: One of the keys cannot be looked up; the engine bisects the group to find that key.
            FatalError: No call can succeed; the task fails.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Free all resources. The engine may call this twice, and after a failed `open`; on the same loop as `open`."""

    async def describe(self) -> str | None:
        """Return the DDL of one value, or None when the source cannot tell. Called on the driver only, after `open`."""
        returns: str | None = self.config.returns
        return returns

    async def max_connections(self) -> int | None:
        """
        Return how many connections the source takes from all its clients, or None when it does not tell. Optional.

        Called on the driver only, after `open`, for a warning about jobs that would make more. The engine makes up to
        `capacity` calls at a time in each worker process, and this counts a connection for each.
        """
        return None

    def cost(self, keys: Sequence[Key]) -> Mapping[str, float]:
        """
        Return what a call with *keys* will cost, an estimate, in the units of `Rate`; it must be quick.

        A unit that is absent costs nothing. `Call.spent` reports what the call has really cost.
        """
        return ONE_REQUEST

    def most(self, keys: Sequence[Key]) -> Mapping[str, float] | None:
        """
        Return the most that a call with *keys* may take, in the units of `Budget`: a bound, not an estimate.

        Without it the option `budget` is refused. It must be quick. The driver asks it without keys, to know the units.

        Returns:
            Amounts by unit, `tokens` and `cost` where they are known; None: there is no bound.

        Raises:
            ConfigError: The config lacks what a bound needs. Raised on the driver only.
        """
        return None

    @classmethod
    def lease_store(cls, config: ConfigT) -> LeaseStore | None:
        """Return a connection to the source of *config* as a store of limits of a whole job; None: it can hold none."""
        return None

    async def store_many(self, values: Mapping[Key, Value], ttl: float | None) -> None:
        """
        Write *values* to the source, 1 to `max_batch_size` of them, so that `fetch_many` finds them; none is null.

        Optional: with it the source can be a tier that is written to, see `enrichkit.tiers`. A value replaces the one
        that is there. Several writes go on at a time, beside calls of `fetch_many`. No row waits for a write, or fails
        with it. `cannot_store` is checked on the driver.

        Args:
            values: Values by key, in `store_encoding`: Python objects, JSON documents or texts.
            ttl: Seconds after which the source forgets them; None: never. Only with `stores_ttl` is it ever given.

        Raises:
            ConnectorError: The values were not written, or only some of them.
        """
        raise NotImplementedError

    def batches(self) -> BatchForm | None:
        """
        Return the batch form of the source, for `enrichkit.submit_batches`; None: it has none.

        Called on the driver, also before `open`.
        """
        return None

    def scan(self, kinds: Sequence[type], size: int) -> AsyncIterator[Sequence[Key]]:
        """
        Iterate over the keys that the source holds, in pages, for the option `preload`.

        The engine looks up the keys of each page by `fetch_many`, so that an answer is the same as without `preload`.
        Nothing may stay open between two pages that costs the source something, such as a transaction.

        Args:
            kinds: The Python type of each part of a key. Keys are yielded in the form in which `fetch_many` gets them
                from a DataFrame with parts of these types; keys with parts of other types are ignored.
            size: Most keys of a page; 1 to `max_batch_size`.

        Raises:
            TransientError: The engine begins a new scan.
            FatalError: The keys cannot be listed; the task fails.
        """
        raise NotImplementedError

    def lists_all(self, kinds: Sequence[type]) -> bool:
        """
        Return whether each key that `fetch_many` would find is one that `scan` yields, for keys with parts of *kinds*.

        True: a key that was not yielded counts as a miss, also one that `fetch_many` would refuse, and nobody asks the
        source for it. False, the default: the
        engine asks for it. Return False where the source finds a row by several different keys, for example by a text
        in another case.
        """
        return False


def connector_of(config: ConnectorConfig) -> type[Connector[Any]]:
    """Return the connector class whose `config_class` is the class of *config*; raises `ConfigError`."""
    for cls in type(config).__mro__:
        if cls in _connector_of_config and (cls is not ConnectorConfig or type(config) is ConnectorConfig):
            return _connector_of_config[cls]
    raise ConfigError(
        f"No connector takes a {type(config).__name__}; a Connector subclass must name it: "
        f"config_class = {type(config).__name__}."
    )
