"""Keys and values of the pandas carrier, as Spark hands them over and takes them back: none may change on its way."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import VariantType, VariantVal

from enrichkit import Connector, ConnectorConfig
from enrichkit.driver.pickling import pack
from enrichkit.driver.planner import make_plan
from enrichkit.driver.udf import _closure
from enrichkit.errors import ConfigError, TaskFailedError
from enrichkit.values.types import arrow_type_of
from enrichkit.version import VERSION
from enrichkit.worker.pandas_arrow import frame_of, keys_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enrichkit import Call

ABSENT = object()


def series(values: Sequence[Any]) -> pd.Series:
    return pd.Series(list(values), dtype=object)


def column(values: Sequence[Any], kind: str = "others") -> tuple[pd.Series, pd.Series, pd.Series]:
    """Return the three Series of one key column; those of the two other kinds hold nulls only, as Spark makes them."""
    empty = [None] * len(values)
    return tuple(series(values if each == kind else empty) for each in ("others", "texts", "instants"))  # type: ignore[return-value]


def arrays(values: Sequence[Any], dtype: Any) -> list[Any]:
    """Return *values* as Spark does with `array_compact(array(column))`: a null is an empty array, or a null itself."""
    made = [np.array([value], dtype=dtype) for value in values if value is not ABSENT and value is not None]
    full = iter(made)
    return [None if value is ABSENT else np.array([], dtype=dtype) if value is None else next(full) for value in values]


@given(
    st.sampled_from(
        [
            (np.int64, st.integers(-(2**63), 2**63 - 1)),
            (np.int8, st.integers(-128, 127)),
            (np.bool_, st.booleans()),
            (np.float64, st.floats(allow_nan=False)),
            (object, st.dates()),
            (object, st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-99, max_value=99)),
            (object, st.binary(max_size=3)),
        ]
    ).flatmap(
        lambda kind: st.tuples(
            st.just(kind[0]), st.lists(st.just(ABSENT) | st.none() | kind[1], min_size=1, max_size=12)
        )
    )
)
def test_each_key_arrives_as_it_was(drawn: tuple[Any, list[Any]]) -> None:
    dtype, values = drawn
    (array,) = keys_of(column(arrays(values, dtype)))
    assert [None if value is ABSENT else value for value in values] == array.to_pylist()


def test_a_large_number_beside_a_null_stays_whole() -> None:
    """A Series of numbers with a null would be one of floats, and 2^53 + 1 the key of another user."""
    (array,) = keys_of(column(arrays([2**53 + 1, None], np.int64)))
    assert (pa.int64(), [2**53 + 1, None]) == (array.type, array.to_pylist())


def test_a_text_arrives_byte_by_byte() -> None:
    (array,) = keys_of(column([b"ada", None, b"\xff\x00", b""], "texts"))
    assert pa.string() == array.type
    assert [b"ada", None, b"\xff\x00", b""] == array.view(pa.binary()).to_pylist()


def test_the_repeated_hour_of_autumn_is_two_instants() -> None:
    texts = ["2026-10-25T00:30:00.000000ZAD", None, "2026-10-25T01:30:00.000001ZAD"]
    (array,) = keys_of(column(texts, "instants"))
    assert pa.timestamp("us", "UTC") == array.type
    assert [
        dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC),
        None,
        dt.datetime(2026, 10, 25, 1, 30, 0, 1, tzinfo=dt.UTC),
    ] == array.to_pylist()


@pytest.mark.parametrize("text", ["0044-03-15T12:00:00.000000ZBC", "+10000-01-01T00:00:00.000000ZAD"])
def test_a_year_that_python_cannot_hold_fails_the_task_without_the_key(text: str) -> None:
    with pytest.raises(TaskFailedError) as raised:
        keys_of(column([text], "instants"))
    assert str(raised.value) == (
        "A key of type timestamp lies outside the years 1 to 9999; Python holds no other years. "
        "Filter such rows, make their key null, or cast the key to string."
    )
    assert raised.value.__suppress_context__


def test_a_map_is_no_key() -> None:
    with pytest.raises(ConfigError) as raised:
        keys_of(column(arrays([{1: "a"}], object)))
    assert str(raised.value) == (
        "A key column has the type map, which is no key; allowed are string, binary, boolean, number, date and "
        "timestamp columns. Pass its parts as several key columns, or cast it to string."
    )


def test_columns_of_several_kinds_keep_their_order() -> None:
    parts = [column(arrays([7, None], np.int64)), column([b"x", b"y"], "texts"), column([None, None])]
    found = keys_of([part[group] for group in range(3) for part in parts])
    assert [[7, None], ["x", "y"], [None, None]] == [array.to_pylist() for array in found]
    assert pa.null() == found[2].type


# --- values


def values_of(array: pa.Array[Any]) -> list[Any]:
    frame = frame_of(array)
    assert ["value"] == list(frame.columns)
    return list(frame["value"])


@pytest.mark.parametrize(
    "array",
    [
        pa.array([2**53 + 1, None], pa.int64()),
        pa.array([1.5, math.nan, None], pa.float64()),
        pa.array(["ada", None, ""], pa.string()),
        pa.array([None], pa.null()),
        pa.array([dt.datetime(2026, 10, 25, 0, 30, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
    ],
    ids=lambda array: str(array.type),
)
def test_a_plain_column_travels_as_arrow(array: pa.Array[Any]) -> None:
    back = pa.array(frame_of(array)["value"])
    assert array.type == back.type
    assert repr(array.to_pylist()) == repr(back.to_pylist())  # by their texts, because NaN does not equal NaN


def test_nested_values_are_objects_that_pyspark_converts() -> None:
    assert [{"name": "ada", "tags": ["x", None]}, None] == values_of(
        pa.array(
            [{"name": "ada", "tags": ["x", None]}, None],
            pa.struct([("name", pa.string()), ("tags", pa.list_(pa.string()))]),
        )
    )


def test_a_map_at_any_depth_is_a_dict() -> None:
    data_type = pa.list_(pa.map_(pa.string(), pa.map_(pa.int64(), pa.string())))
    array = pa.array([[[("a", [(1, "x"), (2, None)])], []], None, [None]], data_type)
    assert [[{"a": {1: "x", 2: None}}, {}], None, [None]] == values_of(array)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        (pa.list_(pa.float64()), [1.0, math.nan]),
        (pa.struct([("x", pa.float32())]), {"x": math.nan}),
        (pa.map_(pa.string(), pa.float64()), [("x", math.nan)]),
        (pa.list_(pa.struct([("x", pa.list_(pa.float64()))])), [{"x": [math.nan]}]),
    ],
    ids=["list", "struct", "map", "deep"],
)
def test_a_nan_in_a_nested_value_does_not_become_a_null(data_type: pa.DataType, value: Any) -> None:
    (made,) = values_of(pa.array([value], data_type))
    back = pa.array([list(made.items()) if pa.types.is_map(data_type) else made], data_type, from_pandas=True)
    assert repr(pa.array([value], data_type).to_pylist()) == repr(back.to_pylist())


def test_a_variant_is_one_of_pyspark() -> None:
    made = VariantVal.parseJson('{"a": [1, "x"]}')
    array = pa.array([{"value": made.value, "metadata": made.metadata}, None], arrow_type_of(VariantType())[1])
    found, null = values_of(array)
    assert isinstance(found, VariantVal)
    assert ({"a": [1, "x"]}, None) == (found.toPython(), null)


# --- the function that Spark ships


@dataclass(frozen=True, kw_only=True)
class EchoConfig(ConnectorConfig):
    """A source that has every key."""


class Echo(Connector[EchoConfig]):
    """Answers each key with its text."""

    name = "echo"
    config_class = EchoConfig

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        return {key: str(key) for key in keys}


def test_a_worker_gives_the_values_in_the_order_of_the_keys() -> None:
    plan, _ = make_plan(EchoConfig(), 1, pa.string(), {})
    run = _closure("pandas_batches", pack(plan), "echo", VERSION)
    batches = [column(arrays([3, None, 1], np.int64)), column(arrays([], np.int64)), column(arrays([2, 3], np.int64))]
    found = [value for frame in run(iter(batches)) for value in pa.array(frame["value"]).to_pylist()]
    assert ["3", None, "1", "2", "3"] == found


def test_a_worker_with_another_version_says_how_to_ship_that_of_the_driver() -> None:
    with pytest.raises(ImportError) as raised:
        _closure("pandas_batches", b"", "redis", "0.0.9")(iter(()))
    assert str(raised.value) == (
        f"This Spark worker has enrichkit {VERSION}, but the driver has 0.0.9. Ship that of the driver: enrichkit pack "
        "prints the lines that do. Or install one on both: pip install enrichkit==0.0.9"
    )
