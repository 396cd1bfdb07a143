"""A throw-away MariaDB server from the PATH, where apt puts it, also for root, whom MariaDB refuses."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .process import LocalServerError, announce, nobody, run, start, start_on_free_port, stop, tail, temp_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PACKAGES = ("mariadb-server-core", "mariadb-client-core")
"""Debian's packages with the programs alone; `mariadb-server` would start a system service."""

SETTINGS = {
    "bind-address": "127.0.0.1",
    "character-set-server": "latin1",  # the upstream default until 11.6: nothing here may rest on a better one
    "innodb-buffer-pool-size": "64M",
    "max-allowed-packet": "64M",  # as for a value of more than the 16 MiB that one packet of the protocol holds
    "innodb-flush-log-at-trx-commit": "0",  # nothing here outlives the process
    "innodb-flush-method": "nosync",
    "innodb-log-file-size": "16M",
    "skip-name-resolve": "ON",
    "skip-log-bin": "ON",
}


@dataclass(frozen=True, kw_only=True)
class MariadbServer:
    """
    A running server.

    Attributes:
        url: `mariadb://root@127.0.0.1:<port>`; the user may do everything and has no password.
        host: Always `127.0.0.1`.
        port: Its TCP port.
        name: `MariaDB`.
        version: For example `10.11.19`.
        pid: Its process.
        client: Its command line client.
    """

    url: str
    host: str
    port: int
    name: str
    version: str
    pid: int
    client: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def execute(self, sql: str, database: str = "") -> str:
        """
        Run statements through the client and stop at the first error.

        Returns:
            What they print: a row per line, columns separated by tabs.

        Raises:
            LocalServerError: A statement failed; the text is MariaDB's.
        """
        target = [f"--host={self.host}", f"--port={self.port}", "--user=root", f"--database={database}"]
        options = ["--no-defaults", "--batch", "--skip-column-names", "--default-character-set=utf8mb4"]
        done = subprocess.run([self.client, *options, *target], input=sql, capture_output=True, text=True)
        if done.returncode:
            raise LocalServerError(done.stderr.strip())
        return done.stdout.strip()

    def create_database(self) -> str:
        """Create an empty database under a new name and return its URL."""
        name = f"db_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        return f"{self.url}/{name}"

    def drop_database(self, url: str) -> None:
        """Drop the database of a URL from `create_database`."""
        self.execute(f"DROP DATABASE {url.rpartition('/')[2]}")


@contextlib.contextmanager
def mariadb(certificate: tuple[Path, Path] | None = None) -> Iterator[MariadbServer]:
    """
    Run an empty server.

    Args:
        certificate: PEM files of a certificate and of its key, for a server that offers TLS.

    Raises:
        LocalServerError: There is no MariaDB on this machine, or it did not start.

    >>> with mariadb() as server:
    ...     server.execute("SELECT 1 + 1")
    '2'
    """
    began = time.monotonic()
    install, program, client = (_program(name) for name in ("mariadb-install-db", "mariadbd", "mariadb"))
    with contextlib.ExitStack() as stack:
        ids = nobody() if os.geteuid() == 0 else None
        folder = stack.enter_context(temp_dir("mariadb", ids))
        env = {**os.environ, "TMPDIR": str(folder)}  # ours may be closed to the user of the server
        log, data = folder / "log", folder / "data"
        # Without --skip-test-db it lets anybody in without a name, and takes that entry before one with a name.
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        code = run([install, "--no-defaults", f"--datadir={data}", *options], log=log, env=env, ids=ids, cwd=folder)
        if code:
            raise LocalServerError(f"mariadb-install-db ended with code {code}: {tail(log)}")
        settings = dict(SETTINGS)
        for name, path in zip(("ssl-cert", "ssl-key"), certificate or (), strict=False):
            settings[name] = str(shutil.copy(path, folder / name))
            os.chown(settings[name], *(ids or (-1, -1)))

        def launch(port: int) -> subprocess.Popen[bytes]:
            paths = [f"--datadir={data}", f"--socket={folder / 'sock'}", f"--port={port}"]
            command: list[str | Path] = [program, "--no-defaults", *paths]
            return start(
                [*command, *(f"--{name}={value}" for name, value in settings.items())],
                log=log,
                env=env,
                ids=ids,
                cwd=folder,
            )

        def ready(process: subprocess.Popen[bytes], port: int) -> bool | None:
            return True if "ready for connections" in log.read_text(errors="replace") else None

        process, port, _ = start_on_free_port("MariaDB", launch, ready, log)
        stack.callback(stop, process, signal.SIGKILL)
        version = subprocess.run([program, "--no-defaults", "--version"], capture_output=True, text=True, check=True)
        server = MariadbServer(
            url=f"mariadb://root@127.0.0.1:{port}",
            host="127.0.0.1",
            port=port,
            name="MariaDB",
            version=version.stdout.partition(" Ver ")[2].partition("-")[0],
            pid=process.pid,
            client=client,
        )
        announce(f"{server} on port {port}, ready in {time.monotonic() - began:.2f} s")
        yield server


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is None:
        raise LocalServerError(f"No {name} was found on the PATH. Run: apt install {' '.join(PACKAGES)}")
    return found
