"""Checks of what a connector does when server or network fail: a `TransientError`, and right values afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConnectorError
from ..bench import is_transient
from .base import Fixtures
from .source import on_a_network, parts_of

if TYPE_CHECKING:
    from .source import Network

__all__ = ["FaultChecks"]

CUTS = (0, 1, 2, 5, 9, 17, 33, 65)  # bytes of an answer that still pass; the last ones may be all of it


class FaultChecks(Fixtures):
    """
    Only a `TransientError` is tried again, so whatever may be over in a moment must be one.

    The checks call as the engine does: after a transient error again, until the source answers.
    """

    @on_a_network
    def test_through_the_proxy_it_answers(self, network: Network) -> None:
        """Look at `address` and `connector_at`: the connector must ask the proxy, and only the proxy."""
        before = network.proxy.heard
        network.open()
        assert network.expected(network.keys) == network.look_up_values(network.keys)
        assert network.proxy.heard > before, "The connector did not connect to the proxy: override `connector_at`."

    @on_a_network
    def test_it_opens_no_more_connections_than_calls(self, network: Network) -> None:
        """Look at the size of the pool: `capacity` of them at most, which is what servers are dimensioned for."""
        network.open()
        groups = [[key] for key in network.keys for _ in range(network.capacity)]
        for _ in range(3):
            with network.frozen():  # so that no call ends before all are under way
                tasks = network.asked(*groups, timeout=network.patience)
                assert network.proxy.open <= network.capacity, network.proxy
            assert all(network.ended(task) for task in tasks)
        assert network.proxy.open <= network.capacity, network.proxy

    @on_a_network
    def test_calls_share_their_connections(self, network: Network) -> None:
        """Look for a connection per call: it costs more than the lookup."""
        network.open()
        before = network.proxy.opened
        for _ in range(10):
            network.look_up(network.group)
        assert network.proxy.opened - before <= network.capacity, network.proxy

    @on_a_network
    def test_a_server_that_is_away_is_transient(self, network: Network) -> None:
        """Look at what the driver raises for a lost connection and for a refused one."""
        network.open()
        network.look_up(network.group)
        network.proxy.refuse()
        network.proxy.cut()
        for _ in range(3):
            answers = network.attempt(network.group)
            assert answers is None or (answers and all(map(is_transient, answers.values()))), answers

    @on_a_network
    def test_it_comes_back_with_its_server(self, network: Network) -> None:
        """Look for broken connections that stay in the pool, and for a client that gives up for ever."""
        network.open()
        network.look_up(network.keys)
        network.proxy.refuse()
        network.proxy.cut()
        for _ in range(2):  # the lost connection, and the refused one
            network.attempt(network.group)
        network.proxy.heal()
        for key in network.keys:
            assert network.expected([key]) == network.values(network.recovered([key]))

    @on_a_network
    def test_an_idle_connection_that_was_lost_is_replaced(self, network: Network) -> None:
        """Look at what happens to a connection that the server has closed while nobody used it."""
        network.open()
        for _ in range(3):
            network.look_up(network.group)
            network.proxy.cut()
            assert not network.wrong(network.attempt(network.group) or {})
            assert network.expected(network.group) == network.values(network.recovered(network.group))

    @on_a_network
    def test_half_an_answer_is_no_answer(self, network: Network) -> None:
        """Look for what takes the end of the connection for the end of the answer."""
        network.open()
        keys = [*network.group, network.missing][: network.connector.max_batch_size]
        network.look_up(keys)
        for size in CUTS:
            network.proxy.close_after(size, times=1)
            assert not network.wrong(network.attempt(keys) or {}), f"The connection ended after {size} bytes."
            network.proxy.heal()
            assert network.expected(keys) == network.values(network.recovered(keys))

    @on_a_network
    def test_a_reset_in_an_answer_is_transient(self, network: Network) -> None:
        """Look at `ConnectionResetError` and its kin: they are an `OSError` of the driver, and must be ours."""
        network.open()
        network.look_up(network.group)
        for size in CUTS:
            network.proxy.reset_after(size, times=1)
            assert not network.wrong(network.attempt(network.group) or {})
            network.proxy.heal()
            assert network.expected(network.group) == network.values(network.recovered(network.group))

    @on_a_network
    def test_a_lost_connection_is_no_miss(self, network: Network) -> None:
        """Look for an empty result where the connection ended before the answer: a miss is an answer of the source."""
        network.open()
        for size in CUTS[:4]:
            network.proxy.close_after(size, times=1)
            answers = network.attempt(network.group)
            assert answers is None or answers.keys() == set(network.group), f"The connection ended after {size} bytes."
            network.proxy.heal()
            network.recovered(network.group)

    @on_a_network
    def test_it_does_not_try_again_by_itself(self, network: Network) -> None:
        """Look at the retries of the driver and switch them off: the engine has a budget, and counts."""
        network.open()
        network.look_up(network.group)
        network.proxy.reset_after(0, direction="to server")
        opened = network.proxy.opened
        network.attempt(network.group)
        assert network.proxy.opened - opened <= 2, f"One call made {network.proxy.opened - opened} connections."

    @on_a_network
    def test_the_message_of_a_lost_connection_holds_no_key(self, network: Network) -> None:
        """Look at the texts of the driver's errors: some quote the request, a URL with the key for example."""
        network.open()
        network.look_up(network.group)
        network.proxy.refuse()
        network.proxy.cut()
        for key in network.group:
            try:
                answers = network.fetch([key])
                text = " ".join(str(getattr(answer, "error", "")) for answer in answers.values())
            except ConnectorError as error:
                text = str(error)
            assert not [part for part in parts_of(key) if len(str(part)) > 4 and str(part) in text]
