"""A store of limits in memory, and engines that share a limit in it, each as if it were a process of its own."""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from enrichkit.engine.engine import Engine
from enrichkit.engine.job import Store
from enrichkit.errors import UnavailableError
from enrichkit.interface import Connector, ConnectorConfig
from enrichkit.leases import Ask, Draw, Drawn, Grant, draw, grant
from enrichkit.testing.scripted import ScriptedConnector, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from enrichkit.limits import Budget, Limit, Rate

    from .bench import Lab, Task

_numbers = itertools.count()


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(ConnectorConfig):
    """The number of a `Memory`, in `MemoryConnector.stores`."""

    number: int = 0


class Memory:
    """
    A store of limits.

    Attributes:
        state: What it holds.
        error: What it raises instead of answering; None: it answers.
        latency: Seconds until an answer.
        asked: The questions about limits, with the time of each.
        drawn: Those about budgets.
        deaf: How many answers to these get lost on their way.
        closed: How often a connection was closed.
    """

    def __init__(self) -> None:
        self.state: dict[str, dict[str, Any]] = {}
        self.error: Exception | None = None
        self.latency = 0.001
        self.asked: list[tuple[float, Ask]] = []
        self.drawn: list[tuple[float, Draw]] = []
        self.deaf = 0
        self.opened = self.closed = 0
        self.config = MemoryConfig(number=next(_numbers))
        MemoryConnector.stores[self.config.number] = self

    async def lease(self, ask: Ask) -> Grant:
        now = asyncio.get_running_loop().time()
        self.asked.append((now, ask))
        await asyncio.sleep(self.latency)
        if self.error is not None:
            raise self.error
        return grant(self.state.setdefault(ask.limit, {}), ask, 1e9 + asyncio.get_running_loop().time())

    async def draw(self, ask: Draw) -> Drawn:
        now = asyncio.get_running_loop().time()
        self.drawn.append((now, ask))
        await asyncio.sleep(self.latency)
        if self.error is not None:
            raise self.error
        drawn = draw(self.state.setdefault(ask.budget, {}), ask, 1e9 + asyncio.get_running_loop().time())
        if self.deaf:
            self.deaf -= 1
            raise UnavailableError("The answer was lost.")
        return drawn

    async def close(self) -> None:
        self.closed += 1

    def go_away(self) -> None:
        self.error = UnavailableError("The store is away.")

    def come_back(self) -> None:
        self.error = None


class MemoryConnector(Connector[MemoryConfig]):
    """The connector of a `Memory`."""

    name = "memory"
    config_class = MemoryConfig
    stores: ClassVar[dict[int, Memory]] = {}

    @classmethod
    def lease_store(cls, config: MemoryConfig) -> Memory:
        memory = cls.stores[config.number]
        memory.opened += 1
        return memory


class Metered(ScriptedConnector):
    """A source whose calls cost tokens: *estimate* by the connector, *real* by the answers."""

    def __init__(self, estimate: float, real: float, after: float = 0.05) -> None:
        super().__init__(otherwise=Step(after=after))
        self.estimate = estimate
        self.real = real
        self.spent: list[tuple[float, float]] = []

    def cost(self, keys: Sequence[Any]) -> Mapping[str, float]:
        return {"requests": 1.0, "tokens": self.estimate}

    async def fetch_many(self, keys: Sequence[Any], call: Any) -> Mapping[Any, Any]:
        self.spent.append((asyncio.get_running_loop().time(), self.real))
        answers = await super().fetch_many(keys, call)
        call.spent(tokens=self.real)
        return answers


class Job:
    """
    Engines that share limits.

    Attributes:
        store: Where the limits are.
        engines: The engines that run.
        servers: The sources of all engines, one each, with their calls.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        rate: Rate | None = None,
        limit: Limit | None = None,
        budget: Budget | None = None,
        capacity: int = 20,
        batch_size: int = 1,
        store: Memory | None = None,
    ) -> None:
        self._lab = lab
        self._rate = rate
        self._limit = limit
        self._budget = budget
        self._capacity = capacity
        self._batch_size = batch_size
        self.store = store or Memory()
        self.engines: list[Engine] = []
        self.servers: list[ScriptedConnector] = []
        self.tasks: list[Task] = []

    def join(
        self, rows: int = 3_000, *, server: ScriptedConnector | None = None, after: float = 0.02, **options: Any
    ) -> Task:
        """Add an engine with a task of *rows* rows."""
        server = server or self._lab.server(otherwise=Step(after=after))
        place = (self.store.config.number, "memory", MemoryConnector, self.store.config)
        stores = {
            option: Store(f"{option}:{place[0]}", *place[1:])
            for option, limit in (("rate", self._rate), ("limit", self._limit), ("budget", self._budget))
            if limit is not None and limit.per == "job"
        }
        engine = Engine(
            server,
            self._capacity,
            rate=self._rate,
            limit=self._limit,
            budget=self._budget,
            stores=stores,
            seed=1,
        )
        self._lab.engines.append(engine)
        self.engines.append(engine)
        self.servers.append(server)
        task = self._lab.task(engine, batch_size=self._batch_size, **{"timeout": 1000.0} | options)
        task.admit_each(*range(rows))
        self.tasks.append(task)
        return task

    async def kill(self) -> None:
        """End the oldest engine as a `kill -9` would: it says nothing to the store, and its calls go on nowhere."""
        engine = self.engines.pop(0)
        for share in engine.job:
            share.lessee._closing = True
            if share.lessee._task is not None:
                share.lessee._task.cancel()
                share.lessee._task = None
            share.lessee._connection = None
        self._lab.tasks.remove(self.tasks[0])
        self.tasks.pop(0).close()
        self._lab.engines.remove(engine)
        await engine.close()

    @property
    def starts(self) -> list[float]:
        """When the calls of all engines left, in order."""
        return sorted(seen.started for server in self.servers for seen in server.calls)

    def calls(self, begin: float, end: float) -> int:
        """Return the number of calls that left from *begin* to *end*."""
        return sum(begin <= start < end for start in self.starts)

    def most(self, seconds: float = 1.0, begin: float = 0.0, end: float = float("inf")) -> int:
        """Return the most calls in any span of *seconds*, wherever it begins."""
        starts = [start for start in self.starts if begin <= start < end]
        return max((bisect_left(starts, at + seconds - 1e-9) - n for n, at in enumerate(starts)), default=0)
