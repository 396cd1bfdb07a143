"""The contract kit on every server at hand: strings, hashes and JSON, and clusters of three masters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_redis import RedisConfig, RedisConnector

from enrichkit.testing import ConnectorContract

if TYPE_CHECKING:
    import redis

    from enrichkit import local

pytestmark = pytest.mark.service

VALUES = {"plain": "1", "o'clock": "two", "\N{SNOWMAN} man": "drei", "a:b": "", "{tag}": "five"}


class TestStrings(ConnectorContract):
    @pytest.fixture
    def connector(self, server: local.RedisServer) -> RedisConnector:
        return RedisConnector(RedisConfig(url=server.url, key="user:{}"))

    @pytest.fixture
    def known(self, client: redis.Redis) -> dict[Any, Any]:
        for key, value in VALUES.items():
            client.set(f"user:{key}", value)
        return VALUES

    @pytest.fixture
    def missing_key(self) -> str:
        return "nobody"

    @pytest.fixture
    def address(self, server: local.RedisServer) -> tuple[str, int]:
        return server.host, server.port
