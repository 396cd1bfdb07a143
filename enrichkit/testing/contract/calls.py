"""Checks of concurrent, cancelled and late calls: each call gets its own answer, or none."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from ...errors import TransientError
from ...interface import Failure
from .base import Fixtures
from .messages import raised, short, told
from .own_process import cancels, needs_network

if TYPE_CHECKING:
    from ..proxy import Chunk
    from .source import Network, Source

__all__ = ["CallChecks"]

BRIEF = 0.3  # time limit in seconds of a call that is meant to run out of time
GRACE = 1.0  # seconds after the time limit of a call in which it may still end before the check cancels it


class CallChecks(Fixtures):
    """
    The engine makes up to `capacity` calls at the same time, and cancels calls that are far too late.

    If a cancelled call leaves its answer unread in a connection, the next call on this connection reads that answer,
    and a key gets another key's value.
    """

    def test_calls_at_the_same_time_get_their_own_answers(self, source: Source) -> None:
        """Look for state that concurrent calls share: a cursor, a buffer, `self._keys`."""

        async def fetch(n: int) -> None:
            for key in itertools.islice(itertools.cycle(source.keys), n, n + 10):
                answers = await source.connector.fetch_many((key,), source.call())
                right, got = source.expected([key]), source.values(answers)
                assert right == got, (
                    f"Each of {source.capacity} concurrent calls of `fetch_many` must return the value of its own key; "
                    f"one returned {told(right, got)}. Keep what belongs to a call in local variables: calls share "
                    "the attributes of the connector, and a cursor or a connection is for one call at a time."
                )

        async def fetch_concurrently() -> None:
            async with asyncio.TaskGroup() as group:
                for n in range(source.capacity):
                    group.create_task(fetch(n))

        source.run(fetch_concurrently())

    def test_one_call_at_a_time_is_enough(self, source: Source) -> None:
        """Look for code that needs a second connection while it holds the first one: `capacity` may be 1."""
        source.close()
        source.connector.capacity = 1
        source.open()
        right, got = source.expected(source.keys), source.look_up_values(source.keys)
        assert right == got, (
            f"With a `capacity` of 1 the connector must return the values of all known keys; it returned "
            f"{told(right, got)}. Use the one connection of a call for all that the call asks."
        )

    @cancels
    def test_after_a_cancelled_call_the_next_one_gets_its_own_answers(self, source: Source) -> None:
        """Look at what a call that is cancelled at an await leaves behind, such as an unread answer or a lock."""

        async def cancel_after(turns: int) -> None:
            key, other = source.keys[turns % len(source.keys)], source.keys[(turns + 1) % len(source.keys)]
            task = asyncio.ensure_future(source.connector.fetch_many((key,), source.call(timeout=BRIEF)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            answers = await source.connector.fetch_many((other,), source.call())
            right, got = source.expected([other]), source.values(answers)
            assert right == got, (
                f"A call for the key {short(key)} was cancelled after {turns} iterations of the event loop. The next "
                f"call of `fetch_many` must return the value of its own key; it returned {told(right, got)}. Close "
                "the connection of a cancelled call unless you know that nothing was sent on it."
            )

        for turns in range(20):
            source.run(cancel_after(turns))

    @needs_network
    def test_calls_overlap(self, network: Network) -> None:
        """Look for a lock around the call, or a pool of one connection: a slow answer must not delay other calls."""
        network.open()
        network.look_up(network.keys)
        first, second = network.keys[:1], network.keys[1:2]
        with network.frozen():
            tasks = network.start_all(first, timeout=network.patience)
            tasks += network.start_all(second, timeout=network.patience)
        for task, keys in zip(tasks, (first, second), strict=True):
            assert network.ended(task), (
                "When the network works again, both concurrent calls must end; the call for "
                f"{short(keys)} still runs after {network.patience:g} s. Look at what it waits for: a lock, or a place "
                "in the pool that the other call holds."
            )
            right, got = network.expected(keys), network.values(task.result())
            assert right == got, (
                "Each of two concurrent calls must return the value of its own key; one returned "
                f"{told(right, got)}. Give each call a connection of its own, or match answers to requests by a number."
            )

    @needs_network
    def test_the_loop_goes_on_while_a_call_waits(self, network: Network) -> None:
        """Look for a blocking client or `time.sleep`: outside `to_thread` it stops all lookups of the process."""
        network.open()
        with network.frozen():
            try:
                [task] = network.start_all(network.group, timeout=2 * network.patience)
                network.run(asyncio.sleep(0))
            except AssertionError:
                network.proxy.cut()  # ends the connections, so that the blocked thread of the loop can go on
                raise
        assert network.ended(task), (
            f"When the network works again, the call must end; it still runs after {network.patience:g} s. Look at "
            "what it waits for, and whether the event loop goes on meanwhile: use a client for asyncio, or `to_thread`."
        )

    @needs_network
    def test_late_answers_go_to_their_own_calls(self, network: Network) -> None:
        """Look for answers that are assigned to calls by the order in which the answers arrive."""
        network.open()
        network.proxy.delay(later_chunks_sooner)
        keys = list(itertools.islice(itertools.cycle(network.keys), 3 * network.capacity))
        for start in range(0, len(keys), network.capacity):
            tasks = [network.start([key]) for key in keys[start : start + network.capacity]]
            for key, task in zip(keys[start:], tasks, strict=False):
                assert network.ended(task), (
                    f"Each of {len(tasks)} concurrent calls must end although answers are delayed; the call for the "
                    f"key {short(key)} still runs after {network.patience:g} s. Look for an answer that another call "
                    "has taken."
                )
                right, got = network.expected([key]), network.values(task.result())
                assert right == got, (
                    f"Each of {len(tasks)} concurrent calls with delayed answers must return the value of its own "
                    f"key; one returned {told(right, got)}. Match answers to calls by connection or by number, not by "
                    "the order in which they arrive."
                )

    @needs_network
    def test_a_cancelled_call_ends_as_cancelled(self, network: Network) -> None:
        """
        Look for `except BaseException` and `except CancelledError` without `raise`.

        A call that goes on after it was cancelled keeps one of the engine's `capacity` slots.
        """
        network.open()
        network.look_up(network.keys)
        with network.frozen():
            [task] = network.start_all(network.keys[:1], timeout=GRACE)
            network.cancel(task)
            assert task.cancelled(), (
                f"A cancelled call of `fetch_many` must let the CancelledError through; it {_end_of(task)}. End "
                "`except CancelledError` and `except BaseException` with `raise`: otherwise the call keeps its slot."
            )

    @needs_network
    def test_the_answer_to_a_cancelled_call_goes_to_nobody(self, network: Network) -> None:
        """Look at the connection of a cancelled call: close it, or read its answer, before another call uses it."""
        network.open()
        for n in range(3):
            with network.frozen():
                [task] = network.start_all([network.keys[n % 2]], timeout=GRACE)
                network.cancel(task)
            right = network.expected([network.keys[2]])
            # Several calls are made, because a pool may lend all other connections before that of the cancelled call.
            for _ in range(2 * network.capacity):
                got = network.values(network.fetch_until_recovered([network.keys[2]]))
                assert right == got, (
                    f"Each call after a cancelled call for the key {short(network.keys[n % 2])} must return the value "
                    f"of its own key; one returned {told(right, got)}. Close the connection of a cancelled call, or "
                    "read its answer, before another call uses it."
                )

    @needs_network
    def test_cancelled_calls_give_their_places_back(self, network: Network) -> None:
        """Look for a semaphore or connection that a cancelled call does not release: use `finally` or `async with`."""
        network.open()
        for _ in range(3):
            with network.frozen():
                for task in network.start_all(*[[key] for key in network.keys[: network.capacity]], timeout=BRIEF):
                    network.cancel(task)
            network.fetch_until_recovered(network.keys[:1])
        tasks = [network.start([key]) for key in network.keys[: network.capacity]]
        for task in tasks:
            assert network.ended(task) and not task.cancelled() and task.exception() is None, (  # noqa: PT018
                f"After cancelled calls, as many concurrent calls as before, {len(tasks)}, must succeed; one of them "
                f"{_end_of(task)}. Give the place of a cancelled call in a pool or a semaphore back: use "
                "`async with`, or `finally`."
            )

    @needs_network
    def test_a_call_out_of_time_is_transient(self, network: Network) -> None:
        """
        Look at what the client package raises when a call exceeds its time limit: make it a `TransientError`.

        A call without a time limit passes, too, if it ends when it is cancelled.
        """
        network.open()
        network.look_up(network.keys)
        with network.frozen():
            [task] = network.start_all(network.group, timeout=BRIEF)
            if network.ended(task, BRIEF + GRACE):
                self._assert_transient(task)
            else:
                network.cancel(task)
        right, got = network.expected(network.group), network.values(network.fetch_until_recovered(network.group))
        assert right == got, (
            "When the network works again after a call that was out of time, `fetch_many` must return the values of "
            f"all known keys; it returned {told(right, got)}. Close the connection of a call that is out of time: its "
            "answer may still come."
        )

    def _assert_transient(self, task: asyncio.Task[Any]) -> None:
        must = (
            f"A call whose server does not answer within its time limit of {BRIEF:g} s must raise a TransientError, or "
            "return a Failure with one for each key"
        )
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or (error is not None and not isinstance(error, TransientError)):
            raise AssertionError(
                f"{must}; it {_end_of(task)}. Translate the exception with which the client package, or "
                "`asyncio.timeout`, ends such a call into a TransientError."
            ) from error
        if error is None:
            answers = task.result()
            errors = [answer.error for answer in answers.values() if isinstance(answer, Failure)]
            assert errors, (
                f"{must}; it returned {len(answers)} answers and no Failure. Do not return what has come until then: a "
                "key without an answer would look like a missing key."
            )
            others = [raised(error) for error in errors if not isinstance(error, TransientError)]
            assert not others, (
                f"{must}; it returned a Failure with {others[0]}. Give these keys a TransientError: the engine then "
                "asks for them again."
            )


def _end_of(task: asyncio.Task[Any]) -> str:
    """Return how *task* ended, as words that complete a sentence that begins with "the call"."""
    if not task.done():
        return "did not end"
    if task.cancelled():
        return "raised CancelledError"
    error = task.exception()
    return f"returned {short(task.result())}" if error is None else f"raised {raised(error)}"


def later_chunks_sooner(chunk: Chunk) -> float:
    """
    Return the seconds by which the proxy delays *chunk*.

    Of four successive chunks the first is delayed by 0.06 s and the last not at all, so later chunks arrive sooner.
    """
    return 0.02 * (3 - chunk.number % 4)
