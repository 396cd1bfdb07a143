"""Lookups in one source with the engine that workers use, but in this process and without Spark."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..driver.planner import limits_of, without_secrets
from ..engine.bridge import Bridge
from ..engine.engine import Engine
from ..engine.loop import loop_thread
from ..engine.run import Run
from ..errors import ConfigError, EnrichkitError, TransientError, UnavailableError
from ..options import Options
from ..outcome import Outcomes
from ..sources.registry import require_driver

if TYPE_CHECKING:
    from ..interface import Connector, ConnectorConfig

__all__ = ["OPEN_TIMEOUT", "OUTCOMES_AS_DATA", "Probe", "SourceError", "describe", "without_secrets"]

OPEN_TIMEOUT = 30.0
OUTCOMES_AS_DATA: dict[str, Any] = {
    "on_timeout": "null",
    "on_error": "null",
    "on_missing": "null",
    "max_fallback_ratio": 1.0,
    "details": True,
    "show_keys": True,
}
"""The options with which `enrich` reports the outcome of each key and does not fail for a key."""


class SourceError(EnrichkitError):
    """A source could not be opened, or lookups in it cannot work; the message holds none of the source's secrets."""


class Probe:
    """
    One source and the engine that looks keys up in it. At the end of a `with` statement, both are closed.

    Values are as the connector returns them: only a Spark job decodes them as the declared type.

    Attributes:
        name: Name of the source.
        capacity: Most calls in flight at the same time.
        batch_size: Keys per call.
        seconds: Duration of each call that has ended, in seconds.

    Args:
        name: Name of the source.
        connector: Class of the source's connector.
        config: Config of the source.
        options: Options of `enrich`. `on_error`, `on_timeout` and the other options that decide about keys without a
            value are ignored; `OUTCOMES_AS_DATA` replaces them.
    """

    def __init__(
        self, name: str, connector: type[Connector[Any]], config: ConnectorConfig, options: dict[str, Any]
    ) -> None:
        self._loop = loop_thread()
        self._key = f"probe {id(self)}"
        self.name = name
        self.seconds: list[float] = []
        self._config = config
        self._connector = connector
        self._options = Options.of({**options, **OUTCOMES_AS_DATA})
        self.capacity, self.batch_size, self._window = limits_of(name, connector(config), self._options)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connector on the event loop where it was opened."""
        closed = threading.Event()
        tasks: list[asyncio.Task[None]] = []  # keeps the task alive: an event loop has only weak references to tasks

        async def close() -> None:
            try:
                if (engine := self._loop.engines.pop(self._key, None)) is not None:
                    await engine.close()
            finally:
                closed.set()

        self._loop.post(lambda: tasks.append(asyncio.create_task(close())))
        closed.wait(OPEN_TIMEOUT)

    def outcomes(self, groups: Iterable[list[Any]]) -> Iterator[Outcomes]:
        """
        Look up *groups* of distinct keys; yield the outcomes of each group, in the order of *groups*.

        The next group is taken from *groups* only when few enough keys wait for their outcomes, so *groups* may be
        infinite.

        Raises:
            SourceError: Lookups with this connector cannot work at all.
        """
        bridge = Bridge(
            self._loop,
            self._window,
            2 * self.capacity * self.batch_size,
            self.name,
            self._options,
            self._run,
        )
        slices = (Outcomes(keys, len(keys), details=True) for keys in groups)
        with _as_source_error(self._config):
            for part in bridge.process(slices):
                yield part.outcomes

    def _run(self, emit: Callable[[Any], None]) -> Run:
        engine = self._loop.engine(self._key, self._engine)
        return Run(
            engine, self.name, self._options, lambda values: (list(values), {}), emit, batch_size=self.batch_size
        )

    def _engine(self) -> Engine:
        connector = _timed(self._connector(self._config), self.seconds)
        connector.capacity = self.capacity
        options = self._options
        return Engine(connector, self.capacity, name=self.name, rate=options.rate, tuned=options.tuned)


def describe(connector: type[Connector[Any]], config: ConnectorConfig) -> tuple[str | None, float]:
    """
    Open the source, ask it for the DDL of a value, and close it.

    Returns:
        The DDL of one value (None when the source cannot tell it), and the seconds that the source took to open.

    Raises:
        SourceError: The source could not be opened, or the request for the DDL failed.
        MissingDriverError: The client package of the connector is not installed.
    """
    require_driver(connector)

    async def ask() -> tuple[str | None, float]:
        opened = connector(config)
        began = time.perf_counter()
        try:
            await opened.open()
            seconds = time.perf_counter() - began
            return await opened.describe(), seconds
        finally:
            await opened.close()

    with _as_source_error(config):
        return asyncio.run(asyncio.wait_for(ask(), OPEN_TIMEOUT))


@contextlib.contextmanager
def _as_source_error(config: ConnectorConfig) -> Iterator[None]:
    """Raise a `SourceError` for any exception of a connector, without the secrets of *config* in its message."""
    try:
        yield
    except TimeoutError as error:
        raise SourceError(
            f"The source did not open within {OPEN_TIMEOUT:g} s. Check that its server runs and can be reached."
        ) from error
    except ConfigError:
        raise
    except Exception as error:
        raise SourceError(f"{type(error).__name__}: {without_secrets(str(error), config)}") from error


def _timed(connector: Connector[Any], seconds: list[float]) -> Connector[Any]:
    """
    Make *connector* append the duration of each call to *seconds*, and return *connector*.

    The engine's own clock is too coarse: its resolution is a millisecond. An `UnavailableError` becomes a plain
    `TransientError`: after an `UnavailableError` the engine would wait until the source is back, but a user who checks
    a source wants to learn immediately that the source is not available.
    """
    fetch_many, open_ = connector.fetch_many, connector.open

    async def timed_fetch_many(keys: Any, call: Any) -> Any:
        began = time.perf_counter()
        try:
            return await fetch_many(keys, call)
        except UnavailableError as error:
            raise _as_transient(error) from None
        finally:
            seconds.append(time.perf_counter() - began)

    async def open_at_once() -> None:
        try:
            await open_()
        except UnavailableError as error:
            raise _as_transient(error) from None

    # These assignments replace the methods of this instance only.
    connector.fetch_many = timed_fetch_many  # type: ignore[method-assign]
    connector.open = open_at_once  # type: ignore[method-assign]
    return connector


def _as_transient(error: UnavailableError) -> TransientError:
    transient = TransientError(str(error), retry_after=error.retry_after)
    transient.said = error.said
    return transient
