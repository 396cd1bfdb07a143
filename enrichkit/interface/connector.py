"""
The connector of a source; unlike the config, a connector stays on its worker.

A connector returns a mapping from the keys of the call to values; an absent key is a miss. The engine retries, times
out, caches, batches and limits calls; a connector does none of this. A connector translates the exceptions of its
client package into `TransientError`, `PermanentError` and `FatalError` of `enrichkit.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ..errors import ConfigError
from .config import ConnectorConfig

if TYPE_CHECKING:
    from ..columnar import Key, Value
    from ..leases import LeaseStore
    from .batch_form import BatchForm
    from .call import Call, Failure

__all__ = ["Connector", "connector_of"]

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
        max_batch_size: The most keys that one call may hold.
        larger_batches: A sentence that says how the source takes more keys per call than `max_batch_size`, for the
            message about a `batch_size` that is too large; empty: it never takes more.
        neighbours: True when a call costs the source less if its keys are neighbours in key order, as with a B-tree.
            The engine then calls in elevator order: a call takes the lowest waiting keys, and the next call takes the
            keys above them.
        encoding: Encoding of the values of `fetch_many`: `"python"` (objects), `"json"` (bytes of one JSON document
            per key) or `"text"` (bytes or str of the value's text; for a struct a mapping of such texts). May be a
            property.
        repeatable: False when two calls for a key do not have the same effect as one call; the options
            `attempt_timeout` and `Retry(on_missing=True)` are then refused.
        requires: Modules of the client package; their presence is checked on the Spark driver before a job starts.
        pip: Command that installs the absent modules of `requires`, such as `pip install aiomcache`.
        key_types: Python types that the source takes as one part of a key; empty: all types. The connector rejects
            keys of other types.
        reports: True when `fetch_many` reports by `Call.spent` or `Call.allows`; otherwise the engine may ignore the
            reports.
        units: Units that `fetch_many` reports by `Call.spent`; ``details=True`` then shows them. May depend on the
            config. Each is a name of letters, digits and underscores, for example `tokens` or `cost`.
        key_columns: True when `fetch_many` reads the columns of `Keys`; the engine may then pass `Keys` instead of a
            tuple.
        idempotency_keys: True when `fetch_many` calls `Call.idempotency_key`. May depend on the config.
        store_encoding: Encoding of the values that `store_many` takes; None: the same as `encoding`.
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
        """
        Make clients and pools. Called once per worker process, on the loop; raises a `ConnectorError` if it fails.
        """

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """
        Look up *keys*: 1 to `batch_size` distinct keys, none of them null; a tuple, or `Keys` if `key_columns` is True.

        Returns:
            A mapping from the very objects in *keys* to values. A key that is absent from the mapping is a miss: the
            source does not hold it. The value None means that the source holds a null for the key. A `Failure` means
            that the key failed, but not the whole call. If ``call.many`` is True, each value is a list of matches. A
            connector whose source delivers whole columns may return them as `Answers`.

        Raises:
            TransientError: The whole call may be tried again.
            PermanentError: One of the keys cannot be looked up; the engine splits the keys into smaller calls to find
                it.
            FatalError: No call can succeed; the task fails.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """
        Free all resources, on the same loop as `open`. The engine may call this twice, and even after a failed `open`.
        """

    async def describe(self) -> str | None:
        """Return the DDL of one value, or None when the source cannot tell. Called on the driver only, after `open`."""
        returns: str | None = self.config.returns
        return returns

    async def max_connections(self) -> int | None:
        """
        Return how many connections the source accepts from all its clients together, or None when it does not tell.
        Optional.

        Called on the driver only, after `open`, for a warning about jobs that would open more connections. The engine
        makes up to `capacity` calls at a time in each worker process, and the warning counts a connection for each of
        these calls.
        """
        return None

    def cost(self, keys: Sequence[Key]) -> Mapping[str, float]:
        """
        Return an estimate of what a call with *keys* will cost, in the units of `Rate`. The method must be quick.

        A unit that is absent costs nothing. `Call.spent` reports what the call has really cost.
        """
        return ONE_REQUEST

    def most(self, keys: Sequence[Key]) -> Mapping[str, float] | None:
        """
        Return the most that a call with *keys* may take, in the units of `Budget`: a bound, not an estimate.

        Without a bound the option `budget` is refused. The method must be quick. The driver calls it with no keys, to
        learn the units.

        Returns:
            The most of each unit that has a bound, such as `tokens` and `cost`; None: no unit has a bound.

        Raises:
            ConfigError: The config lacks a field without which there is no bound. Raised on the driver only.
        """
        return None

    @classmethod
    def lease_store(cls, config: ConfigT) -> LeaseStore | None:
        """
        Return a store that keeps limits of a whole job in the source of *config*; None if the source can hold no
        limits.
        """
        return None

    async def store_many(self, values: Mapping[Key, Value], ttl: float | None) -> None:
        """
        Write 1 to `max_batch_size` *values*, none of them null, to the source, so that `fetch_many` finds them.

        Optional: with this method, the source can be a tier to which the engine writes, see `enrichkit.tiers`. A value
        replaces the value that the source has for the key. The engine makes several writes at a time, also while calls
        of `fetch_many` are in flight. No row waits for a write, or fails because a write fails. The driver checks
        `cannot_store` beforehand.

        Args:
            values: Values by key, in `store_encoding`: Python objects, JSON documents or texts.
            ttl: Seconds after which the source forgets the values; None: never. Seconds are given only if `stores_ttl`
                is True.

        Raises:
            ConnectorError: The values were not written, or only some of them.
        """
        raise NotImplementedError

    def batches(self) -> BatchForm | None:
        """
        Return the batch form of the source, for `enrichkit.submit_batches`; None if the source has none.

        Called on the driver, even before `open`.
        """
        return None

    def scan(self, kinds: Sequence[type], size: int) -> AsyncIterator[Sequence[Key]]:
        """
        Iterate over the keys that the source holds, in pages, for the option `preload`.

        The engine looks up the keys of each page by `fetch_many`, so that an answer is the same as without `preload`.
        Between two pages, nothing may stay open that takes resources of the source, such as a transaction.

        Args:
            kinds: The Python type of each part of a key. Yield a key in the form in which `fetch_many` gets it from
                key columns of these types; keys with parts of other types are ignored.
            size: The most keys that a page may have; 1 to `max_batch_size`.

        Raises:
            TransientError: The engine begins a new scan.
            FatalError: The keys cannot be listed; the task fails.
        """
        raise NotImplementedError

    def lists_all(self, kinds: Sequence[type]) -> bool:
        """
        Return whether `scan` yields every key that `fetch_many` would find, if the key's parts have the types *kinds*.

        True: a key that was not yielded counts as a miss without a call, even if `fetch_many` would refuse the key.
        False, the default: the engine asks the source for such a key. Return False where the source finds a row by
        several different keys, for example by a text in another case.
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
