"""Answers in columns: a Mapping that says what the dict of the same keys and values says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.errors import ContractError
from enrichkit.interface import Answers

UNHURRIED = settings(deadline=None)  # a busy machine stalls now and then

KEYS = st.lists(st.integers(0, 9) | st.text(max_size=2) | st.tuples(st.integers(0, 9), st.booleans()), max_size=6)
VALUES = st.none() | st.integers() | st.text(max_size=3) | st.binary(max_size=3)


@st.composite
def plain(draw: st.DrawFn) -> tuple[Answers, dict[Any, Any]]:
    """Answers whose values are a list, and the dict that they stand for; of a key that comes twice, the last value."""
    keys = draw(KEYS)
    values = draw(st.lists(VALUES, min_size=len(keys), max_size=len(keys)))
    as_given = draw(st.sampled_from([list, tuple]))
    if draw(st.booleans()):
        values = [value if isinstance(value, str) else None for value in values]
        return Answers(as_given(keys), pa.array(values, pa.string())), dict(zip(keys, values, strict=True))
    return Answers(as_given(keys), as_given(values)), dict(zip(keys, values, strict=True))


@st.composite
def by_field(draw: st.DrawFn) -> tuple[Answers, dict[Any, Any]]:
    """Answers whose values are columns, and the dict of dicts that they stand for."""
    keys = draw(KEYS)
    column = st.lists(VALUES, min_size=len(keys), max_size=len(keys))
    columns = draw(st.dictionaries(st.text(max_size=3), column, min_size=1, max_size=3))
    rows = [{name: values[n] for name, values in columns.items()} for n in range(len(keys))]
    if "" in columns and draw(st.booleans()):
        texts = pa.array(map(repr, columns[""]), pa.string())
        rows = [{**row, "": text} for row, text in zip(rows, texts.to_pylist(), strict=True)]
        columns = {**columns, "": texts}
    return Answers(keys, columns), dict(zip(keys, rows, strict=True))


@UNHURRIED
@given(plain() | by_field(), st.integers(0, 9) | st.text(max_size=2))
def test_answers_are_the_dict_of_their_keys_and_values(case: tuple[Answers, dict[Any, Any]], other: Any) -> None:
    answers, expected = case

    assert expected == answers
    assert answers == expected
    assert Answers(list(expected), list(expected.values())) == answers
    assert len(expected) == len(answers)
    assert list(expected) == list(answers)
    assert list(expected.items()) == list(answers.items())
    assert expected == answers.rows()
    assert [expected[key] for key in answers.found] == [answers[key] for key in answers.found]
    assert (other in expected) == (other in answers)
    assert expected.get(other, "absent") == answers.get(other, "absent")


@UNHURRIED
@given(plain() | by_field())
def test_answers_differ_from_a_dict_with_one_more_or_less(case: tuple[Answers, dict[Any, Any]]) -> None:
    answers, expected = case
    more = {**expected, "another key": None}
    less = dict(list(expected.items())[1:])

    assert more != answers
    assert answers != more
    assert (answers == less) == (not expected)


def test_a_key_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        Answers([7], ["Ann"])[8]


def test_columns_without_a_field_are_no_answers() -> None:
    with pytest.raises(ContractError) as caught:
        Answers([7, 8], {})
    assert str(caught.value) == "Answers have 2 keys but 0 values; give one for each."


def test_no_answers_are_an_empty_mapping() -> None:
    for answers in (Answers([], []), Answers((), ()), Answers([], {}), Answers([], {"name": []})):
        assert {} == answers
        assert not answers


@pytest.mark.parametrize("values", [["s3cret"] * 2, {"s3cret": ["s3cret"] * 2}])
def test_the_repr_shows_no_key_and_no_value(values: Any) -> None:
    answers = Answers(["s3cret key", "s3cret too"], values)

    assert "<Answers to 2 keys>" == repr(answers)
    assert answers.rows()
    assert "<Answers to 2 keys>" == repr(answers)


def test_the_repr_of_many_answers_is_readable() -> None:
    assert "<Answers to 1,500 keys>" == repr(Answers(range(1500), range(1500)))


@pytest.mark.parametrize(
    ("keys", "values", "counts"),
    [
        (["a", "b"], ["Ann"], "2 keys but 1 values"),
        ([], ["Ann"], "0 keys but 1 values"),
        (range(1000), range(1001), "1,000 keys but 1,001 values"),
        (["a", "b"], {"name": ["Ann"]}, "2 keys but 1 values"),
        (["a", "b"], {"name": ["Ann", "Bob"], "tier": [1, 2, 3]}, "2 keys but 3 values"),
        (["a"], {"name": [], "tier": [1]}, "1 keys but 0 values"),
    ],
)
def test_another_number_of_values_than_of_keys_is_refused(keys: Any, values: Any, counts: str) -> None:
    with pytest.raises(ContractError) as error:
        Answers(keys, values)

    assert f"Answers have {counts}; give one for each." == str(error.value)
