"""The http connector of enrichkit: look keys up in a web service, one by one or in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.hookspecs import hookimpl

from .config import HttpConfig
from .connector import HttpConnector

if TYPE_CHECKING:
    from enrichkit.connector import Connector

__all__ = ["HttpConfig", "HttpConnector"]


@hookimpl
def enrichkit_connector() -> type[Connector[Any]]:
    """Return the connector class that this entry point offers."""
    return HttpConnector
