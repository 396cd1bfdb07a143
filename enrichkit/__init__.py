"""
Asynchronous lookups in Redis, PostgreSQL, HTTP services and other sources for PySpark, after Flink's async I/O.

>>> from enrichkit import enrich
>>> with_profile = df.withColumn("profile", enrich("redis", "user_id"))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .errors import (
    ConfigError,
    EnrichkitError,
    FatalError,
    JournalError,
    LookupFailedError,
    PermanentError,
    TransientError,
    UnavailableError,
    UnknownConnectorError,
)
from .hookspecs import hookimpl
from .interface import Answers, Call, Connector, ConnectorConfig, Failure, Keys
from .journal.config import Journal
from .limits import Budget, Limit, Rate
from .observe.stats import Stats
from .observe.totals import observe
from .options import Cache, Options, Preload, Retry, default
from .secrets import Secret
from .version import VERSION

if TYPE_CHECKING:
    from .batches.frames import collect_batches, submit_batches
    from .driver.column import enrich
    from .driver.frame import enrich_frame, enriched
    from .driver.sql_function import register_function
    from .observe.monitor import Monitor, monitor
    from .reports.cost import estimate
    from .reports.describe import describe
    from .reports.doctor import doctor
    from .reports.explanation import explain
    from .sources.function_connector import connector
    from .sources.registry import connectors, register
    from .sources.tiers import Tiers, tiers

__version__ = VERSION

__all__ = [
    "Answers",
    "Budget",
    "Cache",
    "Call",
    "ConfigError",
    "Connector",
    "ConnectorConfig",
    "EnrichkitError",
    "Failure",
    "FatalError",
    "Journal",
    "JournalError",
    "Keys",
    "Limit",
    "LookupFailedError",
    "Monitor",
    "Options",
    "PermanentError",
    "Preload",
    "Rate",
    "Retry",
    "Secret",
    "Stats",
    "Tiers",
    "TransientError",
    "UnavailableError",
    "UnknownConnectorError",
    "collect_batches",
    "connector",
    "connectors",
    "default",
    "describe",
    "doctor",
    "enrich",
    "enrich_frame",
    "enriched",
    "estimate",
    "explain",
    "hookimpl",
    "monitor",
    "observe",
    "register",
    "register_function",
    "submit_batches",
    "tiers",
]

_ON_DRIVERS = {
    "Monitor": "observe.monitor",
    "Tiers": "sources.tiers",
    "collect_batches": "batches.frames",
    "connector": "sources.function_connector",
    "connectors": "sources.registry",
    "describe": "reports.describe",
    "doctor": "reports.doctor",
    "enrich": "driver.column",
    "enrich_frame": "driver.frame",
    "enriched": "driver.frame",
    "estimate": "reports.cost",
    "explain": "reports.explanation",
    "monitor": "observe.monitor",
    "register": "sources.registry",
    "register_function": "driver.sql_function",
    "submit_batches": "batches.frames",
    "tiers": "sources.tiers",
}
"""
The submodule of each public name that workers do not need. The first use of a name imports its submodule, so a worker,
which never uses these names, starts sooner.
"""


def __getattr__(name: str) -> Any:
    if name not in _ON_DRIVERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f".{_ON_DRIVERS[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
