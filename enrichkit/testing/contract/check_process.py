"""
The code of the fork server and of its forks. Each fork is the process of one check: it runs the job that calls the
check, and sends the job's exception, if any, to pytest.

The module `fork_server` has the code that runs in pytest.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import pytest

__all__ = ["METHOD", "NUMBER", "RemoteProxy", "fork", "serve"]

NUMBER = struct.Struct("i")
"""The format in which the fork server sends the id of a new process to pytest, and later its exit code."""

_REQUEST_MAX = 65536  # the most bytes that the names of modules in a request may have
_PR_SET_PDEATHSIG = 1  # the value of PR_SET_PDEATHSIG in linux/prctl.h


class RemoteProxy:
    """
    A stand-in for the fault proxy in a check's process.

    Each call of a method and each read of an attribute is sent to pytest, which uses the real proxy and returns the
    result.
    """

    def __init__(self, channel: Connection) -> None:
        self._channel = channel

    def __repr__(self) -> str:
        text: str = self._ask("__repr__", (), {})
        return text

    def __getattr__(self, name: str) -> Any:
        value = self._ask(name)
        return (lambda *args, **settings: self._ask(name, args, settings)) if value is METHOD else value

    def _ask(self, *request: Any) -> Any:
        self._channel.send(request)
        return self._channel.recv()


class _Method:
    """The type of `METHOD`, the answer that pytest sends when the attribute that was read is a method."""

    def __reduce__(self) -> str:
        return "METHOD"  # the name of a global: unpickling returns the only instance, `METHOD`, instead of a copy


METHOD = _Method()


def fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns that a fork lacks its parent's threads
        return os.fork()


def serve(requests: socket.socket, parent: int) -> None:
    """
    Fork a process for each request that arrives at *requests*, until pytest closes the socket.

    A request consists of the names of the modules to import first, and of two file descriptors: the job's channel to
    pytest, and the file for the job's output.
    """
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches this process, but pytest handles it
    this = os.getpid()
    while (request := socket.recv_fds(requests, _REQUEST_MAX, 2))[1]:
        fds = request[1]
        for module in request[0].decode().split("\n"):
            with contextlib.suppress(Exception):  # if the job needs the module, its own import fails and is reported
                importlib.import_module(module)
        gc.freeze()  # so that no fork finalizes an object of pytest, and fewer memory pages are copied
        pid = fork()
        if pid == 0:
            requests.close()
            _die_with(this)
            _work(*fds)
        for fd in fds:
            os.close(fd)
        requests.sendall(NUMBER.pack(pid))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(ProcessLookupError):  # raised if the job has left no process behind
            os.killpg(pid, signal.SIGKILL)
        requests.sendall(NUMBER.pack(code))


def _work(channel_fd: int, output: int) -> NoReturn:
    """Run a job; send its exception, its traceback and its warnings to pytest; then end this process."""
    try:
        os.setsid()  # so that `serve` can end all processes that the job leaves behind
        for standard in (1, 2):
            os.dup2(output, standard)
        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  # stays open until exit
        faulthandler.enable(2)
        sys.unraisablehook = _warn_of_unraisable
        threading.excepthook = _warn_of_thread
        channel = Connection(channel_fd)
        failure, text = None, ""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")  # record every warning: pytest filters them later
            try:
                job, environment, folder = channel.recv()
                os.environ.update(environment)
                os.chdir(folder)
                pickle.loads(job)(RemoteProxy(channel))  # noqa: S301  # the data comes from pytest
            except BaseException as error:  # noqa: BLE001  # the exception is sent to pytest below
                failure, text = _portable(error), "".join(traceback.format_exception(error))
            gc.collect()
        found = [(str(each.message), each.category, each.filename, each.lineno) for each in caught]
        channel.send([failure, text, found])
    except BaseException:  # noqa: BLE001  # the process ends below: this traceback is the only report
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # `_exit` does not run the exit handlers, which belong to pytest


def _portable(error: BaseException) -> BaseException:
    """Return *error*; if pickle cannot copy it, return an `AssertionError` with the same message."""
    try:
        copy: BaseException = pickle.loads(pickle.dumps(error))  # noqa: S301  # pickled on this line
    except Exception:  # noqa: BLE001  # the methods of *error* may raise anything
        return AssertionError(f"{type(error).__name__}: {error}")
    return copy


def _warn_of_unraisable(args: sys.UnraisableHookArgs) -> None:
    text = f"{args.err_msg or 'Exception ignored in'}: {args.object!r}: {args.exc_value!r}"
    warnings.warn(pytest.PytestUnraisableExceptionWarning(text), stacklevel=2)


def _warn_of_thread(args: threading.ExceptHookArgs) -> None:
    text = f"Exception in the thread {args.thread and args.thread.name}: {args.exc_value!r}"
    warnings.warn(pytest.PytestUnhandledThreadExceptionWarning(text), stacklevel=2)


def _die_with(parent: int) -> None:
    """On Linux, let the kernel kill this process when its parent, the process *parent*, has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before prctl, so no signal will come
            os._exit(1)
