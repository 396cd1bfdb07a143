"""The fault proxy between plain sockets or redis-py and a real Redis: each fault is what it says, and is counted."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import redis

from enrichkit.testing.bench import wait_until
from enrichkit.testing.proxy import Chunk, FaultProxy, fault_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enrichkit import local

pytestmark = pytest.mark.service

LONG = 0.3  # seconds in which something would have happened


@pytest.fixture
def proxy(redis_server: local.RedisServer) -> Iterator[FaultProxy]:
    redis_server.flush()
    with fault_proxy(redis_server.host, redis_server.port) as made:
        yield made


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[redis.Redis]:
    """redis-py with one connection, which does not try again."""
    with redis.Redis(host=proxy.host, port=proxy.port, single_connection_client=True, socket_timeout=LONG) as made:
        yield made


def connect(proxy: FaultProxy) -> socket.socket:
    """Return a plain connection to the proxy."""
    return socket.create_connection((proxy.host, proxy.port), timeout=5.0)


def ask(sock: socket.socket, command: bytes = b"PING\r\n", size: int = 7) -> bytes:
    """Send *command* and return up to *size* bytes of the reply; fewer when the stream ends."""
    sock.sendall(command)
    reply = b""
    while len(reply) < size and (data := sock.recv(size - len(reply))):
        reply += data
    return reply


def test_everything_passes_unchanged_until_a_fault_is_asked_for(client: redis.Redis) -> None:
    value = bytes(range(256)) * 20_000  # larger than what is held for one direction
    client.set("key", value)
    assert client.get("key") == value


def test_connections_and_bytes_are_counted(proxy: FaultProxy) -> None:
    assert (proxy.opened, proxy.open) == (0, 0)
    with connect(proxy) as first, connect(proxy) as second:
        assert ask(first) == b"+PONG\r\n"
        assert ask(second) == b"+PONG\r\n"
        assert (proxy.opened, proxy.open) == (2, 2)
        assert (proxy.bytes_to_server, proxy.bytes_to_client) == (12, 14)
    with connect(proxy) as third:
        ask(third)  # once it is served, the ends of the others have been seen
        assert proxy.opened == 3


def test_a_closed_connection_is_no_longer_open(proxy: FaultProxy, redis_server: local.RedisServer) -> None:
    with connect(proxy) as sock:
        ask(sock)
    with redis.Redis(port=redis_server.port) as direct:
        assert wait_until(lambda: proxy.open == 0 and len(direct.client_list()) == 1, 5.0)  # at the server, too


def test_the_url_of_a_server_leads_to_the_proxy(proxy: FaultProxy) -> None:
    port = proxy.port
    assert proxy.url("redis://:secret@127.0.0.1:6379/3") == f"redis://:secret@127.0.0.1:{port}/3"
    assert proxy.url("postgresql://postgres@host:5432/db?a=b") == f"postgresql://postgres@127.0.0.1:{port}/db?a=b"
    assert proxy.url("http://host:80/{}") == f"http://127.0.0.1:{port}/{{}}"


def test_a_share_of_the_replies_can_be_delayed(proxy: FaultProxy, client: redis.Redis) -> None:
    client.ping()  # and the handshake
    chunks: list[Chunk] = []

    def every_third(chunk: Chunk) -> float:
        chunks.append(chunk)
        return 0.1 if chunk.number % 3 == 0 else 0.0

    proxy.delay(every_third)
    times = []
    for _ in range(9):
        began = time.monotonic()
        client.ping()
        times.append(time.monotonic() - began)
    assert [chunk.data for chunk in chunks if chunk.direction == "to client"] == [b"+PONG\r\n"] * 9
    numbers = [chunk.number for chunk in chunks if chunk.direction == "to client"]
    assert numbers == list(range(numbers[0], numbers[0] + 9))
    delayed = [seconds for number, seconds in zip(numbers, times, strict=True) if number % 3 == 0]
    others = [seconds for number, seconds in zip(numbers, times, strict=True) if number % 3]
    assert min(delayed) >= 0.1
    assert min(others) < 0.1, "a busy machine may make some of them slow, but not all"
    assert {chunk.connection for chunk in chunks} == {0}


def test_requests_can_be_delayed_instead_of_replies(proxy: FaultProxy, client: redis.Redis) -> None:
    client.ping()
    proxy.delay(0.05, direction="to server")
    began = time.monotonic()
    client.ping()
    assert time.monotonic() - began >= 0.05


def test_delayed_replies_keep_their_order(proxy: FaultProxy) -> None:
    arrived = threading.Event()

    def slow_first(chunk: Chunk) -> float:
        arrived.set()
        return 0.1 if chunk.number == 0 else 0.0

    proxy.delay(slow_first)
    with connect(proxy) as sock:
        sock.sendall(b"ECHO a\r\n")
        arrived.wait(5.0)
        assert ask(sock, b"ECHO b\r\n", 14) == b"$1\r\na\r\n$1\r\nb\r\n"


def test_a_frozen_network_lets_nothing_pass_and_later_everything(proxy: FaultProxy) -> None:
    with connect(proxy) as sock:
        ask(sock)
        proxy.freeze()
        sock.settimeout(LONG)
        with pytest.raises(TimeoutError):
            ask(sock)
        with connect(proxy) as late:  # accepted, and as silent
            late.settimeout(0.05)
            with pytest.raises(TimeoutError):
                ask(late)
            proxy.thaw()
            late.settimeout(5.0)
            assert late.recv(7) == b"+PONG\r\n"
        assert sock.recv(7) == b"+PONG\r\n"


def test_what_a_black_hole_has_touched_stays_dead(proxy: FaultProxy) -> None:
    with connect(proxy) as touched, connect(proxy) as spared:
        ask(touched)
        ask(spared)
        proxy.blackhole()
        touched.settimeout(0.05)
        with pytest.raises(TimeoutError):
            ask(touched)
        proxy.heal()
        with pytest.raises(TimeoutError):
            ask(touched)
        assert ask(spared) == b"+PONG\r\n"


def test_a_connection_can_be_reset_in_the_middle_of_a_reply(proxy: FaultProxy) -> None:
    with connect(proxy) as sock:
        ask(sock)
        proxy.reset_after(3)
        assert ask(sock, size=3) == b"+PO"
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
    with connect(proxy) as another, pytest.raises(ConnectionResetError):
        ask(another)


def test_a_connection_can_end_in_the_middle_of_a_reply(proxy: FaultProxy) -> None:
    with connect(proxy) as sock:
        ask(sock)
        proxy.close_after(3, times=1)
        assert ask(sock) == b"+PO"
    with connect(proxy) as another:
        assert ask(another) == b"+PONG\r\n"


def test_a_connection_can_end_in_the_middle_of_a_request(proxy: FaultProxy, redis_server: local.RedisServer) -> None:
    with connect(proxy) as sock:
        ask(sock)
        proxy.close_after(20, direction="to server")
        assert ask(sock, b"SET key " + b"x" * 100 + b"\r\n") == b""
    with redis.Redis(port=redis_server.port) as direct:
        assert direct.get("key") is None


def test_bytes_are_counted_over_several_replies(proxy: FaultProxy) -> None:
    with connect(proxy) as sock:
        proxy.close_after(17)
        assert [ask(sock), ask(sock), ask(sock)] == [b"+PONG\r\n", b"+PONG\r\n", b"+PO"]


def test_all_open_connections_can_be_cut_at_once(proxy: FaultProxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        ask(first)
        ask(second)
        proxy.cut()
        assert proxy.open == 0
        for sock in (first, second):
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
    with connect(proxy) as another:
        assert ask(another) == b"+PONG\r\n"


def test_new_connections_can_be_refused_while_open_ones_go_on(proxy: FaultProxy) -> None:
    with connect(proxy) as sock:
        ask(sock)
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert ask(sock) == b"+PONG\r\n"
        proxy.accept()
        with connect(proxy) as another:
            assert ask(another) == b"+PONG\r\n"


def test_a_server_that_is_away_resets_the_client() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        # The reset may come as early as the connect.
        with fault_proxy(*nobody.getsockname()) as proxy, pytest.raises(ConnectionResetError), connect(proxy) as sock:
            ask(sock)


def test_heal_ends_every_fault(proxy: FaultProxy) -> None:
    proxy.delay(10.0)
    proxy.freeze()
    proxy.blackhole()
    proxy.reset_after(0)
    proxy.refuse()
    proxy.heal()
    with connect(proxy) as sock:
        assert ask(sock) == b"+PONG\r\n"


def test_many_clients_at_a_time_get_their_own_replies(proxy: FaultProxy) -> None:
    proxy.delay(lambda chunk: 0.001 * (chunk.number % 5))

    def echo(number: int) -> list[bytes]:
        with redis.Redis(host=proxy.host, port=proxy.port) as client:
            return [client.echo(f"{number} {turn}") for turn in range(20)]

    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(echo, range(8)))
    assert replies == [[f"{number} {turn}".encode() for turn in range(20)] for number in range(8)]
    assert proxy.opened == 8


def test_a_proxy_leaves_no_thread_and_no_listener(redis_server: local.RedisServer) -> None:
    with fault_proxy(redis_server.host, redis_server.port) as proxy, connect(proxy) as sock:
        ask(sock)
        proxy.freeze()
    assert "enrichkit-proxy" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)


def test_the_repr_tells_where_it_leads(proxy: FaultProxy, redis_server: local.RedisServer) -> None:
    assert repr(proxy) == f"<FaultProxy 127.0.0.1:{proxy.port} to 127.0.0.1:{redis_server.port}, 0 open>"
