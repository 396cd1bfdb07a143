"""
What stands beside the source of a simulated story: a tier before it, a load of it all, and a fallback behind it.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from enrichkit.engine.fallback import Fallback
from enrichkit.engine.preload import Table
from enrichkit.engine.run import Run
from enrichkit.engine.tiers import Tier, TierRun
from enrichkit.engine.write_back import WriteBack
from enrichkit.errors import PermanentError, TransientError, UnavailableError
from enrichkit.interface import Connector, ConnectorConfig, Failure
from enrichkit.options import Options, Preload

from .story import Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from enrichkit.engine.engine import Engine
    from enrichkit.engine.policies import FallbackRequest
    from enrichkit.interface import Call

    from .story import FallbackPlan, Plan

__all__ = ["Near", "Other", "WatchedFallback", "make_fallback", "make_table", "make_tier", "undecoded"]


def undecoded(raws: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
    """Return *raws* as the values of a call, each of which is right."""
    return list(raws), {}


class Near(Connector[ConnectorConfig]):
    """A tier, which holds right values of some keys, and takes others."""

    name = "near"
    config_class = ConnectorConfig

    def __init__(self, plan: Plan) -> None:
        super().__init__(ConnectorConfig())
        assert plan.tier is not None
        self.plan, self.tier = plan, plan.tier
        self.held = {key: plan.value(key) for key in plan.tier.holds}
        self.rng = random.Random(f"near {plan.seed}")
        self.in_flight = 0
        self.broken: list[BaseException] = []

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        tier, rng, loop = self.tier, self.rng, asyncio.get_running_loop()
        self.in_flight += 1
        try:
            self._expect(self.in_flight <= tier.capacity, "more calls in flight at the tier than its capacity")
            if rng.random() < tier.never:
                await loop.create_future()
            await asyncio.sleep(rng.expovariate(1.0 / tier.latency))
            if tier.away[0] <= loop.time() < tier.away[1]:
                raise UnavailableError("the tier is away")
            if rng.random() < tier.transient:
                raise TransientError("the tier is busy")
            refused = {key: Failure(PermanentError("no")) for key in keys if rng.random() < tier.refused}
            return {key: self.held[key] for key in keys if key in self.held} | refused
        finally:
            self.in_flight -= 1

    async def store_many(self, values: Mapping[Any, Any], ttl: float | None) -> None:
        await asyncio.sleep(self.tier.latency)
        for key, value in values.items():
            kind = self.plan.kinds[key]
            self._expect(kind in Kind.ANSWERED and value == self.plan.value(key), f"the tier is given {value!r}")
        if self.rng.random() < self.tier.transient:
            raise TransientError("the tier is busy")
        self.held.update(values)

    def _expect(self, holds: bool, text: str) -> None:
        if not holds:  # the engine takes what a connector raises for a tier that has failed
            self.broken.append(AssertionError(text))


def make_tier(engine: Engine, plan: Plan) -> Tier:
    """Return the tier of a run, on the *engine* that all runs of the story share."""
    assert plan.tier is not None
    nulls = dict.fromkeys(("on_timeout", "on_error", "on_missing"), "null")
    options = Options(**{**nulls, "max_fallback_ratio": 1.0, "timeout": plan.tier.timeout, "retry": None})
    size = plan.tier.batch_size
    return Tier(
        "near",
        engine,
        lambda emit: TierRun(engine, "near", options, undecoded, emit, batch_size=size, ordered=False, seed=plan.seed),
        size,
        WriteBack("near", engine, lambda values: dict(enumerate(values)), None, size) if plan.tier.writes else None,
    )


class Other(Connector[ConnectorConfig]):
    """A fallback: another source, which holds some keys, and refuses some."""

    name = "other"
    config_class = ConnectorConfig

    def __init__(self, plan: FallbackPlan, seed: int) -> None:
        super().__init__(ConnectorConfig())
        self.plan = plan
        self.rng = random.Random(f"other {seed}")

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        await asyncio.sleep(self.rng.expovariate(1.0 / self.plan.latency))
        if self.plan.away[0] <= asyncio.get_running_loop().time() < self.plan.away[1]:
            raise UnavailableError("the fallback is away")
        refused = {key: Failure(PermanentError("no")) for key in keys if key in self.plan.refuses}
        return {key: self.plan.value(key) for key in keys if key in self.plan.holds} | refused


class WatchedFallback(Fallback):
    """A fallback that tells the books which lookups it gets."""

    passed_on: Callable[[FallbackRequest], None]

    def put(self, request: FallbackRequest) -> None:
        self.passed_on(request)
        super().put(request)


def make_fallback(engine: Engine, plan: FallbackPlan, seed: int) -> WatchedFallback:
    """Return the fallback of a run, on the *engine* that all runs of the story share."""
    nulls = dict.fromkeys(("on_error", "on_missing"), "null")
    options = Options(**{**nulls, "max_fallback_ratio": 1.0, "timeout": 1000.0, "details": True})
    return WatchedFallback(
        "other",
        plan.options,
        plan.capacity * plan.batch_size,
        lambda emit: Run(
            engine, "other", options, undecoded, emit, batch_size=plan.batch_size, ordered=False, seed=seed
        ),
    )


class Listed(Connector[ConnectorConfig]):
    """The source as a load sees it: it lists some keys, and some steps fail."""

    name = "simulated"
    config_class = ConnectorConfig

    def __init__(self, plan: Plan, rng: random.Random) -> None:
        super().__init__(ConnectorConfig())
        self.plan = plan
        self.rng = rng

    async def _step(self) -> None:
        assert self.plan.listed is not None
        await asyncio.sleep(self.rng.expovariate(1.0 / self.plan.weather.latency))
        if self.rng.random() < 0.05:
            raise self.rng.choice([TransientError("busy"), UnavailableError("not reachable")])

    async def scan(self, kinds: Sequence[type], size: int) -> AsyncIterator[Sequence[Any]]:  # type: ignore[override]
        keys = sorted(self.plan.listed or (), key=str)
        for start in range(0, len(keys), size):
            await self._step()
            yield keys[start : start + size]

    async def fetch_many(self, keys: Sequence[Any], call: Call) -> Any:
        await self._step()
        return {key: self.plan.value(key) for key in keys if self.plan.kinds[key] != Kind.MISSING}


def make_table(plan: Plan) -> Table:
    """Return the load of the source, of its listed keys; the source is asked for the others."""
    assert plan.listed is not None
    rng = random.Random(f"listed {plan.seed}")
    kind = type(next(iter(plan.listed)))
    refresh = rng.choice([None, 3.0 * plan.weather.unit])
    return Table(
        "simulated",
        lambda: Listed(plan, rng),
        (kind,),
        50,
        undecoded,
        Preload(refresh=refresh),
        patience=10_000.0,
        limit=1_000.0,
        many=plan.many,
    )
