"""`capacity="auto"` at a source whose ceiling nobody knows and which moves, in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.engine.engine import Engine
from enrichkit.engine.tuning import Tuner
from enrichkit.errors import TransientError
from enrichkit.options import Retry
from enrichkit.testing.scripted import ScriptedConnector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enrichkit.interface import Call

    from .bench import Lab

SECONDS = 20.0
STEPS = (200.0, 50.0, 200.0)


class QueueingServer(ScriptedConnector):
    """
    A source that serves so many calls a second, one after the other, and refuses one that would wait behind *room*.

    Attributes:
        ceiling: Calls per second.
        served, refused: When calls were served and refused.
    """

    def __init__(self, seed: int, latency: float, room: int) -> None:
        super().__init__()
        self.ceiling = STEPS[0]
        self.served: list[float] = []
        self.refused: list[float] = []
        self.most = 0
        self._rng = random.Random(seed)
        self._latency, self._room = latency, room
        self._waiting = self._now_in = 0
        self._line = asyncio.Lock()

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Mapping[Any, Any]:
        loop = asyncio.get_running_loop()
        self._now_in += 1
        self.most = max(self.most, self._now_in)
        try:
            if self._waiting >= self._room:
                self.refused.append(loop.time())
                raise TransientError("503: the queue is full")
            self._waiting += 1
            try:
                async with self._line:
                    await asyncio.sleep(1.0 / self.ceiling)
            finally:
                self._waiting -= 1
            await asyncio.sleep(self._latency * self._rng.uniform(0.8, 1.3))
            self.served.append(loop.time())
            return {key: f"v{key}" for key in keys}
        finally:
            self._now_in -= 1


@pytest.mark.parametrize(
    ("seed", "room", "latency"),
    [(11, 20, 0.01), (12, 20, 0.05), (13, 20, 0.2), (12, 100, 0.01), (13, 100, 0.05), (11, 100, 0.2)],
)
async def test_the_ceiling_is_followed_within_ten_seconds(lab: Lab, seed: int, room: int, latency: float) -> None:
    server = QueueingServer(seed, latency, room)
    engine = Engine(server, 100, tuned=True, seed=seed)
    lab.engines.append(engine)
    task = lab.task(engine, timeout=60.0, retry=Retry(attempts=20))
    loop = asyncio.get_running_loop()
    began = loop.time()
    keys = 0
    for number, ceiling in enumerate(STEPS):
        server.ceiling = ceiling
        while loop.time() < began + SECONDS * (number + 1):
            while keys - len(task.left) < 1_000:
                task.admit(*range(keys, keys + 100))
                keys += 100
            await asyncio.sleep(0.1)
    for number, ceiling in enumerate(STEPS):
        settled, end = began + SECONDS * number + 10.0, began + SECONDS * (number + 1)
        reached = sum(settled <= at < end for at in server.served) / (end - settled)
        assert 0.85 * ceiling <= reached <= 1.01 * ceiling
    assert len(server.refused) < 0.02 * (len(server.served) + len(server.refused))
    assert server.most <= 100
    assert all(row.value == f"v{row.key}" for row in task.left)
    task.close()


async def test_a_refusal_counts_at_once_and_those_of_one_moment_once() -> None:
    tuner = Tuner(100)
    for _ in range(20):
        tuner.refused(started=1.0, now=1.05)
    assert tuner.allowed == 18
    tuner.refused(started=1.05, now=1.1)
    assert tuner.allowed == 16
    for moment in range(2, 200):
        tuner.refused(started=moment, now=moment + 0.5)
    assert tuner.allowed == 1


async def test_a_source_that_failed_all_calls_for_a_while_has_its_throughput_back_soon(lab: Lab) -> None:
    server = QueueingServer(1, 0.05, 1_000)
    server.ceiling = 1e6
    engine = Engine(server, 100, tuned=True, seed=1)
    lab.engines.append(engine)
    task = lab.task(engine, timeout=60.0, retry=Retry(attempts=50))
    loop = asyncio.get_running_loop()
    began = loop.time()
    keys, lowest = 0, 100
    while loop.time() < began + 21.0:
        failing = 10.0 <= loop.time() - began < 13.0
        server._room = 0 if failing else 1_000
        while keys - len(task.left) < 1_000:
            task.admit(*range(keys, keys + 100))
            keys += 100
        await asyncio.sleep(0.1)
        lowest = min(lowest, engine.allowed)
    before, after = (sum(at <= served - began < at + 3.0 for served in server.served) for at in (7.0, 18.0))
    assert lowest == 1
    assert after >= 0.9 * before
    task.close()


@pytest.mark.parametrize("most", [1, 7, 100])
async def test_there_are_never_more_calls_than_the_most(lab: Lab, most: int) -> None:
    server = QueueingServer(1, 0.05, 1_000)
    server.ceiling = 1e6
    engine = Engine(server, most, tuned=True, seed=1)
    lab.engines.append(engine)
    task = lab.task(engine)
    task.admit(*range(10_000))
    await task.end()
    assert server.most == most
    assert len(server.served) == 10_000
