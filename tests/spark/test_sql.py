"""Enrichments in SQL. The refusals that the page on troubleshooting shows are provoked, with their rewrites, there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_postgres import PostgresConfig
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

from enrichkit import ConfigError, UnknownConnectorError, default, enrich, register, register_function, tiers
from enrichkit.errors import UnknownOptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    Table = Callable[[dict[Any, Any]], Any]

pytestmark = pytest.mark.spark

BIG = 2**53
INSTEAD = (
    "enrich a DataFrame with enrich() and give it a name for SQL with "
    "df.withColumn(...).createOrReplaceTempView('enriched')"
)


@pytest.fixture
def events(spark: SparkSession) -> None:
    """The view events: six rows, of which three are of one user and one of none."""
    rows = [(1, "u1", BIG), (2, "u2", BIG + 1), (3, "u3", None), (4, None, 4), (5, "u1", BIG + 1), (6, "u1", BIG)]
    frame = spark.createDataFrame(rows, "id int, user_id string, account bigint").coalesce(1)
    frame.createOrReplaceTempView("events")


# --- what it gives


def test_a_function_looks_each_key_up(spark: SparkSession, events: None, table: Table, fresh_registry: None) -> None:
    register("users", table({"u1": {"name": "Ann", "tier": 1}, "u2": None}))
    register_function(spark, "user_of", "users", returns="name string, tier int")
    rows = spark.sql("SELECT id, user_of(user_id) AS user FROM events").collect()
    ann = ("Ann", 1)
    assert {1: ann, 2: None, 3: None, 4: None, 5: ann, 6: ann} == {row.id: row.user and tuple(row.user) for row in rows}


def test_its_result_is_used_like_any_other(spark: SparkSession, events: None, table: Table) -> None:
    source = table({"u1": {"name": "Ann", "tier": 1}, "u2": {"name": "Bob", "tier": 2}})
    register_function(spark, "user_of", source, returns="name string, tier int")
    rows = spark.sql("""
        WITH found AS (SELECT id, user_of(user_id) AS user FROM events)
        SELECT user.name, count(*) AS n, max(user.tier) AS tier FROM found WHERE user.tier >= 1
        GROUP BY user.name ORDER BY user.name
    """).collect()
    assert [("Ann", 3, 1), ("Bob", 1, 2)] == [tuple(row) for row in rows]


def test_integer_keys_beside_nulls_are_exact(spark: SparkSession, events: None, table: Table) -> None:
    register_function(spark, "account_of", table({BIG: "even", BIG + 1: "odd", 4: "four"}), returns="string")
    rows = spark.sql("SELECT id, account_of(account) AS found FROM events").collect()
    assert {1: "even", 2: "odd", 3: None, 4: "four", 5: "odd", 6: "even"} == {row.id: row.found for row in rows}


def test_several_columns_are_one_key(spark: SparkSession, events: None, table: Table) -> None:
    source = table({("u1", BIG): "first", ("u2", BIG + 1): "second", ("u1", BIG + 1, 5): "third"})
    register_function(spark, "pair_of", source, returns="string")
    query = "SELECT id, pair_of(user_id, account) AS two, pair_of(user_id, account, id) AS three FROM events"
    found = {row.id: (row.two, row.three) for row in spark.sql(query).collect()}
    first, second, third, none = ("first", None), ("second", None), (None, "third"), (None, None)
    assert {1: first, 2: second, 3: none, 4: none, 5: third, 6: first} == found


def test_options_are_those_of_its_registration(spark: SparkSession, events: None, table: Table) -> None:
    source = table({"u1": "Ann"})
    register_function(spark, "name_of", source, returns="string", on_missing=default("nobody"), details=True)
    rows = spark.sql("SELECT id, name_of(user_id) AS outcome FROM events").collect()
    ann, nobody, none = ("Ann", "ok"), ("nobody", "missing"), (None, "null_key")
    assert {1: ann, 2: nobody, 3: nobody, 4: none, 5: ann, 6: ann} == {
        row.id: (row.outcome.value, row.outcome.status) for row in rows
    }


def test_a_second_registration_replaces_the_first(spark: SparkSession, table: Table) -> None:
    register_function(spark, "name_of", table({"u1": "Ann"}), returns="string")
    register_function(spark, "name_of", table({"u1": 7}), returns="int")
    assert [(7,)] == [tuple(row) for row in spark.sql("SELECT NAME_OF('u1')").collect()]


def test_a_deterministic_one_is_allowed_where_spark_demands_it(spark: SparkSession, events: None, table: Table) -> None:
    source = table({"u1": "Ann", "u2": "Bob"})
    register_function(spark, "name_of", source, returns="string", deterministic=True)
    joined = "SELECT id FROM events JOIN VALUES ('Ann'), ('Cid') AS t(name) ON name_of(user_id) = name ORDER BY id"
    assert [1, 5, 6] == [row.id for row in spark.sql(joined).collect()]
    aggregated = spark.sql("SELECT max(name_of(user_id)), count(*) FILTER (WHERE name_of(user_id) = 'Ann') FROM events")
    assert ("Bob", 3) == tuple(aggregated.collect()[0])


# --- what Spark refuses, beside what the page on troubleshooting shows


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        ("UPDATE kept SET name = name_of(name)", "INVALID_NON_DETERMINISTIC_EXPRESSIONS"),
        ("DELETE FROM kept WHERE name_of(name) = 'Ann'", "INVALID_NON_DETERMINISTIC_EXPRESSIONS"),
        (
            ("MERGE INTO kept k USING events e ON k.id = e.id WHEN MATCHED THEN UPDATE SET name = name_of(e.user_id)"),
            "INVALID_NON_DETERMINISTIC_EXPRESSIONS",
        ),
        (
            (
                "WITH RECURSIVE r(k, n) AS (SELECT 'u1', 1 UNION ALL SELECT name_of(k), n + 1 FROM r WHERE n < 3) "
                "SELECT * FROM r"
            ),
            "INVALID_NON_DETERMINISTIC_EXPRESSIONS",
        ),
        (
            "SELECT * FROM (SELECT id, user_id FROM events) PIVOT (max(name_of(user_id)) FOR id IN (1, 2))",
            "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION",
        ),
        (
            "SELECT listagg(user_id) WITHIN GROUP (ORDER BY name_of(user_id)) FROM events",
            "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION",
        ),
        ("SELECT * FROM events LIMIT name_of('u1')", "INVALID_LIMIT_LIKE_EXPRESSION.IS_UNFOLDABLE"),
        ("CREATE TABLE d (a STRING DEFAULT name_of('u1')) USING parquet", "INVALID_DEFAULT_VALUE.NON_DETERMINISTIC"),
        (
            "CREATE TABLE c (a STRING, CONSTRAINT known CHECK (name_of(a) IS NOT NULL)) USING parquet",
            "NON_DETERMINISTIC_CHECK_CONSTRAINT",
        ),
        ("SELECT name_of(DISTINCT user_id) FROM events", "INVALID_SQL_SYNTAX.FUNCTION_WITH_UNSUPPORTED_SYNTAX"),
        (
            "SELECT * FROM events e WHERE EXISTS (SELECT 1 FROM kept k WHERE name_of(e.user_id, k.name) = 'Ann')",
            "UNSUPPORTED_FEATURE.PYTHON_UDF_IN_ON_CLAUSE",
        ),
    ],
)
def test_spark_refuses_it(spark: SparkSession, events: None, table: Table, query: str, condition: str) -> None:
    spark.sql("CREATE TABLE IF NOT EXISTS kept (id INT, name STRING) USING parquet")
    register_function(spark, "name_of", table({}), returns="string")
    with pytest.raises(AnalysisException, match=re.escape(f"[{condition}]")):
        spark.sql(query).collect()


@pytest.mark.parametrize("grouping", ["CUBE (name_of(user_id))", "GROUPING SETS ((name_of(user_id)), ())"])
def test_spark_refuses_it_without_an_error_class(
    spark: SparkSession, events: None, table: Table, grouping: str
) -> None:
    register_function(spark, "name_of", table({}), returns="string")
    with pytest.raises(AnalysisException, match="doesn't show up in the GROUP BY list"):
        spark.sql(f"SELECT name_of(user_id), count(*) FROM events GROUP BY {grouping}").collect()


# --- wrong numbers of keys, which only a worker sees


@pytest.mark.parametrize(
    ("call", "key", "said"),
    [
        ("place_of(id)", ("a", "b"), "was called with 1 key; its PostgresConfig needs 2."),
        ("place_of(id, id)", "a", "was called with 2 keys; its PostgresConfig needs 1."),
    ],
)
def test_a_call_with_another_number_of_keys_fails_before_the_source_is_asked(
    spark: SparkSession, call: str, key: str | tuple[str, ...], said: str
) -> None:
    """Nobody listens at the address of the source."""
    config = PostgresConfig(dsn="postgresql://app@127.0.0.1:1/shop", table="places", key=key, returns="name string")
    register_function(spark, "place_of", config)
    with pytest.raises(PySparkException) as caught:
        spark.sql(f"SELECT {call} FROM range(3)").collect()
    assert (
        f"A SQL function of 'postgres' {said} Call it with as many key columns as the config has, in its order."
    ) in str(caught.value)


def test_a_call_without_keys_fails_also_where_any_number_would_do(spark: SparkSession, table: Table) -> None:
    register_function(spark, "name_of", table({}), returns="string")
    with pytest.raises(PySparkException) as caught:
        spark.sql("SELECT name_of()").collect()
    assert (
        "A SQL function of 'table' was called with 0 keys; its TableConfig needs one or more. Call it with as many key "
        "columns as the config has, in its order."
    ) in str(caught.value)


@pytest.mark.slow
def test_a_side_that_needs_other_keys_is_refused_where_it_can_be_known(spark: SparkSession, table: Table) -> None:
    source = PostgresConfig(dsn="postgresql://app@127.0.0.1:1/shop", table="places", key="id", returns="string")
    fallback = PostgresConfig(dsn="postgresql://app@127.0.0.1:1/shop", table="old", key=("a", "b"))
    said = r"^on_missing is the source 'postgres', which gets 1 key column; its PostgresConfig needs 2\."
    with pytest.raises(ConfigError, match=said):
        register_function(spark, "place_of", source, on_missing=fallback)
    for of, options in ((table({}), {"on_missing": fallback}), (tiers(fallback, table({})), {})):
        register_function(spark, "name_of", of, returns="string", **options)
        with pytest.raises(PySparkException) as caught:
            spark.sql("SELECT name_of('u1')").collect()
        assert "A SQL function of 'table' was called with 1 key; its PostgresConfig needs 2." in str(caught.value)


# --- wrong registrations, on the driver


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", ["", "user-of", "a.b", "7th", "naïve", "f()", None])
def test_a_name_is_one_that_sql_takes(spark: SparkSession, table: Table, name: Any) -> None:
    assert refusal(lambda: register_function(spark, name, table({}), returns="int")) == (
        f"The name of the SQL function is {name!r}; it must consist of letters, digits and '_' and begin with no "
        "digit. For example register_function(spark, 'user_of', 'users')."
    )


def test_a_name_of_a_function_of_spark_is_refused(spark: SparkSession, table: Table) -> None:
    """Spark 4.3 would register it and go on calling its own."""
    assert refusal(lambda: register_function(spark, "Upper", table({}), returns="int")) == (
        "The name of the SQL function is 'Upper', the name of a built-in function of Spark; it must be another. For "
        "example register_function(spark, 'my_Upper', 'users')."
    )


def test_the_first_argument_is_the_session(spark: SparkSession) -> None:
    wrong: Any = "user_of"
    assert refusal(lambda: register_function(wrong, "users", "redis")) == (
        "spark is a str; it must be a SparkSession, as in register_function(spark, 'user_of', 'users')."
    )


def test_the_pandas_carrier_is_refused(spark: SparkSession, table: Table) -> None:
    assert refusal(lambda: register_function(spark, "f", table({}), returns="int", carrier="pandas")) == (
        "carrier is 'pandas'; a SQL function needs 'arrow', because SQL hands keys over as they are, and in pandas an "
        f"integer beside a null is a float, another key. Leave carrier out, or {INSTEAD}."
    )


def test_a_pyspark_without_arrow_udf_is_told_which_has_it(
    spark: SparkSession, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark

    monkeypatch.delattr(F, "arrow_udf")
    monkeypatch.setattr(pyspark, "__version__", "4.0.1")
    assert refusal(lambda: register_function(spark, "f", table({}), returns="int")) == (
        "PySpark is 4.0.1; register_function() needs 4.1 or newer, the first with arrow_udf. Upgrade PySpark, or "
        f"{INSTEAD}."
    )


@pytest.mark.slow
def test_the_way_round_it_is_a_view(spark: SparkSession, events: None, table: Table) -> None:
    """What the two messages above advise."""
    name = enrich(table({"u1": "Ann"}), "user_id", returns="string", carrier="pandas")
    spark.table("events").withColumn("name", name).createOrReplaceTempView("enriched")
    assert [1, 5, 6] == [row.id for row in spark.sql("SELECT id FROM enriched WHERE name = 'Ann'").collect()]


def test_options_and_sources_are_checked_at_the_registration(spark: SparkSession, table: Table) -> None:
    wrong: Any = {"on_timout": "null"}
    with pytest.raises(UnknownOptionError, match=r"has no option 'on_timout'\. Did you mean 'on_timeout'\?"):
        register_function(spark, "f", table({}), returns="int", **wrong)
    with pytest.raises(UnknownConnectorError, match=r"^No connector is named 'reddis'\. Did you mean 'redis'\?"):
        register_function(spark, "f", "reddis")
    assert refusal(lambda: register_function(spark, "f", table({}))) == (
        "The type of the values of 'table' is not known: the source cannot tell it. Declare it, for example "
        "enrich('table', ..., returns='string')."
    )
