"""The bytes that go to the server."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from enrichkit_redis import commands
from enrichkit_redis.commands import pack, pack_each, pack_keys
from hypothesis import given
from hypothesis import strategies as st

from enrichkit.plugin import Keys

letters = st.sampled_from("ab0\r\n$*é€🙂\0")
texts = st.text(letters, max_size=6)
of_one_length = st.integers(0, 5).flatmap(
    lambda size: st.lists(st.text(letters, min_size=size, max_size=size), min_size=1, max_size=5)
)
words = st.lists(texts, max_size=2)


def column_of(names: list[str], data_type: Any, skip: int) -> Keys:
    """Return *names* as a column that is a slice of a longer column."""
    column = pa.array([*(["not asked for"] * skip), *names, "neither"], data_type)[skip : skip + len(names)]
    return Keys([column], names)


@given(st.lists(texts | st.binary(max_size=6), min_size=1, max_size=5), words)
def test_keys_are_packed_as_hiredis_packs_them(names: list[str | bytes], more: list[str]) -> None:
    assert pack_keys("MGET", names) == pack(("MGET", *names))
    assert pack_each(("HMGET",), names, more) == [pack(("HMGET", name, *more)) for name in names]


@given(
    of_one_length | st.lists(texts, min_size=1, max_size=5),
    st.sampled_from([pa.string(), pa.large_string()]),
    st.integers(0, 2),
    words,
    words,
)
def test_a_column_of_keys_is_packed_as_hiredis_packs_its_keys(
    names: list[str], data_type: Any, skip: int, before: list[str], after: list[str]
) -> None:
    column = column_of(names, data_type, skip)
    for few in (1, commands.FEW):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commands, "FEW", few)
            assert pack_keys("MGET", column) == pack(("MGET", *names))
            each = [pack(("GET", *before, name, *after)) for name in names]
            assert pack_each(("GET", *before), column, after) == each


def test_a_long_column_is_packed_without_an_object_for_each_key() -> None:
    def objects() -> list[str]:
        raise AssertionError

    names = [f"u{number}" for number in range(commands.FEW)]
    column = Keys([pa.array(names)], objects)
    assert pack_keys("MGET", column) == pack(("MGET", *names))
    assert pack_each(("GET",), column) == [pack(("GET", name)) for name in names]
