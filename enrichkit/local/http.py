"""A throw-away HTTP service in a process of its own, and the handle that scripts, seeds and reads it."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .process import announce, start, stop, temp_dir, wait_until_ready

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, kw_only=True)
class Fault:
    """
    What to do to requests that match, instead of answering well. Several kinds can be combined.

    Attributes:
        match: Text that occurs in the path (raw or percent-decoded) or in the body; every request when empty.
        times: How many requests to treat so; all when None.
        skip: How many matching requests to answer well first.
        delay: Seconds to wait beyond the latency of the script.
        status: Status of the answer, instead of 200 or 404.
        headers: Headers of the answer, for example `{"Retry-After": "1"}` or `{"Location": "/elsewhere"}`.
        body: Bytes to send as body, whatever they are.
        content_type: Instead of `application/json`.
        oversize: Send a JSON object of this many bytes.
        truncated_gzip: Compress the body, send half of it with a length that fits the half.
        stray: Send a second answer that nobody asked for, with the value of the key `stray`.
        close_after: Close the connection after this many bytes of the answer.
        drip: Send one byte, wait this many seconds, send the next.
        reset: Reset the connection (RST) instead of answering.
        hang: Never answer.
    """

    match: str = ""
    times: int | None = None
    skip: int = 0
    delay: float = 0.0
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str | None = None
    oversize: int | None = None
    truncated_gzip: bool = False
    stray: bool = False
    close_after: int | None = None
    drip: float | None = None
    reset: bool = False
    hang: bool = False

    def _as_json(self) -> dict[str, Any]:
        fields = asdict(self)
        fields["body"] = None if self.body is None else base64.b64encode(self.body).decode()
        return fields


@dataclass(frozen=True, kw_only=True)
class Stats:
    """
    What the service has counted since the start or the last reset.

    Attributes:
        calls: Requests that arrived.
        keys: Keys they asked for; a bulk request asks for many.
        per_key: How often each key was asked for; empty unless the log is on.
        peak: The largest number of requests in flight at once.
        in_flight: Requests that wait for their answer now.
        connections: Connections that clients opened.
        faults_used: Requests that a fault applied to.
        served: Sum of the seconds for which the script's latency held answers back; a little more than was asked for.
        cpu: CPU seconds of the service's process.
    """

    calls: int
    keys: int
    per_key: Mapping[str, int]
    peak: int
    in_flight: int
    connections: int
    faults_used: int
    served: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class HttpService:
    """
    A running service.

    `GET <url>/any/path/<key>` answers with the JSON of `value_of(key)`, or 404 for a key that contains `missing`. A
    POST with a JSON list of keys gets a JSON list of values in the same order, null for a missing one; with
    `?shape=object` an object by key without the missing ones. A POST with a JSON object asks for its `key` or `id`.

    Attributes:
        url: `http://127.0.0.1:<port>`, without a slash at the end.
        port: The port of *url*.
        control_port: Where the handle sends its commands; requests there are not counted.
        pid: Its process.
    """

    url: str
    port: int
    control_port: int
    pid: int

    def script(
        self,
        *faults: Fault,
        latency: float = 0.0,
        tail: float = 0.0,
        tail_latency: float = 0.0,
        log: bool | None = None,
    ) -> None:
        """
        Set how the service behaves from now on; replaces the whole script before it, the log setting aside.

        Args:
            faults: Tried in order, the first that matches and is not used up applies.
            latency: Seconds between a request and its answer.
            tail: Share of the keys, chosen by hash, that take *tail_latency* instead.
            tail_latency: Seconds for those keys, and for a bulk request that holds one of them.
            log: Keep each request for `log()` and count the keys, which costs time and memory; as before when None.
        """
        settings = {"latency": latency, "tail": tail, "tail_latency": tail_latency, "log": log}
        self._command("/__script", {**settings, "faults": [fault._as_json() for fault in faults]})

    def seed(self, values: Mapping[str, Any]) -> None:
        """Store JSON *values* under their keys, in place of `value_of`. None is a stored null."""
        self._command("/__seed", values)

    def stats(self) -> Stats:
        """Return the counters."""
        return Stats(**self._command("/__stats"))

    def log(self) -> list[dict[str, Any]]:
        """Return the requests logged, in order: `method`, raw `path`, `keys`, `headers`, `body`."""
        entries: list[dict[str, Any]] = self._command("/__log")
        return entries

    def reset_stats(self) -> None:
        """Set the counters to zero and empty the log; script and seeds stay."""
        self._command("/__reset_stats")

    def reset(self) -> None:
        """Forget seeds, script, counters and log, and turn the log off."""
        self._command("/__reset")

    def _command(self, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.control_port, timeout=30)
        try:
            connection.request("POST", path, body=json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


@contextlib.contextmanager
def http_service() -> Iterator[HttpService]:
    """
    Run the service; it answers at once, without faults and with the log off, until `script` says otherwise.

    >>> with http_service() as service:
    ...     service.stats().calls
    0
    """
    began = time.monotonic()
    with temp_dir("http") as folder:
        log, hello = folder / "log", folder / "hello"
        # By path and with -P: the folder of the script holds an `http.py`, which must not hide the standard library's.
        program: list[str | Path] = [sys.executable, "-P", Path(__file__).with_name("http_service.py")]
        with hello.open("wb") as sink:
            process = start(program, log=log, stdout=sink.fileno())

        def ready() -> dict[str, Any] | None:
            text = hello.read_text()
            return json.loads(text) if text.endswith("\n") else None

        try:
            ports = wait_until_ready("The HTTP service", process, ready, log)
            url = f"http://127.0.0.1:{ports['port']}"
            announce(
                f"HTTP service on port {ports['port']} ({ports['loop']}), ready in {time.monotonic() - began:.2f} s"
            )
            yield HttpService(url=url, port=ports["port"], control_port=ports["control"], pid=process.pid)
        finally:
            stop(process, signal.SIGKILL)
