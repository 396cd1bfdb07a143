"""
N4: many keys per statement, with PostgreSQL. A million distinct keys through Spark, compared with asyncpg alone.

For one key per statement there are two ways: the pool's own `fetchrow`, as in asyncpg's documentation, and `fetchrow`
on connections that the tasks keep, so that no connection is reset between two keys.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import uvloop

from benchmarks.harness import COLUMN, SHORT_PAIRS, Sample, Table, alternate, at_least, drain, per_item, rates, spread
from benchmarks.spark_runs import Meter, warm_up
from enrichkit import enrich, local

KEYS = 1_000_000
SINGLE_KEYS = 20_000
GROUP, IN_FLIGHT, SINGLE_IN_FLIGHT = 1_000, 4, 16
STEP = 7919  # a prime number, so that multiples of it reach all keys, in another order than the index
SOURCES = (*COLUMN, "enrichkit/sql", "plugins/enrichkit-postgres/enrichkit_postgres", "benchmarks/postgres_bulk.py")

TABLE = """
CREATE TABLE users AS SELECT id, 'name of ' || id AS name FROM generate_series(0, {count} - 1) AS id;
ALTER TABLE users ADD PRIMARY KEY (id);
VACUUM ANALYZE users;
"""
MANY = "SELECT id, name FROM users WHERE id = ANY($1::int[])"
ONE = "SELECT name FROM users WHERE id = $1"


def with_asyncpg(dsn: str, groups: list[list[int]], in_flight: int) -> dict[int, str]:
    """Fetch *groups* of keys with `= ANY`, or with `fetchrow` if a group has one key, on connections kept by tasks."""
    found: dict[int, str] = {}

    async def main() -> None:
        async def fetch(connection: Any, group: list[int]) -> None:
            if len(group) == 1:
                found[group[0]] = (await connection.fetchrow(ONE, group[0]))["name"]
            else:
                found.update(await connection.fetch(MANY, group))

        async with asyncpg.create_pool(dsn, min_size=in_flight, max_size=in_flight) as pool:
            await drain(groups, in_flight, pool.acquire, fetch)

    uvloop.run(main())
    return found


def with_pool(dsn: str, keys: list[int]) -> dict[int, str]:
    """Fetch *keys* one by one with the pool's own `fetchrow`, which acquires and resets a connection for each key."""
    found: dict[int, str] = {}

    async def main() -> None:
        async def fetch(pool: asyncpg.Pool, key: int) -> None:
            found[key] = (await pool.fetchrow(ONE, key))["name"]

        async with asyncpg.create_pool(dsn, min_size=SINGLE_IN_FLIGHT, max_size=SINGLE_IN_FLIGHT) as pool:
            await drain(keys, SINGLE_IN_FLIGHT, lambda: contextlib.nullcontext(pool), fetch)

    uvloop.run(main())
    return found


def statements(server: local.PostgresServer, dsn: str, rows: int, work: Callable[[], object]) -> int:
    """Run *work*, which fetches *rows* rows; return the server's number of transactions, one for each statement."""
    database = dsn.rpartition("/")[2]
    query = f"SELECT xact_commit, tup_fetched FROM pg_stat_database WHERE datname = '{database}'"

    def counted() -> list[int]:
        return [int(number) for number in server.execute(query).split("|")]

    before = counted()
    work()
    give_up = time.monotonic() + 30
    while (after := counted())[1] - before[1] < rows:  # a session reports its counts after 10 s idle, or when it ends
        assert time.monotonic() < give_up, f"the server counted {after[1] - before[1]:,} rows, not {rows:,}"
        time.sleep(0.2)
    return after[0] - before[0]


def main(quick: bool) -> list[Table]:
    """Measure N4."""
    from enrichkit_postgres import PostgresConfig

    count, singles = (KEYS // 20, SINGLE_KEYS // 20) if quick else (KEYS, SINGLE_KEYS)
    numbers = [number * STEP % count for number in range(count)]
    groups = [numbers[start : start + GROUP] for start in range(0, count, GROUP)]
    each = [[key] for key in numbers[:singles]]
    table = Table(
        "N4",
        f"PostgreSQL, {count:,} distinct keys; server, JVM and Python share the cores",
        ("approach", "keys", "keys/s", "us CPU per key", "JVM", "server", "statements"),
    )
    with local.postgres() as server, local.spark() as spark:
        dsn = server.create_database()
        server.execute(TABLE.format(count=count), dsn.rpartition("/")[2])
        meter = Meter(server.pid)
        keys = spark.range(0, count, 1, 2).selectExpr(f"cast(id * {STEP} % {count} AS int) AS key")
        column = enrich(PostgresConfig(dsn=dsn, table="users", key="id", columns=("name",)), "key")

        def check(found: dict[int, str], asked: int) -> None:
            assert found == {key: f"name of {key}" for key in numbers[:asked]}

        def check_ours() -> None:
            right = keys.withColumn("value", column).where("value <=> concat('name of ', key)").count()
            assert right == count, f"{count - right:,} values are wrong"

        # The values are checked in separate runs, because the check takes as long as the lookups.
        ours, bulk = "enrichkit through Spark", f"asyncpg, = ANY of {GROUP:,}"
        single, held = "asyncpg, pool.fetchrow per key", "asyncpg, fetchrow per key, connections held"
        asked = {ours: count, bulk: count, single: singles, held: singles}
        sent = {
            ours: statements(server, dsn, count, check_ours),
            bulk: statements(server, dsn, count, lambda: check(with_asyncpg(dsn, groups, IN_FLIGHT), count)),
            single: statements(server, dsn, singles, lambda: check(with_pool(dsn, numbers[:singles]), singles)),
            held: statements(server, dsn, singles, lambda: check(with_asyncpg(dsn, each, SINGLE_IN_FLIGHT), singles)),
        }
        runs: dict[str, Callable[[], Sample]] = {
            ours: lambda: meter.spark(keys.select(column)),
            bulk: lambda: meter.run(lambda: with_asyncpg(dsn, groups, IN_FLIGHT)),
            single: lambda: meter.run(lambda: with_pool(dsn, numbers[:singles])),
            held: lambda: meter.run(lambda: with_asyncpg(dsn, each, SINGLE_IN_FLIGHT)),
        }
        warm_up(keys.select(column), quick=quick)
        samples = alternate(runs, rounds=2 if quick else SHORT_PAIRS)
    for name, found in samples.items():
        speed = spread(rates(found, asked[name]), digits=0)
        table.rows.append((name, f"{asked[name]:,}", speed, *per_item(found, asked[name]), f"{sent[name]:,}"))
    table.notes.append(
        f"{server}; two tasks; asyncpg in one process, {IN_FLIGHT} calls in flight, {SINGLE_IN_FLIGHT} of fetchrow"
    )
    table.notes.append(
        "each value was compared in a run of its own, and there the statements were counted, by the server"
    )
    rate = rates(samples[ours], count)
    table.goals.append(at_least(0.9, bulk, rate, rates(samples[bulk], count)))
    for name in (single, held):
        table.goals.append(at_least(20, name, rate, rates(samples[name], singles)))
    return [table]
