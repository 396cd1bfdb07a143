"""Answers in columns -> a column of values: the same as key by key (`enrichkit.values.decode`), or none at all."""

from __future__ import annotations

import datetime as dt
import json
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from enrichkit.errors import PermanentError, TransientError
from enrichkit.interface import Answers, Failure, Keys
from enrichkit.values.decode import decoder
from enrichkit.values.decode_columns import column_reader
from enrichkit.values.types import is_variant
from enrichkit.worker.keys import encode

from .test_decode import (
    BIGINT,
    BINARY,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    JUNK,
    LEAVES,
    LEVELS,
    MATRIX,
    NESTED,
    STRING,
    TAGS,
    TIMESTAMP,
    USER,
    D,
    has_not_finite,
    json_of,
    nullable,
    same,
    text_of,
)

UNHURRIED = settings(deadline=None)  # a busy machine stalls now and then

ENCODINGS: Any = ("python", "json", "text")
VARIANT = pa.struct(
    [
        pa.field("value", BINARY, nullable=False),
        pa.field("metadata", BINARY, nullable=False, metadata={"variant": "true"}),
    ]
)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {**LEAVES, pa.large_binary(): st.binary()}
KEY_TYPES = [STRING, BIGINT, DATE, TIMESTAMP]
NAMES = ["name", "field 1", "Ann's", "f1", "f0", "", "naïve", "名"]
FAILURE = Failure(TransientError("refused"))


def reader(data_type: Any, encoding: Any) -> Any:
    """Do as `column_reader`, and return whole arrays."""
    read = column_reader(data_type, encoding)

    def whole(answers: Answers, keys: Any) -> tuple[Any, list[int]]:
        column, missed = read(answers, keys)
        assert len(column[:]) == len(keys)
        return column[:], missed

    return whole


@st.composite
def declared(draw: st.DrawFn, depth: int = 2, odd: bool = True) -> Any:
    """A declared type; *odd*: with variants and structs without fields as well."""
    shape = draw(st.sampled_from(["plain", "list", "map", "struct", "struct"])) if depth else "plain"
    if shape == "plain":
        return draw(st.sampled_from([*PLAIN, *[VARIANT] * odd]))
    if shape == "list":
        return pa.list_(draw(declared(depth - 1, odd)))
    if shape == "map":
        return pa.map_(draw(st.sampled_from(KEY_TYPES)), draw(declared(depth - 1, odd)))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=0 if odd else 1, max_size=4, unique=True))
    return pa.struct([(name, draw(declared(depth - 1, odd))) for name in names])


def right(data_type: Any) -> st.SearchStrategy[Any]:
    """Values that *data_type* holds without loss."""
    if is_variant(data_type):
        return st.booleans() | st.integers(-9, 9) | st.text("ab") | st.lists(st.integers(0, 9), max_size=2)
    if pa.types.is_struct(data_type):
        return st.fixed_dictionaries({field.name: nullable(right(field.type)) for field in data_type})
    if pa.types.is_map(data_type):
        return st.dictionaries(LEAVES[data_type.key_type], nullable(right(data_type.item_type)), max_size=3)
    if pa.types.is_list(data_type):
        return st.lists(nullable(right(data_type.value_type)), max_size=3)
    return PLAIN[data_type]


def document_of(value: Any, data_type: Any) -> Any:
    return None if value is None else json.dumps(json_of(value, data_type)).encode()


RAW_OF: dict[str, Callable[[Any, Any], Any]] = {
    "python": lambda value, data_type: value,
    "json": document_of,
    "text": text_of,
}


def reference(answers: Answers, keys: Any, data_type: Any, encoding: Any) -> tuple[Any, dict[int, PermanentError]]:
    """The values of *keys* as a column, and errors by place, each key looked at for itself."""
    values, errors = decoder(data_type, encoding)([answers.rows().get(key) for key in keys])
    return pa.array(values, data_type), errors


def assert_same_column(expected: Any, column: Any) -> None:
    assert isinstance(column, pa.Array)
    assert expected.type == column.type
    assert len(expected) == len(column)
    column.validate(full=True)
    # Arrow has instants that Python has no datetime for, and Python knows that NaN is NaN.
    assert expected.equals(column) or same(expected.to_pylist(), column.to_pylist()), (expected, column)


# All that is right goes this way.


@st.composite
def right_answers(draw: st.DrawFn) -> tuple[Any, Any, Answers]:
    data_type, encoding = draw(declared(odd=False)), draw(st.sampled_from(ENCODINGS))
    size = draw(st.integers(0, 6))
    raw_of = RAW_OF[encoding]

    def column(part: Any) -> Any:
        values = draw(st.lists(nullable(right(part)), min_size=size, max_size=size))
        # JSON has no NaN, and what a list inside a text holds is JSON.
        if encoding == "json" or (encoding == "text" and "list" in str(part)):
            values = [None if has_not_finite(value) else value for value in values]
        raws = [raw_of(value, part) for value in values]
        if encoding == "python" and not pa.types.is_nested(part) and draw(st.booleans()):
            array = pa.array(decoder(part, encoding)(raws)[0], part)
            cut = draw(st.integers(0, size))
            return draw(st.sampled_from([array, pa.chunked_array([array[:cut], array[cut:]])]))
        return raws

    if pa.types.is_struct(data_type) and encoding != "json" and draw(st.booleans()):
        named = [field for field in data_type if draw(st.integers(0, 4))] or list(data_type)
        columns = {field.name: column(field.type) for field in draw(st.permutations(named))}
        return data_type, encoding, Answers(range(size), columns)
    return data_type, encoding, Answers(range(size), column(data_type))


@UNHURRIED
@given(right_answers())
def test_what_is_right_becomes_a_column(case: tuple[Any, Any, Answers]) -> None:
    data_type, encoding, answers = case
    keys = tuple(answers.found)

    column, missed = reader(data_type, encoding)(answers, keys)

    expected, errors = reference(answers, keys, data_type, encoding)
    assert {} == errors
    assert [] == missed
    assert_same_column(expected, column)


# What is not right becomes no column, or the very same.

ODD_OBJECTS = st.sampled_from(
    [FAILURE, bytearray(b"12"), memoryview(b"abcd")[::2], b"\xff", "12", True, 1.0, 2**24 + 1, -0.0, range(2), {1}]
)
ODD_JSON = st.sampled_from(
    [
        *["null", "true", "1", "-0", "7.0", "1e2", "1E+400", "-1e-400", "16777217", "9007199254740993", "1" * 5000],
        *["9223372036854775808", "99999.5", "1.10", "1.123456789012345678901", "NaN", "Infinity", "-Infinity", "01"],
        *['"\\ud800"', '"\\ud83d\\ude00"', '"\ud800"', '"12"', '"1.5"', '"2024-01-31"', '"2024-02-31"', '""', '"/wA"'],
        *['"2024-01-31T10:00:00"', '"2024-01-31 10:00+02:00"', '"2024-01-31T10:00:00.1234567Z"', '"10:00:00.5"'],
        *['"24:00:00"', '"P1DT2H3.5S"', '"P"', "[]", "[1, null]", "{}", '{"name": 1, "name": "Ann"}', "", " ", "gold"],
        *["[" * 2000, "{} {}", '{"a": }', "\ufeff{}", " null\n"],
    ]
)
ODD_TEXT: st.SearchStrategy[Any] = st.sampled_from(
    [
        *[b"", b"12", "12", b" 12", b"1_2", b"+012", "١", b"1e3", b"1e400", b"nan", b"-Infinity", b"0x10", b"1" * 500],  # noqa: RUF001
        *[b"true", b"TRUE", b"0", b"yes", b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"a\x00", "ö", "\ud800", b"1,2"],
        *[b"2024-01-31", b"20240131", b"2024-01-31T10:00:00Z", b"2024-01-31T10:00:00", b"10:00", b"24:00:00", b"PT1M"],
        *[
            bytearray(b"12"),
            memoryview(b"ab"),
            7,
            True,
            1.5,
            FAILURE,
            [b"12"],
            {b"name": b"Ann"},
            {"name": "Ann", 7: 7},
        ],
        *[b"[1, 2]", b'{"name": "Ann"}', b"null", b"{}"],
    ]
)


@st.composite
def near_object(draw: st.DrawFn, data_type: Any) -> Any:
    """An object that nearly always fits *data_type*."""
    luck = draw(st.integers(0, 31))
    if luck < 2:
        return draw(JUNK if luck else ODD_OBJECTS)
    if pa.types.is_struct(data_type) and not is_variant(data_type):
        value = {field.name: draw(near_object(field.type)) for field in data_type if draw(st.integers(0, 7))}
        return value | draw(st.sampled_from([{}, {}, {}, {"more": object()}, {b"name": b"Ann"}, {7: 7}]))
    if pa.types.is_map(data_type):
        keys = st.lists(near_object(data_type.key_type).filter(hashable), max_size=2)
        return {key: draw(near_object(data_type.item_type)) for key in draw(keys)}
    if pa.types.is_list(data_type):
        part = draw(st.lists(near_object(data_type.value_type), max_size=3))
        return draw(st.sampled_from([list, list, tuple]))(part)
    return draw(nullable(right(data_type)))


@st.composite
def near_json(draw: st.DrawFn, data_type: Any) -> str:
    """A document that nearly always fits *data_type*: names twice, names that are not declared, and odd parts."""
    luck = draw(st.integers(0, 31))
    if luck == 0:
        return draw(ODD_JSON)
    if pa.types.is_struct(data_type) and not is_variant(data_type):
        fields = [field for field in data_type if draw(st.integers(0, 7))]
        twice = [draw(st.sampled_from(fields))] if fields and not draw(st.integers(0, 4)) else []
        parts = [(field.name, draw(near_json(field.type))) for field in draw(st.permutations(fields + twice))]
        if not draw(st.integers(0, 3)):
            parts.append((draw(st.sampled_from(["more", "Name", "\ud800"])), draw(ODD_JSON)))
        return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=draw(st.booleans()))}: {p}" for name, p in parts) + "}"
    if pa.types.is_map(data_type):
        keys = st.sampled_from(
            ["a", "7", "+7", "07", "7.0", "2024-01-31", "20240131", "", "\ud800", "2024-01-31T10:00:00.1234567Z"]
        )
        names = [json.dumps(draw(keys)) for _ in range(draw(st.integers(0, 3)))]
        return "{" + ", ".join(f"{name}: {draw(near_json(data_type.item_type))}" for name in names) + "}"
    if pa.types.is_list(data_type):
        return "[" + ", ".join(draw(st.lists(near_json(data_type.value_type), max_size=3))) + "]"
    value = draw(nullable(right(data_type)))
    return json.dumps(value if is_variant(data_type) else json_of(value, data_type), ensure_ascii=draw(st.booleans()))


@st.composite
def near_document(draw: st.DrawFn, data_type: Any) -> Any:
    """As `near_json`, in the forms that a client hands over."""
    luck = draw(st.integers(0, 30))
    if luck < 2:
        return draw(nullable(ODD_OBJECTS | st.just({"name": "Ann"}) if luck else st.binary(max_size=5)))
    text = draw(near_json(data_type))
    raw = text.encode(errors="surrogatepass")
    return draw(st.sampled_from([raw, raw, raw, text, bytearray(raw), memoryview(raw)]))


@st.composite
def near_text(draw: st.DrawFn, data_type: Any) -> Any:
    """A text, or a mapping of texts, that nearly always fits *data_type*."""
    luck = draw(st.integers(0, 31))
    if luck < 2:
        return draw(ODD_TEXT if luck else st.binary(max_size=5))
    if pa.types.is_struct(data_type) and not is_variant(data_type) and luck < 26:
        in_bytes = draw(st.booleans())
        value: dict[Any, Any] = {
            field.name.encode() if in_bytes else field.name: draw(near_text(field.type))
            for field in data_type
            if draw(st.integers(0, 7))
        }
        return value | draw(st.sampled_from([{}, {}, {}, {"more": 7}, {b"name": b"Ann"}, {7: 7}]))
    if pa.types.is_map(data_type) and luck < 26:
        keys = st.lists(near_text(data_type.key_type).filter(hashable), max_size=2)
        return {key: draw(near_text(data_type.item_type)) for key in draw(keys)}
    if pa.types.is_nested(data_type):
        return draw(near_document(data_type))
    raw = text_of(draw(nullable(right(data_type))), data_type)
    if luck > 26 and raw is not None:
        return draw(st.sampled_from([bytearray(raw), raw.decode(errors="surrogateescape")]))
    return raw


def hashable(value: Any) -> bool:
    try:
        hash(value)
    except (TypeError, ValueError):  # a memoryview that can be written to, for example
        return False
    return True


NEAR: dict[str, Callable[[Any], st.SearchStrategy[Any]]] = {
    "python": near_object,
    "json": near_document,
    "text": near_text,
}


@st.composite
def near_answers(draw: st.DrawFn) -> tuple[Any, Any, Answers]:
    data_type, encoding = draw(declared()), draw(st.sampled_from(ENCODINGS))
    near = NEAR[encoding]
    size = draw(st.integers(1, 4))

    def column(part: Any) -> list[Any]:
        return draw(st.lists(near(part), min_size=size, max_size=size))

    if pa.types.is_struct(data_type) and encoding != "json" and draw(st.booleans()):
        columns = {field.name: column(field.type) for field in data_type if draw(st.integers(0, 7))}
        for name in draw(st.sampled_from([[], [], ["more"]])):
            columns[name] = column(STRING)
        if columns:
            return data_type, encoding, Answers(range(size), columns)
    # What is a Failure is no value, and has a test of its own.
    values = [None if value is FAILURE else value for value in column(data_type)]
    return data_type, encoding, Answers(range(size), values)


def assert_same_column_or_none(data_type: Any, encoding: Any, answers: Answers) -> None:
    keys = tuple(answers.found)
    read = reader(data_type, encoding)
    try:
        column, missed = read(answers, keys)
    except Exception:
        return

    expected, errors = reference(answers, keys, data_type, encoding)
    assert {} == {place: str(error) for place, error in errors.items()}
    assert [] == missed
    assert_same_column(expected, column)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=300)
@given(near_answers())
def test_a_column_is_what_comes_out_key_by_key(case: tuple[Any, Any, Answers]) -> None:
    assert_same_column_or_none(*case)


@pytest.mark.parametrize(("data_type", "encoding", "raw", "expected"), MATRIX)
def test_each_value_is_the_same_in_a_column_or_makes_none(
    data_type: Any, encoding: Any, raw: Any, expected: Any
) -> None:
    """Alone, between nulls, and as a field, each key with its own struct and all keys together."""
    assert_same_column_or_none(data_type, encoding, Answers([7], [raw]))
    assert_same_column_or_none(data_type, encoding, Answers(range(3), [None, raw, None]))
    holder = pa.struct([("id", INT), ("field", data_type)])
    nested = pa.struct([("holder", holder)])
    if encoding == "json":
        if isinstance(raw, str | bytes):
            document = b'{"field": %s}' % (raw.encode(errors="surrogatepass") if isinstance(raw, str) else raw)
            assert_same_column_or_none(holder, encoding, Answers([7, 8], [document, None]))
            assert_same_column_or_none(nested, encoding, Answers([7, 8], [b'{"holder": %s}' % document, b"{}"]))
    else:
        assert_same_column_or_none(holder, encoding, Answers([7, 8], {"field": [raw, None]}))
        assert_same_column_or_none(holder, encoding, Answers([7, 8], [{"field": raw}, None]))
        assert_same_column_or_none(nested, encoding, Answers([7, 8], {"holder": [{"field": raw}, None]}))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("data_type", [STRING, INT, USER, pa.struct([]), TAGS, VARIANT], ids=str)
def test_a_failure_is_not_taken_for_a_value(data_type: Any, encoding: Any) -> None:
    """It is a dataclass, as a value of a struct may be."""
    with pytest.raises(Exception):  # noqa: B017  whatever it is
        reader(data_type, encoding)(Answers([7, 8], [FAILURE, None]), (7, 8))


# Cases of the property above, and what it does not draw.

RIGHT: list[tuple[Any, Any, Any, Any]] = [
    (STRING, "text", [b"Ann", None, "ö".encode()], ["Ann", None, "ö"]),
    (pa.large_string(), "text", [b"Ann", None], ["Ann", None]),
    (STRING, "json", [b'"Ann"', b"null", b'{"a": 1}'], ["Ann", None, '{"a": 1}']),
    (DOUBLE, "python", [math.inf, 2**53, 0.5], [math.inf, 2.0**53, 0.5]),
    (FLOAT, "json", [b"0.5", b"1e2", b"7"], [0.5, 100.0, 7.0]),
    (BINARY, "python", [bytearray(b"ab"), memoryview(b"abcd")[::2]], [b"ab", b"ac"]),
    (LEVELS, "json", [b'{"1": "a"}', None], [[(1, "a")], None]),
    (
        pa.struct([("price", pa.decimal128(38, 18))]),
        "json",
        [b'{"price": 0.123456789012345678}', b'{"price": 7}'],
        [{"price": D("0.123456789012345678")}, {"price": D("7.000000000000000000")}],
    ),
    (USER, "python", {"tier": [1, None], "more": [object(), 7]}, [{"name": None, "tier": t} for t in (1, None)]),
    (USER, "text", {"name": [b"Ann"], "tier": [b"7"]}, [{"name": "Ann", "tier": 7}]),
    (USER, "json", [b'{"tier": 1, "tier": 2, "more": {"a": [1e400]}}'], [{"name": None, "tier": 2}]),
    (USER, "json", [None, b"null", b"{}"], [None, None, {"name": None, "tier": None}]),
    (
        NESTED,
        "json",
        [b'{"user": {"tier": 1}, "sizes": [2, null]}', None, b'{"user": null}'],
        [{"user": {"name": None, "tier": 1}, "sizes": [2, None]}, None, {"user": None, "sizes": None}],
    ),
    (
        NESTED,
        "python",
        {"user": [{"name": "Ann"}, None], "sizes": [(1, 2), []]},
        [{"user": {"name": "Ann", "tier": None}, "sizes": [1, 2]}, {"user": None, "sizes": []}],
    ),
    (pa.struct([]), "python", [{}, None, {"more": 7}], [{}, None, {}]),
]


@pytest.mark.parametrize(("data_type", "encoding", "values", "expected"), RIGHT)
def test_each_kind_of_answers_has_its_way(data_type: Any, encoding: Any, values: Any, expected: list[Any]) -> None:
    column, missed = reader(data_type, encoding)(Answers(range(len(expected)), values), range(len(expected)))

    assert expected == column.to_pylist()
    assert data_type == column.type
    assert [] == missed


@pytest.mark.parametrize(
    ("data_type", "encoding", "values"),
    [
        (STRING, "python", pa.array(["a", None], pa.large_string())),
        (INT, "python", pa.array([1, None], pa.int64())),
        (STRING, "json", pa.array(['"a"', None])),
        (INT, "text", pa.array([b"1", None])),
        (pa.list_(INT), "python", pa.array([[1], None], pa.list_(INT))),
        (USER, "python", pa.array([{"name": "Ann", "tier": 1}, None], USER)),
        (VARIANT, "python", pa.array([{"value": b"\x00", "metadata": b""}, None], VARIANT)),
    ],
    ids=str,
)
def test_an_array_of_another_form_is_decoded_as_a_list_is(data_type: Any, encoding: Any, values: Any) -> None:
    keys = (1, 2)
    from_array, _ = reader(data_type, encoding)(Answers(keys, values), keys)
    from_list, _ = reader(data_type, encoding)(Answers(keys, values.to_pylist()), keys)
    assert_same_column(from_list, from_array)


def test_an_array_of_the_declared_type_stays_as_it_is() -> None:
    array = pa.array(["a", None, "b"])
    column, _ = column_reader(STRING, "python")(Answers((1, 2, 3), array), (1, 2, 3))
    assert column[:].buffers()[2].address == array.buffers()[2].address


def test_an_array_of_text_that_is_no_utf_8_is_no_column() -> None:
    array = pa.array([b"a", b"\xff"]).view(STRING)
    with pytest.raises(pa.ArrowInvalid):
        column_reader(STRING, "python")(Answers((1, 2), array), (1, 2))


@pytest.mark.parametrize(
    "array",
    [
        pa.array([0, 2_932_897], pa.date32()),
        pa.array([0, 253_402_300_800_000_000], pa.timestamp("us")),
        pa.array([0, 86_400_000_000 * 3_000_000], pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_an_array_of_dates_that_python_does_not_have_is_no_column(array: Any) -> None:
    with pytest.raises((OverflowError, ValueError)):
        column_reader(array.type, "python")(Answers((1, 2), array), (1, 2))
    column, _ = column_reader(array.type, "python")(Answers((1,), array[:1]), (1,))
    assert column[:].equals(array[:1])


def test_a_part_of_an_array_does_not_keep_the_whole_alive() -> None:
    array = pa.array([f"a text {number}" for number in range(100_000)])
    column, _ = column_reader(STRING, "python")(Answers((1, 2), array[7:9]), (1, 2))
    assert column[:].to_pylist() == ["a text 7", "a text 8"]
    assert column[:].get_total_buffer_size() < 1000


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("data_type", [STRING, INT, BINARY, TAGS, pa.list_(STRING), VARIANT, pa.null()], ids=str)
@pytest.mark.parametrize("name", ["7", b"7"])
def test_fields_for_a_type_without_fields_are_no_column(name: Any, data_type: Any, encoding: Any) -> None:
    with pytest.raises(Exception):  # noqa: B017  whatever it is
        reader(data_type, encoding)(Answers([7], {name: [b"7"]}), (7,))


@pytest.mark.parametrize(
    ("data_type", "encoding", "values"),
    [
        # The names of a hash of Redis, names that are no str, and columns that are mappings themselves.
        (USER, "text", {b"name": [b"Ann"], b"tier": [b"7"]}),
        (USER, "text", {b"name": [b"Ann"], "tier": [b"7"]}),
        (USER, "python", {"name": ["Ann"], 7: [7]}),
        (USER, "python", {"name": ["Ann"], b"tier": [7]}),
        (NESTED, "python", {"user": {"name": ["Ann"]}}),
        (NESTED, "text", {"user": {"name": [b"Ann"]}}),
        (USER, "text", {"name": {b"Ann": None}}),
        (USER, "json", {"name": [b'"Ann"'], "tier": [b"7"]}),
        # What msgspec or Arrow would read in their own way.
        (STRING, "text", [b"a" * 40 + b"\xed\xa0\x80"]),
        (pa.large_string(), "text", [b"\xff"]),
        (USER, "text", {"name": [b"\xff"]}),
        (pa.struct([("price", pa.decimal128(38, 18))]), "json", [b'{"price": 0.1234567890123456789}']),
        (pa.struct([("levels", pa.map_(DATE, INT))]), "json", [b'{"levels": {"20240131": 1}}']),
        (pa.struct([("times", pa.map_(TIMESTAMP, INT))]), "json", [b'{"times": {"2024-01-31T10:00:00.1234567Z": 1}}']),
        (pa.struct([("flags", pa.map_(BINARY, INT))]), "json", [b'{"flags": {"YQ": 1}}']),
        (pa.struct([("ratios", pa.map_(DOUBLE, INT))]), "json", [b'{"ratios": {"1e400": 1}}']),
        (pa.struct([("levels", LEVELS)]), "json", [b'{"levels": {"1": "a", "01": "b"}}']),
        (pa.struct([("value", VARIANT)]), "json", [b'{"value": {"value": "YQ==", "metadata": "YQ=="}}']),
        (pa.struct([("value", VARIANT)]), "python", {"value": [{"value": b"a", "metadata": b"a"}]}),
        (pa.struct([]), "json", [b"{}"]),
        (pa.struct([("nothing", pa.struct([]))]), "json", [b'{"nothing": {}}']),
        (pa.struct([("nothing", pa.struct([])), ("tier", INT)]), "json", [b'{"nothing": {}, "tier": 7}']),
        (pa.struct([]), "python", {"name": ["Ann"]}),
        (pa.struct([("nothing", pa.struct([]))]), "python", {"nothing": [{}]}),
        (pa.struct([("nothing", pa.struct([]))]), "text", {"nothing": [b"{}"]}),
    ],
)
def test_odd_answers_are_the_same_in_a_column_or_make_none(data_type: Any, encoding: Any, values: Any) -> None:
    assert_same_column_or_none(data_type, encoding, Answers([7], values))


@pytest.mark.parametrize(
    ("data_type", "encoding", "values"),
    [
        (VARIANT, "python", [{"a": [1, None]}, None]),
        (VARIANT, "json", [b'{"a": [1, null]}', None]),
        (VARIANT, "text", [b'{"a": [1, null]}', None]),
        (pa.struct([("more", VARIANT)]), "python", {"more": ["Ann", None]}),
        (pa.struct([("more", VARIANT)]), "python", [{"more": "Ann"}, None]),
        (pa.struct([("more", VARIANT)]), "json", [b'{"more": {"a": 1.5}}', None]),
        (pa.struct([("more", VARIANT)]), "text", {"more": [b"[1]", None]}),
        (pa.list_(VARIANT), "json", [b'[1, "a", null]', None]),
    ],
)
def test_variants_become_a_column(data_type: Any, encoding: Any, values: Any) -> None:
    answers = Answers([7, 8], values)

    column, _ = reader(data_type, encoding)(answers, (7, 8))

    expected, errors = reference(answers, (7, 8), data_type, encoding)
    assert {} == errors
    assert_same_column(expected, column)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ['6"', "a\\b", "a\nb", "a\x00b", "a/b", "a.b", "class", "__dict__", " "])
def test_a_field_may_have_any_name(name: str, encoding: Any) -> None:
    data_type = pa.struct([(name, STRING), ("nested", pa.struct([(name, INT)]))])
    raw = RAW_OF[encoding]({name: "Ann", "nested": {name: 7}}, data_type)
    if encoding == "text":
        raw[b"nested"] = document_of({name: 7}, data_type.field(1).type)
    read = reader(data_type, encoding)

    try:
        column, _ = read(Answers([7], [raw]), (7,))
    except Exception:  # a reader may have no way for such a name, but there is one for every type
        assert encoding == "json"
    else:
        assert [{name: "Ann", "nested": {name: 7}}] == column.to_pylist()


# Keys.


@UNHURRIED
@given(st.data(), st.sampled_from([list, tuple]), st.sampled_from([list, tuple]))
def test_each_value_is_in_the_place_of_its_key(
    data: st.DataObject, as_asked: Callable[[Any], Any], as_found: Callable[[Any], Any]
) -> None:
    """Keys are found in another order than they were asked for, and some are not found."""
    kind = st.integers() | st.text(max_size=2) | st.tuples(st.integers(0, 9), st.booleans())
    keys = data.draw(st.lists(kind, unique=True, max_size=8))
    found = [key for key in data.draw(st.permutations(keys)) if data.draw(st.integers(0, 4))]
    if data.draw(st.booleans()):
        found.sort(key=keys.index)
    data_type, encoding, values = data.draw(
        st.sampled_from(
            [
                (INT, "python", [keys.index(key) for key in found]),
                (STRING, "text", [str(keys.index(key)).encode() for key in found]),
                (USER, "python", {"tier": [keys.index(key) for key in found]}),
                (USER, "json", [b'{"tier": %d}' % keys.index(key) for key in found]),
                (pa.list_(INT), "json", [b"[%d]" % keys.index(key) for key in found]),
                (TAGS, "python", [{str(keys.index(key)): None} for key in found]),
                (pa.struct([]), "python", [{} for _ in found]),
                (pa.null(), "python", [None for _ in found]),
            ]
        )
    )
    answers = Answers(as_found(found), values)

    column, missed = reader(data_type, encoding)(answers, as_asked(keys))

    assert [place for place, key in enumerate(keys) if key not in found] == missed
    expected, errors = reference(answers, keys, data_type, encoding)
    assert {} == errors
    assert_same_column(expected, column)


def test_the_keys_that_were_asked_for_need_no_look_at_each() -> None:
    """A list of keys may be handed back as it is."""
    keys = [7, 8]
    column, missed = reader(INT, "python")(Answers(keys, [70, 80]), keys)

    assert ([70, 80], []) == (column.to_pylist(), missed)


def test_a_missed_struct_is_null_and_no_struct_of_nulls() -> None:
    column, missed = reader(USER, "python")(Answers([8], {"name": [None]}), (7, 8))

    assert [True, False] == column.is_null().to_pylist()
    assert [0] == missed


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ((7,), [7, 7]),
        ((7, 8), [7, 7]),
        ((7, 8), [8, 7, 8]),
        ((7, 8, 9), [8, 8]),
        ((7,), [8]),
        ((7, 8), [8, 9]),
        ((7, 8), [7, 8, 9]),
        ((7, 8, 9), [9, 6, 8]),
        ((), [7]),
        ((7,), ["7"]),
        (("a",), [b"a"]),
    ],
)
@pytest.mark.parametrize("by_field", [False, True])
def test_a_key_that_comes_twice_or_was_not_asked_for_is_no_column(keys: Any, found: list[Any], by_field: bool) -> None:
    values = list(range(len(found)))
    answers = Answers(found, {"tier": values} if by_field else values)

    with pytest.raises(ValueError):
        reader(USER if by_field else INT, "python")(answers, keys)


def test_a_key_that_has_no_hash_is_no_column() -> None:
    with pytest.raises(TypeError):
        reader(INT, "python")(Answers([[7]], [70]), (7,))


# Keys in columns.

NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
KEY_COLUMNS: dict[Any, st.SearchStrategy[Any]] = {
    **{data_type: st.integers(-9, 9) for data_type in (pa.int8(), pa.int16(), INT, BIGINT)},
    STRING: st.sampled_from([b"", b"a", b"b", b"a\0", "é".encode(), "🙂".encode(), b"\xff", b"\xed\xa0\x80"]),
    pa.large_string(): st.sampled_from([b"", b"a", b"\xff"]),
    BINARY: st.binary(max_size=2),
    pa.bool_(): st.booleans(),
    FLOAT: st.floats(width=32),
    DOUBLE: st.floats(),
    pa.decimal128(5, 2): st.decimals(-9, 9, places=2),
    DATE: st.dates(),
    TIMESTAMP: LEAVES[TIMESTAMP],
}


def key_column(values: Any, data_type: Any) -> Any:
    """Return *values* in an array; texts are given as bytes, which need not be UTF-8."""
    if data_type in (STRING, pa.large_string()):
        return pa.array(values, BINARY if data_type == STRING else pa.large_binary()).view(data_type)
    return pa.array(values, data_type)


@st.composite
def keys_in_columns(draw: st.DrawFn) -> Keys:
    """Keys as the engine has them, of one column and seldom of two; maybe a part of more of them."""
    types = draw(st.lists(st.sampled_from([*KEY_COLUMNS]), min_size=1, max_size=draw(st.sampled_from([1, 1, 1, 2]))))
    rows = draw(st.lists(st.tuples(*[KEY_COLUMNS[data_type] for data_type in types]), max_size=8))
    columns = [key_column([row[n] for row in rows], data_type) for n, data_type in enumerate(types)]
    keys, _ = encode(columns)
    return keys[draw(st.integers(0, 2)) :][: draw(st.integers(0, 8))]


def taken(keys: Keys, places: list[int]) -> Keys:
    """Return those of *keys* that stand in *places*, in new columns."""
    objects = list(keys)
    return Keys([column.take(pa.array(places, pa.int64())) for column in keys.columns], [objects[n] for n in places])


@UNHURRIED
@given(st.data(), keys_in_columns())
def test_keys_in_columns_are_found_as_one_by_one(data: st.DataObject, keys: Keys) -> None:
    """In another order than they were asked for, some of them, or all as they were; either may be a plain sequence."""
    size = len(keys)
    places = data.draw(st.permutations(range(size)))[: data.draw(st.integers(0, size))]
    places = data.draw(st.sampled_from([places, places, sorted(places), [*range(size)]]))
    as_found: Any = data.draw(st.sampled_from([Keys, Keys, list, tuple]))
    as_asked: Any = data.draw(st.sampled_from([Keys, Keys, tuple]))
    found: Any = taken(keys, places)
    if places == [*range(size)] and data.draw(st.booleans()):
        found = keys
    found = found if as_found is Keys else as_found(found)
    asked = keys if as_asked is Keys else as_asked(keys)
    data_type, encoding, values = data.draw(
        st.sampled_from(
            [
                (INT, "python", places),
                (STRING, "text", [str(n).encode() for n in places]),
                (USER, "python", {"tier": places}),
                (USER, "json", [b'{"tier": %d}' % n for n in places]),
            ]
        )
    )
    answers = Answers(found, values)
    try:
        column, missed = reader(data_type, encoding)(answers, asked)
    except TypeError:
        assert len(keys.columns) > 1, "no column of keys of several parts is told from another one"
        return

    assert [n for n in range(size) if n not in places] == missed
    expected, errors = reference(answers, asked, data_type, encoding)
    assert {} == errors
    assert_same_column(expected, column)


@UNHURRIED
@given(st.data(), keys_in_columns().filter(bool))
def test_columns_of_keys_that_come_twice_or_were_not_asked_for_are_no_column(data: st.DataObject, keys: Keys) -> None:
    size = len(keys)
    asked = taken(keys, sorted(data.draw(st.sets(st.integers(0, size - 1)))))
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size + 1))
    found = taken(keys, places)
    assume(len(set(found)) < len(found) or not set(found) <= set(asked))

    with pytest.raises((ValueError, TypeError)):
        reader(INT, "python")(Answers(found, places), asked)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (pa.array([1, 2]), pa.array(["1", "2"])),
        (pa.array(["1", "2"]), pa.array([1])),
        (pa.array([b"a", b"b"]), pa.array(["a"])),
        (pa.array(["a", "b"]), pa.array([b"b"])),
        (pa.array([44, 1], pa.int8()), pa.array([300])),
        (pa.array([True, False]), pa.array([2])),
        (pa.array([NOON]), pa.array([NOON.replace(tzinfo=None)])),
    ],
)
def test_keys_in_a_column_of_another_kind_were_not_asked_for(asked: Any, found: Any) -> None:
    """Arrow takes a text of digits for the number, and text for its bytes; Python holds no two of these for equal."""
    keys, others = Keys([asked], asked.to_pylist()), Keys([found], found.to_pylist())
    for in_columns in (others, list(others)):
        with pytest.raises((ValueError, TypeError)):
            reader(INT, "python")(Answers(in_columns, [*range(len(others))]), keys)


@pytest.mark.parametrize(
    ("asked", "found"),
    [(pa.int8(), BIGINT), (BIGINT, pa.int8()), (STRING, pa.large_string()), (pa.large_string(), STRING)],
    ids=str,
)
def test_equal_keys_in_columns_of_two_types_are_found_or_make_none(asked: Any, found: Any) -> None:
    values = [b"7", b"8", b"9"] if asked in (STRING, pa.large_string()) else [7, 8, 9]
    keys, _ = encode([key_column(values, asked)])
    others, _ = encode([key_column(values[:0:-1], found)])
    try:
        column, missed = reader(INT, "python")(Answers(others, [90, 80]), keys)
    except (TypeError, ValueError):
        return

    assert ([None, 80, 90], [0]) == (column.to_pylist(), missed)


def test_keys_in_a_column_need_no_object_for_each() -> None:
    def objects() -> list[Any]:
        raise AssertionError

    keys, found = Keys([pa.array(["a", "b", "c"])], objects), Keys([pa.array(["c", "a"])], objects)
    read = reader(INT, "python")

    for answers, expected in (
        (Answers(found, [3, 1]), ([1, None, 3], [1])),
        (Answers(keys, [1, 2, 3]), ([1, 2, 3], [])),
    ):
        column, missed = read(answers, keys)
        assert expected == (column.to_pylist(), missed)


def test_no_answers_are_a_column_of_nulls() -> None:
    for encoding in ENCODINGS:
        column, missed = reader(TIMESTAMP, encoding)(Answers([], []), (7, 8))

        assert ([None, None], [0, 1]) == (column.to_pylist(), missed)
        assert TIMESTAMP == column.type


def test_a_part_of_a_column_does_not_keep_the_rest_alive() -> None:
    """A slice that waits for one slow row would else hold what has left with others."""
    keys = range(1000)
    column, _ = column_reader(STRING, "text")(Answers(keys, [b"x" * 1000] * 1000), keys)
    part = column[10:20]

    assert ["x" * 1000] * 10 == part.to_pylist()
    assert sum(buffer.size for buffer in part.buffers() if buffer is not None) < 20_000
    assert column.nbytes > 1_000_000


def test_no_loop_stands_still_while_arrow_imports_pandas() -> None:
    """Arrow does so, for a second, at the first array; the reader is made on Spark's thread."""
    code = (
        "import sys, pyarrow as pa; from enrichkit.values.decode_columns import column_reader; "
        "assert 'pandas' not in sys.modules; column_reader(pa.string(), 'text'); assert 'pandas' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
