"""Checks that use Spark: the values fit the declared type, and each row gets the value of its own key."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from .base import Fixtures
from .messages import short
from .source import parts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...interface import Connector, Key
    from .source import Source

__all__ = ["SparkChecks"]


class SparkChecks(Fixtures):
    """Checks that need the fixture `spark` of `enrichkit.testing.fixtures`, a session that all tests share."""

    @pytest.mark.spark
    def test_the_values_fit_the_declared_type(self, source: Source, spark: SparkSession) -> None:
        """Look at `describe`, or at `returns`: a lookup whose value does not fit the declared type fails."""
        from ...values.decode import decoder
        from ...values.types import arrow_type_of

        described = source.connector.config.returns or source.run(source.connector.describe())
        values = list(source.look_up(source.keys).values())
        _, errors = decoder(arrow_type_of(described)[1], source.connector.encoding)(values)
        assert not errors, (
            f"All known values must fit the declared type {described!r}; the errors are "
            f"{short([str(error) for error in errors.values()])}. Correct `describe`, or `returns` in the config."
        )

    @pytest.mark.spark
    def test_each_row_gets_its_own_value(
        self, connector: Connector[Any], known: dict[Key, Any], missing_key: Key, spark: SparkSession
    ) -> None:
        """Look at failures of the checks without Spark first, then at how Spark pickles the class and the config."""
        from ... import enrich

        shape = parts_of(missing_key)
        nulls = [tuple(None if n == at else part for n, part in enumerate(shape)) for at in range(len(shape))]
        keys = [parts_of(key) for key in known for _ in range(3)] + [shape] * 2 + nulls
        random.Random(1).shuffle(keys)  # noqa: S311  # the fixed seed gives the same order in each run
        names = [f"key{n}" for n in range(len(shape))]
        rows = spark.createDataFrame([(n, *key) for n, key in enumerate(keys)], ["row", *names]).repartition(2)
        enriched = rows.select("row", enrich(connector.config, *names, details=True).alias("outcome")).collect()

        numbers = sorted(row.row for row in enriched)
        assert numbers == list(range(len(keys))), (
            f"Each of {len(keys)} rows must come out once; there came {len(numbers)} with the numbers "
            f"{short(numbers)}. Look at what the connector does to the process: an engine neither drops nor "
            "repeats a row by itself."
        )
        outcomes = {row.row: row.outcome for row in enriched}
        for n, key in enumerate(keys):
            whole = key if isinstance(missing_key, tuple) else key[0]
            if None in key:
                expected: tuple[str, Any] = ("null_key", None)
            else:
                expected = ("ok", known[whole]) if whole in known else ("missing", None)
            outcome = outcomes[n]
            got = outcome.status, plain(outcome.value, expected[1])
            assert got == expected, (
                f"Each row must have the status and value of its own key; the row with the key {short(key)} has "
                f"{short(got)} instead of {short(expected)}, and its error is {outcome.error}. Look at failures of the "
                "checks without Spark first, then at how Spark pickles the class and the config."
            )


def plain(value: Any, like: Any) -> Any:
    """Return *value*, which Spark has returned, in the form of *like*, the value in the fixture `known`."""
    from pyspark.sql import Row

    if isinstance(value, Row) and isinstance(like, Mapping):
        return {name: plain(part, like.get(name)) for name, part in value.asDict().items()}
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime) and isinstance(like, datetime) and like.tzinfo and not value.tzinfo:
        return value.astimezone(like.tzinfo)  # Spark returns the local time of this machine
    if isinstance(value, list) and isinstance(like, list):
        return [plain(part, other) for part, other in itertools.zip_longest(value, like)]
    return value
