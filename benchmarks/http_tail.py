"""N2: a slow tail. One call in a hundred takes 25 times as long; who waits for it?"""

from __future__ import annotations

from benchmarks.harness import Sample, Table, alternate, median, ratios, spread
from benchmarks.spark_runs import by_hand, gather_per_batch, run_to_nowhere
from enrichkit import enrich, local

KEYS = 40_000
CAPACITY = 64
LATENCY, TAIL, TAIL_LATENCY = 0.020, 0.01, 0.500
BATCHES = (200, 10_000)


def main() -> list[Table]:
    """Measure N2."""
    from enrichkit_http import HttpConfig
    from pyspark.sql import functions as F

    table = Table(
        "N2",
        f"HTTP {LATENCY * 1000:g} ms, {TAIL:.0%} of keys {TAIL_LATENCY * 1000:g} ms, capacity {CAPACITY}, one task, "
        f"{KEYS:,} keys, by Arrow batch size",
        ("approach", "batch", "seconds", "share of the floor", "us worker CPU per lookup", "calls"),
    )
    with local.http() as service, local.spark() as spark:
        keys = spark.range(0, KEYS, 1, 1).select(F.concat(F.lit("k"), F.col("id").cast("string")).alias("key"))
        service.script(latency=LATENCY, tail=TAIL, tail_latency=TAIL_LATENCY)
        config = HttpConfig(url=service.url + "/{}", returns="string")
        counted: dict[str, tuple[int, float]] = {}

        def run(name: str, batch: int, column: object) -> Sample:
            spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch)
            service.reset_stats()
            sample = run_to_nowhere(keys.select(column))  # type: ignore[call-overload]
            stats = service.stats()
            counted[name] = (stats.calls, stats.served / stats.calls)
            return sample

        right = keys.withColumn("value", enrich(config, "key", capacity=CAPACITY, returns="key string, name string"))
        assert right.where("value.key <=> key AND value.name <=> concat('name of ', key)").count() == KEYS

        runs = {}
        for batch in BATCHES:
            ours = enrich(config, "key", capacity=CAPACITY)
            runs[f"enrichkit, {batch}"] = lambda b=batch, c=ours: run(f"enrichkit, {b}", b, c)
        theirs = by_hand(gather_per_batch(service.url, CAPACITY), "key")
        samples = alternate(runs)
        rival = alternate(
            {f"gather, {b}": lambda b=b: run(f"gather, {b}", b, theirs) for b in BATCHES}, rounds=2, warmup=0
        )
        samples |= rival

    shares = {}
    for name, found in samples.items():
        calls, latency = counted[name]
        floor = KEYS * latency / CAPACITY
        shares[name] = [floor / sample.seconds for sample in found]
        approach, _, batch_text = name.partition(", ")
        cpu = median([sample.cpu / KEYS * 1e6 for sample in found])
        table.rows.append(
            (approach, batch_text, spread([s.seconds for s in found]), spread(shares[name]), f"{cpu:.0f}", f"{calls:,}")
        )
    small, large = (f"enrichkit, {batch}" for batch in BATCHES)
    for name in (small, large):
        table.goals.append(
            (f"{name}: at least 90 % of the floor ({median(shares[name]):.1%})", median(shares[name]) >= 0.9)
        )
    _, apart, _ = ratios([s.seconds for s in samples[small]], [s.seconds for s in samples[large]])
    table.goals.append((f"both batch sizes at most 5 % apart ({abs(apart - 1):.1%})", abs(apart - 1) <= 0.05))
    gain = median([s.seconds for s in samples["gather, 200"]]) / median([s.seconds for s in samples[small]])
    table.goals.append((f"at least 4 x gather per batch at 200 ({gain:.1f} x)", gain >= 4.0))
    return [table]
