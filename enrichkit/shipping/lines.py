"""The exact lines that submit a job with an archive, for each kind of cluster."""

from __future__ import annotations

from pathlib import Path

from .archive import SCRIPT
from .ship import FOLDER

__all__ = ["lines"]


def lines(path: str | Path, version: str, platform: str, *, bare: bool) -> str:
    """
    Return the lines by which a user runs a job with the archive, for a running session and for each kind of cluster.

    Args:
        path: Path of the archive.
        version: Version of Python on the executors.
        platform: Platform of the executors.
        bare: Whether the archive leaves out pyarrow, which the executors must then have.
    """
    python, name = f"./{FOLDER}/{SCRIPT}", Path(path).name
    cluster = " and pyarrow" if bare else ""
    return f"""\
In a program, on classic Spark and Spark Connect, from Spark 4.0 on:
  from enrichkit.shipping import ship
  ship(spark, "{path}")

spark-submit, standalone or YARN in client mode:
  PYSPARK_PYTHON={python} PYSPARK_DRIVER_PYTHON=python3 \\
    spark-submit --archives {path}#{FOLDER} job.py

YARN in cluster mode:
  spark-submit --deploy-mode cluster --archives {path}#{FOLDER} \\
    --conf spark.yarn.appMasterEnv.PYSPARK_PYTHON={python} \\
    --conf spark.executorEnv.PYSPARK_PYTHON={python} job.py

Kubernetes, and EMR Serverless: put {name} where all pods can read it.
  --conf spark.archives=s3a://bucket/{name}#{FOLDER}
  --conf spark.pyspark.python={python} --conf spark.pyspark.driver.python=python3

Databricks, EMR and Dataproc start workers with the cluster's own packages; docs/cluster.md says how.

The executors must have Python {version} with PySpark{cluster} ({platform}). It is looked for as
python{version} and python3 on their PATH; another one is named by
  --conf spark.executorEnv.ENRICHKIT_PYTHON=/opt/python/bin/python3"""
