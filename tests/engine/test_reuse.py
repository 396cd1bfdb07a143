"""What a task has found out stands for its later rows; where keys do not repeat, nothing is remembered."""

from __future__ import annotations

import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enrichkit.columnar import Keys
from enrichkit.engine.cache import ABSENT, MISS
from enrichkit.engine.reuse import TRIAL, WATCHED, Reuse
from enrichkit.errors import PermanentError, TransientError
from enrichkit.options import Retry, default
from enrichkit.testing.scripted import ScriptedConnector, Step

from .columns import Columnar, TakesColumns, column_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .bench import Lab

ROOM = 2**20


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3])
async def test_a_task_asks_for_a_key_once(lab: Lab, ordered: bool, batch_size: int) -> None:
    server = lab.server({"none": Step(missing=True), "null": Step(value=None)})
    engine = lab.engine(server, batch_size=batch_size)
    task = lab.task(engine, reuse=Reuse(ROOM), ordered=ordered, details=True)
    for moment in (0.0, 1.0, 2.0):
        await lab.at(moment)
        task.admit("one", "none", "null", f"only at {moment}")
    await task.end()
    assert set(server.asked.values()) == {1}
    by_key = {}
    for row in task.left:
        by_key.setdefault(row.key, []).append((row.value, row.status, row.origin, row.attempts))
    assert by_key["one"] == [("vone", "ok", "call", 1), *[("vone", "ok", "reuse", 0)] * 2]
    assert by_key["none"] == [(None, "missing", "call", 1), *[(None, "missing", "reuse", 0)] * 2]
    assert by_key["null"] == [(None, "ok", "call", 1), *[(None, "ok", "reuse", 0)] * 2]
    assert (task.run.stats.reused, task.run.stats.keys, task.run.stats.done) == (6, 12, 12)


@pytest.mark.parametrize("source", [Columnar, TakesColumns])
async def test_a_source_that_speaks_in_columns_is_asked_for_a_key_once(
    lab: Lab, source: type[ScriptedConnector]
) -> None:
    server = source()
    task = lab.task(lab.engine(server, batch_size=10), columns=column_of, reuse=Reuse(ROOM))
    for moment in (0.0, 1.0):
        await lab.at(moment)
        task.admit(*range(10))
    await task.end()
    assert task.values == [f"v{n}" for n in range(10)] * 2
    assert set(server.asked.values()) == {1}


@pytest.mark.parametrize(
    "step",
    [Step(error=PermanentError("no")), Step(error=TransientError("busy")), Step(after=30.0)],
    ids=["permanent", "transient", "timeout"],
)
async def test_what_failed_is_asked_anew(lab: Lab, step: Step) -> None:
    server, task = lab.start(
        {"a": step}, reuse=Reuse(ROOM), retry=None, on_error="null", on_timeout="null", timeout=1.0
    )
    for moment in (0.0, 10.0):
        await lab.at(moment)
        task.admit("a")
    await task.end()
    assert server.asked["a"] == 2
    assert task.run.stats.reused == 0


async def test_neither_a_fallback_nor_a_default_value_is_kept(lab: Lab) -> None:
    reuse = Reuse(ROOM)
    server, task = lab.start(
        {"a": Step(error=PermanentError("no")), "b": Step(missing=True)},
        reuse=reuse,
        on_error=default("instead"),
        on_missing=default("nobody"),
        max_fallback_ratio=1.0,
    )
    for moment in (0.0, 1.0):
        await lab.at(moment)
        task.admit("a", "b")
    await lab.at(2.0)
    assert (dict(server.asked), reuse.get_many(["a", "b"], 2.0)) == ({"a": 2, "b": 1}, [ABSENT, MISS])
    await task.end()
    assert task.values == ["instead", "nobody"] * 2
    assert len(reuse) == 0


async def test_a_miss_that_is_asked_for_again_is_kept_when_it_is_final(lab: Lab) -> None:
    server, task = lab.start(
        {"a": [Step(missing=True), Step(value="there")], "b": Step(missing=True)},
        reuse=Reuse(ROOM),
        retry=Retry(attempts=2, wait=0.1, on_missing=True),
    )
    for moment in (0.0, 5.0):
        await lab.at(moment)
        task.admit("a", "b")
    await task.end()
    assert task.values == ["there", None] * 2
    assert dict(server.asked) == {"a": 2, "b": 2}


def slices_of(numbers: Callable[[int], int], count: int, size: int = 1_000) -> list[list[int]]:
    return [list(dict.fromkeys(numbers(n) for n in range(start, start + size))) for start in range(0, count, size)]


def play(reuse: Reuse, slices: list[list[int]]) -> int:
    """Pass *slices* through *reuse* as a run does; return how many keys the source is asked for."""
    asked = 0
    for keys in slices:
        if not reuse.active:
            reuse.watch(keys)
            asked += len(keys)
            continue
        found = reuse.get_many(keys, 0.0)
        absent = [key for key, value in zip(keys, found, strict=True) if value is ABSENT]
        asked += len(absent)
        if reuse.active:
            reuse.put_many(absent, [f"v{key}" for key in absent], 0.0)
    return asked


def test_where_keys_do_not_repeat_nothing_is_kept_after_the_first_ones() -> None:
    reuse = Reuse(64 * 2**20)
    assert play(reuse, slices_of(lambda n: n, 10 * TRIAL)) == 10 * TRIAL
    assert not reuse.active
    assert (len(reuse), reuse.bytes) == (0, 0)


@pytest.mark.parametrize("distinct", [100, 10_000, 500_000])
def test_where_keys_repeat_each_is_asked_for_once(distinct: int) -> None:
    rng = random.Random(distinct)
    reuse = Reuse(2**30)
    slices = slices_of(lambda _: rng.randrange(distinct), 10 * TRIAL)
    assert play(reuse, slices) == len({key for keys in slices for key in keys})
    assert reuse.active


def test_keys_that_begin_to_repeat_late_are_noticed() -> None:
    reuse = Reuse(2**30)
    play(reuse, slices_of(lambda n: n, 5 * TRIAL))
    rng = random.Random(7)
    late = slices_of(lambda _: -rng.randrange(5_000), 10 * WATCHED * 1_000)
    asked = play(reuse, late)
    assert reuse.active
    assert asked < 3 * WATCHED * 1_000, "two rounds of watching, and the keys once"


def test_it_is_decided_before_the_first_answers_come() -> None:
    """A source with large calls is asked for so many keys at once."""
    for distinct, active in ((10_000, True), (10**9, False)):
        reuse, rng = Reuse(2**30), random.Random(distinct)
        for keys in slices_of(lambda _, rng=rng, distinct=distinct: rng.randrange(distinct), 4 * TRIAL):  # type: ignore[misc]
            assert not reuse.active or reuse.get_many(keys, 0.0) == [ABSENT] * len(keys)
        assert reuse.active == active


def test_a_task_whose_keys_stop_to_repeat_stops_to_remember() -> None:
    reuse = Reuse(2**30)
    play(reuse, slices_of(lambda n: n % 5_000, 3 * TRIAL))
    assert reuse.active
    play(reuse, slices_of(lambda n: -1 - n, 3 * TRIAL))
    assert not reuse.active


@pytest.mark.parametrize("many", [1, 300])
def test_a_slice_of_known_keys_is_known_after_one_that_was(many: int) -> None:
    """Whole slices take another way, which must come to the same."""
    reuse = Reuse(2**30)
    known = [f"k{n}" for n in range(many)]
    reuse.put_many(known, [f"v{n}" for n in range(many)], 0.0)
    for keys in (known, known[::-1], [*known, "new"], known, known[:1], [], known):
        assert reuse.get_many(keys, 0.0) == ["v" + key[1:] if key != "new" else ABSENT for key in keys]


def test_a_sample_makes_no_objects_of_the_other_keys() -> None:
    made = []

    def objects() -> list[Any]:
        made.append(True)
        return column.to_pylist()

    column = pa.array([f"u{n}" for n in range(1_000)])
    for keys in (Keys([column], objects), Keys([column], column.to_pylist())):
        assert keys.sample(3) == ["u0", "u1", "u2"]
        assert keys.sample(64, 990) == [f"u{n}" for n in range(990, 1_000)]
    assert not made
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 1], pa.int32()).buffers()[1], pa.py_buffer(b"\xff")]
    )
    assert Keys([broken], lambda: ["\udcff"]).sample(3) == []


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 60), unique=True, max_size=40), st.sampled_from(["together", "late", "one by one"])
        ),
        max_size=30,
    ),
    st.sampled_from([600, 2_000, 2**20]),
)
def test_it_never_gives_a_wrong_value_and_keeps_to_its_bytes(steps: list[tuple[list[int], str]], room: int) -> None:
    reuse, told = Reuse(room), dict[int, Any]()
    for keys, how in steps:
        found = reuse.get_many(keys, 0.0)
        assert all(value is ABSENT or value == told[key] for key, value in zip(keys, found, strict=True))
        absent = [key for key, value in zip(keys, found, strict=True) if value is ABSENT]
        values = [MISS if key % 5 == 0 else f"v{key}" * (key % 7) for key in absent]
        told |= dict(zip(absent, values, strict=True))
        if how == "one by one":
            for key, value in zip(absent, values, strict=True):
                reuse.put_one(key, value, 64)
        else:
            reuse.put_many(absent, values, 0.0, late=how == "late")
        assert reuse.bytes <= room
        assert how == "one by one" or (reuse.bytes == 0) == (len(reuse) == 0)


def test_an_answer_that_came_alone_is_known_at_once_and_replaced_by_a_later_one() -> None:
    reuse = Reuse(ROOM)
    for value in ("first", "second"):
        reuse.put_one("a", value, 64)
        assert (reuse.get_many(["a", "b"], 0.0), len(reuse)) == ([value, ABSENT], 1)
    reuse.put_one("b", "new", 64)
    reuse.put_many(["b"], ["old"], 0.0, late=True)
    assert reuse.get_many(["b"], 0.0) == ["new"]
    reuse.put_one("b", "newest", 64)
    reuse.close()
    assert (reuse.get_many(["b"], 0.0), len(reuse)) == ([ABSENT], 0)


def test_a_large_answer_that_came_alone_counts_at_once() -> None:
    reuse = Reuse(100_000)
    for number in range(10):
        reuse.put_one(number, "x" * 40_000, 40_000)
        assert 40_000 <= reuse.bytes <= 100_000


def test_a_late_answer_replaces_none() -> None:
    reuse = Reuse(ROOM)
    reuse.put_many(["a"], ["new"], 0.0)
    reuse.put_many(["a", "b"], ["old", "only"], 1.0, late=True)
    assert reuse.get_many(["a", "b"], 2.0) == ["new", "only"]


def test_what_was_used_last_stays() -> None:
    reuse = Reuse(200_000)
    for start in range(0, 5_000, 50):
        assert reuse.get_many(["hot"], 0.0) == (["v"] if start else [ABSENT])
        reuse.put_many(["hot"] if not start else [], ["v"] if not start else [], 0.0)
        reuse.put_many([f"{n}" for n in range(start, start + 50)], ["v" * 20] * 50, 0.0)
    assert reuse.get_many(["0", "4999"], 0.0) == [ABSENT, "v" * 20]


@pytest.mark.parametrize(
    "value",
    [lambda n: f"value {n}" * 5, lambda n: n, lambda n: {"a": f"{n}", "b": [n, n + 1]}],
    ids=["text", "int", "dict"],
)
def test_its_bytes_are_those_of_the_process(value: Callable[[int], Any]) -> None:
    reuse = Reuse(2**30)
    tracemalloc.start()
    try:
        reuse.put_many([f"key {n}" for n in range(20_000)], [value(n) for n in range(20_000)], 0.0)
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.95 * traced <= reuse.bytes <= 1.35 * traced, "Python shares the keys of dicts, which are counted each time"
