"""A throw-away MariaDB server, started from the PATH. A server that root starts runs as the user nobody."""

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
"""
Debian's packages that hold only MariaDB's programs. The package `mariadb-server` would also start a system service.
"""

SETTINGS = {
    "bind-address": "127.0.0.1",
    # This was the default before MariaDB 11.6, so tests find code that works only with the new default, utf8mb4.
    "character-set-server": "latin1",
    "innodb-buffer-pool-size": "64M",
    "max-allowed-packet": "64M",  # for tests with a value above 16 MiB, the size of one packet of the protocol
    "innodb-flush-log-at-trx-commit": "0",  # the data need not survive the process
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
        url: `mariadb://root@127.0.0.1:<port>`; the user root has all privileges and no password.
        host: Always `127.0.0.1`.
        port: TCP port of the server.
        name: Always `MariaDB`.
        version: Version of the server, for example `10.11.19`.
        pid: Process id of the server.
        client: Path of the command line client.
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
        Run the statements *sql* with the command line client, up to the first error.

        Returns:
            The output of the statements: a row per line, with tabs between the columns.

        Raises:
            LocalServerError: A statement failed; the message is MariaDB's.
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
        """Drop the database of *url*, which `create_database` returned."""
        self.execute(f"DROP DATABASE {url.rpartition('/')[2]}")


@contextlib.contextmanager
def mariadb(certificate: tuple[Path, Path] | None = None) -> Iterator[MariadbServer]:
    """
    Run an empty server.

    Args:
        certificate: PEM files of a certificate and of the certificate's key; with them the server offers TLS.

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
        env = {**os.environ, "TMPDIR": str(folder)}  # the server's user may lack access to this process's TMPDIR
        log, data = folder / "log", folder / "data"
        # Without --skip-test-db the server has an account for anonymous users. MariaDB prefers that account to one with
        # a user name, so the login of a named user could fail.
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
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if path is None:
        raise LocalServerError(f"No {name} was found on the PATH. Run: apt install {' '.join(PACKAGES)}")
    return path
