"""Whatever a connector answers, no value lands on the wrong row: a mapping in any order is right, all else fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit import Call, Connector, ConnectorConfig, enrich

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@dataclass(frozen=True, kw_only=True)
class OddConfig(ConnectorConfig):
    """The source answers in an odd *way*."""

    way: str
    returns: str | None = "string"


class OddConnector(Connector[OddConfig]):
    """Knows `v<key>` for every key, and says so in ways that a connector may or may not."""

    name = "odd"
    config_class = OddConfig
    batch_size = 10
    max_batch_size = 10

    async def fetch_many(self, keys: Sequence[int], call: Call) -> Any:
        right = {key: f"v{key}" for key in keys}
        half = dict(list(right.items())[::2])
        match self.config.way:
            case "reversed":
                return dict(reversed(right.items()))
            case "shuffled":
                return dict(sorted(right.items(), key=lambda item: hash(item[1])))
            case "own mapping":
                from types import MappingProxyType

                return MappingProxyType(dict(reversed(right.items())))
            case "half":
                return dict(reversed(half.items()))
            case "half and extra":
                return half | {-1: "v-1"}
            case "texts":
                return {str(key): value for key, value in right.items()}
            case "list":
                return list(right.values())
            case "short list":
                return list(right.values())[1:]
            case "none":
                return None
            case "generator":
                return (value for value in right.values())
        raise AssertionError(self.config.way)


def rows_of(spark: SparkSession, way: str, carrier: str = "arrow") -> DataFrame:
    return spark.range(0, 200, 1, 4).select("id", enrich(OddConfig(way=way), "id", carrier=carrier))


@pytest.mark.parametrize("way", ["reversed", "shuffled", "own mapping"])
def test_the_order_of_a_mapping_means_nothing(spark: SparkSession, way: str, carrier: str) -> None:
    rows = rows_of(spark, way, carrier).collect()
    assert [(key, f"v{key}") for key in range(200)] == sorted((row.id, row.odd) for row in rows)


def test_a_key_that_is_left_out_is_a_miss(spark: SparkSession, carrier: str) -> None:
    rows = {row.id: row.odd for row in rows_of(spark, "half", carrier).collect()}
    assert set(range(200)) == rows.keys()
    assert 100 == sum(value is not None for value in rows.values())
    assert all(value in (None, f"v{key}") for key, value in rows.items())


EXTRA = (
    "odd: fetch_many returned {extra} key(s) that it was not asked for; it must answer under the very keys it was "
    "given (10 in this call). Map the source's answers back to those keys."
)
KIND = (
    "odd: fetch_many returned a {kind}; it must return a mapping of the keys it was asked for to their values. Return "
    "{{key: value}}, and leave a key out that the source does not hold."
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("half and extra", EXTRA.format(extra=1)),
        ("texts", EXTRA.format(extra=10)),
        ("short list", KIND.format(kind="list")),
        ("none", KIND.format(kind="NoneType")),
        ("generator", KIND.format(kind="generator")),
    ],
)
def test_anything_else_fails_the_task(spark: SparkSession, way: str, said: str) -> None:
    with pytest.raises(Exception, match="ContractError") as caught:
        rows_of(spark, way).collect()
    assert f"enrichkit.errors.ContractError: {said}" in str(caught.value)


def test_no_policy_makes_a_breach_of_the_contract_a_null(spark: SparkSession) -> None:
    frame = spark.range(0, 10, 1, 1).select(
        enrich(OddConfig(way="list"), "id", on_error="null", details=True, max_fallback_ratio=1.0, carrier="pandas")
    )
    with pytest.raises(Exception, match="odd: fetch_many returned a list; it must return a mapping"):
        frame.collect()
