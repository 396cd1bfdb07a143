"""
A job that wants five rows of 100,000, or is cancelled: how much it asks of an HTTP service of 20 ms, with the defaults.

`python -m benchmarks.few_rows classic` or `... connect` measures one kind of session and prints its samples as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pandas as pd  # noqa: TC002 - PySpark reads these type hints
from pyspark.sql import functions as F

from benchmarks.harness import COLUMN, ROOT, Table, median
from enrichkit import enrich, local

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

ROWS, CAPACITY, LATENCY = 100_000, 100, 0.02
TYPE = "key string, name string"
SOURCES = (*COLUMN, "plugins/enrichkit-http/enrichkit_http", "benchmarks/few_rows.py")
CALLS_MAX, SECONDS_MAX, AFTER = 3 * CAPACITY, 1.0, 1.0
PLAIN = "show(5), a pandas UDF that asks nobody"
"""What Spark and the start of a worker process take without enrichkit, on the same machine."""


def measure(spark: SparkSession, rounds: int, *, connect: bool) -> dict[str, list[tuple[float, float, float]]]:
    """Return, for each use, samples of: calls, seconds until it returned, seconds after which the last call came."""
    from enrichkit_http import HttpConfig

    found: dict[str, list[tuple[float, float, float]]] = {}
    with local.http() as service:
        service.script(latency=LATENCY)
        column = enrich(HttpConfig(url=service.url + "/{}"), "id", returns=TYPE)
        rows = spark.range(ROWS).withColumn("profile", column)

        def last_call(began: float) -> float:
            """Return the seconds from *began* to the last new call, looked for during two seconds."""
            calls, last = service.stats().calls, 0.0
            while time.monotonic() - began < 2 * AFTER:
                now = service.stats().calls
                if now > calls:
                    calls, last = now, time.monotonic() - began
                time.sleep(0.01)
            return last

        def few(use: Callable[[], object]) -> tuple[float, float, float]:
            service.reset_stats()
            began = time.monotonic()
            with contextlib.redirect_stdout(io.StringIO()):
                use()
            ended = time.monotonic()
            after = last_call(ended)
            return service.stats().calls, ended - began, after

        def cancelled() -> tuple[float, float, float]:
            service.reset_stats()
            job = threading.Thread(target=_in_vain, args=(lambda: rows.write.format("noop").mode("overwrite").save(),))
            job.start()
            while service.stats().calls < 10 * CAPACITY:
                time.sleep(0.01)
            began = time.monotonic()
            spark.interruptAll() if connect else spark.sparkContext.cancelAllJobs()
            after = last_call(began)
            job.join()
            return service.stats().calls, 0.0, after

        plain = spark.range(ROWS).select(F.pandas_udf(_as_text, "string")("id"))
        uses: dict[str, Callable[[], tuple[float, float, float]]] = {
            "show(5)": lambda: few(lambda: rows.show(5)),
            "select(...).head(5)": lambda: few(lambda: rows.select("profile.*").head(5)),
            "where(...).limit(5).collect()": lambda: few(
                lambda: rows.where("profile.name is not null").limit(5).collect()
            ),
            "isEmpty()": lambda: few(rows.isEmpty),
            PLAIN: lambda: few(lambda: plain.show(5)),
            "cancel": cancelled,
        }
        rows.show(5)  # starts the JVM's part
        for _ in range(rounds):
            for name, use in uses.items():
                found.setdefault(name, []).append(use())
    return found


def _as_text(ids: pd.Series) -> pd.Series:
    return ids.astype(str)


def _in_vain(job: Callable[[], object]) -> None:
    with contextlib.suppress(Exception):  # the cancellation; classic Spark and Spark Connect raise different errors
        job()


def main(quick: bool) -> list[Table]:
    """Measure both kinds of sessions."""
    table = Table(
        "few rows",
        f"{ROWS:,} rows, HTTP, {LATENCY * 1000:g} ms, default options, warm JVM",
        ("session", "use", "calls", "seconds", "last call after, s"),
    )
    for kind in ("classic", "connect"):
        command = [sys.executable, "-m", "benchmarks.few_rows", kind, "2" if quick else "5"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        samples: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
        for name, found in samples.items():
            calls, seconds, after = ([sample[column] for sample in found] for column in range(3))
            worst = max(calls)
            shown = f"{median(seconds):.2f}" if any(seconds) else ""
            if name == PLAIN:
                table.rows.append((kind, name, "", shown, ""))
                continue
            table.rows.append((kind, name, f"{median(calls):,.0f} (at most {worst:,})", shown, f"{max(after):.2f}"))
            if name != "cancel":
                table.goals.append((f"{kind}, {name}: at most {CALLS_MAX} calls: {worst:,}", worst <= CALLS_MAX))
                text = f"{kind}, {name}: at most {SECONDS_MAX:g} s: {median(seconds):.2f}"
                table.goals.append((text, median(seconds) <= SECONDS_MAX))
            text = f"{kind}, {name}: no new call {AFTER:g} s after the end: {max(after):.2f}"
            table.goals.append((text, max(after) <= AFTER))
    table.notes.append("the worker process of a job that ends early ends with it, so each use starts one")
    table.notes.append(
        "such a process imports pandas, because pyarrow does with the first array that it makes of a list"
    )
    return [table]


if __name__ == "__main__":
    is_connect = sys.argv[1] == "connect"
    with local.spark(connect=is_connect) as session:
        print(json.dumps(measure(session, int(sys.argv[2]), connect=is_connect)))
