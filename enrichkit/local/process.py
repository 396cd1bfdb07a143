"""
Functions that start, on a free port and in a temporary folder, a server process that cannot outlive this process.

All servers of `enrichkit.local` are started here. A server dies with the process that started it, even when that
process gets a SIGKILL: Linux sends a signal to a child whose parent has died, if the child requested the signal
(`PR_SET_PDEATHSIG`). For Linux the "parent" is the *thread* that started the child, so start a server from a thread
that lives as long as the server should.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

T = TypeVar("T")

CHILD = Path(__file__).with_name("child.py")
PORT_ATTEMPTS = 8
START_TIMEOUT = 300.0
"""
Seconds that a server may take to answer. The limit is high because the machine may be busy. Only a server that hangs
reaches the limit, because a server that dies is noticed at once.
"""


class LocalServerError(RuntimeError):
    """A throw-away server could not be started or did not answer; the message holds the end of the server's log."""


def start(
    command: Sequence[str | Path],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    death_signal: int = signal.SIGKILL,
    ids: tuple[int, int] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """
    Start *command* so that it gets *death_signal* when this process dies.

    Args:
        command: Program and arguments.
        log: File to which the program's output is appended.
        env: All environment variables of the program; when absent, the variables of this process.
        death_signal: Signal that the program gets when the thread that started it has ended.
        ids: Ids of the user and the group that run the program; only root can set them. None: those of this process.
        stdin: As for `subprocess.Popen`; an empty input by default.
        stdout: As for `subprocess.Popen`; the log by default.
        cwd: Working directory of the program; when absent, the working directory of this process.
    """
    user, group = ids or (-1, -1)
    child = [sys.executable, "-I", "-S", CHILD, death_signal, os.getpid(), user, group]
    with log.open("ab") as sink:
        return subprocess.Popen(
            [str(part) for part in (*child, *command)],
            stdin=stdin,
            stdout=sink if stdout is None else stdout,
            stderr=sink,
            env=None if env is None else dict(env),
            cwd=cwd,
        )


def run(command: Sequence[str | Path], **settings: Any) -> int:
    """Start *command* with `start` and *settings*, wait, and return the exit code; Ctrl-C ends the command too."""
    process = start(command, **settings)
    try:
        return process.wait()
    except BaseException:
        stop(process, signal.SIGKILL)
        raise


def stop(process: subprocess.Popen[bytes], sig: int = signal.SIGTERM, grace: float = 5.0) -> None:
    """Send *sig* to *process*, and SIGKILL if the process still runs *grace* seconds later; wait until it has ended."""
    if process.poll() is None:
        process.send_signal(sig)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def free_port() -> int:
    """
    Return a free loopback port.

    Another process may take the port before the caller uses it; `start_on_free_port` then tries another port.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start_on_free_port(
    name: str,
    launch: Callable[[int], subprocess.Popen[bytes]],
    ready: Callable[[subprocess.Popen[bytes], int], T | None],
    log: Path,
    timeout: float = START_TIMEOUT,
) -> tuple[subprocess.Popen[bytes], int, T]:
    """
    Start a server on a free port and wait until it answers. If another process takes the port first, try another port.

    Args:
        name: Name of the server in messages.
        launch: Function that starts the server on a port.
        ready: Function that is called every few milliseconds. It must return None until the server *of this process*
            answers; another server may have taken the port.
        log: File with the server's output; the end of the file goes into the error message.
        timeout: Seconds to wait.

    Returns:
        The process, the port, and the value that *ready* returned.

    Raises:
        LocalServerError: The server ended or did not answer in time, or other processes took all ports that were tried.
    """
    for _ in range(PORT_ATTEMPTS):
        port = free_port()
        log.write_bytes(b"")
        process = launch(port)
        try:
            return process, port, wait_until_ready(name, process, partial(ready, process, port), log, timeout)
        except BaseException as error:
            stop(process, signal.SIGKILL)
            if not (isinstance(error, LocalServerError) and "in use" in log.read_text(errors="replace")):
                raise
    raise LocalServerError(f"{name} found no free port in {PORT_ATTEMPTS} attempts. Its log ends: {tail(log)}")


def wait_until_ready(
    name: str,
    process: subprocess.Popen[bytes],
    ready: Callable[[], T | None],
    log: Path,
    timeout: float = START_TIMEOUT,
) -> T:
    """
    Call *ready* until it returns a value other than None, and return this value.

    Raises:
        LocalServerError: *process* ended, or *timeout* seconds have passed.
    """
    end = time.monotonic() + timeout
    while True:
        with contextlib.suppress(OSError):  # the server does not listen yet
            answer = ready()
            if answer is not None:
                return answer
        if process.poll() is not None:
            raise LocalServerError(
                f"{name} ended with code {process.returncode} while starting. Its log ends: {tail(log)}"
            )
        if time.monotonic() > end:
            raise LocalServerError(f"{name} did not answer within {timeout:g} s. Its log ends: {tail(log)}")
        time.sleep(0.005)


def tail(log: Path, size: int = 2000) -> str:
    """Return the last *size* characters of a log, for an error message."""
    text = log.read_text(errors="replace").strip() if log.exists() else ""
    return text[-size:] or "(empty)"


@contextlib.contextmanager
def temp_dir(name: str, ids: tuple[int, int] | None = None) -> Iterator[Path]:
    """
    Create a folder, owned by *ids* if given; yield its path and remove the folder at the end.

    The path is short, because the length of the path of a Unix socket is limited.
    """
    base = Path(tempfile.gettempdir())
    if ids is not None and not all(folder.stat().st_mode & 0o001 for folder in (base, *base.parents)):
        base = Path("/tmp")  # noqa: S108 - the folder's name is random; *ids* may not enter TMPDIR
    path = Path(tempfile.mkdtemp(prefix=f"enrichkit-{name}-", dir=base))
    try:
        if ids is not None:
            os.chown(path, *ids)
        yield path
    finally:
        # Errors are ignored because a process that was just killed may still remove files.
        shutil.rmtree(path, ignore_errors=True)


def nobody() -> tuple[int, int]:
    """Return the ids of user and group `nobody`, for a server that refuses to run as root."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:  # a container image may lack the list of users; 65534 is the usual id of nobody
        return 65534, 65534
    return entry.pw_uid, entry.pw_gid


def announce(text: str) -> None:
    """Print *text*, the version and port of a server, on stderr, so that stdout holds only an example's own output."""
    print(f"enrichkit.local: {text}", file=sys.stderr, flush=True)
