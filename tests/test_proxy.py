"""The fault proxy between a real Redis and clients, plain sockets or redis-py: the effect of each fault."""

from __future__ import annotations

import gc
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import redis

from enrichkit import local
from enrichkit.testing.bench import wait_until
from enrichkit.testing.proxy import Chunk, FaultProxy, fault_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.service

LONG = 0.3  # seconds after which a reply that has not come counts as held back


@pytest.fixture
def proxy(redis_server: local.RedisServer) -> Iterator[FaultProxy]:
    redis_server.flush()
    with fault_proxy(redis_server.host, redis_server.port) as made:
        yield made


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[redis.Redis]:
    """A redis-py client with one connection and without retries."""
    with redis.Redis(host=proxy.host, port=proxy.port, single_connection_client=True, socket_timeout=LONG) as made:
        yield made


def connect(proxy: FaultProxy) -> socket.socket:
    """Return a socket that is connected to the proxy."""
    return socket.create_connection((proxy.host, proxy.port), timeout=60.0)


def ask(sock: socket.socket, command: bytes = b"PING\r\n", size: int = 7) -> bytes:
    """Send *command* and return the first *size* bytes of the reply, or fewer when the stream ends."""
    sock.sendall(command)
    reply = b""
    while len(reply) < size and (data := sock.recv(size - len(reply))):
        reply += data
    return reply


def test_everything_passes_unchanged_until_a_fault_is_set(client: redis.Redis) -> None:
    value = bytes(range(256)) * 20_000  # larger than the buffer of one direction
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
        ask(third)  # the proxy handles the ends of the other connections before this request
        assert proxy.opened == 3


def test_a_closed_connection_is_no_longer_open(proxy: FaultProxy, redis_server: local.RedisServer) -> None:
    with connect(proxy) as sock:
        ask(sock)
    with redis.Redis(port=redis_server.port) as direct:
        # The proxy has closed its connection to the server, too: the only client left is `direct`.
        assert wait_until(lambda: proxy.open == 0 and len(direct.client_list()) == 1)


def test_the_url_of_a_server_leads_to_the_proxy(proxy: FaultProxy) -> None:
    port = proxy.port
    assert proxy.url("redis://:secret@127.0.0.1:6379/3") == f"redis://:secret@127.0.0.1:{port}/3"
    assert proxy.url("postgresql://postgres@host:5432/db?a=b") == f"postgresql://postgres@127.0.0.1:{port}/db?a=b"
    assert proxy.url("http://host:80/{}") == f"http://127.0.0.1:{port}/{{}}"


def test_a_share_of_the_replies_can_be_delayed(proxy: FaultProxy, client: redis.Redis) -> None:
    client.ping()  # connects and makes the handshake before the delays begin
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
    assert min(others) < 0.1, "a busy machine may make some of these replies slow, but not all"
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


def test_a_frozen_network_passes_nothing_until_it_is_thawed(proxy: FaultProxy) -> None:
    with connect(proxy) as sock:
        ask(sock)
        proxy.freeze()
        sock.settimeout(LONG)
        with pytest.raises(TimeoutError):
            ask(sock)
        with connect(proxy) as late:  # the proxy accepts it, but passes nothing either
            late.settimeout(0.05)
            with pytest.raises(TimeoutError):
                ask(late)
            proxy.thaw()
            late.settimeout(5.0)
            assert late.recv(7) == b"+PONG\r\n"
        assert sock.recv(7) == b"+PONG\r\n"


def test_a_connection_that_has_lost_bytes_in_a_black_hole_stays_dead(proxy: FaultProxy) -> None:
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


def test_a_reply_can_arrive_in_slices(proxy: FaultProxy) -> None:
    with connect(proxy) as sock:
        ask(sock)
        proxy.slice(3, pause=0.02)
        sock.sendall(b"PING\r\n")
        assert [sock.recv(100), sock.recv(100), sock.recv(100)] == [b"+PO", b"NG\r", b"\n"]
        sock.sendall(b"ECHO ab\r\n")
        assert sock.recv(100) == b"$2\r"  # requests are not sliced: the server has answered the whole one
        assert sock.recv(100) == b"\nab"


def test_bytes_can_be_injected_into_idle_connections(proxy: FaultProxy) -> None:
    with connect(proxy) as idle, connect(proxy) as busy:
        ask(idle)
        ask(busy)
        time.sleep(0.02)
        proxy.delay(1.0)
        busy.sendall(b"PING\r\n")
        assert wait_until(lambda: proxy.bytes_to_server == 18)
        assert proxy.inject(b"+STRAY\r\n") == 1
        assert idle.recv(100) == b"+STRAY\r\n"
        assert busy.recv(100) == b"+PONG\r\n"


def test_the_replies_of_two_connections_can_be_swapped(proxy: FaultProxy) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        ask(first)
        ask(second)
        proxy.swap()
        first.sendall(b"ECHO a\r\n")
        first.settimeout(0.05)
        with pytest.raises(TimeoutError):  # held back until there is another one
            first.recv(100)
        assert ask(second, b"ECHO b\r\n") == b"$1\r\na\r\n"
        assert first.recv(100) == b"$1\r\nb\r\n"
        assert ask(first) == b"+PONG\r\n"  # only once


def test_a_reply_that_waits_for_another_one_reaches_its_own_client_when_the_network_heals(proxy: FaultProxy) -> None:
    with connect(proxy) as sock:
        ask(sock)
        proxy.swap(5)
        sock.sendall(b"ECHO a\r\n")
        sock.settimeout(0.05)
        with pytest.raises(TimeoutError):
            sock.recv(100)
        proxy.heal()
        sock.settimeout(5.0)
        assert sock.recv(100) == b"$1\r\na\r\n"
        assert ask(sock) == b"+PONG\r\n"


def test_a_reply_that_waits_for_another_one_goes_before_the_end_of_its_stream(proxy: FaultProxy) -> None:
    with connect(proxy) as sock:
        proxy.swap()
        sock.sendall(b"QUIT\r\n")
        sock.settimeout(LONG)
        with pytest.raises(TimeoutError):
            sock.recv(100)
        proxy.heal()
        assert (sock.recv(100), sock.recv(100)) == (b"+OK\r\n", b"")


def test_a_slice_without_bytes_is_refused(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match=r"^slice\(0\): a piece has at least 1 byte\.$"):
        proxy.slice(0)


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


def test_a_connection_that_is_accepted_just_before_the_proxy_stops_listening_is_served(proxy: FaultProxy) -> None:
    loop = proxy._loop
    clients: list[socket.socket] = []

    def connect_and_refuse() -> None:
        clients.append(connect(proxy))
        loop.call_soon(loop.call_soon, proxy._stop_listening)  # between two steps of accepting the connection

    proxy._call(connect_and_refuse)
    with clients[0] as sock:
        assert ask(sock) == b"+PONG\r\n"
    gc.collect()  # Python warns of a socket that nobody has closed, and pytest makes it an error


def test_a_server_that_cannot_be_reached_resets_the_client() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        # The reset may come during the connect.
        with fault_proxy(*nobody.getsockname()) as proxy, pytest.raises(ConnectionResetError), connect(proxy) as sock:
            ask(sock)


def test_connections_are_shared_out_among_servers_and_reset_when_theirs_leaves(
    proxy: FaultProxy, redis_server: local.RedisServer
) -> None:
    with local.redis() as second:
        first = (redis_server.host, redis_server.port)
        proxy.route(first, (second.host, second.port))
        socks = [connect(proxy) for _ in range(6)]
        ports = [_port_of(sock) for sock in socks]
        assert sorted(ports) == sorted([first[1], second.port] * 3)
        proxy.route(first)
        assert wait_until(lambda: proxy.open == 3)
        for sock, port in zip(socks, ports, strict=True):
            if port == first[1]:
                assert ask(sock) == b"+PONG\r\n"
            else:
                with pytest.raises(ConnectionResetError):
                    ask(sock)
            sock.close()
        with connect(proxy) as sock:
            assert _port_of(sock) == first[1]


def _port_of(sock: socket.socket) -> int:
    """Return the port of the server that answers *sock*."""
    reply = b""
    sock.sendall(b"CONFIG GET port\r\n")
    while reply.count(b"\r\n") < 5:
        reply += sock.recv(1000)
    return int(reply.split(b"\r\n")[4])


def test_a_route_to_no_server_is_refused(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match=r"^route\(\) was given no server; name one, as \(host, port\), or"):
        proxy.route()


def test_heal_ends_every_fault(proxy: FaultProxy) -> None:
    proxy.delay(10.0)
    proxy.freeze()
    proxy.blackhole()
    proxy.reset_after(0)
    proxy.slice(1, pause=10.0)
    proxy.swap()
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


def test_the_repr_shows_both_addresses(proxy: FaultProxy, redis_server: local.RedisServer) -> None:
    assert repr(proxy) == f"<FaultProxy 127.0.0.1:{proxy.port} to 127.0.0.1:{redis_server.port}, 0 open>"
