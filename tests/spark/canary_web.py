"""All that Spark's web pages and its REST interface tell, as files; used by the driver program of `test_canary.py`."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

PAGES = ("jobs", "stages", "storage", "environment", "executors", "SQL")
ANSWERS = ("stages?details=true", "allexecutors", "environment", "storage/rdd")


def web(spark: SparkSession, folder: Path) -> None:
    """Ask for each page and each answer, and keep them in *folder*."""
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()  # the pages are made from events
    folder.mkdir()
    # Without a proxy: the pages are on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def get(path: str) -> str:
        with opener.open(f"{context.uiWebUrl}/{path}", timeout=60) as answer:
            body: bytes = answer.read()
        (folder / path.replace("/", "|")[-200:]).write_bytes(body)
        return body.decode()

    rest = f"api/v1/applications/{context.applicationId}"
    for page in PAGES:
        get(f"{page}/")
    for answer in ANSWERS:
        get(f"{rest}/{answer}")
    for job in json.loads(get(f"{rest}/jobs")):
        get(f"jobs/job/?id={job['jobId']}")
    for stage in json.loads(get(f"{rest}/stages")):
        number, attempt = stage["stageId"], stage["attemptId"]
        get(f"stages/stage/?id={number}&attempt={attempt}")
        get(f"{rest}/stages/{number}/{attempt}?details=true&withSummaries=true")
        get(f"{rest}/stages/{number}/{attempt}/taskList?length=1000")
    for execution in json.loads(get(f"{rest}/sql?details=true&planDescription=true&length=10000")):
        get(f"SQL/execution/?id={execution['id']}")
    for executor in json.loads(get(f"{rest}/executors")):
        get(f"executors/threadDump/?executorId={executor['id']}")
    queries = set(re.findall(r"StreamingQuery/(statistics\S*?id=[\w-]+)", get("StreamingQuery/")))
    assert queries, "the page of the streaming queries names none"
    for query in queries:
        get(f"StreamingQuery/{query}")
