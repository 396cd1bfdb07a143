"""Background writes to a tier: what a later tier or the source has found is written in groups, in bounded memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from .cache import MISS
from .sizes import sizes_of

__all__ = ["WriteBack"]

_log = logging.getLogger("enrichkit")

WRITERS = 2
"""Most groups of values that are written at the same time."""
BYTES_MAX = 32 * 2**20
"""Most bytes that may wait; further values are dropped, because no row depends on writing them."""
TIMEOUT = 5.0
"""Most seconds that writing one group may take."""
DRAIN = 10.0
"""Most seconds that a task, at its end, waits for values that have not been written yet."""


class Store(Protocol):
    """The part of a tier's engine that this module uses."""

    async def store(self, values: Mapping[Any, Any], ttl: float | None) -> None: ...


class WriteBack:
    """
    The values that wait to be written to one tier. Lives on the loop thread.

    Args:
        name: Name of the tier.
        engine: The engine of the tier.
        encode: Function that turns decoded values into values for `Connector.store_many`, by index. It leaves out
            values that the tier could not give back unchanged.
        batch_size: Most values per call.
        ttl: Seconds after which the store forgets a value; None: the store decides.

    Attributes:
        written: Values that were written.
        unwritten: Values that were not written: the tier failed or cannot hold them, or too many waited.
    """

    def __init__(
        self,
        name: str,
        engine: Store,
        encode: Callable[[Sequence[Any]], Mapping[int, Any]],
        ttl: float | None,
        batch_size: int = 1,
    ) -> None:
        self.written = self.unwritten = 0
        self._name = name
        self._engine = engine
        self._encode = encode
        self._ttl = ttl
        self._batch_size = batch_size
        self._waiting: dict[Any, Any] = {}
        self._bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._told = False
        self._closed = False

    def put(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Queue *values* to be written under *keys*, except misses and nulls; do nothing after `close`."""
        if self._closed:
            return
        found = {key: value for key, value in zip(keys, values, strict=True) if value is not MISS and value is not None}
        size = sizes_of(found) + sizes_of(found.values())
        if self._bytes + size > BYTES_MAX:
            self._failed(len(found), "more values come than can be written")
            return
        self._waiting.update(found)
        self._bytes += size
        # A task that has just ended stays in the set until its callback runs; it writes nothing more, so it is not
        # counted.
        if found and sum(not task.done() for task in self._tasks) < WRITERS:
            task = asyncio.get_running_loop().create_task(self._write(), name=f"enrichkit-write-{self._name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Wait until all queued values are written, but for `DRAIN` seconds at most."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=DRAIN)

    def close(self) -> None:
        """Drop the values that wait, and write nothing more."""
        self._closed = True
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()

    async def _write(self) -> None:
        while self._waiting:
            keys = list(islice(self._waiting, self._batch_size))
            values = [self._waiting.pop(key) for key in keys]
            if not self._waiting:
                self._bytes = 0
            else:
                self._bytes -= sizes_of(keys) + sizes_of(values)
            try:
                encoded = self._encode(values)
                async with asyncio.timeout(TIMEOUT):
                    await self._engine.store({keys[index]: value for index, value in encoded.items()}, self._ttl)
            except Exception as error:  # noqa: BLE001  # no row depends on the write, whatever the connector raises
                self._failed(len(keys), f"{type(error).__name__}: {error}")
            else:
                self.written += len(encoded)
                if len(encoded) < len(keys):
                    self._failed(len(keys) - len(encoded), "it cannot hold such values")

    def _failed(self, count: int, reason: str) -> None:
        self.unwritten += count
        if not self._told:
            self._told = True
            _log.warning("%s: a tier was not written to, which concerns no row: %s", self._name, reason)
