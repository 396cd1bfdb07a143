"""Starting a streaming query on a machine that is busy; used by tests and by the driver program of one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming import StreamingQuery


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """
    Start a query and return it once its sources are there.

    Spark gives the processes that read a log's offsets and, on Connect, run foreachBatch ten seconds to answer and has
    no setting for that. When they are too slow the query has done nothing yet, and is started again.
    """
    while True:
        try:
            query = start()
            while query.isActive and query.status["message"] == "Initializing sources":
                time.sleep(0.02)
            error = query.exception()
        except PySparkException as refused:
            error = refused
        if error is None:
            return query
        if "failed to connect back" not in str(error):
            raise error
