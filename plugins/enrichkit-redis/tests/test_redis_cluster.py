"""A cluster of three masters: keys of many slots in one call, slots that move, a node that dies."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import signal
import socket
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import redis
from enrichkit_redis.cluster import slot_of

from enrichkit.errors import ConnectorError, FatalError, PermanentError, TransientError, UnavailableError
from enrichkit.local.process import stop
from enrichkit.local.redis import _binaries, _command
from enrichkit.local.redis_cluster import RedisCluster, _start_node, redis_cluster
from enrichkit.plugin import Call, Failure
from enrichkit.testing.bench import wait_until
from enrichkit.worker.keys import encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.waits

CALL = Call(timeout=60)
KEYS = [f"u:{n}" for n in range(300)]


@contextlib.contextmanager
def client_of(cluster: RedisCluster) -> Iterator[redis.RedisCluster]:
    """redis-py's cluster client, which finds the node of a key by its own code."""
    client = redis.RedisCluster(host="127.0.0.1", port=cluster.ports[0], protocol=2)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture
def filled(cluster: RedisCluster) -> RedisCluster:
    """The cluster with `v<key>` under each of KEYS and a list under `list`."""
    cluster.flush()
    with client_of(cluster) as client:
        for key in KEYS:
            client.set(key, f"v{key}")
        client.rpush("list", "x")
    return cluster


def values(keys: list[str]) -> dict[str, bytes]:
    return {key: f"v{key}".encode() for key in keys}


def test_the_slot_of_a_key_is_the_one_that_the_server_computes(cluster):
    keys = ["", "a", "foo", "{x}1", "{x}2", "a{x}b{y}", "{}a", "a{}b{x}", "a{b", "}{a}", "ü", "{ü}", "\x00"]
    with redis.Redis(port=cluster.ports[0], protocol=2) as client:
        assert [client.execute_command("CLUSTER", "KEYSLOT", key) for key in keys] == [
            slot_of(key.encode()) for key in keys
        ]


@pytest.mark.parametrize("port", [0, 1, 2])
def test_keys_of_all_nodes_are_answered_in_one_call(filled, lookup, port):
    found = lookup(f"redis://127.0.0.1:{filled.ports[port]}", [*KEYS, "gone", "also gone"], cluster=True)

    assert values(KEYS) == found


def test_every_kind_works_in_a_cluster(filled, lookup, connected):
    with client_of(filled) as client:
        for n in range(50):
            client.hset(f"h:{n}", mapping={"f": n})

    async def store() -> None:
        async with connected(filled.url, key="j:{}", kind="json", cluster=True) as connector:
            await connector.store_many(dict.fromkeys(range(50), b"{}"), 60)

    asyncio.run(store())
    keys = [*range(50), "gone"]
    assert dict.fromkeys(range(50), b"{}") == lookup(filled.url, keys, key="j:{}", kind="json", cluster=True)
    assert {n: {"f": b"%d" % n} for n in range(50)} == lookup(filled.url, keys, key="h:{}", kind="hash", cluster=True)
    assert {n: {"g": None} for n in range(50)} == lookup(
        filled.url, keys, key="h:{}", kind="hash", fields=("g",), cluster=True
    )


def test_a_key_of_another_type_fails_alone(filled, lookup):
    found = lookup(filled.url, ["list", *KEYS], cluster=True)

    failure = found.pop("list")
    assert values(KEYS) == found
    assert (PermanentError, False) == (type(failure.error), failure.rejected)
    assert str(failure.error) == "The key holds another type of value in Redis than RedisConfig.kind says (WRONGTYPE)."


def test_tags_in_the_data_are_data_and_are_flagged_once(filled, connected, caplog):
    keys = [f"{{x}}{n}" for n in range(100)]
    with client_of(filled) as client:
        for key in keys:
            client.set(key, f"v{key}")

    async def main() -> None:
        async with connected(filled.url, cluster=True) as connector:
            for _ in range(2):
                assert values(keys) == await connector.fetch_many(keys, CALL)

    with caplog.at_level(logging.WARNING, "enrichkit.redis"):
        asyncio.run(main())

    assert [record.getMessage() for record in caplog.records] == [
        (
            "Keys hold '{...}', which Redis Cluster takes for a hash tag: all keys with one tag are on one node. "
            "If that is not intended, put a tag of your own or nothing of that form into the keys."
        )
    ]


def test_data_does_not_choose_the_slot_of_a_key_of_several_parts(filled, connected):
    async def main() -> list[Any]:
        async with connected(filled.url, cluster=True, key="{}:{}") as connector:
            await connector.store_many({("{x}", n): b"1" for n in range(90)}, None)
            return [await connector.fetch_many([("{x}", n) for n in range(90)], CALL)]

    assert [{("{x}", n): b"1" for n in range(90)}] == asyncio.run(main())
    for port in filled.ports:
        with redis.Redis(port=port, protocol=2) as client:
            assert list(client.scan_iter("%7Bx%7D:*"))


def test_the_keys_of_all_nodes_are_listed(filled, connected):
    """What `preload` asks for."""

    async def main() -> list[Any]:
        async with connected(filled.url, cluster=True, key="u:{}") as connector:
            return [key async for page in connector.scan((int,), 20) for key in page]

    assert sorted(asyncio.run(main())) == list(range(300))


@contextlib.contextmanager
def moving(cluster: RedisCluster, key: str) -> Iterator[tuple[redis.Redis, redis.Redis, int]]:
    """Move the slot of *key* from one node to another, and back at the end. Yield both nodes and the slot."""
    slot = slot_of(key.encode())
    owner = next(n for n in range(3) if slot < 16384 * (n + 1) // 3)
    with (
        redis.Redis(port=cluster.ports[owner], protocol=2) as source,
        redis.Redis(port=cluster.ports[(owner + 1) % 3], protocol=2) as target,
        redis.Redis(port=cluster.ports[(owner + 2) % 3], protocol=2) as other,
    ):
        # A target that has not heard of the newest epoch of the source would give the slot back to it.
        assert wait_until(lambda: len({epoch(node) for node in (source, target, other)}) == 1)
        ids = [node.execute_command("CLUSTER", "MYID").decode() for node in (source, target)]
        target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        try:
            yield source, target, slot
        finally:
            cluster.flush()
            # With an older epoch than the target's, the source would hear from the other node that the target owns the
            # slot; then source and target would redirect clients to each other for ever.
            source.execute_command("CLUSTER", "BUMPEPOCH")
            for node in (source, target, other):
                node.execute_command("CLUSTER", "SETSLOT", slot, "STABLE")
                node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[0])


def epoch(node: redis.Redis) -> str:
    """Return the newest epoch of the cluster of which *node* has heard."""
    return re.search(r"cluster_current_epoch:(\d+)", str(node.execute_command("CLUSTER", "INFO")))[1]


def migrate(source: redis.Redis, target: redis.Redis, key: str) -> None:
    port = target.connection_pool.connection_kwargs["port"]
    source.execute_command("MIGRATE", "127.0.0.1", port, key, 0, 5000)


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_a_key_whose_slot_moves_is_found_before_and_after_its_own_move(filled, connected, kind):
    fields = {"kind": kind, "cluster": True, "fields": ("f",) if kind == "hash" else ()}
    others = values(KEYS) if kind == "string" else {}
    expected = {**others, "moves": {"f": b"1"} if kind == "hash" else b"1"}
    asked = [*others, "moves", "{moves}gone"]
    with client_of(filled) as client:
        if kind == "hash":
            client.hset("moves", "f", "1")
        else:
            client.set("moves", "1")

    async def main() -> None:
        async with connected(filled.url, **fields) as connector:
            assert expected == await connector.fetch_many(asked, CALL)
            with moving(filled, "moves") as (source, target, _):
                assert expected == await connector.fetch_many(asked, CALL)
                migrate(source, target, "moves")
                assert expected == await connector.fetch_many(asked, CALL)

    asyncio.run(main())


def commands_of(cluster: RedisCluster) -> dict[str, int]:
    """Return how many calls of `GET` and `MGET` all nodes have counted since the last time."""
    counts = {"get": 0, "mget": 0}
    for port in cluster.ports:
        with redis.Redis(port=port, protocol=2) as node:
            stats = node.info("commandstats")
            node.config_resetstat()
        for name in counts:
            counts[name] += stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]
    return counts


def test_the_keys_of_a_slot_are_asked_for_together(filled, connected):
    keys = [f"{{tag {tag}}}{n}" for n in range(40) for tag in range(5)]
    with client_of(filled) as client:
        for key in keys:
            client.set(key, f"v{key}")
        client.rpush("{tag 1}list", "x")

    async def main() -> None:
        async with connected(filled.url, cluster=True) as connector:
            commands_of(filled)
            assert values(keys) == await connector.fetch_many(keys, CALL)
            assert commands_of(filled) == {"get": 0, "mget": 5}
            # A key whose reply is nil is asked for again, because it may hold another type.
            found = await connector.fetch_many([*keys, "{tag 0}gone", "{tag 1}list"], CALL)
            assert commands_of(filled)["mget"] == 5
            failure = found["{tag 1}list"]
            assert "another type of value" in str(failure.error)
            assert found == {**values(keys), "{tag 1}list": failure}
            # When most keys have a slot of their own, each key has a command of its own.
            assert values(KEYS) == await connector.fetch_many(KEYS, CALL)
            assert commands_of(filled) == {"get": len(KEYS), "mget": 0}

    asyncio.run(main())


def test_the_keys_of_a_slot_that_moves_are_found_on_both_nodes(filled, connected):
    keys = [f"{{moves}}{n}" for n in range(20)]
    expected = values(keys)
    with client_of(filled) as client:
        for key in keys:
            client.set(key, f"v{key}")

    async def main() -> None:
        async with connected(filled.url, cluster=True) as connector:
            asked = [*keys, "{moves}gone"]
            assert expected == await connector.fetch_many(asked, CALL)
            with moving(filled, "{moves}") as (source, target, _):
                assert expected == await connector.fetch_many(asked, CALL)
                for moved, key in enumerate(keys, 1):
                    migrate(source, target, key)
                    if moved in (1, 10, 20):
                        assert expected == await connector.fetch_many(asked, CALL)

    asyncio.run(main())


def test_a_slot_that_has_moved_is_followed_and_then_known(filled, connected, monkeypatch):
    monkeypatch.setattr("enrichkit_redis.cluster.REFRESH", 0.0)

    async def main() -> None:
        async with connected(filled.url, cluster=True) as connector:
            with client_of(filled) as client:
                client.set("moves", "1")
            assert await connector.fetch_many(["moves"], CALL) == {"moves": b"1"}
            with moving(filled, "moves") as (source, target, slot):
                migrate(source, target, "moves")
                own = target.execute_command("CLUSTER", "MYID").decode()
                for node in (target, source):
                    node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", own)
                target.config_resetstat()
                source.config_resetstat()
                assert await connector.fetch_many(["moves"], CALL) == {"moves": b"1"}
                assert await connector.fetch_many(["moves"], CALL) == {"moves": b"1"}
                asked = [node.info("commandstats").get("cmdstat_get", {"calls": 0}) for node in (source, target)]
                # The first lookup was redirected by the old node and loaded the map; the second asked the new node.
                assert [count.get("calls", 0) + count.get("rejected_calls", 0) for count in asked] == [1, 2]

    asyncio.run(main())


def refuses(port: int) -> bool:
    """Whether nothing listens at *port* any more."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_the_keys_of_a_dead_node_may_be_tried_again_and_the_others_are_answered(cluster, connected):
    async def main(own: RedisCluster) -> None:
        with client_of(own) as client:
            for key in KEYS:
                client.set(key, f"v{key}")
        async with connected(own.url, cluster=True) as connector:
            assert values(KEYS) == await connector.fetch_many(KEYS, CALL)
            os.kill(own.pids[2], signal.SIGKILL)
            assert wait_until(lambda: refuses(own.ports[2])), "a process takes a moment to die"
            lost = [key for key in KEYS if slot_of(key.encode()) >= 16384 * 2 // 3]
            name = f"Redis at 127.0.0.1:{own.ports[2]}"
            refused = UnavailableError, f"{name} cannot be reached (ConnectionRefusedError).", name, False
            broken = UnavailableError, f"{name} closed the connection.", name, True
            for allowed in ({refused, broken}, {refused}):  # the first call may find the old connection, which breaks
                found = await connector.fetch_many(KEYS, CALL)
                failures = {key: found.pop(key) for key in lost}
                assert values([key for key in KEYS if key not in lost]) == found
                assert {Failure} == set(map(type, failures.values()))
                (said,) = {traits(failure) for failure in failures.values()}
                assert said in allowed
            assert all(0 < failure.error.retry_after <= 1.25 for failure in failures.values())  # type: ignore[attr-defined]

    with redis_cluster(cluster.kind) as own:
        asyncio.run(main(own))


@contextlib.contextmanager
def replica_of(cluster: RedisCluster, number: int, folder: Path) -> Iterator[int]:
    """Add a replica of node *number* to *cluster*, and yield its port when it has the data."""
    process, port = _start_node(_binaries()[cluster.kind], folder / "replica", lambda port: port)

    def tells(command: str, text: str) -> bool:
        return wait_until(lambda: text in _command("127.0.0.1", port, command))

    try:
        _, master, *_ = _command("127.0.0.1", cluster.ports[number], "CLUSTER MYID").split("\r\n")
        _command("127.0.0.1", port, f"CLUSTER MEET 127.0.0.1 {cluster.ports[number]}")
        assert tells("CLUSTER INFO", "cluster_known_nodes:4")
        replicate = f"CLUSTER REPLICATE {master}"
        assert wait_until(lambda: _command("127.0.0.1", port, replicate).startswith("+OK"))
        assert tells("INFO replication", "master_link_status:up")
        yield port
    finally:
        stop(process, signal.SIGKILL)


def test_a_replica_that_becomes_the_master_is_found(cluster, connected, tmp_path):
    """Until it is found keys may be tried again, and none is missing or has another value."""
    lost = {key for key in KEYS if slot_of(key.encode()) >= 16384 * 2 // 3}

    async def main(own: RedisCluster, port: int) -> None:
        async with connected(own.url, cluster=True) as connector:
            assert values(KEYS) == await connector.fetch_many(KEYS, CALL)
            failed, turn = lost, 0
            while failed or "role:master" not in _command("127.0.0.1", port, "INFO replication"):
                if turn % 120 == 0:  # again if masters that do not know it let it time out
                    _command("127.0.0.1", port, "CLUSTER FAILOVER")
                turn += 1
                found = dict(await connector.fetch_many(KEYS, CALL))
                failed = {key for key, value in found.items() if isinstance(value, Failure)}
                assert failed <= lost
                assert {UnavailableError} >= {type(found[key].error) for key in failed}
                assert values([key for key in KEYS if key not in failed]) == {
                    key: value for key, value in found.items() if key not in failed
                }
                await asyncio.sleep(0.05)
            assert values(KEYS) == await connector.fetch_many(KEYS, CALL)

    with redis_cluster(cluster.kind) as own:
        with client_of(own) as client:
            for key in KEYS:
                client.set(key, f"v{key}")
        with replica_of(own, 2, tmp_path) as port:
            asyncio.run(main(own, port))
            with redis.Redis(port=port, protocol=2) as client:
                assert client.info("commandstats")["cmdstat_get"]["calls"] >= len(lost)


def traits(failure: Failure) -> tuple[Any, ...]:
    """Return what the engine goes by: class, text, node, and whether the keys may have been sent."""
    error = failure.error
    assert type(error) is UnavailableError, repr(error)
    return UnavailableError, str(error), error.node, error.sent


def test_connections_are_counted_per_node(filled, connected):
    async def main() -> list[int]:
        async with connected(filled.url, cluster=True, capacity=2) as connector:
            answers = await asyncio.gather(*(connector.fetch_many(KEYS, CALL) for _ in range(30)))
            assert [values(KEYS)] * 30 == answers
            counts = []
            for port in filled.ports:
                with redis.Redis(port=port, protocol=2) as client:
                    counts.append(sum(entry["name"] == "enrichkit" for entry in client.client_list()))
            return counts

    counts = asyncio.run(main())
    assert all(1 <= count <= 2 for count in counts)


def test_thousands_of_cancelled_calls_give_no_wrong_value(filled, connected, run):
    async def main() -> int:
        done = 0
        async with connected(filled.url, cluster=True) as connector:
            for n in range(1000):
                task = asyncio.create_task(connector.fetch_many(KEYS[n % 280 : n % 280 + 20], CALL))
                if n % 2:
                    asyncio.get_running_loop().call_later(n % 40 / 20_000, task.cancel)
                with contextlib.suppress(asyncio.CancelledError):
                    assert values(KEYS[n % 280 : n % 280 + 20]) == await task
                    done += 1
        return done

    assert 500 <= run(main()) < 1000


def test_a_frozen_node_costs_no_more_than_the_timeout(filled, connected, frozen):
    async def main() -> None:
        async with connected(filled.url, cluster=True) as connector:
            await connector.fetch_many(KEYS, CALL)
            with frozen(filled.pids[1]), pytest.raises(TransientError) as caught:
                await connector.fetch_many(KEYS, Call(timeout=0.2))
            assert str(caught.value) == "Redis did not answer within 0.2 s."
            assert values(KEYS) == await connector.fetch_many(KEYS, CALL)

    asyncio.run(main())


@contextlib.contextmanager
def patient(ports: Sequence[int]) -> Iterator[None]:
    """Let the nodes wait a minute, not 2 s, before they take a silent one for lost and the cluster for down."""
    name = "cluster-node-timeout"

    def set_on_all(milliseconds: Any) -> Any:
        before = None
        for port in ports:
            with redis.Redis(port=port, protocol=2) as client:
                before = client.config_get(name)[name]
                client.config_set(name, milliseconds)
        return before

    before = set_on_all(60_000)
    try:
        yield
    finally:
        set_on_all(before)


def test_a_frozen_node_does_not_delay_the_map(filled, connected, frozen, monkeypatch):
    monkeypatch.setattr("enrichkit_redis.cluster.REFRESH", 0.0)
    keys = [key for key in KEYS if slot_of(key.encode()) < 16384 // 3]

    async def main() -> None:
        async with connected(filled.url, cluster=True) as connector:
            await connector.fetch_many(KEYS, CALL)
            monkeypatch.setattr("enrichkit_redis.cluster.LOAD_TIMEOUT", 0.5)
            with patient(filled.ports), frozen(filled.pids[1]):
                for _ in range(5):
                    with pytest.raises(TransientError):  # after a node that hangs the map is loaded again
                        await connector.fetch_many(KEYS, Call(timeout=0.05))
                    assert values(keys) == await connector.fetch_many(keys, CALL)

    asyncio.run(main())


def in_columns(*columns: list[Any]) -> Any:
    return encode([pa.array(column) for column in columns])[0]


def told(answers: Any) -> dict[Any, Any]:
    """Return *answers* with the class and text of each error, because errors compare by identity."""
    return {
        key: (type(value.error), str(value.error), value.rejected) if isinstance(value, Failure) else value
        for key, value in answers.items()
    }


@pytest.mark.parametrize(
    ("columns", "fields", "count"),
    [
        ([KEYS], {}, 300),
        ([["gone", *KEYS, "list", "h:1"]], {}, 302),
        ([[f"{{tag}}{n}" for n in range(20)]], {}, 10),
        ([[*range(60)]], {"key": "n:{}"}, 50),
        ([["a:b", "{x}"] * 10, [*range(20)]], {"key": "{1}-{0}"}, 10),
        ([["u"] * 300, [*range(300)]], {"key": "{}:{}"}, 300),
        ([[*range(60)]], {"key": "h:{}", "kind": "hash"}, 50),
        ([[*range(60)]], {"key": "h:{}", "kind": "hash", "fields": ("f",)}, 50),
    ],
)
def test_keys_in_columns_get_the_same_answers_as_a_list_of_them(filled, lookup, columns, fields, count):
    with client_of(filled) as client:
        for n in range(50):
            client.set(f"n:{n}", n)
            client.hset(f"h:{n}", mapping={"f": n})
        for n in range(0, 20, 2):
            client.set(f"{{tag}}{n}", n)
            client.set(f"{n + 1}-%7Bx%7D", n)
    keys = in_columns(*columns)

    for asked in (keys, keys[1:]):
        found = lookup(filled.url, asked, cluster=True, **fields)
        assert told(lookup(filled.url, list(asked), cluster=True, **fields)) == told(found)
    assert count == len(lookup(filled.url, keys, cluster=True, **fields))


@pytest.mark.parametrize("kind", ["string", "hash"])
def test_keys_in_columns_follow_a_slot_that_moves(filled, connected, kind):
    fields = {"kind": kind, "cluster": True, "fields": ("f",) if kind == "hash" else ()}
    keys = in_columns(["{moves}1", "gone", "{moves}gone", "{moves}2"])
    expected: dict[str, Any] = {}
    with client_of(filled) as client:
        for key in ("{moves}1", "{moves}2"):
            if kind == "hash":
                client.hset(key, "f", key)
            else:
                client.set(key, key)
            expected[key] = {"f": key.encode()} if kind == "hash" else key.encode()

    async def main() -> None:
        async with connected(filled.url, **fields) as connector:
            with moving(filled, "moves") as (source, target, _):
                assert expected == await connector.fetch_many(keys, CALL)
                migrate(source, target, "{moves}2")
                assert expected == await connector.fetch_many(keys, CALL)
                found = await connector.fetch_many(keys[3:], CALL)
                assert {"{moves}2": expected["{moves}2"]} == dict(found)

    asyncio.run(main())


def slots_told(proxy: Any, reply: bytes) -> None:
    """Replace the reply of the node to CLUSTER SLOTS by *reply*, between the two echoes; the login passes."""
    proxy.on_reply = lambda data: data[:31] + reply + data[-31:] if data.startswith(b"$24\r\n") else data


def range_of(first: int, last: int, port: int, host: bytes = b"127.0.0.1") -> bytes:
    return b"*3\r\n:%d\r\n:%d\r\n*2\r\n$%d\r\n%b\r\n:%d\r\n" % (first, last, len(host), host, port)


@pytest.mark.parametrize("host", [b"127.0.0.1", b""], ids=["named", "the one that was asked"])
def test_a_key_whose_slot_has_no_node_may_be_tried_again_and_the_others_are_answered(filled, proxy, connected, host):
    held = [key for key in KEYS if slot_of(key.encode()) < 16384 // 3]

    async def main() -> dict[Any, Any]:
        async with (
            proxy(filled.ports[0]) as p,
            connected(f"redis://127.0.0.1:{p.port}", cluster=True) as connector,
        ):
            slots_told(p, b"*1\r\n" + range_of(0, 16384 // 3 - 1, filled.ports[0], host))
            return await connector.fetch_many(KEYS, CALL)

    found = asyncio.run(main())
    lost = (UnavailableError, "No node of the Redis cluster holds the key's slot.", False)
    assert {**dict.fromkeys(KEYS, lost), **values(held)} == told(found)
    assert {traits(found[key])[2:] for key in KEYS if key not in held} == {("A node of the Redis cluster", False)}
    assert 0 < len(held) < len(KEYS)


def error_behind(proxy: Any, connected: Any, port: int, reply: bytes) -> ConnectorError:
    """Return the error of a lookup whose node replies to CLUSTER SLOTS with *reply*."""

    async def main() -> ConnectorError:
        async with proxy(port) as p, connected(f"redis://127.0.0.1:{p.port}", cluster=True) as connector:
            slots_told(p, reply)
            with pytest.raises((FatalError, TransientError)) as caught:
                await connector.fetch_many(["a"], CALL)
            return caught.value

    return asyncio.run(main())


@pytest.mark.parametrize(
    "reply",
    [
        b"$-1\r\n",
        b":1\r\n",
        b"+OK\r\n",
        b"*1\r\n*2\r\n:0\r\n:16383\r\n",
        b"*1\r\n*3\r\n:0\r\n:16383\r\n$9\r\n127.0.0.1\r\n",
        b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n:1\r\n:6379\r\n",
        b"*1\r\n*3\r\n$1\r\n0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:6379\r\n",
    ],
)
def test_slots_in_an_unknown_form_fail_the_task(filled, proxy, connected, reply):
    text = "The Redis cluster answered CLUSTER SLOTS in an unknown form; it must be Redis or Valkey."
    error = error_behind(proxy, connected, filled.ports[0], reply)
    assert (FatalError, text) == (type(error), str(error))


def test_the_map_is_loaded_again_when_a_node_reports_that_the_cluster_is_down(filled, proxy, connected, monkeypatch):
    """A master that was cut off from the others reports this for ever, while its replica has its slots."""
    monkeypatch.setattr("enrichkit_redis.cluster.REFRESH", 0.0)

    async def main() -> list[Any]:
        async with proxy(filled.ports[0]) as p, connected(f"redis://127.0.0.1:{p.port}", cluster=True) as connector:
            slots = b"*1\r\n" + range_of(0, 16383, p.port)

            def down(data: bytes) -> bytes:
                if not data.startswith(b"$24\r\n"):
                    return data
                told = data[31:-31]
                if told.startswith(b"*"):
                    return data[:31] + (slots or told) + data[-31:]
                return data[:31] + b"-CLUSTERDOWN Hash slot not served\r\n" + data[-31:]

            p.on_reply = down
            first = await connector.fetch_many(KEYS[:1], CALL)
            slots = b""  # the other nodes know their new node
            return [first, await connector.fetch_many(KEYS[:1], CALL)]

    first, second = asyncio.run(main())
    assert traits(first[KEYS[0]]) == (
        UnavailableError,
        "Redis belongs to a cluster that is down (CLUSTERDOWN).",
        "A node of Redis",
        True,
    )
    assert values(KEYS[:1]) == second


def test_a_cluster_without_slots_may_be_tried_again(filled, proxy, connected):
    error = error_behind(proxy, connected, filled.ports[0], b"*0\r\n")
    text = "The Redis cluster has no slots assigned to its nodes."
    assert (UnavailableError, text, None, False) == traits(Failure(error))


def test_a_node_that_does_not_send_the_map_may_be_tried_again(filled, proxy, connected, monkeypatch):
    monkeypatch.setattr("enrichkit_redis.cluster.LOAD_TIMEOUT", 0.1)

    async def main() -> None:
        async with proxy(filled.ports[0]) as p, connected(f"redis://127.0.0.1:{p.port}", cluster=True) as connector:
            p.on_reply = lambda data: b"" if data.startswith(b"$24\r\n") else data
            with pytest.raises(TransientError) as caught:
                await connector.fetch_many(KEYS, CALL)
            text = "The Redis cluster did not tell its slots within 0.1 s."
            assert (UnavailableError, text, None, False) == traits(Failure(caught.value))
            # The node answers again, and need not be quick.
            monkeypatch.setattr("enrichkit_redis.cluster.LOAD_TIMEOUT", 60.0)
            p.on_reply = lambda data: data
            assert values(KEYS) == await connector.fetch_many(KEYS, CALL)

    asyncio.run(main())


def test_while_no_node_is_there_the_whole_cluster_is_away(connected):
    async def main() -> ConnectorError:
        async with connected("redis://127.0.0.1:1", cluster=True) as connector:
            with pytest.raises(TransientError) as caught:
                await connector.fetch_many(KEYS, CALL)
            return caught.value

    error = asyncio.run(main())
    text = "Redis at 127.0.0.1:1 cannot be reached (ConnectionRefusedError)."
    assert (UnavailableError, text, None, False) == traits(Failure(error))
    assert error.retry_after is None  # type: ignore[attr-defined]


def test_a_node_that_breaks_the_connection_is_named(filled, proxy, connected):
    async def main() -> None:
        async with proxy(filled.ports[0]) as p, connected(f"redis://127.0.0.1:{p.port}", cluster=True) as connector:
            slots_told(p, b"*1\r\n" + range_of(0, 16383, p.port))
            usual = p.on_reply

            def cut(data: bytes) -> bytes:
                if data.startswith(b"$24\r\n") and not data[31:].startswith(b"*"):  # the reply to a GET
                    asyncio.get_running_loop().call_soon(lambda: [w.close() for w in p._clients.values()])
                    return b""
                return usual(data)

            p.on_reply = cut
            name = f"Redis at 127.0.0.1:{p.port}"
            found = await connector.fetch_many(["a"], CALL)
            assert (UnavailableError, f"{name} closed the connection.", name, True) == traits(found["a"])

    asyncio.run(main())


def test_a_node_of_a_cluster_without_cluster_true_gets_a_remedy(filled, lookup):
    with pytest.raises(FatalError) as caught:
        lookup(filled.url, KEYS)

    assert str(caught.value) == "Redis is a node of a cluster; say RedisConfig(cluster=True) (CROSSSLOT)."


def test_a_single_server_with_cluster_true_gets_a_remedy(server, lookup):
    with pytest.raises(FatalError) as caught:
        lookup(server.url.removesuffix("/0"), ["a"], cluster=True)

    assert str(caught.value) == "The Redis cluster is no node of a cluster; say RedisConfig(cluster=False) (ERR)."
