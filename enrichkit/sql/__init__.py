"""
What the connectors of SQL databases have in common, for plugins; it imports no driver.

A plugin brings the dialect: its statements, its types, its address and what its driver's errors mean.
"""

from __future__ import annotations

from .config import SqlConfig, SqlServerConfig
from .connector import SqlConnector
from .pool import Pool, Session, tls_context
from .source import Source, no_table, quote

__all__ = [
    "Pool",
    "Session",
    "Source",
    "SqlConfig",
    "SqlConnector",
    "SqlServerConfig",
    "no_table",
    "quote",
    "tls_context",
]
