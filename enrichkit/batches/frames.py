"""
`submit_batches()` and `collect_batches()`: they check their arguments, collect the distinct keys, and poll the service.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..journal.config import Journal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from ..columnar import Keys
    from ..interface import ConnectorConfig, Returns
    from .report import Batches
    from .work import Work

__all__ = ["collect_batches", "submit_batches"]


def submit_batches(
    df: DataFrame,
    source: str | ConnectorConfig,
    *keys: Column | str,
    journal: Journal,
    returns: Returns | None = None,
    batch_requests: int | None = None,
) -> Batches:
    """
    Submit the distinct keys of *df* to *source* in batches, which the service answers later at a lower price.

    A key is submitted once: it is left out if the journal has its answer, or if an earlier batch that is not collected
    yet contains it. So the call may be repeated, even if the driver was killed in the middle of it. The call runs a
    Spark job that collects the distinct keys on the driver. The driver itself talks to the service, so it needs the
    secrets of the config and access to the folder of the journal.

    Args:
        df: A DataFrame, not a stream.
        source: Name of a source whose connector has a batch form, or its config.
        keys: Key columns or their names, as for `enrich`. A row with a null in one of them is left out.
        journal: The journal that gets the answers, and in which the submitted batches are recorded. It needs a
            `run_id`, or must be shared.
        returns: Type of one value, as for `enrich`. None: the type that the config declares.
        batch_requests: Most requests of a batch, 1 or more. None: as many as the service takes.

    Returns:
        The progress of the batches.

    Raises:
        ConfigError: An argument, config or type is wrong, or the source has no batch form.
        ConnectorError: The service cannot be reached or refuses the batch. The next call submits the keys that were not
            submitted.
        JournalError: The journal cannot be read or written, or another process is submitting or collecting batches of
            this source in the journal.

    Printed, the result is for example::

        llm: 1 batch; keys: 6,000 submitted
          batch_67  submitted  0 of 6,000 requests answered
    """
    work = _work("submit_batches", df, source, keys, journal, returns)
    most = work.form.max_requests
    if batch_requests is not None and not (type(batch_requests) is int and 1 <= batch_requests <= most):
        raise ConfigError(
            f"batch_requests is {batch_requests!r}; it must be a whole number from 1 to {most:,}, which the service "
            "takes, or None. Write batch_requests=10_000."
        )
    return _here(work.submit(_distinct(df, keys), batch_requests))


def collect_batches(
    df: DataFrame,
    source: str | ConnectorConfig,
    *keys: Column | str,
    journal: Journal,
    returns: Returns | None = None,
    wait: float = 0.0,
    every: float = 60.0,
) -> Batches:
    """
    Ask the service for the progress of the batches, and write the answers of finished batches to the journal.

    After that ``enrich(source, *keys, journal=journal)`` finds these answers in the journal, with the same types as the
    answers of calls, and makes calls only for keys without an answer there. `collect_batches` runs no Spark job, and
    may be repeated.

    Args:
        df: The DataFrame that `submit_batches` was given; only the types of its key columns are used.
        source: The same source as for `submit_batches`. *keys*, *journal* and *returns* must be the same, too, because
            batches of another config, prompt or type are not found.
        keys: Key columns or their names.
        journal: The journal.
        returns: Type of one value.
        wait: Seconds to wait for batches that have not ended; 0 or more.
        every: Seconds between two requests to the service, above 0.

    Returns:
        The progress of the batches. A request that failed is not in the journal: the next `submit_batches` submits its
        key again, and `enrich` makes a call for the key.

    Raises:
        ConfigError: An argument, config or type is wrong, or nothing was submitted.
        ConnectorError: The service cannot be reached, or refuses the requests.
        JournalError: The journal cannot be read or written, or another process is submitting or collecting batches of
            this source in the journal.

    Printed, the result is for example::

        llm: 1 batch
          batch_67  completed, collected  6,000 of 6,000 requests answered
    """
    for name, value, least in (("wait", wait, "0 or more"), ("every", every, "more than 0")):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (value >= 0 if name == "wait" else value > 0):
            raise ConfigError(
                f"{name} is {value!r}; it must be a number of seconds, {least}, for example {name}=3600.0."
            )
    work = _work("collect_batches", df, source, keys, journal, returns)
    if not work.report().batches:
        raise ConfigError(
            f"collect_batches() found no batch of {work.report().source!r} in the journal at {journal.path!r}. Batches "
            "are found with the journal, config, key columns and type with which they were submitted: pass the same to "
            "submit_batches() first."
        )
    end = time.monotonic() + wait
    while True:
        report = _here(work.collect())
        left = end - time.monotonic()
        if report.done or left <= 0:
            return report
        time.sleep(min(every, left))


def _work(
    caller: str, df: DataFrame, source: Any, keys: tuple[Any, ...], journal: Any, returns: Returns | None
) -> Work:
    from ..driver.planner import make_plan, names_of
    from ..sources.tiers import Tiers
    from ..values.types import arrow_type_of
    from .work import Work

    if not keys:
        raise ConfigError(
            f"{caller}() was given no key column; name those of enrich(), as in {caller}(df, config, 'text')."
        )
    if isinstance(source, Tiers):
        raise ConfigError(f"{caller}() was given tiers(); a batch goes to one source. Name the last of them.")
    if not isinstance(journal, Journal):
        raise ConfigError(
            f"journal is a {type(journal).__name__}; {caller}() needs a Journal, in which the answers are found later. "
            "Write journal=Journal('/data/answers', run_id='tuesday')."
        )
    if df.isStreaming:
        raise ConfigError(
            f"{caller}() was given a stream, whose keys have no end. Call it in foreachBatch, or give it a DataFrame "
            "that is no stream."
        )
    plan, _ = make_plan(source, len(keys), returns, {"journal": journal}, names=names_of(keys))
    types = [arrow_type_of(field.dataType)[1] for field in df.select(*keys).schema]
    return Work(plan, journal, types)


def _distinct(df: DataFrame, keys: tuple[Any, ...]) -> Iterator[Keys]:
    """Yield the distinct keys of *df*, leaving out keys with nulls."""
    from pyspark.sql import functions as F

    from ..worker.keys import encode

    columns = [F.col(key) if isinstance(key, str) else key for key in keys]
    chosen = df.select(*[each.alias(f"key{number}") for number, each in enumerate(columns)]).dropna().distinct()
    # Spark 3.5 has no `toArrow`. There `_collect_as_arrow` is called, which is the first step of Spark's own conversion
    # to pandas.
    collect: Any = getattr(chosen, "toArrow", None)
    for batch in chosen._collect_as_arrow() if collect is None else collect().to_batches():  # type: ignore[operator]
        yield encode(batch.columns)[0]


def _here(coroutine: Coroutine[Any, Any, Batches]) -> Batches:
    """
    Run *coroutine* in a new thread and return its result. In a notebook, the calling thread already runs an event loop,
    so `asyncio.run` would fail in it.
    """
    with ThreadPoolExecutor(1, "enrichkit-batches") as thread:
        return thread.submit(asyncio.run, coroutine).result()
