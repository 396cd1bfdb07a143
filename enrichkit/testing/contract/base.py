"""The fixtures of the checks: those that the author of a plugin writes, and those that are derived from them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ..proxy import fault_proxy
from .source import Network, Source, with_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...interface import Connector, Key
    from ..proxy import FaultProxy

__all__ = ["Fixtures"]


class Fixtures:
    """
    The fixtures of all checks.

    Attributes:
        patience: Seconds that a check waits for an event before the check fails. Increase it for a slow source.
        own_process: Whether the checks that break connections, and those that cancel calls of a server, run in
            processes of their own. Set it to False to use a debugger; each of these checks then warns that a crash
            would end the whole test run.
    """

    patience: ClassVar[float] = 10.0
    own_process: ClassVar[bool] = True

    @pytest.fixture
    def connector(self) -> Connector[Any]:
        """An unopened connector for a test server. If it has no `describe`, its config must have `returns`."""
        raise NotImplementedError(f"{type(self).__name__} must have a fixture `connector`: an unopened connector.")

    @pytest.fixture
    def known(self) -> dict[Key, Any]:
        """
        The contents of the source as `{key: value}`. The fixture stores them in the source.

        There are three keys or more, with different values. A value has the form in which a user gets it; for example,
        a struct is a mapping. If keys are text, at least one contains a quote character, and at least one a character
        outside ASCII.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a fixture `known`: what it put into the source.")

    @pytest.fixture
    def missing_key(self) -> Key:
        """
        A key of the right type. The source holds neither this key nor any key that begins with it, because checks
        append digits to this key to get more missing keys.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must have a fixture `missing_key`: a key that the source does not hold."
        )

    @pytest.fixture
    def address(self) -> tuple[str, int] | None:
        """Host and port of the server, as in the config of `connector`; None if the source is not a server."""
        return None

    @pytest.fixture
    def unreadable(self, known: dict[Key, Any]) -> Sequence[Key]:
        """
        Keys that the source holds, but whose values a user cannot get unchanged. The fixture stores them in the source.

        Examples of such values: bytes that are no text in the encoding of the column, an infinite date, a number with
        more digits than the Spark type has, a row of a view that divides by zero, a document that holds an error
        instead of a value. If the source cannot hold such a value, the fixture returns an empty sequence.
        """
        return ()

    def connector_at(self, connector: Connector[Any], address: tuple[str, int], host: str, port: int) -> Connector[Any]:
        """
        Return an unopened connector like *connector* that connects to *host* and *port* instead of to *address*.

        Override this method if the config holds the address neither as the text `host:port` nor as host and port in
        separate fields.
        """
        return with_address(connector, address, (host, port))

    # The fixtures below are derived from those above; a plugin does not write them.

    @pytest.fixture
    def source(
        self, connector: Connector[Any], known: dict[Key, Any], missing_key: Key, address: tuple[str, int] | None
    ) -> Iterator[Source]:
        """The connector under test, already opened."""
        with Source(connector, known, missing_key, patience=self.patience) as source:
            source.is_server = address is not None
            source.open()
            yield source

    @pytest.fixture
    def proxy(self, address: tuple[str, int] | None) -> Iterator[FaultProxy | None]:
        """The fault proxy between the connector and its server; None if the source is not a server."""
        with contextlib.ExitStack() as stack:
            yield None if address is None else stack.enter_context(fault_proxy(*address))

    @pytest.fixture
    def network(
        self,
        connector: Connector[Any],
        known: dict[Key, Any],
        missing_key: Key,
        address: tuple[str, int] | None,
        proxy: FaultProxy | None,
    ) -> Iterator[Network | None]:
        """
        The unopened connector, with the fault proxy between it and its server; None if the source is not a server.

        If `address` is None, the fixture asserts that the connector opens no connections.
        """
        if address is None or proxy is None:
            # Other threads, for example py4j's, may open sockets during an attempt, but hardly during all three. The
            # check therefore fails only if sockets were opened in each attempt.
            for _ in range(3):
                with Source(connector, known, missing_key, patience=self.patience) as source:
                    source.run(asyncio.sleep(0))  # so that `before` includes the sockets of the event loop itself
                    before = sockets()
                    source.open()
                    source.look_up(source.keys)
                    opened = sockets() - before
                if not opened:
                    break
            assert not opened, (
                "A connector that opens connections must be tested with a network that fails; "
                f"{type(connector).__name__} opened {len(opened)}, and the fixture `address` returns None. Write a "
                "fixture `address` that returns host and port of the server, as in the config of `connector`."
            )
            yield None
            return
        proxied = self.connector_at(connector, address, proxy.host, proxy.port)
        with Network(proxied, proxy, known, missing_key, patience=self.patience) as network:
            yield network
            proxy.heal()


def files_and_threads() -> tuple[int, int]:
    """Return the number of open files and sockets of this process, and the number of its threads."""
    return len(os.listdir("/dev/fd")), threading.active_count()


def sockets() -> set[int]:
    """Return the inodes of the open sockets of this process."""
    inodes = set()
    for fd in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # listdir also lists its own descriptor, which is closed by now
            status = os.fstat(int(fd))
            if stat.S_ISSOCK(status.st_mode):
                inodes.add(status.st_ino)
    return inodes
