"""Declared types: DDL and other notations -> the Spark type and the Arrow type that a worker builds."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from enrichkit.errors import ConfigError
from enrichkit.outcome import Outcomes
from enrichkit.values.ddl import fields_of
from enrichkit.values.decode import decoder
from enrichkit.values.types import arrow_type_of, ddl_of, details_of, spark_name
from enrichkit.worker.assemble import assemble_details

from .type_matrix import PAGE, SECTIONS, page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUPPORTED = (
    "string, binary, boolean, tinyint, smallint, int, bigint, float, double, decimal, date, timestamp, timestamp_ntz, "
    "time, interval day to second, array, map with plain keys, struct, variant and void"
)
EXAMPLE = "for example 'name string, tier int' for a struct, or 'bigint'"
BINARY = [pa.field(name, pa.binary(), nullable=False) for name in ("value", "metadata")]
VARIANT = pa.struct([BINARY[0], BINARY[1].with_metadata({"variant": "true"})])
PLAIN = [
    ("string", pa.string()),
    ("string collate UNICODE_CI", pa.string()),
    ("binary", pa.binary()),
    ("boolean", pa.bool_()),
    ("tinyint", pa.int8()),
    ("smallint", pa.int16()),
    ("int", pa.int32()),
    ("BIGINT", pa.int64()),
    ("float", pa.float32()),
    ("double", pa.float64()),
    ("decimal(10,2)", pa.decimal128(10, 2)),
    ("date", pa.date32()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestamp_ntz", pa.timestamp("us")),
    ("time", pa.time64("ns")),
    ("interval day to second", pa.duration("us")),
    ("void", pa.null()),
    ("variant", VARIANT),
]


@pytest.mark.spark
@pytest.mark.parametrize(("ddl", "expected"), PLAIN)
def test_plain_ddl_has_an_arrow_type_that_a_worker_builds(spark: SparkSession, ddl: str, expected: pa.DataType) -> None:
    spark_type, arrow_type = arrow_type_of(ddl)

    assert arrow_type == expected
    assert spark_type == t.DataType.fromDDL(ddl)
    for encoding in ("python", "json", "text"):
        assert decoder(arrow_type, encoding)([None]) == ([None], {})


@pytest.mark.spark
def test_fields_without_struct_are_a_struct_and_everything_is_nullable(spark: SparkSession) -> None:
    ddl = "name string NOT NULL, tags array<string>, scores map<string, struct<points: int NOT NULL>>"

    spark_type, arrow_type = arrow_type_of(ddl)

    assert spark_type == t.StructType(
        [
            t.StructField("name", t.StringType()),
            t.StructField("tags", t.ArrayType(t.StringType())),
            t.StructField(
                "scores", t.MapType(t.StringType(), t.StructType([t.StructField("points", t.IntegerType())]))
            ),
        ]
    )
    points = pa.struct([("points", pa.int32())])
    assert arrow_type == pa.struct(
        [("name", pa.string()), ("tags", pa.list_(pa.string())), ("scores", pa.map_(pa.string(), points))]
    )


@pytest.mark.spark
@pytest.mark.filterwarnings(
    "ignore:It is preferred to specify type hints"
)  # strings here, which the UDF cannot resolve
def test_the_types_survive_spark(spark: SparkSession) -> None:
    """Spark takes the Arrow array for a column of the Spark type."""
    from pyspark.sql.functions import ArrowUDFType, arrow_udf  # only in the versions that have it

    ddl = "name string, at timestamp, amounts array<decimal(10,2)>, levels map<string,int>, day date"
    spark_type, arrow_type = arrow_type_of(ddl)

    def build(batches: Any) -> Any:
        row = ("Ann", dt.datetime(2024, 1, 31, tzinfo=dt.UTC), [decimal.Decimal("1.50")], [("a", 1)], None)
        value = dict(zip(arrow_type.names, row, strict=True))
        return (pa.array([value, None][: len(batch)], arrow_type) for batch in batches)

    frame = spark.range(0, 2, 1, 1).select(arrow_udf(build, spark_type, ArrowUDFType.SCALAR_ITER)("id").alias("u"))

    first, second = frame.selectExpr("u", "u is null as n", "unix_micros(u.at) as at").collect()
    assert (first.u.name, first.u.amounts, first.u.levels, first.u.day) == (
        "Ann",
        [decimal.Decimal("1.50")],
        {"a": 1},
        None,
    )
    assert (first.at, first.n, second.n) == (1706659200_000_000, False, True)


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (t.DecimalType(50, 2), "decimal(50,2)"),
        (pa.decimal256(39, 0), "decimal(39,0)"),
        (t.DecimalType(2, 5), "decimal(2,5)"),
    ],
    ids=["decimal 50", "decimal256", "scale"],
)
def test_a_decimal_of_too_many_digits_is_refused(declared: Any, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of(declared)

    assert str(error.value) == (
        f"returns declares {name}; a decimal has 1 to 38 digits, and at most as many after the point. Declare fewer "
        "digits, or a string."
    )


@pytest.mark.spark
@pytest.mark.parametrize(
    ("ddl", "name", "instead"),
    [
        ("char(3)", "char(3)", "declare string"),
        ("a struct<b: varchar(3)>", "varchar(3) at 'a.b'", "declare string"),
        ("array<char(3)>", "char(3) at '[]'", "declare string"),
        ("m map<string, char(3)>", "char(3) at 'm{value}'", "declare string"),
        ("interval year to month", "interval year to month", "declare int, a number of months"),
        ("interval day to hour", "interval day to hour", "declare interval day to second"),
        ("time(3)", "time(3)", "declare time(6)"),
    ],
)
def test_a_type_that_a_worker_does_not_build_is_refused_by_name(
    spark: SparkSession, ddl: str, name: str, instead: str
) -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of(ddl)

    assert str(error.value) == (
        f"returns declares {name}, which a worker cannot build; allowed are {SUPPORTED}. For this one, {instead}."
    )


@pytest.mark.spark
def test_what_is_no_ddl_is_refused_with_the_reason_that_spark_gives(spark: SparkSession) -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of("nam strin")

    assert str(error.value) == (
        f"returns is 'nam strin', which is no Spark type; it must be DDL, {EXAMPLE}. Spark says: "
        '[UNSUPPORTED_DATATYPE] Unsupported data type "STRIN". SQLSTATE: 0A000 (line 1, pos 4)'
    )


@pytest.mark.spark
@pytest.mark.parametrize(("ddl", "where"), [("", ""), ("a struct<>", " at 'a'")])
def test_a_struct_without_fields_is_refused(spark: SparkSession, ddl: str, where: str) -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of(ddl)

    assert str(error.value) == (
        f"returns declares a struct{where} without fields; it needs one, {EXAMPLE}. Name a field."
    )


def test_ddl_without_a_session_says_that_it_needs_one() -> None:
    """In a process of its own, because other tests start a session."""
    code = (
        "from enrichkit.values.types import arrow_type_of\ntry: arrow_type_of('int')\nexcept ValueError as e: print(e)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == (
        "returns is 'int', and DDL is parsed by Spark, but no Spark session is active. Start one first with "
        "SparkSession.builder.getOrCreate(), or pass a type object such as pyspark.sql.types.LongType().\n"
    )


def test_a_type_object_needs_no_session() -> None:
    assert arrow_type_of(t.LongType()) == (t.LongType(), pa.int64())


def test_two_fields_of_one_name_are_refused() -> None:
    twice = t.StructType([t.StructField("a", t.LongType()), t.StructField("a", t.StringType())])

    with pytest.raises(ConfigError) as error:
        arrow_type_of(t.StructType([t.StructField("user", twice)]))

    assert str(error.value) == ("returns declares the field 'a' at 'user' twice; names must differ. Rename one.")


def test_a_map_with_nested_keys_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of(t.MapType(t.ArrayType(t.LongType()), t.LongType()))

    assert str(error.value) == (
        "returns declares map<array<bigint>,bigint>; the key of a map must be a plain type, for example string. "
        "Declare an array of structs with the fields key and value."
    )


def test_an_arrow_schema_is_a_struct() -> None:
    schema = pa.schema([("name", pa.string()), ("at", pa.timestamp("us", tz="Europe/Berlin"))])

    assert arrow_type_of(schema) == (
        t.StructType([t.StructField("name", t.StringType()), t.StructField("at", t.TimestampType())]),
        pa.struct([("name", pa.string()), ("at", pa.timestamp("us", tz="UTC"))]),
    )


def test_an_arrow_type_that_spark_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of(pa.list_(pa.uint64()))

    assert str(error.value) == (
        "returns holds the Arrow type list<item: uint64>, parts of which have no Spark type; allowed are the Arrow "
        f"types of {SUPPORTED}. Write it as DDL."
    )


@pytest.mark.parametrize("returns", [None, 5, [str], {"name": str}])
def test_what_is_no_type_at_all_is_refused(returns: Any) -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of(returns)

    assert str(error.value) == (
        f"returns is {returns!r}, which is no Spark type; it must be DDL text, {EXAMPLE}, a PySpark type, an Arrow "
        "type or schema, or a dataclass or TypedDict with annotated fields. Write it as DDL."
    )


def test_a_variant_is_told_from_a_struct_of_the_same_fields() -> None:
    """Also after its journey to the worker."""
    variant = pickle.loads(pickle.dumps(arrow_type_of(t.VariantType())[1]))
    struct = arrow_type_of(t.StructType([t.StructField(field.name, t.BinaryType()) for field in BINARY]))[1]

    assert ("variant", "struct<value:binary,metadata:binary>") == (spark_name(variant), spark_name(struct))
    value = {"value": b"a", "metadata": b"b"}
    assert decoder(struct, "python")([value]) == ([value], {})
    assert decoder(variant, "python")([value]) != ([value], {})


@pytest.mark.spark
def test_the_ddl_of_a_type_gives_the_type_back(spark: SparkSession) -> None:
    ddl = "struct<a:array<map<string,decimal(5,2)>>,`b c`:struct<```\u540d```:variant,d:interval day to second>>"

    assert ddl == ddl_of(arrow_type_of(ddl)[0])


def test_the_page_on_types_has_the_matrix() -> None:
    """`python tests/type_matrix.py` writes it."""
    text = PAGE.read_text()

    assert page(text) == text
    lines = {pair.line(name) for name, (pairs, _) in SECTIONS.items() for pair in pairs}
    assert lines <= {*text.splitlines()}
    assert len(lines) >= 60


def test_the_details_have_the_fields_that_assemble_makes() -> None:
    spark_type, arrow_type = arrow_type_of(t.LongType())

    column = assemble_details(Outcomes([], 0, details=True), pa.array([], pa.int32()), arrow_type)

    assert arrow_type_of(details_of(spark_type))[1] == column.type


def test_importing_enrichkit_loads_no_heavy_package() -> None:
    code = "import enrichkit, sys; print({'pyarrow', 'pandas', 'pyspark'} & {*sys.modules})"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("ddl", "fields"),
    [
        ("struct<a:int>", {"a": "int"}),
        ("struct<a:decimal(10,2),b:string>", {"a": "decimal(10,2)", "b": "string"}),
        ("struct<`a ``b``,c:d`:map<string,array<int>>,e:date>", {"a `b`,c:d": "map<string,array<int>>", "e": "date"}),
        ("bigint", {}),
        ("struct<>", {}),
        ("struct<no struct>", {}),
        ("struct<a:struct<`x<y`:int>,b:int>", {"a": "struct<`x<y`:int>", "b": "int"}),
        ("struct<a:struct<`x)`:int,y:int>,b:int>", {"a": "struct<`x)`:int,y:int>", "b": "int"}),
        (
            "struct<a:array<struct<b:struct<```<,``(`:int>>>,c:int>",
            {"a": "array<struct<b:struct<```<,``(`:int>>>", "c": "int"},
        ),
    ],
)
def test_the_fields_of_a_struct_are_read(ddl: str, fields: dict[str, str]) -> None:
    assert fields == fields_of(ddl)
