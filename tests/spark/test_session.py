"""The session that all other Spark tests build on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.functions import arrow_udf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.smoke]


def test_an_arrow_iterator_udf_gives_each_of_1000_rows_its_value(spark: SparkSession) -> None:
    def double(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            yield pc.multiply(batch, 2)

    rows = spark.range(1000).select("id", arrow_udf(double, "long")("id").alias("twice")).collect()
    assert [(i, 2 * i) for i in range(1000)] == sorted((row.id, row.twice) for row in rows)


def test_the_session_is_of_the_kind_that_was_asked_for(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    kind = "pyspark.sql.connect.session" if request.config.getoption("--connect") else "pyspark.sql.session"
    assert kind == type(spark).__module__
