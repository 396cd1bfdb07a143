"""The Spark thread's half, on real threads: what it pulls, what it yields, and what its end does."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.sizes import BytesEach
from enrichkit.errors import FatalError, LookupFailedError, PermanentError
from enrichkit.outcome import Outcomes
from enrichkit.testing.scripted import ScriptedConnector, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from enrichkit.engine.loop import LoopThread
    from enrichkit.engine.run import Part

    from .bench import SparkThread


def slices(*groups: Iterable[Any]) -> Iterator[Outcomes]:
    for group in groups:
        keys = list(group)
        yield Outcomes(keys, len(keys), counts=[1] * len(keys))


def in_slices_of(size: int, total: int) -> Iterator[Outcomes]:
    return slices(*(range(start, min(start + size, total)) for start in range(0, total, size)))


def values(parts: Iterable[Part]) -> list[Any]:
    return [value for part in parts for value in part.outcomes.values]


@pytest.mark.parametrize("ordered", [True, False])
def test_every_row_that_goes_in_comes_out(spark_thread: SparkThread, ordered: bool) -> None:
    server = ScriptedConnector(lambda key, times: Step(after=0.001 * (key % 3)))
    task = spark_thread(server, capacity=8, batch_size=4, window=64, start=16, ordered=ordered)
    left = values(task.process(in_slices_of(5, 1003))) if ordered else []
    if not ordered:
        for part in task.process(in_slices_of(5, 1003)):
            assert part.indices is not None
            left += [part.outcomes.values[i] for i in part.indices]
    expected = [f"v{key}" for key in range(1003)]
    assert (left if ordered else sorted(left)) == (expected if ordered else sorted(expected))
    assert set(server.asked.values()) == {1}
    assert server.peak <= 8


def test_rows_are_pulled_only_while_the_window_has_room(spark_thread: SparkThread) -> None:
    """What is pulled and not yet yielded is never more than the window and the slice that is next."""
    task = spark_thread(ScriptedConnector(), capacity=4, window=40, start=10)
    pulled = yielded = 0
    held = []

    def source() -> Iterator[Outcomes]:
        nonlocal pulled
        for outcomes in in_slices_of(3, 600):
            held.append(pulled - yielded)
            pulled += outcomes.rows
            yield outcomes

    for part in task.process(source()):
        yielded += part.rows
    assert yielded == 600
    assert max(held) <= 40


@pytest.mark.parametrize(
    ("window", "two_rounds", "at_first", "in_the_end"),
    [(800, 16, 2, 100), (100, 16, 2, 32), (40, 16, 2, 20), (7, 16, 3, 3), (1, 16, 1, 1), (800, 1, 1, 100)],
)
def test_slices_are_an_eighth_of_the_window_and_up_to_half_of_a_full_one_for_four_rounds_of_calls(
    spark_thread: SparkThread, window: int, two_rounds: int, at_first: int, in_the_end: int
) -> None:
    task = spark_thread(ScriptedConnector(), window=window, start=two_rounds)
    assert task.bridge.slice_rows == at_first
    for _ in task.process(in_slices_of(1, 100)):
        pass
    assert task.bridge.slice_rows == in_the_end


def test_slices_of_wide_values_hold_a_sixteenth_of_window_bytes(spark_thread: SparkThread) -> None:
    """One of them is kept in memory whole: `window_bytes` holds back those behind it."""
    wide = ScriptedConnector(otherwise=Step(value="x" * 1000))
    task = spark_thread(wide, window=800, start=800, window_bytes=40_000)
    sizes = []

    def source() -> Iterator[Outcomes]:
        for start in range(0, 40_000, 100):
            size = min(100, task.bridge.slice_rows)
            sizes.append(size)
            yield from slices(range(start, start + size))

    for _ in task.process(source()):
        pass
    assert sizes[0] == 100
    assert max(sizes[-10:]) == 2


def test_slices_are_small_until_a_row_has_left(spark_thread: SparkThread) -> None:
    row_bytes = BytesEach(10)
    task = spark_thread(ScriptedConnector(), window=800, start=800, row_bytes=row_bytes)
    assert task.bridge.slice_rows == 10
    for _ in task.process(slices(range(10))):
        pass
    assert task.bridge.slice_rows == 400
    assert spark_thread(ScriptedConnector(), window=800, start=800, row_bytes=row_bytes).bridge.slice_rows == 400


def test_one_wide_value_does_not_make_the_slices_small_for_ever(spark_thread: SparkThread) -> None:
    task = spark_thread(
        ScriptedConnector({"wide": Step(value="x" * 80_000)}), window=800, start=800, window_bytes=160_000
    )
    sizes = []
    for part in task.process(slices(["wide"], *([n] for n in range(200)))):
        sizes.append(task.bridge.slice_rows)
        assert part.rows == 1
    assert min(sizes) == 1
    assert sizes[-1] > 100


def test_a_consumer_of_a_few_rows_does_not_look_up_a_whole_window(spark_thread: SparkThread) -> None:
    server = ScriptedConnector()
    task = spark_thread(server, window=100_000, start=8)
    parts = task.process(in_slices_of(1, 50_000))
    assert next(parts).outcomes.values == ["v0"]
    parts.close()
    task.loop_turn()
    assert len(server.asked) <= 16


def test_nothing_new_is_called_after_the_consumer_has_gone(spark_thread: SparkThread) -> None:
    server = ScriptedConnector(otherwise=Step(after=0.002))
    task = spark_thread(server, capacity=2, window=1000, start=1000)
    parts = task.process(in_slices_of(10, 900))
    next(parts)
    parts.close()
    task.loop_turn()
    calls = len(server.calls)
    assert server.in_flight == 0
    task.loop_turn(after=0.02)
    assert len(server.calls) == calls < 900


def test_a_consumer_that_never_starts_starts_nothing(spark_thread: SparkThread) -> None:
    server = ScriptedConnector()
    parts = spark_thread(server).process(in_slices_of(1, 10))
    parts.close()
    assert server.opened == 0


def test_a_failed_lookup_is_raised_where_spark_waits(spark_thread: SparkThread) -> None:
    server = ScriptedConnector({7: Step(error=PermanentError("poison"))})
    task = spark_thread(server, capacity=1, window=4, start=4, show_keys=True)
    pulled = []

    def source() -> Iterator[Outcomes]:
        for outcomes in in_slices_of(1, 1000):
            pulled.append(outcomes)
            yield outcomes

    left: list[str] = []
    with pytest.raises(LookupFailedError, match="the lookup of key 7 failed after 1 of 3 attempts"):
        left.extend(part.outcomes.values[0] for part in task.process(source()))
    assert left == [f"v{key}" for key in range(len(left))]
    assert len(left) <= 7
    assert len(pulled) <= 7 + 4 + 2


def test_an_error_of_the_input_stops_the_run(spark_thread: SparkThread) -> None:
    server = ScriptedConnector(otherwise=Step(never=True))

    def source() -> Iterator[Outcomes]:
        yield from in_slices_of(1, 3)
        raise OSError("the input broke")

    task = spark_thread(server)
    with pytest.raises(OSError, match="the input broke"):
        list(task.process(source()))
    task.loop_turn()
    assert server.in_flight == 0


def test_a_source_that_cannot_be_made_fails_the_task(spark_thread: SparkThread) -> None:
    def broken() -> Any:
        raise FatalError("no such driver")

    task = spark_thread(ScriptedConnector())
    with pytest.raises(FatalError, match=r"^no such driver$"):
        list(task.process(in_slices_of(1, 3), build=broken))


def test_no_rows_open_no_connection(spark_thread: SparkThread) -> None:
    server = ScriptedConnector()
    assert list(spark_thread(server).process(iter(()))) == []
    assert server.opened == 0


def test_tasks_of_several_threads_share_one_engine(spark_thread: SparkThread, thread: LoopThread) -> None:
    server = ScriptedConnector(otherwise=Step(after=0.001))
    tasks = [spark_thread(server, capacity=3, window=20) for _ in range(4)]

    def consume(number: int) -> list[Any]:
        return values(tasks[number].process(slices(*([key] for key in range(number * 100, number * 100 + 50)))))

    with ThreadPoolExecutor(4) as pool:
        left = list(pool.map(consume, range(4)))
    assert left == [[f"v{key}" for key in range(start, start + 50)] for start in (0, 100, 200, 300)]
    assert len(thread.engines) == 1
    assert (server.opened, server.peak <= 3) == (1, True)


def test_what_is_finished_leaves_before_more_is_read(spark_thread: SparkThread) -> None:
    """A yield is preferred over a pull, because a pull may block for as long as the input likes."""
    server = ScriptedConnector()
    task = spark_thread(server)
    first_is_ready = threading.Event()
    order: list[str] = []

    def source() -> Iterator[Outcomes]:
        yield from slices(["a"])
        order.append("pull b")
        task.loop_turn()  # by now "a" is finished
        first_is_ready.set()
        yield from slices(["b"])
        order.append("pull c")
        yield from slices(["c"])

    for part in task.process(source()):
        order.append(f"yield {part.outcomes.keys[0]}")
        assert first_is_ready.is_set() or part.outcomes.keys == ["a"]
    assert order.index("yield a") < order.index("pull c")


@pytest.mark.parametrize(("keys", "warns"), [(9, False), (12, True)])
def test_a_small_task_whose_keys_all_are_missing_warns_once_for_its_engine(
    spark_thread: SparkThread, caplog: pytest.LogCaptureFixture, keys: int, warns: bool
) -> None:
    server = ScriptedConnector(otherwise=Step(missing=True))
    for _ in range(2):
        list(spark_thread(server).process(in_slices_of(1, keys)))
    text = (
        f"scripted: the source holds none of the first {keys} keys of this task. Compare a key with the config of the "
        "source."
    )
    assert [record.getMessage() for record in caplog.records] == [text] * warns
