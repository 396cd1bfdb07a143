"""The DataFrame form: a lookup join, compared with Spark's own join on the same data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as F
from pyspark.sql import types as t

from enrichkit import Cache, ConfigError, UnknownConnectorError, default, enrich, enrich_frame, enriched
from enrichkit.errors import UnknownOptionError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from enrichkit.local import PostgresServer

    Table = Callable[[dict[Any, Any]], Any]

pytestmark = pytest.mark.spark

EVENTS = [(1, 1, "x"), (2, 2, "y"), (3, 3, "x"), (4, 4, None), (5, 9, "y"), (6, None, "x"), (7, 3, "y"), (8, 0, "x")]
PRICES = [(1, "a", "x", 10), (3, "b", "x", 20), (3, "c", "y", 30), (4, "d", None, None), (9, "e", "y", 5)]
FIELDS = "event int, item int, shop string"
COLUMNS = "item int, name string, shop string, price int"


@pytest.fixture
def events(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(EVENTS, FIELDS).coalesce(1)


@pytest.fixture
def prices(spark: SparkSession) -> DataFrame:
    """What Postgres holds, for Spark's own join."""
    return spark.createDataFrame(PRICES, COLUMNS).coalesce(1)


@pytest.fixture
def dsn(postgres_server: PostgresServer, postgres_dsn: str) -> str:
    """A database with the table `prices`."""
    literals = [", ".join("NULL" if part is None else repr(part) for part in row) for row in PRICES]
    postgres_server.execute(
        "CREATE TABLE prices (item int, name text, shop text, price int);"
        f"INSERT INTO prices VALUES {', '.join(f'({row})' for row in literals)}",
        postgres_dsn.rpartition("/")[2],
    )
    return postgres_dsn


def by_item(dsn: str, **fields: Any) -> PostgresConfig:
    return PostgresConfig(dsn=dsn, **{"table": "prices", "key": "item", "columns": ("name", "price"), **fields})


def assert_same(expected: DataFrame, found: DataFrame) -> None:
    """Both have the same rows, in any order."""
    assert expected.columns == found.columns
    assert Counter(map(tuple, expected.collect())) == Counter(map(tuple, found.collect()))


# --- a lookup join is a join


@pytest.mark.slow
def test_an_inner_lookup_join_is_an_inner_join(events: DataFrame, prices: DataFrame, dsn: str) -> None:
    """J1."""
    found = enrich_frame(events, by_item(dsn), on="item", how="inner", many=True, cache=Cache(ttl=60))
    assert_same(events.join(prices.drop("shop"), "item").select("event", "item", "shop", "name", "price"), found)


def test_a_left_lookup_join_is_a_left_join(events: DataFrame, prices: DataFrame, dsn: str) -> None:
    """J2."""
    found = enrich_frame(events, by_item(dsn), on="item", many=True, ordered=False, details=True)
    expected = events.join(prices.drop("shop"), "item", "left").select("event", "item", "shop", "name", "price")
    assert_same(expected, found.select("event", "item", "shop", "value.name", "value.price"))
    outcomes = {row.event: (row.status, row.attempts) for row in found.collect()}
    assert {1: "ok", 2: "missing", 3: "ok", 4: "ok", 5: "ok", 6: "null_key", 7: "ok", 8: "missing"} == {
        event: status for event, (status, _) in outcomes.items()
    }
    assert 0 == outcomes[6][1]


@pytest.mark.parametrize("how", ["inner", "left"])
def test_a_filter_of_the_source_leaves_the_other_matches(
    events: DataFrame, prices: DataFrame, dsn: str, how: Any
) -> None:
    """J3."""
    query = "SELECT item, name, price FROM prices WHERE item = ANY($1::int[]) AND price > 20"
    found = enrich_frame(events, PostgresConfig(dsn=dsn, query=query, key="item"), on="item", how=how, many=True)
    expected = events.join(prices.where("price > 20").drop("shop"), "item", how)
    assert_same(expected.select("event", "item", "shop", "name", "price"), found)


def test_a_row_whose_key_is_made_null_is_not_looked_up(events: DataFrame, prices: DataFrame, dsn: str) -> None:
    """J4."""
    found = enrich_frame(events, by_item(dsn), on=F.when(F.col("shop") == "x", F.col("item")), many=True, details=True)
    right = prices.withColumnsRenamed({"item": "i", "shop": "s"})
    expected = events.join(right, (events.item == right.i) & (events.shop == "x"), "left")
    assert_same(
        expected.select("event", "item", "shop", "name", "price"),
        found.select("event", "item", "shop", "value.name", "value.price"),
    )
    assert {2, 4, 5, 6, 7} == {row.event for row in found.where("status = 'null_key'").collect()}


def test_the_parts_of_a_key_are_named_in_the_order_of_the_config(
    events: DataFrame, prices: DataFrame, dsn: str
) -> None:
    """J5."""
    source = by_item(dsn, key=("shop", "item"), columns=("price", "name"))
    found = enrich_frame(events, source, on=["shop", "item"], how="inner")
    assert_same(events.join(prices, ["item", "shop"]).select("event", "item", "shop", "price", "name"), found)


def test_a_constant_key_is_one_key(events: DataFrame, prices: DataFrame, dsn: str) -> None:
    """J6."""
    threes = events.crossJoin(prices.where("item = 3").select("name", "price"))
    assert_same(threes, enrich_frame(events, by_item(dsn), on=F.lit(3), how="inner", many=True))
    both = enrich_frame(
        events, by_item(dsn, key=("item", "shop")), on=(F.lit(3), F.lit("y")), how="inner", details=True, into="u"
    )
    assert [("c", 30)] * len(EVENTS) == [tuple(row.u.value) for row in both.collect()]


def test_a_null_in_a_key_matches_nothing(events: DataFrame, prices: DataFrame, dsn: str) -> None:
    """J7: not even a null in the table."""
    source = by_item(dsn, key=("item", "shop"), columns=("name",))
    found = enrich_frame(events, source, on=["item", "shop"], into="name", how="inner", ordered=False)
    assert_same(events.join(prices, ["item", "shop"]).select("event", "item", "shop", "name"), found)
    assert 4 not in {row.event for row in found.collect()}


@pytest.mark.slow
def test_the_key_may_be_any_expression_and_the_result_is_a_frame_like_any_other(
    events: DataFrame, prices: DataFrame, dsn: str
) -> None:
    """J8."""
    double = F.udf(lambda item: item and item * 2, "int")
    cheap = F.udf(lambda price: price is not None and price < 25, "boolean")
    found = enrich_frame(events, by_item(dsn), on=(double("item") / 2).cast("int"), many=True)
    expected = events.join(prices.drop("shop"), "item").select("event", "item", "shop", "name", "price")
    assert_same(expected.where("price < 25"), found.where(cheap("price")))


def test_the_key_may_be_an_enrichment(events: DataFrame, prices: DataFrame, table: Table, dsn: str) -> None:
    same = enrich(table({n: n for n in range(10)}), "item", returns="int")
    found = enrich_frame(events, by_item(dsn), on=same, how="inner", many=True)
    assert_same(events.join(prices.drop("shop"), "item").select("event", "item", "shop", "name", "price"), found)


@pytest.mark.slow
def test_a_further_condition_is_a_filter_behind_the_join(events: DataFrame, prices: DataFrame, dsn: str) -> None:
    """J9: of an inner join on its rows, of a left join on the array of its matches."""
    right = prices.withColumnRenamed("item", "i").drop("shop")
    condition = (events.item == right.i) & (right.price > events.event * 5)
    columns = ["event", "item", "shop", "name", "price"]
    inner = enrich_frame(events, by_item(dsn), on="item", how="inner", many=True).where("price > event * 5")
    assert_same(events.join(right, condition).select(*columns), inner)
    left = enrich_frame(events, by_item(dsn), on="item", into="found", many="array")
    left = left.select(*columns[:3], F.explode_outer(F.expr("filter(found, f -> f.price > event * 5)")).alias("f"))
    assert_same(events.join(right, condition, "left").select(*columns), left.select(*columns[:3], "f.*"))


def test_a_column_may_be_computed_at_the_source(events: DataFrame, prices: DataFrame, dsn: str) -> None:
    """J10."""
    query = "SELECT item, upper(name) AS name, price * 2 AS twice FROM prices WHERE item = ANY($1::int[])"
    found = enrich_frame(events, PostgresConfig(dsn=dsn, query=query, key="item"), on="item", how="inner", many=True)
    computed = prices.select("item", F.upper("name").alias("name"), (F.col("price") * 2).alias("twice"))
    assert_same(events.join(computed, "item").select("event", "item", "shop", "name", "twice"), found)


def test_two_matches_for_one_row_are_an_error_that_names_many(events: DataFrame, dsn: str) -> None:
    expected = r"2 rows of .* have the same key, and only one row is allowed: .* many=True"
    with pytest.raises(PythonException, match=expected):
        enrich_frame(events.where("item = 3"), by_item(dsn), on="item").collect()


# --- the frame


def test_any_column_passes_through_untouched(spark: SparkSession, table: Table) -> None:
    frame = spark.sql(
        """
        SELECT CAST(id AS int) AS key, 'x' AS `a.b`, 'y' AS `tick``s`, id AS twice, id AS twice, X'00FF' AS b,
            TIMESTAMP'2024-10-27 02:30:00' AS at, TIMESTAMP_NTZ'2024-01-01 00:00:00' AS local, 1.50BD AS n,
            DATE'0001-01-01' AS d, NULL AS nothing, INTERVAL '1 2:03:04.000005' DAY TO SECOND AS span,
            CAST('nan' AS float) AS f, ARRAY(ARRAY(id), NULL) AS lists,
            MAP('k', NAMED_STRUCT('x.y', id, 'z', 'ü')) AS m, 'c' COLLATE UTF8_LCASE AS c, PARSE_JSON('{"a": 1}') AS v
        FROM RANGE(0, 20, 1, 2)
        """
    )
    described = frame.withMetadata("d", {"comment": "a day"})
    found = described.transform(
        enriched(table({n: f"v{n}" for n in range(0, 20, 3)}), on="KEY", returns="string", ordered=False)
    )
    fields = [field.jsonValue() for field in described.schema]
    assert fields == [field.jsonValue() for field in found.schema][:-1]
    assert t.StructField("table", t.StringType()) == found.schema[-1]
    names = [f"c{n}" for n in range(len(fields))]
    before, after = (
        made.toDF(*columns).withColumn("c16", F.to_json("c16")).collect()
        for made, columns in ((described, names), (found, [*names, "table"]))
    )
    # As text, because NaN differs from itself.
    assert {row.c0: str(tuple(row)) for row in before} == {row.c0: str(tuple(row)[:-1]) for row in after}
    assert {n: f"v{n}" if n % 3 == 0 else None for n in range(20)} == {row.c0: row.table for row in after}


def test_a_column_may_be_called_as_the_columns_are_on_their_way(events: DataFrame, table: Table) -> None:
    """The frame is numbered for Spark; two columns of one name would end the task in the JVM."""
    source = table({1: {"c0": "zero", "c1": 1}})
    frame = events.where("event = 1").select("event", "item")
    expected = {"event": 1, "item": 1, "c0": "zero", "c1": 1}
    assert [expected] == [
        row.asDict() for row in enrich_frame(frame, source, on="item", returns="c0 string, c1 int").collect()
    ]
    [row] = enrich_frame(frame, table({1: "one"}), on="item", into="c1", returns="string").collect()
    assert {"event": 1, "item": 1, "c1": "one"} == row.asDict()


@pytest.mark.slow
def test_fields_are_chosen_and_put_where_they_are_wanted(events: DataFrame, dsn: str) -> None:
    frame = events.where("item = 1").select("event", "item")
    source = by_item(dsn, columns=("name", "shop", "price"))
    for options, expected in (
        ({}, {"name": "a", "shop": "x", "price": 10}),
        ({"columns": ["price", "name"]}, {"price": 10, "name": "a"}),
        ({"columns": ("shop",), "into": "s"}, {"s": {"shop": "x"}}),
        ({"columns": ["name"], "many": "array"}, {"postgres": [{"name": "a"}]}),
    ):
        [row] = enrich_frame(frame, source, on="item", **options).collect()  # type: ignore[arg-type]
        assert {"event": 1, "item": 1, **expected} == row.asDict(recursive=True)


def test_a_default_takes_the_place_of_a_match(events: DataFrame, table: Table) -> None:
    source = table({1: "one"})
    found = enrich_frame(events, source, on="item", into="v", returns="string", how="inner", on_missing=default("-"))
    assert {1: "one", **dict.fromkeys((2, 3, 4, 5, 7, 8), "-")} == {row.event: row.v for row in found.collect()}


def test_rows_do_not_cross_a_barrier(spark: SparkSession, table: Table) -> None:
    frame = spark.range(0, 3000, 1, 1).withColumn("minute", (F.col("id") / 100).cast("int"))
    found = enrich_frame(
        frame, table({n: -n for n in range(3000)}), on="id", returns="int", ordered=False, barrier="minute", window=500
    )
    rows = found.collect()
    assert {n: -n for n in range(3000)} == {row.id: row.table for row in rows}
    assert [n // 100 for n in range(3000)] == [row.minute for row in rows]


def test_a_redis_value_is_one_match(spark: SparkSession, redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.mset({"u1": "Ann", "u2": "Bob"})
    frame = spark.createDataFrame([("u1",), ("u2",), ("u3",)], "user string")
    found = enrich_frame(frame, RedisConfig(url=redis_url), on="user", into="name", how="inner", many=True)
    assert [("u1", "Ann"), ("u2", "Bob")] == sorted(map(tuple, found.collect()))


@pytest.mark.slow
def test_a_window_with_a_watermark_works_behind_it(
    spark: SparkSession, table: Table, tmp_path: Path, conf: Callable[[str, str], None]
) -> None:
    conf("spark.sql.shuffle.partitions", "1")
    minutes = spark.range(0, 300, 1, 1).withColumn("at", F.timestamp_seconds(F.col("id") * 6 + 1_700_000_000))
    minutes.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id bigint, at timestamp").parquet(str(tmp_path / "in"))
    found = enrich_frame(
        stream.withWatermark("at", "1 minute"),
        table({n: f"tier {n % 2}" for n in range(300)}),
        on="id",
        into="tier",
        returns="string",
        ordered=False,
    )
    # Spark refuses to append an aggregation of a stream that has no watermark.
    query = (
        found.groupBy(F.window("at", "5 minutes"), "tier")
        .count()
        .writeStream.outputMode("append")
        .format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    assert query.awaitTermination(100)
    counts = Counter(
        {
            row.tier: row["sum(count)"]
            for row in spark.read.parquet(str(tmp_path / "out")).groupBy("tier").sum("count").collect()
        }
    )
    assert {"tier 0", "tier 1"} == set(counts)
    assert 200 <= counts.total() < 300, "the last window is still open"


# --- what is refused, on the driver


def refusal(call: Callable[[], Any], kind: type[Exception] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_wrong_arguments_are_refused(events: DataFrame, table: Table) -> None:
    source = table({})

    def said(**arguments: Any) -> str:
        return refusal(
            lambda: enrich_frame(events, source, **{"on": "item", "returns": "name string, n int", **arguments})
        )

    assert said(how="outer") == "how is 'outer'; it must be one of 'left', 'inner'. Set how='left'."
    assert said(how="iner") == "how is 'iner'; it must be one of 'left', 'inner'. Did you mean 'inner'? Set how='left'."
    assert said(many="arrays") == (
        "many is 'arrays'; it must be one of False, True, 'array'. Did you mean 'array'? Set many=False."
    )
    assert said(ordered=1) == "ordered is 1; it must be one of True, False. Set ordered=True."
    assert said(into="") == "into is ''; it must be the name of a column or None, for example into='user'."
    assert said(columns="name") == (
        "columns is 'name'; it must be a list of one field or more, or None for all. Write columns=['name']."
    )
    assert said(columns=["nmae"]) == (
        "columns names 'nmae', which a value of 'table' does not have. Did you mean 'name'? Its fields: name, n. Name "
        "some of them."
    )
    assert said(columns=["n", "name", "n"]) == ("columns names 'n' twice; a field can be kept once. Name it once.")
    assert said(columns=["name"], returns="string") == (
        "columns is ['name'], but a value of 'table' is of the type string, which has no fields; columns= chooses "
        "fields of a struct. Leave columns= out, or declare a struct with returns=."
    )
    assert said(on=[]) == (
        "on is None; it must be a column or the name of one, or a list of them, for example on='user_id'."
    )
    assert said(on=[7]) == (
        "on is 7; it must be a column or the name of one, or a list of them, for example on='user_id'."
    )
    assert said(barrier=7) == "barrier is 7; it must be a column or the name of one, for example barrier='user_id'."
    assert said(on="itme") == (
        "The DataFrame has no column 'itme'. Did you mean 'item'? Its columns: event, item, shop. Name one of them, or "
        "pass an expression."
    )
    assert said(carrier="pandas") == (
        "carrier is 'pandas', but enrich_frame() has no such option: it concerns the expression that enrich() makes, "
        "and this is a DataFrame. Leave carrier= out."
    )
    assert refusal(lambda: enrich_frame(events, source, on="item", odrered=False), UnknownOptionError).startswith(  # type: ignore[call-arg]
        "enrich_frame() has no option 'odrered'. Did you mean 'ordered'? Options: on, into, how, many, ordered, "
    )
    assert "Did you mean" in refusal(lambda: enrich_frame(events, "postgers", on="item"), UnknownConnectorError)


def test_columns_that_are_there_already_are_named(
    events: DataFrame, table: Table, conf: Callable[[str, str], None]
) -> None:
    def add(**arguments: Any) -> DataFrame:
        return enrich_frame(
            events, table({}), **{"on": "item", "returns": "Shop string, n int, event int", **arguments}
        )

    assert refusal(add) == (
        "The value would add the columns 'Shop', 'event', which the DataFrame has already. Put the values into a "
        "column of another name with into=, choose other fields with columns=, or rename the DataFrame's."
    )
    assert refusal(lambda: add(into="ITEM")).startswith(
        "The value would add the column 'ITEM', which the DataFrame has"
    )
    assert ["event", "item", "shop", "n"] == add(columns=["n"]).columns
    alike = t.StructType([t.StructField(name, t.StringType()) for name in ("a", "b", "A")])
    assert refusal(lambda: add(returns=alike)) == (
        "The value would add the columns 'a', 'A', which Spark does not tell apart. Put the values into one column "
        "with into=, choose some of the fields with columns=, or set spark.sql.caseSensitive to true."
    )
    conf("spark.sql.caseSensitive", "True")
    assert ["event", "item", "shop", "Shop"] == add(columns=["Shop"]).columns
    assert ["event", "item", "shop", "a", "b", "A"] == add(returns=alike).columns


def test_a_key_of_the_wrong_type_is_refused_with_the_name_of_its_column(spark: SparkSession, table: Table) -> None:
    """J11."""
    columns = (
        "1 AS id, MAP('a', 1) AS m, STRUCT(1 AS n, 2 AS o) AS s, TRUE AS flag, INTERVAL '1-2' YEAR TO MONTH AS age"
    )
    frame = spark.sql(f"SELECT {columns}")
    frame = frame.select("*", F.col("id").alias("twice"), F.col("id").alias("twice"))
    assert refusal(lambda: enrich_frame(frame, table({}), on="m", returns="int")) == (
        "The key column 'm' has the type map<string,int>, which is no key; allowed are string, binary, boolean, "
        "number, date and timestamp columns. Pass its parts as several key columns, or cast it to string."
    )
    assert refusal(lambda: enrich_frame(frame, RedisConfig(), on="flag", returns="int")) == (
        "The key column 'flag' has the type boolean, which is bool in Python; a key of 'redis' must be one of str, "
        "bytes, int, float, Decimal, date. Cast it, for example to string."
    )
    assert refusal(lambda: enrich_frame(frame, table({}), on="id", barrier="m", returns="int")) == (
        "The barrier column 'm' has the type map<string,int>, whose values are not compared; allowed are string, "
        "binary, boolean, number, date and timestamp columns. Name a part of it."
    )
    assert refusal(lambda: enrich_frame(frame, table({}), on="id", returns="int")) == (
        "The column 'age' has the type interval year to month, which Spark does not hand to Python; enrich_frame() "
        "needs all columns there. Drop or convert it before, or use enrich(), which needs the key only."
    )
    frame = frame.drop("age")
    assert refusal(lambda: enrich_frame(frame, table({}), on=F.col("s.*"), returns="int")) == (
        "on or barrier holds an expression that makes several columns: ['n', 'o']; each must be one column. Name them "
        "one by one."
    )
    with pytest.raises(AnalysisException, match="AMBIGUOUS_REFERENCE"):
        enrich_frame(frame, table({}), on="twice", returns="int").collect()
