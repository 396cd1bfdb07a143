"""Every supported type comes back as it was, at the top and nested, on both carriers."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import pyarrow as pa
import pytest
import redis
from enrichkit_redis import RedisConfig
from pyspark.sql import functions as F
from pyspark.sql import types as t

from enrichkit import default, enrich, enrich_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    Table = Callable[[dict[Any, Any]], Any]

pytestmark = pytest.mark.spark

NEWFOUNDLAND = "America/St_Johns"
"""A zone of half hours, with summer time."""

UTC = dt.UTC
PLUS = dt.timezone(dt.timedelta(hours=5, minutes=45))

VALUES: dict[str, list[Any]] = {
    "string": ["a", "", 'it\'s "quoted"', "naïve 名 \U0001f600", "line\nbreak\0nul", " x "],
    "binary": [b"a", b"", bytes(range(256))],
    "boolean": [True, False],
    "tinyint": [0, -128, 127],
    "smallint": [0, -(2**15), 2**15 - 1],
    "int": [0, -(2**31), 2**31 - 1],
    "bigint": [0, 2**53 + 1, -(2**63), 2**63 - 1],
    "float": [0.0, 1.5, -(2.0**100), math.inf, math.nan],
    "double": [0.1, 1e308, 5e-324, -math.inf, math.nan],
    "decimal(10,2)": [Decimal("0.01"), Decimal("-99999999.99")],
    "decimal(38,18)": [Decimal("12345678901234567890.123456789012345678"), Decimal(0)],
    "decimal(20,0)": [Decimal(2**63), Decimal(-1)],
    "date": [dt.date(1970, 1, 1), dt.date(1900, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [
        dt.datetime(2026, 7, 1, 12, 30, 15, 123456, UTC),
        dt.datetime(2026, 1, 1, tzinfo=PLUS),
        dt.datetime(1970, 1, 1, tzinfo=UTC),
        dt.datetime(1600, 1, 1, tzinfo=UTC),  # what 64 bits of nanoseconds cannot hold
        dt.datetime(3000, 1, 1, tzinfo=UTC),
    ],
    "timestamp_ntz": [
        dt.datetime(2026, 3, 8, 2, 30),
        dt.datetime(1600, 1, 1, 0, 0, 0, 1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    ],
    "time": [dt.time(0, 0), dt.time(23, 59, 59, 999999)],
    "interval day to second": [dt.timedelta(0), dt.timedelta(days=-3, microseconds=1), dt.timedelta(days=1000)],
    "void": [None],
    "array<string>": [[], ["a", None, ""], [None]],
    "array<array<bigint>>": [[[2**53 + 1, None], [], None]],
    "map<string,int>": [{}, {"a": 1, "b": None, "": 3}],
    "map<bigint,array<date>>": [{2**53 + 1: [dt.date(2026, 1, 1), None]}],
    "struct<a:int,b:struct<c:string,d:array<double>>>": [
        {"a": 1, "b": {"c": "x", "d": [1.0, None]}},
        {"a": None, "b": None},
        {"a": None, "b": {"c": None, "d": None}},
    ],
    "array<struct<k:string,v:decimal(5,2)>>": [[{"k": "a", "v": Decimal("1.50")}, None]],
}


@pytest.fixture(autouse=True)
def settings(conf: Callable[[str, str], None]) -> None:
    conf("spark.sql.session.timeZone", NEWFOUNDLAND)
    conf("spark.sql.timeType.enabled", "true")  # without it Spark Connect does not send one to the client


def plain(value: Any) -> Any:
    """*value* as something that equals itself: a NaN does not."""
    if isinstance(value, t.Row):
        return {name: plain(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return sorted((repr(key), plain(part)) for key, part in value.items())
    if isinstance(value, list):
        return [plain(part) for part in value]
    return bytes(value) if isinstance(value, bytearray) else repr(value)


def same_as_spark_holds(spark: SparkSession, table: Table, held: dict[int, Any], ddl: str, carrier: str) -> None:
    """Look all of *held*, and a key that is absent, up, and compare with Spark's own DataFrame of it."""
    actual = spark.range(0, len(held) + 1, 1, 1).select("id", enrich(table(held), "id", returns=ddl, carrier=carrier))
    expected = spark.createDataFrame([*held.items(), (len(held), None)], f"id bigint not null, `table` {ddl}")
    assert expected.dtypes == actual.dtypes
    assert [plain(row) for row in expected.collect()] == [plain(row) for row in actual.orderBy("id").collect()]


@pytest.mark.slow
@pytest.mark.parametrize("ddl", VALUES)
def test_a_type_comes_back_as_it_was(spark: SparkSession, table: Table, carrier: str, ddl: str) -> None:
    same_as_spark_holds(spark, table, dict(enumerate([*VALUES[ddl], None])), ddl, carrier)


@pytest.mark.parametrize(
    ("nested", "wrap"),
    [
        ("struct<x:{}>", lambda value: {"x": value}),
        ("array<{}>", lambda value: [value, None, value]),
        ("map<string,{}>", lambda value: {"k": value, "none": None}),
    ],
    ids=["struct", "array", "map"],
)
def test_every_type_comes_back_nested_as_it_was(
    spark: SparkSession, table: Table, carrier: str, nested: str, wrap: Callable[[Any], Any]
) -> None:
    most = max(map(len, VALUES.values())) + 1
    held = {
        n: {f"f{i}": wrap(values[n] if n < len(values) else None) for i, values in enumerate(VALUES.values())}
        for n in range(most)
    }
    ddl = ",".join(f"f{i}:{nested.format(ddl)}" for i, ddl in enumerate(VALUES))
    same_as_spark_holds(spark, table, held, f"struct<{ddl}>", carrier)


def test_a_timestamp_keeps_its_instant_in_the_hour_that_is_repeated(
    spark: SparkSession, table: Table, carrier: str
) -> None:
    """The clocks of Newfoundland go back on 2026-11-01 at 2:00, which is 4:30 UTC."""
    held = {n: dt.datetime(2026, 11, 1, 3, 45, tzinfo=UTC) + dt.timedelta(minutes=30 * n) for n in range(5)}
    frame = spark.range(0, 5, 1, 1).select(
        "id",
        F.unix_micros(enrich(table(held), "id", returns="timestamp", carrier=carrier)).alias("top"),
        F.unix_micros(
            enrich(table({n: {"at": at} for n, at in held.items()}), "id", returns="at timestamp", carrier=carrier)[
                "at"
            ]
        ).alias("nested"),
    )
    micros = {n: int(at.timestamp()) * 1_000_000 for n, at in held.items()}
    assert [(n, micros[n], micros[n]) for n in range(5)] == sorted(tuple(row) for row in frame.collect())


def test_a_missing_struct_is_null_and_not_a_struct_of_nulls(spark: SparkSession, table: Table, carrier: str) -> None:
    source = table({0: {"a": None, "b": None}, 1: {"a": 1}, 2: None})
    keys = F.when(F.col("id") < 4, F.col("id"))
    frame = spark.range(0, 5, 1, 1).select("id", enrich(source, keys, returns="a int, b string", carrier=carrier))
    rows = frame.select("id", F.col("table").isNull(), "table.a").collect()
    assert [(0, False, None), (1, False, 1), (2, True, None), (3, True, None), (4, True, None)] == sorted(
        tuple(row) for row in rows
    )


def test_a_default_takes_the_place_of_a_missing_struct(spark: SparkSession, table: Table, carrier: str) -> None:
    source = table({0: {"a": 1, "b": [2.0]}})
    column = enrich(
        source, "id", returns="a int, b array<double>", on_missing=default({"a": 7, "b": [None]}), carrier=carrier
    )
    rows = spark.range(0, 2, 1, 1).select("id", column).orderBy("id").collect()
    assert [{"a": 1, "b": [2.0]}, {"a": 7, "b": [None]}] == [row.table.asDict() for row in rows]


@pytest.mark.parametrize(
    "returns",
    [
        "a int, b struct<c:string>",
        "struct<a:int,b:struct<c:string>>",
        t.StructType(
            [
                t.StructField("a", t.IntegerType(), nullable=False),
                t.StructField("b", t.StructType([t.StructField("c", t.StringType(), nullable=False)])),
            ]
        ),
    ],
)
def test_a_type_can_be_said_in_three_ways_and_is_nullable_throughout(
    spark: SparkSession, table: Table, returns: Any
) -> None:
    frame = spark.range(2).select(enrich(table({}), "id", returns=returns))
    inner = t.StructType([t.StructField("c", t.StringType())])
    expected = t.StructType([t.StructField("a", t.IntegerType()), t.StructField("b", inner)])
    assert t.StructType([t.StructField("table", expected)]) == frame.schema
    assert [(None,), (None,)] == [tuple(row) for row in frame.collect()]


DOCUMENTS = [
    '{"b": [1, 2.50, "x", null, true, 1e3, -129, 40000, 3000000000, 12345678901234567890], "a": {"b": "é"}, "z": []}',
    json.dumps({f"k{n}": {"n": n, "text": "x" * n} for n in range(300)}),
    json.dumps(list(range(300))),
    '"text"',
    "-0.000000000000000001",
    "99999999999999999999999999999999999999",
    "[[[]], {}]",
    "true",
]
"""What Spark's own parse_json takes as well."""


@pytest.mark.service
def test_a_variant_is_the_one_that_spark_would_parse(spark: SparkSession, redis_url: str, carrier: str) -> None:
    wrong = {"e0": "{", "e1": '{"a": NaN}', "e2": "1" * 39, "e3": "1e400", "e4": "[" * 300 + "]" * 300}
    with redis.Redis.from_url(redis_url) as client:
        client.mset({**{f"d{n}": text for n, text in enumerate(DOCUMENTS)}, **wrong, "none": "null"})
    keys = [*((f"d{n}", text) for n, text in enumerate(DOCUMENTS)), *((key, "0") for key in wrong), ("none", "null")]
    column = enrich(
        RedisConfig(url=redis_url, kind="json"),
        "k",
        returns="variant",
        details=True,
        max_fallback_ratio=1.0,
        carrier=carrier,
    )
    frame = spark.createDataFrame(keys, "k string, text string").coalesce(1).withColumn("o", column)
    rows = frame.selectExpr(
        "k",
        "o.status",
        "o.value is null",
        "to_json(o.value) = to_json(parse_json(text))",
        "schema_of_variant(o.value) = schema_of_variant(parse_json(text))",
        "variant_get(o.value, '$.k299.n', 'int')",  # of so many fields Spark finds one by bisection
        "o.error",
    ).collect()
    found = {row.k: tuple(row)[1:] for row in rows}
    assert {
        **{f"d{n}": ("ok", False, True, True, 299 if n == 1 else None, None) for n in range(len(DOCUMENTS))},
        "none": ("ok", True, None, None, None, None),
    } == {key: found[key] for key in found if key not in wrong}
    problems = [
        "it is not JSON (Expecting property name enclosed in double quotes at character 1)",
        "it holds NaN, which is not JSON",
        "it holds a number of more than 38 digits",
        "it holds a number out of the range of a double",
        "it is nested more than 200 levels deep",
    ]
    takes = ["in UTF-8", "in UTF-8", *["with numbers of at most 38 digits"] * 3]
    assert [
        f"PermanentError: The value does not fit the declared type variant: {problem}; it must be one JSON document "
        f"{what}. Change the source, or declare another type with returns=."
        for problem, what in zip(problems, takes, strict=True)
    ] == [found[key][-1] for key in wrong]


def test_a_variant_comes_back_nested_from_objects(spark: SparkSession, table: Table, carrier: str) -> None:
    at = dt.datetime(2024, 1, 31, 10, 0, 0, 1, UTC)
    value = {"a": [at, at.replace(tzinfo=None), at.date(), None], "b": {"k": Decimal("1.50")}, "c": b"\xff"}
    column = enrich(
        table({0: value}), "id", returns="a array<variant>, b map<string,variant>, c variant", carrier=carrier
    )
    row = (
        spark.range(2)
        .coalesce(1)
        .withColumn("v", column)
        .orderBy("id")
        .selectExpr(
            "transform(v.a, x -> schema_of_variant(x)) a",
            "unix_micros(variant_get(v.a[0], '$', 'timestamp')) at",
            "variant_get(v.b['k'], '$', 'decimal(3,2)') b",
            "variant_get(v.c, '$', 'binary') c",
            "v is null n",
        )
        .collect()
    )
    assert [
        (["TIMESTAMP", "TIMESTAMP_NTZ", "DATE", None], 1706695200_000_001, Decimal("1.50"), bytearray(b"\xff"), False),
        (None, None, None, None, True),
    ] == [tuple(part) for part in row]


def test_a_frame_has_variants_and_a_default_may_be_one(spark: SparkSession, table: Table) -> None:
    source = table({0: {"a": 1}})
    frame = enrich_frame(spark.range(2), source, on="id", into="v", returns="variant", on_missing=default({"b": [2]}))
    assert [(0, '{"a":1}'), (1, '{"b":[2]}')] == sorted(
        tuple(row) for row in frame.selectExpr("id", "to_json(v)").collect()
    )


@dataclasses.dataclass
class Address:
    street: str
    zip: Annotated[int, "int"]


class User(TypedDict):
    name: str
    tags: NotRequired[list[str]]
    address: Address | None


USER = {"name": "Ann", "tags": ["x"], "address": {"street": "S", "zip": 7}}
USER_DDL = "struct<name:string,tags:array<string>,address:struct<street:string,zip:int>>"


@pytest.mark.parametrize("in_config", [False, True], ids=["argument", "config"])
def test_a_class_or_an_arrow_schema_declares_a_struct(spark: SparkSession, table: Table, in_config: bool) -> None:
    address = pa.struct([("street", pa.string()), ("zip", pa.int32())])
    schema = pa.schema([("name", pa.string()), ("tags", pa.list_(pa.string())), ("address", address)])
    source = table({0: USER})
    columns = [
        enrich(dataclasses.replace(source, returns=returns), "id")
        if in_config
        else enrich(source, "id", returns=returns)
        for returns in (User, schema)
    ]
    frame = spark.range(1).select(*(column.alias(f"c{n}") for n, column in enumerate(columns)))
    assert [USER_DDL] * 2 == [field.dataType.simpleString() for field in frame.schema]
    row = frame.collect()[0]
    assert [USER] * 2 == [value.asDict(recursive=True) for value in row]


def test_names_of_fields_may_be_anything(spark: SparkSession, table: Table, carrier: str) -> None:
    value = {"first name": "a", "名": "b", "`": "c", "a.b": "d"}
    ddl = "`first name` string, `名` string, ```` string, `a.b` string"
    row = spark.range(1).select(enrich(table({0: value}), "id", returns=ddl, carrier=carrier)).first()
    assert row is not None
    assert value == row.table.asDict()
