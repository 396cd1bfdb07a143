"""Which keys a call takes, of those that wait."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enrichkit.engine import pending
from enrichkit.engine.pending import SLICES, Pending
from enrichkit.engine.records import Bundle, Lookup, State
from enrichkit.interface import Keys as InColumns
from enrichkit.outcome import Outcomes
from enrichkit.testing.scripted import Step

if TYPE_CHECKING:
    from .bench import Lab


class Keys:
    """Pending keys, in bundles of a slice each, and the table that finds them."""

    def __init__(self, *, in_columns: bool = False) -> None:
        self.pending = Pending(neighbours=True)
        self.table: dict[Any, Any] = {}
        self.in_columns = in_columns

    def add(self, *keys: Any, apart: bool = False) -> Outcomes:
        outcomes = Outcomes(list(keys), len(keys))
        given = InColumns([pa.array(keys)], list(keys)) if self.in_columns else [*keys]
        bundle = Bundle(self.table, outcomes, given, range(len(keys)))
        if not apart:
            bundle.enter()
        self.pending.add_bundle(bundle)
        return outcomes

    def take(self, limit: int, only: Outcomes | None = None) -> list[Any]:
        """
        Take a group and return its keys; each is at its place in its slice, and the table leads to it, or to a bundle
        that knows of the same rows that wait.
        """
        group, search = self.pending.take(limit, only)
        assert search is None
        keys = []
        for held in group:
            if isinstance(held, Lookup):
                assert self.table[held.key] is held
                held = Bundle({held.key: held}, held.outcomes, [held.key], [held.index])
            elif held.entered:
                assert all(self.table[key].more is held.more for key in held.keys)
            else:
                assert self.table.keys().isdisjoint(held.keys)
            assert held.keys == [held.outcomes.keys[index] for index in held.indices]
            keys += held.keys
        return keys


@pytest.mark.parametrize("width", [1, 3, SLICES])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    slices=st.lists(st.sets(st.integers(0, 500), min_size=1, max_size=40), min_size=1, max_size=12),
    limit=st.integers(2, 30),
    taken_between=st.integers(0, 3),
    in_order=st.booleans(),
    in_columns=st.booleans(),
    apart=st.integers(0, 2**12),
)
def test_each_key_is_taken_once_and_a_group_is_full_while_keys_wait(
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    slices: list[set[int]],
    limit: int,
    taken_between: int,
    in_order: bool,
    in_columns: bool,
    apart: int,
) -> None:
    monkeypatch.setattr(pending, "SLICES", width)
    keys, seen = Keys(in_columns=in_columns), set()
    left: list[int] = []
    for number, group in enumerate(slices):
        new = group - seen
        seen |= new
        if new:
            # Text that is no UTF-8 has an order of its own.
            keys.add(*sorted(new, reverse=not in_order and number % 2 == 1), apart=bool(apart >> number & 1))
        for _ in range(taken_between):
            waiting = len(seen) - len(left)
            left += (taken := keys.take(limit))
            assert len(taken) == min(limit, waiting)
            assert keys.pending.keys == waiting - len(taken)
    while keys.pending:
        assert keys.pending.groups(limit) == -(-(len(seen) - len(left)) // limit)
        left += (taken := keys.take(limit))
        assert len(taken) == limit or not keys.pending
    assert sorted(left) == sorted(seen)
    assert keys.take(limit) == []
    assert keys.pending.groups(limit) == keys.pending.keys == 0


def test_a_call_takes_the_lowest_keys_of_all_slices() -> None:
    keys = Keys()
    for first in range(10):
        keys.add(*range(first, 10_000, 10))
    for call in range(20):
        taken = keys.take(500)
        # It may be a few keys off, because the bound is found by equal shares.
        near = range(call * 500 - 10, call * 500 + 510)
        assert [key for key in taken if key not in near] == []


def test_a_lift_goes_up_to_the_end_before_it_comes_back() -> None:
    keys = Keys()
    keys.add(10, 20, 30, 40, 50, 60)
    assert keys.take(2) == [10, 20]
    keys.add(5, 15, 25, 35)
    keys.add(1, 2)
    assert sorted(keys.take(3)) == [25, 30, 35]
    assert keys.take(2) == [40, 50]
    assert sorted(keys.take(2)) == [1, 60], "the end of a round is filled up from the next one"
    assert sorted(keys.take(2)) == [2, 5]
    assert keys.take(2) == [15]


@pytest.mark.parametrize("limit", [1, 2])
def test_no_call_is_made_with_a_key_that_has_its_outcome(limit: int) -> None:
    outcomes = Outcomes(["settled", "a", "b"], 3)
    lookups = [Lookup(key, outcomes, index) for index, key in enumerate(outcomes.keys)]
    lookups[0].state = State.SETTLED
    waiting = Pending()
    waiting.add(lookups)
    assert waiting.take(limit, None) == (lookups[1 : 1 + limit], None)
    assert waiting.keys == 2 - limit


def test_all_bundles_that_wait_are_found_those_of_the_next_round_too() -> None:
    keys = Keys()
    keys.add(10, 20, 30, 40)
    assert keys.take(2) == [10, 20]
    keys.add(5, 25)
    assert sorted(key for bundle in keys.pending.bundles() for key in bundle.keys) == [5, 25, 30, 40]


def test_no_key_waits_for_ever_when_a_call_has_fewer_keys_than_there_are_slices() -> None:
    """Else, where rows leave as they complete, lower ones might come for ever."""
    keys = Keys()
    for key in (900, 800, 700):
        keys.add(key)
    taken: list[Any] = []
    for lower in range(600, 0, -2):
        if 900 in taken:
            break
        taken += keys.take(2)
        keys.add(lower - 1)
        keys.add(lower)
    assert sorted(taken) == [599, 700, 800, 900]


def test_a_call_of_neighbours_chooses_from_a_bounded_number_of_slices() -> None:
    """Or with many small ones it would take longer to choose the keys than to ask for them."""
    keys = Keys()
    for first in range(2_000):
        keys.add(*range(first, 160_000, 2_000))
    taken: list[Any] = []
    while keys.pending:
        group, _ = keys.pending.take(2_000, None)
        assert len(group) <= 2 * SLICES, "the end of one round and the begin of the next"
        assert sum(len(held.keys) for held in group if isinstance(held, Bundle)) == 2_000
        taken += [key for held in group if isinstance(held, Bundle) for key in held.keys]
    assert sorted(taken) == [*range(160_000)]


def test_slices_of_one_row_fill_a_call_over_many_rounds() -> None:
    keys = Keys()
    for key in range(3 * SLICES):
        keys.add(key)
    assert sorted(keys.take(2 * SLICES + 1)) == [*range(2 * SLICES + 1)]
    assert sorted(keys.take(SLICES)) == [*range(2 * SLICES + 1, 3 * SLICES)]
    assert not keys.pending


def test_what_is_held_back_to_one_slice_takes_its_keys_wherever_they_wait() -> None:
    keys = Keys()
    keys.add(10, 20, 30, 40)
    assert keys.take(2) == [10, 20]
    second = keys.add(5, 25)
    third = keys.add(1, 2)
    assert keys.take(9, second) == [25, 5]
    assert keys.take(9, second) == []
    assert keys.take(9, third) == [1, 2]
    assert keys.take(9) == [30, 40]


def test_keys_with_a_clock_stay_first_when_another_slice_goes_before_them() -> None:
    keys = Keys()
    keys.add(10, 20, 30)
    for lookup in keys.pending.clock(2):
        lookup.started = 0.0
    second = keys.add(5, 25)
    assert keys.take(1, second) == [5]
    assert keys.pending.clock(2) == []
    assert keys.take(2) == [10, 20]  # else they would wait behind a key without a clock
    assert sorted(keys.take(9)) == [25, 30]
    assert not keys.pending


def test_clocks_start_for_keys_of_the_next_round_as_well() -> None:
    keys = Keys()
    keys.add(10, 20, 30)
    assert keys.take(2) == [10, 20]
    keys.add(1, 2, 25)
    started = keys.pending.clock(4)
    assert len(started) == keys.pending.clocked == 4
    assert keys.pending.clock(4) == []
    for lookup in started:
        lookup.started = 0.0
    assert sorted(keys.take(9)) == [1, 2, 25, 30]
    assert not keys.pending
    assert keys.pending.clocked == 0


@pytest.mark.parametrize("ordered", [True, False])
async def test_calls_of_neighbours_span_slices_and_each_row_gets_its_value(lab: Lab, *, ordered: bool) -> None:
    server, task = lab.start(
        batch_size=10, capacity=1, ordered=ordered, neighbours=True, otherwise=Step(after=0.1), max_fallback_ratio=1.0
    )
    for first in range(5):
        task.admit(*range(first, 100, 5))
    await task.end()
    assert sorted((row.key, row.value) for row in task.left) == [(key, f"v{key}") for key in range(100)]
    assert len(server.keys) == 10
    spans = [max(call) - min(call) for call in server.keys]
    assert max(spans[1:]) <= 20, "the first call had one slice to choose from, each later one all five"


def test_the_lowest_keys_are_those_of_one_column_where_the_other_has_only_high_ones() -> None:
    # Each column is a part of a list; what lies before and behind it does not count.
    low, high = pending._lowest([([-7, *range(100)], 1, 101), ([0, 1, *range(1000, 1100), 5], 2, 102)], 50)
    assert low + high == 50
    assert high <= 2, "the last few keys are shared out without a bound"


def shared_out(room: int, columns: int, short: int, passes: int = 4) -> int:
    """
    How many of the *room* lowest keys may be left for others, of *columns* of which so many are *short*.

    Each pass finds an equal share of what is left, or the rest of a short column, which is out then. After the last one
    each column gives its share, the one with the lowest key first.
    """
    if columns == 1 or not room:
        return 0
    if not passes or room < columns:
        return room - 1
    left = shared_out(room - room // columns, columns, short, passes - 1)
    return max(left, shared_out(room - 1, columns - 1, short - 1, passes - 1)) if short else left


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 60),
    begins=st.lists(st.sampled_from([0, 0, 100, 10_000]), min_size=2, max_size=6),
)
def test_what_is_taken_are_the_lowest_keys_but_for_an_equal_share_of_the_last_few(
    seed: int, count: int, begins: list[int]
) -> None:
    """Of columns with enough keys for all, between those of the others, in part above them, or all of them above."""
    rng, number = random.Random(seed), len(begins)
    columns = [
        sorted((begin + key) * number + n for key in rng.sample(range(200), rng.randint(count, 120)))
        for n, begin in enumerate(begins)
    ]

    taken = pending._lowest([(column, 0, len(column)) for column in columns], count)

    assert sum(taken) == count
    in_order = sorted(key for column in columns for key in column)
    got = {key for column, size in zip(columns, taken, strict=True) for key in column[:size]}
    left = shared_out(count, number, 0)
    assert set(in_order[: count - left]) <= got
    lowest = set(in_order[:count])
    others = [len(got.intersection(column) - lowest) for column in columns]
    assert max(others) <= -(-(left + 1) // number)


@settings(max_examples=300, deadline=None)
@given(
    slices=st.lists(st.sets(st.integers(0, 500), min_size=1, max_size=40), min_size=1, max_size=12),
    limit=st.integers(2, 30),
    calls=st.integers(0, 2),
    in_columns=st.booleans(),
)
def test_each_call_of_a_lift_takes_the_lowest_keys_of_its_round_but_for_a_few(
    slices: list[set[int]], limit: int, calls: int, in_columns: bool
) -> None:
    keys = Keys(in_columns=in_columns)
    groups: list[set[int]] = []
    of_round: set[int] = set()
    later: set[int] = set()
    reached: int | None = None

    def take() -> None:
        nonlocal of_round, later, reached
        taken, room = set(keys.take(limit)), limit
        while of_round and room:
            if len(of_round) <= room:
                assert of_round <= taken
                taken -= of_round
                room -= len(of_round)
                of_round, later, reached = later, set(), None
            else:
                columns = [size for group in groups if (size := len(group & of_round))]
                left = shared_out(room, len(columns), sum(size < room for size in columns))
                assert set(sorted(of_round)[: room - left]) <= taken <= of_round
                of_round -= taken
                reached = max(taken)
                return
        assert not taken

    for group in slices:
        new = group.difference(*groups)
        groups.append(new)
        if new:
            keys.add(*sorted(new))
            passed = {key for key in new if of_round and reached is not None and key < reached}
            later |= passed
            of_round |= new - passed
        for _ in range(calls):
            take()
    while keys.pending:
        take()
    assert not of_round


def test_the_count_of_keys_is_right_in_every_way_of_taking_them() -> None:
    keys = Keys()
    first = keys.add(10, 20, 30, 40, 50)
    assert keys.take(1, first) == [10]
    assert keys.pending.keys == 4
    started = keys.pending.clock(2)
    assert len(started) == keys.pending.clocked == 2
    for lookup in started:
        lookup.started = 0.0
    assert keys.take(1) == [20]
    assert (keys.pending.keys, keys.pending.clocked) == (3, 1)
    started[1].state = State.SETTLED
    keys.pending.clocked -= 1
    keys.pending.drop_settled()
    assert (keys.pending.keys, keys.pending.clocked) == (2, 0)
    assert keys.take(9) == [40, 50]
    assert keys.pending.keys == 0
    keys.add(60)
    keys.pending.clear()
    assert keys.pending.keys == keys.pending.groups(1) == 0
    assert not keys.pending


def test_an_elevator_passes_keys_of_a_bundle_and_none_of_its_neighbours_in_the_column() -> None:
    """The keys of a bundle may be a part of a column that goes on with keys of other bundles."""
    pending = Pending(neighbours=True)
    column = InColumns([pa.array(range(6))], list(range(6)))
    first, second = Outcomes([0, 1, 2, 3], 4), Outcomes([10, 11], 2)
    pending.add_bundle(Bundle({}, Outcomes([4, 20], 2), [4, 20], range(2)))
    pending.take(1, None)  # the elevator is at 4
    pending.add_bundle(Bundle({}, first, column[1:3], range(1, 3)))
    pending.add_bundle(Bundle({}, second, [10, 11], range(2)))
    assert [bundle.keys[0] for bundle in pending.bundles()] == [20, 10, 1]
    assert [len(bundle.keys) for bundle in pending.bundles()] == [1, 2, 2]


def test_no_more_bundles_are_taken_apart_than_have_to_have_clocks() -> None:
    keys = Keys()
    keys.add(1, 2)
    keys.add(3, 4)
    assert [lookup.key for lookup in keys.pending.clock(2)] == [1, 2]
    assert [bundle.keys for bundle in keys.pending.bundles()] == [[3, 4]]
