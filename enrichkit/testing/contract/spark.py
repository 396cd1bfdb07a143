"""Checks through Spark itself: the declared type holds for the values, and rows get their own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from .base import Fixtures
from .source import parts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...connector import Connector, Key
    from .source import Source

__all__ = ["SparkChecks"]


class SparkChecks(Fixtures):
    """These need the fixture `spark`, see `enrichkit.testing.fixtures`; the session is shared by all tests."""

    @pytest.mark.spark
    def test_the_values_fit_the_declared_type(self, source: Source, spark: SparkSession) -> None:
        """Look at `describe`, or at `returns`: a value that does not fit is an error of its key."""
        from ...decode import decoder
        from ...types import arrow_type_of

        described = source.connector.config.returns or source.run(source.connector.describe())
        values = list(source.look_up(source.keys).values())
        _, errors = decoder(arrow_type_of(described)[1], source.connector.encoding)(values)
        assert not errors, f"{described}: {[str(error) for error in errors.values()]}"

    @pytest.mark.spark
    def test_each_row_gets_its_own_value(
        self, connector: Connector[Any], known: dict[Key, Any], missing_key: Key, spark: SparkSession
    ) -> None:
        """Look at the checks without Spark first; if they pass, at how class and config travel to the workers."""
        from ... import enrich

        shape = parts_of(missing_key)
        nulls = [tuple(None if n == at else part for n, part in enumerate(shape)) for at in range(len(shape))]
        keys = [parts_of(key) for key in known for _ in range(3)] + [shape] * 2 + nulls
        random.Random(1).shuffle(keys)  # noqa: S311  # the same order in each run
        names = [f"key{n}" for n in range(len(shape))]
        rows = spark.createDataFrame([(n, *key) for n, key in enumerate(keys)], ["row", *names]).repartition(2)
        enriched = rows.select("row", enrich(connector.config, *names, details=True).alias("found")).collect()

        assert sorted(row.row for row in enriched) == list(range(len(keys)))
        found = {row.row: row.found for row in enriched}
        for n, key in enumerate(keys):
            whole = key if isinstance(missing_key, tuple) else key[0]
            if None in key:
                expected: tuple[str, Any] = ("null_key", None)
            else:
                expected = ("ok", known[whole]) if whole in known else ("missing", None)
            assert (found[n].status, plain(found[n].value, expected[1])) == expected, found[n].error


def plain(value: Any, like: Any) -> Any:
    """Return what Spark gives as what the fixture `known` says: a mapping for a struct."""
    from pyspark.sql import Row

    if isinstance(value, Row) and isinstance(like, Mapping):
        return {name: plain(part, like.get(name)) for name, part in value.asDict().items()}
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime) and isinstance(like, datetime) and like.tzinfo and not value.tzinfo:
        return value.astimezone(like.tzinfo)  # Spark collects an instant in the zone of this machine
    if isinstance(value, list) and isinstance(like, list):
        return [plain(part, other) for part, other in itertools.zip_longest(value, like)]
    return value
