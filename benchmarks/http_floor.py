"""N1: the distance from the floor, with a uniform latency and two tasks of 100 calls in flight."""

from __future__ import annotations

from benchmarks.harness import COLUMN, PAIRS, Sample, Table, alternate, median, per_item, spread
from benchmarks.spark_runs import Meter, keys_of
from enrichkit import enrich, local

CAPACITY = 100
TASKS = 2
WORKLOADS = ((0.100, 20_000, 0.93), (0.050, 40_000, 0.91))
SOURCES = (*COLUMN, "plugins/enrichkit-http/enrichkit_http", "benchmarks/http_floor.py")


def main(quick: bool) -> list[Table]:
    """Measure N1."""
    from enrichkit_http import HttpConfig

    table = Table(
        "N1",
        f"HTTP, capacity {CAPACITY} x {TASKS} tasks, warm workers, distinct keys",
        ("latency", "served", "keys", "seconds", "share of the floor", "us CPU per key", "JVM", "server", "calls"),
    )
    with local.http() as service, local.spark() as spark:
        config = HttpConfig(url=service.url + "/{}")
        column = enrich(config, "key", capacity=CAPACITY)
        checked = enrich(config, "key", capacity=CAPACITY, returns="key string, name string")
        meter = Meter(service.pid)
        for latency, whole, goal in WORKLOADS:
            count = whole // 20 if quick else whole
            service.script(latency=latency)
            keys = keys_of(spark, count, "k", TASKS)
            right = keys.withColumn("value", checked)
            assert right.where("value.key <=> key AND value.name <=> concat('name of ', key)").count() == count

            def run(keys: object = keys, count: int = count) -> Sample:
                service.reset_stats()
                sample = meter.spark(keys.select(column))  # type: ignore[attr-defined]
                stats = service.stats()
                assert stats.calls == count, f"the service counted {stats.calls:,} calls, not {count:,}"
                assert stats.peak <= CAPACITY * TASKS, f"{stats.peak} calls were in flight"
                return sample.counting(mean=stats.served / stats.calls)

            found = alternate({f"{latency * 1000:g} ms": run}, rounds=2 if quick else PAIRS)[f"{latency * 1000:g} ms"]
            shares = [count / (CAPACITY * TASKS) * latency / sample.seconds for sample in found]
            took = f"{median([sample.counts['mean'] for sample in found]) * 1000:.1f} ms"
            seconds = spread([sample.seconds for sample in found])
            row = (f"{latency * 1000:g} ms", took, f"{count:,}", seconds, spread(shares), *per_item(found, count))
            table.rows.append((*row, f"{count:,}"))
            reached = median(shares)
            table.goals.append(
                (f"{latency * 1000:g} ms: at least {goal:.0%} of the floor: {reached:.1%}", reached >= goal)
            )
    table.notes.append("the floor is keys / calls in flight x the latency asked for; served is what the service took")
    table.notes.append("each value was compared with what its key says, in a run of its own")
    return [table]
