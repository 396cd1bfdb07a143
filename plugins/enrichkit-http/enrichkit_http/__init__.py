"""The http connector of enrichkit: lookups in a web service, one key per request or many keys in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from enrichkit.plugin import hookimpl

from .config import HttpConfig
from .connector import HttpConnector
from .exchange import Exchange
from .faults import LimitedError
from .oauth import OAuth
from .signing import UnsignedRequest

if TYPE_CHECKING:
    from enrichkit.plugin import Connector

__all__ = ["Exchange", "HttpConfig", "HttpConnector", "LimitedError", "OAuth", "UnsignedRequest"]


@hookimpl
def enrichkit_connector() -> type[Connector[Any]]:
    """Return the connector class of `enrich("http", ...)`."""
    return HttpConnector
