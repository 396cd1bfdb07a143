"""The fixtures: those that the author of a plugin writes, and those that the kit makes of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from ..proxy import fault_proxy
from .source import Network, Source, moved

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...connector import Connector, Key
    from ..proxy import FaultProxy

__all__ = ["Fixtures"]


class Fixtures:
    """
    What every check is given.

    Attributes:
        patience: Seconds after which whatever must happen, and does not, has failed. Raise it for a slow source.
    """

    patience: ClassVar[float] = 10.0

    @pytest.fixture
    def connector(self) -> Connector[Any]:
        """An unopened connector that points at a test server. If it cannot `describe`, its config says `returns`."""
        raise NotImplementedError(f"{type(self).__name__} must have a fixture `connector`: an unopened connector.")

    @pytest.fixture
    def known(self) -> dict[Key, Any]:
        """
        Seeds the source and returns what it then holds: `{key: value}`, three or more, all values different.

        A value is what a user gets: a mapping for a struct. Of text keys one has a quote and one is not ASCII.
        """
        raise NotImplementedError(f"{type(self).__name__} must have a fixture `known`: what it put into the source.")

    @pytest.fixture
    def missing_key(self) -> Key:
        """A key of the right type that the source does not hold; nor does it hold keys that begin with it."""
        raise NotImplementedError(f"{type(self).__name__} must have a fixture `missing_key`: one that is not there.")

    @pytest.fixture
    def address(self) -> tuple[str, int] | None:
        """Host and port of the server, as the config of `connector` has them; None for a source that is no server."""
        return None

    def connector_at(self, connector: Connector[Any], address: tuple[str, int], host: str, port: int) -> Connector[Any]:
        """
        Return an unopened connector like *connector* that asks at *host* and *port* instead of at *address*.

        Override it when the config does not mention the address as `host:port`, or in fields of their own.
        """
        return moved(connector, address, (host, port))

    # made of these

    @pytest.fixture
    def source(self, connector: Connector[Any], known: dict[Key, Any], missing_key: Key) -> Iterator[Source]:
        """The connector, open."""
        with Source(connector, known, missing_key, patience=self.patience) as source:
            source.open()
            yield source

    @pytest.fixture
    def proxy(self, address: tuple[str, int] | None) -> Iterator[FaultProxy | None]:
        """What stands between the connector and its server in the checks of faults; None without a server."""
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
        """The connector behind the fault proxy, not open yet; None without a server, which the connector proves."""
        if address is None or proxy is None:
            for _ in range(3):  # other threads may open some, too, py4j's for example, but hardly each time
                with Source(connector, known, missing_key, patience=self.patience) as source:
                    source.run(asyncio.sleep(0))  # the loop has sockets of its own, once it runs
                    before = sockets()
                    source.open()
                    source.look_up(source.keys)
                    opened = sockets() - before
                if not opened:
                    break
            assert not opened, (
                "The connector opens connections, so it has to be tested with a network that fails. Write a fixture "
                "`address` that returns host and port of the server, as the config of `connector` has them."
            )
            yield None
            return
        behind = self.connector_at(connector, address, proxy.host, proxy.port)
        with Network(behind, proxy, known, missing_key, patience=self.patience) as network:
            yield network
            proxy.heal()


def sockets() -> set[int]:
    """Return the inodes of the sockets that this process has open."""
    found = set()
    for fd in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself is gone
            status = os.fstat(int(fd))
            if stat.S_ISSOCK(status.st_mode):
                found.add(status.st_ino)
    return found
