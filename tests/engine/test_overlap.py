"""Slices none of whose keys another one has: when that is known of one, and that each key is asked for once for all."""

from __future__ import annotations

import random
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enrichkit.engine.engine import Engine
from enrichkit.engine.overlap import COMPARED_MAX, OverlapCheck
from enrichkit.engine.records import Bundle
from enrichkit.engine.run import Run
from enrichkit.errors import PermanentError, TransientError
from enrichkit.options import Options, Retry
from enrichkit.outcome import STATUSES, Outcomes
from enrichkit.testing.scripted import ScriptedConnector, Step
from enrichkit.worker.keys import encode, intersects

from .bench import Lab, ThreadTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from enrichkit.engine.loop import LoopThread

    from .bench import Task

UNHURRIED = settings(deadline=None)  # a busy machine stalls now and then


def share(column: Any, others: Sequence[Any]) -> bool:
    """Do as `intersects` for sets, and look that it is asked no more than it may cost."""
    assert sum(map(len, others)) <= COMPARED_MAX * len(column)
    return any(not column.isdisjoint(other) for other in others)


KEYS = st.builds(lambda first, size: frozenset(range(first, first + size)), st.integers(0, 300), st.integers(0, 12))
STEPS = st.lists(st.sampled_from(["leave", "leave", "leave", None]) | KEYS | KEYS | KEYS, max_size=40)


@settings(max_examples=1000, deadline=None)
@given(steps=STEPS)
def test_a_slice_is_known_to_be_apart_when_no_slice_that_is_held_has_one_of_its_keys(steps: list[Any]) -> None:
    """And when there are few of those, until for once one had, or was unknown."""
    apart, held, over = OverlapCheck(share), deque[Any](), False
    for step in steps:
        if step == "leave":
            if held:
                held.popleft()
                apart.leave()
            continue
        said = apart.enter(step)
        if step is None:
            over, step = True, frozenset()
        alone = all(step.isdisjoint(other) for other in held)
        few = sum(map(len, held)) <= COMPARED_MAX * len(step)
        over = over or (few and not alone)
        assert said == (few and alone and not over)
        held.append(step)


def test_slices_are_compared_again_when_fewer_are_held() -> None:
    apart = OverlapCheck(share)
    assert apart.enter(frozenset(range(100)))
    assert not apart.enter(frozenset({1, 200})), "it has a key of the first, but nobody knows"
    assert not apart.enter(frozenset({300, 301}))
    apart.leave()
    assert apart.enter(frozenset({1, 400, 401})) is False, "the second is still there"


def test_too_many_keys_to_compare_are_no_reason_to_stop() -> None:
    apart = OverlapCheck(share)
    assert apart.enter(frozenset(range(100)))
    assert not apart.enter(frozenset({200, 201}))
    apart.leave()
    assert apart.enter(frozenset({300, 301}))
    assert apart.enter(frozenset({1, 2}))


@pytest.mark.parametrize("reason", [frozenset({2, 3}), None])
def test_slices_are_compared_no_more_after_one_that_was_not_apart(reason: Any) -> None:
    apart = OverlapCheck(share)
    assert apart.enter(frozenset({1, 2}))
    assert not apart.enter(reason)
    for _ in range(2):
        apart.leave()
    assert not apart.enter(frozenset({5}))
    apart.leave()
    assert not apart.enter(frozenset({6}))


def test_no_slice_is_known_to_be_apart_where_none_are_compared() -> None:
    apart = OverlapCheck(None)
    assert not apart.enter(frozenset({1}))
    apart.leave()
    assert not apart.enter(frozenset({2}))


@UNHURRIED
@given(
    st.lists(
        st.lists(st.none() | st.integers(0, 20), max_size=3)
        | st.lists(st.none() | st.text("ab", max_size=2), max_size=3)
        | st.lists(st.none() | st.decimals(0, 200, places=1), max_size=3)
        | st.lists(st.none() | st.decimals(0, 20, places=3), max_size=3),
        max_size=5,
    ),
    st.integers(1, 5),
)
def test_columns_of_several_types_are_compared_or_not_but_never_taken_for_apart(
    batches: list[list[Any]], window: int
) -> None:
    """As pandas gives them, which takes the type of a batch from what it holds: no key, or decimals of some length."""
    apart, held = OverlapCheck(intersects), deque[set[Any]]()
    for batch in batches:
        if len(held) == window:
            held.popleft()
            apart.leave()
        keys, _ = encode([pa.array(batch)])
        assert not apart.enter(keys.columns[0]) or all(other.isdisjoint(keys) for other in held)
        held.append(set(keys))


# Of two slices that have keys in common, each of these is asked for once, although the first was apart.


def aside(task: Task) -> list[Any]:
    """Return the keys of all bundles of *task* that the table does not know, those in calls first."""
    calls = task.run.in_flight()
    bundles = [*(bundle for call in calls for bundle in call.bundles), *task.run.pending.bundles()]
    return [key for bundle in bundles if not bundle.entered for key in bundle.keys]


async def test_keys_that_wait_for_a_slot_are_asked_for_once(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(after=0.1), capacity=1, batch_size=3)
    task.admit(1, 2, 3, apart=True)
    await lab.settle()
    task.admit(4, 5, 6, 7, apart=True)
    assert aside(task) == [1, 2, 3, 4, 5, 6, 7]
    assert not task.run.table
    task.admit(8, 7, 4)
    assert aside(task) == []
    await task.end()
    assert task.values == [f"v{key}" for key in (1, 2, 3, 4, 5, 6, 7, 8, 7, 4)]
    assert dict(server.asked) == dict.fromkeys(range(1, 9), 1)
    assert task.run.stats.shared == 2
    assert not task.run.table


async def test_keys_in_a_call_are_asked_for_once(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(after=1.0), batch_size=3)
    task.admit(1, 2, apart=True)
    task.admit(3, 4, 5, apart=True)
    await lab.at(0.5)
    assert server.keys == [(1, 2, 3), (4, 5)]
    assert aside(task) == [1, 2, 3, 4, 5]
    task.admit(5, 2, 6, 3)
    assert aside(task) == []
    await task.end()
    assert task.values == [f"v{key}" for key in (1, 2, 3, 4, 5, 5, 2, 6, 3)]
    assert server.keys == [(1, 2, 3), (4, 5), (6,)]
    assert [row.at for row in task.left] == pytest.approx([1.0] * 5 + [1.5] * 4)


async def test_keys_of_a_call_that_failed_are_asked_for_once_more(lab: Lab) -> None:
    """They wait for their back-off, each for itself, when the other slice comes."""
    script = {2: [Step(failure=TransientError("shaky")), Step(after=0.1)]}
    server, task = lab.start(script, batch_size=3, retry=Retry(wait=0.5, jitter="none"))
    task.admit(1, 2, 3, 4, apart=True)
    await lab.at(0.2)
    assert aside(task) == []
    task.admit(4, 2, 1, apart=False)
    await task.end()
    assert task.values == [f"v{key}" for key in (1, 2, 3, 4, 4, 2, 1)]
    assert dict.fromkeys((1, 2, 4), 2) | {3: 1} == dict(server.asked), "1 and 4 had their answer by then"
    assert task.run.stats.shared == 1


async def test_a_poisoned_group_of_an_apart_slice_is_asked_for_in_parts(lab: Lab) -> None:
    server, task = lab.start(
        {3: Step(after=0.1, error=PermanentError("poison"))},
        otherwise=Step(after=0.1),
        capacity=1,
        batch_size=4,
        on_error="null",
        max_fallback_ratio=1.0,
    )
    task.admit(1, 2, 3, 4, apart=True)
    await lab.at(0.15)
    task.admit(4, 3)
    await task.end()
    assert task.statuses == ["ok", "ok", "error", "ok", "ok", "error"]
    assert server.keys == [(1, 2, 3, 4), (1,), (2,), (3,), (4,)]


async def test_keys_that_timed_out_are_asked_for_once_while_their_call_goes_on(lab: Lab) -> None:
    server, task = lab.start(
        {1: Step(after=1.08)},
        otherwise=Step(after=0.1),
        capacity=1,
        batch_size=2,
        timeout=1.0,
        on_timeout="null",
        max_fallback_ratio=1.0,
    )
    task.admit(1, 2, 3, 4, 5, apart=True)
    await lab.at(1.07)
    assert server.keys == [(1, 2)]
    assert sorted(task.run.draining) == [1, 2]
    assert aside(task) == [3, 4, 5]
    task.admit(5, 3, 1, 6)
    assert aside(task) == []
    await task.end()
    assert task.statuses == ["timeout", "timeout", *["ok"] * 7]
    assert task.values[2:] == [f"v{key}" for key in (3, 4, 5, 5, 3, 1, 6)]
    assert dict(server.asked) == dict.fromkeys(range(1, 7), 1)


async def test_an_apart_slice_joins_a_call_that_goes_on_for_keys_that_have_left(lab: Lab) -> None:
    server, task = lab.start({1: Step(after=1.8)}, batch_size=2, timeout=1.0, on_timeout="null", max_fallback_ratio=1.0)
    task.admit(1, 2, apart=True)
    await lab.at(1.5)
    assert task.statuses == ["timeout", "timeout"]
    task.admit(3, 2, 4, apart=True)
    task.admit(2, 4)
    await task.end()
    assert task.values == [None, None, "v3", "v2", "v4", "v2", "v4"]
    assert dict(server.asked) == dict.fromkeys(range(1, 5), 1)


async def test_rows_that_wait_for_keys_that_were_cut_from_their_bundle_get_their_values(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(after=0.1), capacity=1, batch_size=2, neighbours=True)
    task.admit(10, 20, 30, 40, 50, 60, 70, apart=True)
    await lab.settle()
    assert server.keys == [(10, 20)]
    task.admit(20, 30, 70, 80)  # in a call, in the next one, and in one for which the rest will be cut once more
    await lab.at(0.15)
    assert server.keys == [(10, 20), (30, 40)]
    task.admit(40, 60)  # likewise; and whom the table still finds under them is the rest
    await task.end()
    assert task.values == [f"v{key}" for key in (10, 20, 30, 40, 50, 60, 70, 20, 30, 70, 80, 40, 60)]
    assert dict(server.asked) == dict.fromkeys(range(10, 90, 10), 1)
    assert not task.run.table


async def test_rows_that_wait_for_keys_that_were_cut_from_their_bundle_time_out_with_them_alone(lab: Lab) -> None:
    """The bundles that are cut from one another share what waits for them, but not their fate."""
    server, task = lab.start(
        {10: Step(after=2.0)},
        otherwise=Step(after=0.8),
        capacity=2,
        batch_size=2,
        neighbours=True,
        timeout=1.0,
        on_timeout="null",
        max_fallback_ratio=1.0,
    )
    task.admit(10, 20, 30, 40, 50, 60, apart=True)
    await lab.at(0.5)
    assert server.keys == [(10, 20), (30, 40)]
    task.admit(20, 40, 60)
    await task.end()
    assert task.keys == [10, 20, 30, 40, 50, 60, 20, 40, 60]
    assert task.statuses == ["timeout", "timeout", "ok", "ok", "ok", "ok", "timeout", "ok", "ok"]
    assert dict(server.asked) == dict.fromkeys(range(10, 70, 10), 1)


async def test_an_apart_slice_that_is_held_back_is_found(lab: Lab) -> None:
    """While too many bytes wait to leave, only keys of the first slice that has not are asked for."""
    server, task = lab.start(
        {1: Step(value="x" * 3000), 5: Step(held=True)},
        otherwise=Step(after=0.1),
        capacity=2,
        batch_size=2,
        window_bytes=1024,
    )
    task.admit(1, 2, 3, 4, 5, apart=True)
    task.admit(6, 7, apart=True)
    await lab.at(1.0)
    assert task.run.held_back
    assert server.keys[-1] == (5,)
    assert aside(task) == [5, 6, 7]
    task.admit(7, 8)
    assert aside(task) == []
    task.run.taken_bytes += 4000
    task.run.resume()
    server.release()
    await task.end()
    assert task.keys == [1, 2, 3, 4, 5, 6, 7, 7, 8]
    assert set(task.statuses) == {"ok"}
    assert dict(server.asked) == dict.fromkeys(range(1, 9), 1)


async def test_a_task_that_is_closed_forgets_slices_that_are_apart(lab: Lab) -> None:
    server, task = lab.start(otherwise=Step(after=1.0), capacity=1, batch_size=2)
    task.admit(1, 2, 3, 4, apart=True)
    await lab.at(0.5)
    task.close()
    task.admit(1, 3)
    await lab.at(5.0)
    assert server.keys == [(1, 2)]
    assert not task.run.pending
    assert task.left == []


# With the thread that compares them.


@pytest.fixture
def compares(thread: LoopThread) -> Callable[..., ThreadTask]:
    """A maker of tasks on `thread` that compare their slices, as those on a worker do."""

    def make(server: ScriptedConnector, *, window: int = 10_000, capacity: int = 1, batch_size: int = 4) -> ThreadTask:
        def run(engine: Engine, emit: Callable[[Any], None]) -> Run:
            return Run(
                engine, "scripted", Options(), lambda raws: (list(raws), {}), emit, batch_size=batch_size, seed=1
            )

        return ThreadTask(
            thread,
            f"engine {id(server)}",
            lambda: Engine(server, capacity, seed=1),
            run,
            Options(),
            window=window,
            start=window,
            intersects=intersects,
        )

    return make


def slice_of(keys: Sequence[int], *, nulls: int = 0) -> Outcomes:
    encoded, _ = encode([pa.array(keys, pa.int64())])
    return Outcomes(encoded.objects(), len(keys) + nulls, key_array=encoded.columns[0])


def check(outcomes: Outcomes) -> None:
    assert [STATUSES[status] for status in outcomes.statuses] == ["ok"] * len(outcomes.keys)
    assert outcomes.values == [f"v{key}" for key in outcomes.keys]


@pytest.mark.parametrize("seed", range(20))
def test_each_key_of_slices_that_are_under_way_is_asked_for_once(
    compares: Callable[..., ThreadTask], seed: int
) -> None:
    rng = random.Random(seed)
    server = ScriptedConnector(otherwise=Step(held=True))
    task = compares(server, capacity=rng.choice([1, 4]))
    made = []
    fresh = iter(range(10_000))
    for _ in range(12):
        keys = [next(fresh) for _ in range(rng.randrange(0, 20))]
        if rng.random() < 0.2 and made:
            keys += rng.sample(before := [*rng.choice(made).keys], min(3, len(before)))
        made.append(slice_of(keys, nulls=rng.randrange(2)))

    def slices() -> Iterator[Outcomes]:
        for outcomes in made:
            yield outcomes
            if rng.random() < 0.5:
                task.loop_turn()
        task.loop_turn()
        server.otherwise = Step()
        task.loop.post(server.release)

    left = [part.outcomes for part in task.process(slices())]
    assert [outcomes for outcomes in left if outcomes.keys] == [outcomes for outcomes in made if outcomes.keys]
    for outcomes in left:
        check(outcomes)
    assert server.asked == Counter({key for outcomes in made for key in outcomes.keys})
    assert made[0].apart
    seen: set[Any] = set()
    for outcomes in made:
        assert not (outcomes.apart and seen.intersection(outcomes.keys))
        seen.update(outcomes.keys)


def test_a_slice_whose_keys_have_left_is_apart(compares: Callable[..., ThreadTask]) -> None:
    server = ScriptedConnector()
    task = compares(server, window=3)
    made = [slice_of([1, 2, 3]), slice_of([], nulls=2), slice_of([1, 2, 3]), slice_of([3, 2, 1]), slice_of([1, 4, 3])]
    left = [part.outcomes for part in task.process(made)]
    assert left == made
    for outcomes in left:
        check(outcomes)
    assert [outcomes.apart for outcomes in made] == [True] * 5
    assert dict(server.asked) == {1: 4, 2: 3, 3: 4, 4: 1}


def test_a_slice_without_keys_leaves_as_one_with_keys_does(compares: Callable[..., ThreadTask]) -> None:
    """Else the slices that are compared would no longer be those that are under way."""
    server = ScriptedConnector(otherwise=Step(held=True))
    task = compares(server, window=8)
    made = [slice_of([], nulls=1), slice_of([1, 2]), slice_of([], nulls=1), slice_of([3, 4, 5, 6]), slice_of([2, 1])]

    def slices() -> Iterator[Outcomes]:
        yield from made[:4]
        task.loop_turn()
        server.otherwise = Step()
        task.loop.post(server.release)
        yield made[4]  # the window has room for it when 1 and 2 have left

    left = [part.outcomes for part in task.process(slices())]
    assert left == made
    for outcomes in left:
        check(outcomes)
    assert made[4].apart
    assert dict(server.asked) == {1: 2, 2: 2, 3: 1, 4: 1, 5: 1, 6: 1}


def test_slices_of_an_unordered_task_are_not_compared(thread: LoopThread) -> None:
    server = ScriptedConnector()

    def run(engine: Engine, emit: Callable[[Any], None]) -> Run:
        plain = lambda raws: (list(raws), {})  # noqa: E731
        return Run(engine, "scripted", Options(), plain, emit, batch_size=4, ordered=False, seed=1)

    task = ThreadTask(thread, "engine", lambda: Engine(server, 1, seed=1), run, Options(), window=100, start=100)
    made = [Outcomes(keys, 2, counts=[1, 1], key_array=pa.array(keys)) for keys in ([1, 2], [3, 4])]
    assert sum(part.rows for part in task.process(made)) == 4
    assert not any(outcomes.apart for outcomes in made)


def test_a_bundle_concerns_its_slice_and_those_that_wait_for_one_of_its_keys() -> None:
    own, waiting, other = (Outcomes([1, 2], 2) for _ in range(3))
    bundle = Bundle({}, own, own.keys, range(2))
    assert [bundle.concerns(outcomes) for outcomes in (own, waiting, other)] == [True, False, False]
    bundle.wait(2, waiting, 1)
    assert [bundle.concerns(outcomes) for outcomes in (own, waiting, other)] == [True, True, False]


def test_bundles_of_an_apart_slice_are_not_in_the_table() -> None:
    table: dict[Any, Any] = {}
    outcomes = Outcomes([1, 2, 3], 3)
    first = Bundle(table, outcomes, outcomes.keys, range(3))
    assert not first.entered
    assert not first.cut(1).entered
    assert not table
    first.enter()
    assert first.cut(1).entered
