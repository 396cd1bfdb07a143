"""
The demo: 200,000 rows enriched from a real Redis, PostgreSQL and HTTP service in one query, and every value checked.

Run the demo with `./run demo`. Each value is a pure function of its key, so a Spark SQL query recomputes every value
from the key column and compares it with the looked-up value.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from enrichkit import enrich, local, monitor
from enrichkit.local import by_hand
from enrichkit.local.process import temp_dir

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["main"]

ROWS = 200_000
USERS = 60_000
PLACES = 50_000
DEVICES = 55_000
BY_GET = 5_000
BY_HAND_ROWS = 2_000


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; return 0 when every value is right, else 1."""
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__.splitlines()[1] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=ROWS, help="number of rows to enrich (default: %(default)s)")
    parser.add_argument("--plant-wrong-value", action="store_true", help="store one wrong value, which must be found")
    parser.add_argument("--report", default="demo-report.html", help="file of the report (default: %(default)s)")
    options = parser.parse_args(arguments)
    with (
        local.redis() as redis,
        local.postgres() as postgres,
        local.http() as service,
        local.spark() as spark,
        temp_dir("demo") as folder,
    ):
        print(f"Servers: {redis}, {postgres}, HTTP service of enrichkit; Spark {spark.version}")
        events = _events(spark, options.rows)
        _seed_redis(redis.url, wrong=_stored_user(events) if options.plant_wrong_value else None)
        asyncio.run(_seed_postgres(postgres.dsn))
        addresses = (redis.url, postgres.dsn, service.url)
        print("Warming Spark's Python workers up ...")
        _enriched(_events(spark, 100), *addresses).write.format("noop").mode("overwrite").save()
        before = _calls(redis.url, postgres.dsn, service)
        with monitor(rows=options.rows) as watched:
            print(f"Enriching {options.rows:,} rows with 4 columns in one query; watch it at {watched.url}")
            began = time.perf_counter()
            _enriched(events, *addresses).write.parquet(str(folder / "enriched"))
            seconds = time.perf_counter() - began
        watched.report(options.report)
        after = _calls(redis.url, postgres.dsn, service)
        result = spark.read.parquet(str(folder / "enriched"))
        result.orderBy("id").select("id", "user_id", "profile", "place", "device", "device_by_get").show(6, truncate=34)
        wrong = _wrong(result)
        _report(result, options.rows, seconds, {name: after[name] - before[name] for name in after})
        _compare(events, *addresses, per_row=seconds / options.rows)
    if wrong:
        print(f"FAILED: {wrong:,} rows hold a wrong value.", file=sys.stderr)
        return 1
    print(f"All {4 * options.rows:,} values are right. The report of the run is in {options.report}.")
    return 0


def _events(spark: SparkSession, rows: int) -> DataFrame:
    """
    Return *rows* events in 4 partitions.

    Each key column has nulls. Each key column except `get_id` also has keys that the source does not hold.
    """
    from pyspark.sql import functions as F

    event = spark.range(0, rows, 1, 4).withColumn("n", F.abs(F.hash("id")))
    device = F.concat(F.lit("device "), (F.col("n") % DEVICES).cast("string"), F.lit("/ü"))
    lost = F.concat(F.lit("missing "), F.col("n").cast("string"))
    return event.select(
        "id",
        F.when(F.col("id") % 50 != 0, F.concat(F.lit("u"), (F.col("n") % USERS).cast("string"))).alias("user_id"),
        F.when(F.col("id") % 60 != 0, F.col("n") % (PLACES + 5_000)).alias("place_id"),
        F.when(F.col("id") % 70 != 0, F.when(F.col("n") % 20 == 0, lost).otherwise(device)).alias("device_id"),
    ).withColumn("get_id", F.when(F.col("id") < BY_GET, F.concat(F.lit("g"), F.col("id").cast("string"))))


def _enriched(events: DataFrame, redis_url: str, dsn: str, http_url: str) -> DataFrame:
    from enrichkit_http import HttpConfig
    from enrichkit_postgres import PostgresConfig
    from enrichkit_redis import RedisConfig

    device = "key string, name string, score int"
    return (
        events.withColumn("profile", enrich(RedisConfig(url=redis_url, key="profile:{}"), "user_id"))
        .withColumn("place", enrich(PostgresConfig(dsn=dsn, table="places", columns=("name", "tier")), "place_id"))
        .withColumn("device", enrich(HttpConfig(url=f"{http_url}/bulk", bulk=True, returns=device), "device_id"))
        .withColumn("device_by_get", enrich(HttpConfig(url=http_url + "/devices/{}", returns=device), "get_id"))
    )


def _wrong(result: DataFrame) -> int:
    """Return the number of rows with a looked-up value that differs from the value that Spark computes from the key."""
    from pyspark.sql import functions as F

    number = F.substring("user_id", 2, 10).cast("int")
    profile = F.when(number % 10 != 9, F.concat(F.lit("profile of "), F.col("user_id")))
    place = F.when(
        F.col("place_id").between(1, PLACES),
        F.struct(
            F.concat(F.lit("place "), F.col("place_id").cast("string")).alias("name"),
            (F.col("place_id") % 7).cast("int").alias("tier"),
        ),
    )

    def device(key: str) -> Column:
        value = F.struct(
            F.col(key).alias("key"),
            F.concat(F.lit("name of "), F.col(key)).alias("name"),
            (F.crc32(F.col(key).cast("binary")) % 1000).cast("int").alias("score"),
        )
        return F.when(F.col(key).isNotNull() & ~F.col(key).contains("missing"), value)

    right = (
        F.col("profile").eqNullSafe(profile)
        & F.col("place").eqNullSafe(place)
        & F.col("device").eqNullSafe(device("device_id"))
        & F.col("device_by_get").eqNullSafe(device("get_id"))
    )
    return result.where(~right).count()


def _report(result: DataFrame, rows: int, seconds: float, calls: dict[str, int]) -> None:
    from pyspark.sql import functions as F

    columns = {"profile": "user_id", "place": "place_id", "device": "device_id", "device_by_get": "get_id"}
    counts = result.agg(
        *(F.countDistinct(key).alias(f"distinct_{name}") for name, key in columns.items()),
        *(F.count(name).alias(f"found_{name}") for name in columns),
    ).first()
    assert counts is not None
    print(f"{rows:,} rows x 4 columns in {seconds:.1f} s: {rows / seconds:,.0f} rows/s")
    print(f"{'column':14} {'rows':>9} {'distinct keys':>14} {'values':>9}   calls that the servers counted")
    served = {"profile": "Redis", "place": "PostgreSQL", "device": "HTTP", "device_by_get": "HTTP"}
    for name, server in served.items():
        counted = f"{calls[server]:,} by {server}" if name != "device" else "(with the row below)"
        print(f"{name:14} {rows:9,} {counts[f'distinct_{name}']:14,} {counts[f'found_{name}']:9,}   {counted}")


def _compare(events: DataFrame, redis_url: str, dsn: str, http_url: str, *, per_row: float) -> None:
    """Run a sample of the job with UDFs that make one call per row, and print how much slower they are."""
    from pyspark.sql import functions as F

    sample = events.where(F.col("id") < BY_HAND_ROWS)
    sample.write.format("noop").mode("overwrite").save()
    began = time.perf_counter()
    sample.select(
        by_hand.udf_of(by_hand.redis_get, redis_url)("user_id"),
        by_hand.udf_of(by_hand.postgres_fetch, dsn)("place_id"),
        by_hand.udf_of(by_hand.http_get, http_url)("device_id"),
    ).write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - began
    print(
        f"For comparison, one call per row, {BY_HAND_ROWS:,} rows x 3 columns: {seconds:.1f} s, "
        f"{BY_HAND_ROWS / seconds:,.0f} rows/s ({seconds / BY_HAND_ROWS / per_row:.1f} x the time per row)"
    )


def _stored_user(events: DataFrame) -> str:
    """Return a user of *events* whose profile Redis holds."""
    from pyspark.sql import functions as F

    row = events.where(F.col("user_id").isNotNull() & ~F.col("user_id").endswith("9")).first()
    assert row is not None
    return str(row.user_id)


def _seed_redis(url: str, *, wrong: str | None = None) -> None:
    """Store the profiles in Redis; if the user *wrong* is given, store a wrong profile for that user."""
    import redis

    with contextlib.closing(redis.Redis.from_url(url)) as client:
        profiles = {f"profile:u{n}": f"profile of u{n}" for n in range(USERS) if n % 10 != 9}
        if wrong is not None:
            profiles[f"profile:{wrong}"] = "wrong"
        names = list(profiles)
        for start in range(0, len(names), 10_000):
            client.mset({name: profiles[name] for name in names[start : start + 10_000]})


async def _seed_postgres(dsn: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("CREATE TABLE places (id bigint PRIMARY KEY, name text NOT NULL, tier int NOT NULL)")
        # PLACES is a constant, so the f-string allows no SQL injection.
        await connection.execute(
            f"INSERT INTO places SELECT n, 'place ' || n, n % 7 FROM generate_series(1, {PLACES}) AS n"  # noqa: S608
        )
        await connection.execute("ANALYZE places")
    finally:
        await connection.close()


def _calls(redis_url: str, dsn: str, service: local.HttpService) -> dict[str, int]:
    """
    Return the number of calls that each server counted.

    A call is an MGET command for Redis, a committed transaction for PostgreSQL, and a request for the HTTP service.
    """
    import redis

    async def committed() -> int:
        import asyncpg

        connection = await asyncpg.connect(dsn)
        try:
            return int(
                await connection.fetchval("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
            )
        finally:
            await connection.close()

    with contextlib.closing(redis.Redis.from_url(redis_url)) as client:
        stats: dict[str, Any] = client.info("commandstats")
    return {
        "Redis": int(stats.get("cmdstat_mget", {}).get("calls", 0)),
        "PostgreSQL": asyncio.run(committed()),
        "HTTP": service.stats().calls,
    }


if __name__ == "__main__":
    sys.exit(main())
