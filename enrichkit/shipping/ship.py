"""Gives an archive to a running session."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .archive import SCRIPT, Manifest
from .checks import check_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FOLDER", "ship"]

FOLDER = "environment"
"""Name of the folder in which an executor unpacks the archive."""


def ship(spark: SparkSession, path: str | Path = "enrichkit-env.tar.gz", *, plugins: Iterable[str] = ()) -> Manifest:
    """
    Check an archive of `enrichkit pack` and give it to the executors of *spark*, on classic Spark and Spark Connect.

    Later queries of the session start their Python workers with the packages of the archive.

    Args:
        spark: A session of Spark 4.0 or newer.
        path: Path of the archive.
        plugins: Connectors that the archive must have.

    Raises:
        ConfigError: The archive is damaged or made for other executors, or Spark is too old. Raised on the driver.

    """
    add: Any = getattr(spark, "addArtifact", None)
    if add is None:
        raise ConfigError(
            f"Spark {spark.version} cannot take an archive while it runs; Spark 4.0 can. Name it when the job starts: "
            f"spark-submit --archives {Path(path).name}#{FOLDER} --conf spark.pyspark.python=./{FOLDER}/{SCRIPT}"
        )
    manifest = check_archive(path, plugins=plugins)
    add(f"{path}#{FOLDER}", archive=True)
    spark.conf.set("spark.sql.execution.pyspark.python", f"./{FOLDER}/{SCRIPT}")
    return manifest
