"""A server or network that misbehaves causes no wrong value, hang, storm or leak. On both kinds of event loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from enrichkit_redis import RedisConfig, pool
from enrichkit_redis.commands import pack

from enrichkit import local
from enrichkit.errors import ConnectorError, PermanentError, TransientError, UnavailableError
from enrichkit.plugin import Call
from tests.pace import at_pace

if TYPE_CHECKING:
    from collections.abc import Callable

    from enrichkit_redis import RedisConnector

pytestmark = pytest.mark.waits

CALL = Call(timeout=60)
STRAY = b"$5\r\nWRONG\r\n"
KEYS = [str(n) for n in range(200)]


def value_of(key: str) -> bytes:
    return b"v" + key.encode()


@pytest.fixture
def filled(client: Any) -> Any:
    """The client of a server that holds `value_of(key)` for each of KEYS, and a hash under `h<key>`."""
    client.mset({key: value_of(key) for key in KEYS})
    for key in KEYS[:50]:
        client.hset(f"h{key}", "f", value_of(key))
    return client


async def error_of(connector: RedisConnector, keys: list[str], call: Call = CALL) -> ConnectorError:
    with pytest.raises(ConnectorError) as caught:
        await connector.fetch_many(keys, call)
    return caught.value


def traits(error: ConnectorError) -> tuple[Any, ...]:
    """Return what the engine goes by: class, text, node, whether the keys may have been sent, and the time to wait."""
    assert type(error) is UnavailableError, repr(error)
    return UnavailableError, str(error), error.node, error.sent, error.retry_after


async def turns(count: int = 20) -> None:
    """Let the event loop handle the bytes that have arrived."""
    for _ in range(count):
        await asyncio.sleep(0.001)


# Replies without a request


@pytest.mark.parametrize("stray", [STRAY, b"+OK\r\n", b"*1\r\n$5\r\nWRONG\r\n", b"$5\r\nWRO", b"$-1\r\n"])
def test_a_stray_reply_on_an_idle_connection_gives_no_wrong_value(server, filled, proxy, connected, run, stray):
    async def main() -> None:
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}", capacity=1) as connector:
            assert await connector.fetch_many(["1"], CALL) == {"1": b"v1"}
            p.inject(stray)
            await turns()
            assert await connector.fetch_many(["2"], CALL) == {"2": b"v2"}
            assert await connector.fetch_many(["3"], CALL) == {"3": b"v3"}
            assert p.accepted == 2

    run(main())


@pytest.mark.parametrize("kind", ["string", "hash"])
@pytest.mark.parametrize(
    "mangle",
    [
        lambda reply: STRAY + reply,
        lambda reply: reply + STRAY,
        lambda reply: reply[: (at := reply.index(b"\r\n", 5) + 2)] + STRAY + reply[at:],
        lambda reply: (reply[: (at := reply.index(b"\r\n", 5) + 2)] + STRAY + reply[at:])[:-31],
        lambda reply: reply + reply,
        lambda reply: b"$24\r\n" + b"0" * 24 + b"\r\n" + reply[31:],
    ],
    ids=["before", "after", "inside", "inside, the end is late", "twice", "another nonce"],
)
def test_a_stray_reply_beside_the_right_one_fails_the_call(server, filled, proxy, connected, run, mangle, kind):
    keys = ["1", "2", "3"]
    expected = {key: value_of(key) if kind == "string" else {"f": value_of(key)} for key in keys}

    async def main() -> None:
        fields = {"kind": kind, "key": "{}" if kind == "string" else "h{}"}
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}", **fields) as connector:
            assert expected == await connector.fetch_many(keys, CALL)
            p.on_reply = mangle
            error = await error_of(connector, keys)
            text = "sent a reply that belongs to no request; the connection was dropped."
            assert (TransientError, f"Redis at 127.0.0.1:{p.port} {text}") == (type(error), str(error))
            p.on_reply = lambda reply: reply
            assert expected == await connector.fetch_many(keys, CALL)
            assert p.accepted == 2

    run(main())


def test_strays_at_random_places_never_give_a_wrong_value(server, filled, proxy, connected, run):
    dice = random.Random(7)

    def mangle(reply: bytes) -> bytes:
        if dice.random() < 0.6:
            return reply
        ends = [at for at in range(len(reply)) if reply[at - 2 : at] == b"\r\n"] + [0, len(reply)]
        at = dice.choice(ends)
        return reply[:at] + dice.choice([STRAY, b"$2\r\nv1\r\n", b"$-1\r\n", b":1\r\n", b"*0\r\n"]) + reply[at:]

    async def main() -> tuple[int, int]:
        good = bad = 0
        async with (
            proxy(server.port) as p,
            connected(f"redis://127.0.0.1:{p.port}", capacity=2, kind="hash", key="h{}", fields=("f",)) as connector,
        ):
            await connector.fetch_many(KEYS[:1], CALL)
            p.on_reply = mangle
            for _ in range(400):
                keys = dice.sample(KEYS[:50], 5)
                try:
                    found = await connector.fetch_many(keys, Call(timeout=0.2))
                except ConnectorError:
                    bad += 1
                else:
                    good += 1
                    assert {key: {"f": value_of(key)} for key in keys} == found
        return good, bad

    good, bad = run(main())
    assert good > 50
    assert bad > 50


# Broken replies


@pytest.mark.parametrize("junk", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$-5\r\n", b"*3\r\n$x\r\n", b"\x16\x03\x01"])
def test_a_reply_that_is_not_resp_is_an_error(server, filled, proxy, connected, run, junk):
    async def main() -> None:
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}") as connector:
            await connector.fetch_many(["1"], CALL)
            p.on_reply = lambda reply: junk
            error = await error_of(connector, ["1"])
            text = f"Redis at 127.0.0.1:{p.port} sent what is not RESP (ProtocolError)."
            assert (TransientError, text) == (type(error), str(error))

    run(main())


def test_the_reply_to_one_key_is_not_taken_for_the_reason_of_a_closed_connection(server, filled, proxy, connected, run):
    """The server dies after its reply to the third key of many, which holds another type."""

    async def main() -> None:
        async with (
            proxy(server.port) as p,
            connected(f"redis://127.0.0.1:{p.port}", kind="hash", key="h{}", fields=("f",)) as connector,
        ):
            await connector.fetch_many(["1"], CALL)

            def cut(reply: bytes) -> bytes:
                asyncio.get_running_loop().call_soon(lambda: [w.close() for w in p._clients.values()])
                return reply[:31] + b"*1\r\n$-1\r\n*1\r\n$-1\r\n-WRONGTYPE of a key\r\n"

            p.on_reply = cut
            error = await error_of(connector, KEYS)
            text = f"Redis at 127.0.0.1:{p.port} closed the connection."
            assert (UnavailableError, text, None, True, None) == traits(error)

    run(main())


def test_a_reply_that_ends_in_the_middle_is_no_value(server, filled, proxy, connected, run):
    async def main() -> None:
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}") as connector:
            await connector.fetch_many(["1"], CALL)

            def cut(reply: bytes) -> bytes:
                asyncio.get_running_loop().call_soon(lambda: [w.close() for w in p._clients.values()])
                return reply[: len(reply) // 2]

            p.on_reply = cut
            error = await error_of(connector, KEYS)
            text = f"Redis at 127.0.0.1:{p.port} closed the connection."
            assert (UnavailableError, text, None, True, None) == traits(error)
            p.on_reply = lambda reply: reply
            assert await connector.fetch_many(["1"], CALL) == {"1": b"v1"}

    run(main())


def test_a_reply_over_the_limit_is_refused_and_the_next_is_read(server, client, connected, run):
    client.mset({"big": "x" * 300_000, "small": "1"})

    async def main() -> None:
        async with connected(server.url, max_bytes=100_000) as connector:
            error = await error_of(connector, ["small", "big"])
            assert PermanentError is type(error)
            assert str(error) == (
                f"Redis at 127.0.0.1:{server.port} sent a reply of more than RedisConfig.max_bytes, 100000 bytes. "
                "Lower batch_size, or raise max_bytes."
            )
            assert await connector.fetch_many(["small"], CALL) == {"small": b"1"}

    run(main())


# Cancellation


def test_thousands_of_cancelled_calls_give_no_wrong_value(server, filled, connected, run):
    dice = random.Random(3)

    async def main() -> tuple[int, int]:
        done = cancelled = 0
        async with connected(server.url, capacity=4) as connector:

            async def slot() -> None:
                nonlocal done, cancelled
                for _ in range(750):
                    keys = dice.sample(KEYS, 20)
                    task = asyncio.create_task(connector.fetch_many(keys, CALL))
                    if dice.random() < 0.6:
                        asyncio.get_running_loop().call_later(dice.expovariate(6000), task.cancel)
                    try:
                        found = await task
                    except asyncio.CancelledError:
                        cancelled += 1
                    else:
                        done += 1
                        assert {key: value_of(key) for key in keys} == found

            async with asyncio.TaskGroup() as group:
                for _ in range(4):
                    group.create_task(slot())
            assert {key: value_of(key) for key in KEYS} == await connector.fetch_many(KEYS, CALL)
            assert len(connector._store._source._idle) <= 4
            assert not connector._store._source._busy
        return done, cancelled

    done, cancelled = run(main())
    assert done > 300
    assert cancelled > 300


def test_a_cancelled_call_closes_its_connection(server, filled, proxy, connected, run):
    async def main() -> None:
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}") as connector:
            await connector.fetch_many(["1"], CALL)
            seen = asyncio.Event()
            p.on_request = lambda data: seen.set()
            task = asyncio.create_task(connector.fetch_many(["1"], CALL))
            await seen.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await connector.fetch_many(["2"], CALL) == {"2": b"v2"}
            assert p.accepted == 2

    run(main())


def test_a_call_cancelled_while_it_connects_leaves_no_connection(server, filled, connected, run):
    async def main() -> int:
        async with connected(server.url) as connector:
            for n in range(100):
                task = asyncio.create_task(connector.fetch_many(["1"], CALL))
                for _ in range(n % 12):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                connector._store._source.forget()
        await turns()
        return sum(entry["name"] == "enrichkit" for entry in filled.client_list())

    assert run(main()) == 0


def test_close_ends_the_calls_in_flight(server, filled, proxy, connected, run):
    async def main() -> None:
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}") as connector:
            await connector.fetch_many(["1"], CALL)
            p.on_reply = lambda reply: b""
            seen = asyncio.Event()
            p.on_request = lambda data: seen.set()
            task = asyncio.create_task(error_of(connector, ["1"]))
            await seen.wait()
            await connector.close()
            assert f"The connection to Redis at 127.0.0.1:{p.port} was closed." == str(await task)

    run(main())


# A server that hangs, is away, comes back


def test_a_frozen_server_costs_no_more_than_the_timeout(server, filled, connected, run, frozen):
    async def main() -> None:
        async with connected(server.url) as connector:
            await connector.fetch_many(["1"], CALL)
            with frozen(server.pid):
                began = time.monotonic()
                error = await error_of(connector, ["alice@example.test"], Call(timeout=2.0))
                assert (TransientError, "Redis did not answer within 2 s.") == (type(error), str(error))
                assert time.monotonic() - began < 2.0 + at_pace(1.9)  # on a usual machine less than two limits in a row
            assert await connector.fetch_many(["1"], CALL) == {"1": b"v1"}

    run(main())


@pytest.mark.parametrize(("callers", "capacity", "most"), [(8, 8, 2), (100, 8, 2), (100, 100, 25)])
def test_a_frozen_server_gets_as_many_connections_as_may_be_made_at_a_time(
    server, filled, proxy, connected, run, frozen, monkeypatch, callers, capacity, most
):
    monkeypatch.setattr(pool, "CONNECT_TIMEOUT", 0.5)

    async def main() -> None:
        async with proxy(server.port) as p, connected(f"redis://127.0.0.1:{p.port}", capacity=capacity) as connector:
            expected = (
                UnavailableError,
                f"Redis at 127.0.0.1:{p.port} did not accept a connection within 0.5 s.",
                None,
                False,
                None,
            )
            with frozen(server.pid):
                errors = await asyncio.gather(*(error_of(connector, ["1"]) for _ in range(callers)))
                assert {expected} == set(map(traits, errors))
                assert most == p.accepted  # max(2, capacity / 4), and none for those that waited
                # The server is known to be away: of all callers one tries.
                errors = await asyncio.gather(*(error_of(connector, ["1"]) for _ in range(callers)))
                assert {expected} == set(map(traits, errors))
                assert most + 1 == p.accepted

    run(main())


def test_a_failed_connect_is_that_of_all_who_wait_and_the_next_caller_tries_at_once(
    server, filled, proxy, connected, run
):
    async def main() -> None:
        async with proxy(1) as p, connected(f"redis://127.0.0.1:{p.port}", capacity=40) as connector:
            text = f"Redis at 127.0.0.1:{p.port} closed the connection."
            before = 10  # max(2, capacity / 4)
            for _ in range(5):
                errors = await asyncio.gather(*(error_of(connector, ["1"]) for _ in range(40)))
                assert {(UnavailableError, text, None, False, None)} == set(map(traits, errors))
                assert before == p.accepted
                before += 1
            # The server is back: all callers succeed at once.
            p.target = server.port
            found = await asyncio.gather(*(connector.fetch_many([key], CALL) for key in KEYS[:40]))
            assert [{key: value_of(key)} for key in KEYS[:40]] == found

    run(main())


@pytest.mark.parametrize("kind", ["server", "node", "cluster"])
def test_a_server_that_is_full_is_full_for_all_who_wait_and_after_them(server, client, connected, run, kind):
    """Else the engine would take a refusal for lack of room for an outage."""
    url = f"redis://127.0.0.1:{server.port}"
    text = f"Redis at 127.0.0.1:{server.port} has its maximum number of clients (ERR)."

    async def main() -> None:
        node = pool.Pool(pool.Dialler(RedisConfig(url=url)), ("127.0.0.1", server.port), 8, node=True)
        async with connected(url, cluster=kind == "cluster") as connector:
            for _ in range(2):
                errors = await asyncio.gather(
                    *(
                        node.ask(pack(("GET", "1")), 1) if kind == "node" else connector.fetch_many(["1"], CALL)
                        for _ in range(8)
                    ),
                    return_exceptions=True,
                )
                assert {(UnavailableError, text, False, True)} == {
                    (type(error), str(error), error.sent, error.busy) for error in errors
                }
        node.close()

    client.ping()
    client.config_set("maxclients", 1)
    try:
        run(main())
    finally:
        client.config_set("maxclients", 10_000)


def test_a_caller_that_comes_while_another_tries_gets_the_failure_of_that_attempt(proxy, connected, run, monkeypatch):
    monkeypatch.setattr(pool, "CONNECT_TIMEOUT", 0.5)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        async with listener, proxy(port) as p, connected(f"redis://127.0.0.1:{p.port}") as connector:
            await error_of(connector, ["1"])
            assert p.accepted == 1
            prober = asyncio.create_task(error_of(connector, ["1"]))
            while p.accepted < 2:
                await asyncio.sleep(0.001)
            late = await asyncio.gather(*(error_of(connector, ["1"]) for _ in range(8)))
            text = f"Redis at 127.0.0.1:{p.port} did not accept a connection within 0.5 s."
            assert {(UnavailableError, text, None, False, None)} == {traits(error) for error in (await prober, *late)}
            assert p.accepted == 2

    run(main())


def test_a_node_of_a_cluster_that_is_away_gets_one_attempt_per_pause(server, filled, proxy, run, monkeypatch):
    assert pool.PAUSE == 1.0
    monkeypatch.setattr(pool, "PAUSE", 60.0)  # so that all rounds are within the first pause

    async def ask(node: pool.Pool) -> tuple[Any, ...]:
        with pytest.raises(ConnectorError) as caught:
            await node.ask(pack(("GET", "1")), 1)
        return traits(caught.value)

    async def main() -> None:
        async with proxy(1) as p:
            dialler = pool.Dialler(RedisConfig(url=f"redis://127.0.0.1:{p.port}", cluster=True))
            node = pool.Pool(dialler, ("127.0.0.1", p.port), 40, node=True)
            name = f"Redis at 127.0.0.1:{p.port}"
            expected = UnavailableError, f"{name} closed the connection.", name, False
            for _ in range(5):
                errors = await asyncio.gather(*(ask(node) for _ in range(40)))
                assert {expected} == {error[:4] for error in errors}
                assert all(0 < error[4] <= 75 for error in errors)
                assert p.accepted == 10  # max(2, capacity / 4)
            node._paused_until = 0.0
            errors = await asyncio.gather(*(ask(node) for _ in range(40)))
            assert {expected} == {error[:4] for error in errors}
            assert all(0 < error[4] <= 75 for error in errors)
            assert p.accepted == 11
            # The node is back: all callers succeed from the next attempt on.
            p.target = server.port
            node._paused_until = 0.0
            assert [[value_of("1")]] * 40 == await asyncio.gather(*(node.ask(pack(("GET", "1")), 1) for _ in range(40)))
            node.close()

    run(main())


def test_a_port_without_a_server(connected, run):
    async def main() -> None:
        async with connected("redis://127.0.0.1:1") as connector:
            error = await error_of(connector, ["alice@example.test"])
            text = "Redis at 127.0.0.1:1 cannot be reached (ConnectionRefusedError)."
            assert (UnavailableError, text, None, False, None) == traits(error)

    run(main())


def test_a_name_that_does_not_exist_is_no_outage(connected, run, monkeypatch):
    async def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def main() -> None:
        async with connected("redis://cache.example.test:6379") as connector:
            monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", unknown, raising=False)
            error = await error_of(connector, ["1"])
            text = "Redis at cache.example.test:6379 cannot be reached: its name has no address."
            assert (type(error), str(error)) == (TransientError, text)
            assert error.retry_after is None  # type: ignore[attr-defined]

    run(main())


def test_after_a_restart_old_connections_are_not_used(server, filled, proxy, connected, run):
    async def main() -> None:
        async with connected_through(proxy, connected, server.port) as (p, connector):
            calls = [connector.fetch_many([key], CALL) for key in KEYS[:8]]
            await asyncio.gather(*calls)
            await p.down()
            await turns()
            error = await error_of(connector, ["1"])
            text = f"Redis at 127.0.0.1:{p.port} cannot be reached (ConnectionRefusedError)."
            assert (UnavailableError, text, None, False, None) == traits(error)
            with local.redis(server.kind) as successor:
                p.target = successor.port
                await p.up()
                assert await connector.fetch_many(["1"], CALL) == {}

    run(main())


@contextlib.asynccontextmanager
async def connected_through(proxy: Any, connected: Callable[..., Any], port: int) -> Any:
    async with proxy(port) as p, connected(f"redis://127.0.0.1:{p.port}") as connector:
        yield p, connector


def test_a_connection_that_died_while_idle_is_found_before_it_is_used(
    server, filled, proxy, connected, run, monkeypatch
):
    monkeypatch.setattr(pool, "CHECK_TIMEOUT", 0.1)

    async def main() -> None:
        async with connected_through(proxy, connected, server.port) as (p, connector):
            await asyncio.gather(*(connector.fetch_many([key], CALL) for key in KEYS[:8]))
            opened = p.accepted
            # From now on no reply arrives on the old connections, as behind a firewall that has dropped them.
            old = set(p._clients)
            p.on_reply = lambda reply: b"" if asyncio.current_task() is not None and old == set(p._clients) else reply
            monkeypatch.setattr(pool, "CHECK_AFTER", -1.0)
            assert await connector.fetch_many(["1"], CALL) == {"1": b"v1"}
            assert opened + 1 == p.accepted
            monkeypatch.setattr(pool, "CHECK_TIMEOUT", 60.0)  # the new connection works, and need not be quick
            assert await connector.fetch_many(["2"], CALL) == {"2": b"v2"}
            assert opened + 1 == p.accepted

    run(main())


def test_a_connection_lost_at_the_moment_of_its_use_is_an_error(server, filled, connected, run):
    async def main() -> None:
        async with connected(server.url) as connector:
            await connector.fetch_many(["1"], CALL)
            (connection,) = connector._store._source._idle
            connection.abort()
            with pytest.raises(UnavailableError) as caught:
                await connection.ask(b"", 0)
            assert str(caught.value) == f"Redis at 127.0.0.1:{server.port} closed the connection."

    run(main())


def test_an_old_connection_is_replaced(server, filled, proxy, connected, run, monkeypatch):
    monkeypatch.setattr(pool, "LIFETIME", 0.0)

    async def main() -> None:
        async with connected_through(proxy, connected, server.port) as (p, connector):
            for key in KEYS[:5]:
                assert {key: value_of(key)} == await connector.fetch_many([key], CALL)
                await turns(2)
            assert p.accepted == 5

    run(main())


def test_a_server_that_loads_its_data_gets_one_connection_for_all_who_wait(server, filled, proxy, connected, run):
    async def main() -> None:
        async with connected_through(proxy, connected, server.port) as (p, connector):
            p.on_reply = lambda reply: b"+OK\r\n-LOADING Redis is loading the dataset in memory\r\n"
            text = f"Redis at 127.0.0.1:{p.port} loads its data (LOADING)."
            for accepted in range(2, 7):  # two in the first round, when the server is not yet known to load
                errors = await asyncio.gather(*(error_of(connector, ["1"]) for _ in range(8)))
                assert {(UnavailableError, text, None, False, None)} == set(map(traits, errors))
                assert accepted == p.accepted
            p.on_reply = lambda reply: reply
            assert await connector.fetch_many(["1"], CALL) == {"1": b"v1"}

    run(main())


@pytest.mark.parametrize("reply", [b"+OK\r\n$5\r\nWRONG\r\n", b"$2\r\nno\r\n$9\r\nenrichkit\r\n"])
def test_a_login_with_an_unknown_reply_is_no_login(server, filled, proxy, connected, run, reply):
    async def main() -> None:
        async with connected_through(proxy, connected, server.port) as (p, connector):
            p.on_reply = lambda _: reply
            error = await error_of(connector, ["1"])
            text = f"Redis at 127.0.0.1:{p.port} did not answer the login as Redis does; the connection was dropped."
            assert (type(error), str(error)) == (TransientError, text)

    run(main())


def test_while_the_server_loads_calls_may_be_tried_again(server, filled, proxy, connected, run):
    async def main() -> None:
        async with connected_through(proxy, connected, server.port) as (p, connector):
            await connector.fetch_many(["1"], CALL)
            p.on_reply = lambda reply: b"-LOADING Redis is loading the dataset in memory\r\n" * 3
            error = await error_of(connector, ["1"])
            text = f"Redis at 127.0.0.1:{p.port} loads its data (LOADING)."
            assert (UnavailableError, text, None, True, None) == traits(error)

    run(main())
