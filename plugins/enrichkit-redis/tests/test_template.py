"""Keys in columns and keys in a list get the same names and the same rejections. No server."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from enrichkit_redis.template import MAX_KEY_BYTES, KeyTemplate, RejectedKeyError
from hypothesis import assume, example, given
from hypothesis import strategies as st

from enrichkit.errors import FatalError, PermanentError
from enrichkit.plugin import Keys
from enrichkit.worker.keys import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

# Characters that a wrong encoding would confuse: separators, hexadecimal digits, braces, NUL, a sign, and non-ASCII.
letters = st.sampled_from("ab01235ABD:/-%{} \0\r\né€🙂")
texts = st.text(letters, max_size=6)
long_texts = st.sampled_from(["x" * MAX_KEY_BYTES, "%" * (MAX_KEY_BYTES // 3), "é" * (MAX_KEY_BYTES // 2 + 1)])
broken = st.sampled_from([b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xc0\x80", b":\xf8%"])
raw_texts = st.one_of(texts.map(str.encode), texts.map(str.encode), broken, long_texts.map(str.encode))
numbers = st.integers(-12, 12) | st.sampled_from([-(2**7), 2**7 - 1])

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.string(): raw_texts,
    pa.large_string(): raw_texts,
    pa.int8(): numbers,
    pa.int16(): numbers | st.integers(-(2**15), 2**15 - 1),
    pa.int32(): numbers | st.integers(-(2**31), 2**31 - 1),
    pa.int64(): numbers | st.integers(-(2**63), 2**63 - 1),
    pa.binary(): raw_texts,
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(9, 2): st.decimals(-99999, 99999, places=2),
    pa.date32(): st.dates(),
}
USUAL = [pa.string(), pa.int64()]


def column_of(values: Sequence[Any], data_type: Any) -> pa.Array[Any]:
    """Return *values* as an array; texts are given as bytes, which need not be UTF-8."""
    if pa.types.is_string(data_type):
        return pa.array(values, pa.binary()).view(data_type)
    if pa.types.is_large_string(data_type):
        return pa.array(values, pa.large_binary()).view(data_type)
    return pa.array(values, data_type)


@st.composite
def keys_in_columns(draw: st.DrawFn, width: int) -> Keys:
    """One or more keys of *width* columns; sometimes a slice of more keys."""
    types = draw(st.lists(st.sampled_from([*USUAL * 5, *VALUES]), min_size=width, max_size=width))
    row = st.tuples(*[VALUES[data_type] for data_type in types])
    rows = draw(st.lists(row, min_size=1, max_size=6))
    columns = [column_of(values, data_type) for values, data_type in zip(zip(*rows, strict=True), types, strict=True)]
    keys, _ = encode(columns)
    assume(keys)  # NaN is no key
    part = keys[draw(st.integers(0, 2)) :][: draw(st.integers(1, 6))]
    return part or keys


def escaped(literal: str) -> str:
    return literal.replace("{", "{{").replace("}", "}}")


@st.composite
def templates(draw: st.DrawFn, width: int) -> str:
    """A template for *width* columns, each in one or several fields, in any order."""
    order = draw(st.permutations([*range(width), *draw(st.lists(st.integers(0, width - 1), max_size=2))]))
    between = st.sampled_from([":", "::", "-", "}:{", "1", "25", "3A", "[:a-z:]", "\\d", "^.*$"])
    if width == 1:
        between |= texts
    else:
        between |= st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="%"), min_size=1)
    fields = [f"{escaped(draw(between))}{{{column}}}" for column in order[1:]]
    around = st.sampled_from(["", "", "user:"]) | texts
    return f"{escaped(draw(around))}{{{order[0]}}}{''.join(fields)}{escaped(draw(around))}"


def as_bytes(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode()


def one_by_one(template: str, keys: Sequence[Any]) -> Any:
    """Return the result of `told`, computed key by key."""
    made = KeyTemplate(template)
    names, failures = [], []
    for key in keys:
        try:
            names.append(as_bytes(made._name(key)))
        except RejectedKeyError as error:
            failures.append((key, PermanentError, str(error), True))
    return names, failures


def told(template: str, keys: Sequence[Any]) -> Any:
    """Return the names of *keys*, and the rejected keys with whole messages, in their order."""
    names, refused = KeyTemplate(template).names(keys)
    if isinstance(names, Keys):
        assert [names.columns[0].to_pylist()] == [names.objects()]
    failures = [(key, type(each.error), str(each.error), each.rejected) for key, each in refused.items()]
    found = [as_bytes(name) for name in names], failures
    assert one_by_one(template, keys) == found
    return found


@given(st.integers(1, 3).flatmap(lambda width: st.tuples(templates(width), keys_in_columns(width))))
@example(("{1}-{0}", encode([pa.array(["a", "b"]), pa.array([-1, 2])])[0]))  # the separator is the sign of a number
@example(
    ("{}25{}", encode([pa.array(["%", "2"]), pa.array(["5", "%5"])])[0])
)  # the separator holds digits of encoded characters
@example(("{}13{}", encode([pa.array(["1"]), pa.array([3])])[0]))
def test_keys_in_columns_have_the_same_names_and_rejections_as_a_list_of_them(case: tuple[str, Keys]) -> None:
    template, keys = case
    assert told(template, list(keys)) == told(template, keys)


@pytest.mark.parametrize("before", ["", "1", "#~"])
def test_each_character_of_a_separator_is_encoded_once_in_both_parts(before: str) -> None:
    """Any character of a separator, before and after the characters of encoded forms."""
    for char in map(chr, range(33, 127)):
        if char == "%":
            continue
        template = f"{{}}{escaped(before + char)}{{}}"
        parts = [f"{char}%{{1#~", f"A9{char}", "%25", "-7", char * 2]
        for others in (pa.array(parts[::-1]), pa.array([-7, 12, 0, 345, 6890])):
            keys, _ = encode([pa.array(parts), others])
            assert told(template, list(keys)) == told(template, keys)


@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_another_number_of_columns_is_refused_with_the_same_message(
    data: st.DataObject, fields: int, width: int
) -> None:
    assume(fields != width)
    template, keys = KeyTemplate(data.draw(templates(fields))), data.draw(keys_in_columns(width))
    said = []
    for given_ in (list(keys), keys):
        with pytest.raises(FatalError) as caught:
            template.names(given_)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert f"the lookup has {width} key column" in said[0]


def objects() -> list[Any]:
    raise AssertionError


TEXTS, BIG, SMALL = pa.array(["a:%", "", "é\0"]), pa.array([-1, 2**62, 7]), pa.array([1, -2, 3], pa.int8())


@pytest.mark.parametrize(
    ("template", "columns", "expected"),
    [
        ("{}", [TEXTS], ["a:%", "", "é\0"]),
        ("{}", [BIG], ["-1", str(2**62), "7"]),
        ("user:{}", [TEXTS], ["user:a:%", "user:", "user:é\0"]),
        ("u{}/{{}}", [SMALL], ["u1/{}", "u-2/{}", "u3/{}"]),
        ("{0}{0}", [TEXTS], ["a:%a:%", "", "é\0é\0"]),
        ("{}:{}", [TEXTS, BIG], ["a%3A%25:-1", f":{2**62}", "é\0:7"]),
        ("{1}-{0}", [BIG, TEXTS], ["a:%25-%2D1", f"-{2**62}", "é\0-7"]),
        ("{b}|{a}|{b}", [SMALL, TEXTS], ["1|a:%25|1", "-2||-2", "3|é\0|3"]),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_texts_and_whole_numbers_become_names_without_an_object_for_each(
    template: str, columns: list[Any], expected: list[str], first: int
) -> None:
    names, refused = KeyTemplate(template).names(Keys([column[first:] for column in columns], objects))
    assert isinstance(names, Keys)
    assert names.columns[0].to_pylist() == expected[first:]
    assert refused == {}


@pytest.mark.parametrize(
    ("column", "refused"),
    [
        (column_of([b"a", b"\xff", b"b"], pa.string()), [1]),
        (column_of([b"a", b"\xff", b"b"], pa.large_string()), [1]),
        (pa.array(["a", "x" * MAX_KEY_BYTES, "b"]), [1]),
        (pa.array(["é" * (MAX_KEY_BYTES // 2), "é" * (MAX_KEY_BYTES // 2 - 1)]), [0]),
        (pa.array([True, False]), [0, 1]),
        (pa.array([1.5, 2.0]), []),
        (pa.array([Decimal("1.50")]), []),
        (pa.array([date(2024, 2, 29)]), []),
        (pa.array([b"\xff", b""]), []),
    ],
)
def test_keys_that_cannot_be_named_as_a_column_are_named_one_by_one(column: Any, refused: list[int]) -> None:
    keys, _ = encode([column])
    names, failures = KeyTemplate("k{}").names(keys)
    assert [keys[n] for n in refused] == list(failures)
    assert len(names) == len(keys) - len(refused)
    assert told("k{}", keys) == told("k{}", list(keys))


@pytest.mark.parametrize(("template", "char", "size"), [("{}", "x", 1), ("k{}", "é", 2), ("{}:{}", "%", 3)])
def test_the_longest_name_allowed_is_the_same_in_a_column(template: str, char: str, size: int) -> None:
    """The limit counts the bytes of the whole name after the encoding."""
    width = KeyTemplate(template).columns
    for count in range(MAX_KEY_BYTES // size - 2, MAX_KEY_BYTES // size + 2):
        keys, _ = encode([pa.array([char * count])] + [pa.array(["a"])] * (width - 1))
        assert told(template, list(keys)) == told(template, keys)
