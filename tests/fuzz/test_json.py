"""
Whatever bytes a source gives as JSON, the answer is an exact value of the declared type, or an error of its key.

Python's `json` and the slow rules of `enrichkit.values.rules` say what is right.
"""

from __future__ import annotations

import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from enrichkit.errors import PermanentError
from enrichkit.plugin import Answers
from enrichkit.values.decode import decoder
from enrichkit.values.decode_columns import column_reader
from enrichkit.values.rules import rule
from enrichkit.values.scalars import MismatchError

from .documents import TOO_DEEP, parsed, texts
from .fuzzing import effort, explore, kept

STRING, INT, BIGINT, DOUBLE = pa.string(), pa.int32(), pa.int64(), pa.float64()
USER = pa.struct([("name", STRING), ("tier", INT)])
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
    ]
)
PLAIN = [STRING, pa.binary(), pa.bool_(), pa.int8(), INT, BIGINT, pa.float32(), DOUBLE, pa.decimal128(5, 2)]
PLAIN += [pa.date32(), pa.time64("ns"), pa.duration("us"), pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.null()]
NESTED = [
    pa.list_(BIGINT),
    pa.list_(pa.list_(pa.float32())),
    pa.map_(STRING, STRING),
    pa.map_(INT, pa.binary()),
    pa.map_(STRING, pa.timestamp("us", tz="UTC")),
    USER,
    pa.struct([("user", USER), ("sizes", pa.list_(BIGINT)), ("a", pa.decimal128(38, 18))]),
    pa.struct([("名", STRING), ("data", pa.map_(STRING, pa.list_(USER)))]),
    pa.struct([("id", STRING), ("profile", VARIANT)]),
    VARIANT,
]
TYPES = [*PLAIN, *NESTED]


def in_arrow(value: Any, data_type: Any) -> pa.Array[Any]:
    """Return *value* as Spark gets it; Arrow has moments that Python does not have."""
    array = pa.array([value], data_type)
    array.validate(full=True)
    return array


def by_rule(text: bytes, data_type: Any) -> tuple[Any, str | None]:
    """Return the value that the slow rule makes of *text*, and the text of its error."""
    try:
        return rule(data_type, "json")(text), None
    except MismatchError as error:
        return None, str(error)


def as_column(text: bytes, data_type: Any) -> Any:
    """Return what the fast way for columns makes of *text*; `...` when it leaves the text to the others."""
    try:
        column, misses = column_reader(data_type, "json")(Answers(["k"], [text]), ("k",))
    except Exception:
        return ...
    assert [] == misses
    column[:].validate(full=True)
    return column[:]


def check_decoding(text: bytes) -> None:
    try:
        document, remark = parsed(text)
    except ValueError:
        document, remark = ..., ""
    for data_type in TYPES:
        # In company, so that the fast way, its chunks and the rules are all taken.
        values, errors = decoder(data_type, "json")([None, text, None])
        assert set(errors) <= {1}
        assert set(map(type, errors.values())) <= {PermanentError}
        assert [None, None] == [values[0], values[2]]
        value = in_arrow(values[1], data_type)
        right, problem = by_rule(text, data_type)
        assert problem == (str(errors[1]) if errors else None)
        assert in_arrow(right, data_type) == value
        column = as_column(text, data_type)
        assert column is ... or (problem is None and column == value)
        if document is ...:
            assert errors, "what is not JSON is no value"
        elif remark != TOO_DEEP and not errors:
            assert (document is None) == (value.null_count == 1), "a null is a null, and nothing else is"


@pytest.mark.parametrize("text", kept("json"))
def test_a_kept_text_is_a_value_or_an_error_of_its_key(text: bytes) -> None:
    check_decoding(text)


@effort
def test_any_text_is_a_value_of_the_declared_type_or_an_error_of_its_key(effort: int) -> None:
    explore(check_decoding, texts, 60 * effort)


# --- there and back

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    STRING: st.text(),
    pa.bool_(): st.booleans(),
    INT: st.integers(-(2**31), 2**31 - 1),
    BIGINT: st.integers(-(2**63), 2**63 - 1),
    DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
}


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type whose values JSON has, and a strategy of its values."""
    shape = draw(st.sampled_from(["leaf", "list", "map", "struct"])) if depth else "leaf"
    if shape == "leaf":
        return draw(st.sampled_from(list(LEAVES.items())))
    inner, values = draw(typed_values(depth - 1))
    values = st.none() | values
    if shape == "list":
        return pa.list_(inner), st.lists(values, max_size=4)
    if shape == "map":
        return pa.map_(STRING, inner), st.dictionaries(st.text(), values, max_size=4)
    names = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=3, unique=True))
    return pa.struct([(name, inner) for name in names]), st.fixed_dictionaries(dict.fromkeys(names, values))


@st.composite
def written(draw: st.DrawFn) -> tuple[Any, Any, bytes]:
    """A type, a value of it, and the value as JSON in one of the ways in which it may be written."""
    data_type, values = draw(typed_values())
    value = draw(values)
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    return data_type, value, text.encode()


def check_way_back(case: tuple[Any, Any, bytes]) -> None:
    data_type, value, text = case
    values, errors = decoder(data_type, "json")([text])
    assert {} == errors
    assert in_arrow(value, data_type) == in_arrow(values[0], data_type)
    assert as_column(text, data_type) in (..., in_arrow(value, data_type))


@effort
def test_what_json_dumps_makes_of_a_value_is_that_value(effort: int) -> None:
    explore(check_way_back, written(), 80 * effort)


def exact(text: str) -> decimal.Decimal | float:
    return float(text) if "e" in text.lower() else decimal.Decimal(text)


def check_variant(case: tuple[Any, Any, bytes]) -> None:
    _, _, text = case
    values, errors = decoder(VARIANT, "json")([text])
    assert {} == errors
    with decimal.localcontext(prec=50):  # PySpark would round to 28 digits
        read = None if values[0] is None else VariantVal(**values[0]).toPython()
    assert json.loads(text, parse_float=exact) == read


@effort
def test_a_variant_holds_what_its_json_text_says(effort: int) -> None:
    explore(check_variant, written(), 80 * effort)
