"""
A separate process for each check that injects faults, so that a crash of the client package fails only one check.

The processes are forks of a fork server. The fork server is itself a fork of pytest, made before the first test, so it
has no threads, no connections and no Spark session. A later fork of pytest itself could wait for ever: it would inherit
locks that threads of pytest hold, but not the threads that release these locks. Everything that a fixture creates stays
in the process of pytest: the servers, and the fault proxy, which a check uses through a stand-in. The code that runs in
the forks is in `check_process`.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import select
import signal
import socket
import sys
import tempfile
import warnings
from typing import TYPE_CHECKING, Any

from .check_process import METHOD, NUMBER, fork, serve

if TYPE_CHECKING:
    from collections.abc import Iterable
    from multiprocessing.connection import Connection

__all__ = ["ForkServer"]

_LAST_WORDS = 2.0  # seconds in which a process that gets SIGABRT may write the tracebacks of its threads
_STACKS = re.compile(r"^(?:Current thread|Thread) .*(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_FRAMES_OF_PYTEST = re.compile(r'  File "[^"\n]*check_process\.py".*?(?=\n\n|\Z)', re.DOTALL)


class ForkServer:
    """
    A process that forks a child for each job, and reports how the child ended. The process ends when pytest ends, even
    if pytest is killed.
    """

    running: ForkServer | None = None

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        parent = os.getpid()
        pid = fork()
        if pid == 0:
            try:
                self._socket.close()
                serve(theirs, parent)
            finally:
                os._exit(0)  # `_exit` does not run the exit handlers, which belong to pytest
        self._pid = pid
        theirs.close()

    @classmethod
    def start(cls) -> ForkServer:
        """Return the fork server of this process; start it at the first call."""
        if cls.running is None:
            cls.running = cls()
        return cls.running

    @classmethod
    def stop(cls) -> None:
        """End the fork server, if one runs."""
        server, cls.running = cls.running, None
        if server is not None:
            server._socket.close()
            os.waitpid(server._pid, 0)

    def run(self, name: str, job: bytes, proxy: Any, modules: Iterable[str] = ()) -> None:
        """
        Call *job* in a process of its own, with a stand-in for *proxy*, and raise the exception that *job* raises, if
        any.

        The output of the process and its warnings become output and warnings of this process.

        Args:
            name: The name of the check, for messages.
            job: A pickled function with one argument, the stand-in.
            proxy: The object whose methods and attributes the stand-in has; it stays in this process.
            modules: Names of modules that the fork server imports first, so that the process of each check need not
                import them.

        Raises:
            AssertionError: The process ended before *job* did.
        """
        __tracebackhide__ = True
        data = pickle.dumps((job, dict(os.environ), os.getcwd()))
        ours, theirs = multiprocessing.Pipe()
        with ours, tempfile.TemporaryFile() as output:
            with theirs:
                # The fork server imports pandas, if installed, because pyarrow would otherwise import it in each fork.
                socket.send_fds(
                    self._socket, ["\n".join(("pandas", *modules)).encode()], [theirs.fileno(), output.fileno()]
                )
            pid = self._receive()
            try:
                result = _attend(ours, data, proxy)
            except BaseException:  # for example the time limit of pytest-timeout, or Ctrl-C
                self._end(pid)
                raise
            finally:
                code = self._receive()
                output.seek(0)
                printed = output.read().decode(errors="replace")
                sys.stderr.write(printed)
        if result is None:
            raise AssertionError(_obituary(name, code, printed))
        failure, text, caught = result
        if failure is not None:
            raise failure from _ProcessTraceback(text)
        for warning in caught:
            warnings.warn_explicit(*warning)

    def _end(self, pid: int) -> None:
        """
        End the process *pid* with SIGABRT, which makes it write the tracebacks of its threads.

        If the process does not end within `_LAST_WORDS` seconds, end it with SIGKILL.
        """
        for sig in (signal.SIGABRT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):  # the process has ended by itself
                os.kill(pid, sig)
            if select.select([self._socket], [], [], _LAST_WORDS)[0]:
                return

    def _receive(self) -> int:
        data = self._socket.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(data) < NUMBER.size:
            raise RuntimeError("The process that forks the processes of the checks has ended. Run the tests again.")
        number: int = NUMBER.unpack(data)[0]
        return number


class _ProcessTraceback(Exception):
    """The text of the traceback of an exception that a check raised in its own process."""


def _attend(channel: Connection, data: bytes, proxy: Any) -> Any:
    """
    Send the job *data* to its process, and carry out what the process requests of *proxy*, until it sends its result.

    Return this result, or None if the process ended without sending one.
    """
    try:
        channel.send_bytes(data)
        while isinstance(request := channel.recv(), tuple):
            name, *call = request
            value = getattr(proxy, name)
            if call:
                value = value(*call[0], **call[1])
            channel.send(METHOD if callable(value) else value)
    except (EOFError, ConnectionError):
        return None
    return request


def _obituary(name: str, code: int, printed: str) -> str:
    """Return the error message for the check *name*, whose process ended early with the exit code *code*."""
    how = signal.Signals(-code).name if code < 0 else f"the exit code {code}"
    stacks = _STACKS.search(printed.partition("\n\nExtension modules:")[0])
    return (
        f"The process of this check, {name}, ended with {how}. The connector and its client package must leave the "
        "process alive, whatever the network does: on a Spark worker all tasks of the process would fail. Look for an "
        "exit, or for native code that crashes, in what runs when a call is cancelled or loses its connection; "
        "with a client in pure Python, try it without uvloop"
        + (f"; the process was here:\n{_FRAMES_OF_PYTEST.sub('', stacks[0])}" if stacks else ".")
    )
