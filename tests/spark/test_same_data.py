"""Many rows: what enrich gives is what a plain Spark join with the same data gives."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F
from pyspark.sql import types as t

from enrichkit import enrich
from enrichkit.local import value_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame, SparkSession

    from enrichkit import ConnectorConfig
    from enrichkit.local import HttpService

    Table = Callable[[dict[Any, Any]], ConnectorConfig]

ROWS, KEYS = 1_000_000, 50_000
SOME = 200_000
"""Rows for the other sources, which hold each key, too; what their number changes is the same for all sources."""
PROFILE = "key string, name string, score int"


def key_of(n: int) -> str:
    """One of 50,000 keys, a tenth of which no source holds: with quotes, blanks, other scripts, and the empty one."""
    name = f"missing-{n}" if n % 10 == 9 else f"u{n}"
    forms = (f"{name}", f"it's {name}", f'"{name}"', f"naïve {name} 名", f"{name}\\", f" {name} ", f"{name}/?x=%2F&#")
    return forms[n % len(forms)] if n else ""


HELD = [key_of(n) for n in range(KEYS) if n % 10 != 9]


@pytest.fixture(scope="module")
def events(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """A million rows over the keys, each of them about 20 times, and 2 % null keys."""
    path = str(tmp_path_factory.mktemp("events") / "events")
    keys = spark.createDataFrame([(n, key_of(n)) for n in range(KEYS)], "n int, k string")
    rows = spark.range(0, ROWS, 1, 8).withColumn(
        "n", F.when(F.col("id") % 50 != 0, (F.col("id") * 7919 % KEYS).cast("int"))
    )
    rows.join(F.broadcast(keys), "n", "left").select("id", "k").write.parquet(path)
    return spark.read.parquet(path)


def assert_equal_to_a_join(actual: DataFrame, values: DataFrame, rows: int, found: int) -> None:
    """
    Compare the column `v` of *actual* with the column `w` of *values* on the row's key `k`.

    Each id must be there once, and *found* of them with a value, so that nothing is equal because it is absent.
    """
    joined = actual.join(values, "k", "left").select(
        F.count("*"),
        F.countDistinct("id"),
        F.count("v"),
        F.count("w"),
        F.count_if(~F.col("v").eqNullSafe(F.col("w"))),
    )
    assert (rows, rows, found, found, 0) == tuple(joined.first() or ())


def some_of(events: DataFrame) -> DataFrame:
    return events.where(F.col("id") < SOME)


def found_in(events: DataFrame) -> int:
    return events.where("k is not null and not k like '%missing-%'").count()


@pytest.mark.slow
def test_a_million_rows_from_redis(spark: SparkSession, events: DataFrame, redis_url: str) -> None:
    held = {key: "" if len(key) % 9 == 0 else f"'value' of {key}" for key in HELD}
    with redis.Redis.from_url(redis_url) as client:
        for start in range(0, len(HELD), 10_000):
            client.mset({f"user:{key}": held[key] for key in HELD[start : start + 10_000]})
    values = spark.createDataFrame(list(held.items()), "k string, w string")
    actual = events.withColumn("v", enrich(RedisConfig(url=redis_url, key="user:{}"), "k"))
    assert_equal_to_a_join(actual, values, ROWS, found_in(events))


@pytest.mark.slow
def test_many_rows_from_postgres(spark: SparkSession, events: DataFrame, postgres_dsn: str) -> None:
    rows = [(key, f"'name' of {key}", None if n % 7 == 0 else n, Decimal(n) / 4) for n, key in enumerate(HELD)]

    async def seed() -> None:
        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute("CREATE TABLE users (k text PRIMARY KEY, name text, tier int, amount numeric(12,2))")
        await connection.copy_records_to_table("users", records=rows)
        await connection.execute("ANALYZE users")
        await connection.close()

    asyncio.run(seed())
    values = spark.createDataFrame(
        [(key, tuple(rest)) for key, *rest in rows], "k string, w struct<name:string,tier:int,amount:decimal(12,2)>"
    )
    some = some_of(events)
    actual = some.withColumn("v", enrich(PostgresConfig(dsn=postgres_dsn, table="users", key="k"), "k"))
    assert_equal_to_a_join(actual, values, SOME, found_in(some))


def http_values(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(key, value_of(key)) for key in HELD], f"k string, w struct<{PROFILE}>")


@pytest.mark.slow
def test_many_rows_by_bulk_post(spark: SparkSession, events: DataFrame, http_service: HttpService) -> None:
    http_service.script(log=False)
    config = HttpConfig(url=f"{http_service.url}/bulk", bulk=True, returns=PROFILE)
    some = some_of(events)
    actual = some.withColumn("v", enrich(config, "k"))
    assert_equal_to_a_join(actual, http_values(spark), SOME, found_in(some))


@pytest.mark.slow
def test_twenty_thousand_rows_by_get(
    spark: SparkSession, events: DataFrame, http_service: HttpService, carrier: str
) -> None:
    """An empty key has no place in a path, so it is made null."""
    http_service.script(log=False)
    some = events.where("id % 50 = 1").withColumn("k", F.when(F.col("k") != "", F.col("k")))
    config = HttpConfig(url=f"{http_service.url}/users/{{}}", returns=PROFILE)
    actual = some.withColumn("v", enrich(config, "k", carrier=carrier))
    assert_equal_to_a_join(actual, http_values(spark), 20_000, found_in(some))


# --- all types


def random_values(rng: random.Random) -> dict[str, Any]:
    """One value of each type, by DDL."""

    def maybe(value: Any) -> Any:
        return value if rng.random() > 0.1 else None

    text = "".join(rng.choices("aé名\U0001f600'\"\\ \n\t,{}", k=rng.randrange(9)))
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=rng.randrange(-(10**15), 10**16))
    values = {
        "string": text,
        "binary": rng.randbytes(rng.randrange(9)),
        "boolean": rng.random() < 0.5,
        "tinyint": rng.randrange(-(2**7), 2**7),
        "smallint": rng.randrange(-(2**15), 2**15),
        "int": rng.randrange(-(2**31), 2**31),
        "bigint": rng.randrange(-(2**63), 2**63),
        "float": float(rng.randrange(-(2**24), 2**24)) / 64,
        "double": rng.choice([rng.random() * 10.0 ** rng.randrange(-300, 300), float("nan"), float("inf"), -0.0]),
        "decimal(10,2)": Decimal(rng.randrange(-(10**10) + 1, 10**10)).scaleb(-2),
        "decimal(38,18)": Decimal(rng.randrange(-(10**38) + 1, 10**38)) / Decimal(1),
        "date": moment.date(),
        "timestamp": moment.replace(tzinfo=dt.UTC),
        "timestamp_ntz": moment,
        "interval day to second": dt.timedelta(microseconds=rng.randrange(-(10**15), 10**15)),
        "array<bigint>": [maybe(rng.randrange(-(2**63), 2**63)) for _ in range(rng.randrange(4))],
        "map<string,double>": {f"{text}{n}": maybe(rng.random()) for n in range(rng.randrange(3))},
        "struct<a:bigint,b:struct<c:string,d:array<timestamp>>>": {
            "a": maybe(rng.randrange(-(2**63), 2**63)),
            "b": maybe({"c": maybe(text), "d": [maybe(moment.replace(tzinfo=dt.UTC))]}),
        },
    }
    values["decimal(38,18)"] = Decimal(rng.randrange(-(10**37), 10**37)).scaleb(-18)
    return {ddl: maybe(value) for ddl, value in values.items()}


def comparable(column: Column, data_type: t.DataType) -> Column:
    """Spark compares no maps."""
    return F.array_sort(F.map_entries(column)) if isinstance(data_type, t.MapType) else column


@pytest.mark.slow
@pytest.mark.spark  # types are those of plans; in the others only workers ask, who get the same rows from Spark Connect
def test_twenty_thousand_rows_of_all_types(
    spark: SparkSession, table: Table, carrier: str, conf: Callable[[str, str], None]
) -> None:
    conf("spark.sql.session.timeZone", "America/St_Johns")
    rng = random.Random(7)
    held: dict[int, Any] = {2**53 + n: random_values(rng) for n in range(500)}
    names = {ddl: f"f{i}" for i, ddl in enumerate(next(iter(held.values())))}
    ddl = ", ".join(f"{name} {kind}" for kind, name in names.items())
    held = {key: {names[kind]: value for kind, value in values.items()} for key, values in held.items()}
    values = spark.createDataFrame(list(held.items()), f"k bigint, w struct<{ddl}>")
    frame = spark.range(0, 20_000, 1, 2).withColumn("k", F.when(F.rand(3) > 0.1, 2**53 + F.col("id") * 7 % 600))
    frame = frame.withColumn("v", enrich(table(held), "k", returns=ddl, carrier=carrier)).join(values, "k", "left")
    fields = values.schema["w"].dataType
    assert isinstance(fields, t.StructType)
    parts = [
        comparable(F.col("v")[f.name], f.dataType).eqNullSafe(comparable(F.col("w")[f.name], f.dataType))
        for f in fields
    ]
    wrong = [
        F.count_if(~part).alias(f"{f.name} {f.dataType.simpleString()}") for f, part in zip(fields, parts, strict=True)
    ]
    counts = frame.select(
        F.count("*").alias("rows"),
        F.count("v").alias("found"),
        F.count_if(F.col("v").isNull() != F.col("w").isNull()).alias("null or not"),
        *wrong,
    ).first()
    assert counts is not None
    rows, found, *_ = counts
    different = {name: n for name, n in counts.asDict().items() if n and name not in ("rows", "found")}
    assert (20_000, {}) == (rows, different)
    assert 14_000 < found < 16_000
