"""The `mariadb` connector of enrichkit: values from the rows of a MariaDB table or view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.plugin import hookimpl

from .config import MariadbConfig
from .connector import MariadbConnector

if TYPE_CHECKING:
    from enrichkit.plugin import Connector

__all__ = ["MariadbConfig", "MariadbConnector"]


@hookimpl
def enrichkit_connector() -> type[Connector[Any]]:
    """Return the connector class of `enrich("mariadb", ...)`."""
    return MariadbConnector
