"""The `sqlite` connector of enrichkit: values from the rows of a table or query in a SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.plugin import hookimpl

from .config import SqliteConfig
from .connector import SqliteConnector

if TYPE_CHECKING:
    from enrichkit.plugin import Connector

__all__ = ["SqliteConfig", "SqliteConnector"]


@hookimpl
def enrichkit_connector() -> type[Connector[Any]]:
    """Return the connector class of `enrich("sqlite", ...)`."""
    return SqliteConnector
