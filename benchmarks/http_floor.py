"""N1: how near the floor. A uniform latency, two tasks, 100 calls in flight each."""

from __future__ import annotations

from benchmarks.harness import Sample, Table, alternate, median, spread
from benchmarks.spark_runs import by_hand, gather_per_batch, run_to_nowhere, thread_pool
from enrichkit import enrich, local

CAPACITY = 100
TASKS = 2
WORKLOADS = ((0.100, 20_000, 0.93), (0.050, 40_000, 0.91))


def main() -> list[Table]:
    """Measure N1."""
    from enrichkit_http import HttpConfig
    from pyspark.sql import functions as F

    table = Table(
        "N1",
        f"HTTP, capacity {CAPACITY} x {TASKS} tasks, warm workers, distinct keys",
        ("approach", "latency", "keys", "seconds", "share of the floor", "us worker CPU per lookup"),
    )
    with local.http() as service, local.spark() as spark:
        config = HttpConfig(url=service.url + "/{}", returns="string")
        latencies: dict[str, float] = {}
        for latency, count, goal in WORKLOADS:
            service.script(latency=latency)
            keys = spark.range(0, count, 1, TASKS).select(F.concat(F.lit("k"), F.col("id").cast("string")).alias("key"))

            def run(name: str, column: object, keys: object = keys) -> Sample:
                service.reset_stats()
                sample = run_to_nowhere(keys.select(column))  # type: ignore[attr-defined]
                stats = service.stats()
                latencies[name] = stats.served / stats.calls
                return sample

            right = keys.withColumn("value", enrich(config, "key", returns="key string, name string"))
            assert right.where("value.key <=> key AND value.name <=> concat('name of ', key)").count() == count
            columns = {"enrichkit": enrich(config, "key", capacity=CAPACITY)}
            samples = alternate({name: lambda n=name, c=column: run(n, c) for name, column in columns.items()})
            rivals = {
                "gather per batch": by_hand(gather_per_batch(service.url, CAPACITY), "key"),
                "thread pool": by_hand(thread_pool(service.url, CAPACITY), "key"),
            }
            samples |= alternate(
                {name: lambda n=name, c=column: run(n, c) for name, column in rivals.items()}, rounds=2
            )
            for name, found in samples.items():
                floor = count / (CAPACITY * TASKS) * latency
                shares = [floor / sample.seconds for sample in found]
                cpu = median([sample.cpu / count * 1e6 for sample in found])
                seconds = spread([sample.seconds for sample in found])
                served = f"{latencies[name] * 1000:.1f} ms (asked: {latency * 1000:g})"
                table.rows.append((name, served, f"{count:,}", seconds, spread(shares), f"{cpu:.0f}"))
                if name == "enrichkit":
                    reached = median(shares)
                    table.goals.append(
                        (f"{latency * 1000:g} ms: at least {goal:.0%} of the floor ({reached:.1%})", reached >= goal)
                    )
    return [table]
