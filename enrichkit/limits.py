"""
The limits that a user sets for calls, and what the worker processes of a job say to the store that holds such a limit.

A limit of the whole job is held by leases: a worker process asks the store a few times a second for its part of the
next quarter of a second, and a part that is not asked for again falls back to the others. `grant` is the arithmetic;
`docs/decisions/0051-limits-of-the-job.md` says why it is so. A plugin whose store can hold limits offers a `LeaseStore`
by `Connector.lease_store`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from .budgets import Draw, Drawn
    from .interface import ConnectorConfig

__all__ = ["Ask", "Grant", "LeaseStore", "Limit", "Rate", "grant", "rate_of", "requests_per_second"]

SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
MANY = 64
"""Workers of a limit above which a fair part is not computed for each question anew."""
LEVEL_HOLDS = 0.25
"""Seconds for which it is used then."""
MOST = {"requests": 1e6, "tokens": 1e9}


@dataclass(frozen=True, slots=True)
class Rate:
    """
    The most calls, and the most tokens, in a unit of time: for each worker process, or for the whole job.

    Calls leave evenly spaced, so a rate of 600 a minute is one of 10 a second. A call costs one request, unless the
    connector says otherwise (`Connector.cost`); what the answer reports (`Call.spent`) corrects it.

    Attributes:
        requests: Calls per `unit`; 0.001 to 1,000,000. None: only tokens are limited.
        tokens: Tokens per `unit`, or what else the connector counts under this name; 0.001 to 1,000,000,000. None: only
            requests are limited.
        unit: `"second"`, `"minute"` or `"hour"`.
        per: `"process"`: each worker process has the whole rate. `"job"`: all worker processes share it, by `store`.
        store: Where the limit of a job is kept: the name or the config of a source that can hold limits, such as
            `redis` (Valkey too) or `postgres`.
        name: Name of the limit in the store. Jobs, and sources, with the same name share the limit. None: the driver
            program has one for each source.

    >>> Rate(requests=500, tokens=200_000, unit="minute").per_second["requests"]
    8.333333333333334
    """

    requests: float | None = None
    _: KW_ONLY
    tokens: float | None = None
    unit: str = "second"
    per: str = "process"
    store: str | ConnectorConfig | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for unit, most in MOST.items():
            check_amount(f"Rate.{unit}", getattr(self, unit), most)
        if self.requests is None and self.tokens is None:
            raise ConfigError("Rate has neither requests nor tokens; it must have one of them, for example Rate(100).")
        _check_choice("Rate.unit", self.unit, tuple(SECONDS))
        _check_choice("Rate.per", self.per, ("process", "job"))
        check_store("Rate", self.per, self.store, self.name, "Rate(100, per='job', store='redis')")

    @property
    def per_second(self) -> dict[str, float]:
        """The limits per second, by unit."""
        given = {"requests": self.requests, "tokens": self.tokens}
        return {unit: amount / SECONDS[self.unit] for unit, amount in given.items() if amount is not None}


@dataclass(frozen=True, slots=True)
class Limit:
    """
    The most calls in flight of the whole job.

    Attributes:
        calls: Calls in flight; 1 to 1,000,000.
        per: `"job"`; for a worker process there is the option `capacity`.
        store: As in `Rate`.
        name: As in `Rate`.

    >>> Limit(50, store="redis").calls
    50
    """

    calls: int
    _: KW_ONLY
    per: str = "job"
    store: str | ConnectorConfig | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.calls, bool) or not isinstance(self.calls, int) or not 1 <= self.calls <= 1_000_000:
            raise ConfigError(
                f"Limit.calls is {self.calls!r}; it must be a whole number from 1 to 1,000,000, for example Limit(50, "
                "per='job', store='redis')."
            )
        if self.per != "job":
            raise ConfigError(
                f"Limit.per is {self.per!r}; it must be 'job'. The calls in flight of a worker process are limited by "
                "the option capacity: set capacity= instead."
            )
        check_store("Limit", self.per, self.store, self.name, "Limit(50, per='job', store='redis')")


def rate_of(rate: float | Rate | None) -> Rate | None:
    """Return the value of the option `rate` as a `Rate`; a number is calls per second and worker process."""
    return Rate(rate) if isinstance(rate, int | float) else rate


def requests_per_second(rate: float | Rate | None, *, processes: int = 1) -> float | None:
    """Return the calls per second that *rate* allows to one of a number of worker *processes*; None: no limit."""
    found = rate_of(rate)
    per_second = None if found is None else found.per_second.get("requests")
    return per_second / processes if found is not None and per_second is not None and found.per == "job" else per_second


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """
    What a worker process asks the store of a limit for, a few times a second. A share is a part of `total`.

    Attributes:
        limit: Name of the limit.
        worker: Id of the one that asks.
        total: What all workers have together: 1 for a rate, or a number of calls in flight.
        wanted: The share that the worker could use; 0: it needs none any more.
        held: The share that it has.
        least: The share that it cannot give back: its calls in flight.
        away: Whether the store has not answered the question before; the worker has gone on with its share, if any.
        cost: For a rate: by unit, the seconds of the limit that a call takes. Empty for a number of calls in flight.
        settle: By unit, the seconds by which calls took more than was reserved for them; negative: less.
        period: Seconds for which the worker asks.
        lease: Seconds after which the share of a worker that has not asked again falls back to the others.
        ahead: Most seconds by which calls may be granted in advance.
        recovery: Seconds after an outage of the store, in which nobody gets more than it has: others that have not come
            back yet may go on with their shares.
    """

    limit: str
    worker: str
    total: float
    wanted: float
    held: float = 0.0
    least: float = 0.0
    away: bool = False
    cost: Mapping[str, float] = field(default_factory=dict)
    settle: Mapping[str, float] = field(default_factory=dict)
    period: float = 0.25
    lease: float = 0.5
    ahead: float = 0.3
    recovery: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """
    The answer of a store to an `Ask`.

    Attributes:
        share: The share of the limit; a worker goes on with it while the store is away.
        calls: For a rate, the calls that are granted, a part of a call included.
        start: Seconds from now at which the first of them may leave.
        wait: Seconds after which it is worth to ask again; 0: when the worker wants to.
    """

    share: float
    calls: float = 0.0
    start: float = 0.0
    wait: float = 0.0


class LeaseStore(Protocol):
    """A connection to a store that holds limits, of one worker process. It connects with the first question."""

    async def lease(self, ask: Ask) -> Grant:
        """
        Answer *ask* by the rules of `grant`, in one step that no other worker's comes between, by the store's clock.

        Raises:
            TransientError: The store is away, or has no room.
            FatalError: The store can hold no limits: it refuses the login or what it takes to keep a limit.
        """

    async def draw(self, ask: Draw) -> Drawn:
        """Answer *ask* by the rules of `draw`, else as `lease`. What it tells must outlive a restart of the store."""

    async def close(self) -> None:
        """Close the connection."""


def grant(state: dict[str, Any], ask: Ask, now: float) -> Grant:
    """
    Return the answer to *ask*, and change *state* to what the store holds afterwards.

    A share is at most a fair part of what is wanted, and at most what the others have left. Among more than `MANY`
    workers the fair part is that of a moment ago, up to `LEVEL_HOLDS`, and a worker that has ended keeps its share for
    as long: otherwise each question would look at all workers, and thousands of them ask a few times a second.

    The calls of a rate are granted one after the other on one time line for each unit, as by the generic cell rate
    algorithm: `until` is the time until which a unit is granted.

    Args:
        state: What the store holds of the limit; empty at first. It can be written as JSON.
        ask: The question.
        now: The time by the store's clock, in seconds.
    """
    workers: dict[str, list[float]] = state.setdefault("workers", {})
    many = state.get("many")
    ended = False
    if many is None or now >= many[0]:  # else the entries of workers that have ended stay until then
        many = None
        alive = {name: entry for name, entry in workers.items() if entry[2] > now}
        ended = bool(workers and not alive)
        workers = state["workers"] = alive
    own = workers.pop(ask.worker, None)
    # The store was away from this worker, or from all, or has lost its data.
    missed = ask.away or (ask.held > 0 and (own is None or own[2] <= now)) or ended
    if missed and now >= state.get("recovery", 0.0):
        state["recovery"] = now + ask.recovery
    recovering = now < state.get("recovery", 0.0)
    wanted = min(ask.wanted, ask.held) if recovering else ask.wanted
    if many is None:
        others = sum(entry[1] for entry in workers.values())
        level = _level(sorted([wanted, *(entry[0] for entry in workers.values())]), ask.total)
        many = [now + LEVEL_HOLDS, level, others]
    else:
        many[2] -= own[1] if own is not None else 0.0
        level, others = many[1:]
    share = max(0.0, min(wanted, level if ask.cost else math.ceil(level), ask.total - others))
    share = share if ask.cost else math.floor(share)
    if max(wanted, share, ask.least) > 0:
        workers[ask.worker] = [wanted, max(share, ask.least), now + ask.lease]
        many[2] += max(share, ask.least)
    state["many"] = many if len(workers) > MANY else None
    return _calls(state, ask, now, share, wanted > 0 and not recovering) if ask.cost else Grant(share=share)


def _level(wanted: list[float], total: float) -> float:
    """Return the most that one worker gets, when *total* is divided fairly among those that want *wanted*, sorted."""
    level = before = 0.0
    for place, each in enumerate(wanted):
        level = max(level, (total - before) / (len(wanted) - place))
        before += each
    return level


def _calls(state: dict[str, Any], ask: Ask, now: float, share: float, whole: bool) -> Grant:
    """Return the calls of *share*, or one if that is less than one and *whole* calls may be granted."""
    until = state.setdefault("until", {})
    for unit in ask.cost:
        until[unit] = max(until.get(unit, 0.0) + ask.settle.get(unit, 0.0), now)
    start = max(until[unit] for unit in ask.cost) - now
    calls = share * ask.period / max(ask.cost.values())
    if calls < 1.0 and whole:
        calls = 1.0
    if calls == 0.0 or start > ask.ahead:
        return Grant(share=share, start=start, wait=max(start - ask.ahead, 0.0))
    for unit, seconds in ask.cost.items():
        until[unit] += calls * seconds
    return Grant(share=share, calls=calls, start=start)


def check_amount(name: str, value: Any, most: float) -> None:
    if value is None:
        return
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not 0.001 <= value <= most:
        raise ConfigError(
            f"{name} is {value!r}; it must be a number from 0.001 to {most:,.0f}, for example {name.split('.')[1]}=100."
        )


def _check_choice(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
        raise ConfigError(
            f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}.{hint} "
            f"Set {name.split('.')[1]}={allowed[0]!r}."
        )


def check_store(kind: str, per: str, store: Any, name: Any, example: str) -> None:
    if per == "process":
        given = [field for field, value in (("store", store), ("name", name)) if value is not None]
        if given:
            raise ConfigError(
                f"{kind}.{given[0]} is given, but per is 'process'; only the limit of a job has one. Set per='job', or "
                f"leave {given[0]} out."
            )
        return
    if store is None:
        raise ConfigError(
            f"{kind}.store is None, but per is 'job'; the worker processes share the limit by a store. Name a source "
            f"that can hold limits, for example {example}."
        )
    if not isinstance(store, str) and not hasattr(store, "key_parts"):
        raise ConfigError(
            f"{kind}.store is a {type(store).__name__}; it must be the name or the config of a source, for example "
            f"{example}."
        )
    if name is not None and not (isinstance(name, str) and 0 < len(name) <= 200):
        raise ConfigError(
            f"{kind}.name is {name!r}; it must be a text of 1 to 200 characters, for example name='users-api'."
        )
