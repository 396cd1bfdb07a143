"""A misspelt field or path is told, where it would be a null or a miss in every row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_redis import RedisConfig
from pyspark.errors import PythonException

from enrichkit import connector, enrich, enrich_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from enrichkit.local import HttpService

pytestmark = pytest.mark.spark

NOMBRE = (
    "http: none of {which} has the declared field 'nombre', so it would be null in every row. Did you mean 'name'? "
    "They have 'key', 'name', 'score'. Correct returns=, or set absent_fields='null' if that is right."
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "which"), [(5000, "the first 20 answers of this task"), (3, "the answers of this task (3 in all)")]
)
def test_a_misspelt_field_fails_the_task(spark: SparkSession, http_service: HttpService, rows: int, which: str) -> None:
    config = HttpConfig(url=http_service.url + "/{}", returns="key string, nombre string")
    ids = spark.range(0, rows, 1, 1)
    text = NOMBRE.format(which=which)
    with pytest.raises(PythonException) as raised:
        ids.select(enrich(config, "id", on_error="null")).collect()
    assert text in str(raised.value)
    with pytest.raises(PythonException) as raised:
        enrich_frame(ids, config, on="id", ordered=False).collect()
    assert text in str(raised.value)
    meant = ids.select(enrich(config, "id", absent_fields="null").alias("found")).collect()
    assert {(row.found.key, row.found.nombre) for row in meant} == {(str(n), None) for n in range(rows)}


@pytest.mark.slow
def test_a_misspelt_path_fails_the_task(spark: SparkSession, http_service: HttpService) -> None:
    config = HttpConfig(url=http_service.url + "/{}", value="nam")
    ids = spark.range(0, 30, 1, 1)
    with pytest.raises(PythonException) as raised:
        ids.select(enrich(config, "id")).collect()
    assert (
        "http: none of the first 20 answers of this task has a value at 'nam', so every key would be missing. Did you "
        "mean 'name'? Where the path ends they have 'key', 'name', 'score'. Correct the path in the config, or set "
        "absent_fields='null' if that is right."
    ) in str(raised.value)
    meant = enrich(config, "id", absent_fields="null", details=True).alias("found")
    assert {row.found.status for row in ids.select(meant).collect()} == {"missing"}


@pytest.mark.slow
def test_a_misspelt_field_of_a_function_or_of_a_document_in_redis_fails_the_task(
    spark: SparkSession, redis_url: str
) -> None:
    @connector("rates", returns="code string, rat double")
    async def rates(code: int) -> dict[str, Any]:
        return {"code": str(code), "rate": 1.5}

    with redis.Redis.from_url(redis_url, protocol=2) as client:
        client.mset({f"user:{n}": b'{"name": "Ann"}' for n in range(30)})
    documents = RedisConfig(url=redis_url, key="user:{}", kind="json", returns="nam string")
    ids = spark.range(0, 30, 1, 1)
    beginning = "none of the first 20 answers of this task has the declared field"
    for source, text in (
        ("rates", f"rates: {beginning} 'rat', so it would be null in every row. Did you mean 'rate'? They have "),
        (
            documents,
            f"redis: {beginning} 'nam', so it would be null in every row. Did you mean 'name'? They have 'name'.",
        ),
    ):
        with pytest.raises(PythonException) as raised:
            ids.select(enrich(source, "id")).collect()
        assert text in str(raised.value)
