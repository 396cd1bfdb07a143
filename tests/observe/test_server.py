"""The server of a monitor over real sockets: what it serves and takes, what it refuses, and that it always ends."""

from __future__ import annotations

import errno
import gzip
import http.client
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from importlib import util
from typing import TYPE_CHECKING, Any

import pytest

from enrichkit.errors import ConfigError
from enrichkit.observe import routes
from enrichkit.observe import server as server_module
from enrichkit.observe.page import page_files, self_contained
from enrichkit.observe.routes import PUSH_MAX, changes
from enrichkit.observe.server import MonitorServer

from .fake_view import SECRET, fake_view, hostile, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from enrichkit.observe.view import View


PUSH = b"POST /push HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer pu5h\r\n"
"""The beginning of a push, to which its length has to be added."""


class Monitor:
    """A server, and what it shows and was told."""

    def __init__(self, port: int = 0) -> None:
        self.reset()
        self.server = MonitorServer(
            port=port,
            view_token="v1ew",
            push_token="pu5h",
            view=self.view,
            push=self.push,
            metrics=lambda: "rows 1\n",
            report=lambda: self_contained(self.shown, "A report"),
        )

    def reset(self) -> None:
        self.shown: View = fake_view(30)
        self.pushed: list[bytes] = []
        self.mistake: Exception | None = None

    def view(self) -> View:
        if self.mistake:
            raise self.mistake
        return self.shown

    def push(self, body: bytes) -> None:
        if self.mistake:
            raise self.mistake
        self.pushed.append(body)

    def get(
        self, path: str, method: str = "GET", body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=60)
        try:
            connection.request(method, path, body, headers, encode_chunked=not isinstance(body, bytes | None))
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def told(self, body: Any = b"{}", authorization: str = "Bearer pu5h", **headers: str) -> tuple[int, bytes]:
        status, _, text = self.get("/push", "POST", body, Authorization=authorization, **headers)
        return status, text

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = socket.create_connection((self.server.host, self.server.port), timeout=60)
        client.sendall(sent)
        return client

    def stream(self) -> Iterator[tuple[str, Any]]:
        """The events of a stream."""
        with self.connect(b"GET /v1ew/events HTTP/1.0\r\n\r\n") as client, client.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"event: "):
                    yield line[7:].decode().strip(), json.loads(next(lines)[6:])


@pytest.fixture(scope="module")
def lasting() -> Iterator[Monitor]:
    made = Monitor()
    made.server.start()
    yield made
    made.server.stop()


@pytest.fixture
def monitor(lasting: Monitor) -> Monitor:
    """A monitor that the test may not stop."""
    lasting.reset()
    return lasting


@pytest.fixture
def ending() -> Iterator[Monitor]:
    """A monitor that the test may stop."""
    made = Monitor()
    made.server.start()
    yield made
    made.server.stop()


def stop(monitor: Monitor) -> float:
    began = time.monotonic()
    monitor.server.stop()
    return time.monotonic() - began


def test_its_addresses_have_the_port_that_was_free(monitor: Monitor) -> None:
    port = monitor.server.port
    assert port > 0
    assert f"http://127.0.0.1:{port}/v1ew/" == monitor.server.url
    assert f"http://127.0.0.1:{port}/push" == monitor.server.push_address
    assert f"<MonitorServer 127.0.0.1:{port}>" == repr(monitor.server)


def test_the_page_and_its_files_are_there(monitor: Monitor) -> None:
    for name, (kind, content) in {"": page_files()["index.html"], **page_files()}.items():
        status, headers, body = monitor.get(f"/v1ew/{name}")
        assert (200, content) == (status, body)
        assert f"{kind}; charset=utf-8" == headers["content-type"]


def test_the_view_is_json(monitor: Monitor) -> None:
    status, headers, body = monitor.get("/v1ew/view")
    assert (200, "application/json") == (status, headers["content-type"])
    assert json.loads(body) == monitor.shown


def test_answers_are_compressed_for_those_who_want_it(monitor: Monitor) -> None:
    _, headers, body = monitor.get("/v1ew/view", **{"Accept-Encoding": "gzip"})
    assert "gzip" == headers["content-encoding"]
    assert json.loads(gzip.decompress(body)) == monitor.shown


def test_metrics_are_text_for_prometheus(monitor: Monitor) -> None:
    status, headers, body = monitor.get("/v1ew/metrics")
    assert (200, b"rows 1\n") == (status, body)
    assert "text/plain; version=0.0.4; charset=utf-8" == headers["content-type"]


def test_the_report_is_a_download(monitor: Monitor) -> None:
    status, headers, body = monitor.get("/v1ew/report.html")
    assert (200, 'attachment; filename="enrichkit-report.html"') == (status, headers["content-disposition"])
    assert body.startswith(b"<!doctype html>")


@pytest.mark.parametrize("path", ["/v1ew/", "/v1ew/page.js", "/v1ew/view", "/wrong/", "/push"])
def test_every_answer_has_the_headers_that_protect_it(monitor: Monitor, path: str) -> None:
    _, headers, _ = monitor.get(path)
    assert (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'"
        == (headers["content-security-policy"])
    )
    assert ("no-referrer", "nosniff", "no-store") == (
        headers["referrer-policy"],
        headers["x-content-type-options"],
        headers["cache-control"],
    )
    assert "server" not in headers


@pytest.mark.parametrize(
    "path", ["/", "/wrong/", "/wrong/view", "/wrong/events", "/wrong", "/v1ew/nothing", "/%ff/", "//"]
)
def test_a_wrong_path_is_not_found_and_nothing_more_is_said(monitor: Monitor, path: str) -> None:
    status, _, body = monitor.get(path)
    assert (404, b"Not Found") == (status, body)


def test_files_outside_the_page_are_not_found(monitor: Monitor) -> None:
    for path in ("../server.py", "..%2fserver.py", "__init__.py", "/etc/passwd", "page.css/../../server.py"):
        assert 404 == monitor.get(f"/v1ew/{path}")[0]


def test_the_redirect_to_the_slash_is_relative(monitor: Monitor) -> None:
    """A proxy may have put a prefix before the path, of which the server does not know."""
    status, headers, _ = monitor.get("/v1ew")
    assert (307, "v1ew/") == (status, headers["location"])


def test_the_page_refers_to_relative_urls_only() -> None:
    page, style, script = (content.decode() for _, content in page_files().values())
    referred = re.findall(r"(?:href|src)=\"([^\"#]+)\"", page) + re.findall(r"url\(\"?([^)\"#]+)", style)
    assert [] == [url for url in referred if url.startswith("/") or ("://" in url and not url.startswith("data:"))]
    assert {"view", "events"} == set(re.findall(r"(?:fetch|EventSource)\(\"([^\"]*)\"", script))


# Pushes


def test_a_push_is_handed_on(monitor: Monitor) -> None:
    assert (204, b"") == monitor.told(b"{}")
    assert (204, b"") == monitor.told(iter([b"a", b"b"]))
    assert [b"{}", b"ab"] == monitor.pushed


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer v1ew", "pu5h", "bearer pu5h", "Bearer pu5h ü", "Basic x"]
)
def test_a_push_with_a_wrong_token_is_refused(monitor: Monitor, authorization: str) -> None:
    assert (401, b"Unauthorized") == monitor.told(authorization=authorization)
    assert [] == monitor.pushed


def test_the_largest_push_is_taken(monitor: Monitor) -> None:
    assert (204, b"") == monitor.told(b"x" * PUSH_MAX)
    assert [PUSH_MAX] == [len(body) for body in monitor.pushed]


def test_an_announced_push_that_is_too_large_is_refused_before_it_comes(monitor: Monitor) -> None:
    head = b"POST /push HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer pu5h\r\nContent-Length: %d\r\n\r\n" % (
        PUSH_MAX + 1
    )
    with monitor.connect(head) as client:
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"\r\n\r\nA push has at most 1048576 bytes.")


def test_a_push_that_becomes_too_large_is_refused(monitor: Monitor) -> None:
    with monitor.connect(PUSH + b"Transfer-Encoding: chunked\r\n\r\n") as client:
        for _ in range(4):
            client.sendall(b"40000\r\n" + b"x" * 0x40000 + b"\r\n")
        client.sendall(b"1\r\nx\r\n")  # one byte, because the server does not wait for more after one too many
        assert b"HTTP/1.1 413 " == client.recv(13)
    assert (204, b"") == monitor.told()


def test_a_push_that_says_nothing_of_use_is_refused_with_the_reason(monitor: Monitor) -> None:
    monitor.mistake = ValueError("The push is no JSON.")
    assert (400, b"The push is no JSON.") == monitor.told(b"\0")


def test_a_mistake_of_ours_costs_one_request_and_is_logged_once(
    ending: Monitor, caplog: pytest.LogCaptureFixture
) -> None:
    ending.mistake = RuntimeError("a bug")
    assert [(500, b"Internal Server Error")] * 3 == [ending.told() for _ in range(3)]
    ending.mistake = None
    assert (204, b"") == ending.told()
    assert ["Exception in ASGI application"] == [record.message.strip() for record in caplog.records]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n",
        b"POST /push HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
        b"POST /push HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_garbage_does_not_end_the_server(monitor: Monitor, garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    answer = b""
    with monitor.connect() as client:
        try:
            client.sendall(garbage)
            client.shutdown(socket.SHUT_WR)
            while part := client.recv(4096):
                answer += part
        except OSError as error:  # a server that ends a connection before it has read all resets it
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
    assert answer == b"" or answer.startswith(b"HTTP/1.1 40")
    assert 200 == monitor.get("/v1ew/view")[0]
    assert [] == caplog.records


# Events


def test_the_first_event_has_the_whole_view_and_the_next_ones_what_is_new(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "INTERVAL", 0.02)
    events = monitor.stream()
    assert ("view", {"drop": 0, "keep": 0, "view": monitor.shown}) == next(events)
    assert ("beat", {"at": monitor.shown["at"]}) == next(events)
    monitor.shown = fake_view(31)
    name, data = next(event for event in events if event[0] == "view")
    assert ("view", 0, 31) == (name, data["drop"], data["keep"])
    assert {**fake_view(31), "history": fake_view(31)["history"][31:]} == data["view"]
    events.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([1, 2, 3], [1, 2, 3, 4], (0, 3, [4])),
        ([1, 2, 3], [2, 3, 4], (1, 2, [4])),
        ([1, 2, 3], [1, 2, 3.5, 4], (0, 2, [3.5, 4])),  # a worker has reported late
        ([1, 2, 3], [7, 8], (3, 0, [7, 8])),
        ([1, 2, 3], [], (3, 0, [])),
        ([], [1], (0, 0, [1])),
        ([1, 2, 3], [1], (0, 1, [])),
    ],
)
def test_changes_say_how_the_history_goes_on(old: list[float], new: list[float], expected: Any) -> None:
    def view(at: int, points: list[float]) -> Any:
        return {**waiting(), "at": at, "started": at, "history": [{"at": int(each), "rows": each} for each in points]}

    found = changes(view(1, old), view(2, new))
    assert found is not None
    drop, keep, points = expected
    assert (drop, keep, points) == (found["drop"], found["keep"], [each["rows"] for each in found["view"]["history"]])
    assert new == [*old[drop : drop + keep], *points]


def test_only_another_time_is_no_change() -> None:
    view = fake_view(5)
    assert changes(view, {**view, "at": view["at"] + 9}) is None


def test_a_stream_ends_with_the_last_view(ending: Monitor) -> None:
    events = ending.stream()
    assert "view" == next(events)[0]
    threading.Timer(0.02, stop, [ending]).start()
    ending.shown = {**ending.shown, "state": "closed"}
    rest = list(events)
    assert ["view", "end"] == [name for name, _ in rest]
    assert "closed" == rest[0][1]["view"]["state"]


# The end


def test_open_streams_and_idle_and_slow_clients_do_not_delay_the_end(ending: Monitor) -> None:
    events = ending.stream()
    next(events)
    ending.shown = {**ending.shown, "sentence": "x" * 20_000_000}
    with (
        ending.connect(),  # says nothing
        ending.connect(b"GET /v1ew/vi"),  # says half a request
        ending.connect(b"GET /v1ew/view HTTP/1.1\r\nHost: h\r\n\r\n"),  # does not read
        ending.connect(b"GET /v1ew/events HTTP/1.1\r\nHost: h\r\n\r\n"),  # likewise
        ending.connect(PUSH + b"Content-Length: 9\r\n\r\n"),
    ):
        assert 204 == ending.told()[0]  # they hinder nobody else either
        assert stop(ending) < 1.5  # a second, and some for a busy machine
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("enrichkit-ending")]
    with pytest.raises(ConnectionError):
        ending.connect()


def test_it_can_be_stopped_twice_and_without_a_start(ending: Monitor) -> None:
    ending.server.stop()
    ending.server.stop()
    Monitor().server.stop()


def test_the_port_is_free_again_afterwards(ending: Monitor) -> None:
    ending.get("/v1ew/view")
    ending.server.stop()
    again = Monitor(ending.server.port)
    again.server.start()
    assert 200 == again.get("/v1ew/view")[0]
    again.server.stop()


def test_a_program_with_open_pages_ends_and_the_pages_hear_of_it() -> None:
    program = """
        import socket, sys, time
        from enrichkit.observe.server import MonitorServer
        from tests.observe.fake_view import waiting

        server = MonitorServer(view_token="v", push_token="p", view=waiting, push=print, metrics=str, report=str)
        server.start()
        print(server.port, flush=True)
        sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        assert done.stdin is not None
        assert done.stdout is not None
        assert done.stderr is not None
        port = int(done.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"GET /v/events HTTP/1.0\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.1 200 OK"
            done.stdin.write(b"\n")
            done.stdin.flush()
            assert client.makefile("rb").read().endswith(b"event: end\ndata: {}\n\n")
        assert (0, b"") == (done.wait(5), done.stderr.read())


# What else is in the program


def test_signal_handlers_and_loggers_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)  # a program that logs everything
    logger = logging.getLogger("uvicorn.error")
    filters = list(logger.filters)
    before = [(signal.getsignal(number), logger.level) for number in (2, 15)]
    monitor = Monitor()
    monitor.server.start()
    monitor.get("/v1ew/view")
    during = [(signal.getsignal(number), logger.level) for number in (2, 15)]
    logger.info("of another server")
    monitor.server.stop()
    assert before == during
    assert filters == logger.filters
    assert ["of another server"] == [each.message for each in caplog.records if each.name.startswith("uvicorn")]


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError) as raised:
            Monitor(port).server.start()
    assert (
        f"The monitor cannot listen on '127.0.0.1', port {port}: [Errno 98] Address already in use. "
        "Choose another port, or 0 for any that is free, and an address of this machine."
    ) == str(raised.value)


def test_a_port_that_does_not_exist_is_said() -> None:
    with pytest.raises(ConfigError) as raised:
        Monitor(70_000).server.start()
    assert (
        "The monitor cannot listen on '127.0.0.1', port 70000: bind(): port must be 0-65535. "
        "Choose another port, or 0 for any that is free, and an address of this machine."
    ) == str(raised.value)


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_package_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr(server_module, "find_spec", lambda name: None if name == package else util.find_spec(name))
    with pytest.raises(ConfigError) as raised:
        Monitor().server.start()
    assert (
        f"The monitor needs the package {package}, which is not installed. Run: pip install 'enrichkit[monitor]'"
    ) == str(raised.value)


def test_the_server_is_imported_without_its_packages() -> None:
    program = """
        import sys
        import enrichkit, enrichkit.observe.server
        print(*[name for name in ("starlette", "uvicorn", "anyio", "h11") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert ("\n", "") == (done.stdout, done.stderr)


# The page as one file


def test_the_report_holds_everything_and_asks_nobody() -> None:
    page = self_contained(fake_view(60), "Nightly & <b>")
    assert "<title>Nightly &amp; &lt;b&gt;</title>" in page
    assert "default-src 'none'" in page
    assert [] == re.findall(r"(?:src|rel=\"stylesheet\" href)=", page)
    data = re.search(r'<script type="application/json" id="view">(.*?)</script>', page)
    assert data is not None
    assert fake_view(60) == json.loads(data[1])


def test_no_text_of_the_view_ends_the_script_element() -> None:
    page = self_contained(hostile(), "A report")
    assert SECRET not in page
    assert "<!--" not in page
    assert 2 == page.count("</script>") == page.count("<script ")
    data = re.search(r'<script type="application/json" id="view">(.*?)</script>', page)
    assert data is not None
    assert hostile() == json.loads(data[1])
