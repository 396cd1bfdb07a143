"""Keys in columns: a Sequence that says what the list of the same keys says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.interface import Keys
from enrichkit.worker.keys import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

UNHURRIED = settings(deadline=None)  # a busy machine stalls now and then

OBJECTS = (
    st.lists(st.integers(-5, 2**40), max_size=8, unique=True)
    | st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=8, unique=True)
    | st.lists(st.tuples(st.integers(0, 9), st.text("ab", max_size=2)), max_size=8, unique=True)
)
SLICES = st.lists(st.slices(8), max_size=4)


class Maker:
    """Makes the objects of some keys, and counts how often."""

    def __init__(self, objects: list[Any]) -> None:
        self.objects = objects
        self.times = 0

    def __call__(self) -> list[Any]:
        self.times += 1
        return list(self.objects)


def columns_of(objects: Sequence[Any]) -> list[Any]:
    if not objects or not isinstance(objects[0], tuple):
        return [pa.array(objects, None if objects else pa.string())]
    return [pa.array(part) for part in zip(*objects, strict=True)]


def in_columns(objects: list[Any]) -> Keys:
    return Keys(columns_of(objects), Maker(objects))


def check(keys: Keys, expected: list[Any]) -> None:
    """*keys* are what the list *expected* is."""
    assert len(keys) == len(expected)
    assert bool(keys) == bool(expected)
    assert [*keys] == expected
    assert [*reversed(keys)] == expected[::-1]
    assert keys.objects() == expected
    every, start, end = keys.place()
    assert every[start:end] == expected
    assert [keys[n] for n in range(-len(expected), len(expected))] == expected * 2
    for beyond in (len(expected), -len(expected) - 1):
        with pytest.raises(IndexError):
            keys[beyond]
    assert all(key in keys and keys.index(key) == n for n, key in enumerate(expected))
    assert "another" not in keys
    assert repr(keys) == f"Keys({expected!r})"
    columns = [column.to_pylist() for column in keys.columns]
    assert columns == ([expected] if len(columns) == 1 else [[key[n] for key in expected] for n in range(2)])


@UNHURRIED
@given(OBJECTS, SLICES)
def test_keys_and_their_slices_are_the_list_of_their_objects(objects: list[Any], cuts: list[slice]) -> None:
    keys = whole = in_columns(objects)
    expected = objects
    for cut in cuts:
        keys, expected = keys[cut], expected[cut]
        assert isinstance(keys, Keys)
    check(keys, expected)
    check(whole, objects)
    check(Keys(columns_of(objects), objects), objects)


@UNHURRIED
@given(OBJECTS, SLICES, SLICES, st.booleans())
def test_objects_are_made_once_for_keys_and_all_their_slices(
    objects: list[Any], cuts: list[slice], others: list[slice], part_first: bool
) -> None:
    make = Maker(objects)
    whole = Keys(columns_of(objects), make)
    parts = []
    for chosen in (cuts, others):
        part = whole
        for cut in chosen:
            part = part[cut]
        parts.append(part)
    assert [len(part) for part in parts] == [len(part.columns[0]) for part in parts]
    assert make.times == 0, "their number and a part of them are known without"
    for part in (*parts, whole) if part_first else (whole, *parts):
        list(part)
    assert parts[0].objects() is parts[0].objects()
    assert make.times == 1


@UNHURRIED
@given(OBJECTS, OBJECTS)
def test_keys_equal_a_list_or_tuple_or_keys_of_the_same_objects(objects: list[Any], others: list[Any]) -> None:
    keys = in_columns(objects)
    assert keys == objects
    assert objects == keys
    assert keys == tuple(objects)
    assert keys == in_columns(objects)
    for other in (others, tuple(others), in_columns(others)):
        assert (keys == other) == (objects == others)
        assert (other == keys) == (objects == others)
        assert (keys != other) == (objects != others)


def test_keys_of_another_number_are_told_apart_without_a_look_at_the_objects() -> None:
    make = Maker([1, 2])
    keys = Keys([pa.array([1, 2])], make)
    assert keys != [1, 2, 3]
    assert keys != Keys([pa.array([1])], make)
    assert make.times == 0


@pytest.mark.parametrize("other", [{1, 2}, {1: 1, 2: 2}, 12, None, iter([1, 2])])
def test_keys_equal_nothing_but_a_sequence(other: Any) -> None:
    assert in_columns([1, 2]) != other


@pytest.mark.parametrize(("objects", "other"), [(["a", "b"], "ab"), ([97, 98], b"ab"), ([97], bytearray(b"a"))])
def test_keys_are_not_the_text_or_bytes_of_which_they_are_the_parts(objects: list[Any], other: Any) -> None:
    assert objects != other
    assert in_columns(objects) != other


def test_keys_cannot_be_hashed() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(in_columns([1]))


@UNHURRIED
@given(st.lists(OBJECTS.filter(bool), min_size=1, max_size=4), SLICES)
def test_keys_followed_by_others_are_the_list_of_both(lists: list[list[Any]], cuts: list[slice]) -> None:
    lists = [objects for objects in lists if type(objects[0]) is type(lists[0][0])]
    makers = [Maker(objects) for objects in lists]
    all_keys = [Keys(columns_of(make.objects), make) for make in makers]
    joined = all_keys[0].followed_by(all_keys[1:])
    assert joined is not None
    expected = [key for objects in lists for key in objects]
    assert len(joined) == len(expected)
    for cut in cuts:
        joined, expected = joined[cut], expected[cut]
    assert sum(make.times for make in makers) == 0
    assert joined == expected
    assert [key for keys in zip(*(column.to_pylist() for column in joined.columns), strict=True) for key in keys] == [
        part for key in expected for part in (key if isinstance(key, tuple) else (key,))
    ]
    for keys in all_keys:
        list(keys)
    assert {make.times for make in makers} == {1}
    for keys, objects in zip(all_keys, lists, strict=True):
        check(keys, objects)


def test_keys_followed_by_none_are_they_themselves() -> None:
    keys = in_columns([1, 2])
    assert keys.followed_by([]) is keys


def test_keys_of_another_type_do_not_follow() -> None:
    keys = in_columns([1, 2])
    assert keys.followed_by([in_columns(["a"])]) is None
    assert keys.followed_by([in_columns([3]), Keys([pa.array([4], pa.int32())], [4])]) is None
    assert in_columns([(1, "a")]).followed_by([Keys([pa.array([2]), pa.array([3])], [(2, 3)])]) is None


@pytest.mark.parametrize("objects", [[*"abcde"], [(1, "a"), (2, "b"), (3, "c"), (4, "d")]])
def test_a_sample_is_some_of_the_keys(objects: list[Any]) -> None:
    keys = in_columns(objects)
    assert keys.sample(2, 1) == objects[1:3]
    assert keys[1:].sample(2) == objects[1:3]
    assert keys[1:].sample(9, 2) == objects[3:]


def test_parts_of_keys_may_be_put_together_again() -> None:
    make = Maker([*"abcde"])
    keys = Keys([pa.array([*"abcde"])], make)
    joined = keys[3:].followed_by([keys[:1], keys[1:3]])
    assert joined is not None
    assert joined.columns[0].to_pylist() == [*"deabc"]
    assert joined == [*"deabc"]
    assert make.times == 1


def test_keys_may_be_cut_as_often_as_calls_are_made_for_them() -> None:
    """A slice of rows may have the keys of a thousand calls, and no call may have asked for an object."""
    keys = in_columns([*range(3000)])
    firsts = []
    while keys:
        firsts.append(keys[:2])
        keys = keys[2:]
    assert firsts[-1] == [2998, 2999]
    assert [key for first in firsts for key in first] == [*range(3000)]


def test_objects_may_be_asked_for_by_two_threads() -> None:
    """A connector may look at the keys in a thread while the loop makes a lookup of each."""

    class Slow(Maker):
        """Another thread has made the objects when this one has just seen that there are none."""

        @property  # type: ignore[misc]
        def __class__(self) -> type:
            keys._objects = [1, 2]
            return Slow

    keys = Keys([pa.array([1, 2])], Slow([1, 2]))
    assert keys.objects() == [1, 2]


def test_text_that_is_no_utf_8_is_bytes_in_columns_and_distinct_objects() -> None:
    raw = [b"\xff", b"a", b"\xfe", "ä".encode(), b"\xed\xb3\xbf"]
    keys, _ = encode([pa.array(raw, pa.binary()).view(pa.string())])
    objects = ["\udcff", "a", "\udcfe", "ä", "\udced\udcb3\udcbf"]
    for cut in (slice(None), slice(1, None), slice(1, 2), slice(None, None, 2), slice(0, 0)):
        part = keys[cut]
        assert part.columns[0].cast(pa.binary()).to_pylist() == raw[cut]
        assert part == objects[cut]
        assert len(set(part)) == len(part)
    joined = keys[:1].followed_by([keys[3:]])
    assert joined is not None
    assert joined.columns[0].cast(pa.binary()).to_pylist() == [raw[0], *raw[3:]]
    assert joined == [objects[0], *objects[3:]]
