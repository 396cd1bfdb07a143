"""The number of connections that a source accepts, and a warning about jobs that would open more than that."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ..interface import Connector
from .asking import ask
from .pickling import digest, identity_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..interface import ConnectorConfig

__all__ = ["ask_connections", "hear_connections", "known_connections", "too_many", "warn_of_connections"]

ASK_TIMEOUT = 5.0
_log = logging.getLogger("enrichkit")
_told: dict[str, int] = {}
"""
The most connections that each source accepts, by the fingerprint of the source. The sources have told these numbers to
this driver program.
"""
_warned: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""
For each session, the fingerprints of the sources about which a warning was logged, so that each is logged only once.
"""


class _NoSession:
    """The class of `_NO_SESSION`, which `_warned` has as a key, in place of a session, when no session is active."""


_NO_SESSION = _NoSession()


async def hear_connections(connector: Connector[Any]) -> int | None:
    """
    Ask the source of the open *connector* how many connections it accepts; remember and return the number, or None if
    the source does not tell it.
    """
    most = None
    with contextlib.suppress(Exception):  # the number is only for a warning, so an error does no harm
        most = await connector.max_connections()
    if most is not None:
        _told[_source_of(type(connector), connector.config)] = most
    return most


def ask_connections(connector: type[Connector[Any]], config: ConnectorConfig) -> int | None:
    """Ask the source now how many connections it accepts; return the number, or None if the source does not tell it."""
    if connector.max_connections is Connector.max_connections:
        return None
    instance = connector(config)
    answer = ask(instance, lambda: hear_connections(instance), ASK_TIMEOUT)
    return answer if isinstance(answer, int) else None


def known_connections(connector: type[Connector[Any]], config: ConnectorConfig) -> int | None:
    """Return how many connections the source accepts, as it told this driver earlier, or None if it has not told."""
    if connector.max_connections is Connector.max_connections:
        return None
    return _told.get(_source_of(connector, config))


def too_many(most: int, capacity: int, slots: int, expressions: int) -> str:
    """
    Return a text that says what is wrong and how to correct it, if the worker processes may open more than *most*
    connections; otherwise an empty text.
    """
    processes = slots * expressions
    if capacity * processes <= most:
        return ""
    fitting = most // processes
    remedy = (
        f"Set capacity={fitting}, or put" if fitting else "Even capacity=1 is too much: use fewer task slots, or put"
    )
    return (
        f"it takes {most:,} connections from all its clients, and {slots:,} task slots make up to "
        f"{capacity * processes:,} (capacity {capacity:,} x {slots:,} x {expressions} "
        f"expression{'s' * (expressions != 1)} of a stage). {remedy} a connection pooler in front of it, or raise its "
        "limit."
    )


def warn_of_connections(
    name: str,
    connector: type[Connector[Any]],
    config: ConnectorConfig,
    capacity: int,
    slots: int | None = None,
    expressions: int = 1,
) -> None:
    """
    Log a warning, once per source and session, when a job would open more connections than the source *name* accepts.

    Args:
        name: Name of the source.
        connector: Class of the source's connector.
        config: Config of the source.
        capacity: Calls in flight per worker process.
        slots: Number of tasks that the job can run at a time; None: the number of the active session.
        expressions: Number of enrich expressions in one stage.
    """
    most = known_connections(connector, config)
    if most is None:
        return
    session = _active_session()
    slots = slots or _task_slots(session)
    fault = too_many(most, capacity, slots, expressions) if slots else ""
    warned = _warned.setdefault(session or _NO_SESSION, set())
    source = _source_of(connector, config)
    if fault and source not in warned:
        warned.add(source)
        _log.warning("The source %r may refuse connections: %s", name, fault)


def _source_of(connector: type[Connector[Any]], config: ConnectorConfig) -> str:
    return digest(*identity_of(connector, replace(config, returns=None)))


def _active_session() -> SparkSession | None:
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _task_slots(session: SparkSession | None) -> int | None:
    """Return how many tasks of *session* can run at a time, by its settings, or else by the number of its cores."""
    if session is None:
        return None

    def number(setting: str) -> int | None:
        text: str | None = session.conf.get(setting, None)
        return int(text) if text is not None and text.isdecimal() else None

    grows = session.conf.get("spark.dynamicAllocation.enabled", "false") == "true"
    executors = number("spark.dynamicAllocation.maxExecutors" if grows else "spark.executor.instances")
    cores, cpus = number("spark.executor.cores"), number("spark.task.cpus") or 1
    if executors and cores:
        return executors * (cores // cpus)
    try:
        context = session.sparkContext
    except Exception:  # noqa: BLE001  # Spark Connect has no context, and raises an error of its own
        return None
    return int(context.defaultParallelism) // cpus
