"""What goes to the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import enrichkit_redis.wire
from enrichkit_redis.wire import pack, pack_keys
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    import pytest

letters = st.sampled_from("ab0\r\n$*é€🙂\0")
texts = st.text(letters, max_size=6)
of_one_length = st.integers(0, 5).flatmap(
    lambda size: st.lists(st.text(letters, min_size=size, max_size=size), min_size=1, max_size=5)
)
of_any = st.lists(texts | st.binary(max_size=6), min_size=1, max_size=5)


@given(of_one_length | of_any)
def test_the_keys_of_a_command_are_packed_as_hiredis_packs_them(names: list[str | bytes]) -> None:
    assert pack_keys("MGET", names) == pack(("MGET", *names))


def test_ascii_names_of_one_length_need_no_look_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(enrichkit_redis.wire, "pack")
    assert pack_keys("MGET", ["u1", "u2"]) == b"*3\r\n$4\r\nMGET\r\n$2\r\nu1\r\n$2\r\nu2\r\n"
