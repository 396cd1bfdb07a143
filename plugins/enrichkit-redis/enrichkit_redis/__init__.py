"""The redis connector of enrichkit: string, hash and JSON values from Redis and Valkey, alone or as a cluster."""

from __future__ import annotations

from enrichkit.plugin import hookimpl

from .config import RedisConfig
from .connector import RedisConnector

__all__ = ["RedisConfig", "RedisConnector"]


@hookimpl
def enrichkit_connector() -> type[RedisConnector]:
    """Return the connector class of `enrich("redis", ...)`."""
    return RedisConnector
