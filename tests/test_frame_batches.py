"""What `enrich_frame` does on a worker, without Spark: record batches in, record batches out, on a real loop thread."""

from __future__ import annotations

import itertools
import pickle
import statistics
import time
import weakref
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, StringType

from enrichkit.driver.planner import make_plan
from enrichkit.engine.loop import LoopThread
from enrichkit.errors import LookupFailedError, PermanentError
from enrichkit.options import Options, default
from enrichkit.outcome import Outcomes
from enrichkit.plan import FrameTask, Plan
from enrichkit.testing.scripted import ScriptedConfig, ScriptedConnector, Step
from enrichkit.worker import frame, frame_slices
from enrichkit.worker import task as task_module
from enrichkit.worker.frame import enrich_batches
from enrichkit.worker.many import explode_matches

from .engine.bench import end_thread
from .pace import at_pace

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_numbers = itertools.count()
TEXT = pa.string()
INPUT = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("part", pa.string())])


class Source(ScriptedConnector):
    """One server per test, whoever builds the connector."""

    server: ClassVar[ScriptedConnector]

    def __new__(cls, config: ScriptedConfig) -> Any:
        return cls.server


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopThread]:
    made = LoopThread()
    monkeypatch.setattr(task_module, "loop_thread", lambda: made)
    yield made
    end_thread(made)


def task(
    server: ScriptedConnector,
    *,
    value: pa.DataType = TEXT,
    many: bool = False,
    capacity: int = 4,
    batch_size: int = 1,
    window: int = 1000,
    default_values: dict[str, Any] | None = None,
    names: tuple[str, ...] = ("value",),
    options: dict[str, Any] | None = None,
    **how: Any,
) -> FrameTask:
    """The task that asks *server* for `key` of the input."""
    Source.server = server
    server.max_batch_size = batch_size
    plan = Plan(
        source="scripted",
        connector=Source,
        config=ScriptedConfig(),
        capacity=capacity,
        batch_size=batch_size,
        window=window,
        options=Options(**(options or {})),
        value_type=pa.list_(value) if many else value,
        default_values=default_values or {},
        engine_key=f"engine {next(_numbers)}",
        cache_key="cache",
        many=many,
    )
    return FrameTask(plan=pickle.dumps(plan), width=3, keys=(1,), names=names, **how)


def batch(rows: Sequence[tuple[int, int | None, str | None]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, INPUT, strict=True)], INPUT)


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for made in batches for row in made.to_pylist()]


# --- any rows, in any batches


def matches_of(key: int) -> list[str]:
    return [f"{key}.{n}" for n in range(key % 4)]


def expected_of(row: tuple[Any, ...], *, inner: bool, many: bool) -> list[tuple[Any, ...]]:
    """The rows that come of one: a key that divides by four is a miss, and the source counts to its remainder."""
    key = row[1]
    found = [] if key is None else matches_of(key)
    values: list[str | None] = list(found) if many else [*found[:1]]
    return [(*row, value) for value in (values or ([] if inner else [None]))]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.one_of(st.none(), st.integers(0, 25)), st.one_of(st.none(), st.sampled_from("abc"))), max_size=120
    ),
    cuts=st.lists(st.integers(0, 120), max_size=5),
    delays=st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.004]), min_size=1, max_size=7),
    shape=st.fixed_dictionaries(
        {
            "many": st.booleans(),
            "inner": st.booleans(),
            "ordered": st.booleans(),
            "barrier": st.sampled_from([None, 2]),
            "capacity": st.integers(1, 8),
            "batch_size": st.integers(1, 5),
            "window": st.integers(1, 60),
        }
    ),
    details=st.booleans(),
    full=st.sampled_from([1, 7, 10_000]),
)
def test_every_row_leaves_as_often_as_it_should_and_crosses_no_barrier(
    thread: LoopThread,
    rows: list[tuple[int | None, str | None]],
    cuts: list[int],
    delays: list[float],
    shape: dict[str, Any],
    details: bool,
    full: int,
) -> None:
    def script(key: int, times: int) -> Step:
        found = matches_of(key)
        return Step(
            after=delays[key % len(delays)],
            missing=not found and key % 8 == 0,
            value=found if shape["many"] else (found or [None])[0],
        )

    numbered = [(n, *row) for n, row in enumerate(rows)]
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    batches = [batch(numbered[start:end]) for start, end in itertools.pairwise([0, *edges])]
    options = {"details": details}
    if not shape["many"] and any(key is not None and key % 8 == 4 for key, _ in rows):
        # A stored null is no miss: with one match at most, the source of this test holds one.
        shape = {**shape, "inner": False}
    given_task = task(
        ScriptedConnector(script),
        options=options,
        names=("value", "status", "error", "attempts", "latency", "origin") if details else ("value",),
        spread=details,
        explode=shape["many"],
        **shape,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "ROWS", full)
        patch.setattr(frame, "LINGER", 0.001)
        left = rows_of(enrich_batches(given_task, iter(batches)))
    expected = [made for row in numbered for made in expected_of(row, inner=shape["inner"], many=shape["many"])]
    assert Counter(expected) == Counter(row[:4] for row in left)
    if shape["ordered"]:
        assert expected == [row[:4] for row in left]
    elif shape["barrier"] is not None:
        segments = list(itertools.accumulate(a[2] != b[2] for a, b in itertools.pairwise([(0, 0, None), *numbered])))
        crossed = [segments[row[0]] for row in left]
        assert sorted(crossed) == crossed
    if details:
        statuses = {row[1]: row[4] for row in left}
        assert all(
            status
            == (
                "null_key" if key is None else "ok" if matches_of(key) or (key % 8 and not shape["many"]) else "missing"
            )
            for key, status in statuses.items()
        )


# --- rows leave as they are done


def test_rows_leave_while_another_one_of_their_batch_waits(thread: LoopThread) -> None:
    server = ScriptedConnector({7: Step(held=True)})
    given_task = task(server, ordered=False, window=100)
    left = enrich_batches(given_task, iter([batch([(n, n, "") for n in range(50)])]))
    early: list[tuple[Any, ...]] = []
    while len(early) < 49:  # nothing else is done, so they do not wait to be many
        early += rows_of(iter([next(left)]))
    assert {n for n in range(50) if n != 7} == {row[0] for row in early}
    thread.post(server.release)
    assert [(7, 7, "", "v7")] == rows_of(left)


def test_in_order_rows_wait_for_a_slow_one_before_them(thread: LoopThread) -> None:
    server = ScriptedConnector({0: Step(after=0.05)})
    left = rows_of(enrich_batches(task(server), iter([batch([(n, n, "") for n in range(30)])])))
    assert [(n, n, "", f"v{n}") for n in range(30)] == left


def test_rows_leave_before_the_next_batch_is_pulled(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """The input may be long in coming, and the thread that waits for it can do nothing else."""
    monkeypatch.setattr(frame, "LINGER", 3600.0)
    left: list[tuple[Any, ...]] = []
    at_pull: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 400, 100):
            at_pull.append(len(left))
            yield batch([(n, n, "") for n in range(start, start + 100)])

    for made in enrich_batches(task(ScriptedConnector(), ordered=False, window=20), batches()):
        left += rows_of(iter([made]))
    assert all(there >= 100 * pulls - 20 for pulls, there in enumerate(at_pull)), at_pull
    assert set(range(400)) == {row[0] for row in left}


def test_the_median_row_leaves_soon_after_its_answer(thread: LoopThread) -> None:
    """1 % of the rows take 1 s, the others 5 ms; the best of eight rounds, because the machine may be busy."""
    medians = []
    for _ in range(8):
        answered: dict[int, float] = {}

        class Timed(ScriptedConnector):
            async def fetch_many(self, keys: Any, call: Any) -> Any:
                answers = await super().fetch_many(keys, call)
                answered.update(dict.fromkeys(keys, time.monotonic()))  # noqa: B023  # within the round
                return answers

        server = Timed(lambda key, _: Step(after=1.0 if key % 100 == 50 else 0.005))
        given_task = task(server, ordered=False, capacity=64, window=20_000)
        late: dict[int, float] = {}
        given_batches = [batch([(n, n, "") for n in range(start, start + 500)]) for start in range(0, 2000, 500)]
        for made in enrich_batches(given_task, iter(given_batches)):
            now = time.monotonic()
            late.update((row["id"], now - answered[row["key"]]) for row in made.to_pylist())
        assert set(range(2000)) == set(late)
        medians.append(statistics.median(late.values()))
        if medians[-1] <= at_pace(0.05):
            break
    assert min(medians) <= at_pace(0.05)


def test_rows_are_gathered_into_batches(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "LINGER", 30.0)
    server = ScriptedConnector()
    given_task = task(server, ordered=False, capacity=8, window=10_000)
    made = list(enrich_batches(given_task, iter([batch([(n, n, "") for n in range(5000)])])))
    assert sum(map(len, made)) == 5000
    assert len(made) <= 3, "the pause before the end of the input, and the end"


def test_a_full_batch_leaves_without_waiting(thread: LoopThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "LINGER", 3600.0)
    monkeypatch.setattr(frame, "ROWS", 10)
    server = ScriptedConnector({7: Step(held=True)})
    sizes: list[int] = []
    with closing(enrich_batches(task(server, ordered=False), iter([batch([(n, n, "") for n in range(1000)])]))) as left:
        while sum(sizes) < 980:  # the last few wait for others
            sizes.append(len(next(left)))
    assert sum(size < 10 for size in sizes) <= 1, "only before the next batch of the input is pulled"


def test_a_slow_row_does_not_keep_the_rows_around_it_in_memory(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[frame_slices.Slice] = []
    make = frame_slices.Slice.__init__

    def remember(self: frame_slices.Slice, *arguments: Any) -> None:
        make(self, *arguments)
        held.append(self)

    monkeypatch.setattr(frame_slices.Slice, "__init__", remember)
    outcomes: list[Outcomes] = []

    class Remembered(Outcomes):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            outcomes.append(self)

    monkeypatch.setattr(frame_slices, "Outcomes", Remembered)
    server = ScriptedConnector({n: Step(held=True) for n in range(0, 1000, 100)})
    text = "x" * 1000
    given_task = task(server, ordered=False, capacity=64, window=1000)
    left = enrich_batches(given_task, iter([batch([(n, n, text) for n in range(1000)])]))
    early: list[tuple[Any, ...]] = []
    while len(early) < 990:
        early += rows_of(iter([next(left)]))
    waiting = sum(tag.batch.get_total_buffer_size() for tag in held if tag.batch.num_rows > tag._left)
    assert waiting < 100 * len(text), "ten rows, where the batch has a thousand"
    assert {None} == {value for made in outcomes for value in made.values}
    thread.post(server.release)
    assert dict.fromkeys(range(0, 1000, 100), text) == {row[0]: row[2] for row in rows_of(left)}


@pytest.mark.parametrize("ordered", [True, False])
def test_a_call_that_goes_on_after_its_timeout_keeps_nothing_of_the_input(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Watched(frame_slices.Slice):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            alive.add(self)

    monkeypatch.setattr(frame_slices, "Slice", Watched)
    server = ScriptedConnector({n: Step(never=True) for n in range(0, 2000, 100)})
    options = {"timeout": 0.05, "on_timeout": "null", "max_fallback_ratio": 1.0}
    text = "x" * 1000
    kept: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 2000, 100):
            kept.append(sum(tag.batch.get_total_buffer_size() for tag in list(alive)))
            yield batch([(n, n, text) for n in range(start, start + 100)])

    given_task = task(server, ordered=ordered, capacity=64, batch_size=10, window=100, options=options)
    left = {row[0]: row[3] for row in rows_of(enrich_batches(given_task, batches()))}
    assert set(range(2000)) == set(left)
    assert all(left[n] is None for n in range(0, 2000, 100))
    assert {None, *(f"v{n}" for n in range(2000))} > set(left.values())
    # A slice of 12 rows keeps its whole batch until half of them have left, so a window of 100 rows keeps 17 batches.
    assert max(kept) < 25 * 100 * len(text)


# --- what a row comes with


def test_an_empty_partition_opens_nothing(thread: LoopThread) -> None:
    server = ScriptedConnector()
    assert [] == list(enrich_batches(task(server), iter([])))
    assert [] == list(enrich_batches(task(server), iter([batch([]), batch([])])))
    assert 0 == server.opened


def test_a_column_of_any_type_passes_through_as_it_is(thread: LoopThread) -> None:
    schema = pa.schema(
        [
            pa.field("k", pa.int32(), nullable=False),
            pa.field("same", pa.large_string()),
            pa.field("same", pa.list_(pa.field("element", pa.struct([("a", pa.binary())]), nullable=False))),
            pa.field("m", pa.map_(pa.string(), pa.decimal128(10, 2))),
            pa.field("n", pa.null()),
            pa.field("d", pa.duration("us")),
        ]
    )
    data = [
        [1, 2, 3],
        ["a", None, "c"],
        [[{"a": b"\xff"}], [], None],
        [None, [("x", None)], []],
        [None] * 3,
        [1, 2, None],
    ]
    columns = [pa.array(column, field.type) for column, field in zip(data, schema, strict=True)]
    for ordered in (True, False):
        given_task = task(ScriptedConnector({2: Step(missing=True)}), ordered=ordered)
        wide = FrameTask(plan=given_task.plan, width=6, keys=(6,), names=("v",), ordered=ordered, inner=True)
        given_batch = pa.RecordBatch.from_arrays(
            [*columns, pa.array([1, 2, 3])], schema=schema.append(pa.field("k2", pa.int64()))
        )
        made = pa.Table.from_batches(enrich_batches(wide, iter([given_batch])))
        assert schema.append(pa.field("v", pa.string())) == made.schema
        made = made.sort_by("k") if not ordered else made
        assert [[c.as_py() for c in (column[0], column[2])] for column in columns] == [
            column.to_pylist() for column in made.columns[:6]
        ]
        assert ["v1", "v3"] == made.column(6).to_pylist()


def test_the_fields_of_a_struct_become_columns(thread: LoopThread) -> None:
    value = pa.struct([("name", pa.string()), ("tier", pa.int32())])
    server = ScriptedConnector({1: Step(value={"name": "Ann", "tier": 3}), 2: Step(missing=True), 3: Step(value=None)})
    given_task = task(server, value=value, names=("name", "tier"), spread=True)
    rows = rows_of(enrich_batches(given_task, iter([batch([(0, 1, ""), (1, 2, ""), (2, 3, ""), (3, None, "")])])))
    assert [("Ann", 3), (None, None), (None, None), (None, None)] == [row[3:] for row in rows]


@pytest.mark.parametrize("how", [{}, {"ordered": False}, {"explode": True}], ids=["ordered", "unordered", "explode"])
def test_a_wide_value_on_many_rows_leaves_a_few_at_a_time(
    thread: LoopThread, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enrichkit.worker.assemble.BYTES", 10_000)
    monkeypatch.setattr(frame, "BYTES", 10_000)
    many = "explode" in how
    odd, even = (Step(value=[text] if many else text) for text in ("x" * 3000, "y"))
    server = ScriptedConnector({1: odd}, otherwise=even)
    rows = [(n, n % 2, None) for n in range(50)]

    made = list(enrich_batches(task(server, many=many, **how), [batch(rows)]))

    assert sorted((*row, "x" * 3000 if row[1] else "y") for row in rows) == sorted(rows_of(iter(made)))
    assert max(one.column("value").nbytes for one in made) <= 21_000


@pytest.mark.parametrize("ordered", [True, False])
def test_inner_drops_misses_and_null_keys_but_no_failure(thread: LoopThread, ordered: bool) -> None:
    server = ScriptedConnector(
        {
            1: Step(missing=True),
            2: Step(failure=PermanentError("broken")),
            3: Step(never=True),
            4: Step(value=None),
            5: Step(failure=PermanentError("invalid"), rejected=True),
        }
    )
    options = {"on_error": "null", "on_timeout": "null", "timeout": 0.1, "max_fallback_ratio": 1.0}
    given_task = task(server, options=options, inner=True, ordered=ordered)
    given_batch = batch([(n, n or None, "") for n in range(7)])
    assert [(2, None), (3, None), (4, None), (5, None), (6, "v6")] == sorted(
        (row[0], row[3]) for row in rows_of(enrich_batches(given_task, iter([given_batch])))
    )


@pytest.mark.parametrize(
    ("many", "instead", "expected"),
    [
        (False, "nobody", [(0, "nobody"), (1, "x")]),
        (True, ["nobody", "none"], [(0, "nobody"), (0, "none"), (1, "x")]),
        (True, [], [(1, "x")]),
    ],
)
def test_a_miss_that_has_a_value_is_not_dropped(
    thread: LoopThread, many: bool, instead: Any, expected: list[tuple[int, str]]
) -> None:
    given_task = task(
        ScriptedConnector({1: Step(missing=True), 2: Step(value=["x"] if many else "x")}),
        options={"on_missing": default(instead)},
        default_values={"on_missing": instead},
        inner=True,
        many=many,
        explode=many,
    )
    rows = rows_of(enrich_batches(given_task, iter([batch([(0, 1, ""), (1, 2, ""), (2, None, "")])])))
    assert expected == [(row[0], row[3]) for row in rows]


def test_a_row_with_very_many_matches_leaves_in_several_batches(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "ROWS", 100)
    server = ScriptedConnector({1: Step(value=[str(n) for n in range(1000)]), 2: Step(value=["x"])})
    given_task = task(server, many=True, explode=True)
    made = list(enrich_batches(given_task, iter([batch([(0, 2, ""), (1, 1, ""), (2, 2, "")])])))
    assert [(0, "x"), *((1, str(n)) for n in range(1000)), (2, "x")] == [
        (row[0], row[3]) for row in rows_of(iter(made))
    ]
    assert 100 == max(map(len, made))


@pytest.mark.parametrize("ordered", [True, False])
def test_very_many_matches_of_many_rows_leave_a_batch_at_a_time(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    monkeypatch.setattr(frame, "ROWS", 100)
    server = ScriptedConnector({1: Step(value=[str(n) for n in range(130)])})
    given_task = task(server, many=True, explode=True, ordered=ordered)
    made = list(enrich_batches(given_task, iter([batch([(n, 1, "") for n in range(60)])])))
    assert Counter((row, str(n)) for row in range(60) for n in range(130)) == Counter(
        (row[0], row[3]) for row in rows_of(iter(made))
    )
    assert max(map(len, made)) < 200, "a batch that is not full yet, and a full one"


@pytest.mark.parametrize("ordered", [True, False])
def test_wide_rows_with_many_matches_leave_a_few_at_a_time(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    monkeypatch.setattr(frame, "BYTES", 20_000)
    server = ScriptedConnector({1: Step(value=[str(n) for n in range(50)])})
    given_task = task(server, many=True, explode=True, ordered=ordered)
    made = list(enrich_batches(given_task, iter([batch([(n, 1, "x" * 1000) for n in range(60)])])))
    assert 60 * 50 == sum(map(len, made))
    assert max(map(len, made)) <= 40


def pairs_of(rows: Sequence[tuple[int, int]], size: int, most: int) -> list[list[tuple[int, int | None]]]:
    """What leaves at once of *rows*, of which each has so many matches and so many bytes: rows and their matches."""
    outcomes = Outcomes([f"k{row}" for row in range(len(rows))], len(rows))
    outcomes.values = [["m"] * matches for matches, _ in rows]
    codes = pa.array(range(len(rows)), pa.int32())
    _, pairs = explode_matches(outcomes, codes, size, most, lambda row: rows[row][1])
    return [list(zip(*pair, strict=True)) for pair in pairs]


@given(
    rows=st.lists(st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 30, 400])), max_size=30),
    size=st.integers(1, 12),
    most=st.sampled_from([1, 60, 1000]),
)
def test_what_leaves_at_once_is_neither_too_many_rows_nor_too_many_bytes(
    rows: list[tuple[int, int]], size: int, most: int
) -> None:
    made = pairs_of(rows, size, most)
    assert [row for pairs in made for row, _ in pairs] == [
        row for row, (matches, _) in enumerate(rows) for _ in range(matches)
    ]
    assert [number for pairs in made for _, number in pairs] == list(range(sum(matches for matches, _ in rows)))
    for pairs in made:
        assert 1 <= len(pairs) <= size
        assert len(pairs) == 1 or sum(rows[row][1] for row, _ in pairs if rows[row][0] > 1) <= most


def test_what_a_wide_row_took_is_no_part_of_what_comes_behind_it() -> None:
    wide, narrow = (3, 60), (2, 1)
    assert [len(pairs) for pairs in pairs_of([wide, *[narrow] * 4], size=4, most=100)] == [1, 1, 1, 4, 4]
    assert [len(pairs) for pairs in pairs_of([(2, 40)] * 6, size=2, most=100)] == [2] * 6


@pytest.mark.parametrize("ordered", [True, False])
def test_one_wide_row_with_many_matches_leaves_a_few_at_a_time(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    monkeypatch.setattr(frame, "BYTES", 20_000)
    server = ScriptedConnector({key: Step(value=[str(n) for n in range(50)]) for key in (1, 2, 3)})
    given_task = task(server, many=True, explode=True, ordered=ordered)
    wide = {500: (1, 1000), 501: (2, 300), 502: (3, 300), 600: (1, 50_000), 700: (2, 10)}
    rows = [(n, wide.get(n, (None, 0))[0], "x" * wide.get(n, (0, 10))[1]) for n in range(1000)]
    made = list(enrich_batches(given_task, iter([batch(rows)])))
    expected = [(n, str(match)) for n in sorted(wide) for match in range(50)]
    found = [(row[0], row[3]) for row in rows_of(iter(made)) if row[0] in wide]
    assert expected == sorted(found, key=lambda pair: (pair[0], int(pair[1])))
    assert 1000 - 5 + 250 == sum(map(len, made))
    # The widest row alone has 50,000 bytes; unordered, it may leave with what had gathered before it.
    assert max(part.nbytes for part in made if len(part) > 1) < 50_000 + 20_000 + 5_000


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("none", [[], (), None])
def test_a_list_or_tuple_without_a_match_is_a_miss(thread: LoopThread, ordered: bool, none: Any) -> None:
    server = ScriptedConnector({1: Step(value=none) if none is not None else Step(missing=True), 2: Step(value=("x",))})
    given_task = task(server, many=True, explode=True, inner=True, ordered=ordered)
    assert [(1, "x")] == [
        (row[0], row[3]) for row in rows_of(enrich_batches(given_task, iter([batch([(0, 1, ""), (1, 2, "")])])))
    ]


def test_a_source_that_answers_no_list_is_told_so(thread: LoopThread) -> None:
    steps = {1: "Ann", 2: [7], 3: None, 4: ("x",), 5: np.array(["x", "y"])}
    server = ScriptedConnector({key: Step(value=value) for key, value in steps.items()})
    given_task = task(
        server,
        many=True,
        explode=True,
        options={"details": True, "max_fallback_ratio": 1.0},
        names=("value", "status", "error", "attempts", "latency", "origin"),
        spread=True,
    )
    rows = rows_of(enrich_batches(given_task, iter([batch([(n, n, "") for n in range(1, 6)])])))
    assert [(None, "error"), (None, "error"), (None, "ok"), ("x", "ok"), (None, "error")] == [row[3:5] for row in rows]
    assert rows[4][5] == rows[0][5].replace("is a str", "is a ndarray")
    assert (
        "PermanentError: The value is a str; with many=True it must be a list, with an element for each match. "
        "Mend the connector."
    ) == rows[0][5]
    assert (
        "PermanentError: The value does not fit the declared type string: it is of type int; it must be a str or UUID "
        "without lone surrogates. Change the source, or declare another type with returns=."
    ) == rows[1][5]


def test_a_failure_fails_the_task_unordered_too(thread: LoopThread) -> None:
    server = ScriptedConnector({3: Step(value=5)})
    with pytest.raises(LookupFailedError, match="on_error is 'fail'"):
        list(enrich_batches(task(server, ordered=False), iter([batch([(n, n, "") for n in range(5)])])))


def test_answers_for_many_and_for_one_are_not_mixed_in_the_cache() -> None:
    texts = ArrayType(StringType())
    one, _ = make_plan(ScriptedConfig(), 1, texts, {})
    many, _ = make_plan(ScriptedConfig(), 1, StringType(), {}, many=True, shape=lambda _, of: ArrayType(of))
    assert one.value_type == many.value_type
    assert one.cache_key != many.cache_key
