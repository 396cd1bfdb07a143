"""
The limits that a user sets for calls: how many in a unit of time, how many at once, and what they may spend in total.

How the worker processes of a job share such a limit is in `leases.py`.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from .errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from .interface import ConnectorConfig

__all__ = ["Budget", "Limit", "Rate", "rate_of", "requests_per_second"]

SECONDS = {"second": 1.0, "minute": 60.0, "hour": 3600.0}
MOST = {"requests": 1e6, "tokens": 1e9}
"""The largest amount that a `Rate` may have in its unit of time, by unit of the amount."""
MOST_IN_ALL = {"tokens": 1e15, "cost": 1e9}
"""The largest amount that a `Budget` may have, by unit of the amount."""


@dataclass(frozen=True, slots=True)
class Rate:
    """
    The most calls, and the most tokens, in a unit of time: for each worker process, or for the whole job.

    Calls are sent evenly spaced, so 600 a minute is the same as 10 a second. The cost of a call is estimated as one
    request, unless the connector gives another estimate (`Connector.cost`). If the call reports its real cost
    (`Call.spent`), the real cost replaces the estimate.

    Attributes:
        requests: Calls per `unit`; 0.001 to 1,000,000. None: only tokens are limited.
        tokens: Tokens per `unit`, or whatever the connector counts under this name; 0.001 to 1,000,000,000. None: only
            requests are limited.
        unit: `"second"`, `"minute"` or `"hour"`.
        per: `"process"`: each worker process has the whole rate. `"job"`: all worker processes share the rate, which
            `store` keeps.
        store: Where the limit of a job is kept: the name or the config of a source that can hold limits, such as
            `redis` (Valkey too) or `postgres`.
        name: Name of the limit in the store. All jobs and sources that use the same name share the limit. None: each
            source has a limit of its own, which no other driver program shares.

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
            _check_amount(f"Rate.{unit}", getattr(self, unit), most)
        if self.requests is None and self.tokens is None:
            raise ConfigError("Rate has neither requests nor tokens; it must have one of them, for example Rate(100).")
        _check_choice("Rate.unit", self.unit, tuple(SECONDS))
        _check_choice("Rate.per", self.per, ("process", "job"))
        _check_store("Rate", self.per, self.store, self.name, "Rate(100, per='job', store='redis')")

    @property
    def per_second(self) -> dict[str, float]:
        """The limits per second: a number for each of `requests` and `tokens` that is limited."""
        given = {"requests": self.requests, "tokens": self.tokens}
        return {unit: amount / SECONDS[self.unit] for unit, amount in given.items() if amount is not None}


@dataclass(frozen=True, slots=True)
class Limit:
    """
    The most calls in flight of the whole job.

    Attributes:
        calls: Calls in flight; 1 to 1,000,000.
        per: Always `"job"`. For the calls in flight of one worker process, use the option `capacity` instead.
        store: Where the limit is kept, see `Rate`.
        name: Name of the limit in the store, see `Rate`.

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
        _check_store("Limit", self.per, self.store, self.name, "Limit(50, per='job', store='redis')")


@dataclass(frozen=True, slots=True)
class Budget:
    """
    The most tokens, or the most money, that the calls of a job may take in total. When the budget is spent, no further
    call is made.

    Rows whose key is then not asked for have the status `over_budget`, and get what `on_error` says. A call is sent if
    the most that it can take, together with what other calls have taken and what calls in flight can take, fits into
    the budget. Otherwise the call waits for the calls in flight. A call whose answer was lost is counted with the most
    that it may have taken.

    Attributes:
        tokens: Sum of the tokens that a model reads and of those that it writes; 0.001 to 1e15. None: tokens are not
            limited.
        cost: Money, in the currency of the prices in the config of the source; 0.001 to 1e9. None: money is not
            limited.
        per: Always `"job"`: all worker processes share the budget, which `store` keeps.
        store: Where the account is kept: the name or the config of a source that can keep it, such as `redis` (Valkey
            too) or `postgres`.
        name: Name of the account in the store. Jobs with the same name share the budget, and a job that is started
            again goes on with what is left. None: each source has an account of its own, which no other driver program
            shares.

    >>> Budget(tokens=2_000_000, store="redis", name="reviews-2026-11").tokens
    2000000
    """

    _: KW_ONLY
    tokens: float | None = None
    cost: float | None = None
    per: str = "job"
    store: str | ConnectorConfig | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for unit, most in MOST_IN_ALL.items():
            _check_amount(f"Budget.{unit}", getattr(self, unit), most)
        if not self.units:
            raise ConfigError(
                "Budget has neither tokens nor cost; it must have one of them, for example Budget(tokens=2_000_000, "
                "store='redis')."
            )
        if self.per != "job":
            raise ConfigError(
                f"Budget.per is {self.per!r}; it must be 'job', since nobody knows how many worker processes there "
                "will be. Leave per out."
            )
        _check_store("Budget", self.per, self.store, self.name, "Budget(tokens=2_000_000, store='redis')")

    @property
    def units(self) -> dict[str, float]:
        """The amounts to which the budget limits the calls, by unit."""
        given = {"tokens": self.tokens, "cost": self.cost}
        return {unit: float(amount) for unit, amount in given.items() if amount is not None}


def rate_of(rate: float | Rate | None) -> Rate | None:
    """Return the value of the option `rate` as a `Rate`; a number is calls per second and worker process."""
    return Rate(rate) if isinstance(rate, int | float) else rate


def requests_per_second(rate: float | Rate | None, *, processes: int = 1) -> float | None:
    """
    Return the calls per second that *rate* allows to one worker process, in a job with this number of *processes*;
    None: no limit.
    """
    found = rate_of(rate)
    per_second = None if found is None else found.per_second.get("requests")
    return per_second / processes if found is not None and per_second is not None and found.per == "job" else per_second


def _check_amount(name: str, value: Any, most: float) -> None:
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


def _check_store(kind: str, per: str, store: Any, name: Any, example: str) -> None:
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
