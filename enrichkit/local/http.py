"""A throw-away HTTP service in a process of its own, and the handle that configures it and reads its counters."""

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
    A misbehavior of the service toward some requests. One fault can combine several kinds of misbehavior.

    Attributes:
        match: Requests whose path (raw or percent-decoded) or body contains this text are affected; all requests when
            the text is empty.
        times: The number of matching requests that are affected; all when None.
        skip: The number of matching requests that are answered normally before the fault begins.
        delay: Seconds that the answer is delayed, in addition to the latency that `HttpService.script` sets.
        status: Status code of the answer, instead of 200 or 404.
        headers: Headers of the answer, for example `{"Retry-After": "1"}` or `{"Location": "/elsewhere"}`.
        body: Bytes to send as the body; they need not be JSON.
        content_type: Content type of the answer, instead of `application/json`.
        oversize: Send a JSON object of this many bytes as the body.
        truncated_gzip: Compress the body with gzip and send only its first half, with the content length of that half.
        stray: Send a second, unrequested answer after the first one, with the value of the key `stray`.
        close_after: Close the connection after this many bytes of the answer have been sent.
        drip: Send the answer byte by byte, and wait this many seconds before each further byte.
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
    The counters of the service since its start or the last reset.

    Attributes:
        calls: Number of requests that arrived.
        keys: Number of keys in these requests; a bulk request has many keys.
        per_key: Number of requests for each key; empty unless `HttpService.script` has turned the log on.
        peak: The largest number of requests in flight at the same time.
        in_flight: Number of requests that wait for their answer now.
        connections: Number of connections that clients opened.
        faults_used: Number of requests that a fault applied to.
        refused: Number of requests that the service refused, because the queue of the `ceiling` was full or because
            `at_once` requests were already in flight; `HttpService.script` sets both limits.
        served: Total seconds by which latencies, and the `delay` of faults, have delayed answers. Answers that a
            `ceiling` delays are left out. The total is slightly more than the configured seconds, because timers fire
            late.
        cpu: CPU seconds of the service's process.
    """

    calls: int
    keys: int
    per_key: Mapping[str, int]
    peak: int
    in_flight: int
    connections: int
    faults_used: int
    refused: int
    served: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class HttpService:
    """
    The handle of a running service.

    The service answers `GET <url>/any/path/<key>` with the JSON of `value_of(key)`, or with 404 for a key that contains
    `missing`. The answer to a POST of a JSON list of keys is a JSON list of values in the same order, with null for a
    key that the service does not hold. With `?shape=object` in the URL, the answer is instead a JSON object from key to
    value, without the keys that the service does not hold. A POST of a JSON object looks up the key in the object's
    field `key` or `id`. A POST to a path that ends with `/graphql` looks up the key in the GraphQL variable `key` or
    `id`, and ignores the query. Its answer has the form of a GraphQL answer, with the value at `data.user`.

    Attributes:
        url: `http://127.0.0.1:<port>`, without a slash at the end.
        port: The port of *url*.
        control_port: The port to which the handle sends its commands; requests to it are not counted.
        pid: Process id of the service.
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
        tail_of: str = "keys",
        ceiling: float = 0.0,
        room: int = 100,
        at_once: int = 0,
        refusal: int = 503,
        log: bool | None = None,
    ) -> None:
        """
        Set the behavior of the service from now on. The call replaces all earlier settings, but keeps the earlier *log*
        setting if *log* is None.

        Args:
            faults: The faults, in the order in which the service tries them. The first fault that matches a request
                applies to it. A fault is passed over for the first `skip` requests that match it, and after it has
                applied to `times` requests.
            latency: Seconds between a request and its answer.
            tail: Share of the keys, or of the requests, whose latency is *tail_latency*; see *tail_of*.
            tail_latency: Seconds between a slow request and its answer; *tail_of* says which requests are slow.
            tail_of: `"keys"`: a request is slow if one of its keys is, and the hash of a key decides whether the key is
                slow. `"requests"`: each request is slow with the probability *tail*, so a second request for the same
                key may be fast.
            ceiling: The most requests per second; further requests wait in a queue before their latency begins. 0: no
                limit.
            room: The most requests that wait in the queue of *ceiling*; a further request is answered with 503.
            at_once: The most requests that are answered at the same time; a further request is refused. 0: no limit.
            refusal: Status of the answer to a request that *at_once* refuses.
            log: Whether the service keeps each request for `log()` and counts each key, which costs time and memory;
                None leaves the setting as it is.
        """
        settings: dict[str, Any] = {"latency": latency, "tail": tail, "tail_latency": tail_latency, "log": log}
        settings |= {"ceiling": ceiling, "room": room, "tail_of": tail_of, "at_once": at_once, "refusal": refusal}
        self._command("/__script", {**settings, "faults": [fault._as_json() for fault in faults]})

    def seed(self, values: Mapping[str, Any]) -> None:
        """Store *values* by key; the service answers with them, as JSON, instead of `value_of`. None becomes null."""
        self._command("/__seed", values)

    def stats(self) -> Stats:
        """Return the counters."""
        return Stats(**self._command("/__stats"))

    def log(self) -> list[dict[str, Any]]:
        """
        Return the logged requests in order, each with `method`, raw `path`, `keys`, `headers`, `body`, and `at`, the
        `time.monotonic()` at which the request arrived.
        """
        entries: list[dict[str, Any]] = self._command("/__log")
        return entries

    def reset_stats(self) -> None:
        """Set the counters to zero and empty the log. The settings of `script` and the values of `seed` stay."""
        self._command("/__reset_stats")

    def reset(self) -> None:
        """
        Remove the values of `seed` and the settings of `script`, and set the counters to zero.

        The call also empties the log and turns it off.
        """
        self._command("/__reset")

    def _command(self, path: str, body: Any = None) -> Any:
        return command(self.control_port, path, body)


def command(control_port: int, path: str, body: Any = None) -> Any:
    """Send a command to the control port of a scripted service, and return the service's answer."""
    connection = http.client.HTTPConnection("127.0.0.1", control_port, timeout=30)
    try:
        connection.request("POST", path, body=json.dumps(body))
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


@contextlib.contextmanager
def http_service() -> Iterator[HttpService]:
    """
    Run the service. Until `script` is called, the service answers without delays or faults, and keeps no log.

    >>> with http_service() as service:
    ...     service.stats().calls
    0
    """
    began = time.monotonic()
    with temp_dir("http") as folder:
        log, hello = folder / "log", folder / "hello"
        # The option -P keeps the script's folder off the module path: the `http.py` there would hide the standard
        # library's module `http`.
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
            if said := log.read_text(errors="replace"):  # the service writes to this file only when it has a bug
                announce(f"the HTTP service said: {said}")
