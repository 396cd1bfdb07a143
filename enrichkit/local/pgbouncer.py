"""A throw-away PgBouncer, from the PATH, in front of PostgreSQL. A PgBouncer that root starts runs as user nobody."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from .process import LocalServerError, announce, nobody, start, start_on_free_port, stop, temp_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .postgres import PostgresServer

# The pool mode is `transaction`, in which PgBouncer is usually run. The pool has two connections to the server, so that
# the transactions of one client may run on different connections. With auth_type `any`, PgBouncer accepts every client,
# and logs in to the server as the user in the section [databases].
SETTINGS = """\
[databases]
* = host={host} port={server} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
"""


@contextlib.contextmanager
def pgbouncer(server: PostgresServer) -> Iterator[int]:
    """
    Run PgBouncer in front of *server*, and yield PgBouncer's port.

    Raises:
        LocalServerError: There is no PgBouncer on this machine, or it did not start.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if program is None:
        raise LocalServerError("No pgbouncer was found on the PATH. Run: apt install pgbouncer")
    began = time.monotonic()
    ids = nobody() if os.geteuid() == 0 else None
    with temp_dir("pgbouncer", ids) as folder:
        log, settings = folder / "log", folder / "pgbouncer.ini"

        def launch(port: int) -> subprocess.Popen[bytes]:
            settings.write_text(SETTINGS.format(host=server.host, server=server.port, port=port))
            return start([program, settings], log=log, ids=ids, cwd=folder)

        def ready(process: subprocess.Popen[bytes], port: int) -> bool:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return f"listening on 127.0.0.1:{port}" in log.read_text(errors="replace")

        process, port, _ = start_on_free_port("PgBouncer", launch, ready, log)
        try:
            announce(f"PgBouncer on port {port} in front of {server}, ready in {time.monotonic() - began:.2f} s")
            yield port
        finally:
            stop(process, signal.SIGKILL)
