"""Estimates what keys cost: makes a few real calls, and fits a straight line to their costs."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..errors import ConnectorError
from ..interface import Call, Failure

if TYPE_CHECKING:
    from ..interface import Key
    from ..plan import Plan
    from .counted import Counted

__all__ = ["Point", "Tried", "extrapolated", "point_of", "spread", "try_calls"]

TOGETHER = 4
"""Number of calls that are made at the same time."""
PATIENCE = 600.0
"""Most seconds that all calls may take together; apart from this limit, each call has only its own timeout."""


class Point(NamedTuple):
    """One call: the mean size of its keys in bytes, and the mean cost of a key, by unit."""

    bytes: float
    units: Mapping[str, float]


def spread(found: Sequence[tuple[float, Key]], size: int, calls: int) -> list[list[tuple[float, Key]]]:
    """
    Return at most *calls* groups of up to *size* keys each.

    *found* is a sample of keys, each with its number of bytes, and sorted by this number. The groups get keys at even
    intervals from it, and so keys of all sizes.
    """
    wanted = min(len(found), calls * size)
    chosen = [found[int((place + 0.5) * len(found) / wanted)] for place in range(wanted)]
    return [chosen[start : start + size] for start in range(0, wanted, size)]


class _Meter:
    """
    A meter of the costs that the connector reports for a call.

    It ignores the limits that the connector reports, because an estimate makes few calls.
    """

    def __init__(self) -> None:
        self.units: dict[str, float] = {}

    def spent(self, units: Mapping[str, float]) -> None:
        self.units.update((unit, amount) for unit, amount in units.items() if math.isfinite(amount))

    def allows(self, remaining: float, seconds: float, limit: float | None, unit: str) -> None: ...


class Tried:
    """
    The results of the calls that were made for an estimate.

    Attributes:
        points: The calls that were answered.
        took: Seconds that each answered call took.
        paid: Cost of all calls, failed calls included, by unit.
        problem: The reason why the last failed call failed. If no call failed, the text says that they took too long.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.took: list[float] = []
        self.paid: dict[str, float] = {}
        self.problem = f"They took longer than {PATIENCE:g} s."


def point_of(group: Sequence[tuple[float, Key]], units: Mapping[str, float]) -> Point:
    share = 1 / len(group)
    return Point(share * sum(size for size, _ in group), {unit: share * amount for unit, amount in units.items()})


def try_calls(plan: Plan, groups: Sequence[Sequence[tuple[float, Key]]]) -> Tried:
    """
    Make a call for each of *groups*. The calls run in a new thread, because `asyncio.run` would fail in the thread of a
    notebook, which already runs an event loop.
    """
    tried = Tried()
    if groups:
        thread = threading.Thread(target=_run, args=(plan, groups, tried), name="enrichkit-estimate", daemon=True)
        thread.start()
        thread.join(PATIENCE)
    return tried


def _run(plan: Plan, groups: Sequence[Sequence[tuple[float, Key]]], tried: Tried) -> None:
    try:
        asyncio.run(_ask(plan, groups, tried))
    except Exception as error:  # noqa: BLE001  # `estimate` raises an error with this text
        tried.problem = str(error) if isinstance(error, ConnectorError) else f"{type(error).__name__}: {error}."


async def _ask(plan: Plan, groups: Sequence[Sequence[tuple[float, Key]]], tried: Tried) -> None:
    connector = plan.connector(plan.config)
    connector.capacity = TOGETHER
    timeout, turn = plan.options.longest_wait or 60.0, asyncio.Semaphore(TOGETHER)
    run = f"estimate {uuid.uuid4().hex}" if connector.idempotency_keys else ""

    async def ask(group: Sequence[tuple[float, Key]]) -> None:
        meter = _Meter()
        async with turn:
            began = time.perf_counter()
            try:
                call = Call(timeout=timeout, meter=meter, run=run)
                answers = await asyncio.wait_for(connector.fetch_many(tuple(key for _, key in group), call), timeout)
                for answer in answers.values():
                    if isinstance(answer, Failure) and not answer.rejected:
                        raise answer.error
            except TimeoutError:
                tried.problem = f"No answer came within {timeout:g} s."
            except ConnectorError as error:
                tried.problem = str(error)
            else:
                tried.points.append(point_of(group, meter.units))
                tried.took.append(time.perf_counter() - began)
            for unit, amount in meter.units.items():
                tried.paid[unit] = tried.paid.get(unit, 0.0) + amount

    try:
        await connector.open()
        await asyncio.gather(*map(ask, groups))
    finally:
        await connector.close()


def extrapolated(points: Sequence[Point], counted: Counted) -> dict[str, float]:
    """Return the total cost, by unit, of all keys that the job asks for, according to the line that fits *points*."""
    found = {}
    for unit in dict.fromkeys(unit for point in points for unit in point.units):
        pairs = [(point.bytes, point.units.get(unit, 0.0)) for point in points]
        base, slope = _line(pairs)
        found[unit] = max(0.0, base * counted.asked + slope * counted.bytes)
    return found


def _line(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """
    Return the line that fits *pairs* best, as its value at 0 and its slope.

    With fewer than three pairs, the line goes through the origin.

    >>> _line([(0.0, 5.0), (10.0, 25.0), (20.0, 45.0)])
    (5.0, 2.0)
    """
    total, of_values = (math.fsum(pair[place] for pair in pairs) for place in (0, 1))
    if len(pairs) < 3 and total:
        return 0.0, of_values / total
    middle, mean = total / len(pairs), of_values / len(pairs)
    width = math.fsum((x - middle) ** 2 for x, _ in pairs)
    slope = math.fsum((x - middle) * (y - mean) for x, y in pairs) / width if width else 0.0
    return mean - slope * middle, slope
