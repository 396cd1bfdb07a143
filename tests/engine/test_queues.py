"""The two queues: what may leave next; and the window: how much may come."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enrichkit.engine.queues import OrderedQueue, Ticket, UnorderedQueue, Window
from enrichkit.errors import ConfigError
from enrichkit.options import Options

Queue = OrderedQueue[str] | UnorderedQueue[str]


@pytest.fixture(params=[OrderedQueue, UnorderedQueue])
def queue(request: pytest.FixtureRequest) -> Queue:
    """An empty queue of either kind."""
    made: Queue = request.param()
    return made


def put(queue: Queue, *entries: str) -> dict[str, Ticket[str]]:
    """Put *entries*, those that begin with W as barriers; return the tickets of the others."""
    tickets = {}
    for entry in entries:
        if entry.startswith("W"):
            queue.put_barrier(entry)
        else:
            tickets[entry] = queue.put(entry)
    return tickets


def finish(queue: Queue, tickets: dict[str, Ticket[str]], *entries: str) -> list[str]:
    """Finish *entries* in this order and return what leaves."""
    for entry in entries:
        queue.ready(tickets[entry], entry)
    return queue.pop()


def test_entries_are_listed_in_the_order_in_which_they_came(queue: Queue) -> None:
    """Q1: testPut. What refuses a third row here is the window, and a barrier takes no room in it."""
    put(queue, "W", "row")
    assert len(queue) == 2
    assert list(queue.entries()) == ["W", "row"]


def test_a_barrier_leaves_at_once_and_a_row_when_it_is_done(queue: Queue) -> None:
    """Q2: testPop."""
    tickets = put(queue, "W", "row")
    assert queue.pop() == ["W"]
    assert finish(queue, tickets, "row") == ["row"]
    assert len(queue) == 0


def test_a_full_window_takes_the_next_row_when_one_has_left() -> None:
    """Q3: testPutOnFull."""
    window = Window(1)
    assert window.admits(1)
    window.enter(1)
    assert not window.admits(1)
    window.leave(1)
    assert window.admits(1)


def test_adjacent_barriers_leave_in_order(queue: Queue) -> None:
    """Q4: testWatermarkOnly."""
    put(queue, "W1", "W2")
    assert queue.pop() == ["W1", "W2"]
    assert queue.pop() == []


def test_in_order_nothing_leaves_before_a_slow_head() -> None:
    """Q5: testCompletionOrder of the ordered queue."""
    queue = OrderedQueue[str]()
    tickets = put(queue, "1", "2", "W", "3")
    assert finish(queue, tickets, "2", "3") == []
    assert len(queue) == 4
    assert finish(queue, tickets, "1") == ["1", "2", "W", "3"]


def test_unordered_rows_leave_as_they_are_done_but_do_not_cross_a_barrier() -> None:
    """Q6: testCompletionOrder of the unordered queue."""
    queue = UnorderedQueue[str]()
    tickets = put(queue, "R1", "R2", "W1", "R3", "R4", "W2", "R5", "R6")
    assert finish(queue, tickets, "R3") == []
    assert finish(queue, tickets, "R2") == ["R2"]
    assert finish(queue, tickets, "R6", "R4") == []
    assert finish(queue, tickets, "R1") == ["R1", "W1", "R3", "R4", "W2", "R6"]
    assert len(queue) == 1
    assert finish(queue, tickets, "R5") == ["R5"]
    assert len(queue) == 0


class Slice:
    """An entry that knows its ticket, as the slices of a task do."""

    ticket: Ticket[Any]


@pytest.mark.parametrize("kind", [OrderedQueue, UnorderedQueue])
def test_what_has_left_is_gone_before_the_garbage_collector_comes(kind: type[Any]) -> None:
    queue, entry = kind(), Slice()
    entry.ticket = queue.put(entry)
    queue.ready(entry.ticket, entry)
    seen = weakref.ref(entry)
    gc.disable()
    try:
        assert [entry] == queue.pop()
        del entry
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_without_room_is_refused(size: int) -> None:
    """Q7: the check of the queues' constructors."""
    with pytest.raises(ValueError, match=rf"^window is {size}; it must be at least 1 row\.$"):
        Window(size)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_of_no_calls_is_refused(capacity: int) -> None:
    """Q7: the check of the queues' constructors."""
    text = (
        rf"^capacity is {capacity}; it must be a whole number from 1 to 10,000, or 'auto'\. Set capacity=1 or more\.$"
    )
    with pytest.raises(ConfigError, match=text):
        Options(capacity=capacity)


def test_ten_thousand_barriers_leave_no_empty_segments_behind() -> None:
    """Q8: the rule of addWatermark."""
    queue = UnorderedQueue[str]()
    for _ in range(10_000):
        put(queue, "W")
        queue.pop()
    assert len(queue._segments) <= 2
    assert queue.pop() == []


def test_an_entry_that_is_finished_twice_leaves_once_with_its_first_value(queue: Queue) -> None:
    """Q9: the rule of the segments and the result handler."""
    ticket = queue.put("entry")
    queue.ready(ticket, "first")
    queue.ready(ticket, "second")
    assert queue.pop() == ["first"]
    queue.ready(ticket, "third")
    assert queue.pop() == []


def test_one_entry_may_leave_in_several_parts(queue: Queue) -> None:
    """Q10: emitResult."""
    ticket = queue.put("entry")
    queue.ready(ticket, "a", last=False)
    queue.ready(ticket, "b", last=False)
    assert len(queue) == 1
    queue.ready(ticket, "c")
    assert queue.pop() == ["a", "b", "c"]
    assert len(queue) == 0


def test_parts_of_an_unordered_entry_leave_before_it_is_done() -> None:
    queue = UnorderedQueue[str]()
    ticket = queue.put("entry")
    queue.ready(ticket, "a", last=False)
    assert queue.pop() == ["a"]
    assert len(queue) == 1


def test_entries_that_are_done_but_have_not_left_are_still_listed() -> None:
    """Q11: values."""
    queue = UnorderedQueue[str]()
    tickets = put(queue, "R1", "W", "R2", "R3")
    assert finish(queue, tickets, "R3") == []
    assert list(queue.entries()) == ["R1", "W", "R3", "R2"]


def test_a_barrier_leaves_with_the_last_row_before_it() -> None:
    """Q12: no later row has to finish first."""
    queue = UnorderedQueue[str]()
    tickets = put(queue, "R1", "W1", "W2", "R2")
    assert finish(queue, tickets, "R1") == ["R1", "W1", "W2"]


def test_the_head_is_the_oldest_entry_that_is_not_done(queue: Queue) -> None:
    tickets = put(queue, "R1", "W", "R2", "R3")
    assert queue.head() == "R1"
    finish(queue, tickets, "R1", "R2")
    assert queue.head() == "R3"
    finish(queue, tickets, "R3")
    assert queue.head() is None


# What happens to a queue: a row comes, a barrier comes, or the n-th row that is not done finishes.
steps = st.lists(st.one_of(st.just("row"), st.just("barrier"), st.integers(0, 20)), max_size=60)


@given(steps)
def test_the_ordered_queue_is_a_fifo_of_what_is_done(steps: list[Any]) -> None:
    queue = OrderedQueue[str]()
    came: list[str] = []
    done: set[str] = set()
    tickets: dict[str, Ticket[str]] = {}
    left = []
    for number, step in enumerate(steps):
        waiting = [entry for entry in came if entry not in done]
        if step == "row":
            came.append(f"R{number}")
            tickets |= put(queue, came[-1])
        elif step == "barrier":
            came.append(f"W{number}")
            done.add(came[-1])
            put(queue, came[-1])
        elif waiting:
            done.add(waiting[step % len(waiting)])
            queue.ready(tickets[waiting[step % len(waiting)]], waiting[step % len(waiting)])
        left += queue.pop()
        stuck = next((place for place, entry in enumerate(came) if entry not in done), len(came))
        assert left == came[:stuck]
        assert len(queue) == len(came) - len(left)


@given(steps)
def test_the_unordered_queue_keeps_rows_between_their_barriers_and_holds_nothing_else_back(steps: list[Any]) -> None:
    queue = UnorderedQueue[str]()
    segments: list[list[str]] = [[]]  # the rows that are not done
    ready: list[list[str]] = [[]]  # per segment: what is done, in that order, then the barrier that ends it
    tickets: dict[str, Ticket[str]] = {}
    for number, step in enumerate(steps):
        waiting = [(i, row) for i, rows in enumerate(segments) for row in rows]
        if step == "row":
            segments[-1].append(f"R{number}")
            tickets |= put(queue, f"R{number}")
        elif step == "barrier":
            segments += [[], []]
            ready += [[f"W{number}"], []]
            put(queue, f"W{number}")
        elif waiting:
            i, row = waiting[step % len(waiting)]
            segments[i].remove(row)
            ready[i].append(row)
            queue.ready(tickets[row], row)
        expected = []
        for rows, finished in zip(segments, ready, strict=True):
            expected += finished
            finished.clear()
            if rows:
                break
        assert queue.pop() == expected


def test_a_window_starts_small_and_doubles_with_each_emission() -> None:
    window = Window(100, 10)
    sizes = []
    for _ in range(5):
        window.enter(1)
        window.leave(1)
        sizes.append(window.size)
    assert sizes == [20, 40, 80, 100, 100]


@pytest.mark.parametrize(("start", "size"), [(None, 50), (0, 1), (99, 50)])
def test_a_window_starts_within_its_bounds(start: int | None, size: int) -> None:
    assert Window(50, start).size == size


def test_an_empty_window_takes_a_slice_that_is_larger_than_itself() -> None:
    window = Window(10)
    assert window.admits(1000)
    window.enter(1000)
    assert not window.admits(1)
    window.leave(1000)
    assert window.admits(1)


def test_a_slice_may_fill_a_window_to_the_last_row() -> None:
    window = Window(10)
    window.enter(4)
    assert window.admits(6)
    assert not window.admits(7)


@given(st.integers(1, 50), st.integers(1, 50), st.lists(st.integers(1, 20), max_size=50))
def test_a_window_never_holds_more_than_its_limit_or_one_slice(limit: int, start: int, rows: list[int]) -> None:
    window = Window(limit, start)
    held: list[int] = []
    for number in rows:
        while not window.admits(number):
            window.leave(held.pop(0))
        window.enter(number)
        held.append(number)
        assert window.held == sum(held)
        assert window.held <= limit or len(held) == 1
