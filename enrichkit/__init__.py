"""
Flink's async I/O for Apache Spark.

>>> from enrichkit import enrich
>>> with_profile = df.withColumn("profile", enrich("redis", "user_id"))
"""

from __future__ import annotations

__version__ = "0.1.0"

from .column import enrich
from .connector import Answers, Call, Connector, ConnectorConfig, Failure, Keys
from .description import describe
from .errors import (
    ConfigError,
    EnrichkitError,
    FatalError,
    LookupFailedError,
    PermanentError,
    TransientError,
    UnknownConnectorError,
)
from .explanation import explain
from .frame import enrich_frame, enriched
from .function_connector import connector
from .functions import register_function
from .hookspecs import hookimpl
from .options import Cache, Options, Retry, default
from .registry import connectors, register
from .secrets import Secret

__all__ = [
    "Answers",
    "Cache",
    "Call",
    "ConfigError",
    "Connector",
    "ConnectorConfig",
    "EnrichkitError",
    "Failure",
    "FatalError",
    "Keys",
    "LookupFailedError",
    "Options",
    "PermanentError",
    "Retry",
    "Secret",
    "TransientError",
    "UnknownConnectorError",
    "connector",
    "connectors",
    "default",
    "describe",
    "enrich",
    "enrich_frame",
    "enriched",
    "explain",
    "hookimpl",
    "register",
    "register_function",
]
