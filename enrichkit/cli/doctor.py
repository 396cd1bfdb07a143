"""`doctor`: starts or gets a Spark session, and says what its executors lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..reports.doctor import doctor as examine
from ..shipping import ship
from ..sources.config import find_source
from .arguments import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..reports.doctor import Diagnosis

__all__ = ["doctor"]


def doctor(
    names: Sequence[str],
    *,
    master: str | None,
    remote: str | None,
    conf: Sequence[str],
    archive: str | None,
    tasks: int | None,
    options: dict[str, Any],
) -> Diagnosis:
    """
    Start or get a Spark session, inspect its executors, and stop the session; see `enrichkit.doctor`.

    Args:
        names: Names of the sources that the executors try to reach.
        master: Spark's master; None: as Spark's own settings say.
        remote: Address of a Spark Connect server; None: as Spark's own settings say.
        conf: Settings of Spark, as `NAME=VALUE`.
        archive: Path of an archive, made by `enrichkit pack`, that is shipped to the executors first; None: no archive.
        tasks: Number of tasks; None: twice as many as there are task slots.
        options: Options of `enrich`.

    Raises:
        ArgumentError: Both *master* and *remote* are given, or a text of *conf* is not of the form `NAME=VALUE`.
    """
    if master is not None and remote is not None:
        raise ArgumentError("--master and --remote are both given. Give one of them.")
    for text in conf:
        if "=" not in text:
            raise ArgumentError(f"--conf is {text!r}; it must be NAME=VALUE, for example spark.executor.cores=2.")
    for name in names:
        find_source(name)  # so a misspelled name raises an error before Spark starts
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    if master is not None:
        builder = builder.master(master)
    if remote is not None:
        builder = builder.remote(remote)
    for text in conf:
        builder = builder.config(*text.split("=", 1))
    spark: SparkSession = builder.getOrCreate()
    try:
        if archive is not None:
            ship(spark, archive)
        return examine(spark, *names, tasks=tasks, **options)
    finally:
        spark.stop()
