"""The fast ways of `enrichkit.values.decode` against `enrichkit.values.rules`, whole calls at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.values.decode import decoder
from enrichkit.values.rules import rule
from enrichkit.values.scalars import MismatchError

from .test_columns import (
    ENCODINGS,
    NEAR,
    ODD_JSON,
    ODD_OBJECTS,
    ODD_TEXT,
    PLAIN,
    UNHURRIED,
    VARIANT,
    assert_same_column,
    declared,
)
from .test_decode import JUNK, MATRIX

ODD: dict[str, st.SearchStrategy[Any]] = {
    "python": ODD_OBJECTS | JUNK,
    "json": ODD_JSON.map(lambda text: text.encode(errors="surrogatepass")),
    "text": ODD_TEXT,
}
TYPES = list(dict.fromkeys([*(case.values[0] for case in MATRIX), *PLAIN, VARIANT]))
RAW = [case.values[2] for case in MATRIX]


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, Any, list[Any]]:
    """
    A declared type, an encoding and up to 45 raw answers.

    A few differ, and one that nearly always fits stands before and after them, so that whole chunks of a call are right
    where others are not. One is more likely to be wrong.
    """
    data_type, encoding = draw(st.sampled_from(TYPES) | declared()), draw(st.sampled_from(ENCODINGS))
    near = NEAR[encoding](data_type)
    before, common, after = draw(st.integers(0, 20)), draw(near), draw(st.integers(0, 20))
    few = draw(st.lists(near, max_size=4)) + draw(st.lists(ODD[encoding], max_size=1))
    raw = [common] * before + draw(st.permutations(few)) + [common] * after
    return data_type, encoding, raw


def alone(value: Any, data_type: Any, encoding: Any) -> tuple[Any, str]:
    """What the rule makes of *value*, and what it says against it."""
    try:
        return (None if value is None else rule(data_type, encoding)(value)), ""
    except MismatchError as error:
        return None, str(error)
    except Exception as error:
        return None, (
            f"The value cannot be read: looking at it raised {type(error).__name__}; it must be a plain Python object. "
            "Convert it in the connector."
        )


def assert_as_by_the_rule(data_type: Any, encoding: Any, raw: list[Any]) -> None:
    expected = [alone(value, data_type, encoding) for value in raw]
    values, errors = decoder(data_type, encoding)(raw)
    said = {index: problem for index, (_, problem) in enumerate(expected) if problem}
    assert said == {index: str(error) for index, error in errors.items()}
    assert_same_column(pa.array([value for value, _ in expected], data_type), pa.array(values, data_type))


@pytest.mark.slow
@settings(UNHURRIED, max_examples=1000)
@given(calls())
def test_a_call_gives_what_the_rule_gives_for_each_of_its_values_alone(case: tuple[Any, Any, list[Any]]) -> None:
    assert_as_by_the_rule(*case)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_each_type_takes_or_refuses_what_is_meant_for_the_others(data_type: Any, encoding: Any) -> None:
    for raw in RAW:
        assert_as_by_the_rule(data_type, encoding, [raw])
