"""N3: many keys per call, with Redis. A million distinct keys through Spark, compared with redis-py in one process."""

from __future__ import annotations

import contextlib
from typing import Any

import redis
import uvloop
from redis._parsers import _AsyncRESP3Parser

from benchmarks.harness import (
    COLUMN,
    SHORT_PAIRS,
    Sample,
    Table,
    alternate,
    at_least,
    drain,
    per_item,
    rates,
    spread,
    times,
)
from benchmarks.spark_runs import Meter, keys_of, warm_up
from enrichkit import enrich, local

KEYS = 1_000_000
SINGLE_KEYS = 50_000
GROUP, IN_FLIGHT = 1_000, 4
SEEDED_AT_ONCE = 50_000
SOURCES = (*COLUMN, "plugins/enrichkit-redis/enrichkit_redis", "benchmarks/redis_bulk.py")

PLAIN = {"parser_class": _AsyncRESP3Parser}
"""The parser of redis-py without hiredis, as after `pip install redis`."""

SEED = """
local before, after, padding = ARGV[1], ARGV[2], string.rep('v', tonumber(ARGV[3]))
for number = tonumber(ARGV[4]), tonumber(ARGV[5]) - 1 do
    redis.call('SET', before .. number .. after, 'value of u' .. number .. padding)
end
"""


def seed(url: str, count: int, before: str = "u", after: str = "", padding: int = 0) -> None:
    """Store values under *count* keys, *before* + number + *after*, by a script on the server: sending takes minutes."""
    with redis.Redis.from_url(url) as client:
        for start in range(0, count, SEEDED_AT_ONCE):
            client.eval(SEED, 0, before, after, padding, start, min(start + SEEDED_AT_ONCE, count))


def calls(url: str) -> tuple[int, int]:
    """Return the numbers of read commands and of their keys that the server counted since the previous call of this."""
    with redis.Redis.from_url(url) as client:
        commands, keys = client.info("commandstats"), client.info("stats")
        client.config_resetstat()
    count = sum(commands.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("get", "mget"))
    return count, keys["keyspace_hits"] + keys["keyspace_misses"]


def with_redis_py(url: str, groups: list[list[str]], **settings: Any) -> list[list[Any]]:
    """Fetch *groups* of keys with `MGET`, or with `GET` if a group has one key, IN_FLIGHT at a time."""
    answers: list[list[Any]] = [[]] * len(groups)

    async def main() -> None:
        async with redis.asyncio.Redis.from_url(url, max_connections=IN_FLIGHT, **settings) as client:

            async def fetch(client: Any, numbered: tuple[int, list[str]]) -> None:
                number, group = numbered
                answers[number] = [await client.get(group[0])] if len(group) == 1 else await client.mget(group)

            await drain(enumerate(groups), IN_FLIGHT, lambda: contextlib.nullcontext(client), fetch)

    uvloop.run(main())
    return answers


def main(quick: bool) -> list[Table]:
    """Measure N3."""
    from enrichkit_redis import RedisConfig

    count, singles = (KEYS // 20, SINGLE_KEYS // 20) if quick else (KEYS, SINGLE_KEYS)
    numbers = [f"u{number}" for number in range(count)]
    groups = [numbers[start : start + GROUP] for start in range(0, count, GROUP)]
    each = [[key] for key in numbers[:singles]]
    table = Table(
        "N3",
        f"Redis, {count:,} distinct keys; server, JVM and Python share the cores",
        ("approach", "keys", "keys/s", "us CPU per key", "JVM", "server", "commands"),
    )
    with local.redis() as server, local.spark() as spark:
        seed(server.url, count)
        meter = Meter(server.pid)
        keys = keys_of(spark, count, "u")
        column = enrich(RedisConfig(url=server.url), "key")

        # The values are checked in a separate run, because the check takes as long as the lookups.
        right = keys.withColumn("value", column).where("value <=> concat('value of ', key)").count()
        assert right == count, f"{count - right:,} values are wrong"
        assert [value for group in with_redis_py(server.url, groups) for value in group] == [
            f"value of {key}".encode() for key in numbers
        ]

        def counted(sample: Sample) -> Sample:
            commands, asked = calls(server.url)
            return sample.counting(commands=commands, asked=asked)

        warm_up(keys.select(column), quick=quick)
        calls(server.url)
        ours, single = "enrichkit through Spark", "redis-py, GET per key"
        bulk, fast = f"redis-py, MGET of {GROUP:,}", f"redis-py with hiredis, MGET of {GROUP:,}"
        samples = alternate(
            {
                ours: lambda: counted(meter.spark(keys.select(column))),
                bulk: lambda: counted(meter.run(lambda: with_redis_py(server.url, groups, **PLAIN))),
                fast: lambda: counted(meter.run(lambda: with_redis_py(server.url, groups))),
                single: lambda: counted(meter.run(lambda: with_redis_py(server.url, each))),
            },
            rounds=2 if quick else SHORT_PAIRS,
        )
        asked = {ours: count, bulk: count, fast: count, single: singles}
        for name, found in samples.items():
            for sample in found:
                assert sample.counts["asked"] == asked[name], f"{name}: {asked[name]:,} keys, and {sample.counts}"
            speed = spread(rates(found, asked[name]), digits=0)
            commands = f"{found[-1].counts['commands']:,}"
            table.rows.append((name, f"{asked[name]:,}", speed, *per_item(found, asked[name]), commands))
        table.notes.append(f"{server}; two tasks; redis-py in one process, {IN_FLIGHT} calls in flight")
        table.notes.append("each value was compared with what its key says, in a run of its own")
        rate = rates(samples[ours], count)
        for name in (bulk, fast):
            table.goals.append(at_least(1.0, name, rate, rates(samples[name], count)))
        table.notes.append(f"{times(rate, rates(samples[single], singles))} x the rate of {single}")
    return [table]
