"""
Hedged reads (`attempt_timeout="p95"`) at an HTTP service of which some requests are slow; the service counts them all.

In the one workload each request draws whether it is slow, as where a garbage collection or a lost packet is to blame,
so that a second request helps. In the other one some keys are always slow, and a second request is for nothing.
"""

from __future__ import annotations

import numpy as np

from benchmarks.harness import COLUMN, Sample, Table, alternate, median, per_item, spread
from benchmarks.spark_runs import Meter, keys_of
from enrichkit import enrich, local

KEYS = 40_000
CAPACITY = 64
LATENCY, TAIL, TAIL_LATENCY = 0.020, 0.015, 0.500
RUNS = 5
SOURCES = (
    *COLUMN,
    "enrichkit/engine/hedging.py",
    "plugins/enrichkit-http/enrichkit_http",
    "enrichkit/local/http_service.py",
    "benchmarks/hedged.py",
)


def main(quick: bool) -> list[Table]:
    """Measure hedged."""
    from enrichkit_http import HttpConfig

    keys = KEYS // 20 if quick else KEYS
    table = Table(
        "hedged",
        f"HTTP {LATENCY * 1000:g} ms, {TAIL:.1%} of them {TAIL_LATENCY * 1000:g} ms, {keys:,} keys, capacity "
        f"{CAPACITY}, one task",
        (
            *("slow", "attempt_timeout", "calls", "median, ms", "p99, ms", "p99.9, ms", "seconds", "us CPU per key"),
            *("JVM", "server"),
        ),
    )
    found: dict[str, list[Sample]] = {}
    with local.http() as service, local.spark() as spark:
        meter = Meter(service.pid)
        config = HttpConfig(url=service.url + "/{}", value="score")

        def run(tail_of: str, attempt_timeout: str | None) -> Sample:
            service.script(latency=LATENCY, tail=TAIL, tail_latency=TAIL_LATENCY, tail_of=tail_of)
            service.reset_stats()
            column = enrich(
                config, "key", capacity=CAPACITY, details=True, returns="int", attempt_timeout=attempt_timeout
            )
            frame = keys_of(spark, keys, "k", tasks=1).select(column.alias("v"))
            latencies: list[float] = []

            def take() -> None:
                rows = frame.select("v.latency", "v.status").toArrow().to_pydict()
                assert rows["status"] == ["ok"] * keys
                latencies.extend(rows["latency"])

            sample = meter.run(take)
            calls = service.stats().calls
            p50, p99, p999 = (float(np.quantile(latencies, q)) * 1000 for q in (0.5, 0.99, 0.999))
            return sample.counting(calls=calls, p50=p50, p99=p99, p999=p999)

        cases = {f"{of}, {at}": (of, at) for of in ("requests", "keys") for at in (None, "p95")}
        found = alternate(
            {name: lambda of=of, at=at: run(of, at) for name, (of, at) in cases.items()}, 2 if quick else RUNS
        )
    counts: dict[str, dict[str, float]] = {}
    for name, samples in found.items():
        mine = counts[name] = {
            count: median([sample.counts[count] for sample in samples]) for count in ("calls", "p50", "p99", "p999")
        }
        of, at = name.split(", ")
        row = (of, at, f"{mine['calls']:,.0f}", *(f"{mine[count]:.0f}" for count in ("p50", "p99", "p999")))
        table.rows.append((*row, spread([sample.seconds for sample in samples]), *per_item(samples, keys)))
    before, after = counts["requests, None"]["p99"], counts["requests, p95"]["p99"]
    table.goals.append(
        (f"slow requests: p99 at most half: {after:.0f} ms instead of {before:.0f}", after <= before / 2)
    )
    calls = [sample.counts["calls"] for name in counts if "p95" in name for sample in found[name]]
    more = sum(calls) / (keys * len(calls)) - 1
    table.goals.append((f"at most 2 % more calls in {len(calls)} runs: {more:.2%}", 0 < more <= 0.02))
    table.notes.append("the service counted the calls; each row's status was looked at")
    return [table]
