"""A server that takes the place of the API of Kubernetes for a client that makes objects: it keeps what it is sent."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class _Handler(BaseHTTPRequestHandler):
    server: Recorder

    def log_message(self, *arguments: Any) -> None:
        pass

    def _answer(self, code: int, body: Any) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _body(self) -> dict[str, Any]:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found: dict[str, Any] = json.loads(text or "{}")
        return found

    def do_POST(self) -> None:
        made = self._body()
        self._answer(201, self._made(f"{urlsplit(self.path).path}/{made['metadata']['name']}", made))

    def do_PATCH(self) -> None:
        patch = self._body()
        if "kind" in patch:  # a server-side apply, which makes what is not there
            self._answer(201, self._made(urlsplit(self.path).path, patch))
        else:
            self._found()

    def _made(self, path: str, made: dict[str, Any]) -> dict[str, Any]:
        stored = {**made, "metadata": {**made["metadata"], "uid": path, "resourceVersion": "1"}}
        with self.server.lock:
            self.server.made.append(made)
            self.server.stored[path] = stored
        return stored

    def do_PUT(self) -> None:
        self._answer(200, self._body())

    def do_DELETE(self) -> None:
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path.rpartition("/")[2] in ("pods", "services", "configmaps", "persistentvolumeclaims"):
            self._answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []})
        else:
            self._found()

    def _found(self) -> None:
        found = self.server.stored.get(urlsplit(self.path).path)
        self._answer(200 if found else 404, found or {"kind": "Status", "apiVersion": "v1", "code": 404})


class Recorder(ThreadingHTTPServer):
    """
    The server.

    Attributes:
        made: Objects that a client has made, in order.
        stored: The same by path.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock = threading.Lock()
        self.made: list[dict[str, Any]] = []
        self.stored: dict[str, dict[str, Any]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods of this role: `driver` or `executor`."""
        with self.lock:
            return [
                each
                for each in self.made
                if each["kind"] == "Pod" and each["metadata"].get("labels", {}).get("spark-role") == role
            ]


@contextlib.contextmanager
def recorder() -> Iterator[Recorder]:
    """Run the server in a thread."""
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
