"""The approaches that people use today, side by side with enrichkit: for a web service, and for a database table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import rivals
from benchmarks.harness import COLUMN, PAIRS, SHORT_PAIRS, Sample, Table, alternate, per_item, rates, spread, times
from benchmarks.postgres_bulk import STEP, TABLE
from benchmarks.spark_runs import WARMUP, Meter, keys_of, to_nowhere
from enrichkit import enrich, local
from enrichkit.local.process import temp_dir

CAPACITY, TASKS, LATENCY = 100, 2, 0.050
USERS, ASKED, ASKED_BY_ROW = 500_000, 100_000, 5_000
JDBC = Path("/usr/share/java/postgresql.jar")
CONCURRENCY = "spark.sql.execution.pythonUDF.arrow.concurrency.level"
SOURCES = (
    *COLUMN,
    "enrichkit/sql",
    "plugins/enrichkit-http/enrichkit_http",
    "plugins/enrichkit-postgres/enrichkit_postgres",
    "benchmarks/rivals.py",
    "benchmarks/approaches.py",
)
COLUMNS = ("approach", "keys", "rows/s", "us CPU per key", "JVM", "server", "enrichkit is faster by")


@dataclass(frozen=True)
class Approach:
    """
    One way to look values up.

    Attributes:
        keys: Number of keys; few for a slow approach.
        frame: Function that returns the frame with the columns `key` and `value`.
    """

    keys: int
    frame: Callable[[], Any]


def measure(
    approaches: Mapping[str, Approach], meter: Meter, right: str, rounds: int, table: Table, *, warmup: int = 0
) -> None:
    """Check the values of each of *approaches*, which also warms it up; then run them in turn and fill *table*."""
    for name, approach in approaches.items():
        count = approach.frame().where(right).count()
        assert count == approach.keys, f"{name}: {approach.keys - count:,} values are wrong"

    def run(approach: Approach) -> Sample:
        return meter.run(lambda: to_nowhere(approach.frame()))

    samples = alternate({name: lambda a=a: run(a) for name, a in approaches.items()}, rounds=rounds, warmup=warmup)
    ours = rates(samples["enrichkit"], approaches["enrichkit"].keys)
    for name, found in samples.items():
        keys = approaches[name].keys
        rate = rates(found, keys)
        gain = "-" if name == "enrichkit" else times(ours, rate)
        table.rows.append((name, f"{keys:,}", spread(rate, digits=0), *per_item(found, keys), gain))
        table.numbers[name] = [(0, rate)]


def by_request(rounds: int, share: int) -> Table:
    """Measure the approaches that make requests to a web service."""
    from enrichkit_http import HttpConfig

    table = Table(
        "approaches, HTTP",
        f"{LATENCY * 1000:g} ms, capacity {CAPACITY} x {TASKS} tasks, distinct keys",
        COLUMNS,
    )
    with local.http() as service, local.spark(**{CONCURRENCY: str(CAPACITY)}) as spark:
        service.script(latency=LATENCY)
        ours = enrich(HttpConfig(url=service.url + "/{}"), "key", capacity=CAPACITY)

        def approach(count: int, column: Any) -> Approach:
            count //= share
            return Approach(count, lambda: keys_of(spark, count, "k", TASKS).withColumn("value", column))

        measure(
            {
                "enrichkit": approach(20_000, ours),
                "asyncio.run(gather) per batch": approach(20_000, rivals.gather_per_batch(service.url, CAPACITY)),
                "iterator pandas_udf, thread pool": approach(10_000, rivals.thread_pool(service.url, CAPACITY)),
                "pythonUDF.arrow.concurrency.level": approach(10_000, rivals.concurrent_udf(service.url)),
                "row UDF, requests": approach(100, rivals.row_udf(service.url)),
            },
            Meter(service.pid),
            "get_json_object(value, '$.key') <=> key AND get_json_object(value, '$.name') <=> concat('name of ', key)",
            rounds,
            table,
        )
    table.notes.append(f"{CAPACITY} threads in each task for the thread pool, and {CONCURRENCY} = {CAPACITY}")
    table.notes.append(
        "gather has the client of enrichkit, pyreqwest; the ways with threads have a pooled requests session"
    )
    table.notes.append("each value was compared with what its key says, in a run of its own")
    return table


def by_table(rounds: int, share: int) -> Table:
    """Measure the approaches to a database table, which can also be joined or exported as a whole."""
    from enrichkit_postgres import PostgresConfig
    from pyspark.sql import functions as F

    users, asked = USERS // share, ASKED // share
    table = Table("approaches, PostgreSQL", f"a table of {users:,} rows, of which {asked:,} are asked for", COLUMNS)
    driver = {"spark.driver.extraClassPath": str(JDBC)} if JDBC.exists() else {}
    with local.postgres() as server, local.spark(**driver) as spark, temp_dir("export") as folder:
        dsn = server.create_database()
        database = dsn.rpartition("/")[2]
        server.execute(TABLE.format(count=users), database)
        file = str(folder / "users.csv")

        def keys(count: int) -> Any:
            return spark.range(0, count, 1, TASKS).selectExpr(f"cast(id * {STEP} % {users} AS int) AS key")

        def exported() -> Any:
            rivals.export(dsn, file)
            rows = spark.read.schema("key int, value string").csv(file)
            return keys(asked).join(F.broadcast(rows), "key", "left")

        def joined() -> Any:
            address = f"jdbc:postgresql://{server.host}:{server.port}/{database}"
            options = {"url": address, "dbtable": "users", "user": "postgres", "driver": "org.postgresql.Driver"}
            rows = spark.read.format("jdbc").options(**options).load().selectExpr("id AS key", "name AS value")
            return keys(asked).join(rows, "key", "left")

        ours = enrich(PostgresConfig(dsn=dsn, table="users", key="id", columns=("name",)), "key")
        single, by_row = rivals.statement_per_row(dsn), ASKED_BY_ROW // share
        approaches = {
            "enrichkit": Approach(asked, lambda: keys(asked).withColumn("value", ours)),
            "export to CSV, broadcast join": Approach(asked, exported),
            "JDBC join": Approach(asked, joined),
            "row UDF, a statement each": Approach(by_row, lambda: keys(by_row).withColumn("value", single)),
        }
        if not driver:
            del approaches["JDBC join"]
        right = "value <=> concat('name of ', key)"
        measure(approaches, Meter(server.pid), right, rounds, table, warmup=WARMUP // len(approaches))
        if not driver:
            table.rows.append(("JDBC join", *["-"] * (len(COLUMNS) - 2), "not run: no libpostgresql-jdbc-java"))
    table.notes.append(f"{server}; the joins read the whole table each time, and the export is part of its run")
    table.notes.append("each value was compared with what its key says, in a run of its own")
    return table


def main(quick: bool) -> list[Table]:
    """Measure all approaches."""
    rounds, share = (2, 10) if quick else (PAIRS, 1)
    return [by_request(rounds, share), by_table(2 if quick else SHORT_PAIRS, share)]
