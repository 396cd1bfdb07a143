"""A master that sentinels tell, on real ones: discovery, fail-over, roles, logins, and sentinels that are away."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_redis import RedisConfig, RedisConnector

from enrichkit import local
from enrichkit.errors import ConfigError, ConnectorError, FatalError, UnavailableError
from enrichkit.local.redis_sentinel import RedisSentinel, redis_sentinel
from enrichkit.plugin import Ask, Call, Secret
from enrichkit.secrets import expiring, reference
from enrichkit.testing import open_connector
from enrichkit.testing.proxy import fault_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.service, pytest.mark.waits]

CALL = Call(timeout=5)
GONE = "127.0.0.1:1"
"""An address at which nobody listens."""


@pytest.fixture(scope="module", params=local.redis_servers())
def shop(request: pytest.FixtureRequest) -> Iterator[RedisSentinel]:
    """A master, a replica and three sentinels that want a password; no test of this module ends one of them."""
    with redis_sentinel(request.param, password="spw") as running:
        for port, text in zip(running.server_ports, ("master", "replica"), strict=True):
            with redis.Redis(port=port) as client:
                # Each server has a value of its own, which tells who answered.
                client.config_set("replica-read-only", "no")
                client.set("who", text)
        yield running


def config_of(shop: RedisSentinel, **fields: Any) -> RedisConfig:
    return RedisConfig(
        **{"url": "redis:///0", "sentinel": shop.sentinels, "master": shop.master, "sentinel_password": "spw", **fields}
    )


async def asked(config: RedisConfig, *keys: str) -> dict[Any, Any]:
    async with open_connector(config, capacity=2) as connector:
        return dict(await connector.fetch_many(keys, CALL))


def refusal(config: RedisConfig) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        asyncio.run(asked(config, "who"))
    return caught.value


async def until_answered(connector: RedisConnector, key: str, within: float = 15.0) -> Any:
    """Return the answer for *key* when it comes; until then only what an engine waits for may come."""
    end = time.monotonic() + within
    while True:
        try:
            return (await connector.fetch_many([key], Call(timeout=2)))[key]
        except UnavailableError:
            assert time.monotonic() < end, "no answer"
            await asyncio.sleep(0.1)


def test_the_master_answers(shop: RedisSentinel, run: Callable[..., Any]) -> None:
    assert run(asked(config_of(shop), "who", "absent")) == {"who": b"master"}


def test_a_sentinel_that_answered_is_asked_first(shop: RedisSentinel) -> None:
    questions = 0

    def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal questions
        questions += 1
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as broken:
            first = f"127.0.0.1:{broken.sockets[0].getsockname()[1]}"
            config = config_of(shop, sentinel=(first, *shop.sentinels))
            async with open_connector(config, capacity=4) as connector:
                assert await connector.fetch_many(["who"], CALL) == {"who": b"master"}
                found = await asyncio.gather(*(connector.fetch_many(["who"], CALL) for _ in range(4)))
                assert [{"who": b"master"}] * 4 == found

    asyncio.run(main())
    assert questions == 1, "several connections were made"


def test_a_sentinel_that_hangs_costs_a_second(shop: RedisSentinel, frozen: Any) -> None:
    first = shop.sentinel_ports[0]
    began = time.monotonic()
    with frozen(shop.processes[first].pid):
        assert asyncio.run(asked(config_of(shop), "who")) == {"who": b"master"}
    assert 1.0 <= time.monotonic() - began < 4.0


def test_all_sentinels_are_away() -> None:
    found = refusal(RedisConfig(url="redis:///0", sentinel=(GONE,), master="shop"))
    text = "The Redis sentinel at 127.0.0.1:1 cannot be reached (ConnectionRefusedError)."
    assert (UnavailableError, text, False) == (type(found), str(found), found.sent)  # type: ignore[attr-defined]


def test_the_database_and_the_login_are_those_of_the_url(shop: RedisSentinel) -> None:
    with redis.Redis(port=shop.server_ports[0], db=3) as client:
        client.set("in", "three")
        client.acl_setuser(
            "reader", enabled=True, passwords=["+pw"], keys=["*"], commands=["+mget", "+echo", "+select"]
        )
    found = asyncio.run(asked(config_of(shop, url="redis://reader:pw@/3"), "in"))
    assert found == {"in": b"three"}, "a user with the fewest permissions: HELLO needs none"


def test_a_server_that_is_no_master_is_not_asked(shop: RedisSentinel, run: Callable[..., Any]) -> None:
    """A sentinel that has not heard of a fail-over still tells the former master."""
    first, second = shop.server_ports

    async def main() -> None:
        async with open_connector(config_of(shop), capacity=2) as connector:
            with redis.Redis(port=first) as client:
                client.execute_command("REPLICAOF", "127.0.0.1", second)
                try:
                    with pytest.raises(UnavailableError) as caught:
                        await connector.fetch_many(["who"], CALL)
                finally:
                    client.execute_command("REPLICAOF", "NO", "ONE")
                    client.set("who", "master")
            text = f"The Redis master 'shop' at 127.0.0.1:{first} is no master now; a fail-over is under way."
            assert (text, False) == (str(caught.value), caught.value.sent)
            assert await until_answered(connector, "who") == b"master"

    run(main())


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"sentinel_password": "wrong"}, "refused the login or the question (WRONGPASS)"),
        ({"sentinel_password": None}, "refused the login or the question (NOAUTH)"),
        ({"sentinel_password": "spw", "sentinel_username": "nobody"}, "refused the login or the question (WRONGPASS)"),
    ],
)
def test_the_sentinels_refuse_the_login(shop: RedisSentinel, fields: dict[str, Any], text: str) -> None:
    found = refusal(config_of(shop, **fields))
    hint = "Check RedisConfig.sentinel_username and RedisConfig.sentinel_password."
    assert str(found) == f"The Redis sentinel at {shop.sentinels[0]} {text}. {hint}"
    assert isinstance(found, FatalError)


def test_no_sentinel_knows_the_name(shop: RedisSentinel) -> None:
    found = refusal(config_of(shop, master="shpo"))
    assert isinstance(found, FatalError)
    assert str(found) == (
        f"The Redis sentinel at {shop.sentinels[0]} knows no master named 'shpo'. Check RedisConfig.master; the "
        "command SENTINEL MASTERS lists the names."
    )


def test_a_server_is_named_where_a_sentinel_should_be(shop: RedisSentinel) -> None:
    address = f"127.0.0.1:{shop.server_ports[0]}"
    found = refusal(config_of(shop, sentinel=(address,), sentinel_password=None))
    assert isinstance(found, FatalError)
    assert f"The Redis sentinel at {address} refused the login or the question (ERR)." in str(found)


def test_a_wrong_password_of_the_master_is_told_as_such(shop: RedisSentinel) -> None:
    found = refusal(config_of(shop, username="nobody", password="wrong"))
    assert isinstance(found, FatalError)
    assert str(found).startswith(f"The Redis master 'shop' at 127.0.0.1:{shop.server_ports[0]} refused the username")


def test_the_password_of_the_sentinels_is_replaced(
    shop: RedisSentinel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function gave the old password, and is asked once more when the sentinels refuse it."""
    (tmp_path / "sentinel_tokens.py").write_text(
        "given = ['old', 'spw']\ndef token():\n    return given.pop(0) if len(given) > 1 else given[0]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(reference, "_held", {})
    monkeypatch.setattr(expiring, "AGAIN", 0.0)
    config = config_of(shop, sentinel_password=Secret.call("sentinel_tokens:token", ttl=900))
    assert asyncio.run(asked(config, "who")) == {"who": b"master"}


def test_limits_of_a_job_are_kept_at_the_master(shop: RedisSentinel) -> None:
    async def main() -> float:
        store = RedisConnector.lease_store(config_of(shop))
        try:
            grant = await store.lease(Ask(limit="s", worker="a", total=1.0, wanted=1.0, cost={"requests": 0.01}))
            return grant.calls
        finally:
            await store.close()

    assert asyncio.run(main()) == pytest.approx(25.0)
    with redis.Redis(port=shop.server_ports[0]) as client:
        assert client.exists("enrichkit:limit:s")


@pytest.mark.parametrize("kind", local.redis_servers())
def test_values_and_limits_move_with_the_master(kind: str, run: Callable[..., Any]) -> None:
    """The first sentinel ends with the master; a connection that was cut off from the former master is not kept."""

    async def main(shop: RedisSentinel) -> None:
        first, second = shop.server_ports
        config = config_of(shop, sentinel_password=None)
        store = RedisConnector.lease_store(config)
        ask = Ask(limit="s", worker="a", total=1.0, wanted=1.0, cost={"requests": 0.01})
        async with open_connector(config, capacity=4) as connector:
            await asyncio.gather(*(connector.fetch_many(["k"], CALL) for _ in range(4)))
            await store.lease(ask)
            shop.kill(shop.sentinel_ports[0])
            shop.kill(first)
            assert await until_answered(connector, "k") == b"v"
            with redis.Redis(port=second) as client:
                assert client.info("replication")["role"] == "master"
                assert [each for each in client.client_list() if each["name"] == "enrichkit"]
                await connector.store_many({"written": "v2"}, None)
                assert client.get("written") == b"v2"
            with contextlib.suppress(UnavailableError):  # its connection broke
                await store.lease(ask)
            assert (await store.lease(ask)).calls >= 0
            with redis.Redis(port=second) as client:
                assert client.exists("enrichkit:limit:s")
        await store.close()

    with redis_sentinel(kind) as shop:
        with redis.Redis(port=shop.server_ports[0]) as client:
            client.set("k", "v")
            client.wait(1, 5000)
        run(main(shop))


def test_idle_connections_to_a_former_master_are_dropped(shop: RedisSentinel) -> None:
    """Nobody ends them where the former master is cut off from the sentinels and not from the worker."""
    with (
        fault_proxy("127.0.0.1", shop.server_ports[0]) as old,
        fault_proxy("127.0.0.1", shop.server_ports[1]) as new,
    ):
        config = config_of(shop)

        async def main() -> None:
            async with open_connector(config, capacity=4) as connector:
                pool = connector._store._source  # type: ignore[union-attr]  # the sentinels tell one master here
                now = ("127.0.0.1", old.port)

                async def master() -> tuple[str, int]:
                    return now

                pool._dialler._sentinels.master = master
                await asyncio.gather(*(connector.fetch_many(["who"], CALL) for _ in range(4)))
                assert len(pool._idle) > 1
                now = ("127.0.0.1", new.port)
                with redis.Redis(port=shop.server_ports[1]) as client:
                    client.execute_command("REPLICAOF", "NO", "ONE")
                    client.set("who", "replica")
                    try:
                        pool._idle[0].abort()  # one of them breaks, and the others would go on
                        found = await asyncio.gather(*(connector.fetch_many(["who"], CALL) for _ in range(4)))
                        assert {b"master", b"replica"} == {each["who"] for each in found}
                        found = await asyncio.gather(*(connector.fetch_many(["who"], CALL) for _ in range(4)))
                        assert {b"replica"} == {each["who"] for each in found}
                    finally:
                        client.execute_command("REPLICAOF", "127.0.0.1", shop.server_ports[0])

        asyncio.run(main())


EXAMPLE = {"url": "redis:///0", "sentinel": ("a.example", "[::1]:5000"), "master": "shop"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"sentinel": ()},
            (
                "RedisConfig.master is given, but there is no sentinel; it belongs to the sentinels. Name them, for "
                "example sentinel=('sentinel-1.example:26379',), or leave master out."
            ),
        ),
        (
            {"master": None},
            (
                "RedisConfig.sentinel is given, but master is not; the sentinels know the master by a name. Say "
                "master='mymaster', or the name in your sentinels' configuration."
            ),
        ),
        (
            {"cluster": True},
            "RedisConfig.cluster is True, but sentinel is given; a cluster has no sentinels. Leave one of them out.",
        ),
        (
            {"url": "redis://cache.example/0"},
            (
                "RedisConfig.url names a server, but sentinel is given; the sentinels tell which server is the master. "
                "Leave the host out of url, for example 'redis:///0' or 'rediss:///0'."
            ),
        ),
        (
            {"sentinel_username": "u"},
            (
                "RedisConfig has a sentinel_username but no sentinel_password; a user needs one. Give it by reference: "
                "sentinel_password=Secret.env('SENTINEL_PASSWORD')."
            ),
        ),
        (
            {"sentinel_password": 1},
            (
                "RedisConfig.sentinel_password is a int; it must be a Secret or text, for example "
                "Secret.env('REDIS_PASSWORD')."
            ),
        ),
    ],
)
def test_a_config_that_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisConfig(**{**EXAMPLE, **fields})  # type: ignore[arg-type]
    assert str(caught.value) == text


@pytest.mark.parametrize("address", ["", "a b", "u@h", "h:x", "h:70000", "redis://h", "h/0", "::1", "[x]", 5])
def test_an_address_that_is_refused(address: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        RedisConfig(url="redis:///0", sentinel=(address,), master="shop")
    assert str(caught.value) == (
        f"RedisConfig.sentinel is {(address,)!r}; it must be a tuple of hosts with or without a port, for example "
        "sentinel=('sentinel-1.example:26379', 'sentinel-2.example:26379')."
    )


def test_a_list_becomes_a_tuple_and_no_password_is_shown() -> None:
    config = RedisConfig(url="redis:///0", sentinel=["a"], master="m", sentinel_password="hidden")  # type: ignore[arg-type]
    assert ("a",) == config.sentinel
    assert "hidden" not in repr(config)
    assert hash(config) != hash(replace(config, master="n"))
