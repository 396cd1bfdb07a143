"""Checks of open and close: as often as you like, on one loop after another, in a forked process; nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import threading
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from ...errors import FatalError, TransientError
from ..bench import wait_until
from .base import Fixtures
from .source import Source, on_a_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...connector import Connector, Key
    from .source import Network

__all__ = ["LifecycleChecks"]


class LifecycleChecks(Fixtures):
    """A worker process opens a source, closes it when it was idle for a while, and opens it again for a later task."""

    def test_closing_twice_is_closing_once(self, source: Source) -> None:
        """Look at `close`: it forgets what it has closed, so that a second one finds nothing to do."""
        source.fetch(source.group)
        source.close()
        source.close()

    def test_it_can_be_closed_before_it_is_opened(self, connector: Connector[Any], known: dict[Key, Any]) -> None:
        """Look for attributes that only `open` sets: `close` is called after an `open` that failed at once, too."""
        with Source(connector, known, None, patience=self.patience) as source:
            source.close()

    def test_it_can_be_opened_again(self, source: Source) -> None:
        """Look for what `close` leaves closed for ever: a flag, a client that was made in `__init__`."""
        for _ in range(2):
            assert source.expected(source.keys) == source.look_up_values(source.keys)
            source.close()
            source.open()

    def test_it_can_be_opened_on_another_loop(self, connector: Connector[Any], known: dict[Key, Any]) -> None:
        """Look for locks, queues and clients that are made in `__init__` or for the class, instead of in `open`."""
        for _ in range(2):
            with Source(connector, known, None, patience=self.patience) as source:
                source.open()
                # At the same time, because what belongs to a loop says so only when it has to wait.
                keys = list(itertools.islice(itertools.cycle(source.keys), source.capacity))
                for key, answers in zip(keys, source.fetch_at_once([[key] for key in keys]), strict=True):
                    assert source.expected([key]) == source.values(answers)

    def test_two_of_them_do_not_touch_each_other(self, source: Source) -> None:
        """Look for clients that are kept in the class or the module: another source may close while this one works."""
        twin = Source(type(source.connector)(source.connector.config), source.known, None, patience=self.patience)
        with twin:
            twin.open()
            assert source.expected(source.keys) == twin.look_up_values(source.keys)
        assert source.expected(source.keys) == source.look_up_values(source.keys)

    def test_a_forked_process_makes_its_own(self, source: Source) -> None:
        """
        Look for connections, threads and caches of the module: Spark forks its workers, and both sides go on.

        A driver that cannot be used on both sides raises a `FatalError` in the child; what it may not is hang.
        """
        source.look_up(source.keys)

        def child() -> bool:
            twin = Source(type(source.connector)(source.connector.config), source.known, None, patience=self.patience)
            with twin:
                try:
                    twin.open()
                except FatalError:
                    return True
                return source.expected(source.keys) == twin.look_up_values(source.keys)

        assert in_a_fork(child, 2 * self.patience)
        assert source.expected(source.keys) == source.look_up_values(source.keys)

    def test_a_closed_connector_leaves_no_task(self, source: Source) -> None:
        """Look for `create_task` without an owner: `close` ends what the connector has started."""
        source.look_up(source.keys)
        source.close()
        assert wait_until(lambda: not source.tasks(), self.patience), source.tasks()

    def test_a_closed_connector_leaves_nothing_open(self, connector: Connector[Any], known: dict[Key, Any]) -> None:
        """Look at what `open` and the calls make and `close` does not end: connections, files, threads."""

        def used() -> None:
            again = type(connector)(connector.config)
            with Source(again, known, None, patience=self.patience) as source:
                source.open()
                source.fetch_at_once([[key] for key in source.keys[: source.capacity]])
                source.close()

        used()  # some things are made once per process
        files, threads = left()
        used()
        assert wait_until(lambda: left()[0] <= files, self.patience), f"{files} open files became {left()[0]}."
        assert wait_until(lambda: left()[1] <= threads, self.patience), f"{threads} threads became {left()[1]}."

    def test_a_failed_open_can_be_closed_and_repeated(
        self, connector: Connector[Any], known: dict[Key, Any], missing_key: Key
    ) -> None:
        """Look at an `open` that was cancelled on its way: `close` frees what there is, and `open` begins anew."""
        with Source(connector, known, missing_key, patience=self.patience) as source:

            async def cancelled_after(turns: int) -> None:
                task = asyncio.ensure_future(source.connector.open())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                await source.connector.close()

            for turns in range(1, 6):  # at 0 it would not have begun
                source.run(cancelled_after(turns))
            source.open()
            assert source.expected(source.keys) == source.look_up_values(source.keys)

    @on_a_network
    def test_close_ends_its_connections(self, network: Network) -> None:
        """Look at `close`: each connection to the server is closed, those of failed and cancelled calls too."""
        network.open()
        network.look_up(network.keys)
        with network.frozen():
            [task] = network.asked(network.keys[:1], timeout=0.3)
            network.cancel(task)
        del task  # its exception holds the frames of the call, and these perhaps a connection
        network.close()
        assert wait_until(lambda: network.proxy.open == 0, self.patience), network.proxy

    @on_a_network
    def test_close_waits_for_no_server(self, network: Network) -> None:
        """Look at a `close` that says goodbye, or waits for its calls: the server may never answer."""
        network.open()
        network.look_up(network.keys[:1])
        with network.frozen():
            [task] = network.asked(network.keys[:1], timeout=0.3)
            network.close()
            network.cancel(task)

    @on_a_network
    def test_an_open_that_finds_no_server_is_transient(self, network: Network) -> None:
        """Look at what `open` raises when nobody listens; an `open` that does not connect need not raise."""
        network.proxy.refuse()
        with contextlib.suppress(TransientError):
            self._open_afresh(network)
        network.proxy.accept()
        if not network.is_open:
            network.patiently(lambda: self._open_afresh(network))
        assert network.expected(network.group) == network.values(network.recovered(network.group))

    def _open_afresh(self, network: Network) -> None:
        """Open as the engine does, which closes what a failed `open` left behind."""
        try:
            network.open()
        except TransientError:
            network.close()
            raise


def left() -> tuple[int, int]:
    """Return how many files and sockets this process has open, and how many threads it runs."""
    return len(os.listdir("/dev/fd")), threading.active_count()


def in_a_fork(function: Callable[[], bool], seconds: float) -> bool:
    """Tell whether *function* returns true in a forked child, within as many seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is to be tried
        pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if function() else 1
        except BaseException:  # noqa: BLE001  # nobody else would ever see it
            traceback.print_exc()
        finally:
            os._exit(code)  # no clean-up of what belongs to the parent
    ends = time.monotonic() + seconds
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
        if time.monotonic() > ends:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        time.sleep(0.002)
    return os.waitstatus_to_exitcode(ended[1]) == 0
