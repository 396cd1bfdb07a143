"""
Flink's async I/O for Apache Spark.

>>> from enrichkit import enrich
>>> with_profile = df.withColumn("profile", enrich("redis", "user_id"))
"""

from __future__ import annotations

from .batches.frames import collect_batches, submit_batches
from .driver.column import enrich
from .driver.frame import enrich_frame, enriched
from .driver.sql_function import register_function
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
from .observe.monitor import Monitor, monitor
from .observe.stats import Stats
from .observe.totals import observe
from .options import Cache, Options, Preload, Retry, default
from .reports.cost import estimate
from .reports.describe import describe
from .reports.doctor import doctor
from .reports.explanation import explain
from .secrets import Secret
from .sources.function_connector import connector
from .sources.registry import connectors, register
from .sources.tiers import Tiers, tiers
from .version import VERSION

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
