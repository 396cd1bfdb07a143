"""Variants: what goes in comes out, as PySpark reads it, and what Spark would change is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import VariantType, VariantVal

from enrichkit.values.decode import decoder
from enrichkit.values.types import arrow_type_of

VARIANT = arrow_type_of(VariantType())[1]
PLAIN = (
    "None, bool, int, float, Decimal, str, UUID, bytes, date, datetime, a list or tuple, or a mapping with str keys, "
    "and these at any depth"
)
UTC = dt.UTC

INTS = st.integers(-(10**38) + 1, 10**38 - 1)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=10, min_value=-(10**20), max_value=10**20)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
SCALARS = st.none() | st.booleans() | INTS | st.floats(allow_nan=False) | DECIMALS | TEXTS | st.binary(max_size=80)
MOMENTS = st.dates() | st.datetimes() | st.datetimes(timezones=st.just(UTC))
VALUES = st.recursive(
    SCALARS | MOMENTS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(TEXTS, inner, max_size=8),
    max_leaves=30,
)


def read(variant: Any) -> Any:
    with decimal.localcontext(prec=50):  # PySpark would round to 28 digits
        return VariantVal(variant["value"], variant["metadata"]).toPython()


def refusal(problem: str) -> str:
    return (
        f"The value does not fit the declared type variant: {problem}; it must be {PLAIN}. "
        "Change the source, or declare another type with returns=."
    )


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_what_goes_in_comes_out(values: list[Any]) -> None:
    variants, errors = decoder(VARIANT, "python")(values)

    assert {} == errors
    assert values == [None if variant is None else read(variant) for variant in variants]
    pa.array(variants, VARIANT).validate(full=True)


@given(
    st.recursive(
        st.none() | st.booleans() | INTS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)
    )
)
def test_a_document_is_what_pyspark_itself_makes_of_it(value: Any) -> None:
    text = json.dumps(value)

    for encoding in ("json", "text"):
        (variant,), errors = decoder(VARIANT, encoding)([text.encode()])  # type: ignore[arg-type]  # one of both
        assert {} == errors
        assert (None if value is None else json.loads(VariantVal.parseJson(text).toJson())) == (
            None if variant is None else json.loads(VariantVal(**variant).toJson())
        )


@pytest.mark.parametrize("size", [63, 64, 255, 256, 65_536])
def test_lengths_on_either_side_of_a_change_of_the_encoding(size: int) -> None:
    values = ["x" * size, [1] * size, {f"k{n}": n for n in range(size)}, {"x" * size: "y" * size}]

    variants, _ = decoder(VARIANT, "python")(values)

    assert values == [read(variant) for variant in variants]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ((1, (2,)), [1, [2]]),
        (Decimal("1E+3"), Decimal(1000)),
        (10**37, Decimal(10**37)),
        (
            dt.datetime(2024, 1, 31, 10, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            dt.datetime(2024, 1, 31, 8, tzinfo=UTC),
        ),
    ],
)
def test_what_becomes_another_object_is_equal(value: Any, expected: Any) -> None:
    (variant,), _ = decoder(VARIANT, "python")([value])

    assert expected == read(variant)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({1: "a"}, "one of its keys is of type int"),
        ([{"a": {1}}], "it holds a value of the type set"),
        (dt.time(1), "it holds a value of the type time"),
        (10**38, "it holds a number of more than 38 digits"),
        (10**400, "it holds a number of more than 38 digits"),
        (Decimal("1E+999999"), "it holds a number of more than 38 digits"),
        (Decimal("1E-39"), "it holds a number of more than 38 digits"),
        (Decimal("NaN"), "it holds a Decimal that is not finite"),
        ("a\ud800", "it holds half of a surrogate pair"),
        ({"a\ud800": 1}, "it holds half of a surrogate pair"),
        (["x" * 2**24], "it takes more than 16,777,215 bytes"),
        ({"x" * 2**24: 1}, "the names of its fields take more than 16,777,215 bytes"),
        ("x" * 2**24, "it takes more than 16,777,215 bytes"),
        ([None] * 2**22, "it takes more than 16,777,215 bytes"),  # with where each of them begins
        (pd.NaT, "it holds a datetime that is no point in time"),
        ([pd.Timestamp("2024-01-31T10:00:00.123456789")], "it holds a time with digits beyond microseconds"),
    ],
    ids=range(16),
)
def test_what_a_variant_does_not_hold_is_that_keys_error(value: Any, problem: str) -> None:
    values, errors = decoder(VARIANT, "python")([1, value, 2])

    assert [1, None, 2] == [variant and read(variant) for variant in values]
    assert {1: refusal(problem)} == {index: str(error) for index, error in errors.items()}


def test_what_refers_to_itself_ends() -> None:
    endless: list[Any] = []
    endless.append(endless)

    _, errors = decoder(VARIANT, "python")([endless])

    assert {0: refusal("it is nested more than 200 levels deep")} == {i: str(error) for i, error in errors.items()}


def test_a_part_of_a_struct_that_is_no_variant_is_named() -> None:
    struct = pa.struct([("a", VARIANT), ("b", pa.int32())])

    values, errors = decoder(struct, "json")([b'{"a": [1.50], "b": 1}', b'{"a": 1e999, "b": 1}', b'{"a": null}'])

    assert [1.5] == [float(part) for part in read(values[0]["a"])]
    assert [1, None] == [values[0]["b"], values[1]]
    assert {"a": None, "b": None} == values[2]
    assert [1] == list(errors)
    assert str(errors[1]) == (
        "The part 'a' of the value does not fit the declared type variant: it holds a number out of the range of a "
        "double; it must be one JSON document with numbers of at most 38 digits. Change the source, or declare another "
        "type with returns=."
    )
