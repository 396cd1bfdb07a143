"""
Spark's daemon of Python workers, for tests: it imports what every worker needs before it forks workers.

Spark ends a worker when its task fails, and starts another one, whose imports take a second of CPU time. Spark's own
daemon imports nothing, because a fork copies no threads, and a package may start threads when it is imported. None of
the packages below depends on such threads. And the daemon freezes what it has imported, because each worker collects
garbage after each task, which takes a tenth of a second where it has all modules to look through.
"""

import gc

import enrichkit_http.connector  # noqa: F401
import pandas as pd  # noqa: F401
import pyarrow as pa  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import enrichkit.worker.entry
import enrichkit.worker.frame  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
