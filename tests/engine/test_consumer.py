"""What takes the rows: it gets them early, and nothing is asked for when it has gone."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from enrichkit.engine.bridge import NOTHING
from enrichkit.engine.consumer import BEAT
from enrichkit.outcome import Outcomes
from enrichkit.testing.scripted import ScriptedConnector, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .bench import SparkThread

GRACE = 0.2
SOON = Step(after=0.005)


class Taker:
    """A consumer that goes when it is told to."""

    def __init__(self, *, steady: bool = False) -> None:
        self.steady = steady
        self.has_gone = False
        self.flushes = 0
        self.took_everything = False

    def flush(self) -> None:
        self.flushes += 1

    def gone(self) -> bool:
        return self.has_gone

    def took_all(self) -> None:
        self.took_everything = True

    def goes_by(self, first_left: float) -> float:
        return first_left + GRACE


def one_by_one(total: int) -> Iterator[Outcomes]:
    return (Outcomes([key], 1, counts=[1]) for key in range(total))


@pytest.mark.parametrize("ordered", [True, False])
def test_a_new_consumer_has_time_to_go_before_a_fourth_round_of_calls(spark_thread: SparkThread, ordered: bool) -> None:
    server, taker = ScriptedConnector(otherwise=SOON), Taker()
    task = spark_thread(server, capacity=4, start=8, window=1000, ordered=ordered, consumer=taker)
    assert sum(part.rows for part in task.process(one_by_one(100))) == 100
    starts = [seen.started for seen in server.calls]
    assert starts[12] - starts[3] >= GRACE
    assert [at for at, (one, next_one) in enumerate(pairwise(starts), 1) if next_one - one > GRACE / 2] == [12]
    assert taker.took_everything


def test_a_consumer_that_took_all_rows_before_is_not_waited_for(spark_thread: SparkThread) -> None:
    server = ScriptedConnector(otherwise=SOON)
    task = spark_thread(server, capacity=4, start=8, window=1000, consumer=Taker(steady=True))
    assert sum(part.rows for part in task.process(one_by_one(100))) == 100
    assert all(later - earlier < GRACE for earlier, later in pairwise(seen.started for seen in server.calls))


def test_a_task_of_three_rounds_is_not_waited_for(spark_thread: SparkThread) -> None:
    server = ScriptedConnector(otherwise=SOON)
    task = spark_thread(server, capacity=4, start=8, window=1000, consumer=Taker())
    assert sum(part.rows for part in task.process(one_by_one(12))) == 12
    assert server.calls[11].started - server.calls[0].started < GRACE


@pytest.mark.parametrize("steady", [True, False])
def test_nothing_is_asked_for_when_the_consumer_has_gone(spark_thread: SparkThread, steady: bool) -> None:
    server, taker = ScriptedConnector(otherwise=Step(after=0.05)), Taker(steady=steady)
    task = spark_thread(server, capacity=4, start=8, window=1000, consumer=taker)
    parts = task.process(one_by_one(1000))
    while next(parts) is NOTHING:
        pass
    taker.has_gone = True
    text = r"^scripted: Spark takes no more rows of this task\.$"
    with pytest.raises(BrokenPipeError, match=text):
        list(parts)
    task.loop_turn()
    calls = len(server.calls)
    assert calls < 500, "the loop looks every 10 ms, and a round of four calls takes 50 ms"
    assert server.in_flight == 0
    task.loop_turn(after=0.1)
    assert len(server.calls) == calls
    assert not taker.took_everything


def test_a_consumer_gets_what_was_yielded_before_each_wait_and_a_beat_while_nothing_comes(
    spark_thread: SparkThread,
) -> None:
    server, taker = ScriptedConnector({0: Step(after=4 * BEAT)}), Taker()
    task = spark_thread(server, consumer=taker)
    began = time.monotonic()
    parts = list(task.process(one_by_one(1)))
    assert [part is NOTHING for part in parts] == [True] * (len(parts) - 1) + [False]
    assert 2 <= len(parts) - 1 <= 4
    assert taker.flushes >= len(parts) - 1
    assert time.monotonic() - began >= 3.9 * BEAT, "the clock of the loop ticks in milliseconds"


def test_a_consumer_that_cannot_be_flushed_ends_the_task(spark_thread: SparkThread) -> None:
    class Broken(Taker):
        def flush(self) -> None:
            raise BrokenPipeError("the socket is closed")

    server = ScriptedConnector(otherwise=Step(never=True))
    task = spark_thread(server, consumer=Broken())
    with pytest.raises(BrokenPipeError, match=r"^the socket is closed$"):
        list(task.process(one_by_one(10)))
    task.loop_turn()
    assert server.in_flight == 0
