"""
The parts that all connectors to SQL databases share; plugins import them from here. This package imports no client
package (driver) such as asyncpg.

A plugin adds what is special to its database: statements, types, addresses, and the meaning of the errors of its client
package.
"""

from __future__ import annotations

from .address import is_host, is_local, unreadable_url
from .config import SqlConfig, SqlServerConfig
from .connector import SqlConnector
from .faults import tls_fault
from .pool import Pool
from .session import Session
from .source import Source, no_table
from .stored import check_stored, rows_of, same_value
from .texts import are_utf8, are_uuids, quote, subquery, uuid_text

__all__ = [
    "Pool",
    "Session",
    "Source",
    "SqlConfig",
    "SqlConnector",
    "SqlServerConfig",
    "are_utf8",
    "are_uuids",
    "check_stored",
    "is_host",
    "is_local",
    "no_table",
    "quote",
    "rows_of",
    "same_value",
    "subquery",
    "tls_fault",
    "unreadable_url",
    "uuid_text",
]
