"""The limits of the whole job: the shares that one engine has of them, and the errors of stores that fail a run."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import FatalError, SourceStalledError
from ..interface import Connector
from ..limits import Limit, Rate
from . import pacing
from .account import Account
from .leases import Lessee, StoreConnection
from .pacing import AverageCost, UnitRates
from .permits import LimitShare
from .shares import RateShare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..interface import ConnectorConfig
    from ..limits import Budget
    from .pacing import Pace

__all__ = ["JobLimits", "Store", "average_cost"]


class Store(NamedTuple):
    """
    The store that holds a limit of the job.

    Attributes:
        limit: Name of the limit in the store.
        name: Name of the store in messages.
        connector: Class of the connector whose `lease_store` connects to the store.
        config: Config of the store.
    """

    limit: str
    name: str
    connector: type[Connector[Any]]
    config: ConnectorConfig


def average_cost(connector: Connector[Any], rate: float | Rate | None) -> AverageCost | None:
    """Return the average cost of a call in the units of *rate*; None: each call costs one request."""
    if not isinstance(rate, Rate):
        return None
    estimates = type(connector).cost is not Connector.cost
    return AverageCost(rate.per_second) if estimates or rate.tokens is not None or connector.reports else None


class JobLimits:
    """
    The shares that one engine has of the limits of its job.

    Args:
        source: Name of the source in messages.
        stores: The stores of the limits, by the option that sets the limit.
        notify: Function that is called when a share has changed.
    """

    def __init__(self, source: str, stores: Mapping[str, Store], notify: Callable[[], None]) -> None:
        self._source = source
        self._stores = stores
        self._notify = notify
        self._shares: list[RateShare | LimitShare | Account] = []

    def pace(self, rate: float | Rate | None, average: AverageCost | None) -> Pace | None:
        """Return the object that spaces the calls by the option *rate*; None: there is no rate."""
        if rate is None:
            return None
        if not isinstance(rate, Rate):
            return pacing.Rate(rate)
        average = average or AverageCost(rate.per_second)
        if rate.per == "process":
            return UnitRates(rate.per_second, average)
        share = RateShare(rate.per_second, average, self._lessee("rate"))
        self._shares.append(share)
        return share

    def limit(self, limit: Limit | None, capacity: int, in_flight: Callable[[], int]) -> LimitShare | None:
        """Return this process's share of *limit*, which bounds the job's calls in flight; None: there is no limit."""
        if limit is None:
            return None
        share = LimitShare(limit.calls, capacity, in_flight, self._lessee("limit"))
        self._shares.append(share)
        return share

    def account(self, budget: Budget | None, free_slots: Callable[[], int]) -> Account | None:
        """Return the account of the option *budget*; None: there is no budget."""
        if budget is None:
            return None
        account = Account(budget, free_slots, self._lessee("budget"))
        self._shares.append(account)
        return account

    def _lessee(self, option: str) -> Lessee:
        store = self._stores[option]
        return Lessee(
            self._source,
            store.name,
            store.limit,
            lambda: StoreConnection.of(store.connector, store.config),
            self._notify,
        )

    def fatal(self) -> FatalError | None:
        """
        Return an error if a store has reported that it can never hold its limit; None: no store has reported this.
        """
        for share in self._shares:
            if (error := share.lessee.fatal) is not None:
                return FatalError(
                    f"{self._source}: the store {share.lessee.store} cannot hold the limit of the job: {error}"
                )
        return None

    def stalled(self, now: float, since: float, patience: float) -> SourceStalledError | None:
        """Return an error if a run has waited for a share for over *patience* s, counted from *since* on, else None."""
        for share in self._shares:
            waiting_since = share.lessee.waiting_since
            if waiting_since is not None and now - max(waiting_since, since) > patience:
                problem = share.lessee.problem or "It has not answered yet."
                return SourceStalledError(
                    f"{self._source}: the store {share.lessee.store} of the limit of the job has been away for "
                    f"{now - waiting_since:.0f} s, and this process has no share to go on with. It got: {problem} Mend "
                    f"the store, or raise stall_timeout ({patience:g} s)."
                )
        return None

    async def close(self) -> None:
        """Give all shares back, and release the connections to the stores."""
        for share in self._shares:
            with contextlib.suppress(Exception):  # an error does no harm: a lease that is not renewed ends
                await share.lessee.close(share)

    def __iter__(self) -> Iterator[RateShare | LimitShare | Account]:
        return iter(self._shares)
