"""Values of distinct keys + codes of rows -> the column, against a slow reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.errors import TaskFailedError
from enrichkit.outcome import ERROR, MISSING, OK, REJECTED, STATUSES, TIMEOUT, Outcomes
from enrichkit.worker.assemble import BYTES, assemble, assemble_details, columns_of, values_of

UNHURRIED = settings(deadline=None)  # a busy machine stalls now and then

USER = pa.struct([("name", pa.string()), ("sizes", pa.list_(pa.int64()))])
TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(st.characters(codec="utf-8"), max_size=3),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.null(): st.none(),
    pa.list_(pa.int8()): st.lists(st.integers(0, 9), max_size=3),
    pa.map_(pa.string(), pa.int8()): st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), max_size=2),
    USER: st.fixed_dictionaries({"name": st.none() | st.text("ab"), "sizes": st.none() | st.lists(st.integers(0, 9))}),
}


@st.composite
def slices(draw: st.DrawFn) -> tuple[pa.DataType, list[Any], list[int | None]]:
    """A type, values of distinct keys, and codes, often those of rows that each have their own key."""
    data_type = draw(st.sampled_from(list(TYPES)))
    values = draw(st.lists(st.none() | TYPES[data_type], max_size=8))
    numbers = st.sampled_from(range(len(values))) if values else st.nothing()
    codes = (
        st.lists(st.none() | numbers, max_size=12)
        | st.just(list(range(len(values))))
        | st.permutations(range(len(values)))
    )
    return data_type, values, draw(codes)


@UNHURRIED
@given(slices(), st.integers(0, 3))
def test_each_row_gets_the_value_of_its_key(slice_: tuple[pa.DataType, list[Any], list[int | None]], skip: int) -> None:
    data_type, values, codes = slice_
    # Codes that are a slice themselves: their buffer begins elsewhere.
    array = pa.array([None] * skip + codes, pa.int32())[skip:]

    column = assemble(values, array, data_type)

    assert column.to_pylist() == [None if code is None else values[code] for code in codes]
    assert column.type == data_type
    assert isinstance(column, pa.Array)
    column.validate(full=True)


@UNHURRIED
@given(slices(), st.integers(1, 200), st.booleans())
def test_pieces_are_the_rows_in_order(
    slice_: tuple[pa.DataType, list[Any], list[int | None]], most: int, details: bool
) -> None:
    data_type, values, codes = slice_
    outcomes = Outcomes(values, len(codes), details=details)
    outcomes.put(range(len(values)), values, bytes([OK]) * len(values))
    array = pa.array(codes, pa.int32())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("enrichkit.worker.assemble.BYTES", most)
        pieces = list(columns_of(outcomes, array, data_type))

    whole = assemble_details(outcomes, array, data_type) if details else assemble(values, array, data_type)
    assert [row for piece in pieces for row in piece.to_pylist()] == whole.to_pylist()
    assert {piece.type for piece in pieces} <= {whole.type}
    assert all(len(piece) for piece in pieces) or not codes


@pytest.mark.parametrize("wrap", [lambda text: text, lambda text: {"name": text, "sizes": [1]}], ids=["text", "struct"])
@pytest.mark.parametrize("details", [False, True], ids=["value", "details"])
def test_a_wide_value_that_many_rows_share_leaves_in_pieces(wrap: Any, details: bool) -> None:
    wide, data_type = 2**20, USER if isinstance(wrap(""), dict) else pa.string()
    outcomes = Outcomes(["few", "many"], 201, details=details)
    outcomes.put(range(2), [wrap("x"), wrap("y" * wide)], bytes([OK, OK]))

    pieces = list(columns_of(outcomes, pa.array([0] + [1] * 200, pa.int32()), data_type))

    assert [wrap("x")] + [wrap("y" * wide)] * 200 == [
        row["value"] if details else row for piece in pieces for row in piece.to_pylist()
    ]
    assert max(piece.nbytes for piece in pieces) <= BYTES
    assert len(pieces) <= 200 * wide // BYTES + 2


def test_rows_that_fit_leave_in_one_piece() -> None:
    outcomes = Outcomes(range(5000), 10_000)
    outcomes.put(range(5000), ["x" * 100] * 5000, bytes([OK]) * 5000)

    assert [10_000] == [
        len(piece) for piece in columns_of(outcomes, pa.array([*range(5000)] * 2, pa.int32()), pa.string())
    ]


def test_a_null_struct_is_null_and_no_struct_of_nulls() -> None:
    column = assemble([None, {}], pa.array([0, 1, None], pa.int32()), USER)

    assert column.is_null().to_pylist() == [True, False, True]


@st.composite
def settled(draw: st.DrawFn) -> tuple[Outcomes, list[int | None]]:
    _, values, codes = draw(slices().filter(lambda slice_: slice_[0] == pa.string()))
    outcomes = Outcomes([f"key{index}" for index in range(len(values))], len(codes), details=True)
    outcomes.values = values
    for index in range(len(values)):
        outcomes.statuses[index] = draw(st.sampled_from([OK, MISSING, TIMEOUT, ERROR, REJECTED]))
        outcomes.details.attempts[index] = draw(st.integers(0, 3))  # type: ignore[union-attr]  # there are details
        outcomes.details.latencies[index] = draw(st.floats(0, 10))  # type: ignore[union-attr]  # there are details
        outcomes.details.origins[index] = draw(st.sampled_from(["call", "shared", "cache", None]))  # type: ignore[union-attr]
        if outcomes.statuses[index] in (ERROR, REJECTED) and draw(st.booleans()):
            outcomes.errors[index] = "TransientError: refused"
    return outcomes, codes


@UNHURRIED
@given(settled())
def test_each_row_gets_the_outcome_of_its_key(case: tuple[Outcomes, list[int | None]]) -> None:
    outcomes, codes = case
    null_key = {"value": None, "status": "null_key", "error": None, "attempts": 0, "latency": 0.0, "origin": None}

    column = assemble_details(outcomes, pa.array(codes, pa.int32()), pa.string())

    assert column.to_pylist() == [
        null_key
        if code is None
        else {
            "value": outcomes.values[code],
            "status": STATUSES[outcomes.statuses[code]],
            "error": outcomes.errors.get(code),
            "attempts": outcomes.details.attempts[code],  # type: ignore[union-attr]  # there are details
            "latency": outcomes.details.latencies[code],  # type: ignore[union-attr]  # there are details
            "origin": outcomes.details.origins[code],  # type: ignore[union-attr]  # there are details
        }
        for code in codes
    ]
    assert str(column.type) == (
        "struct<value: string, status: string, error: string, attempts: int32, latency: double, origin: string>"
    )
    column.validate(full=True)


def test_a_struct_that_is_missing_is_null_inside_the_details() -> None:
    outcomes = Outcomes(["a"], 2, details=True)
    outcomes.statuses[0] = MISSING

    column = assemble_details(outcomes, pa.array([0, None], pa.int32()), USER)

    assert column.field("value").is_null().to_pylist() == [True, True]
    assert column.is_null().to_pylist() == [False, False]


def test_an_error_whose_text_is_no_utf_8_does_not_fail_the_slice() -> None:
    outcomes = Outcomes(["a"], 1, details=True)
    outcomes.statuses[0] = ERROR
    outcomes.errors[0] = "ValueError: \udcff"

    column = assemble_details(outcomes, pa.array([0], pa.int32()), pa.string())

    assert column.field("error").to_pylist() == ["ValueError: \\udcff"]


def test_details_of_outcomes_without_details_are_refused() -> None:
    with pytest.raises(ValueError) as error:
        assemble_details(Outcomes(["a"], 1), pa.array([0], pa.int32()), pa.string())

    assert str(error.value) == (
        "The outcomes have no details; they must be made with details=True. Ask the run for details."
    )


# Values that come in columns, of the keys of one call each.


@st.composite
def tilings(draw: st.DrawFn, size: int) -> list[Sequence[int]]:
    """The places 0 to *size*, each in one of some parts: ranges, or lists in any order. Parts come in any order."""
    places = draw(st.just(list(range(size))) | st.permutations(range(size)))
    cuts = sorted(draw(st.sets(st.sampled_from(range(1, size)), max_size=4))) if size > 1 else []
    parts: list[Sequence[int]] = []
    for start, end in zip([0, *cuts], [*cuts, size], strict=True):
        part = places[start:end]
        side_by_side = part and part == list(range(part[0], part[0] + len(part)))
        parts += [range(part[0], part[0] + len(part)) if side_by_side and draw(st.integers(0, 5)) else part]
    return draw(st.permutations([part for part in parts if part]))


@st.composite
def in_columns(draw: st.DrawFn) -> tuple[pa.DataType, Outcomes, Outcomes, list[int | None]]:
    """A type, outcomes of which some parts came as columns, the same outcomes as one list, and codes."""
    data_type, values, codes = draw(slices())
    by_part, by_list = (Outcomes(range(len(values)), len(codes), details=True) for _ in range(2))
    statuses = bytes(draw(st.sampled_from([OK, MISSING, TIMEOUT])) for _ in values)
    by_list.put(range(len(values)), values, statuses)
    only_columns = draw(st.booleans())
    for places in draw(tilings(len(values))):
        part: Any = [values[place] for place in places]
        if only_columns or draw(st.booleans()):
            # One column of a call may serve several slices of rows: it is cut then, and its buffers begin elsewhere.
            skip, more = draw(st.integers(0, 2)), draw(st.integers(0, 2))
            part = pa.array([None] * skip + part + [None] * more, data_type)[skip : skip + len(part)]
        by_part.put(places, part, bytes(statuses[place] for place in places))
    return data_type, by_part, by_list, codes


@UNHURRIED
@given(in_columns())
def test_values_that_came_in_columns_are_those_of_the_list(
    case: tuple[pa.DataType, Outcomes, Outcomes, list[int | None]],
) -> None:
    data_type, by_part, by_list, codes = case
    rows = pa.array(codes, pa.int32())

    column = values_of(by_part, data_type)

    assert isinstance(column, pa.Array)
    assert column.type == data_type
    column.validate(full=True)
    assert pa.array(by_list.values, data_type).to_pylist() == column.to_pylist()
    assert values_of(by_list, data_type).equals(column)
    assert assemble(by_list.values, rows, data_type).to_pylist() == assemble(column, rows, data_type).to_pylist()


@UNHURRIED
@given(in_columns())
def test_details_of_values_that_came_in_columns_are_those_of_the_list(
    case: tuple[pa.DataType, Outcomes, Outcomes, list[int | None]],
) -> None:
    data_type, by_part, by_list, codes = case
    rows = pa.array(codes, pa.int32())

    details = assemble_details(by_part, rows, data_type)

    assert assemble_details(by_list, rows, data_type).to_pylist() == details.to_pylist()
    assert 0 == by_part.unsettled
    details.validate(full=True)


def test_columns_that_lie_side_by_side_are_put_in_order_of_place() -> None:
    outcomes = Outcomes("abcd", 4)
    outcomes.put(range(2, 4), pa.array(["C", "D"]), bytes([OK] * 2))
    outcomes.put(range(2), pa.array(["A", "B"]), bytes([OK] * 2))

    assert ["A", "B", "C", "D"] == values_of(outcomes, pa.string()).to_pylist()


def test_a_fallback_stays_between_the_columns_around_it() -> None:
    outcomes = Outcomes("abcd", 4)
    outcomes.put([3, 0], pa.array(["D", "A"]), bytes([OK] * 2))
    outcomes.put([2], ["instead"], bytes([MISSING]))

    assert ["A", None, "instead", "D"] == values_of(outcomes, pa.string()).to_pylist()


def test_columns_that_begin_at_the_first_key_leave_the_last_ones_to_the_list() -> None:
    outcomes = Outcomes("abcd", 4)
    outcomes.put(range(2), pa.array(["A", "B"]), bytes([OK] * 2))
    outcomes.put(range(2, 4), ["C", "D"], bytes([OK] * 2))

    assert ["A", "B", "C", "D"] == values_of(outcomes, pa.string()).to_pylist()


def test_a_null_struct_in_a_column_is_null_and_no_struct_of_nulls() -> None:
    outcomes = Outcomes("abc", 3)
    outcomes.put([2, 1], pa.array([None, {}], USER), bytes([MISSING, OK]))

    assert [True, False, True] == values_of(outcomes, USER).is_null().to_pylist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "data_type"), [("x", pa.string()), ({"a": "x"}, pa.struct([("a", pa.string())]))], ids=["text", "struct"]
)
def test_more_than_2_gib_of_text_in_one_slice_fails_with_advice(value: Any, data_type: pa.DataType) -> None:
    long = "x" * 2**26
    value = {"a": long} if isinstance(value, dict) else long

    with pytest.raises(TaskFailedError) as error:
        assemble([value], pa.array([0] * 33, pa.int32()), data_type)

    assert str(error.value) == (
        "The values of a slice of rows hold more than 2 GiB; an Arrow column of text holds at most that. Lower window, "
        "an eighth of which a slice has, or declare fewer fields with returns=."
    )


@pytest.mark.slow
def test_more_than_2_gib_of_text_in_distinct_values_fails_with_advice() -> None:
    with pytest.raises(TaskFailedError, match="more than 2 GiB"):
        assemble(["x" * 2**26] * 33, pa.array(range(33), pa.int32()), pa.string())
