"""The type of a value, said with annotations or in a config: what becomes of it, and what is refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import pickle
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    NamedTuple,
    NewType,
    NotRequired,
    Required,
    TypedDict,
    TypeVar,
)

import pyarrow as pa
import pytest
from enrichkit_http import HttpConfig
from enrichkit_redis import RedisConfig
from pyspark.sql import types as t

from enrichkit.driver.planner import make_plan
from enrichkit.errors import ConfigError
from enrichkit.values.types import arrow_type_of, ddl_of, spark_name

UserId = NewType("UserId", int)
T = TypeVar("T")

ALLOWED = (
    "allowed are str, bytes, bool, int, float, Decimal, UUID, date, datetime, time, timedelta, list[T], dict[K, V], "
    "T | None, Annotated[T, 'DDL'], and dataclasses, TypedDicts and NamedTuples of such fields."
)

OF_WHAT, MAP_OF_WHAT = " Say of what, as in list[str].", " Say of what, as in dict[str, int]."


@dataclasses.dataclass
class Address:
    street: str
    since: dt.date
    floors: ClassVar[int] = 3


class Point(NamedTuple):
    x: float
    y: float


class Person(TypedDict):
    name: Required[str]


class User(Person, total=False):
    tags: list[str]
    scores: dict[str, float]
    address: Address | None
    balance: NotRequired[Decimal]
    at: Point


@dataclasses.dataclass
class Node:
    name: str
    children: list[Node]


@dataclasses.dataclass
class Lost:
    value: Nowhere  # type: ignore[name-defined]  # noqa: F821  # what the test is about


@dataclasses.dataclass
class Page(Generic[T]):
    items: list[T]


@dataclasses.dataclass
class Inner:
    parts: dict[str, list[set[int]]]


@dataclasses.dataclass
class Wrong:
    inner: Inner


@dataclasses.dataclass
class Unbuildable:
    balance: Annotated[str, t.VarcharType(3)]


@dataclasses.dataclass
class Bare:
    name: str
    tags: typing.List  # type: ignore[type-arg]  # noqa: UP006  # what the test is about


class BareInside(TypedDict):
    scores: list[Mapping]  # type: ignore[type-arg]  # likewise


class Typed(TypedDict):
    tier: Annotated[int, "tinyint"]
    at: Annotated[dt.datetime, "timestamp_ntz"]


class Documented(TypedDict):
    tier: Annotated[int, "level"]


def test_a_typed_dict_a_dataclass_and_a_named_tuple_are_structs() -> None:
    spark_type, arrow_type = arrow_type_of(User)

    assert spark_type.simpleString() == (
        "struct<name:string,tags:array<string>,scores:map<string,double>,"
        "address:struct<street:string,since:date>,balance:decimal(38,18),at:struct<x:double,y:double>>"
    )
    assert spark_name(arrow_type) == spark_type.simpleString()
    assert all(field.nullable for field in typing.cast("t.StructType", spark_type))


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str, "string"),
        (uuid.UUID, "string"),
        (bytes, "binary"),
        (bool, "boolean"),
        (int, "bigint"),
        (float, "double"),
        (Decimal, "decimal(38,18)"),
        (dt.date, "date"),
        (dt.datetime, "timestamp"),
        (dt.time, "time(6)"),
        (dt.timedelta, "interval day to second"),
        (type(None), "void"),
        (UserId, "bigint"),
        (str | None, "string"),
        (typing.Optional[int], "bigint"),  # noqa: UP045  # the old spelling is still about
        (list[str | None], "array<string>"),
        (Sequence[dt.date], "array<date>"),
        (tuple[int, ...], "array<bigint>"),
        (dict[int, list[bool]], "map<bigint,array<boolean>>"),
        (Mapping[str, Point], "map<string,struct<x:double,y:double>>"),
        (Final[str], "string"),
        (Annotated[str, 7, ...], "string"),
        (Annotated[int, t.ShortType()], "smallint"),
        (Annotated[Decimal, pa.decimal128(10, 2)], "decimal(10,2)"),
        (list[Annotated[dt.datetime, t.TimestampNTZType()]], "array<timestamp_ntz>"),
        (Annotated[Any, t.VariantType()], "variant"),
    ],
    ids=str,
)
def test_an_annotation_has_a_spark_type(annotation: Any, expected: str) -> None:
    assert arrow_type_of(annotation)[0].simpleString() == expected


@pytest.mark.parametrize(
    ("annotation", "where", "shown", "hint"),
    [
        (set[str], "returns", "set[str]", ""),
        (object, "returns", "object", ""),
        (list, "returns", "list", OF_WHAT),
        (dict, "returns", "dict", MAP_OF_WHAT),
        (Wrong, "The field 'inner.parts{value}[]' of returns", "set[int]", ""),
        (dict[str, int | str], "The field '{value}' of returns", "int | str", ""),
        (Page[int], "returns", str(Page[int]), ""),
        (tuple[int, str], "returns", "tuple[int, str]", ""),
        (typing.List, "returns", "typing.List", OF_WHAT),  # noqa: UP006  # the old spelling is still about
        (typing.Sequence, "returns", "typing.Sequence", OF_WHAT),
        (Sequence, "returns", "Sequence", OF_WHAT),
        (typing.Dict, "returns", "typing.Dict", MAP_OF_WHAT),  # noqa: UP006  # likewise
        (typing.Mapping, "returns", "typing.Mapping", MAP_OF_WHAT),
        (types.GenericAlias(dict, (str,)), "returns", "dict[str]", MAP_OF_WHAT),
        (typing.Tuple, "returns", "typing.Tuple", ""),  # noqa: UP006  # likewise
        (Bare, "The field 'tags' of returns", "typing.List", OF_WHAT),
        (BareInside, "The field 'scores[]' of returns", "Mapping", MAP_OF_WHAT),
    ],
)
def test_an_annotation_without_a_spark_type_is_refused_by_its_place(
    annotation: Any, where: str, shown: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of(annotation)

    assert str(error.value) == (
        f"{where} is annotated as {shown}, which has no Spark type; {ALLOWED}{hint} Change it, or write the type as "
        "DDL."
    )


def test_a_time_of_day_tells_which_pyspark_has_a_type_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(t, "TimeType", raising=False)  # as before 4.1

    with pytest.raises(ConfigError) as error:
        arrow_type_of(dt.time)

    assert str(error.value) == (
        f"returns is annotated as time, which has no Spark type; {ALLOWED} PySpark has a time type from 4.1 on. "
        "Change it, or write the type as DDL."
    )


def test_a_class_that_is_a_part_of_itself_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of(Node)

    assert str(error.value) == (
        "The field 'children[]' of returns is annotated as Node, which is a part of itself; a Spark type ends "
        "somewhere. Leave the field out, or annotate it as str and parse it in Spark."
    )


def test_annotations_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of(list[Lost])

    assert str(error.value) == (
        "The field '[]' of returns is Lost, whose annotations cannot be read: name 'Nowhere' is not defined. Define "
        "what they name at the top of the module, not in a function, or write the type as DDL."
    )


def test_a_type_in_annotated_that_a_worker_does_not_build_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        arrow_type_of(Unbuildable)

    assert str(error.value).startswith(
        "returns declares varchar(3) at 'balance', which a worker cannot build; allowed are string, binary, "
    )


@pytest.mark.spark
def test_ddl_in_annotated_is_read_and_checked(spark: Any) -> None:
    assert arrow_type_of(Typed)[0].simpleString() == "struct<tier:tinyint,at:timestamp_ntz>"
    with pytest.raises(ConfigError) as error:
        arrow_type_of(Documented)
    assert str(error.value).startswith(
        "The field 'tier' of returns is Annotated with 'level': returns is 'level', which is no Spark type; it must be "
        "DDL, for example 'name string, tier int' for a struct, or 'bigint'. Spark says: "
    )


SPELLINGS = [Address, pa.schema([("street", pa.string()), ("since", pa.date32())]), arrow_type_of(Address)[0]]


@pytest.mark.parametrize("returns", SPELLINGS, ids=["dataclass", "arrow", "spark"])
def test_a_connector_gets_ddl_whatever_the_config_holds(returns: Any) -> None:
    """And the plan is that of any other spelling, so engine and cache are shared."""
    ddl = "struct<street:string,since:date>"
    config = RedisConfig(kind="json", returns=returns)
    assert hash(config) == hash(pickle.loads(pickle.dumps(config)))

    in_config, spark_type = make_plan(config, 1, None, {})
    in_call, _ = make_plan(RedisConfig(kind="json"), 1, returns, {})
    other, _ = make_plan(RedisConfig(kind="json"), 1, SPELLINGS[0], {})

    assert (ddl, ddl, ddl) == (in_config.config.returns, in_call.config.returns, ddl_of(spark_type))
    assert {other.engine_key} == {in_config.engine_key, in_call.engine_key}
    assert {other.cache_key} == {in_config.cache_key, in_call.cache_key}
    assert pickle.loads(pickle.dumps(in_config.config)) == in_config.config


def test_the_call_comes_before_the_config() -> None:
    plan, spark_type = make_plan(RedisConfig(returns=Address), 1, t.LongType(), {})

    assert ("bigint", t.LongType(), pa.int64()) == (plan.config.returns, spark_type, plan.value_type)


def test_the_http_connector_reads_text_when_a_type_object_says_so() -> None:
    config = HttpConfig(url="http://localhost:1/{}", returns=t.StringType())

    text, _ = make_plan(config, 1, None, {})
    document, _ = make_plan(config, 1, Address, {})

    assert ["text", "json"] == [plan.connector(plan.config).encoding for plan in (text, document)]


def test_a_fallback_declares_its_type_in_any_spelling() -> None:
    replica = RedisConfig(kind="json", key="replica:{}", returns=Address)

    plan, _ = make_plan(RedisConfig(kind="json"), 1, SPELLINGS[1], {"on_error": replica})

    assert ["struct<street:string,since:date>"] == [stage.config.returns for stage in plan.fallbacks]


@pytest.mark.parametrize("name", ["plain", "first name", "名", "a`b", "1st", "a.b"])
def test_the_name_of_a_field_is_quoted_in_ddl_where_it_must_be(name: str) -> None:
    ddl = ddl_of(t.StructType([t.StructField(name, t.MapType(t.StringType(), t.ArrayType(t.LongType())))]))

    quoted = name if name == "plain" else f"`{name.replace('`', '``')}`"
    assert f"struct<{quoted}:map<string,array<bigint>>>" == ddl


def test_a_literal_is_the_type_of_its_values() -> None:
    assert t.StringType() == arrow_type_of(typing.Literal["good", "bad"])[0]
    assert t.ArrayType(arrow_type_of(int)[0]) == arrow_type_of(list[typing.Literal[1, 2]])[0]


def test_a_literal_of_values_of_two_types_has_no_type() -> None:
    with pytest.raises(ConfigError, match=r"is annotated as typing\.Literal"):
        arrow_type_of(typing.Literal["good", 1])
