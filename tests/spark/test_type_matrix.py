"""The matrix of docs/types.md on Spark and real servers: exact, coerced, or the row's error; never another value."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig
from pyspark.sql import types as t

from enrichkit import enrich
from enrichkit.driver import declared
from enrichkit.local import Fault

from ..type_matrix import DOCUMENTS, JSON, POSTGRES, PYTHON, SCHEMA, TEXT, Pair, struct_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from enrichkit.local import HttpService, PostgresServer

pytestmark = pytest.mark.spark


def plain(value: Any) -> Any:
    """*value* as something that equals itself: a NaN does not."""
    if isinstance(value, t.Row):
        return {name: plain(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return bytes(value) if isinstance(value, bytearray) else repr(value)


def rows_of(spark: SparkSession, source: Any, ddl: str, keys: list[Any]) -> dict[Any, t.Row]:
    """The outcomes by key, from one job."""
    frame = spark.createDataFrame([(key,) for key in keys], "k int" if isinstance(keys[0], int) else "k string")
    column = enrich(source, "k", returns=ddl, details=True, max_fallback_ratio=1.0, absent_fields="null")
    return {row.k: row.o for row in frame.coalesce(1).select("k", column.alias("o")).collect()}


def check(spark: SparkSession, pairs: list[Pair], source: Any, keys: list[Any]) -> None:
    """Row *i* holds a value in the field *i* alone, so no answer has most fields; all are looked up in one job."""
    ddl = struct_of(pairs)
    found = rows_of(spark, source, ddl, keys)
    # Through Spark, so that a timestamp is what Spark gives for that instant.
    good = [(key, {f"f{i}": pair.value}) for i, (key, pair) in enumerate(zip(keys, pairs, strict=True)) if pair.ok]
    key_type = "int" if isinstance(keys[0], int) else "string"
    expected = spark.createDataFrame(good, f"k {key_type}, v struct<{ddl}>").collect()
    assert {row.k: plain(row.v) for row in expected} == {key: plain(found[key].value) for key, _ in good}
    assert {"ok"} == {found[key].status for key, _ in good}
    bad = {key: (i, pair) for i, (key, pair) in enumerate(zip(keys, pairs, strict=True)) if not pair.ok}
    assert dict.fromkeys(bad, ("error", None)) == {key: (found[key].status, found[key].value) for key in bad}
    for key, (index, pair) in bad.items():
        # The decoder speaks of a part of the value, a connector that cannot read it of a column.
        assert re.match(rf"PermanentError: The (part|column) 'f{index}['\[]", found[key].error), found[key].error
        assert pair.result.problem in found[key].error


@pytest.fixture(autouse=True)
def settings(conf: Callable[[str, str], None]) -> None:
    conf("spark.sql.session.timeZone", "America/St_Johns")


def test_a_value_of_a_python_connector(spark: SparkSession, table: Callable[..., Any]) -> None:
    check(spark, PYTHON, table({i: {f"f{i}": pair.given} for i, pair in enumerate(PYTHON)}), [*range(len(PYTHON))])


@pytest.mark.service
def test_a_field_of_a_json_answer(spark: SparkSession, http_service: HttpService) -> None:
    keys = [f"key{i:03}" for i in range(len(JSON))]
    bodies = [b'{"f%d": %s}' % (i, pair.given) for i, pair in enumerate(JSON)]
    http_service.script(*(Fault(match=key, body=body) for key, body in zip(keys, bodies, strict=True)))
    check(spark, JSON, HttpConfig(url=f"{http_service.url}/{uuid.uuid4().int}/{{}}"), keys)


@pytest.mark.service
def test_a_field_of_a_redis_hash(spark: SparkSession, redis_url: str) -> None:
    keys = [f"hash{i}" for i in range(len(TEXT))]
    with redis.Redis.from_url(redis_url) as client:
        for i, (key, pair) in enumerate(zip(keys, TEXT, strict=True)):
            client.hset(key, f"f{i}", pair.given)
    check(spark, TEXT, RedisConfig(url=redis_url, kind="hash"), keys)


@pytest.mark.service
def test_a_column_of_a_postgres_table(
    spark: SparkSession, postgres_server: PostgresServer, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ", ".join(f"f{i} {pair.column}" for i, pair in enumerate(POSTGRES))
    rows = "; ".join(f"INSERT INTO zoo (id, f{i}) VALUES ({i}, {pair.given})" for i, pair in enumerate(POSTGRES))
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute(f"{SCHEMA}; CREATE TABLE zoo (id int PRIMARY KEY, {columns}); {rows}", database=database)
    config = PostgresConfig(dsn=postgres_dsn, table="zoo")
    # The driver, which compares the types with the table's, refuses no type in which a value can be read.
    enrich(config, "key", returns=", ".join(f"f{i} {pair.declared}" for i, pair in enumerate(POSTGRES) if pair.ok))
    monkeypatch.setattr(declared, "check_declared", lambda *_: None)  # so that the worker finds the others
    check(spark, POSTGRES, config, [*range(len(POSTGRES))])


@pytest.mark.service
def test_a_bad_json_document_is_its_own_keys_error_and_the_call_survives(spark: SparkSession, redis_url: str) -> None:
    keys = [f"doc{i}" for i in range(len(DOCUMENTS))]
    with redis.Redis.from_url(redis_url) as client:
        client.mset({key: pair.given for key, pair in zip(keys, DOCUMENTS, strict=True)})
    found = rows_of(spark, RedisConfig(url=redis_url, kind="json"), "int", keys)
    expected = [
        ("ok", pair.value, None)
        if pair.ok
        else ("error", None, f"The value does not fit the declared type int: {pair.result.problem}; it must be ")
        for pair in DOCUMENTS
    ]
    assert expected == [
        (row.status, row.value, None if row.error is None else row.error[len("PermanentError: ") :][: len(text or "")])
        for row, (_, _, text) in zip([found[key] for key in keys], expected, strict=True)
    ]
