"""Checks of calls at the same time, of cancelled ones and of late ones: each gets its own answer, or none."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from ...connector import Failure
from ...errors import TransientError
from .base import Fixtures
from .source import on_a_network

if TYPE_CHECKING:
    from .source import Network, Source

__all__ = ["CallChecks"]

BRIEF = 0.3  # seconds for a call that is meant to run out of time
GRACE = 1.0  # seconds after its time limit, in which a call may end by itself


class CallChecks(Fixtures):
    """
    The engine makes up to `capacity` calls at a time and cancels those that are far too late.

    A connection whose answer nobody waited for is the classic way to give a key its neighbour's value.
    """

    def test_calls_at_the_same_time_get_their_own_answers(self, source: Source) -> None:
        """Look for what calls share: a cursor, a buffer, `self._keys`."""

        async def ask(n: int) -> None:
            for key in itertools.islice(itertools.cycle(source.keys), n, n + 10):
                answers = await source.connector.fetch_many((key,), source.call())
                assert source.expected([key]) == source.values(answers)

        async def all_at_once() -> None:
            async with asyncio.TaskGroup() as group:
                for n in range(source.capacity):
                    group.create_task(ask(n))

        source.run(all_at_once())

    def test_one_call_at_a_time_is_enough(self, source: Source) -> None:
        """Look for what needs a second connection while it holds the first: `capacity` may be 1."""
        source.close()
        source.connector.capacity = 1
        source.open()
        assert source.expected(source.keys) == source.look_up_values(source.keys)

    def test_after_a_cancelled_call_the_next_one_gets_its_own_answers(self, source: Source) -> None:
        """Look at what a call leaves behind when it is cancelled at any of its awaits: an unread answer, a lock."""

        async def cancel_after(turns: int) -> None:
            key, other = source.keys[turns % len(source.keys)], source.keys[(turns + 1) % len(source.keys)]
            task = asyncio.ensure_future(source.connector.fetch_many((key,), source.call(timeout=BRIEF)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            answers = await source.connector.fetch_many((other,), source.call())
            assert source.expected([other]) == source.values(answers)

        for turns in range(20):
            source.run(cancel_after(turns))

    @on_a_network
    def test_calls_overlap(self, network: Network) -> None:
        """Look for a lock around the call, or a pool of one connection: a slow answer holds no other call back."""
        network.open()
        network.look_up(network.keys)
        first, second = network.keys[:1], network.keys[1:2]
        with network.frozen():
            tasks = network.asked(first, timeout=network.patience)
            tasks += network.asked(second, timeout=network.patience)
        for task, keys in zip(tasks, (first, second), strict=True):
            assert network.ended(task)
            assert network.expected(keys) == network.values(task.result())

    @on_a_network
    def test_the_loop_goes_on_while_a_call_waits(self, network: Network) -> None:
        """Look for a blocking driver or `time.sleep`: all lookups of the process stand still. Use `to_thread`."""
        network.open()
        with network.frozen():
            try:
                [task] = network.asked(network.group, timeout=2 * network.patience)
                network.run(asyncio.sleep(0))
            except AssertionError:
                network.proxy.cut()  # so that the thread can go on
                raise
        assert network.ended(task)

    @on_a_network
    def test_late_answers_go_to_their_own_calls(self, network: Network) -> None:
        """Look for answers that are matched by the order in which they come."""
        network.open()
        network.proxy.delay(lambda chunk: 0.02 * (3 - chunk.number % 4))
        keys = list(itertools.islice(itertools.cycle(network.keys), 3 * network.capacity))
        for start in range(0, len(keys), network.capacity):
            tasks = [network.start([key]) for key in keys[start : start + network.capacity]]
            for key, task in zip(keys[start:], tasks, strict=False):
                assert network.ended(task)
                assert network.expected([key]) == network.values(task.result())

    @on_a_network
    def test_a_cancelled_call_ends_as_cancelled(self, network: Network) -> None:
        """Look for `except BaseException` and `except CancelledError` without `raise`: its slot would never be free."""
        network.open()
        network.look_up(network.keys)
        with network.frozen():
            [task] = network.asked(network.keys[:1], timeout=GRACE)
            network.cancel(task)
            assert task.cancelled()

    @on_a_network
    def test_the_answer_to_a_cancelled_call_goes_to_nobody(self, network: Network) -> None:
        """Look at what becomes of its connection: it is closed, or read to the end, before another call gets it."""
        network.open()
        for n in range(3):
            with network.frozen():
                [task] = network.asked([network.keys[n % 2]], timeout=GRACE)
                network.cancel(task)
            assert network.expected([network.keys[2]]) == network.values(network.recovered([network.keys[2]]))

    @on_a_network
    def test_cancelled_calls_give_their_places_back(self, network: Network) -> None:
        """Look for a semaphore or a pool that is not given back when a call is cancelled: `finally`, `async with`."""
        network.open()
        for _ in range(3):
            with network.frozen():
                for task in network.asked(*[[key] for key in network.keys[: network.capacity]], timeout=BRIEF):
                    network.cancel(task)
            network.recovered(network.keys[:1])
        tasks = [network.start([key]) for key in network.keys[: network.capacity]]
        assert all(network.ended(task) and task.exception() is None for task in tasks)

    @on_a_network
    def test_a_call_out_of_time_is_transient(self, network: Network) -> None:
        """Look at what the driver raises for its own time limit; a call may also go on until it is cancelled."""
        network.open()
        network.look_up(network.keys)
        with network.frozen():
            [task] = network.asked(network.group, timeout=BRIEF)
            if network.ended(task, BRIEF + GRACE):
                self._is_transient(task)
            else:
                network.cancel(task)
        assert network.expected(network.group) == network.values(network.recovered(network.group))

    def _is_transient(self, task: asyncio.Task[Any]) -> None:
        if task.exception() is None:
            answers = task.result()
            errors = [answer.error for answer in answers.values() if isinstance(answer, Failure)]
            assert errors, f"A server that did not answer has given {len(answers)} answers; it is no miss either."
            assert all(isinstance(error, TransientError) for error in errors), errors
        else:
            with pytest.raises(TransientError):
                task.result()
