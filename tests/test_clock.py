"""The event loop with virtual time, which the tests of the engine use."""

from __future__ import annotations

import asyncio
import time

import pytest

from enrichkit.testing.clock import DeadlockError, VirtualTimeLoop, run, settle

from .pace import at_pace


def test_an_hour_of_virtual_time_passes_immediately_and_exactly() -> None:
    async def nap() -> float:
        await asyncio.sleep(3600.0)
        return asyncio.get_running_loop().time()

    started = time.monotonic()
    assert run(nap()) == 3600.0
    assert time.monotonic() - started < at_pace(5.0)


def test_the_clock_stands_still_while_a_task_can_run() -> None:
    async def work() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run(work()) == 0.0


def test_tasks_run_in_the_order_of_their_timers() -> None:
    order: list[float] = []

    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append(seconds)

    async def naps() -> None:
        await asyncio.gather(*map(nap, [0.3, 0.1, 0.2]))

    run(naps())
    assert order == [0.1, 0.2, 0.3]


def test_a_timeout_fires_at_its_time() -> None:
    async def late() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(late()) == 10.0


def test_a_wait_that_cannot_end_names_the_line_on_which_it_waits() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.sleep(2.5)
        await wait_for_ever()

    text = (
        r"^At 2\.5 s of virtual time no task can run and no timer is set, so these tasks would wait for ever:\n"
        r"  Task-\d+ at .*locks\.py:\d+ in Event\.wait\n"
        r"Let the test complete the events that they wait for\. Threads and sockets have no virtual time\.$"
    )
    with pytest.raises(DeadlockError, match=text):
        run(main())


def test_a_timer_that_re_arms_itself_for_ever_ends_at_the_limit() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_later(1.0, again)

        again()
        await asyncio.Event().wait()

    text = r"^30 s of virtual time have passed, the limit of this run\. These tasks still wait:\n  Task-\d+ at .*"
    with pytest.raises(DeadlockError, match=text):
        run(main(), limit=30.0)


def test_a_timer_that_is_due_in_less_than_the_resolution_moves_the_clock() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1000.0)
        until = loop.time() + 1e-8
        turns = 0
        while loop.time() < until:
            await asyncio.sleep(1e-17)
            turns += 1
        return turns

    assert run(main()) <= 11


def test_an_exception_of_a_task_that_nobody_awaits_fails_the_run() -> None:
    async def die() -> None:
        raise ValueError("nobody awaits me")

    async def main() -> None:
        forgotten = asyncio.create_task(die())
        await asyncio.sleep(1.0)
        del forgotten

    with pytest.raises(ValueError, match="nobody awaits me"):
        run(main())


def test_a_callback_that_raises_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1.0)

    with pytest.raises(ZeroDivisionError):
        run(main())


def test_the_seed_decides_the_order_of_timers_that_are_due_at_the_same_time() -> None:
    async def race() -> str:
        winners: list[str] = []

        async def runner(name: str) -> None:
            await asyncio.sleep(1.0)
            winners.append(name)

        await asyncio.gather(*map(runner, "abcdef"))
        return "".join(winners)

    orders = [run(race(), seed=seed) for seed in range(20)]
    assert orders == [run(race(), seed=seed) for seed in range(20)]
    assert len(set(orders)) > 10


def test_settle_waits_until_no_task_can_run() -> None:
    async def main() -> list[int]:
        seen: list[int] = []

        async def busy() -> None:
            for turn in range(50):
                await asyncio.sleep(0)
                seen.append(turn)

        task = asyncio.create_task(busy())
        await settle()
        assert asyncio.get_running_loop().time() < 1e-6
        await task
        return seen

    assert run(main()) == list(range(50))


def test_advance_moves_the_clock_for_all_tasks() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        waiting = asyncio.create_task(asyncio.sleep(1.0))
        await asyncio.sleep(0)
        assert loop.timers == 1
        loop.advance(5.0)
        await waiting
        return loop.time()

    assert run(main()) == 5.0


def test_run_raises_the_exception_of_the_coroutine() -> None:
    async def main() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        run(main())
