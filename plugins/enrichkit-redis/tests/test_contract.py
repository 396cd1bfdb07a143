"""The contract kit on each kind of server: strings, hashes, JSON and keys of bytes, on one server and a cluster."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_redis import RedisConfig, RedisConnector

from enrichkit import local
from enrichkit.local.redis_cluster import redis_cluster
from enrichkit.testing import ConnectorContract, fault_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from enrichkit.local.redis_cluster import RedisCluster
    from enrichkit.testing import FaultProxy

pytestmark = pytest.mark.service

TEXTS = {"plain": "1", "o'clock": "two", "\N{SNOWMAN} man": "drei", "a:b": "", "{tag}": "five"}
USERS = {key: {"name": value, "tier": n} for n, (key, value) in enumerate(TEXTS.items())}


class OneServer(ConnectorContract):
    """A server of each kind on this machine, one after the other."""

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody"

    @pytest.fixture
    def address(self, server: local.RedisServer) -> tuple[str, int]:
        return server.host, server.port


class TestStrings(OneServer):
    @pytest.fixture
    def connector(self, server: local.RedisServer) -> RedisConnector:
        return RedisConnector(RedisConfig(url=server.url, key="user:{}"))

    @pytest.fixture
    def known(self, client: redis.Redis) -> dict[Any, Any]:
        for key, value in TEXTS.items():
            client.set(f"user:{key}", value)
        return TEXTS

    @pytest.fixture
    def unreadable(self, client: redis.Redis) -> Sequence[Any]:
        client.rpush("user:a list", "x")
        client.hset("user:a hash", "x", "y")
        client.set("user:no text", b"\xff")
        client.set("user:half", "\N{SNOWMAN}".encode()[:2])
        return ["a list", "a hash", "no text", "half"]


class TestHashes(OneServer):
    @pytest.fixture
    def connector(self, server: local.RedisServer) -> RedisConnector:
        config = RedisConfig(url=server.url, kind="hash", fields=("name", "tier"), returns="name string, tier int")
        return RedisConnector(config)

    @pytest.fixture
    def known(self, client: redis.Redis) -> dict[Any, Any]:
        for key, value in USERS.items():
            client.hset(key, mapping=value)
        return USERS


@pytest.mark.slow
class TestDocumentsUnderTwoColumns(OneServer):
    @pytest.fixture
    def connector(self, server: local.RedisServer) -> RedisConnector:
        config = RedisConfig(url=server.url, key="{0}:user:{1}", kind="json", returns="name string, tier int")
        return RedisConnector(config)

    @pytest.fixture
    def known(self, client: redis.Redis) -> dict[Any, Any]:
        for n, (key, value) in enumerate(USERS.items()):
            # Several parts: separators and braces are encoded inside a part.
            part = key.replace(":", "%3A").replace("{", "%7B").replace("}", "%7D")
            client.set(f"{part}:user:{n}", json.dumps(value))
        return {(key, n): value for n, (key, value) in enumerate(USERS.items())}

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody", 5


@pytest.mark.slow
class TestKeysOfBytes(OneServer):
    @pytest.fixture
    def connector(self, server: local.RedisServer) -> RedisConnector:
        return RedisConnector(RedisConfig(url=server.url, returns="binary"))

    @pytest.fixture
    def known(self, client: redis.Redis) -> dict[Any, Any]:
        values = {b"\xff\xfe": b"\x00\xff", b"plain": b"", b"\x00": b"v"}
        for key, value in values.items():
            client.set(key, value)
        return values

    @pytest.fixture
    def missing_key(self) -> Any:
        return b"nobody"


class Proxies:
    """
    A fault proxy in front of each master, used as one.

    Attributes:
        parts: The proxies.
    """

    def __init__(self, parts: list[FaultProxy]) -> None:
        self.parts = parts
        self.host, self.port = parts[0].host, parts[0].port

    def __getattr__(self, name: str) -> Any:
        def each(*args: Any, **settings: Any) -> None:
            for part in self.parts:
                getattr(part, name)(*args, **settings)

        return each

    @property
    def heard(self) -> int:
        return sum(part.heard for part in self.parts)

    # `capacity` is the number of connections per server.

    @property
    def opened(self) -> int:
        return max(part.opened for part in self.parts)

    @property
    def open(self) -> int:
        return max(part.open for part in self.parts)


@pytest.fixture(scope="module", params=local.redis_servers())
def masters(request: pytest.FixtureRequest) -> Iterator[tuple[RedisCluster, Proxies]]:
    """Three masters that announce the ports of their proxies, so that no client bypasses a proxy."""
    with contextlib.ExitStack() as stack:
        proxies: dict[int, FaultProxy] = {}

        def front(port: int) -> int:
            proxies[port] = stack.enter_context(fault_proxy("127.0.0.1", port))
            return proxies[port].port

        cluster = stack.enter_context(redis_cluster(request.param, front=front))
        yield cluster, Proxies([proxies[port] for port in cluster.ports])


class TestClusters(ConnectorContract):
    @pytest.fixture
    def connector(self, masters: tuple[RedisCluster, Proxies]) -> RedisConnector:
        return RedisConnector(RedisConfig(url=masters[0].url, cluster=True))

    @pytest.fixture
    def known(self, masters: tuple[RedisCluster, Proxies]) -> dict[Any, Any]:
        masters[0].flush()
        with redis.RedisCluster.from_url(masters[0].url) as client:
            for key, value in TEXTS.items():
                client.set(key, value)
            client.disconnect_connection_pools()  # close() does not, and the proxies count connections
        return TEXTS

    @pytest.fixture
    def missing_key(self) -> Any:
        return "nobody"

    @pytest.fixture
    def address(self, masters: tuple[RedisCluster, Proxies]) -> tuple[str, int]:
        return "127.0.0.1", masters[0].ports[0]

    @pytest.fixture
    def proxy(self, masters: tuple[RedisCluster, Proxies]) -> Proxies:
        masters[1].cut()  # the workers of the Spark checks keep connections for a while, and these checks count them
        return masters[1]
