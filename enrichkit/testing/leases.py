"""
Tests of the store that a plugin's `Connector.lease_store` returns. The store keeps limits that all workers of a job
share.

>>> import asyncio
>>> from enrichkit.plugin import Ask, Draw, Drawn, Grant, draw, grant
>>> class Memory:
...     def __init__(self) -> None:
...         self.states: dict[str, dict[str, object]] = {}
...     async def lease(self, ask: Ask) -> Grant:
...         return grant(self.states.setdefault(ask.limit, {}), ask, time.time())
...     async def draw(self, ask: Draw) -> Drawn:
...         return draw(self.states.setdefault(ask.budget, {}), ask, time.time())
...     async def close(self) -> None: ...
>>> asyncio.run(check_leases(Memory()))
>>> asyncio.run(check_budgets(Memory()))
"""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING, Any

from ..leases import Ask, Draw, draw, grant

if TYPE_CHECKING:
    from ..leases import LeaseStore

__all__ = ["check_budgets", "check_leases"]

CLOSE = 0.5
"""Seconds by which `start` and `wait` in a store's answer may differ from the values that `grant` computes."""


async def check_leases(store: LeaseStore, *, questions: int = 100, seed: int = 1) -> None:
    """
    Send *questions* random questions to *store*, and assert that its answers are those of `enrichkit.plugin.grant`.

    Leases, recoveries from an outage and granted calls either end at once or outlast the test. An answer therefore does
    not depend on the moment at which its question is asked.
    """
    rng = random.Random(seed)  # noqa: S311  # a test needs no cryptography
    limits = {kind: f"check {kind} {uuid.uuid4().hex}" for kind in ("rate", "limit")}
    states: dict[str, dict[str, Any]] = {kind: {} for kind in limits}
    for number in range(questions):
        kind = rng.choice(list(limits))
        ask = _question(rng, limits[kind]) if kind == "rate" else _question_of_limit(rng, limits[kind])
        expected = grant(states[kind], ask, time.time())
        answer = await store.lease(ask)
        for name in ("share", "calls", "start", "wait"):
            told, right = getattr(answer, name), getattr(expected, name)
            assert abs(told - right) < (CLOSE if name in ("start", "wait") else 1e-6), (
                f"question {number}: the store says {name}={told}, and the rules say {right}; the question was {ask}"
            )


async def check_budgets(store: LeaseStore, *, questions: int = 100, seed: int = 1) -> None:
    """
    Report random calls of four workers to *store*, and assert that the store answers as `enrichkit.plugin.draw` does.

    The amounts are whole numbers, so that no answer depends on how a store rounds.
    """
    rng = random.Random(seed)  # noqa: S311  # a test needs no cryptography
    name = f"check budget {uuid.uuid4().hex}"
    state: dict[str, Any] = {}
    total = {"tokens": 3_000.0, "cost": 2_000.0}
    spent: dict[str, float] = dict.fromkeys("abcd", 0.0)
    held: dict[str, float] = dict.fromkeys("abcd", 0.0)
    for number in range(questions):
        worker = rng.choice("abcd")
        ended = float(rng.randint(0, int(held[worker])))
        held[worker] -= ended
        spent[worker] += float(rng.randint(0, int(ended)))
        wanted = [float(rng.randint(1, 200)) for _ in range(rng.randint(0, 3))]
        ask = Draw(
            budget=name,
            worker=worker,
            total=total,
            spent=dict.fromkeys(total, spent[worker]),
            held=dict.fromkeys(total, held[worker]),
            calls=[dict.fromkeys(total, most) for most in wanted],
        )
        expected = draw(state, ask, time.time())
        answer = await store.draw(ask)
        assert answer == expected, (
            f"question {number}: the store says {answer}, and the rules say {expected}; the question was {ask}"
        )
        held[worker] += sum(wanted[: answer.calls])


def _question(rng: random.Random, limit: str) -> Ask:
    return Ask(
        limit=limit,
        worker=rng.choice("abcd"),
        total=1.0,
        wanted=rng.choice((0.0, 1.0, rng.random())),
        held=rng.choice((0.0, rng.random())),
        away=rng.random() < 0.1,
        cost={"requests": 10.0, "tokens": rng.choice((5.0, 20.0))},
        settle=rng.choice(({}, {"tokens": rng.choice((-100.0, 30.0))})),
        period=rng.choice((1.0, 100.0)),
        lease=rng.choice((-1.0, 600.0, 600.0)),
        ahead=rng.choice((1.0, 1e6)),
        recovery=600.0 if rng.random() < 0.02 else -1.0,
    )


def _question_of_limit(rng: random.Random, limit: str) -> Ask:
    return Ask(
        limit=limit,
        worker=rng.choice("abcd"),
        total=10.0,
        wanted=float(rng.choice((0, 1, 4, 10))),
        held=float(rng.choice((0, 3))),
        least=float(rng.choice((0, 0, 2))),
        away=rng.random() < 0.1,
        lease=rng.choice((-1.0, 600.0, 600.0)),
        recovery=-1.0,
    )
