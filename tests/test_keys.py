"""Key columns -> distinct keys and one code per row, against a slow reference."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import zoneinfo
from collections import deque
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.errors import ConfigError, TaskFailedError
from enrichkit.worker import keys as keys_module
from enrichkit.worker.keys import encode, intersects

UNHURRIED = settings(deadline=None)  # a busy machine stalls now and then

UTC = dt.UTC
COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=3),
    pa.large_string(): st.sampled_from(["", " ", "a", "ä", "a\x00"]),
    pa.string_view(): st.sampled_from(["", "short", "longer than twelve characters"]),
    pa.binary(): st.binary(max_size=2),
    pa.binary_view(): st.binary(max_size=2),
    pa.large_binary(): st.binary(max_size=2),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(0, 3),
    pa.int64(): st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63 - 1, 0]),
    pa.uint64(): st.sampled_from([0, 2**64 - 1]),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.sampled_from([0.0, -0.0, math.nan, math.inf, 0.1, 5e-324]),
    pa.decimal128(10, 2): st.sampled_from([decimal.Decimal("1.10"), decimal.Decimal("-1.10"), decimal.Decimal("0.00")]),
    pa.date32(): st.dates(),
    pa.time64("ns"): st.sampled_from([dt.time(0), dt.time(23, 59, 59, 999999)]),
    pa.timestamp("us", tz="Europe/Berlin"): st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30)).map(
        lambda moment: moment.replace(tzinfo=UTC, fold=0)
    ),
    pa.timestamp("us"): st.datetimes().map(lambda moment: moment.replace(fold=0)),
    pa.timestamp("ms"): st.sampled_from([dt.datetime(2024, 1, 1, 0, 0, 0, 1000), dt.datetime(1969, 12, 31)]),
    pa.duration("us"): st.sampled_from([dt.timedelta(0), dt.timedelta(days=-1, microseconds=1)]),
    pa.null(): st.none(),
}


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[pa.DataType, list[Any]]]:
    """1 to 4 key columns of one length."""
    rows = draw(st.integers(0, 12))
    types = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=4))
    return [
        (data_type, draw(st.lists(st.none() | COLUMNS[data_type], min_size=rows, max_size=rows))) for data_type in types
    ]


def reference(columns: list[list[Any]]) -> tuple[list[Any], list[int | None]]:
    """What `encode` promises, row by row."""
    keys: dict[Any, int] = {}
    codes: list[int | None] = []
    for row in zip(*columns, strict=True):
        if any(part is None or part != part for part in row):
            codes.append(None)
            continue
        parts = tuple(part + 0.0 if isinstance(part, float) else part for part in row)
        codes.append(keys.setdefault(parts if len(parts) > 1 else parts[0], len(keys)))
    return list(keys), codes


def check(arrays: list[Any], columns: list[list[Any]]) -> None:
    keys, codes = encode(arrays)

    expected_keys, expected_codes = reference(columns)
    assert keys == expected_keys
    assert list(map(repr, keys)) == list(map(repr, expected_keys))  # also 0.0 for -0.0, True for True, UTC for Berlin
    assert codes.to_pylist() == expected_codes
    assert type(codes) is pa.Int32Array
    codes.validate(full=True)
    assert held_by(keys.columns) == keys


def held_by(columns: Sequence[pa.Array[Any]]) -> list[Any]:
    """The objects that *columns* of keys hold, as pyarrow makes them."""
    for column in columns:
        column.validate(full=True)
        assert not column.null_count
    rows = list(zip(*(column.to_pylist() for column in columns), strict=True))
    return rows if len(columns) > 1 else [row[0] for row in rows]


@UNHURRIED
@given(batches())
def test_keys_and_codes_are_those_of_the_reference(batch: list[tuple[pa.DataType, list[Any]]]) -> None:
    check([pa.array(values, data_type) for data_type, values in batch], [values for _, values in batch])


@UNHURRIED
@given(batches(), st.integers(0, 5), st.integers(0, 5))
def test_a_slice_is_encoded_as_if_it_were_alone(
    batch: list[tuple[pa.DataType, list[Any]]], skip: int, length: int
) -> None:
    arrays = [pa.array(values, data_type).slice(skip, length) for data_type, values in batch]

    check(arrays, [values[skip : skip + length] for _, values in batch])


@UNHURRIED
@given(batches())
def test_a_dictionary_column_is_encoded_like_a_plain_one(batch: list[tuple[pa.DataType, list[Any]]]) -> None:
    arrays = [pa.array(values, data_type).dictionary_encode() for data_type, values in batch]

    check(arrays, [values for _, values in batch])


@pytest.mark.parametrize("inverts", [keys_module._INVERTS, False], ids=["this pyarrow", "pyarrow before 20"])
@UNHURRIED
@given(batches())
def test_keys_in_order_are_the_keys_of_the_reference_sorted(
    inverts: bool, batch: list[tuple[pa.DataType, list[Any]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "_INVERTS", inverts)
        keys, codes = encode([pa.array(values, data_type) for data_type, values in batch], in_order=True)

    expected_keys, expected_codes = reference([values for _, values in batch])
    assert keys == sorted(expected_keys)
    places = [keys.index(key) for key in expected_keys]
    assert codes.to_pylist() == [None if code is None else places[code] for code in expected_codes]
    assert type(codes) is pa.Int32Array
    codes.validate(full=True)
    assert held_by(keys.columns) == keys


@st.composite
def columns_of_one_type(draw: st.DrawFn) -> list[Any]:
    """2 to 5 key columns of one type, plain or dictionaries, of any lengths, each perhaps a part of a longer one."""
    data_type = draw(st.sampled_from(list(COLUMNS)))
    arrays = []
    for values in draw(st.lists(st.lists(st.none() | COLUMNS[data_type], max_size=8), min_size=2, max_size=5)):
        array: Any = pa.array(values, data_type)
        if draw(st.booleans()):
            array = array.dictionary_encode()
        arrays.append(array[draw(st.integers(0, 2)) :])
    return arrays


@pytest.mark.slow
@settings(deadline=None, max_examples=500)
@given(columns_of_one_type(), st.booleans())
def test_a_slice_meets_others_that_have_a_key_of_it(arrays: list[Any], in_order: bool) -> None:
    first, *others = (encode([array], in_order=in_order)[0] for array in arrays)

    shared = any(not set(first).isdisjoint(other) for other in others)
    assert len({column.type for keys in (first, *others) for column in keys.columns}) == 1
    for columns in ([keys.columns[0] for keys in others], deque(keys.columns[0] for keys in others)):
        assert intersects(first.columns[0], columns) is shared


@UNHURRIED
@given(st.lists(st.lists(st.binary(max_size=2), max_size=4), min_size=2, max_size=4))
def test_slices_of_text_that_is_no_utf_8_meet_where_the_bytes_are_the_same(parts: list[list[bytes]]) -> None:
    first, *others = (encode([pa.array(part, pa.binary()).view(pa.string())])[0] for part in parts)

    shared = any(not set(parts[0]).isdisjoint(part) for part in parts[1:])
    assert shared == any(not set(first).isdisjoint(other) for other in others)
    assert intersects(first.columns[0], [keys.columns[0] for keys in others]) is shared


@pytest.mark.parametrize(
    ("column", "others"),
    [
        (pa.array([7], pa.int64()), [pa.array([7], pa.int32())]),
        (pa.array([7], pa.int64()), [pa.array([], pa.string()), pa.array([7.0])]),
        (
            pa.array([decimal.Decimal("1.1")]),
            [pa.array([decimal.Decimal("21.1")]), pa.array([decimal.Decimal("1.10")])],
        ),
    ],
)
def test_slices_may_meet_when_equal_keys_have_several_types(column: Any, others: list[Any]) -> None:
    """As those from pandas have."""
    assert intersects(column, others)


def test_a_slice_without_a_key_meets_no_other_whatever_its_type() -> None:
    """As one from pandas has none that is all null."""
    empty = pa.array([], pa.string())

    assert not intersects(pa.array([7]), [empty])
    assert not intersects(empty, [empty, empty])
    assert not intersects(pa.array([7]), [empty, pa.array([8]), empty])
    assert intersects(pa.array([7]), [empty, pa.array([7])])


def test_a_dictionary_that_holds_a_value_twice_and_one_unused_gives_each_key_once() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([1, 0, 3, None], pa.int8()), ["x", "x", "unused", None])

    keys, codes = encode([column])

    assert keys == ["x"]
    assert codes.to_pylist() == [0, 0, None, None]


def test_a_run_end_encoded_column_is_encoded_like_a_plain_one() -> None:
    column = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", "b"]))

    keys, codes = encode([column])

    assert keys == ["a", "b"]
    assert codes.to_pylist() == [0, 0, 1]


def test_parts_do_not_run_into_each_other() -> None:
    keys, codes = encode([pa.array(["a:b", "a", "a:b"]), pa.array(["c", "b:c", "c"])])

    assert keys == [("a:b", "c"), ("a", "b:c")]
    assert codes.to_pylist() == [0, 1, 0]


def test_many_columns_of_distinct_values_do_not_overflow() -> None:
    """Seven columns of 1,000 codes each have 10**21 combinations, more than 64 bits count."""
    rows = 1000
    columns = [pa.array([(row * 7 + shift) % rows for row in range(rows)]) for shift in range(7)]

    keys, codes = encode(columns)

    assert keys == list(zip(*(column.to_pylist() for column in columns), strict=True))
    assert codes.to_pylist() == list(range(rows))


def test_the_two_instants_of_an_hour_that_is_repeated_are_two_keys() -> None:
    """Python holds 02:30 and 02:30 one hour later for equal when both are in the zone that repeats them."""
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    moments = [dt.datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=fold) for fold in (0, 1)]
    assert moments[0] == moments[1]

    keys, codes = encode([pa.array(moments, pa.timestamp("us", tz="Europe/Berlin"))])

    assert keys == [dt.datetime(2024, 10, 27, 0, 30, tzinfo=UTC), dt.datetime(2024, 10, 27, 1, 30, tzinfo=UTC)]
    assert len(set(keys)) == 2
    assert codes.to_pylist() == [0, 1]


def test_strings_that_are_no_utf_8_stay_distinct_and_do_not_fail_the_batch() -> None:
    column = pa.array([b"\xff", b"a", b"\xfe", b"\xff"], pa.binary()).view(pa.string())

    keys, codes = encode([column])

    assert keys == ["\udcff", "a", "\udcfe"]
    assert codes.to_pylist() == [0, 1, 2, 0]
    assert keys.columns[0].cast(pa.binary()).to_pylist() == [b"\xff", b"a", b"\xfe"]


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (pa.array([[1]]), "array<bigint>"),
        (pa.array([{"a": 1}]), "struct<a:bigint>"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "map<string,bigint>"),
        (pa.array([[1]], pa.list_(pa.int8(), 1)), "fixed_size_list<item: int8>[1]"),
        (pa.array([1], pa.timestamp("ns")), "timestamp[ns]"),
        (pa.array([1], pa.duration("ns")), "duration[ns]"),
        (pa.array([None], pa.month_day_nano_interval()), "month_day_nano_interval"),
        (pa.array([b"0" * 16], pa.uuid()), "extension<arrow.uuid>"),
    ],
)
def test_a_column_that_is_no_key_is_refused_by_its_type(column: Any, name: str) -> None:
    with pytest.raises(ConfigError) as error:
        encode([pa.array([1]), column])

    assert str(error.value) == (
        f"A key column has the type {name}, which is no key; allowed are string, binary, boolean, number, date and "
        "timestamp columns. Pass its parts as several key columns, or cast it to string."
    )


def test_no_key_column_is_refused() -> None:
    with pytest.raises(ConfigError) as error:
        encode([])

    assert str(error.value) == (
        "No key column is given; a lookup needs one or more. Name one: enrich('redis', 'user_id')."
    )


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (pa.array([2**60], pa.timestamp("us", tz="UTC")), "timestamp"),
        (pa.array([-(2**60)], pa.timestamp("us")), "timestamp_ntz"),
        (pa.array([10**7], pa.int32()).view(pa.date32()), "date"),
    ],
)
def test_a_year_that_python_does_not_have_fails_the_task_without_showing_the_key(column: Any, name: str) -> None:
    with pytest.raises(TaskFailedError) as error:
        encode([column])

    assert str(error.value) == (
        f"A key of type {name} lies outside the years 1 to 9999; Python holds no other years. "
        "Filter such rows, make their key null, or cast the key to string."
    )
