"""Credentials that expire or are replaced while a job runs, on real servers: the job goes on, and loses no row."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from enrichkit_http import HttpConfig, sender
from enrichkit_mariadb import MariadbConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig

from enrichkit import Secret, local
from enrichkit.errors import FatalError
from enrichkit.secrets import expiring, reference

from .faults import INT
from .pace import at_pace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .sparkless import Row, Worker

pytestmark = [pytest.mark.service, pytest.mark.waits]

KEYS = 600
STEPS = 3
"""How often the password changes during a job."""


class Api(BaseHTTPRequestHandler):
    """
    Answers a key with itself, after 10 ms, to whom has the token `good` or one of `others`; counts the tokens that it
    has seen.
    """

    protocol_version = "HTTP/1.1"
    good = "Bearer 0"
    others: set[str]
    seen: dict[str, int]

    def do_GET(self) -> None:  # the name of http.server
        token = self.headers["authorization"]
        self.seen[token] = self.seen.get(token, 0) + 1
        time.sleep(0.01)
        known = token == type(self).good or token in self.others
        status, body = (200, self.path[1:].encode()) if known else (401, b"expired")
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def api() -> Iterator[tuple[str, type[Api]]]:
    handler = type("Handler", (Api,), {"seen": {}, "others": set()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()


@contextmanager
def meanwhile(step: Callable[[int], None], every: float = 0.4) -> Iterator[None]:
    """Call *step* with 1, 2, ... `STEPS` while the body runs, which has to take longer than that."""
    ended = threading.Event()
    done: list[int] = []

    def steps() -> None:
        for number in range(1, STEPS + 1):
            if ended.wait(every):
                return
            step(number)
            done.append(number)

    thread = threading.Thread(target=steps)
    thread.start()
    yield
    ended.set()
    thread.join()
    assert done == [*range(1, STEPS + 1)], "the job was over before"


def replace(file: Path, text: str) -> None:
    """Replace *file* as a whole, as Kubernetes does: nobody ever reads a part of it."""
    new = file.with_name("new")
    new.write_text(text)
    new.replace(file)


def all_right(rows: list[Row]) -> bool:
    return [row["value"] for row in rows] == [*range(KEYS)] and {row["status"] for row in rows} == {"ok"}


def test_a_password_of_postgres_is_replaced(
    postgres_server: local.PostgresServer, postgres_dsn: str, tmp_path: Path, worker: Worker
) -> None:
    """Its connections are ended as well, and the file has the new password half a second later."""
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute(
        "DROP ROLE IF EXISTS rotated; CREATE ROLE rotated LOGIN PASSWORD 'pw0';"
        f"CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(0, {KEYS}) n; GRANT SELECT ON t TO rotated",
        database,
    )
    file = tmp_path / "password"
    file.write_text("pw0")

    def rotate(number: int) -> None:
        postgres_server.execute(
            f"ALTER ROLE rotated PASSWORD 'pw{number}';"
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotated'",
            database,
        )
        time.sleep(0.5)
        file.write_text(f"pw{number}")

    dsn = postgres_dsn.replace("postgres@", "rotated@")
    config = PostgresConfig(dsn=dsn, table="t", password=Secret.file(str(file)))
    with password_wanted(postgres_server, database):
        rows = slowly(worker, config, rotate, batch_size=2, rate=100.0)
    assert all_right(rows)


@contextmanager
def password_wanted(server: local.PostgresServer, database: str) -> Iterator[None]:
    """Let the server ask the role for its password; it trusts this machine otherwise."""
    rules = Path(server.execute("SHOW hba_file", database).strip())
    before = rules.read_text()
    try:
        rules.write_text("host all rotated 127.0.0.1/32 scram-sha-256\n" + before)
        server.execute("SELECT pg_reload_conf()", database)
        yield
    finally:
        rules.write_text(before)
        server.execute("SELECT pg_reload_conf()", database)


def slowly(worker: Worker, config: Any, step: Callable[[int], None] | None = None, **options: Any) -> list[Row]:
    """Look all keys up in two tasks, while *step* is called, if it is given, when a first lookup has worked."""
    options |= {"max_fallback_ratio": 0.0, "timeout": 5.0}
    if step is None:
        return worker.outcomes_of_two(config, INT, range(KEYS), **options)[0]
    worker.outcomes(config, INT, [0], **options)
    with meanwhile(step):
        return worker.outcomes_of_two(config, INT, range(KEYS), **options)[0]


@pytest.fixture
def redis_user(redis_url: str, tmp_path: Path) -> Iterator[tuple[RedisConfig, redis.Redis, Path]]:
    """A source whose user `rotated` has the password in a file, a client of the administrator, and the file."""
    file = tmp_path / "password"
    file.write_text("pw0")
    config = RedisConfig(url=redis_url, key="k{}", username="rotated", password=Secret.file(str(file)))
    with redis.Redis.from_url(redis_url) as client:
        client.mset({f"k{n}": n for n in range(KEYS)})
        client.execute_command("ACL", "SETUSER", "rotated", "on", "resetpass", ">pw0", "~*", "+@all")
        yield config, client, file
        client.execute_command("ACL", "DELUSER", "rotated")


def test_a_password_of_redis_is_replaced(redis_user: tuple[RedisConfig, redis.Redis, Path], worker: Worker) -> None:
    config, client, file = redis_user

    def rotate(number: int) -> None:
        client.execute_command("ACL", "SETUSER", "rotated", "resetpass", f">pw{number}")
        client.execute_command("CLIENT", "KILL", "USER", "rotated")
        time.sleep(0.5)
        file.write_text(f"pw{number}")

    assert all_right(slowly(worker, config, rotate, batch_size=2, rate=100.0))


@pytest.mark.apt
def test_a_password_of_mariadb_is_replaced(tmp_path: Path, worker: Worker) -> None:
    file = tmp_path / "password"
    file.write_text("pw0")
    with local.mariadb() as server:
        url = server.create_database()
        table = f"CREATE TABLE t (PRIMARY KEY (id)) AS SELECT seq AS id, seq AS score FROM seq_0_to_{KEYS}"
        server.execute(table, url.rpartition("/")[2])
        server.execute("CREATE USER rotated IDENTIFIED BY 'pw0'; GRANT SELECT ON *.* TO rotated")

        def rotate(number: int) -> None:
            server.execute(f"ALTER USER rotated IDENTIFIED BY 'pw{number}'; KILL USER rotated")
            time.sleep(0.5)
            file.write_text(f"pw{number}")

        config = MariadbConfig(url=url.replace("root@", "rotated@"), table="t", password=Secret.file(str(file)))
        rows = slowly(worker, config, rotate, batch_size=2, rate=100.0)
    assert all_right(rows)


def test_a_token_in_a_file_is_replaced(api: tuple[str, type[Api]], tmp_path: Path, worker: Worker) -> None:
    url, handler = api
    file = tmp_path / "token"
    file.write_text("Bearer 0")

    def rotate(number: int) -> None:
        handler.good = f"Bearer {number}"
        time.sleep(0.5)
        file.write_text(f"Bearer {number}")

    config = HttpConfig(url=url + "/{}", headers={"Authorization": Secret.file(str(file))})
    rows = slowly(worker, config, rotate, capacity=4)
    assert all_right(rows)
    refused = sum(handler.seen.values()) - KEYS - 1
    assert refused <= STEPS * (4 + 10), "the calls in flight, and the probes of half a second"


def test_a_token_that_changes_in_time_is_taken_without_a_refusal(
    api: tuple[str, type[Api]], tmp_path: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a second the client looks whether its files have changed; here it looks before each request."""
    monkeypatch.setattr(sender, "LOOK", 0.0)
    url, handler = api
    file = tmp_path / "token"
    file.write_text("Bearer 0")

    def rotate(number: int) -> None:
        handler.others.add(f"Bearer {number}")
        replace(file, f"Bearer {number}")

    config = HttpConfig(url=url + "/{}", headers={"Authorization": Secret.file(str(file))})
    assert all_right(slowly(worker, config, rotate, capacity=4))
    assert handler.seen.keys() == {f"Bearer {number}" for number in range(1 + STEPS)}
    assert sum(handler.seen.values()) == 1 + KEYS, "no request was refused"
    handler.seen.clear()
    assert all_right(slowly(worker, config, capacity=4))
    assert handler.seen == {f"Bearer {STEPS}": KEYS}


def test_a_password_of_redis_that_changes_in_time_is_taken_without_a_refusal(
    redis_user: tuple[RedisConfig, redis.Redis, Path], worker: Worker
) -> None:
    """The user has the new password beside the old one, until the file has been changed and all have logged in anew."""
    config, client, file = redis_user
    client.execute_command("ACL", "LOG", "RESET")

    def rotate(number: int) -> None:
        before_last = [f"<pw{number - 2}"] if number > 1 else []
        client.execute_command("ACL", "SETUSER", "rotated", f">pw{number}", *before_last)
        replace(file, f"pw{number}")
        client.execute_command("CLIENT", "KILL", "USER", "rotated")

    assert all_right(slowly(worker, config, rotate, batch_size=2, rate=100.0))
    assert client.execute_command("ACL", "LOG") == [], "no login was refused"


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module `shop_tokens` of the user, whose function returns the content of a file and counts its calls."""
    (tmp_path / "shop_tokens.py").write_text(
        "from pathlib import Path\n"
        "asked = []\n"
        "def token():\n"
        "    asked.append(1)\n"
        "    return Path(__file__).with_name('now').read_text()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(reference, "_held", {})
    monkeypatch.setattr(expiring, "AGAIN", 0.1)  # the tests change tokens more often than the world does
    yield tmp_path / "now"
    sys.modules.pop("shop_tokens", None)


def test_a_function_is_asked_once_for_all_and_once_more_after_a_refusal(
    api: tuple[str, type[Api]], tokens: Path, worker: Worker
) -> None:
    url, handler = api
    tokens.write_text("Bearer 0")

    def rotate(number: int) -> None:
        tokens.write_text(f"Bearer {number}")
        handler.good = f"Bearer {number}"

    config = HttpConfig(url=url + "/{}", headers={"Authorization": Secret.call("shop_tokens:token", ttl=900)})
    rows = slowly(worker, config, rotate, capacity=4)
    assert all_right(rows)
    assert len(sys.modules["shop_tokens"].asked) == 1 + STEPS
    assert sum(handler.seen.values()) - KEYS - 1 <= 4 * STEPS, "only calls in flight were refused"
    slowly(worker, config, capacity=4)
    assert len(worker.thread.engines) == 1, "another token is no other source"


def test_a_function_is_asked_again_before_its_value_ends(
    api: tuple[str, type[Api]], tokens: Path, worker: Worker
) -> None:
    """A token of one second is used for 0.8 s, while the service takes the old and the new one."""
    url, handler = api
    tokens.write_text("Bearer 0")
    config = HttpConfig(url=url + "/{}", headers={"Authorization": Secret.call("shop_tokens:token", ttl=1)})
    began = time.monotonic()
    rows = slowly(worker, config, capacity=4)
    assert all_right(rows)
    assert 2 <= len(sys.modules["shop_tokens"].asked) <= 1 + (time.monotonic() - began) / 0.8
    assert handler.seen == {"Bearer 0": KEYS}


def test_credentials_that_never_worked_fail_at_once(
    api: tuple[str, type[Api]], tokens: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "AGAIN", 600.0)  # both refusals come within that
    url, _ = api
    tokens.write_text("Bearer wrong")
    config = HttpConfig(url=url + "/{}", headers={"Authorization": Secret.call("shop_tokens:token", ttl=900)})
    began = time.monotonic()
    with pytest.raises(FatalError) as caught:
        slowly(worker, config, capacity=4)
    assert "The service answered 401: it refuses the credentials, or misses some" in str(caught.value)
    assert time.monotonic() - began < at_pace(5.0)
    assert len(sys.modules["shop_tokens"].asked) == 2, "once, and once after the refusal"


def test_a_command_is_a_secret(postgres_server: local.PostgresServer, postgres_dsn: str, worker: Worker) -> None:
    database = postgres_dsn.rpartition("/")[2]
    postgres_server.execute(
        "DROP ROLE IF EXISTS rotated; CREATE ROLE rotated LOGIN PASSWORD 'from a command';"
        f"CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(0, {KEYS}) n; GRANT SELECT ON t TO rotated",
        database,
    )
    secret = Secret.command([sys.executable, "-c", f"print({json.dumps('from a command')})"], ttl=900)
    with password_wanted(postgres_server, database):
        dsn = postgres_dsn.replace("postgres@", "rotated@")
        rows = slowly(worker, PostgresConfig(dsn=dsn, table="t", password=secret))
    assert all_right(rows)
