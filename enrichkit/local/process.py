"""
Start a server process so that it cannot outlive us, on a port nobody else has, in a folder that is removed.

Everything in `enrichkit.local` goes through here. A server dies with the process that started it, a SIGKILL included:
Linux signals a child whose parent is gone if the child asked for it (`PR_SET_PDEATHSIG`). Linux takes "parent" to be
the *thread* that started the child, so start servers from a thread that lives as long as they should.
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
"""Seconds that a server may take to answer. It ends a hang on a busy machine; one that dies is noticed at once."""


class LocalServerError(RuntimeError):
    """A throw-away server could not be started or did not answer; the text holds the end of its log."""


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
    Start *command* so that it gets *death_signal* when we die.

    Args:
        command: Program and arguments.
        log: File that takes what it writes, appended.
        env: Its whole environment; ours when absent.
        death_signal: What it gets when the thread that started it is gone.
        ids: User and group to run as, for root only.
        stdin: As for `subprocess.Popen`; nothing to read by default.
        stdout: As for `subprocess.Popen`; the log by default.
        cwd: Its working directory; ours when absent.
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
    """Start *command*, as `start` does with *settings*, and return its exit code; a Ctrl-C ends it, too."""
    process = start(command, **settings)
    try:
        return process.wait()
    except BaseException:
        stop(process, signal.SIGKILL)
        raise


def stop(process: subprocess.Popen[bytes], sig: int = signal.SIGTERM, grace: float = 5.0) -> None:
    """Send *sig*, wait *grace* seconds, then SIGKILL; returns when the process is gone."""
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
    """Return a loopback port that was free a moment ago; somebody may be faster, see `start_on_free_port`."""
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
    Start a server on a free port and wait until it answers; take another port when somebody was faster.

    Args:
        name: What to call the server in messages.
        launch: Starts it on the port given.
        ready: Asked every few milliseconds; something other than None once the server *of this process* answers.
        log: Where the server writes; its end goes into the error message.
        timeout: Seconds to wait.

    Returns:
        The process, the port, and what *ready* returned.

    Raises:
        LocalServerError: It ended, or did not answer in time.
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
    """Ask *ready* until it returns something; `LocalServerError` when the process ends or *timeout* seconds pass."""
    end = time.monotonic() + timeout
    while True:
        with contextlib.suppress(OSError):  # not listening yet
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
    """Make a folder, owned by *ids* if given, and remove it at the end. The path is short: Unix sockets need that."""
    base = Path(tempfile.gettempdir())
    if ids is not None and not all(folder.stat().st_mode & 0o001 for folder in (base, *base.parents)):
        base = Path("/tmp")  # noqa: S108 - a new folder of a random name; root's own may be closed to the user *ids*
    path = Path(tempfile.mkdtemp(prefix=f"enrichkit-{name}-", dir=base))
    try:
        if ids is not None:
            os.chown(path, *ids)
        yield path
    finally:
        # A process that was just killed may still be removing files of its own.
        shutil.rmtree(path, ignore_errors=True)


def nobody() -> tuple[int, int]:
    """Return user and group for a server that refuses to run as root."""
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:  # an image without a user list
        return 65534, 65534
    return entry.pw_uid, entry.pw_gid


def announce(text: str) -> None:
    """Say which server runs where. On stderr: the output of an example is its own."""
    print(f"enrichkit.local: {text}", file=sys.stderr, flush=True)
