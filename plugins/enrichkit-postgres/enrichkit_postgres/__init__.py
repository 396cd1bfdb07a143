"""The `postgres` connector of enrichkit: values from the rows of a PostgreSQL table or query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.plugin import hookimpl

from .config import PostgresConfig
from .connector import PostgresConnector

if TYPE_CHECKING:
    from enrichkit.plugin import Connector

__all__ = ["PostgresConfig", "PostgresConnector"]


@hookimpl
def enrichkit_connector() -> type[Connector[Any]]:
    """Return the connector class of `enrich("postgres", ...)`."""
    return PostgresConnector
