"""A source behind the engine of a worker, in this process and without Spark."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..engine.dispatch import Engine
from ..engine.handover import Handover
from ..engine.loop import loop_thread
from ..engine.run import Run
from ..errors import ConfigError, EnrichkitError
from ..options import Options
from ..outcome import Outcomes
from ..plan import limits_of, without_secrets
from ..registry import require_driver

if TYPE_CHECKING:
    from ..connector import Connector, ConnectorConfig

__all__ = ["OPEN_TIMEOUT", "TOLD", "Probe", "SourceError", "describe", "without_secrets"]

OPEN_TIMEOUT = 30.0
TOLD: dict[str, Any] = {
    "on_timeout": "null",
    "on_error": "null",
    "on_missing": "null",
    "max_fallback_ratio": 1.0,
    "details": True,
}
"""The options with which what became of each key is told, and fails nothing."""


class SourceError(EnrichkitError):
    """A source could not be opened or asked; the text is free of its secrets."""


class Probe:
    """
    One source and its engine; a context manager, which closes them.

    Answers come as the connector gives them: only Spark can tell what the declared type makes of them.

    Attributes:
        name: Of the source.
        capacity: Calls in flight.
        batch_size: Keys per call.
        seconds: How long each call took that has ended.

    Args:
        name: Of the source.
        connector: Its class.
        config: Its config.
        options: Flow control; failures of single keys are told, whatever `on_error` and the like say.
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
        self._options = Options.of({**options, **TOLD})
        self.capacity, self.batch_size, self._window = limits_of(name, connector(config), self._options)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connector, on its loop."""
        closed = threading.Event()
        tasks: list[asyncio.Task[None]] = []  # a loop keeps only weak references

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
        Look *groups* of distinct keys up and yield what became of each group, in order.

        Groups are pulled only while there is room for them, so they may be without end.

        Raises:
            SourceError: The connector cannot work at all.
        """
        handover = Handover(
            self._loop,
            self._window,
            2 * self.capacity * self.batch_size,
            lambda emit: Run(self.name, self._options, lambda values: (list(values), {}), emit),
        )
        slices = (Outcomes(keys, len(keys), details=True) for keys in groups)
        with _told_apart(self._config):
            for part in handover.process(slices, self._key, self._engine):
                yield part.outcomes

    def _engine(self) -> Engine:
        connector = _timed(self._connector(self._config), self.seconds)
        connector.capacity = self.capacity
        return Engine(connector, self.capacity, self.batch_size, name=self.name, rate=self._options.rate)


def describe(connector: type[Connector[Any]], config: ConnectorConfig) -> tuple[str | None, float]:
    """
    Open the source, ask it for the DDL of a value and close it; return the DDL and the seconds until it was open.

    Raises:
        SourceError: It could not be opened or asked.
        MissingDriverError: The package that it talks through is not installed.
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

    with _told_apart(config):
        return asyncio.run(asyncio.wait_for(ask(), OPEN_TIMEOUT))


@contextlib.contextmanager
def _told_apart(config: ConnectorConfig) -> Iterator[None]:
    """Raise a `SourceError` for whatever a connector raises, with the secrets of *config* taken out of its text."""
    try:
        yield
    except TimeoutError as error:
        raise SourceError(
            f"The source did not open within {OPEN_TIMEOUT:g} s. Look whether its server runs and can be reached."
        ) from error
    except ConfigError:
        raise
    except Exception as error:
        raise SourceError(f"{type(error).__name__}: {without_secrets(str(error), config)}") from error


def _timed(connector: Connector[Any], seconds: list[float]) -> Connector[Any]:
    """Let *connector* note how long each of its calls takes: the engine's own clock ticks in milliseconds."""
    fetch_many = connector.fetch_many

    async def fetch_and_note(keys: Any, call: Any) -> Any:
        began = time.perf_counter()
        try:
            return await fetch_many(keys, call)
        finally:
            seconds.append(time.perf_counter() - began)

    connector.fetch_many = fetch_and_note  # type: ignore[method-assign]  # of this one instance
    return connector
