"""Exact totals of enriched rows, by Spark's own `Observation`: rows by status and origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..outcome import STATUSES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ORIGINS", "Observed", "observe"]

ORIGINS = ("call", "shared", "preload", "reuse", "journal", "cache", "stale", "fallback")
_DETAILS = {"value", "status", "error", "attempts", "latency", "origin"}
_COSTS = {"spent"}
"""The details have this additional field if the source reports what a call has cost."""


@dataclass(frozen=True)
class Observed:
    """
    The result of `observe`: the DataFrame to use from now on, and the totals of its rows.

    Attributes:
        frame: The DataFrame to use instead of the one that was passed to `observe`; it has the same rows and columns.
        name: Name under which the progress of a streaming query shows the metrics.
        columns: Names of the observed columns, all of which have details.
    """

    frame: DataFrame
    name: str
    columns: tuple[str, ...]
    _observation: Any = field(default=None, repr=False)

    def totals(self, progress: Any = None) -> dict[str, dict[str, int]]:
        """
        Return, for each column, the number of all rows (`rows`), of rows with each status, and of rows with each
        origin.

        Args:
            progress: For a streaming query, the progress of one micro-batch, such as `query.lastProgress`. Leave it out
                for a batch query: the method then waits for the first action on `frame`, and returns its totals.

        Raises:
            ConfigError: *progress* is left out for a streaming query, or does not hold the metrics called `name`.
        """
        if progress is not None:
            metrics = _metrics_of(progress, self.name)
        elif self._observation is None:
            raise ConfigError(
                "totals() of a streaming query needs the progress of a micro-batch, as in totals(query.lastProgress)."
            )
        else:
            metrics = dict(self._observation.get)
        return {column: _of_column(metrics, number) for number, column in enumerate(self.columns)}


def observe(df: DataFrame, *columns: str, name: str = "enrichkit") -> Observed:
    """
    Count the rows of *df* by status and origin, while Spark runs an action on the returned DataFrame.

    From Spark 4.3 on, the totals are exact even if Spark repeats tasks. Before 4.3, they are exact except in one case:
    if Spark repeats a task that has succeeded, because its shuffle files are lost, the rows of the task count twice.

    Args:
        df: A DataFrame with columns that `enrich(..., details=True)` made. Batch or streaming, classic or Connect.
        columns: Names of the columns to count; if no name is given, all columns with details.
        name: Name of the metrics.

    Returns:
        The DataFrame to use from now on, and its totals.

    Raises:
        ConfigError: On the driver: one of *columns* has no details, or no column of *df* has details.

    >>> from enrichkit import enrich
    >>> observed = observe(df.withColumn("profile", enrich("redis", "user_id", details=True)))
    >>> observed.frame.write.parquet(f"{folder}/profiles")
    >>> observed.totals()
    {'profile': {'rows': 100, 'ok': 100, 'call': 100}}
    """
    from pyspark.sql import functions as F

    found = [f.name for f in df.schema.fields if _has_details(f.dataType)]
    for column in columns:
        if column not in found:
            raise ConfigError(
                f"The column {column!r} has no details; enrich(..., details=True) makes columns that have them"
                f"{': ' + ', '.join(map(repr, found)) if found else ''}."
            )
    if not found:
        raise ConfigError("No column has details to be counted. Make one with enrich(..., details=True).")
    chosen = columns or tuple(found)
    counts = []
    for number, column in enumerate(chosen):
        quoted = "`" + column.replace("`", "``") + "`"
        counts.append(F.count(F.lit(1)).alias(f"{number}_rows"))
        for part, names in (("status", STATUSES[1:]), ("origin", ORIGINS)):
            value = F.col(f"{quoted}.{part}")
            counts += [F.count(F.when(value == each, 1)).alias(f"{number}_{each}") for each in names]
        tiered = F.col(f"{quoted}.origin").startswith("tier:")
        counts.append(F.count(F.when(tiered, 1)).alias(f"{number}_tier"))
    if df.isStreaming:
        return Observed(df.observe(name, *counts), name, chosen)
    from pyspark.sql import Observation

    observation = Observation(name)
    return Observed(df.observe(observation, *counts), name, chosen, observation)


def _has_details(data_type: Any) -> bool:
    return hasattr(data_type, "fieldNames") and set(data_type.fieldNames()) - _COSTS == _DETAILS


def _metrics_of(progress: Any, name: str) -> Mapping[str, Any]:
    """Return the metrics called *name* of *progress*, the progress of a streaming query as an object or as a dict."""
    observed = progress["observedMetrics"] if isinstance(progress, Mapping) else progress.observedMetrics
    metrics = observed.get(name)
    if metrics is None:
        raise ConfigError(
            f"The progress has no metrics {name!r}: they are there after a micro-batch with rows. It has: "
            f"{', '.join(map(repr, observed)) or 'none'}."
        )
    found = metrics if isinstance(metrics, Mapping) else metrics.asDict()
    # Spark Connect 4 does not convert the metrics into a row: they are JSON with the values and the schema of the row.
    if set(found) == {"values", "schema"}:
        found = dict(zip((part["name"] for part in found["schema"]["fields"]), found["values"], strict=True))
    return found


def _of_column(metrics: Mapping[str, Any], number: int) -> dict[str, int]:
    start = f"{number}_"
    counts = {name.removeprefix(start): count for name, count in metrics.items() if name.startswith(start)}
    return {name: count for name, count in counts.items() if count or name == "rows"}
