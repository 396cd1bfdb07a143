"""N2: a slow tail. One call in a hundred takes 25 times as long; do the other rows wait for it?"""

from __future__ import annotations

from benchmarks.harness import COLUMN, PAIRS, Sample, Table, alternate, median, per_item, ratios, spread, times
from benchmarks.rivals import gather_per_batch
from benchmarks.spark_runs import Meter, keys_of
from enrichkit import enrich, local

KEYS = 40_000
CAPACITY = 64
LATENCY, TAIL, TAIL_LATENCY = 0.020, 0.01, 0.500
BATCHES = (200, 10_000)
# By batch size, the number of keys and of pairs for the comparison with gather, which takes half a second per batch.
BESIDE = {200: (6_000, PAIRS), 1_000: (10_000, 3), 10_000: (10_000, 3)}
SOURCES = (
    *COLUMN,
    "plugins/enrichkit-http/enrichkit_http",
    "benchmarks/rivals.py",
    "benchmarks/http_tail.py",
)


def main(quick: bool) -> list[Table]:
    """Measure N2."""
    from enrichkit_http import HttpConfig

    table = Table(
        "N2",
        f"HTTP {LATENCY * 1000:g} ms, {TAIL:.0%} of keys {TAIL_LATENCY * 1000:g} ms, capacity {CAPACITY}, one task, "
        "by Arrow batch size",
        ("approach", "batch", "keys", "seconds", "share of the floor", "us CPU per key", "JVM", "server", "calls"),
    )
    shares: dict[str, list[float]] = {}
    sampled: dict[str, list[Sample]] = {}
    with local.http() as service, local.spark() as spark:
        service.script(latency=LATENCY, tail=TAIL, tail_latency=TAIL_LATENCY)
        meter = Meter(service.pid)
        config = HttpConfig(url=service.url + "/{}")
        ours, theirs = enrich(config, "key", capacity=CAPACITY), gather_per_batch(service.url, CAPACITY)

        def run(name: str, batch: int, count: int, column: object) -> Sample:
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch)
            service.reset_stats()
            sample = meter.spark(keys_of(spark, count, "k", tasks=1).select(column))
            stats = service.stats()
            assert stats.calls == count, f"{name}: the service counted {stats.calls:,} calls, not {count:,}"
            return sample.counting(mean=stats.served / stats.calls)

        def measure(count: int, rounds: int, columns: dict[tuple[str, int], object]) -> None:
            count, rounds = (count // 20, 2) if quick else (count, rounds)
            runs = {f"{who}, {batch}, {count}": (batch, column) for (who, batch), column in columns.items()}
            found = alternate(
                {name: lambda n=name, b=b, c=c: run(n, b, count, c) for name, (b, c) in runs.items()}, rounds, warmup=0
            )
            for name, samples in found.items():
                who, batch, _ = name.split(", ")
                shares[name] = [count * sample.counts["mean"] / CAPACITY / sample.seconds for sample in samples]
                seconds = spread([sample.seconds for sample in samples])
                row = (who, f"{int(batch):,}", f"{count:,}", seconds, spread(shares[name]))
                table.rows.append((*row, *per_item(samples, count), f"{count:,}"))
                if columns.keys() >= {("gather", int(batch))}:
                    points = table.numbers.setdefault(who, [])
                    points.append((int(batch), [sample.seconds / count * 1e6 for sample in samples]))
            sampled.update(found)

        size = KEYS // 20 if quick else KEYS
        for column in (ours, theirs):  # checks the values of both, which also warms them up
            keys = keys_of(spark, size, "k", tasks=1).withColumn("value", column)
            fields = "get_json_object(value, '$.key') <=> key AND get_json_object(value, '$.name')"
            assert keys.where(f"{fields} <=> concat('name of ', key)").count() == size
        measure(KEYS, PAIRS, {("enrichkit", batch): ours for batch in BATCHES})
        for batch, (count, rounds) in BESIDE.items():
            measure(count, rounds, {("enrichkit", batch): ours, ("gather", batch): theirs})

    small, large = (f"enrichkit, {batch}, {size}" for batch in BATCHES)
    for name, batch in ((small, BATCHES[0]), (large, BATCHES[1])):
        reached = median(shares[name])
        table.goals.append((f"batches of {batch:,}: at least 90 % of the floor: {reached:.1%}", reached >= 0.9))
    _, apart, _ = ratios([s.seconds for s in sampled[small]], [s.seconds for s in sampled[large]])
    table.goals.append((f"both batch sizes at most 5 % apart: {abs(apart - 1):.1%}", abs(apart - 1) <= 0.05))
    beside = [name for name in shares if ", 200, " in name and name != small]
    mine, other = ([s.seconds for s in sampled[name]] for name in beside)
    gain = times(other, mine)
    table.goals.append((f"at least 4 x gather per batch of 200: {gain}", ratios(other, mine)[1] >= 4.0))
    table.notes.append("the floor is keys / calls in flight x the mean of what the service took")
    table.notes.append("gather is asyncio.run(gather) per batch, with the same client")
    table.notes.append("each value was compared with what its key says, in a run of its own")
    return [table]
