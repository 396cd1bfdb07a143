"""Certificates that are renewed in place while a job runs: new connections take the new ones, and no row is lost."""

from __future__ import annotations

import asyncio
import contextlib
import select
import shutil
import socket
import ssl
import struct
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest
import redis
from enrichkit_http import HttpConfig
from enrichkit_mariadb import MariadbConfig
from enrichkit_postgres import PostgresConfig
from enrichkit_redis import RedisConfig

from enrichkit import local
from enrichkit.errors import FatalError, TransientError
from enrichkit.plugin import Call
from enrichkit.secrets import refused
from enrichkit.testing import open_connector
from enrichkit.tls import RenewedContext, file_stamp, tls_context

from .faults import INT
from .test_local import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from enrichkit import ConnectorConfig

    from .certificates import Authority
    from .sparkless import Worker

    Opening = Callable[[socket.socket, socket.socket], socket.socket]
    Source = tuple["Front", Callable[[], ConnectorConfig], list[Any]]

pytestmark = [pytest.mark.service, pytest.mark.waits]

KEYS = 400
LOGINS = ["redis", "postgres", pytest.param("mariadb", marks=pytest.mark.apt)]
SSL_REQUEST = struct.pack("!ii", 8, 80877103)
"""With it a client of PostgreSQL asks for TLS, in plain text."""


class Front:
    """
    TLS in front of a server; it asks for a certificate of the client.

    Args:
        target: Where the server listens.
        opening: Plays what the two sides say in plain text before TLS begins; returns the socket to talk to the server.

    Attributes:
        context: That of the connections from now on.
        refused: Handshakes that failed, on either side.
        shown: The authorities of the certificates that clients have shown, in order.
    """

    def __init__(self, target: tuple[str, int], opening: Opening | None = None) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.refused = 0
        self.shown: list[str] = []
        self._target, self._opening = target, opening
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def break_all(self) -> None:
        """Close all connections."""
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.break_all()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            server = stack.enter_context(socket.create_connection(self._target))
            if self._opening is not None:
                server = stack.enter_context(self._opening(plain, server))
            try:
                client = self.context.wrap_socket(plain, server_side=True)
            except (ssl.SSLError, ConnectionError):
                self.refused += 1
                plain.close()
                return
            issuer: Any = (client.getpeercert() or {}).get("issuer", ())
            self.shown += [value for ((_, value),) in issuer]
            self._open |= {client, server}
            turn = threading.Lock()
            back = threading.Thread(target=self._pump, args=(server, client, turn), daemon=True)
            back.start()
            self._pump(client, server, turn)
            back.join()
            self._open -= {client, server}
            client.close()

    def _pump(self, source: socket.socket, sink: socket.socket, turn: threading.Lock) -> None:
        """Send on what comes in; *turn* keeps the threads from using a TLS connection at a time, which may hang it."""
        with contextlib.suppress(OSError):
            while data := self._received(source, turn):
                with turn:
                    sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _received(self, source: socket.socket, turn: threading.Lock) -> bytes:
        while True:
            if not (isinstance(source, ssl.SSLSocket) and source.pending()):
                select.select([source], [], [])
            with turn:
                source.setblocking(False)
                try:
                    return source.recv(1 << 16)
                except (ssl.SSLWantReadError, BlockingIOError):
                    continue  # a part of a record, or one that is no data
                finally:
                    source.setblocking(True)


def postgres_opening(client: socket.socket, server: socket.socket) -> socket.socket:
    assert client.recv(8) == SSL_REQUEST
    client.sendall(b"S")
    return server


def mariadb_opening(client: socket.socket, server: socket.socket) -> socket.socket:
    """The server, which speaks first, is asked for TLS as well, because it counts the packets."""
    for source, sink in ((server, client), (client, server)):
        packet = source.recv(4, socket.MSG_WAITALL)
        sink.sendall(packet + source.recv(int.from_bytes(packet[:3], "little"), socket.MSG_WAITALL))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(server)


class Files:
    """The files of a client, which an authority renews in place."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.cert, self.key = (str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem"))

    @property
    def fields(self) -> dict[str, str]:
        return {"tls_ca": self.ca, "tls_cert": self.cert, "tls_key": self.key}

    def renew(self, authority: Authority, *, trusts: Authority | None = None, pause: float = 0.0) -> None:
        """Replace the files one after the other, *pause* seconds apart, while they do not fit each other."""
        cert, key = authority.issue("me")
        for new, file in (((trusts or authority).file, self.ca), (cert, self.cert), (key, self.key)):
            shutil.copy(new, file)
            time.sleep(pause)


def context_of(shows: Authority, *trusts: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*shows.issue("server"))
    context.verify_mode = ssl.CERT_REQUIRED
    for authority in trusts:
        context.load_verify_locations(authority.file)
    return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(params=[*LOGINS, "http"])
def source(request: pytest.FixtureRequest, files: Files) -> Iterator[Source]:
    """A front, a function that makes the config of the source behind it, and the values of the keys."""
    if request.param == "redis":
        server, url = request.getfixturevalue("redis_server"), request.getfixturevalue("redis_url")
        with redis.Redis.from_url(url) as client:
            client.mset({f"k{n}": n for n in range(KEYS)})
        front = Front((server.host, server.port))
        at = f"rediss://127.0.0.1:{front.port}/{url.rpartition('/')[2]}"
        yield front, lambda: RedisConfig(url=at, key="k{}", **files.fields), list(range(KEYS))
    elif request.param == "postgres":
        server, dsn = request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_dsn")
        database = dsn.rpartition("/")[2]
        server.execute(f"CREATE TABLE t AS SELECT n AS id, n AS score FROM generate_series(0, {KEYS}) n", database)
        front = Front((server.host, server.port), postgres_opening)
        at = f"postgresql://postgres@127.0.0.1:{front.port}/{database}?sslmode=verify-full"
        yield front, lambda: PostgresConfig(dsn=at, table="t", **files.fields), list(range(KEYS))
    elif request.param == "mariadb":
        cert, key = request.getfixturevalue("authority")("behind").issue("server")
        with local.mariadb((Path(cert), Path(key))) as server:
            database = server.create_database().rpartition("/")[2]
            server.execute("CREATE TABLE t (id INT PRIMARY KEY, score INT)", database)
            server.execute(f"INSERT INTO t SELECT seq, seq FROM seq_0_to_{KEYS}", database)
            front = Front((server.host, server.port), mariadb_opening)
            at = f"mariadb://root@127.0.0.1:{front.port}/{database}"
            yield front, lambda: MariadbConfig(url=at, table="t", **files.fields), list(range(KEYS))
    else:
        service = request.getfixturevalue("http_service")
        host, _, port = service.url.rpartition("//")[2].partition(":")
        front = Front((host, int(port)))
        at = f"https://127.0.0.1:{front.port}/{{}}"
        values = [crc32(str(n).encode()) % 1000 for n in range(KEYS)]
        yield front, lambda: HttpConfig(url=at, value="score", **files.fields), values
    front.close()


@pytest.fixture
def authorities(authority: Callable[[str], Authority]) -> tuple[Authority, Authority]:
    """The one whose certificates are replaced, and the one of the new certificates."""
    return authority("old"), authority("new")


@pytest.fixture
def look_up_while(source: Source, worker: Worker) -> Callable[[Callable[[], None]], None]:
    """`look_up_while(step)`: after a first lookup has worked, two tasks get all values while *step* runs."""
    _, config, values = source

    def look_up(keys: range) -> list[Any]:
        options = {"timeout": 5.0, "max_fallback_ratio": 0.0, "rate": 100.0, "batch_size": 1}
        return [row["value"] for row in worker.outcomes_of_two(config(), INT, keys, **options)[0]]

    def run(step: Callable[[], None]) -> None:
        assert look_up(range(2)) == values[:2]
        thread = threading.Timer(0.3, step)
        thread.start()
        assert look_up(range(KEYS)) == values
        thread.join()

    return run


def test_certificates_that_are_refused_are_read_again(
    source: Source,
    files: Files,
    authorities: tuple[Authority, Authority],
    look_up_while: Callable[[Callable[[], None]], None],
) -> None:
    """The server gets others first, and breaks all connections; the files follow when connections were refused."""
    front, (old, new) = source[0], authorities
    front.context = context_of(old, old)
    files.renew(old)

    def renew() -> None:
        front.context = context_of(new, new)
        front.break_all()
        wait_until(lambda: front.refused > 0)
        files.renew(new, pause=0.1)

    look_up_while(renew)
    assert front.refused >= 1
    assert {"old", "new"} == set(front.shown)


@pytest.mark.parametrize("source", LOGINS, indirect=True)
def test_certificates_that_replace_refused_ones_are_tried_at_once(
    source: Source, files: Files, authorities: tuple[Authority, Authority], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the same login waits after a refusal, because more attempts could lock an account."""
    monkeypatch.setattr(refused, "PAUSE", 600.0)
    monkeypatch.setattr(refused, "RENEWED", 0.0)
    front, config, (old, new) = *source[:2], authorities
    front.context = context_of(old, old)
    files.renew(old)

    async def run() -> None:
        async with open_connector(config()) as connector:

            async def said() -> str:
                try:
                    return f"{list(await connector.fetch_many([0], Call(timeout=20.0)))}"
                except TransientError as error:  # also when a connection was closed, or was not made in time
                    return str(error)

            assert "[0]" in [await said() for _ in range(4)]
            front.context = context_of(new, new)
            front.break_all()
            assert any(["Logins have worked before." in await said() for _ in range(4)])
            files.renew(new)
            after = [await said() for _ in range(4)]
            assert "[0]" in after
            assert not any("Logins have worked before." in text for text in after)

    asyncio.run(run())


def test_certificates_that_change_in_time_are_taken_without_a_refusal(
    source: Source,
    files: Files,
    authorities: tuple[Authority, Authority],
    look_up_while: Callable[[Callable[[], None]], None],
) -> None:
    front, (old, new) = source[0], authorities
    front.context = context_of(old, old, new)
    files.renew(old)

    def renew() -> None:
        files.renew(new, trusts=old)
        time.sleep(1.5)
        front.break_all()

    look_up_while(renew)
    assert (front.refused, front.shown[-1]) == (0, "new")


def test_a_context_is_made_anew_when_a_file_changes(files: Files, authority: Callable[[str], Authority]) -> None:
    from types import SimpleNamespace

    made: list[ssl.SSLContext] = []
    config: Any = SimpleNamespace(**files.fields)

    def make() -> ssl.SSLContext:
        made.append(tls_context(config))
        return made[-1]

    renewed = RenewedContext(make, config)
    with pytest.raises(FatalError, match="cannot be used on this worker: No such file or directory"):
        renewed()
    files.renew(authority("old"))
    assert renewed() is renewed() is made[0]
    shutil.copy(authority("new").issue("me")[0], files.cert)  # its key is still that of before
    assert renewed() is made[0]
    files.renew(authority("new"))
    assert renewed() is renewed() is made[1]
    assert len(made) == 2
    assert RenewedContext(make, SimpleNamespace(tls_ca=None, tls_cert=None, tls_key=None)).has_files is False


def test_a_stamp_tells_a_file_from_its_successor(tmp_path: Path) -> None:
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "link"
    assert file_stamp(None, str(first)) == (None, "FileNotFoundError")
    first.write_text("one")
    second.write_text("two")
    link.symlink_to(first)
    before = file_stamp(str(link))
    assert before == file_stamp(str(link))
    link.unlink()
    link.symlink_to(second)
    assert before != file_stamp(str(link))
