"""
N17: a tier that stops: a Redis before an HTTP service, whole, frozen, and killed in the middle of a job.

The service and Redis count what they are asked. Once the tier is known to be down a job should take no longer than one
without a tier.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from benchmarks.harness import COLUMN, PAIRS, Sample, Table, alternate, at_least, rates, spread
from benchmarks.spark_runs import Meter
from enrichkit import enrich, local, tiers

KEYS, TASKS, LATENCY = 40_000, 2, 0.01
IN_FLIGHT = 50
SLOWER_MAX = 0.1
NOTICED = 0.5
"""Seconds for which a tier may be waited for: `tiers(timeout=)`."""
SOURCES = (*COLUMN, "enrichkit/sources/tiers.py", "enrichkit/driver/tiers.py", "benchmarks/tiers.py")


def main(quick: bool) -> list[Table]:
    """Measure N17."""
    from enrichkit_http import HttpConfig
    from enrichkit_redis import RedisConfig
    from pyspark.sql import functions as F

    count = KEYS // 10 if quick else KEYS
    table = Table(
        "N17",
        f"{count:,} distinct keys, HTTP of {LATENCY * 1000:g} ms, two tasks with {IN_FLIGHT} in flight, Redis as tier",
        ("tier", "rows/s", "requests of the service", "rows with another status than ok"),
    )
    failed: dict[str, int] = {}
    with local.http() as service, local.spark() as spark:
        service.script(latency=LATENCY)
        meter = Meter(service.pid)
        last = HttpConfig(url=f"{service.url}/{{}}", value="score")
        frame = spark.range(0, count, 1, TASKS).select(F.concat(F.lit("u"), F.col("id").cast("string")).alias("k"))

        def run(name: str, source: Any) -> Sample:
            before = service.stats().calls
            column = enrich(source, "k", returns="int", capacity=IN_FLIGHT)
            sample = meter.spark(frame.select(column.alias("v")))
            return sample.counting(asked=service.stats().calls - before)

        def checked(name: str, source: Any) -> None:
            column = enrich(source, "k", returns="int", capacity=IN_FLIGHT, details=True)
            failed[name] = frame.withColumn("v", column).where("v.status <> 'ok'").count()

        with local.redis() as frozen, local.redis() as whole, local.redis() as first:
            os.kill(frozen.pid, signal.SIGSTOP)
            try:
                gone = tiers(RedisConfig(url=frozen.url, key="frozen:{}"), last, timeout=NOTICED)
                near = tiers(RedisConfig(url=whole.url), last, timeout=NOTICED)
                kinds = {"none": last, "whole, and empty": near, "frozen before the job": gone}
                for name, source in kinds.items():
                    checked(name, source)
                samples = alternate(
                    {name: lambda name=name, source=source: run(name, source) for name, source in kinds.items()},
                    rounds=2 if quick else PAIRS,
                    warmup=1,
                )
            finally:
                os.kill(frozen.pid, signal.SIGCONT)
            for sig in (signal.SIGSTOP, signal.SIGKILL):
                name = f"{sig.name} in the middle"
                server = first if sig is signal.SIGSTOP else whole
                source = tiers(RedisConfig(url=server.url, key=f"{sig.name}:{{}}"), last, timeout=NOTICED)
                timer = threading.Thread(target=_stop_after, args=(service, server.pid, sig, count // 2))
                timer.start()
                checked(name, source)
                timer.join()
                os.kill(first.pid, signal.SIGCONT)
    for name, found in samples.items():
        asked = max(int(sample.counts["asked"]) for sample in found)
        table.rows.append((name, spread(rates(found, count), digits=0), f"{asked:,}", str(failed[name])))
    for name in list(failed)[len(samples) :]:
        table.rows.append((name, "-", "-", str(failed[name])))
    goal, reached = at_least(
        1 - SLOWER_MAX,
        "the rate without a tier, once it is frozen",
        rates(samples["frozen before the job"], count),
        rates(samples["none"], count),
    )
    table.goals.append((goal, reached))
    table.goals.append((f"no row fails: {sum(failed.values())}", not any(failed.values())))
    table.notes.append(
        f"a tier is waited for {NOTICED:g} s once; the frozen one is asked once a second whether it is back"
    )
    return [table]


def _stop_after(service: Any, pid: int, sig: signal.Signals, requests: int) -> None:
    """Send *sig* to the process *pid* once the service has had a number of *requests*."""
    before = service.stats().calls
    while service.stats().calls - before < requests:
        time.sleep(0.01)
    os.kill(pid, sig)
