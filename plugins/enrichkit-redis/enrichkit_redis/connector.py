"""The connector of Redis and Valkey: keys to names, names to the store, answers back under the keys."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from enrichkit.connector import Call, Connector, ConnectorConfig, Failure, Key, Value
from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError

from .config import RedisConfig
from .replies import without_frames
from .template import KeyTemplate, Name

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from .store import Store

__all__ = ["RedisConnector"]

T = TypeVar("T")
logger = logging.getLogger("enrichkit.redis")

WRITE_TIMEOUT = 5.0
_HASH_TAG = re.compile(rb"\{[^}]+\}")


class RedisConnector(Connector[RedisConfig]):
    """
    Looks keys up in Redis or Valkey: one `MGET` per call for strings, one pipeline for hashes and in a cluster, where
    the keys that share a slot are one `MGET`.

    Measured on loopback with uvloop and Redis 6.2 on 2 cores, in turns with redis-py 8.1, whose `MGET` of 1,000 keys, 4
    in flight, takes 2.1 us CPU per key with its own parser and 0.5 with hiredis: 0.22 us from Arrow to Arrow, with
    1,000 text keys a call and 4 in flight; 0.20 with 2,000, 0.24 with 8 in flight, 0.28 with 500 and 8. A whole number
    takes the same, a miss 0.3 us more, another key column 0.3; a hash takes 2.6, and 0.84 where its fields are named. A
    call takes about 60 us apart from its keys.
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

    def __init__(self, config: RedisConfig) -> None:
        super().__init__(config)
        self.encoding = "json" if config.kind == "json" else "text"
        self._template = KeyTemplate(config.key)
        self._store: Store | None = None
        # Keys of several parts have their braces encoded, and a tag in the template itself comes first.
        self._warn_of_tags = config.cluster and self._template.columns == 1 and not self._template.has_brace

    async def open(self) -> None:
        """Get ready to connect; the first lookup connects. `capacity` is the number of connections per server."""
        from .store import Store  # here: a driver program that only plans needs no hiredis

        await self.close()
        self._store = Store(self.config, self.capacity)

    async def fetch_many(self, keys: Sequence[Key], call: Call) -> Mapping[Key, Value | Failure]:
        """Look *keys* up; see `Connector.fetch_many`."""
        store = self._opened()
        names, refused = self._template.names(keys)
        if refused:
            keys = [key for key in keys if key not in refused]
        if not names:
            return refused
        if self._warn_of_tags:
            self._warn_of_tag(names)
        read = store.hashes if self.config.kind == "hash" else store.strings
        found = await _bounded(read(keys, names), call.timeout)
        if call.many:
            found = {key: value if isinstance(value, Failure) else [value] for key, value in found.items()}
        return {**found, **refused} if refused else found

    async def store_many(self, values: Mapping[Key, Value], ttl: float | None) -> None:
        """
        Write text or JSON *values*, to live *ttl* seconds or for ever. A null is not written: Redis has none.

        Raises:
            FatalError: The kind is `"hash"`.
            PermanentError: A value is neither str nor bytes, or a key is invalid.
            TransientError: Redis could not be reached; some of the values may have been written.
        """
        store = self._opened()
        if self.config.kind == "hash":
            raise FatalError(
                "RedisConfig.kind is 'hash'; only 'string' and 'json' can be written. Use one of them to store values."
            )
        values = {key: value for key, value in values.items() if value is not None}
        for value in values.values():
            if not isinstance(value, str | bytes):
                raise PermanentError(
                    f"A value to store is a {type(value).__name__}; it must be str or bytes. Encode it first."
                )
        if not values:
            return
        keys = list(values)
        names, refused = self._template.names(keys)
        for failure in refused.values():
            raise failure.error
        await _bounded(store.write(names, list(values.values()), ttl), WRITE_TIMEOUT)

    async def describe(self) -> str:
        """Return the DDL of one value: `returns`, or what the kind implies. Asks no server."""
        returns: str | None = self.config.returns
        if returns is not None:
            return returns
        if self.config.kind != "hash":
            return "string"
        if not self.config.fields:
            return "map<string,string>"
        quoted = (name.replace("`", "``") for name in self.config.fields)
        return f"struct<{','.join(f'`{name}`:string' for name in quoted)}>"

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
    """Await *answer* for *timeout* seconds."""
    try:
        async with asyncio.timeout(timeout):
            return await answer
    except TimeoutError:
        error: ConnectorError = TransientError(f"Redis did not answer within {timeout:g} s.")
    except ConnectorError as raised:
        error = raised
    raise without_frames(error)
