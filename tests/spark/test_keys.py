"""Keys of every type reach the source as they are, alone and as parts of a composite key, on both carriers."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_http import HttpConfig
from pyspark.sql import functions as F

from enrichkit import Cache, Call, Connector, ConnectorConfig, enrich

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from enrichkit.local import HttpService

pytestmark = pytest.mark.spark

UTC = dt.UTC
KEYS: dict[str, list[Any]] = {
    "string": ["a", "", 'it\'s "quoted"', "naïve 名 \U0001f600", "nul\0", " a "],
    "binary": [b"", b"a", b"\xff\x00", b"a\x00"],
    "boolean": [True, False],
    "tinyint": [-128, 0, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [2**53 + 1, 2**53, 2**53 + 2, -(2**63), 2**63 - 1],
    "float": [0.0, 1.5, -(2.0**100)],
    "double": [0.1, 1e308, 2.0**53],
    "decimal(10,2)": [Decimal("0.10"), Decimal("-99999999.99"), Decimal("7.00")],
    "decimal(38,0)": [Decimal(10**37 + 1), Decimal(10**37 + 2)],
    "date": [dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31)],
    "timestamp": [
        dt.datetime(2026, 7, 1, 12, 30, 15, 123456, UTC),
        # One wall clock, 1:45, twice: the clocks of Newfoundland go back between the two.
        dt.datetime(2026, 11, 1, 4, 15, tzinfo=UTC),
        dt.datetime(2026, 11, 1, 5, 15, tzinfo=UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        dt.datetime(1500, 1, 1, 12, tzinfo=UTC),
        dt.datetime(3000, 1, 1, 12, tzinfo=UTC),
    ],
    "timestamp_ntz": [
        dt.datetime(2026, 3, 8, 2, 30),
        dt.datetime(1900, 1, 1, 0, 0, 0, 1),
        dt.datetime(1, 1, 1),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
    ],
}


@dataclass(frozen=True, kw_only=True)
class EchoConfig(ConnectorConfig):
    """The source says which keys it was asked for."""

    returns: str | None = "string"


class EchoConnector(Connector[EchoConfig]):
    """Answers with the text of the key, and with the types of its parts, as they arrived."""

    name = "echo"
    config_class = EchoConfig
    batch_size = 3
    max_batch_size = 1000

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, str]:
        return {key: repr(key) for key in keys}


@pytest.fixture(autouse=True)
def another_zone(conf: Callable[[str, str], None]) -> None:
    conf("spark.sql.session.timeZone", "America/St_Johns")


@pytest.mark.slow
@pytest.mark.parametrize("ddl", KEYS)
def test_a_key_arrives_as_it_is(spark: SparkSession, carrier: str, ddl: str) -> None:
    keys = [*KEYS[ddl], None, *KEYS[ddl]]
    frame = spark.createDataFrame(list(enumerate(keys)), f"n int, k {ddl}").coalesce(1)
    rows = frame.select("n", enrich(EchoConfig(), "k", carrier=carrier)).collect()
    assert {n: None if key is None else repr(key) for n, key in enumerate(keys)} == {row.n: row.echo for row in rows}


@pytest.mark.slow
def test_a_cache_does_not_take_a_key_for_one_of_another_type(spark: SparkSession, carrier: str) -> None:
    """To Python 1, 1.0, 1.00 and True are one key; to the source they are four."""
    columns = ["k", "cast(k as double)", "cast(k as decimal(10,2))", "cast(k as decimal(10,1))", "k = 1", "smallint(k)"]
    texts = ["1", "1.0", "Decimal('1.00')", "Decimal('1.0')", "True", "1"]
    frame = spark.createDataFrame([(1,)] * 8, "k int").repartition(2)
    cache = Cache(ttl=60)
    echoes = [enrich(EchoConfig(), F.expr(key), cache=cache, carrier=carrier) for key in columns]
    named = [echo.alias(f"e{n}") for n, echo in enumerate(echoes[:3])]
    assert {tuple(texts[:3])} == {tuple(row) for row in frame.select(*named).collect()}
    for echo, text in zip(echoes, texts, strict=True):
        assert {text} == {row[0] for row in frame.select(echo).collect()}
    pairs = [enrich(EchoConfig(), F.expr(key), F.lit("a"), cache=cache, carrier=carrier) for key in columns[:2]]
    assert {("(1, 'a')", "(1.0, 'a')")} == {tuple(row) for row in frame.select(*pairs).collect()}


def test_a_cache_does_not_take_a_key_for_one_of_another_type_after_a_batch_of_nulls(
    spark: SparkSession, carrier: str, conf: Callable[[str, str], None]
) -> None:
    """From pandas, a first batch of nulls does not tell the type of those that follow."""
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    frame = spark.createDataFrame([(0, None), (1, 1), (2, 1)], "n int, k int").coalesce(1)
    for key, text in (("k", "1"), ("cast(k as double)", "1.0"), ("k = 1", "True")):
        echo = enrich(EchoConfig(), F.expr(key), cache=Cache(ttl=60), carrier=carrier)
        assert {0: None, 1: text, 2: text} == {
            row.n: row.echo for row in frame.select("n", echo.alias("echo")).collect()
        }


@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_a_key_above_2_to_the_53_beside_a_null_gets_its_own_value(
    spark: SparkSession, carrier: str, size: int, conf: Callable[[str, str], None]
) -> None:
    """As a column of pandas it would be a float: another user's key."""
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", str(size))
    keys = [2**53 + 1, None, 2**53, 2**53 + 2, None, 2**53 + 1]
    frame = spark.createDataFrame(list(enumerate(keys)), "n int, k bigint").coalesce(1)
    rows = frame.select("n", enrich(EchoConfig(), "k", carrier=carrier)).collect()
    assert {n: None if key is None else str(key) for n, key in enumerate(keys)} == {row.n: row.echo for row in rows}


@pytest.mark.parametrize("year", ["-0001", "+12026"])
def test_a_timestamp_that_python_cannot_hold_fails_the_task(
    spark: SparkSession, year: str, conf: Callable[[str, str], None]
) -> None:
    """The pandas carrier reads it from a text; that of the arrow carrier is a number, which `encode` checks."""
    conf("spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled", "false")  # shows what errors came from
    key = F.expr(f"timestamp'{year}-01-01 00:00:00Z'")
    with pytest.raises(
        Exception, match="A key of type timestamp lies outside the years 1 to 9999; Python holds no"
    ) as caught:
        spark.range(2).select(enrich(EchoConfig(), key, carrier="pandas")).collect()
    assert year[1:] not in str(caught.value)


def test_nan_is_a_null_key_and_minus_zero_is_zero(spark: SparkSession, carrier: str) -> None:
    frame = spark.sql("select * from values (0, 'NaN'), (1, '-0.0'), (2, '0.0'), (3, 'Infinity'), (4, null) as v(n, k)")
    echo = enrich(EchoConfig(), F.col("k").cast("double"), carrier=carrier)
    assert {0: None, 1: "0.0", 2: "0.0", 3: "inf", 4: None} == {
        row.n: row.echo for row in frame.select("n", echo).collect()
    }


def test_a_key_that_is_not_utf8_arrives_with_its_bytes(
    spark: SparkSession, http_service: HttpService, carrier: str
) -> None:
    """Spark's strings may hold any bytes: none is replaced, and no two keys become one. A connector may refuse them."""
    frame = spark.sql(
        "select * from values (0, X'61'), (1, X'FF'), (2, X'C3'), (3, X'E28483'), (4, X'61FF') as v(n, b)"
    )
    key = F.col("b").cast("string")
    found = {row.n: row.echo for row in frame.select("n", enrich(EchoConfig(), key, carrier=carrier)).collect()}
    assert found == {0: "'a'", 1: r"'\udcff'", 2: r"'\udcc3'", 3: "'\u2103'", 4: r"'a\udcff'"}
    service = HttpConfig(url=f"{http_service.url}/{uuid.uuid4().int}/{{}}", value="key", returns="string")
    column = enrich(service, key, carrier=carrier, details=True, max_fallback_ratio=1.0)
    rows = {row.n: (row.v.value, row.v.status) for row in frame.select("n", column.alias("v")).collect()}
    bad = (None, "rejected")
    assert rows == {0: ("a", "ok"), 1: bad, 2: bad, 3: ("\u2103", "ok"), 4: bad}


def test_a_composite_key_arrives_as_a_tuple_of_its_parts(spark: SparkSession, carrier: str) -> None:
    columns = list(KEYS)
    rows = [tuple(values[n % len(values)] for values in KEYS.values()) for n in range(7)]
    schema = "n int, " + ", ".join(f"k{i} {ddl}" for i, ddl in enumerate(columns))
    frame = spark.createDataFrame([(n, *row) for n, row in enumerate(rows)], schema).coalesce(1)
    echo = enrich(EchoConfig(), *(f"k{i}" for i in range(len(columns))), carrier=carrier)
    assert {n: repr(row) for n, row in enumerate(rows)} == {
        row.n: row.echo for row in frame.select("n", echo).collect()
    }


def test_a_null_part_makes_a_null_key(spark: SparkSession, carrier: str) -> None:
    rows = [("a", 1), (None, 1), ("a", None), (None, None), ("b", 2**53 + 1), ("a", 1)]
    frame = spark.createDataFrame([(n, *row) for n, row in enumerate(rows)], "n int, a string, b bigint").coalesce(1)
    expected = {n: None if None in row else repr(row) for n, row in enumerate(rows)}
    actual = frame.select("n", enrich(EchoConfig(), "a", F.col("b"), carrier=carrier)).collect()
    assert expected == {row.n: row.echo for row in actual}


def test_parts_that_look_alike_together_are_different_keys(spark: SparkSession, carrier: str) -> None:
    rows = [("a,b", "c"), ("a", "b,c"), ("", "a"), ("a", ""), ("a'", "'b"), ("a", "''b")]
    frame = spark.createDataFrame([(n, *row) for n, row in enumerate(rows)], "n int, a string, b string").coalesce(1)
    actual = frame.select("n", enrich(EchoConfig(), "a", "b", carrier=carrier)).collect()
    assert {n: repr(row) for n, row in enumerate(rows)} == {row.n: row.echo for row in actual}


def test_only_null_keys_give_only_nulls(spark: SparkSession, carrier: str) -> None:
    frame = spark.range(0, 5, 1, 1).select("id", enrich(EchoConfig(), F.lit(None), carrier=carrier))
    assert [None] * 5 == [row.echo for row in frame.collect()]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (F.array, "array<bigint>"),
        (lambda column: F.create_map(column, column), "map"),
    ],
    ids=["array", "map"],
)
def test_a_nested_column_is_no_key(spark: SparkSession, carrier: str, key: Any, name: str) -> None:
    frame = spark.range(1).select(enrich(EchoConfig(), key(F.col("id")), carrier=carrier))
    with pytest.raises(Exception, match="which is no key") as caught:
        frame.collect()
    # The pandas carrier does not see the types inside a map.
    shown = "map<bigint,bigint>" if (name, carrier) == ("map", "arrow") else name
    assert (
        f"A key column has the type {shown}, which is no key; allowed are string, binary, boolean, number, date and "
        "timestamp columns. Pass its parts as several key columns, or cast it to string."
    ) in str(caught.value)
