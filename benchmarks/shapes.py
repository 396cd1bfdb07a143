"""
Values that are more than one text (JSON, hashes, a struct of columns), and a Redis cluster.

Each is compared with code that a person writes with the driver: the same calls, and a dict of its fields for each key.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import asyncpg
import redis
import uvloop

from benchmarks.harness import COLUMN, SHORT_PAIRS, Table, alternate, drain, per_item, rates, spread, times
from benchmarks.redis_bulk import GROUP, IN_FLIGHT
from benchmarks.spark_runs import Meter, keys_of, warm_up
from enrichkit import enrich, local
from enrichkit.local.redis_cluster import redis_cluster

KEYS = 200_000
SEEDED_AT_ONCE = 10_000
FIELDS = "name string, age bigint, score double"
NAMES = ("name", "age", "score")
SOURCES = (
    *COLUMN,
    "enrichkit/sql",
    "plugins/enrichkit-redis/enrichkit_redis",
    "plugins/enrichkit-postgres/enrichkit_postgres",
    "benchmarks/shapes.py",
)
RIGHT = "value = named_struct('name', concat('name of ', key), 'age', number, 'score', number / 8D)"

TABLE = """
CREATE TABLE people AS
    SELECT 'u' || id AS key, 'name of u' || id AS name, id::bigint AS age, id / 8.0::float8 AS score
    FROM generate_series(0, {count} - 1) AS id;
ALTER TABLE people ADD PRIMARY KEY (key);
VACUUM ANALYZE people;
"""
MANY = "SELECT key, name, age, score FROM people WHERE key = ANY($1)"

Fetch = Callable[[Any, list[str]], Awaitable[dict[str, Any]]]


def person(number: int) -> dict[str, Any]:
    """Return the value of the key with the number *number*."""
    return {"name": f"name of u{number}", "age": number, "score": number / 8}


def seed(url: str, count: int) -> None:
    """Store *count* people, each as a JSON document and as a hash."""
    with redis.Redis.from_url(url) as client:
        for start in range(0, count, SEEDED_AT_ONCE):
            with client.pipeline(transaction=False) as pipeline:
                for number in range(start, min(start + SEEDED_AT_ONCE, count)):
                    pipeline.set(f"json:u{number}", json.dumps(person(number)))
                    pipeline.hset(f"hash:u{number}", mapping=person(number))
                pipeline.execute()


def seed_cluster(url: str, count: int) -> None:
    """Store one text under each of *count* keys."""
    with redis.RedisCluster.from_url(url) as client:
        for start in range(0, count, SEEDED_AT_ONCE):
            numbers = range(start, min(start + SEEDED_AT_ONCE, count))
            client.mset_nonatomic({f"u{number}": f"value of u{number}" for number in numbers})


async def documents(client: Any, keys: list[str]) -> dict[str, Any]:
    answers = await client.mget([f"json:{key}" for key in keys])
    return dict(zip(keys, map(json.loads, answers), strict=True))


async def hashes(client: Any, keys: list[str]) -> dict[str, Any]:
    async with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.hmget(f"hash:{key}", NAMES)
        answers = await pipeline.execute()
    return {
        key: {"name": name.decode(), "age": int(age), "score": float(score)}
        for key, (name, age, score) in zip(keys, answers, strict=True)
    }


async def texts(client: Any, keys: list[str]) -> dict[str, Any]:
    return dict(zip(keys, map(bytes.decode, await client.mget_nonatomic(keys)), strict=True))


async def rows(connection: asyncpg.Connection, keys: list[str]) -> dict[str, Any]:
    return {row["key"]: dict(row) for row in await connection.fetch(MANY, keys)}


def by_hand(connect: Callable[[], Any], fetch: Fetch, keys: Sequence[str]) -> dict[str, Any]:
    """Fetch *keys* in calls of GROUP keys, IN_FLIGHT calls at a time, each on its own client."""
    found: dict[str, Any] = {}

    async def keep(client: Any, group: list[str]) -> None:
        found.update(await fetch(client, group))

    uvloop.run(
        drain([list(keys[start : start + GROUP]) for start in range(0, len(keys), GROUP)], IN_FLIGHT, connect, keep)
    )
    return found


def main(quick: bool) -> list[Table]:
    """Measure each shape."""
    from enrichkit_postgres import PostgresConfig
    from enrichkit_redis import RedisConfig

    count = KEYS // 20 if quick else KEYS
    names = [f"u{number}" for number in range(count)]
    table = Table(
        "Shapes",
        f"{count:,} distinct keys, values of several shapes",
        ("approach", "keys/s", "us CPU per key", "JVM", "server"),
    )
    with (
        local.redis() as server,
        redis_cluster() as cluster,
        local.postgres() as postgres,
        local.spark() as spark,
    ):
        seed(server.url, count)
        seed_cluster(cluster.url, count)
        dsn = postgres.create_database()
        postgres.execute(TABLE.format(count=count), dsn.rpartition("/")[2])
        keys = keys_of(spark, count, "u")

        def of_redis() -> Any:
            return redis.asyncio.Redis.from_url(server.url)

        def of_cluster() -> Any:
            return redis.asyncio.RedisCluster.from_url(cluster.url)

        @contextlib.asynccontextmanager
        async def of_postgres() -> AsyncIterator[asyncpg.Connection]:
            connection = await asyncpg.connect(dsn)
            yield connection
            await connection.close()

        def a_text(number: int) -> str:
            return f"value of u{number}"

        def a_row(number: int) -> dict[str, Any]:
            return {"key": f"u{number}", **person(number)}

        document = RedisConfig(url=server.url, kind="json", key="json:{}", returns=FIELDS)
        of_fields = RedisConfig(url=server.url, kind="hash", key="hash:{}", fields=NAMES, returns=FIELDS)
        people = PostgresConfig(dsn=dsn, table="people", key="key")
        shapes: list[tuple[str, Any, Meter, str, Callable[[], Any], Fetch, str, Callable[[int], Any]]] = [
            ("Redis, JSON of three fields", document, Meter(server.pid), "MGET", of_redis, documents, RIGHT, person),
            ("Redis, hash of three fields", of_fields, Meter(server.pid), "HMGET", of_redis, hashes, RIGHT, person),
            ("PostgreSQL, three columns", people, Meter(postgres.pid), "= ANY", of_postgres, rows, RIGHT, a_row),
            (
                "Redis cluster of three, text",
                RedisConfig(url=cluster.url, cluster=True),
                Meter(*cluster.pids),
                "mget_nonatomic",
                of_cluster,
                texts,
                "value = concat('value of ', key)",
                a_text,
            ),
        ]
        for name, config, meter, command, connect, fetch, right, answer in shapes:
            column = enrich(config, "key")
            checked = keys.withColumn("value", column).selectExpr("*", "bigint(substring(key, 2)) AS number")
            found = checked.where(right).count()
            assert found == count, f"{name}: {count - found:,} values are wrong"
            assert by_hand(connect, fetch, names) == {key: answer(number) for number, key in enumerate(names)}
            warm_up(keys.select(column), quick=quick)
            ours, theirs = f"{name}: enrichkit through Spark", f"{name}: driver, {command}"
            samples = alternate(
                {
                    ours: lambda column=column, meter=meter: meter.spark(keys.select(column)),
                    theirs: lambda meter=meter, connect=connect, fetch=fetch: meter.run(
                        lambda: by_hand(connect, fetch, names)
                    ),
                },
                rounds=2 if quick else SHORT_PAIRS,
            )
            for one in (ours, theirs):
                table.rows.append((one, spread(rates(samples[one], count), digits=0), *per_item(samples[one], count)))
            table.notes.append(
                f"{name}: {times(rates(samples[ours], count), rates(samples[theirs], count))} x the rate of the driver"
            )
        table.notes.append(f"{server}; {postgres}; each value was compared with what its key says, in a run of its own")
        table.notes.append(
            f"two tasks, with the defaults of the connectors; the driver in one process, {GROUP:,} keys a call and "
            f"{IN_FLIGHT} calls in flight"
        )
    return [table]
