"""Checks that `open` and `close` work repeatedly, on several event loops and in a forked process, and leak nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
import traceback
from typing import TYPE_CHECKING, Any

from ...errors import FatalError, TransientError
from ..bench import wait_until
from .base import Fixtures, files_and_threads
from .check_process import fork
from .messages import raised, told
from .own_process import cancels, needs_network
from .source import Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...interface import Connector, Key
    from .source import Network

__all__ = ["LifecycleChecks"]


class LifecycleChecks(Fixtures):
    """A worker process opens a connector, closes it after a while without work, and opens it again for a later task."""

    def test_closing_twice_is_closing_once(self, source: Source) -> None:
        """Look at `close`: a second `close` must find nothing to do and raise nothing."""
        source.fetch(source.group)
        source.close()
        source.close()

    def test_it_can_be_closed_before_it_is_opened(self, connector: Connector[Any], known: dict[Key, Any]) -> None:
        """Look for attributes that only `open` sets: the engine calls `close` even if `open` failed immediately."""
        with Source(connector, known, None, patience=self.patience) as source:
            source.close()

    def test_it_can_be_opened_again(self, source: Source) -> None:
        """Look for state that `close` ends and `open` does not renew: a flag, or a client that `__init__` created."""
        for _ in range(2):
            right, got = source.expected(source.keys), source.look_up_values(source.keys)
            assert right == got, (
                "After each `open` the connector must return the values of all known keys; it returned "
                f"{told(right, got)}. Make in `open` all that `close` ends, and reset what `close` sets."
            )
            source.close()
            source.open()

    def test_it_can_be_opened_on_another_loop(self, connector: Connector[Any], known: dict[Key, Any]) -> None:
        """Look for locks, queues and clients that are created in `__init__` or in the class, instead of in `open`."""
        for _ in range(2):
            with Source(connector, known, None, patience=self.patience) as source:
                source.open()
                # The calls are concurrent, because asyncio's locks notice a wrong loop only when they have to wait.
                keys = list(itertools.islice(itertools.cycle(source.keys), source.capacity))
                for key, answers in zip(keys, source.fetch_at_once([[key] for key in keys]), strict=True):
                    right, got = source.expected([key]), source.values(answers)
                    assert right == got, (
                        "Opened on another event loop, the connector must return the value of each known key; it "
                        f"returned {told(right, got)}. Make locks, queues and clients in `open`."
                    )

    def test_two_of_them_do_not_touch_each_other(self, source: Source) -> None:
        """Look for clients kept in the class or the module: a second connector may close the first one's client."""
        twin = Source(type(source.connector)(source.connector.config), source.known, None, patience=self.patience)
        with twin:
            twin.open()
            right, got = source.expected(source.keys), twin.look_up_values(source.keys)
            assert right == got, (
                "A second connector with the same config must return the values of all known keys; it returned "
                f"{told(right, got)}. Keep clients in the instance, not in the class or the module."
            )
        got = source.look_up_values(source.keys)
        assert right == got, (
            "After a second connector with the same config was closed, the first one must still return all values; it "
            f"returned {told(right, got)}. Keep clients in the instance, not in the class or the module."
        )

    def test_a_forked_process_makes_its_own(self, source: Source) -> None:
        """
        Look for connections, threads and caches in globals of a module: Spark forks its workers, and both parent and
        child keep running and would use the same connections.

        If the client package cannot be used in both processes, the connector must raise a `FatalError` in the child.
        The child must not hang.
        """
        source.look_up(source.keys)

        def child() -> str:
            twin = Source(type(source.connector)(source.connector.config), source.known, None, patience=self.patience)
            with twin:
                try:
                    twin.open()
                except FatalError:
                    return ""
                right, got = source.expected(source.keys), twin.look_up_values(source.keys)
                return "" if right == got else f"returned {told(right, got)}"

        failure = failure_in_a_fork(child, 4 * self.patience)  # open, lookup and close may take `patience` each
        assert failure is None, (
            "In a forked process, a new connector must return the values of all known keys, or raise a FatalError; the "
            f"process {failure}. Look for connections, threads and caches of the module, which a fork does not bring "
            "along, or shares with its parent."
        )
        right, got = source.expected(source.keys), source.look_up_values(source.keys)
        assert right == got, (
            "After a fork, the connector of the parent process must still return the values of all known keys; it "
            f"returned {told(right, got)}. Look for what the child ends or reads although it belongs to the parent."
        )

    def test_a_closed_connector_leaves_no_task(self, source: Source) -> None:
        """Look for calls of `create_task` whose task is not kept: `close` must end all tasks of the connector."""
        source.look_up(source.keys)
        source.close()
        assert wait_until(lambda: not source.tasks(), self.patience), (
            f"`close` must end all tasks of the connector; after {self.patience:g} s these still run: "
            f"{', '.join(sorted(source.tasks()))}. Keep each task that you create, and cancel and await it in `close`."
        )

    def test_a_closed_connector_leaves_nothing_open(self, connector: Connector[Any], known: dict[Key, Any]) -> None:
        """Look for connections, files and threads that `open` or a call creates and `close` does not end."""

        def use_once() -> None:
            again = type(connector)(connector.config)
            with Source(again, known, None, patience=self.patience) as source:
                source.open()
                source.fetch_at_once([[key] for key in source.keys[: source.capacity]])
                source.close()

        use_once()  # the first use may create files and threads that stay until the process ends
        files, threads = files_and_threads()
        use_once()
        assert wait_until(lambda: files_and_threads()[0] <= files, self.patience), (
            f"After `close` this process has {files_and_threads()[0]} open files and sockets; before `open` it had "
            f"{files}. Close in `close` each connection and file that `open` or a call has opened."
        )
        assert wait_until(lambda: files_and_threads()[1] <= threads, self.patience), (
            f"After `close` this process has {files_and_threads()[1]} threads; before `open` it had {threads}. End in "
            "`close` each thread and thread pool that `open` or a call has started."
        )

    @cancels
    def test_a_failed_open_can_be_closed_and_repeated(self, source: Source) -> None:
        """Look at an `open` that is cancelled: `close` must free what `open` created, and a new `open` must work."""
        source.close()

        async def cancel_open_after(turns: int) -> None:
            task = asyncio.ensure_future(source.connector.open())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            await source.connector.close()

        for turns in range(1, 6):  # with 0 turns, `open` would be cancelled before it has started
            source.run(cancel_open_after(turns))
        source.open()
        right, got = source.expected(source.keys), source.look_up_values(source.keys)
        assert right == got, (
            "After cancelled `open`s, a new `open` must succeed and all known keys must have their values; "
            f"`fetch_many` returned {told(right, got)}. Free in `close` what a cancelled `open` has made, and reset "
            "the flags that it has set."
        )

    @needs_network
    def test_close_ends_its_connections(self, network: Network) -> None:
        """Look at `close`: it must close every connection to the server, even after failed and cancelled calls."""
        network.open()
        network.look_up(network.keys)
        with network.frozen():
            [task] = network.start_all(network.keys[:1], timeout=0.3)
            network.cancel(task)
        del task  # the task's exception refers to frames of the call, which may keep a connection alive
        network.close()
        assert wait_until(lambda: network.proxy.open == 0, self.patience), (
            f"`close` must close all connections; {network.proxy} counts {network.proxy.open} after "
            f"{self.patience:g} s. Close also those of failed and cancelled calls, which are no longer in the pool."
        )

    @needs_network
    def test_close_waits_for_no_server(self, network: Network) -> None:
        """Look at what `close` waits for: a silent server never confirms the end of a connection or answers a call."""
        network.open()
        network.look_up(network.keys[:1])
        with network.frozen():
            [task] = network.start_all(network.keys[:1], timeout=0.3)
            network.close()
            network.cancel(task)

    @needs_network
    def test_an_open_that_finds_no_server_is_transient(self, network: Network) -> None:
        """Look at `open` when the server is down: it must raise a `TransientError`, or return without connecting."""
        network.proxy.refuse()
        with contextlib.suppress(TransientError):
            self._open_as_the_engine_does(network)
        network.proxy.accept()
        if not network.is_open:
            network.retry(lambda: self._open_as_the_engine_does(network))
        right, got = network.expected(network.group), network.values(network.fetch_until_recovered(network.group))
        assert right == got, (
            "When the server is up, the connector must open and return the values of all known keys; it returned "
            f"{told(right, got)}. Reset in `open` all that a failed `open` has left."
        )

    def _open_as_the_engine_does(self, network: Network) -> None:
        """Open the connector, and close it if `open` fails."""
        try:
            network.open()
        except TransientError:
            network.close()
            raise


def failure_in_a_fork(function: Callable[[], str], seconds: float) -> str | None:
    """
    Call *function* in a forked child process, and return the error of the child, as the end of a sentence about it.

    The error is the text that *function* returns, or how the child failed. None means that the child has ended within
    *seconds* and without an error: *function* has returned an empty text.
    """
    ours, theirs = os.pipe()
    pid = fork()
    if pid == 0:
        code = 1
        try:
            os.write(theirs, function().encode())
            code = 0
        except BaseException as error:  # noqa: BLE001  # the child exits below, so this is its only report
            traceback.print_exc()
            os.write(theirs, f"raised {raised(error)}".encode("utf-8", "replace"))
        finally:
            os._exit(code)  # `_exit` does not run the exit handlers, which belong to the parent process
    os.close(theirs)
    end = time.monotonic() + seconds
    with open(ours, "rb", buffering=0) as pipe:
        while (result := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return f"did not end within {seconds:g} s"
            time.sleep(0.002)
        # The read must not wait, because a process that the child has left behind may still hold the pipe's other end.
        os.set_blocking(ours, False)
        text = (pipe.read() or b"").decode()
    code = os.waitstatus_to_exitcode(result[1])
    return text or (f"ended with the exit code {code}" if code else None)
