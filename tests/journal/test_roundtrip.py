"""What is written is found: all types of keys and values, in all forms in which the engine has them."""

from __future__ import annotations

import datetime as dt
import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from enrichkit.columnar import Keys
from enrichkit.journal import JournalError
from enrichkit.journal.columns import hashes_of, key_columns
from enrichkit.journal.table import Table, key_type
from enrichkit.journal.writer import Writer

from .support import NIGHTLY, TEXTS, index, opened, read, write

LONG = 2**63
KEYS: dict[Any, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-LONG, LONG - 1),
    pa.string(): st.text(max_size=20),
    pa.binary(): st.binary(max_size=20),
    pa.float64(): st.floats(allow_nan=False).map(lambda number: number + 0.0),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.decimal128(38, 3): st.decimals(-(10**30), 10**30, places=3),
    pa.decimal256(76, 3): st.decimals(-(10**60), 10**60, places=3),
    pa.time64("us"): st.times(),
}
STRUCT = pa.struct([("name", pa.string()), ("tags", pa.list_(pa.int32())), ("inner", pa.struct([("x", pa.float64())]))])
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    **KEYS,
    pa.int8(): st.integers(-128, 127),
    pa.list_(pa.string()): st.lists(st.none() | st.text(max_size=5), max_size=3),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=3).map(
        lambda pairs: list(pairs.items())
    ),
    STRUCT: st.fixed_dictionaries(
        {
            "name": st.none() | st.text(max_size=5),
            "tags": st.none() | st.lists(st.integers(0, 9), max_size=3),
            "inner": st.none() | st.fixed_dictionaries({"x": st.none() | st.floats(allow_nan=False)}),
        }
    ),
}


@st.composite
def journals(draw: st.DrawFn) -> tuple[Table, dict[Any, tuple[Any, bool]], list[Any]]:
    """A table, entries as a value and whether it was found, and keys that are none of them."""
    types = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3))
    parts = [KEYS[data_type] for data_type in types]
    key = parts[0] if len(types) == 1 else st.tuples(*parts)
    value_type = draw(st.sampled_from(list(VALUES)))
    value = st.tuples(st.none() | VALUES[value_type], st.just(True)) | st.just((None, False))
    entries = draw(st.dictionaries(key, value, max_size=90))
    others = [other for other in draw(st.lists(key, max_size=5, unique=True)) if other not in entries]
    return Table("s", "f", tuple(types), value_type), entries, others


@settings(max_examples=150, deadline=None)
@given(journals(), st.integers(1, 100), st.booleans(), st.randoms(use_true_random=False))
def test_entries_are_found_with_their_values(
    journal: tuple[Table, dict[Any, tuple[Any, bool]], list[Any]], size: int, as_columns: bool, random: Any
) -> None:
    table, entries, others = journal
    with tempfile.TemporaryDirectory() as folder:
        with Writer(opened(Path(folder)), table, NIGHTLY, linger=60) as writer:
            keys = list(entries)
            for start in range(0, len(keys), size):
                part = keys[start : start + size]
                values = [entries[key][0] for key in part]
                found = [entries[key][1] for key in part]
                given_keys: Any = part
                if as_columns:
                    given_keys = Keys(key_columns(part, table.key_types), part)
                    values = pa.array(values, table.value_type)  # type: ignore[assignment]
                writer.append(given_keys, values, found)
                if random.random() < 0.5:
                    writer.flush()
        asked = keys + others
        random.shuffle(asked)
        hits = index(Path(folder), table=table).lookup(asked)
        seen = {
            asked[place]: (value, found)
            for place, value, found in zip(
                hits.places.to_pylist(), hits.values.to_pylist(), hits.found.to_pylist(), strict=True
            )
        }
    assert entries == seen
    assert table.value_type == hits.values.type


@pytest.mark.parametrize("key", [1, 1.0, True, "1", b"1", Decimal("1"), dt.date(1970, 1, 2), dt.datetime(1970, 1, 2)])
def test_keys_of_another_type_are_other_keys(tmp_path: Path, key: Any) -> None:
    types = {type(value.as_py()): value.type for value in map(pa.scalar, (1, 1.0, True, "1", b"1", Decimal("1")))}
    types |= {dt.date: pa.date32(), dt.datetime: pa.timestamp("us")}
    for data_type in types.values():
        table = Table("s", "f", (data_type,), pa.string())
        if types[type(key)] == data_type:
            write(tmp_path, {key: "mine"}, table=table)
    for kind, data_type in types.items():
        table = Table("s", "f", (data_type,), pa.string())
        assert (1 if kind is type(key) else 0) == len(index(tmp_path, table=table))
        if kind is not type(key):
            with pytest.raises(JournalError, match="A key does not fit the types of this journal, "):
                index(tmp_path, table=table).lookup([key])


def test_scales_of_decimals_are_different_keys() -> None:
    one, two = (Table("s", "f", (pa.decimal128(10, scale),), pa.string()) for scale in (1, 2))
    assert one.digest != two.digest


@pytest.mark.parametrize("data_type", [pa.int8(), pa.int32(), pa.uint16(), pa.dictionary(pa.int8(), pa.int16())])
def test_whole_numbers_of_all_widths_are_the_same_keys(tmp_path: Path, data_type: Any) -> None:
    write(tmp_path, {7: "a"}, table=Table("s", "f", (pa.int64(),), pa.string()))
    table = Table("s", "f", (data_type,), pa.string())
    column = pa.array([7, 8], pa.int64()).cast(getattr(data_type, "value_type", data_type))
    hits = index(tmp_path, table=table).lookup(Keys([column], [7, 8]))
    assert [0] == hits.places.to_pylist()


def test_a_changed_source_or_type_finds_nothing_old(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1"})
    for table in (
        Table("users", "another fingerprint", (pa.string(),), pa.string()),
        Table("users", "fingerprint", (pa.string(),), pa.large_string()),
        Table("users", "fingerprint", (pa.string(), pa.string()), pa.string()),
    ):
        assert 0 == len(index(tmp_path, table=table))
    renamed = Table("people", "fingerprint", (pa.string(),), pa.string())
    assert {"a": "1"} == read(tmp_path, ["a"], table=renamed)


def test_text_that_is_not_utf_8_is_a_key(tmp_path: Path) -> None:
    raw = b"\xff\xfe"
    text = raw.decode("utf-8", "surrogateescape")
    write(tmp_path, {text: "a", "\xff": "b"})
    column = pa.array([raw], pa.binary()).view(pa.string())
    large = pa.array([raw], pa.large_binary()).view(pa.large_string())
    found = index(tmp_path)
    assert ["a"] == found.lookup(Keys([column], [text])).values.to_pylist()
    assert ["a"] == found.lookup(Keys([large], [text])).values.to_pylist()
    assert ["a", "b"] == found.lookup([text, "\xff"]).values.to_pylist()


def test_null_keys_and_nan_are_never_found(tmp_path: Path) -> None:
    table = Table("s", "f", (pa.float64(),), pa.string())
    column = pa.array([None, float("nan"), 1.0])
    with Writer(opened(tmp_path), table, NIGHTLY) as writer:
        writer.append(Keys([column], column.to_pylist), ["a", "b", "c"])
    assert [2] == index(tmp_path, table=table).lookup(Keys([column], column.to_pylist)).places.to_pylist()


@given(st.lists(st.floats() | st.just(-0.0), min_size=1))
@example([0.0, -0.0])
def test_equal_keys_have_equal_hashes(numbers: list[float]) -> None:
    hashes = hashes_of([pa.array(numbers)]).tolist()
    for left, one in zip(numbers, hashes, strict=True):
        for right, other in zip(numbers, hashes, strict=True):
            assert left != right or one == other


@settings(deadline=None)
@given(st.sampled_from(list(KEYS)), st.data())
def test_a_slice_has_the_hashes_of_its_keys(data_type: Any, data: st.DataObject) -> None:
    column = pa.array(data.draw(st.lists(KEYS[data_type], min_size=3, max_size=9)), data_type)
    for start in range(len(column)):
        assert hashes_of([column])[start:].tolist() == hashes_of([column[start:]]).tolist()


@pytest.mark.parametrize("data_type", [pa.list_(pa.int8()), pa.struct([]), pa.null(), pa.map_(pa.int8(), pa.int8())])
def test_a_type_that_is_no_key_is_refused(data_type: Any) -> None:
    with pytest.raises(JournalError) as raised:
        key_type(data_type)
    assert (
        f"A key column has the type {data_type}, which a journal does not hold; allowed are text, bytes, numbers, "
        "booleans, dates and times. Cast the column to string."
    ) == str(raised.value)


def test_a_key_of_another_type_is_named_without_the_key(tmp_path: Path) -> None:
    write(tmp_path, {"a": "1"})
    with pytest.raises(JournalError) as raised:
        index(tmp_path).lookup(["a", 5318])
    assert (
        "A key does not fit the types of this journal, string (TypeError). Name the types of the key columns when the "
        "journal is opened."
    ) == str(raised.value)


@pytest.mark.parametrize("column", [pa.array(["7"]), pa.array([7.0]), pa.array([True])])
def test_a_column_of_another_type_is_not_cast(tmp_path: Path, column: Any) -> None:
    table = Table("s", "f", (pa.int64(),), pa.int64())
    write(tmp_path, {7: 7, 1: 1}, table=table)
    with pytest.raises(JournalError, match=r"A key does not fit the types of this journal, int64 \(TypeError\)"):
        index(tmp_path, table=table).lookup(Keys([column], column.to_pylist()))
    with pytest.raises(JournalError, match="A value does not fit int64, the declared type"):
        Writer(opened(tmp_path), table, NIGHTLY).append([7], column)


def test_a_value_of_another_type_is_named_without_the_value(tmp_path: Path) -> None:
    with pytest.raises(JournalError) as raised, Writer(opened(tmp_path), TEXTS, NIGHTLY, linger=60) as writer:
        writer.append(["a"], [5318])
    assert ("A value does not fit string, the declared type (ArrowTypeError); a journal takes decoded values.") == str(
        raised.value
    )


def test_columns_must_have_one_length(tmp_path: Path) -> None:
    writer = Writer(opened(tmp_path), TEXTS, NIGHTLY)
    for values, found in ((["1"], None), (["1", "2"], [True])):
        with pytest.raises(JournalError) as raised:
            writer.append(["a", "b"], values, found)
        assert f"2 keys came with {len(values)} values; give one value, and one flag, for each." == str(raised.value)
