"""The connector of Redis and Valkey: it turns keys into names of Redis keys, and returns the stored values by key."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError
from enrichkit.plugin import Call, Connector, ConnectorConfig, Failure, Key, Value

from .config import RedisConfig
from .replies import without_traceback
from .template import KeyTemplate, Name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence

    from .leases import RedisLeases
    from .store import Store

__all__ = ["RedisConnector"]

T = TypeVar("T")
logger = logging.getLogger("enrichkit.redis")

WRITE_TIMEOUT = 5.0
DESCRIBE_TIMEOUT = 2.0
_HASH_TAG = re.compile(rb"\{[^}]+\}")


class RedisConnector(Connector[RedisConfig]):
    """
    Lookups in Redis or Valkey. A call sends one `MGET` for strings, and one pipeline for hashes. In a cluster, a call
    sends one pipeline to each node. Strings are then read by one `MGET` per slot if the call has, on average, two or
    more keys per slot, and otherwise by one `GET` per key.

    The times below were measured on loopback with uvloop and Redis 6.2 on 2 cores, in alternation with redis-py 8.1. An
    `MGET` of redis-py with 1,000 keys and 4 calls in flight takes 2.1 us of CPU per key with its own parser and 0.5 us
    with hiredis. From an Arrow column of keys to an Arrow column of values, the connector takes 0.22 us per key with
    1,000 text keys a call and 4 calls in flight. It takes 0.20 us with 2,000 keys a call, 0.24 us with 8 calls in
    flight, and 0.28 us with 500 keys a call and 8 calls in flight. Keys that are whole numbers take the same time. A
    miss takes 0.3 us more, and so does each further key column. A hash takes 2.6 us, or 0.84 us if the config lists
    `fields`. A call takes about 60 us in addition to the time for its keys.
    """

    name: ClassVar[str] = "redis"
    config_class: ClassVar[type[ConnectorConfig]] = RedisConfig
    requires: ClassVar[tuple[str, ...]] = ("hiredis",)
    pip: ClassVar[str | None] = "pip install 'enrichkit[redis]'"
    capacity = 4
    batch_size = 1000
    max_batch_size = 5000
    key_types = (str, bytes, int, float, Decimal, date)
    key_columns = True
    stores_ttl = True

    def __init__(self, config: RedisConfig) -> None:
        super().__init__(config)
        self.encoding = "json" if config.kind == "json" else "text"
        self._template = KeyTemplate(config.key)
        self._store: Store | None = None
        # Keys of several parts need no warning about hash tags, because braces inside the parts are encoded. If the
        # template itself has a brace, there is no warning either, because the hash tag is then taken to be intended.
        self._warn_of_tags = config.cluster and self._template.columns == 1 and not self._template.has_brace

    @property
    def cannot_store(self) -> str:  # type: ignore[override]  # here it depends on the config
        """
        The reason why values cannot be written: the kind is `"hash"`, but a value to write is one text. Empty for other
        kinds.
        """
        if self.config.kind != "hash":
            return ""
        return "RedisConfig.kind is 'hash'; only 'string' and 'json' can be written. Use one of them to store values."

    async def open(self) -> None:
        """
        Make the `Store` of the values. The first lookup opens the first connection; each server gets at most `capacity`
        connections.
        """
        # Imported here, because a driver program that only plans the job does not need hiredis.
        from .store import Store

        await self.close()
        self._store = Store(self.config, self.capacity)

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """Look up *keys*; see `Connector.fetch_many`."""
        store = self._opened()
        names, rejected = self._template.names(keys)
        if rejected:
            keys = [key for key in keys if key not in rejected]
        if not names:
            return rejected
        if self._warn_of_tags:
            self._warn_of_tag(names)
        read = store.hashes if self.config.kind == "hash" else store.strings
        answers = await _bounded(read(keys, names), call.timeout)
        if call.many:
            answers = {key: value if isinstance(value, Failure) else [value] for key, value in answers.items()}
        return {**answers, **rejected} if rejected else answers

    async def store_many(self, values: Mapping[Key, Value], ttl: float | None) -> None:
        """
        Write text or JSON *values*, which expire after *ttl* seconds, or never if *ttl* is None. Nulls are not written.

        Raises:
            FatalError: The kind is `"hash"`.
            PermanentError: A value is neither str nor bytes, or a key is invalid.
            TransientError: Redis could not be reached; some of the values may have been written.
        """
        store = self._opened()
        if self.cannot_store:
            raise FatalError(self.cannot_store)
        values = {key: value for key, value in values.items() if value is not None}
        for value in values.values():
            if not isinstance(value, str | bytes):
                raise PermanentError(
                    f"A value to store is a {type(value).__name__}; it must be str or bytes. Encode it first."
                )
        if not values:
            return
        keys = list(values)
        names, rejected = self._template.names(keys)
        for failure in rejected.values():
            raise failure.error
        await _bounded(store.write(names, list(values.values()), ttl), WRITE_TIMEOUT)

    async def scan(self, kinds: Sequence[type], size: int) -> AsyncIterator[Sequence[Key]]:
        """Yield lists of the keys whose names match the template, read with `SCAN`; see `Connector.scan`."""
        seen: set[bytes] = set()  # the names yielded so far, because `SCAN` may list a name twice
        key_of = self._template.reader(kinds)
        async for names in self._opened().names(self._template.pattern, size):
            fresh = [name for name in dict.fromkeys(names) if name not in seen]
            seen.update(fresh)
            yield [key for key in map(key_of, fresh) if key is not None]

    def lists_all(self, kinds: Sequence[type]) -> bool:
        """
        Return whether a key that `scan` does not list is a miss for which the engine need not ask the server. The parts
        of the key have the types *kinds*; see `Connector.lists_all`.

        The result is False in a cluster, where a slot may move while the keys are listed. The result is also False for
        Decimals, because equal Decimals may have several names.
        """
        return not self.config.cluster and KeyTemplate.reads(kinds)

    @classmethod
    def lease_store(cls, config: RedisConfig) -> RedisLeases:
        """Return a store of limits that is on the server of *config*; see `Connector.lease_store`."""
        # Imported here, because a driver program that only plans the job does not need hiredis.
        from .leases import RedisLeases

        return RedisLeases(config)

    async def describe(self) -> str:
        """
        Return the DDL of one value, without asking a server: `RedisConfig.returns`, or the type that `RedisConfig.kind`
        implies.
        """
        returns: str | None = self.config.returns
        if returns is not None:
            return returns
        if self.config.kind != "hash":
            return "string"
        if not self.config.fields:
            return "map<string,string>"
        quoted = (name.replace("`", "``") for name in self.config.fields)
        return f"struct<{','.join(f'`{name}`:string' for name in quoted)}>"

    async def max_connections(self) -> int | None:
        """
        Return `maxclients` of a server, or None if this user is permitted no command that tells it; see
        `Connector.max_connections`.
        """
        return await _bounded(self._opened().max_clients(), DESCRIBE_TIMEOUT)

    async def close(self) -> None:
        """Close all connections."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _opened(self) -> Store:
        if self._store is None:
            raise FatalError("The redis connector is not open; open() must come before the first lookup.")
        return self._store

    def _warn_of_tag(self, names: Sequence[Name]) -> None:
        for name in names:
            if _HASH_TAG.search(name if isinstance(name, bytes) else name.encode()):
                logger.warning(
                    "Keys hold '{...}', which Redis Cluster takes for a hash tag: all keys with one tag are on one "
                    "node. If that is not intended, put a tag of your own or nothing of that form into the keys."
                )
                self._warn_of_tags = False
                return


async def _bounded(answer: Coroutine[Any, Any, T], timeout: float) -> T:
    """Return the result of *answer*; raises `TransientError` after *timeout* seconds."""
    try:
        async with asyncio.timeout(timeout):
            return await answer
    except TimeoutError:
        error: ConnectorError = TransientError(f"Redis did not answer within {timeout:g} s.")
    except ConnectorError as caught:
        error = caught
    raise without_traceback(error)
