"""Keys to arguments and rows to answers: whole columns at once give what a look at each key and each row gives."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from enrichkit_postgres import PostgresConfig
from enrichkit_postgres.aggregates import Aggregate, as_array, as_integers, as_texts
from enrichkit_postgres.pgtypes import KeyColumn, PgType, ValueColumn, key_type
from enrichkit_postgres.statement import Statement, _can_hold, _distinct_and_requested
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from enrichkit.errors import TransientError
from enrichkit.plugin import Answers, Failure, Keys
from enrichkit.sql import Source
from enrichkit.worker.keys import encode


def type_of(name: str, category: str = "N") -> PgType:
    return PgType(name, True, "b", category, -1, f"pg_catalog.{name}[]", "pg_catalog", None)


INT4 = type_of("int4")
PLAIN, REFUSED = ValueColumn("string", "t.v"), ValueColumn("date", "t.d", "t.d > '9999-12-31'")
Row = tuple[Any, ...]
NUMBER = {"int2": ">h", "int4": ">i", "int8": ">q"}


def column_of_key(type_: PgType) -> KeyColumn:
    taken = key_type(type_)
    assert taken is not None
    return KeyColumn("k", type_.name, taken, type_.array or "")


def statement(
    width: int,
    values: dict[str, ValueColumn],
    *,
    aggregates: list[Aggregate] | None = None,
    type_: PgType = INT4,
    numbered: bool = False,
) -> Statement:
    taken = [column_of_key(type_)] * width
    return Statement(
        source=Source(PostgresConfig(table="t"), "the table t"),
        sql="",
        keys=taken,
        values=values,
        width=1 if numbered else width,
        numbered=numbered,
        aggregates=aggregates if aggregates is not None else [as_array("")] * (width + len(values) + 1),
        foreign_row=lambda: TransientError("foreign"),
    )


def in_binary(numbers: list[int], pg: str) -> bytes:
    """*numbers* as string_agg() of int4send() gives them."""
    return b"".join(struct.pack(NUMBER[pg], number) for number in numbers)


def in_one_text(texts: list[str | None]) -> tuple[bytes, bytes | None]:
    """*texts* as the aggregates of `as_texts` give them."""
    present = [text.encode() for text in texts if text is not None]
    lengths = [-1 if text is None else len(text.encode()) for text in texts]
    return in_binary(lengths, "int4"), b"".join(present) if present else None


def one_by_one(rows: list[Row], width: int, names: list[str], refuses: bool, many: bool) -> dict[Any, Any]:
    """What the answers are, found row by row."""
    matches: dict[Any, list[Row]] = {}
    for row in rows:
        matches.setdefault(row[0] if width == 1 else row[:width], []).append(row)
    found: dict[Any, Any] = {}
    for key, group in matches.items():
        values = [
            row[width] if len(names) == 1 else {name: row[width + n] for n, name in enumerate(names)} for row in group
        ]
        if refuses and any(row[-1] for row in group):
            found[key] = Failure
        elif many:
            found[key] = values
        else:
            found[key] = values[0] if len(values) == 1 else Failure
    return found


@settings(derandomize=True, deadline=None)
@given(
    data=st.data(),
    width=st.integers(1, 2),
    names=st.sampled_from([["v"], ["v", "it's"], ["a", "b", "c"]]),
    refuses=st.booleans(),
    many=st.booleans(),
)
def test_columns_are_read_as_their_rows_are(
    data: st.DataObject, width: int, names: list[str], refuses: bool, many: bool
) -> None:
    values = dict.fromkeys(names, PLAIN)
    if refuses:
        values[names[-1]] = REFUSED
    keys = st.integers(0, 5)
    value = st.one_of(st.none(), st.text(max_size=3))
    code = [st.sampled_from([None, None, len(names)])] if refuses else []
    row = st.tuples(*[keys] * width, *[value] * len(names), *code)
    rows: list[Row] = data.draw(st.lists(row, max_size=8))
    asked = [(a, b) if width == 2 else a for a in range(6) for b in range(6 if width == 2 else 1)]
    expected = one_by_one(rows, width, names, refuses, many)
    columns = [list(column) for column in zip(*rows, strict=True)]
    in_bytes: list[Any] = [in_binary(column, "int4") for column in columns[:width]]
    for column in columns[width : width + len(names)]:
        in_bytes += in_one_text(column)
    in_bytes += columns[width + len(names) :]
    bytes_of = [as_integers("", "int4")] * width + [as_texts("")] * len(names) + [as_array("")] * refuses
    nothing = [None] * 9
    forms = (([as_array("")] * (width + len(names) + refuses), [columns or nothing]), (bytes_of, [in_bytes or nothing]))
    for aggregates, answer in (*forms, ([], rows)):
        made = statement(width, values, aggregates=aggregates)
        found = made.read(answer, made.request(asked), many)
        assert expected == {key: Failure if isinstance(one, Failure) else one for key, one in found.items()}


@pytest.mark.parametrize(
    ("aggregates", "answer"),
    [
        ([as_array(""), as_array("")], [([1, 7], ["a", "b"])]),
        ([as_integers("", "int4"), as_texts("")], [(in_binary([1, 7], "int4"), *in_one_text(["a", "b"]))]),
        ([], [(1, "a"), (7, "b")]),
    ],
)
def test_a_row_of_another_key_makes_the_whole_answer_foreign(aggregates: list[Aggregate], answer: list[Any]) -> None:
    for keys in ([1, 2], encode([pa.array([1, 2])])[0]):
        made = statement(1, {"v": PLAIN}, aggregates=aggregates)
        with pytest.raises(TransientError, match="foreign"):
            made.read(answer, made.request(keys), False)


# Keys in columns

INTS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
TEXT_TYPES = [pa.string(), pa.large_string()]
# Few, so that those found and those asked for meet, and on either side of what a type and a column can hold.
EDGES = [sign * 2**bits + n for bits in (7, 15, 31, 32) for sign in (-1, 1) for n in (-1, 0, 1)]
numbers = st.integers(-3, 3) | st.sampled_from([*EDGES, 2**63 - 1, -(2**63)])
texts = st.sampled_from(["", "a", "b", "é", "🙂", "\0", "a\0", "%", " a", "x" * 70]) | st.text("ab", max_size=2)
raw_texts = st.sampled_from([b"\xff", b"a\xc3", b"\xed\xa0\x80"]) | texts.map(str.encode)


@st.composite
def asked_in_a_column(draw: st.DrawFn) -> Keys:
    """Keys of one column, maybe a part of more of them; texts need not be UTF-8."""
    data_type = draw(st.sampled_from([*INTS, *TEXT_TYPES]))
    if data_type in TEXT_TYPES:
        binary = pa.binary() if data_type == pa.string() else pa.large_binary()
        column = pa.array(draw(st.lists(raw_texts, min_size=1, max_size=7)), binary).view(data_type)
    else:
        most = 2 ** (data_type.bit_width - 1)
        column = pa.array(
            draw(st.lists(numbers.filter(lambda n: -most <= n < most), min_size=1, max_size=7)), data_type
        )
    keys, _ = encode([column])
    return keys[draw(st.integers(0, 1)) :][: draw(st.integers(1, 7))] or keys


@st.composite
def found_of(draw: st.DrawFn, asked: Keys, others: st.SearchStrategy[Any]) -> list[Any]:
    """What a server gives back for *asked*: all in their order, or others, some of them, some twice, in any order."""
    keys = list(asked)
    chosen = draw(st.permutations(keys))[: draw(st.integers(0, len(keys)))]
    more = draw(st.lists(st.sampled_from(keys) | others, max_size=1 if draw(st.booleans()) else 2))
    return draw(st.sampled_from([keys, chosen, chosen, draw(st.permutations([*chosen, *more]))]))


def of_its_kind(asked: Keys) -> st.SearchStrategy[Any]:
    return numbers if pa.types.is_integer(asked.columns[0].type) else texts


def is_utf_8(keys: list[Any]) -> bool:
    return all(not isinstance(key, str) or key.encode(errors="replace").decode() == key for key in keys)


asked_and_found = asked_in_a_column().flatmap(
    lambda asked: st.tuples(st.just(asked), found_of(asked, of_its_kind(asked)))
)


@settings(derandomize=True, deadline=None)
@given(asked_and_found)
@example((encode([pa.array([1, 2], pa.int8())])[0], [1, 300]))
@example((encode([pa.array([44], pa.int8())])[0], [300]))
def test_keys_that_came_back_are_found_in_a_column_as_one_by_one(case: tuple[Keys, list[Any]]) -> None:
    asked, found = case
    assume(is_utf_8(found))  # as all is that a server sends
    checked = _distinct_and_requested(found, asked)
    right = len(set(found)) == len(found) and set(found) <= set(asked)
    if checked is None:
        assert not right or asked.columns[0].type == pa.large_string()  # which is left to a look at each
    else:
        assert right
        assert list(checked) == found
        assert isinstance(checked, Keys)
        assert checked.columns[0].to_pylist() == found
        assert (checked is asked) == (found == list(asked))
    # Of a tuple only the usual case is seen at once.
    assert _distinct_and_requested(found, tuple(asked)) == (found if found == list(asked) else None)


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ([[1.5, 2.5]], [2.5]),
        ([[True, False]], [True]),
        ([[b"a", b"b"]], [b"b"]),
        ([[1, 2], ["a", "b"]], [(2, "b")]),
        ([[1, 2]], ["1"]),
        ([["1", "2"]], [1]),
        ([[1, 0]], [True]),
        ([[1, 2]], [None]),
        ([["a", "b"]], [None, "a"]),
    ],
)
def test_keys_of_which_no_column_speaks_are_left_to_a_look_at_each(columns: list[Any], found: list[Any]) -> None:
    asked, _ = encode([pa.array(column) for column in columns])
    assert _distinct_and_requested(found, asked) is None


def told(made: Statement, keys: Any, answer: Any, many: bool) -> Any:
    """What is sent for *keys* and what *answer* says of them then, or that it is foreign."""
    asked = made.request(keys)
    arguments = [argument if isinstance(argument, int | str) else list(argument) for argument in asked.arguments]
    rejected = {key: str(failure.error) for key, failure in asked.answers.items()}
    try:
        found = made.read([answer], asked, many)
    except TransientError as error:
        return arguments, rejected, str(error)
    return arguments, rejected, {key: str(v.error) if isinstance(v, Failure) else v for key, v in found.items()}


COLUMNS = ["int2", "int4", "int8", "oid", "numeric", "text", "varchar", "name", "bpchar", "uuid", "bool", "float8"]


@settings(derandomize=True, deadline=None)
@given(st.data(), st.sampled_from(COLUMNS), st.booleans())
def test_keys_in_a_column_are_sent_and_read_as_a_tuple_of_them(data: st.DataObject, name: str, many: bool) -> None:
    type_ = type_of(name)
    asked = data.draw(asked_in_a_column())
    found = data.draw(found_of(asked, of_its_kind(asked)))
    assume(is_utf_8(found))
    values = [f"v{n}" for n in range(len(found))]
    answer: Any = (found, values) if found else (None, None)
    forms = [([as_array(""), as_array("")], answer)]
    column = type_of(name).name if name in NUMBER and of_its_kind(asked) is numbers else None
    if column is not None and _can_hold(column_of_key(type_of(column)), found):
        forms.append(([as_integers("", column), as_texts("")], (in_binary(found, column), *in_one_text(values))))
    elif name in ("text", "varchar") and of_its_kind(asked) is texts:
        forms.append(([as_texts(""), as_texts("")], (*in_one_text(found), *in_one_text(values))))
    if not found:
        forms = forms[:1]
    said = [
        told(statement(1, {"v": PLAIN}, aggregates=aggregates, type_=type_), keys, sent, many)
        for keys in (asked, tuple(asked))
        for aggregates, sent in forms
    ]
    assert all(each == said[0] for each in said)


@settings(derandomize=True, deadline=None)
@given(st.data(), st.integers(1, 3), st.booleans())
def test_numbered_keys_in_columns_are_read_as_a_tuple_of_them(data: st.DataObject, width: int, many: bool) -> None:
    types = data.draw(st.lists(st.sampled_from([pa.int32(), pa.int64()]), min_size=width, max_size=width))
    rows = data.draw(st.lists(st.tuples(*[st.integers(-3, 3) | st.just(2**31 - 1)] * width), min_size=1, max_size=6))
    keys, _ = encode([pa.array(part, type_) for part, type_ in zip(zip(*rows, strict=True), types, strict=True)])
    places = data.draw(st.lists(st.integers(1, len(keys)), max_size=6))
    said = []
    for asked in (keys, tuple(keys)):
        made = statement(width, {"v": PLAIN}, aggregates=[as_integers("", "int8"), as_array("")], numbered=True)
        sent = made.request(asked)
        first = sent.arguments[-1]
        assert [list(map(int, argument.split(","))) for argument in sent.arguments[:-1]] == [
            [row[n] if width > 1 else row for row in keys] for n in range(width)
        ]
        values = [f"v{place}" for place in places]
        answer = (in_binary([first + place for place in places], "int8"), values) if places else (None, None)
        found = made.read([answer], sent, many)
        said.append({key: str(v.error) if isinstance(v, Failure) else v for key, v in found.items()})
        assert {*found} == {keys[place - 1] for place in places}
    assert said[1] == said[0]


@settings(derandomize=True, deadline=None)
@given(asked_in_a_column(), st.sampled_from(COLUMNS))
@example(encode([pa.array([2**31 - 1, -(2**31)])])[0], "int4")
@example(encode([pa.array([2**31, 0])])[0], "int4")
@example(encode([pa.array([0, -(2**31) - 1])])[0], "int4")
@example(encode([pa.array([0, 2**32 - 1])])[0], "oid")
@example(encode([pa.array([0, 2**32])])[0], "oid")
@example(encode([pa.array([-1, 5])])[0], "oid")
def test_a_column_of_keys_is_taken_where_a_tuple_of_them_is(asked: Keys, name: str) -> None:
    taken = column_of_key(type_of(name))
    assert _can_hold(taken, tuple(asked)) == _can_hold(taken, asked)
    assert _can_hold(taken, ()) == _can_hold(taken, asked[:0])


def test_numbers_that_all_came_back_need_no_look_at_each() -> None:
    def objects() -> list[Any]:
        made.append(1)
        return [3, 1, 2]

    made: list[int] = []
    keys = Keys([pa.array([3, 1, 2])], objects)
    assert _can_hold(column_of_key(INT4), keys)
    whole, part = _distinct_and_requested([3, 1, 2], keys), _distinct_and_requested([2, 3], keys)
    assert whole is keys
    assert isinstance(part, Keys)
    assert [column.to_pylist() for column in part.columns] == [[2, 3]]
    assert made == []
    assert list(part) == [2, 3]


@pytest.mark.parametrize("found", [[1, 2, 3], [3, 1]])
def test_answers_to_a_column_are_a_column_of_the_keys_that_were_asked(found: list[int]) -> None:
    made = statement(1, {"v": PLAIN}, aggregates=[as_integers("", "int4"), as_texts("")])
    keys, _ = encode([pa.array([1, 2, 3], pa.int16())])
    sent = (in_binary(found, "int4"), *in_one_text(["v"] * len(found)))
    answers = made.read([sent], made.request(keys), False)
    assert isinstance(answers, Answers)
    assert isinstance(answers.found, Keys)
    assert answers.found.columns[0].type == pa.int16()
    assert answers.found == found
    assert isinstance(answers.columns, pa.Array)
    assert answers.columns.equals(pa.array(["v"] * len(found)))
